//! The example does what its text says, so that who copies it starts from something that works.

use coda_plugin_abi::conformance::{Linked, Setup};
use coda_plugin_abi::{Connectivity, Error, ErrorCode, Executor, Gate, GateKind, LogLevel, Program, Target};

fn connect(config: &str) -> Result<Linked, Error> {
    let factory = |ctx: &coda_plugin_abi::Context<'_>| {
        Ok(Box::new(coda_example_rust::connect(ctx)?) as Box<dyn Executor>)
    };
    Linked::create(factory, &Setup::new(config, "cz", 3))
}

fn rx(q: u16, angle: f64) -> Gate {
    Gate::one(GateKind::Rx, q, angle)
}

#[test]
fn bits_are_turned_over() {
    let acme =
        connect("executor_factory: libcoda_example_rust.so:create_executor\nhost: lab\nport: 7\n").unwrap();
    assert_eq!(acme.log_lines(None), [(LogLevel::Info, "connected to lab:7".to_string())]);
    let (device, hooks) = acme.device().unwrap();
    assert_eq!((device.name.as_str(), device.num_qubits, hooks.cancel), ("acme-example", 3, true));
    assert_eq!(device.connectivity, Connectivity::Undirected(vec![(0, 1), (1, 2)]));
    let pi = std::f64::consts::PI;
    let program =
        Program::new(Target::Cz, 3, [rx(2, pi), rx(1, 2.0 * pi), rx(0, -pi), rx(0, pi)], [2, 0, 1, 2])
            .unwrap();
    let outcome = acme.run("a", &program, 10).unwrap();
    assert_eq!(outcome.counts, [("1001".to_string(), 10)]);
    assert_eq!(outcome.execution_time_ms, Some(2.0));
}

#[test]
fn what_the_device_cannot_do_is_an_error_that_says_where() {
    let acme = connect("{host: lab, port: 7}").unwrap();
    for (gate, wants) in [
        (rx(0, 1.0), "gate 1: this device turns by multiples of pi only, not by 1"),
        (Gate::two(GateKind::Cz, 0, 1, 0.0), "gate 1: this device has no Cz"),
    ] {
        let program = Program::new(Target::Cz, 3, [rx(0, 0.0), gate], [0]).unwrap();
        let error = acme.run("a", &program, 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::Unsupported);
        assert!(error.text.starts_with(wants), "{}", error.text);
    }
}

#[test]
fn config_errors_name_file_and_key() {
    for (config, wants) in [
        ("", "missing field `host`"),
        ("{host: lab, port: 70000}", "port"),
        ("{host: lab, port: 1, prt: 2}", "unknown field `prt`"),
        ("{host: '', port: 1}", "`host` is empty"),
    ] {
        let error = connect(config).err().expect("a config error");
        assert_eq!(error.code, ErrorCode::Config);
        assert!(error.text.starts_with("device.yaml") && error.text.contains(wants), "{}", error.text);
    }
}

//! The example does what its text says, so that who copies it starts from something that works.

use coda_plugin_abi::conformance::{Linked, Setup, Suite, Verdict};
use coda_plugin_abi::{Connectivity, Error, ErrorCode, Executor, Gate, GateKind, LogLevel, Program, Target};

fn connect(config: &str, qubits: u16) -> Result<Linked, Error> {
    let factory = |ctx: &coda_plugin_abi::Context<'_>| {
        Ok(Box::new(coda_example_rust::connect(ctx)?) as Box<dyn Executor>)
    };
    Linked::create(factory, &Setup::new(config, "cz", qubits))
}

#[test]
fn it_passes_the_conformance_suite() {
    let mut acme = connect("{host: lab, port: 7}", 4).unwrap();
    let suite = Suite::for_device(&acme.device().unwrap().0);
    let mut failed = Vec::new();
    suite.run(&mut acme, &mut |case, verdict| {
        if let Verdict::Failed(why) = verdict {
            failed.push(format!("{}: {why}", case.name));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn it_tells_of_itself() {
    let config =
        "executor_factory: libcoda_example_rust.so:create_executor\nhost: lab\nport: 7\nshot_us: 500\n";
    let acme = connect(config, 3).unwrap();
    assert_eq!(acme.log_lines(None), [(LogLevel::Info, "connected to lab:7".to_string())]);
    assert_eq!(acme.gauges(None), [("fridge_kelvin".to_string(), 0.012)]);
    let (device, hooks) = acme.device().unwrap();
    assert_eq!((device.name.as_str(), device.num_qubits, hooks.cancel), ("acme-example", 3, true));
    assert_eq!(device.connectivity, Connectivity::Undirected(vec![(0, 1), (1, 2)]));
    let turned = Gate::one(GateKind::Rx, 2, std::f64::consts::PI);
    let outcome = acme.run("a", &Program::new(Target::Cz, 3, [turned], [2, 0]).unwrap(), 10).unwrap();
    assert_eq!(outcome.counts, [("10".to_string(), 10)]);
    assert_eq!(outcome.execution_time_ms, Some(5.0));
}

#[test]
fn what_the_device_cannot_do_is_an_error_that_says_where() {
    let acme = connect("{host: lab, port: 7}", 3).unwrap();
    let foreign = Gate::two(GateKind::Iswap, 0, 1, 0.0);
    let program = Program::new(Target::Iswap, 3, [foreign], [0]).unwrap();
    let error = acme.run("a", &program, 1).unwrap_err();
    assert_eq!(error.code, ErrorCode::Unsupported);
    assert!(error.text.starts_with("gate 0: this device has no Iswap"), "{}", error.text);
}

#[test]
fn config_errors_name_file_and_key() {
    for (config, wants) in [
        ("", "missing field `host`"),
        ("{host: lab, port: 70000}", "port"),
        ("{host: lab, port: 1, prt: 2}", "unknown field `prt`"),
        ("{host: '', port: 1}", "`host` is empty"),
    ] {
        let error = connect(config, 3).err().expect("a config error");
        assert_eq!(error.code, ErrorCode::Config);
        assert!(error.text.starts_with("device.yaml") && error.text.contains(wants), "{}", error.text);
    }
    assert!(connect("{host: lab, port: 1}", 11).err().unwrap().text.contains("11 qubits"));
}

//! What a job on a QDMI device library costs through the host, beside the same job on the bare library.
//!
//! Both run Bell circuits of 1,000 shots on MQT's simulator DDSIM, job by job in turns, so that what else the machine does
//! meets both alike. The bare library is driven by a small program in C that waits for each job in the library.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use coda_host::executor::locate::{DEFAULT_ENTRY, FactorySource, Located, LocatedLibrary};
use coda_host_tests::artifacts::{library, project_file};
use coda_host_tests::qdmi::{ddsim, ddsim_1_3, device};
use coda_plugin_abi::{Gate, GateKind, Program, Target};

use super::doors::RunningPlugin;

const SHOTS: u32 = 1_000;

/// Prints milliseconds per job, bare and through the host, and their ratio.
pub async fn bells(jobs: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let driver = dir.path().join("bare");
    let source = project_file("tests/benches/qdmi/bare.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(compiler).args(["-O2", "-o"]).arg(&driver).arg(source).arg("-ldl").status();
    assert!(built.is_ok_and(|status| status.success()), "the driver of the bare library compiles");
    for (name, found) in [("3.11.0, QDMI 1.3", ddsim_1_3()), ("4.1.1, QDMI 1.4", ddsim())] {
        let Some(file) = found else { continue };
        compare(name, &driver, &file, jobs).await;
    }
}

async fn compare(name: &str, driver: &Path, file: &Path, jobs: usize) {
    let mut bare = BareLibrary::start(driver, file);
    let located = Located::Library(LocatedLibrary {
        path: library("coda_qdmi"),
        entry: DEFAULT_ENTRY.into(),
        source: FactorySource::Environment,
        pinned: None,
    });
    let mut host = RunningPlugin::start(located, &device(file, ""), true).await;
    let angle = std::f64::consts::FRAC_PI_2;
    let gates = vec![
        Gate::one(GateKind::Ry, 0, angle),
        Gate::one(GateKind::Ry, 1, -angle),
        Gate::two(GateKind::Cz, 0, 1, 0.0),
        Gate::one(GateKind::Ry, 1, angle),
    ];
    let program = Arc::new(Program::new(Target::Cz, 2, gates, [0, 1]).expect("a legal circuit"));

    let (mut alone, mut through) = (Vec::new(), Vec::new());
    for n in 0..jobs + jobs / 10 {
        let times = (bare.run(), host.run(&program, SHOTS).await);
        // The first ones start the simulator.
        if n >= jobs / 10 {
            alone.push(times.0);
            through.push(times.1);
        }
    }
    host.end().await;
    bare.end();
    alone.sort_by(f64::total_cmp);
    through.sort_by(f64::total_cmp);
    let at = |micros: &[f64], p| super::number(super::percentile(micros, p) / 1e3);
    let more = (super::percentile(&through, 0.5) / super::percentile(&alone, 0.5) - 1.0) * 100.0;
    println!(
        "  Bell, 1,000 shots, DDSIM {name}: bare p50 {} ms, p90 {} ms; through the host p50 {} ms ({more:+.0} %), p90 {} ms",
        at(&alone, 0.5),
        at(&alone, 0.9),
        at(&through, 0.5),
        at(&through, 0.9),
    );
}

/// The program that drives the library.
struct BareLibrary {
    child: Child,
    orders: ChildStdin,
    times: BufReader<ChildStdout>,
}

impl BareLibrary {
    fn start(driver: &Path, library: &Path) -> BareLibrary {
        let mut command = Command::new(driver);
        command.arg(library).arg("MQT_DDSIM").arg(SHOTS.to_string());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the driver starts");
        let orders = child.stdin.take().expect("its standard input");
        let times = BufReader::new(child.stdout.take().expect("its standard output"));
        BareLibrary { child, orders, times }
    }

    /// The microseconds that a job takes.
    fn run(&mut self) -> f64 {
        self.orders.write_all(b"\n").expect("the driver reads");
        let mut line = String::new();
        self.times.read_line(&mut line).expect("the driver answers");
        line.trim().parse().expect("microseconds")
    }

    fn end(self) {
        let BareLibrary { mut child, orders, .. } = self;
        drop(orders);
        child.wait().expect("the driver ends");
    }
}

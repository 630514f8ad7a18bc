//! A plugin in Rust states that it needs a separate process, as in C (`header.rs`).

use coda_plugin_abi::descriptor::Isolation;
use coda_plugin_abi::{Context, Device, Error, Executor, Job, Outcome, Target, export_executor};

struct Zeros;

impl Executor for Zeros {
    fn device(&self) -> Device {
        Device::new("zeros", 1, [Target::Cz])
    }

    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        let zeros = "0".repeat(job.program().measurements().len());
        Ok(Outcome::from_counts([(zeros, i64::from(job.shots()))]))
    }
}

fn create(_: &Context<'_>) -> Result<Zeros, Error> {
    Ok(Zeros)
}

export_executor! { kind: Test, vendor: "Coda", entries: { create_executor => create }, isolation: Required, config_schema: |_| None }

#[test]
fn the_macro_writes_it_into_the_descriptor() {
    assert_eq!(__coda_export::CODA_EXECUTOR_DESCRIPTOR.isolation, Isolation::Required.code());
}

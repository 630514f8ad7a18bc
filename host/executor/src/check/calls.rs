//! Cancels, batches, slots, errors and the end: how calls behave beside and after each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use coda_plugin_abi::conformance::Case;
use coda_plugin_abi::{Error, ErrorCode, Gate, GateKind, Outcome, Program};

use super::bench::{Bench, Live, turn};
use super::{Done, Stop, failed, skipped};
use crate::executor::JobContext;
use crate::executor::ffi::CallJob;

/// How soon a run must come back after its cancel, and how long a control call may take.
const SOON: Duration = Duration::from_secs(5);
/// When a running job is cancelled.
const INTO_RUN: Duration = Duration::from_millis(100);

fn context(id: &str) -> Arc<JobContext> {
    Arc::new(JobContext::new("check".into(), id.into()))
}

/// An answer that any run may give after a cancel.
fn answered(answer: &Result<Outcome, Error>) -> Result<(), Stop> {
    match answer {
        Err(e) if matches!(e.code, ErrorCode::Panic | ErrorCode::Contract) => failed(
            "a result or an error of code cancelled",
            format!("'{}' ({})", e.text, e.code),
            "end a cancelled run with the error code cancelled",
        ),
        _ => Ok(()),
    }
}

/// The longest run that the device can be asked for, within reason.
fn long(bench: &Bench, live: &Live) -> Result<(Program, u32), Stop> {
    let qubits = live.device.num_qubits.min(20);
    let layers = if bench.options.quick { 50 } else { 400 };
    let mut gates = Vec::new();
    for layer in 0..layers {
        gates.extend((0..qubits).map(|q| Gate::one(GateKind::Rx, q, 0.1 + f64::from(layer))));
        gates.extend((0..qubits).map(|q| Gate::one(GateKind::Ry, q, 0.3)));
    }
    let most = if bench.options.quick { 1_000_000 } else { i32::MAX.unsigned_abs() };
    Ok((live.program(qubits, &gates, &[0])?, live.device.max_shots.map_or(most, |m| m.min(most))))
}

pub fn cancel_before(bench: &Bench) -> Done {
    let live = bench.start()?;
    let (program, shots) = long(bench, &live)?;
    let context = context("early");
    context.set_cancelled();
    let start = Instant::now();
    // The hook is not called here: it comes only while a run is in the plugin.
    let shots = if live.hooks.cancel { shots.min(1_000_000) } else { shots };
    let answer = live.run_as("early", &program, shots, &context);
    answered(&answer)?;
    let took = start.elapsed();
    live.good_job(bench, "after a cancelled one")?;
    live.end()?;
    let came = if answer.is_ok() { "a result" } else { "an error" };
    Ok(Some(format!("{came} after {:.0} ms", took.as_secs_f64() * 1e3)))
}

pub fn cancel_during(bench: &Bench) -> Done {
    let live = bench.start()?;
    let (program, shots) = long(bench, &live)?;
    let (context, back) = (context("running"), AtomicBool::new(false));
    let (answer, cancelled) = std::thread::scope(|scope| {
        let control = scope.spawn(|| {
            std::thread::sleep(INTO_RUN);
            if back.load(Ordering::Acquire) {
                return None;
            }
            context.set_cancelled();
            let at = Instant::now();
            let error = if live.hooks.cancel { live.instance.cancel("running") } else { None };
            Some((at, at.elapsed(), error))
        });
        let answer = live.run_as("running", &program, shots, &context);
        back.store(true, Ordering::Release);
        (answer, control.join().ok().flatten().map(|c| (Instant::now(), c)))
    });
    answered(&answer)?;
    let Some((returned, (at, hook, error))) = cancelled else {
        live.good_job(bench, "after a long one")?;
        live.end()?;
        return skipped(format!("the longest run that could be asked for took less than {INTO_RUN:?}"));
    };
    if let Some(e) = error {
        return failed(
            "a cancel without an error",
            format!("'{}' ({})", e.text, e.code),
            "correct the cancel hook",
        );
    }
    let latency = returned.saturating_duration_since(at);
    if hook > SOON {
        let change = "ask the hardware to stop and return; don't wait for it in the hook";
        return failed(format!("a cancel hook that returns within {SOON:?}"), format!("{hook:.1?}"), change);
    }
    if latency > SOON {
        let change = match live.hooks.cancel {
            true => "have the run look for its cancel, or have the control stack abort it",
            false => "look at is_cancelled now and then, or offer the cancel hook",
        };
        return failed(
            format!("a run that ends within {SOON:?} after its cancel"),
            format!("{latency:.1?}"),
            change,
        );
    }
    live.good_job(bench, "after a cancelled one")?;
    live.end()?;
    Ok(Some(format!("back after {:.0} ms", latency.as_secs_f64() * 1e3)))
}

pub fn cancel_after(bench: &Bench) -> Done {
    let live = bench.start()?;
    if !live.hooks.cancel {
        return skipped("it offers no cancel hook");
    }
    let (program, shots) = (live.plain()?, bench.shots(&live, 1_000));
    for round in 0..2 {
        if let Err(e) = live.run_as("same-id", &program, shots, &context("same-id")) {
            let expected = if round == 0 {
                "counts"
            } else {
                "counts for an id that an earlier, ended job was cancelled by"
            };
            return failed(expected, format!("the error '{}'", e.text), "forget a job when its run returns");
        }
        if let Some(e) = live.instance.cancel("same-id") {
            return failed(
                "a late cancel to be ignored",
                format!("'{}'", e.text),
                "ignore ids that aren't running",
            );
        }
    }
    live.good_job(bench, "after a late cancel")?;
    live.end()?;
    Ok(None)
}

pub fn cancel_unknown(bench: &Bench) -> Done {
    let live = bench.start()?;
    if !live.hooks.cancel {
        return skipped("it offers no cancel hook");
    }
    let unknown = |when: &str| match live.instance.cancel("no-such-job") {
        Some(e) => failed(
            format!("an unknown id to be ignored {when}"),
            format!("'{}'", e.text),
            "ignore ids that aren't running",
        ),
        None => Ok(()),
    };
    unknown("while nothing runs")?;
    let (program, shots) = (live.plain()?, bench.shots(&live, 200_000));
    let (running, beside) = std::thread::scope(|scope| {
        let control = scope.spawn(|| unknown("beside a run"));
        let running = live.run_as("bystander", &program, shots, &context("bystander"));
        (running, control.join())
    });
    beside.unwrap_or_else(|_| failed("the cancel to return", "a panic in the check", "report this"))?;
    if let Err(e) = running {
        return failed(
            "the running job's counts",
            format!("the error '{}'", e.text),
            "compare ids in the cancel hook",
        );
    }
    live.good_job(bench, "after an unknown cancel")?;
    live.end()?;
    Ok(None)
}

pub fn concurrent(bench: &Bench) -> Done {
    let live = bench.start()?;
    let slots = usize::from(live.device.slots);
    if slots < 2 {
        return skipped("it has one slot");
    }
    let (barrier, program) = (Barrier::new(slots), live.plain()?);
    let shots = bench.shots(&live, 2_000);
    let results: Vec<Result<(), Stop>> = std::thread::scope(|scope| {
        let spawn = |slot: usize| {
            let (live, barrier, program) = (&live, &barrier, program.clone());
            scope.spawn(move || {
                barrier.wait();
                let case = Case::exact(
                    "slot",
                    format!("a run in slot {slot} beside others"),
                    "keep runs apart",
                    program,
                    shots,
                );
                (0..3).try_for_each(|_| bench.check_all(live, std::slice::from_ref(&case)).map(drop))
            })
        };
        let threads: Vec<_> = (0..slots).map(spawn).collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    results.into_iter().collect::<Result<Vec<()>, Stop>>()?;
    live.end()?;
    Ok(Some(format!("{slots} at once")))
}

pub fn batch(bench: &Bench) -> Done {
    let live = bench.start()?;
    if !live.hooks.batch_run {
        return skipped("it offers no batch_run");
    }
    let qubits = live.device.num_qubits.min(3);
    let all: Vec<u16> = (0..qubits).collect();
    // Job i measures i in binary.
    let flips = |i: u16| {
        (0..qubits).filter(move |q| i >> q & 1 == 1).map(|q| Gate::one(GateKind::Rx, q, std::f64::consts::PI))
    };
    let mut programs = Vec::new();
    for i in (0..1 << qubits).rev() {
        programs.push((i, live.program(qubits, &flips(i).collect::<Vec<_>>(), &all)?));
    }
    for size in [programs.len(), 1] {
        let ids: Vec<String> = (0..size).map(|_| live.job_id()).collect();
        let contexts: Vec<_> = ids.iter().map(|id| context(id)).collect();
        let shots = bench.shots(&live, 100);
        let jobs: Vec<CallJob<'_>> = programs
            .iter()
            .zip(ids.iter().zip(&contexts))
            .map(|((_, program), (id, context))| CallJob { job_id: id, program, shots, context })
            .collect();
        let answers = live.instance.batch_run(&jobs);
        if let Some(e) = answers.whole {
            return failed(
                "answers to the jobs of a batch",
                format!("the error '{}' for the whole call", e.text),
                "answer each job by itself",
            );
        }
        let given = answers.answers.iter().flatten().count() + answers.surplus;
        if given != size || answers.surplus > 0 {
            return failed(
                format!("{size} answers for {size} jobs"),
                format!("{given}"),
                "reply once for each index of the batch",
            );
        }
        for ((i, program), answer) in programs.iter().zip(answers.answers) {
            let mut given = answer;
            let mut recorded = |_: &Program, _: u32| {
                given.take().unwrap_or_else(|| Err(Error::new(ErrorCode::Contract, "no answer")))
            };
            let suite = coda_plugin_abi::conformance::Suite {
                cases: Vec::new(),
                skipped: Vec::new(),
                allowed_error: bench.options.tolerance,
            };
            let case = Case::exact(
                "batch",
                format!("job {i} of a batch"),
                "reply the answers in the order of the jobs",
                program.clone(),
                shots,
            );
            suite.check(&case, &mut recorded)?;
        }
    }
    let single: Vec<Case> = programs
        .iter()
        .map(|(i, p)| {
            Case::exact(
                "single",
                format!("circuit {i} of the batch, alone"),
                "a single run must agree with a batch",
                p.clone(),
                100,
            )
        })
        .collect();
    bench.check_all(&live, &single)?;
    live.end()?;
    Ok(Some(format!("{} jobs", programs.len())))
}

pub fn error_then_good(bench: &Bench) -> Done {
    let live = bench.start()?;
    let more = live.device.num_qubits + 1;
    let Ok(program) = Program::new(live.target(), more, [turn(more - 1)], [more - 1]) else {
        return skipped("no circuit is too large for it");
    };
    for _ in 0..3 {
        if live.run(&program, 10).is_ok() {
            return failed(
                format!("an error for {more} qubits"),
                "counts",
                "check the number of qubits in `run`",
            );
        }
        live.good_job(bench, "after a failed one")?;
    }
    live.end()?;
    Ok(None)
}

pub fn hooks(bench: &Bench) -> Done {
    let live = bench.start()?;
    let silent_or_bug = |hook: &str, e: &Error| match e.code {
        ErrorCode::Panic | ErrorCode::Contract => failed(
            format!("{hook} to answer"),
            format!("'{}' ({})", e.text, e.code),
            format!("catch what {hook} throws, and reply exactly once"),
        ),
        _ => Ok(()),
    };
    live.instance.device().map(drop).or_else(|e| silent_or_bug("device", &e))?;
    let (program, shots) = (live.plain()?, bench.shots(&live, 100));
    live.run(&program, shots).map(drop).or_else(|e| silent_or_bug("run", &e))?;
    if live.hooks.batch_run {
        let (id, context) = (live.job_id(), context("batch"));
        let jobs = [CallJob { job_id: &id, program: &program, shots, context: &context }];
        let answers = live.instance.batch_run(&jobs);
        let none = || Error::new(ErrorCode::Contract, "no answer for its job");
        match (answers.whole, answers.answers.into_iter().next().flatten()) {
            (Some(e), _) | (None, Some(Err(e))) => silent_or_bug("batch_run", &e)?,
            (None, None) => silent_or_bug("batch_run", &none())?,
            (None, Some(Ok(_))) => {}
        }
    }
    if live.hooks.cancel {
        live.instance.cancel("nobody").map_or(Ok(()), |e| silent_or_bug("cancel", &e))?;
    }
    live.instance.shutdown().map_or(Ok(()), |e| silent_or_bug("shutdown", &e))?;
    live.instance.destroy().map_or(Ok(()), |e| silent_or_bug("destroy", &e))?;
    Ok(None)
}

pub fn shutdown_during_run(bench: &Bench) -> Done {
    let live = bench.start()?;
    let (program, shots) = long(bench, &live)?;
    let context = context("last");
    let start = Instant::now();
    let (answer, shut) = std::thread::scope(|scope| {
        let control = scope.spawn(|| {
            std::thread::sleep(INTO_RUN);
            let at = Instant::now();
            let error = live.instance.shutdown();
            let took = at.elapsed();
            // As the host does when it stops: the run need not go on.
            context.set_cancelled();
            if live.hooks.cancel {
                live.instance.cancel("last");
            }
            (error, took)
        });
        let answer = live.run_as("last", &program, shots, &context);
        (answer, control.join())
    });
    let total = start.elapsed();
    answered(&answer)?;
    let Ok((error, took)) = shut else {
        return failed("shutdown to return", "a panic in the check", "report this");
    };
    if let Some(e) = error {
        return failed("a shutdown without an error", format!("'{}'", e.text), "correct shutdown");
    }
    if took > SOON {
        let change = "bring the device to rest and return; the host waits for its runs by itself";
        return failed(format!("a shutdown that returns within {SOON:?}"), format!("{took:.1?}"), change);
    }
    if let Some(e) = live.instance.destroy() {
        return failed("destroy without an error", format!("'{}'", e.text), "correct destroy");
    }
    Ok(Some(format!("all back after {:.0} ms", total.as_secs_f64() * 1e3)))
}

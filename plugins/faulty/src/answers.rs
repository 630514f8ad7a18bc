//! Answers that break the contract, each in one way.
//!
//! Contract: [`spoil`] takes a right answer and returns it with the fault in it, or unchanged when the fault
//! isn't about answers.

use coda_plugin_abi::Outcome;

use crate::config::Fault;

pub fn spoil(mut outcome: Outcome, fault: Fault) -> Outcome {
    let Some((key, count)) = outcome.counts.first_mut() else { return outcome };
    match fault {
        Fault::KeyTooLong => key.push('0'),
        Fault::KeyTooShort => drop(key.pop()),
        Fault::KeyHex => *key = "0x2".into(),
        Fault::KeySpace => *key = "1 0".into(),
        Fault::KeyEmpty => key.clear(),
        Fault::NegativeCount => *count = -1,
        Fault::TooManyShots => {
            *count += 1;
            outcome.shots_completed = outcome.shots_completed.map(|n| n + 1);
        }
        Fault::FewerShots => {
            *count = (*count + 1) / 2;
            outcome.shots_completed = Some(*count);
        }
        Fault::ZeroCount => {
            let unseen = "1".repeat(key.len());
            outcome.counts.push((unseen, 0));
        }
        Fault::DuplicateKey => {
            let (key, half) = (key.clone(), *count / 2);
            *count -= half;
            outcome.counts.push((key, half));
        }
        Fault::SumMismatch => outcome.shots_completed = Some(*count + 1),
        Fault::NoShotsCompleted => outcome.shots_completed = None,
        Fault::NoCounts => {
            outcome.counts.clear();
            outcome.shots_completed = Some(0);
        }
        Fault::NanTime => outcome.execution_time_ms = Some(f64::NAN),
        Fault::NegativeTime => outcome.execution_time_ms = Some(-1.0),
        Fault::InfiniteTime => outcome.execution_time_ms = Some(f64::INFINITY),
        _ => {}
    }
    outcome
}

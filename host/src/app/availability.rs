//! Keeps the hold of the host: looks at the pause again and again, and tells executor, reader and everyone who shows it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::availability::pause::{self, Pause};
use crate::availability::{Conditions, Hold};
use crate::error::Failure;
use crate::executor::StartHold;
use crate::jobs::claim_gate::ClaimGate;

/// Looks after the hold. It begins before anything can run.
pub struct AvailabilityKeeper {
    state_dir: PathBuf,
    interval: Duration,
    conditions: Conditions,
    start_hold: StartHold,
    /// Where jobs are claimed from a stream.
    gate: Option<Arc<ClaimGate>>,
    hold: watch::Sender<Option<Hold>>,
}

/// What keeps a host that starts now from running anything: for its first line in the log.
pub fn hold_at_start(state_dir: &std::path::Path) -> Option<Hold> {
    let mut conditions = Conditions::default();
    look_at_pause(&mut conditions, state_dir);
    conditions.hold(OffsetDateTime::now_utc())
}

impl AvailabilityKeeper {
    /// Looks once, so that the hold is there before the first run could begin.
    pub fn new(state_dir: PathBuf, interval: Duration, start_hold: StartHold) -> AvailabilityKeeper {
        let conditions = Conditions::default();
        let (hold, _) = watch::channel(None);
        let mut keeper = AvailabilityKeeper { state_dir, interval, conditions, start_hold, gate: None, hold };
        keeper.look();
        keeper
    }

    /// Has the reader of the stream claim nothing while there is a hold.
    pub fn with_gate(mut self, gate: Arc<ClaimGate>) -> AvailabilityKeeper {
        gate.set_held(self.hold.borrow().is_some());
        self.gate = Some(gate);
        self
    }

    /// The hold as it is, and its changes.
    pub fn hold(&self) -> watch::Receiver<Option<Hold>> {
        self.hold.subscribe()
    }

    /// Looks again and again.
    pub async fn keep(mut self) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look();
        }
    }

    fn look(&mut self) {
        let former = self.conditions.pause_error.clone();
        look_at_pause(&mut self.conditions, &self.state_dir);
        if let Some(error) =
            self.conditions.pause_error.as_ref().filter(|error| former.as_ref() != Some(error))
        {
            tracing::error!(error, "the pause can't be read; nothing is begun until it can be");
        }

        let next = self.conditions.hold(OffsetDateTime::now_utc());
        if *self.hold.borrow() == next {
            return;
        }
        // The executor first: what it does not begin needs no claim.
        self.start_hold.set(next.as_ref().map(Hold::to_string).as_deref());
        if let Some(gate) = &self.gate {
            gate.set_held(next.is_some());
        }
        match &next {
            Some(hold) => tracing::warn!("{hold}; what runs is finished, nothing more is begun or claimed"),
            None => tracing::info!("jobs are claimed and run again"),
        }
        self.hold.send_replace(next);
    }
}

/// Reads the pause. One that can't be read is no absence: a pause that is known goes on, and without one nothing is
/// begun either.
fn look_at_pause(conditions: &mut Conditions, state_dir: &std::path::Path) {
    let known: Option<Pause> = conditions.pause.take();
    match pause::read(state_dir) {
        Ok(read) => {
            conditions.pause = read;
            conditions.pause_error = None;
        }
        Err(error) => {
            conditions.pause = known;
            conditions.pause_error = Some(Failure::from(error).line());
        }
    }
}

//! Keeps the availability of the host: looks at pause and calendar again and again, and tells executor, reader and everyone
//! who shows it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::availability::calendar::Window;
use crate::availability::calendar_file::{self, CalendarStamp};
use crate::availability::pause::{self, Pause};
use crate::availability::{Availability, Conditions, Hold};
use crate::config::settings::AvailabilitySettings;
use crate::error::Failure;
use crate::executor::{self, StartHold};
use crate::jobs::claim_gate::ClaimGate;

/// How often the windows of a calendar that stays as it is are looked up again: it may recur without end.
const RENEW: Duration = Duration::from_secs(3600);

/// Looks after the availability. It begins before anything can run.
pub struct AvailabilityKeeper {
    state_dir: PathBuf,
    settings: AvailabilitySettings,
    conditions: Conditions,
    calendar: CalendarWatch,
    start_hold: StartHold,
    /// Where jobs are claimed from a stream.
    gate: Option<Arc<ClaimGate>>,
    availability: watch::Sender<Availability>,
}

/// What was read of the calendar last.
#[derive(Default)]
struct CalendarWatch {
    stamp: Option<Result<CalendarStamp, io::ErrorKind>>,
    read_at: Option<Instant>,
}

/// What keeps a host that starts now from running anything: for its first line in the log.
pub fn hold_at_start(state_dir: &Path) -> Option<Hold> {
    let mut conditions = Conditions::default();
    look_at_pause(&mut conditions, state_dir);
    conditions.hold(OffsetDateTime::now_utc())
}

impl AvailabilityKeeper {
    /// Looks once, so that a hold is there before the first run could begin.
    pub fn new(
        state_dir: PathBuf,
        settings: AvailabilitySettings,
        start_hold: StartHold,
    ) -> AvailabilityKeeper {
        let (availability, _) = watch::channel(Availability::default());
        let mut keeper = AvailabilityKeeper {
            state_dir,
            settings,
            conditions: Conditions::default(),
            calendar: CalendarWatch::default(),
            start_hold,
            gate: None,
            availability,
        };
        keeper.look();
        keeper
    }

    /// Has the reader of the stream claim nothing while there is a hold.
    pub fn with_gate(mut self, gate: Arc<ClaimGate>) -> AvailabilityKeeper {
        gate.set_held(self.availability.borrow().hold.is_some());
        self.gate = Some(gate);
        self
    }

    /// The availability as it is, and its changes.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    /// Looks again and again.
    pub async fn keep(mut self) {
        let mut ticks = interval(self.settings.interval);
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
        if let Some(path) = &self.settings.calendar {
            look_at_calendar(&mut self.calendar, path, &mut self.conditions.windows);
        }
        self.tell(self.conditions.at(OffsetDateTime::now_utc()));
    }

    fn tell(&self, next: Availability) {
        let former = self.availability.borrow().clone();
        if former == next {
            return;
        }
        if former.hold != next.hold {
            // Told before it is so: a run that begins then comes after its reason in the log.
            match &next.hold {
                Some(hold) => {
                    tracing::warn!("{hold}; what runs is finished, nothing more is begun or claimed")
                }
                None => tracing::info!("jobs are claimed and run again"),
            }
        }

        // The executor first: what it does not begin needs no claim.
        let begins = next.next_window.as_ref().and_then(|window| instant_of(window.begin));
        let window = begins.map(|begins| executor::UpcomingWindow { begins, lead: self.settings.lead });
        self.start_hold.set(next.hold.as_ref().map(Hold::to_string).as_deref(), window);
        if let Some(gate) = &self.gate {
            gate.set_held(next.hold.is_some());
        }
        self.availability.send_replace(next);
    }
}

/// The moment of the monotonic clock; `None` when it is beyond what that can count.
fn instant_of(at: OffsetDateTime) -> Option<Instant> {
    let left = Duration::try_from(at - OffsetDateTime::now_utc()).unwrap_or_default();
    Instant::now().checked_add(left)
}

/// Reads the pause. An unreadable pause is not an absent one: a pause that is known goes on, and without one nothing is
/// begun either.
fn look_at_pause(conditions: &mut Conditions, state_dir: &Path) {
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

/// Reads the calendar when its file has changed, and now and then. One that can't be used keeps the windows of the last one
/// that could.
fn look_at_calendar(watch: &mut CalendarWatch, path: &Path, windows: &mut Vec<Window>) {
    let stamp = Some(calendar_file::stamp(path).map_err(|error| error.kind()));
    let is_fresh = watch.read_at.is_some_and(|at| at.elapsed() < RENEW);
    if watch.stamp == stamp && is_fresh {
        return;
    }
    let is_changed = watch.stamp != stamp;
    *watch = CalendarWatch { stamp, read_at: Some(Instant::now()) };
    match calendar_file::read(path, OffsetDateTime::now_utc()) {
        Ok(read) => {
            if is_changed {
                tracing::info!(path = %path.display(), windows = read.len(), "the maintenance calendar is read");
            }
            *windows = read;
        }
        Err(error) if is_changed => {
            let error = Failure::from(error).line();
            tracing::warn!(error, "the maintenance calendar can't be used; its last good state counts");
        }
        Err(_) => {}
    }
}

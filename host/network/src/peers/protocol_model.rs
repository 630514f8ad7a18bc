//! The table against a model that is written another way, under random requests, time jumps and crashes.
//!
//! Invariants, by name: `no_over_admission`, `answers_follow_the_contract`, `only_the_owner`, `one_release_per_hold`,
//! `an_execution_runs_once`, `answers_are_kept`, `the_log_folds`. `CODA_MODEL_SEED` and `CODA_MODEL_STEPS` repeat
//! and extend a run.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A small generator: the same numbers for the same seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[derive(Debug, Clone)]
struct ModelReservation {
    committed: bool,
    ends: u64,
    running: Option<String>,
}

/// What should be, told by lists alone.
#[derive(Default)]
struct Model {
    /// By owner and reservation id: two owners may use the same id.
    open: BTreeMap<(&'static str, String), ModelReservation>,
    /// Execution ids by owner: none while running, else the answer.
    answers: BTreeMap<(&'static str, String), Option<String>>,
    runs: BTreeSet<(&'static str, String)>,
    /// The slots that cloud jobs have.
    jobs: Vec<CountedLease>,
}

impl Model {
    fn expire(&mut self, now: u64) {
        self.open.retain(|_, r| r.running.is_some() || r.ends > now);
    }
}

const OWNERS: [&str; 3] = ["a", "b", "stranger"];
const SLOTS: usize = 3;

struct World {
    peer: TestPeer,
    model: Model,
    log: BTreeMap<String, (Option<crate::reservation::ledger::ReservationState>, usize)>,
    generation: u64,
}

impl World {
    fn new() -> World {
        World { peer: TestPeer::new(SLOTS), model: Model::default(), log: BTreeMap::new(), generation: 0 }
    }

    /// One random step; an error names the invariant.
    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let who = OWNERS[random.below(3) as usize];
        let id = format!("{:02}", random.below(8));
        let key = (who, id.clone());
        let execution = format!("{:03}", random.below(60));
        let now = self.peer.now;
        match random.below(100) {
            0..30 => {
                let ttl = [4, 5, 6, 20, 300, 301][random.below(6) as usize];
                self.peer.slots.jobs_wait = random.below(8) == 0;
                self.model.expire(now);
                let expected = match self.model.open.get(&key) {
                    Some(r) if r.committed => "committed",
                    Some(_) => "accepted",
                    None if who == "stranger" || !(5..=300).contains(&ttl) => "rejected",
                    None if self.peer.slots.jobs_wait => "rejected",
                    None if self.model.open.len() + self.model.jobs.len() >= SLOTS => "rejected",
                    None => "accepted",
                };
                let (found, _) = self.peer.prepare_for(who, ask(&id, ttl));
                self.peer.slots.jobs_wait = false;
                same("answers_follow_the_contract", "prepare", &found, expected)?;
                if expected == "accepted" {
                    let fresh =
                        ModelReservation { committed: false, ends: now + ttl as u64 * 1000, running: None };
                    self.model.open.entry(key).or_insert(fresh);
                }
            }
            30..50 => {
                self.model.expire(now);
                let expected = match self.model.open.get_mut(&key) {
                    Some(r) => {
                        r.committed = true;
                        "committed"
                    }
                    None => "rejected",
                };
                same("only_the_owner", "commit", &self.peer.commit(who, &id), expected)?;
            }
            50..60 => {
                self.model.expire(now);
                let own = self.model.open.get(&key);
                let expected = own.and_then(|r| r.running.clone());
                if own.is_some() && expected.is_none() {
                    self.model.open.remove(&key);
                }
                let stopped = self.peer.cancel(who, &id);
                if stopped != expected.map(|e| format!("execution-{e}")) {
                    return Err(format!("only_the_owner: cancel stops {stopped:?}"));
                }
            }
            60..80 => self.dispatch(who, &id, &execution, now)?,
            80..88 => {
                let running: Vec<(&'static str, String)> =
                    self.model.open.iter().filter_map(|(key, r)| Some((key.0, r.running.clone()?))).collect();
                if !running.is_empty() {
                    let (owner_name, execution) =
                        running[random.below(running.len() as u64) as usize].clone();
                    self.peer.finish(owner_name, &execution);
                    self.model
                        .open
                        .retain(|key, r| key.0 != owner_name || r.running.as_ref() != Some(&execution));
                    self.model.answers.insert((owner_name, execution), Some("answer".into()));
                }
            }
            88..93 => self.peer.now += [1, 500, 999, 5_000, 20_000, 400_000][random.below(6) as usize],
            93..96 => {
                // A cloud job comes, or one ends.
                if random.below(2) == 0 {
                    self.model.jobs.extend(self.peer.slots.try_acquire());
                } else {
                    self.model.jobs.pop();
                }
            }
            96..99 => {
                self.peer.table.expire(at(now));
                self.model.expire(now);
                if self.peer.table.next_end().is_some_and(|end| end <= Duration::from_millis(now)) {
                    return Err("one_release_per_hold: a reservation is left behind its end".into());
                }
            }
            _ => self.crash()?,
        }
        self.check()
    }

    fn dispatch(&mut self, who: &'static str, id: &str, execution: &str, now: u64) -> Result<(), String> {
        self.model.expire(now);
        let key = (who, execution.to_string());
        let found = self.peer.dispatch(who, id, execution);
        if who == "stranger" {
            return same("only_the_owner", "dispatch", &text(found), NOT_COMMITTED);
        }
        match self.model.answers.get(&key) {
            Some(Some(kept)) => same("answers_are_kept", "dispatch", &text(found), kept),
            Some(None) => match found {
                Dispatch::Wait => Ok(()),
                other => Err(format!("an_execution_runs_once: {other:?} while it runs")),
            },
            None => {
                let own = self
                    .model
                    .open
                    .get_mut(&(who, id.to_string()))
                    .filter(|r| r.committed && r.running.is_none());
                match (own, found) {
                    (Some(r), Dispatch::Run(())) => {
                        r.running = Some(execution.into());
                        self.model.answers.insert(key.clone(), None);
                        match self.model.runs.insert(key) {
                            true => Ok(()),
                            false => Err(format!("an_execution_runs_once: {execution} ran before")),
                        }
                    }
                    (None, Dispatch::Answer(bytes)) => {
                        let answer = String::from_utf8_lossy(&bytes).into_owned();
                        self.model.answers.insert(key, Some(answer.clone()));
                        same("answers_follow_the_contract", "dispatch", &answer, NOT_COMMITTED)
                    }
                    (own, found) => Err(format!("only_the_owner: {found:?} for {own:?}")),
                }
            }
        }
    }

    /// The process dies and a new one begins: nothing is held, and what was running is forgotten.
    fn crash(&mut self) -> Result<(), String> {
        self.read_log()?;
        self.generation += 1;
        self.log.clear();
        // The reservations' leases go with the table, those of executions and jobs with their threads.
        self.peer.table = ReservationTable::new(limits(), self.generation * 10_000_000);
        self.peer.executing.clear();
        self.model = Model::default();
        match self.peer.slots.out.get() {
            0 => Ok(()),
            left => Err(format!("no_over_admission: {left} leases are left behind by nobody")),
        }
    }

    fn read_log(&mut self) -> Result<(), String> {
        for noted in self.peer.table.notes() {
            for fact in &noted.facts {
                let (state, releases) = self.log.entry(noted.hold.clone()).or_default();
                let folded = crate::reservation::ledger::fold(state.take(), noted.at, fact);
                *state = Some(folded.map_err(|e| format!("the_log_folds: {}: {e}", noted.hold))?);
                *releases += usize::from(matches!(fact, Fact::HoldReleased { .. }));
                if *releases > 1 {
                    return Err(format!("one_release_per_hold: {} was released twice", noted.hold));
                }
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let leased = self.peer.slots.out.get();
        let load = self.peer.table.load();
        let (executing, jobs) = (self.peer.executing.len(), self.model.jobs.len());
        let is_counted = leased == load.reservations + load.executions + jobs && load.executions == executing;
        if leased > SLOTS || !is_counted {
            return Err(format!(
                "no_over_admission: {leased} of {SLOTS} slots are leased, {executing} by executions and {jobs} by \
                 jobs, the load is {load:?}"
            ));
        }
        // The table looks at the time when it is asked, the model as well.
        let expected = self.model.open.len();
        if load.reservations + load.executions != expected {
            return Err(format!("answers_follow_the_contract: {load:?}, expected are {expected} open"));
        }
        self.read_log()?;
        let held = self.log.values().filter(|(s, _)| s.as_ref().is_some_and(|s| s.held)).count();
        match held == expected {
            true => Ok(()),
            false => Err(format!("one_release_per_hold: the log holds {held}, expected are {expected}")),
        }
    }
}

fn same(invariant: &str, step: &str, found: &str, expected: &str) -> Result<(), String> {
    match found.contains(expected) {
        true => Ok(()),
        false => Err(format!("{invariant}: {step} answered {found}, expected is {expected}")),
    }
}

#[test]
fn random_requests_time_jumps_and_crashes_keep_every_invariant() {
    let variable = |name: &str, default: u64| {
        std::env::var(name).ok().map_or(default, |v| v.parse().expect("a whole number"))
    };
    let seed = variable("CODA_MODEL_SEED", 0x5eed_2026_0420_0055);
    let steps = variable("CODA_MODEL_STEPS", 200_000);
    let mut random = Random(seed);
    let mut world = World::new();
    for n in 0..steps {
        if let Err(broken) = world.step(&mut random) {
            panic!("step {n} with CODA_MODEL_SEED={seed}: {broken}");
        }
    }
    assert!(world.generation > steps / 1000, "crashes happened");
}

//! Pure: the blocks that wait for a slot, in the order in which their jobs were accepted.
//!
//! What always holds: a block does not take a slot that an earlier one, which waits, could use. So of those that wait the
//! earliest is never held back, and each comes to be the earliest.

use std::cell::Cell;
use std::collections::BTreeMap;

/// A block's place in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineTicket {
    /// When the job was accepted.
    accepted: i64,
    number: u64,
}

/// The blocks that have looked for a slot and found none, with what each of them needs.
#[derive(Debug)]
pub struct WaitingLine<Needs> {
    next: u64,
    waiting: BTreeMap<LineTicket, Needs>,
    /// A block did not get a slot because of an earlier one.
    held_back: Cell<bool>,
}

impl<Needs> Default for WaitingLine<Needs> {
    fn default() -> WaitingLine<Needs> {
        WaitingLine { next: 0, waiting: BTreeMap::new(), held_back: Cell::new(false) }
    }
}

impl<Needs> WaitingLine<Needs> {
    /// A ticket for a block of a job that was accepted then.
    pub fn ticket(&mut self, accepted: i64) -> LineTicket {
        self.next += 1;
        LineTicket { accepted, number: self.next }
    }

    /// The block has found no slot.
    pub fn wait(&mut self, ticket: LineTicket, needs: Needs) {
        self.waiting.insert(ticket, needs);
    }

    /// The block waits no more. Returns whether others were held back meanwhile, and are to look again.
    pub fn leave(&mut self, ticket: LineTicket) -> bool {
        self.waiting.remove(&ticket).is_some() && self.held_back.take()
    }

    /// Whether a slot is to be left to an earlier block, one whose needs it fits. A block without a ticket comes after all
    /// others.
    pub fn is_left_to_another(&self, ticket: Option<LineTicket>, fits: impl Fn(&Needs) -> bool) -> bool {
        let earlier = self.waiting.iter().take_while(|(other, _)| ticket.is_none_or(|own| **other < own));
        let is_left = earlier.into_iter().any(|(_, needs)| fits(needs));
        if is_left {
            self.held_back.set(true);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_job_goes_first_where_the_slot_fits_it() {
        let mut line = WaitingLine::default();
        let (late, early) = (line.ticket(20), line.ticket(10));
        assert!(!line.is_left_to_another(None, |_| true), "no one waits");
        line.wait(early, "hadamard");
        line.wait(late, "cnot");
        assert!(line.is_left_to_another(Some(late), |needs| *needs == "hadamard"));
        assert!(!line.is_left_to_another(Some(late), |needs| *needs == "cnot"), "it fits the late one alone");
        assert!(!line.is_left_to_another(Some(early), |_| true));
        assert!(line.is_left_to_another(None, |needs| *needs == "cnot"));
        assert!(line.leave(early), "the late one was held back");
        assert!(!line.is_left_to_another(Some(late), |_| true));
        assert!(!line.leave(late) && !line.leave(late));
    }

    /// Blocks that look in any order at peers of two kinds whose slots come and go: each slot goes to the earliest block that
    /// it fits, and every block is served.
    #[test]
    fn blocks_that_look_in_any_order_are_served_in_the_order_of_acceptance() {
        let mut seed = 11_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..300 {
            let mut line = WaitingLine::default();
            // Each fits slots of these kinds.
            let mut blocks: Vec<(LineTicket, Vec<u64>)> = (0..20)
                .map(|_| {
                    (
                        line.ticket(random(10) as i64),
                        [vec![0], vec![1], vec![0, 1]][random(3) as usize].clone(),
                    )
                })
                .collect();
            for (ticket, kinds) in &blocks {
                line.wait(*ticket, kinds.clone());
            }
            while !blocks.is_empty() {
                let kind = random(2);
                let mut earliest =
                    blocks.iter().filter(|(_, kinds)| kinds.contains(&kind)).map(|(t, _)| *t).min();
                // Others look first, often.
                for _ in 0..random(40) {
                    let (ticket, kinds) = &blocks[random(blocks.len() as u64) as usize];
                    if kinds.contains(&kind) && Some(*ticket) != earliest {
                        assert!(
                            line.is_left_to_another(Some(*ticket), |k| k.contains(&kind)),
                            "round {round}"
                        );
                    }
                }
                if let Some(ticket) = earliest.take() {
                    assert!(!line.is_left_to_another(Some(ticket), |k| k.contains(&kind)), "round {round}");
                    line.leave(ticket);
                    blocks.retain(|(other, _)| *other != ticket);
                }
            }
            assert!(line.waiting.is_empty());
        }
    }
}

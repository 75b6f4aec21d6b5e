//! Checks that the values swaps took are the values that their clients received, each once.
//!
//! In: the takes that clients sent, with their replies, and the swaps that the store applied. Out:
//! a reply that no swap explains, or a swap that no client sent.
//!
//! A client's take and the store's swap fit if node, time, and the values taken and set allow it.
//! Each swap needs its own client. Each client with a nonzero reply needs its own swap. These are
//! two matchings; where both exist, one matching satisfies both.

use crate::act::Action;
use crate::store::SwapEvent;

/// A take that a client sent.
#[derive(Debug, Clone, Copy)]
pub struct Take {
    /// Its node.
    pub node: usize,
    /// Its action.
    pub what: Action,
    /// Stamp of its sending.
    pub invoked: u64,
    /// Its outcome.
    pub outcome: TakeOutcome,
}

/// Outcome of a take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOutcome {
    /// Answered, with this value if the reply has one.
    Acked {
        /// Stamp of the reply.
        at: u64,
        /// The value before; 0 if there was no counter.
        value: Option<i64>,
    },
    /// Refused.
    Refused,
    /// Outcome unknown: no reply so far, or ever.
    Unknown,
}

impl Take {
    fn explains(&self, swap: &SwapEvent) -> bool {
        let set = if let Action::Set(value) = self.what { i128::from(value) } else { 0 };
        let fits = self.node == swap.node && self.invoked <= swap.stamp && set == swap.set;
        fits && match self.outcome {
            TakeOutcome::Acked { at, value } => {
                swap.stamp <= at && value.is_none_or(|value| i128::from(value) == swap.taken)
            }
            TakeOutcome::Refused => false,
            TakeOutcome::Unknown => true,
        }
    }

    /// Returns true if there must be a swap: a take that found nothing may have made none.
    fn needs_a_swap(&self) -> bool {
        matches!(self.outcome, TakeOutcome::Acked { value: Some(value), .. } if value != 0)
    }
}

/// Judges the takes of one counter against its swaps.
pub fn judge_takes(takes: &[Take], swaps: &[SwapEvent]) -> Result<(), String> {
    let mut take_matcher = PartnerMatcher::new(swaps.len());
    for take in takes.iter().filter(|take| take.needs_a_swap()) {
        if !take_matcher.add(Box::new(|at| take.explains(&swaps[at]))) {
            return Err(format!("{take:?} was answered, and no swap took that: {swaps:?}"));
        }
    }
    let mut swap_matcher = PartnerMatcher::new(takes.len());
    // A swap that keeps the sum may be a row that caught up with an epoch.
    for swap in swaps.iter().filter(|swap| swap.taken != swap.set) {
        if !swap_matcher.add(Box::new(|at| takes[at].explains(swap))) {
            return Err(format!("{swap:?} was carried out, and nobody asked for it: {takes:?}"));
        }
    }
    Ok(())
}

/// Test for a fitting partner.
type PartnerTest<'m> = Box<dyn Fn(usize) -> bool + 'm>;

/// Matches each added element with its own partner.
struct PartnerMatcher<'m> {
    fits: Vec<PartnerTest<'m>>,
    partner_of: Vec<Option<usize>>,
}

impl<'m> PartnerMatcher<'m> {
    fn new(partners: usize) -> PartnerMatcher<'m> {
        PartnerMatcher { fits: Vec::new(), partner_of: vec![None; partners] }
    }

    /// Adds one more; false if no partner is left for it, even after reassigning others.
    fn add(&mut self, fits: PartnerTest<'m>) -> bool {
        self.fits.push(fits);
        let mut tried = vec![false; self.partner_of.len()];
        self.find_partner(self.fits.len() - 1, &mut tried)
    }

    fn find_partner(&mut self, index: usize, tried: &mut [bool]) -> bool {
        for at in 0..tried.len() {
            if tried[at] || !(self.fits[index])(at) {
                continue;
            }
            tried[at] = true;
            if self.partner_of[at].is_none_or(|other| self.find_partner(other, tried)) {
                self.partner_of[at] = Some(index);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swap(stamp: u64, taken: i128) -> SwapEvent {
        SwapEvent { stamp, counter: 0, node: 1, taken, set: 0 }
    }

    fn take(invoked: u64, outcome: TakeOutcome) -> Take {
        Take { node: 1, what: Action::GetSet, invoked, outcome }
    }

    fn acked(at: u64, value: i64) -> TakeOutcome {
        TakeOutcome::Acked { at, value: Some(value) }
    }

    #[test]
    fn each_reply_has_its_swap_and_each_swap_its_client() {
        let takes = [take(0, acked(9, 5)), take(1, acked(8, 7)), take(2, TakeOutcome::Unknown), take(9, acked(12, 0))];
        judge_takes(&takes, &[swap(4, 7), swap(5, 5), swap(20, 3), swap(11, 0)]).unwrap();
        judge_takes(&takes, &[swap(4, 7), swap(5, 5)]).unwrap();
    }

    #[test]
    fn a_reply_that_no_swap_explains_is_caught() {
        assert!(judge_takes(&[take(0, acked(9, 5))], &[swap(4, 6)]).is_err(), "another value");
        assert!(judge_takes(&[take(0, acked(9, 5))], &[swap(10, 5)]).is_err(), "after the reply");
        assert!(judge_takes(&[take(5, acked(9, 5))], &[swap(4, 5)]).is_err(), "before it was asked");
        assert!(
            judge_takes(&[take(0, acked(9, 5)), take(0, acked(9, 5))], &[swap(4, 5)]).is_err(),
            "the same one twice"
        );
    }

    #[test]
    fn a_swap_that_nobody_asked_for_is_caught() {
        assert!(judge_takes(&[take(0, TakeOutcome::Refused)], &[swap(4, 6)]).is_err(), "refused means never applied");
        assert!(judge_takes(&[take(0, acked(9, 5))], &[swap(4, 5), swap(6, 2)]).is_err(), "one take, two swaps");
        let set = SwapEvent { set: 3, ..swap(4, 5) };
        assert!(judge_takes(&[take(0, acked(9, 5))], &[set]).is_err(), "another value was set");
    }

    #[test]
    fn partners_are_changed_until_everybody_has_one() {
        let takes = [take(0, TakeOutcome::Unknown), take(0, acked(9, 5))];
        judge_takes(&takes, &[swap(4, 5), swap(5, 8)]).unwrap();
    }
}

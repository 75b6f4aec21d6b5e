//! Judges a counter to which all clients add.
//!
//! In: the calls of one incarnation of the server, and the value found after it. Out: violations.
//!
//! - Final = value at the start + acknowledged adds − harvested + some subset of the unknown adds.
//! - A rising counter never shows two adds the same value, in all incarnations of its directory. It
//!   never shows less than before, and is never found below a shown value.
//!
//! A harvest (`GETSET key 0`) of unknown outcome took place or not. If it did, it took every add
//! that was acknowledged before the harvest was sent, and the found value is a sum of the others.

use std::collections::HashSet;

use super::Violation;
use super::subset::is_subset_sum;

/// An action on the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddAction {
    /// An add; its reply is the value after it.
    Add(i64),
    /// A read.
    Read,
    /// A read that sets the counter to 0 in the same step; its reply is the value before.
    Harvest,
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// A success reply came.
    Acked {
        /// Stamp drawn after the reply came.
        at: u64,
        /// The value in the reply.
        value: i64,
    },
    /// An error reply came: it was not applied and never will be.
    Refused,
    /// No reply came: applied once or not at all.
    Unknown,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddCall {
    /// Index of the client.
    pub client: usize,
    /// The action.
    pub action: AddAction,
    /// Stamp drawn before the request left.
    pub invoked: u64,
    /// Its outcome.
    pub outcome: CallOutcome,
}

/// The judge of one counter.
#[derive(Debug, Clone)]
pub struct AddJudge {
    key: String,
    rising: bool,
    base: i64,                 // value at the start of this incarnation
    asked_range: (i128, i128), // sums of all negative and of all positive adds sent, in any incarnation
    replies: HashSet<i64>,     // of adds, in all incarnations, if the counter only rises
    calls: Vec<AddCall>,       // of this incarnation
}

impl AddJudge {
    /// Creates the judge of a counter that starts at 0, with adds of any sign and harvests.
    pub fn new(key: impl Into<String>) -> AddJudge {
        AddJudge {
            key: key.into(),
            rising: false,
            base: 0,
            asked_range: (0, 0),
            replies: HashSet::new(),
            calls: Vec::new(),
        }
    }

    /// Creates the judge of a counter that starts at 0, with adds above 0 only and no harvest.
    pub fn rising(key: impl Into<String>) -> AddJudge {
        AddJudge { rising: true, ..AddJudge::new(key) }
    }

    /// Name of the counter.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Adds a call of this incarnation, in any order.
    pub fn push(&mut self, call: AddCall) {
        debug_assert!(
            !self.rising || !matches!(call.action, AddAction::Harvest | AddAction::Add(..=0)),
            "{call:?} on a rising counter"
        );
        match call.action {
            AddAction::Add(delta) if delta < 0 => self.asked_range.0 += i128::from(delta),
            AddAction::Add(delta) => self.asked_range.1 += i128::from(delta),
            AddAction::Read | AddAction::Harvest => {}
        }
        self.calls.push(call);
    }

    /// Judges the ended incarnation by the value found after it; the next one starts from there.
    pub fn judge_found(&mut self, value: i64) -> Vec<Violation> {
        let mut violations = self.judge_replies();
        violations.extend(self.judge_sum(value));
        self.end_incarnation(value, violations)
    }

    /// Judges an incarnation that may have lost acknowledged adds (mode memory): the value must be
    /// one that the counter could have had, from 0 on.
    pub fn judge_found_after_loss(&mut self, value: i64) -> Vec<Violation> {
        let mut violations = self.judge_replies();
        let (low, high) = self.asked_range;
        if i128::from(value) < low || high < i128::from(value) {
            let what = format!("found {value}; all adds ever asked for come to {low} at least and {high} at most");
            violations.push(Violation::new(&self.key, what));
        }
        // Values that a crash may take back may be shown again.
        self.replies.clear();
        self.end_incarnation(value, violations)
    }

    fn end_incarnation(&mut self, found: i64, violations: Vec<Violation>) -> Vec<Violation> {
        let mut calls = std::mem::take(&mut self.calls);
        calls.sort_unstable_by_key(|call| call.invoked);
        self.base = found;
        violations.into_iter().map(|violation| violation.with_tail(&calls)).collect()
    }

    /// Finds violations in the replies alone: equal ones, one below an earlier one, one above all
    /// adds.
    fn judge_replies(&mut self) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut shown = self.base; // largest value that a reply has shown so far
        let mut floors = vec![self.base; self.calls.len()]; // per call: largest value shown before it was sent
        let harvested = self.calls.iter().any(|call| call.action == AddAction::Harvest);
        // Possible range of the value after all adds sent so far.
        let (mut low, mut high) = (i128::from(self.base), i128::from(self.base));
        if harvested {
            low = low.min(0);
        }
        for event in self.events() {
            match event {
                CallEvent::Invoked(index) => {
                    floors[index] = shown;
                    if let AddAction::Add(delta) = self.calls[index].action
                        && self.calls[index].outcome != CallOutcome::Refused
                    {
                        if delta < 0 { low += i128::from(delta) } else { high += i128::from(delta) }
                    }
                }
                CallEvent::Acked(index, value) => {
                    let call = self.calls[index];
                    if i128::from(value) < low || high < i128::from(value) {
                        let what = format!("{call:?} shows {value}; all that was asked for comes to {low} to {high}");
                        violations.push(Violation::new(&self.key, what));
                    }
                    if self.rising {
                        let least = floors[index] + if let AddAction::Add(delta) = call.action { delta } else { 0 };
                        if value < least {
                            let what =
                                format!("taken back: {call:?} shows less than {least}, though more was shown before");
                            violations.push(Violation::new(&self.key, what));
                        }
                        if matches!(call.action, AddAction::Add(_)) && !self.replies.insert(value) {
                            let what = format!("equal replies: {call:?} shows {value}, as an earlier add did");
                            violations.push(Violation::new(&self.key, what));
                        }
                        shown = shown.max(value);
                    }
                }
            }
        }
        violations
    }

    /// Sends and acks in the order of their stamps.
    fn events(&self) -> Vec<CallEvent> {
        let mut events = Vec::with_capacity(2 * self.calls.len());
        for (index, call) in self.calls.iter().enumerate() {
            events.push((call.invoked, CallEvent::Invoked(index)));
            if let CallOutcome::Acked { at, value } = call.outcome {
                events.push((at, CallEvent::Acked(index, value)));
            }
        }
        events.sort_unstable_by_key(|(stamp, _)| *stamp);
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn judge_sum(&self, found: i64) -> Option<Violation> {
        let (mut certain, mut unknown, mut shown) = (i128::from(self.base), Vec::new(), self.base);
        for call in &self.calls {
            match (call.action, call.outcome) {
                (AddAction::Add(delta), CallOutcome::Acked { .. }) => certain += i128::from(delta),
                (AddAction::Add(delta), CallOutcome::Unknown) => unknown.push(delta),
                (AddAction::Harvest, CallOutcome::Acked { value, .. }) => certain -= i128::from(value),
                _ => {}
            }
            if let CallOutcome::Acked { value, .. } = call.outcome {
                shown = shown.max(value);
            }
        }
        if self.rising && found < shown {
            return Some(Violation::new(&self.key, format!("taken back: found {found}, but {shown} was shown before")));
        }
        let missing = i128::from(found) - certain;
        if is_subset_sum(missing, unknown.iter().copied()) || self.harvested_unseen(found) {
            return None;
        }
        let direction = if missing < 0 { "lost" } else { "doubled" };
        let what = format!(
            "{direction}: found {found}; acknowledged operations come to {certain}, and no subset of the unknown adds \
             {unknown:?} to the difference of {missing}"
        );
        Some(Violation::new(&self.key, what))
    }

    /// Returns true if a harvest without a reply explains the value.
    fn harvested_unseen(&self, found: i64) -> bool {
        let harvests =
            self.calls.iter().filter(|call| call.action == AddAction::Harvest && call.outcome == CallOutcome::Unknown);
        harvests.into_iter().any(|harvest| {
            let later = self.calls.iter().filter_map(|call| match (call.action, call.outcome) {
                (AddAction::Add(_), CallOutcome::Acked { at, .. }) if at < harvest.invoked => None,
                (AddAction::Add(_), CallOutcome::Refused) => None,
                (AddAction::Add(delta), _) => Some(delta),
                _ => None,
            });
            is_subset_sum(i128::from(found), later)
        })
    }
}

#[derive(Debug, Clone, Copy)]
enum CallEvent {
    Invoked(usize),
    Acked(usize, i64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(action: AddAction, invoked: u64, at: u64, value: i64) -> AddCall {
        AddCall { client: 0, action, invoked, outcome: CallOutcome::Acked { at, value } }
    }

    fn call(action: AddAction, invoked: u64, outcome: CallOutcome) -> AddCall {
        AddCall { client: 0, action, invoked, outcome }
    }

    fn judged(mut judge: AddJudge, calls: &[AddCall], found: i64) -> String {
        calls.iter().for_each(|&call| judge.push(call));
        judge.judge_found(found).iter().map(Violation::to_string).collect::<Vec<_>>().join("\n")
    }

    const FIRST: [(u64, u64, i64); 2] = [(0, 1, 1), (2, 3, 2)];

    fn two_adds() -> Vec<AddCall> {
        FIRST.map(|(invoked, at, value)| acked(AddAction::Add(1), invoked, at, value)).to_vec()
    }

    #[test]
    fn what_was_promised_is_accepted() {
        assert_eq!(judged(AddJudge::rising("a"), &two_adds(), 2), "");
        let mut calls = two_adds();
        calls.push(call(AddAction::Add(5), 4, CallOutcome::Unknown));
        calls.push(call(AddAction::Add(9), 5, CallOutcome::Refused));
        assert_eq!(judged(AddJudge::rising("a"), &calls, 2), "", "the unknown one was not applied");
        assert_eq!(judged(AddJudge::rising("a"), &calls, 7), "", "the unknown one was applied");
    }

    #[test]
    fn a_lost_add_is_caught() {
        assert!(judged(AddJudge::new("a"), &two_adds(), 1).contains("lost"));
    }

    #[test]
    fn an_add_counted_twice_is_caught() {
        assert!(judged(AddJudge::new("a"), &two_adds(), 3).contains("doubled"));
        let mut calls = two_adds();
        calls.push(call(AddAction::Add(5), 4, CallOutcome::Unknown));
        assert!(judged(AddJudge::new("a"), &calls, 12).contains("doubled"), "also an unknown one");
    }

    #[test]
    fn a_refused_add_that_was_applied_is_caught() {
        let mut calls = two_adds();
        calls.push(call(AddAction::Add(5), 4, CallOutcome::Refused));
        assert!(judged(AddJudge::new("a"), &calls, 7).contains("doubled"));
    }

    #[test]
    fn a_value_read_and_then_taken_back_by_a_crash_is_caught() {
        let mut calls = two_adds();
        calls.push(call(AddAction::Add(5), 4, CallOutcome::Unknown));
        calls.push(acked(AddAction::Read, 5, 6, 7));
        assert!(judged(AddJudge::rising("a"), &calls, 2).contains("taken back"));
        assert_eq!(judged(AddJudge::rising("a"), &calls, 7), "");
    }

    #[test]
    fn a_value_taken_back_while_the_server_runs_is_caught() {
        let mut calls = two_adds();
        calls.push(acked(AddAction::Read, 4, 5, 1));
        assert!(judged(AddJudge::rising("a"), &calls, 2).contains("taken back"));
    }

    #[test]
    fn equal_replies_are_caught_in_one_life_and_across_lives() {
        let equal = [acked(AddAction::Add(1), 0, 2, 1), acked(AddAction::Add(1), 1, 3, 1)];
        assert!(judged(AddJudge::rising("a"), &equal, 2).contains("equal replies"));

        let mut judge = AddJudge::rising("a");
        judge.push(acked(AddAction::Add(1), 0, 1, 1));
        assert!(judge.judge_found(1).is_empty());
        judge.push(acked(AddAction::Add(1), 2, 3, 1));
        assert!(judge.judge_found(2).iter().any(|violation| violation.what.contains("equal replies")));
    }

    #[test]
    fn a_reply_that_shows_more_than_was_asked_for_is_caught() {
        assert!(judged(AddJudge::new("a"), &[acked(AddAction::Add(1), 0, 1, 2)], 1).contains("all that was asked for"));
    }

    #[test]
    fn an_unknown_add_is_settled_by_what_was_found() {
        let mut judge = AddJudge::new("a");
        judge.push(call(AddAction::Add(5), 0, CallOutcome::Unknown));
        assert!(judge.judge_found(0).is_empty());
        assert_eq!(judge.judge_found(5).len(), 1, "it cannot come back in a later life");
    }

    #[test]
    fn a_harvest_takes_each_add_once() {
        let mut calls = two_adds();
        calls.push(acked(AddAction::Harvest, 4, 5, 2));
        calls.push(acked(AddAction::Add(3), 6, 7, 3));
        assert_eq!(judged(AddJudge::new("a"), &calls, 3), "");
        assert!(judged(AddJudge::new("a"), &calls, 5).contains("doubled"), "harvested and still there");
        assert!(judged(AddJudge::new("a"), &calls, 0).contains("lost"));
    }

    #[test]
    fn a_harvest_of_unknown_outcome_took_place_or_not() {
        let mut calls = two_adds();
        calls.push(call(AddAction::Harvest, 4, CallOutcome::Unknown));
        calls.push(acked(AddAction::Add(3), 5, 7, 3));
        for found in [5, 3, 0] {
            assert_eq!(judged(AddJudge::new("a"), &calls, found), "", "found {found}");
        }
        for found in [1, 2, 4] {
            assert_ne!(
                judged(AddJudge::new("a"), &calls, found),
                "",
                "an add before the harvest is taken whole: {found}"
            );
        }
    }

    #[test]
    fn after_a_loss_that_was_allowed_only_impossible_values_are_caught() {
        let mut judge = AddJudge::rising("a");
        two_adds().into_iter().for_each(|call| judge.push(call));
        assert_eq!(judge.judge_found_after_loss(1), []);
        assert_eq!(judge.judge_found_after_loss(3).len(), 1);
        assert_eq!(judge.judge_found_after_loss(-1).len(), 1);
    }
}

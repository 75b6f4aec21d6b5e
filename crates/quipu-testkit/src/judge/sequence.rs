//! Judges the counters that one client alone changes.
//!
//! In: the client's operations in order, each one step or several in one EXEC; other clients' reads
//! of its counters; and the state found after the incarnation. Out: violations.
//!
//! The server runs the client's requests in order, and the journal keeps that order. So the found
//! state follows all acknowledged operations and a prefix of those in flight. It is not older than
//! any state that a reply has shown.

use std::collections::{BTreeMap, BTreeSet};

use quipu_model::Reply;

use super::Violation;

/// An action on one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepAction {
    /// INCRBY.
    Add(i64),
    /// SET: removes the expiry.
    Set(i64),
    /// SET … EXAT, in seconds since the Unix epoch.
    SetUntil(i64, i64),
    /// SET … EX, in seconds from now.
    SetFor(i64, i64),
    /// GETSET: removes the expiry.
    Swap(i64),
    /// GETDEL.
    Take,
    /// DEL.
    Delete,
    /// EXPIREAT, in seconds since the Unix epoch.
    ExpireAt(i64),
    /// EXPIRE, in seconds from now.
    ExpireIn(i64),
    /// PERSIST.
    Persist,
    /// GET.
    Read,
}

/// A step: an action on a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceStep {
    /// Name of the counter.
    pub key: String,
    /// The action.
    pub action: StepAction,
}

/// Expiry of a counter. Always far in the future: no judge waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryTime {
    /// None.
    Never,
    /// At a time that depends on the server's receipt of the request.
    Sometime,
    /// Milliseconds since the Unix epoch.
    At(i64),
}

/// An existing counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedCounter {
    /// Its value.
    pub value: i64,
    /// Its expiry.
    pub expires: ExpiryTime,
}

/// State found after an incarnation: every existing counter of the client.
pub type OwnedCounters = BTreeMap<String, OwnedCounter>;

/// An operation of the client: all its steps or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceEntry {
    /// Its steps, in order.
    pub steps: Vec<SequenceStep>,
    /// Stamp drawn before the request left.
    pub invoked: u64,
    /// Stamp drawn after the replies came, and the replies, one per step; `None`: unknown.
    pub acked: Option<(u64, Vec<Reply>)>,
}

/// Another client's read of one of the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignRead {
    /// Name of the counter.
    pub key: String,
    /// Stamp drawn before the read left.
    pub invoked: u64,
    /// Stamp drawn after its reply came.
    pub acked: u64,
    /// The value that it showed.
    pub value: Option<i64>,
}

/// The judge of one client's counters.
#[derive(Debug, Clone, Default)]
pub struct SequenceJudge {
    client: String,
    state: OwnedCounters, // at the start of this incarnation
    entries: Vec<SequenceEntry>,
    foreign_reads: Vec<ForeignRead>,
}

impl SequenceJudge {
    /// Creates the judge of a client without counters.
    pub fn new(client: impl Into<String>) -> SequenceJudge {
        SequenceJudge { client: client.into(), ..SequenceJudge::default() }
    }

    /// Adds an operation, in the client's order. The caller leaves out refused ones: they change
    /// nothing.
    pub fn push(&mut self, entry: SequenceEntry) {
        self.entries.push(entry);
    }

    /// Adds another client's read.
    pub fn push_foreign_read(&mut self, foreign_read: ForeignRead) {
        self.foreign_reads.push(foreign_read);
    }

    /// Judges the ended incarnation; the next one starts from the found state.
    pub fn judge_found(&mut self, found: OwnedCounters) -> Vec<Violation> {
        let (states, mut violations) = self.states();
        let (floor, unexplained) = self.check_foreign_reads(&states);
        violations.extend(unexplained);
        let acked = self.entries.iter().rposition(|entry| entry.acked.is_some()).map_or(0, |last| last + 1);
        let from = acked.max(floor);
        if !states[from..].iter().any(|state| is_alike(state, &found)) {
            violations.push(self.unexplained_violation(&states, acked, floor, &found));
        }
        self.end_incarnation(found, violations)
    }

    /// Judges an incarnation that may have lost acknowledged operations (mode memory): only replies
    /// and foreign reads within it.
    pub fn judge_found_after_loss(&mut self, found: OwnedCounters) -> Vec<Violation> {
        let (states, mut violations) = self.states();
        violations.extend(self.check_foreign_reads(&states).1);
        self.end_incarnation(found, violations)
    }

    fn end_incarnation(&mut self, found: OwnedCounters, violations: Vec<Violation>) -> Vec<Violation> {
        let entries = std::mem::take(&mut self.entries);
        self.foreign_reads.clear();
        self.state = found;
        violations.into_iter().map(|violation| violation.with_tail(&entries)).collect()
    }

    /// The state after each number of operations, and the replies that do not fit.
    fn states(&self) -> (Vec<OwnedCounters>, Vec<Violation>) {
        let (mut states, mut violations) = (vec![self.state.clone()], Vec::new());
        let mut state = self.state.clone();
        for entry in &self.entries {
            let expected: Vec<Reply> = entry.steps.iter().map(|step| step.run(&mut state)).collect();
            if let Some((_, replies)) = &entry.acked
                && *replies != expected
            {
                let what = format!("replied {replies:?} to {:?}; expected {expected:?}", entry.steps);
                violations.push(Violation::new(&self.client, what));
            }
            states.push(state.clone());
        }
        (states, violations)
    }

    /// Least number of operations that a reader has seen, and the reads that no state explains.
    fn check_foreign_reads(&self, states: &[OwnedCounters]) -> (usize, Vec<Violation>) {
        let (mut floor, mut violations) = (0, Vec::new());
        for foreign_read in &self.foreign_reads {
            // Acks come in the order of the requests, so both are indexes in the list.
            let acked_before =
                |entry: &SequenceEntry| matches!(&entry.acked, Some((at, _)) if *at < foreign_read.invoked);
            let least = self.entries.partition_point(acked_before);
            let most = self.entries.partition_point(|entry| entry.invoked < foreign_read.acked);
            let shows =
                |state: &OwnedCounters| state.get(&foreign_read.key).map(|counter| counter.value) == foreign_read.value;
            match (least..=most).find(|&index| shows(&states[index])) {
                Some(index) => floor = floor.max(index),
                None => {
                    let what = format!(
                        "{foreign_read:?} shows what the counter never was between operations {least} and {most}"
                    );
                    violations.push(Violation::new(&self.client, what));
                }
            }
        }
        (floor, violations)
    }

    fn unexplained_violation(
        &self,
        states: &[OwnedCounters],
        acked: usize,
        floor: usize,
        found: &OwnedCounters,
    ) -> Violation {
        let total = self.entries.len();
        let verdict = match states.iter().rposition(|state| is_alike(state, found)) {
            Some(index) if index < acked => {
                format!("lost: found the state after {index} operations, but {acked} were acknowledged")
            }
            Some(index) => format!("taken back: found the state after {index} operations, but {floor} were shown"),
            None => "found a state that never was".to_owned(),
        };
        let expected = &states[acked];
        let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        let differing: Vec<String> = keys
            .into_iter()
            .filter_map(|key| {
                let (was, is) = (expected.get(key), found.get(key));
                (was != is).then(|| format!("{key}: {was:?} after the last ack, found {is:?}"))
            })
            .collect();
        let what = format!("{verdict}; {acked} of {total} operations acknowledged; {}", differing.join("; "));
        Violation::new(&self.client, what)
    }
}

impl SequenceStep {
    /// Applies the step as the server should, and returns the expected reply.
    pub fn run(&self, state: &mut OwnedCounters) -> Reply {
        let before = state.get(&self.key).copied();
        let value = before.map(|counter| counter.value);
        let (after, reply) = match self.action {
            StepAction::Add(delta) => {
                let sum = value.unwrap_or(0) + delta;
                let expires = before.map_or(ExpiryTime::Never, |counter| counter.expires);
                (Some(OwnedCounter { value: sum, expires }), Reply::Integer(sum))
            }
            StepAction::Set(value) => (Some(OwnedCounter { value, expires: ExpiryTime::Never }), Reply::Ok),
            StepAction::SetUntil(value, at) => {
                (Some(OwnedCounter { value, expires: ExpiryTime::At(at * 1000) }), Reply::Ok)
            }
            StepAction::SetFor(value, _) => (Some(OwnedCounter { value, expires: ExpiryTime::Sometime }), Reply::Ok),
            StepAction::Swap(new) => {
                (Some(OwnedCounter { value: new, expires: ExpiryTime::Never }), Reply::Value(value))
            }
            StepAction::Take => (None, Reply::Value(value)),
            StepAction::Delete => (None, Reply::Integer(i64::from(before.is_some()))),
            StepAction::ExpireAt(at) => expire(before, ExpiryTime::At(at * 1000)),
            StepAction::ExpireIn(_) => expire(before, ExpiryTime::Sometime),
            StepAction::Persist => {
                let had = before.is_some_and(|counter| counter.expires != ExpiryTime::Never);
                (
                    before.map(|counter| OwnedCounter { expires: ExpiryTime::Never, ..counter }),
                    Reply::Integer(i64::from(had)),
                )
            }
            StepAction::Read => (before, Reply::Value(value)),
        };
        match after {
            Some(counter) => state.insert(self.key.clone(), counter),
            None => state.remove(&self.key),
        };
        reply
    }
}

fn expire(before: Option<OwnedCounter>, expires: ExpiryTime) -> (Option<OwnedCounter>, Reply) {
    (before.map(|counter| OwnedCounter { expires, ..counter }), Reply::Integer(i64::from(before.is_some())))
}

/// Returns true if the found state is this state; an expiry at an unknown time matches any.
fn is_alike(state: &OwnedCounters, found: &OwnedCounters) -> bool {
    let alike = |expected: ExpiryTime, found: ExpiryTime| match expected {
        ExpiryTime::Sometime => found != ExpiryTime::Never,
        other => other == found,
    };
    state.len() == found.len()
        && state.iter().zip(found).all(|((key, counter), (found_key, found))| {
            key == found_key && counter.value == found.value && alike(counter.expires, found.expires)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(key: &str, action: StepAction) -> SequenceStep {
        SequenceStep { key: key.to_owned(), action }
    }

    /// Operations on `x`, each sent after the reply to the one before; the last `unknown` have no
    /// reply.
    fn sequence(actions: &[StepAction], unknown: usize) -> SequenceJudge {
        let (mut sequence, mut state) = (SequenceJudge::new("client"), OwnedCounters::new());
        for (index, &action) in actions.iter().enumerate() {
            let steps = vec![step("x", action)];
            let replies = steps.iter().map(|step| step.run(&mut state)).collect();
            let stamp = index as u64 * 10;
            let acked = (index + unknown < actions.len()).then_some((stamp + 5, replies));
            sequence.push(SequenceEntry { steps, invoked: stamp, acked });
        }
        sequence
    }

    fn x(value: i64) -> OwnedCounters {
        OwnedCounters::from([("x".to_owned(), OwnedCounter { value, expires: ExpiryTime::Never })])
    }

    fn text(violations: &[Violation]) -> String {
        violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("\n")
    }

    const ACTIONS: [StepAction; 4] = [StepAction::Set(1), StepAction::Add(1), StepAction::Swap(9), StepAction::Delete];

    #[test]
    fn any_prefix_of_what_was_in_flight_is_accepted() {
        for found in [x(2), x(9), OwnedCounters::new()] {
            assert_eq!(sequence(&ACTIONS, 2).judge_found(found), []);
        }
    }

    #[test]
    fn a_lost_acknowledged_operation_is_caught() {
        let violations = sequence(&ACTIONS, 2).judge_found(x(1));
        assert!(text(&violations).contains("lost"), "{}", text(&violations));
    }

    #[test]
    fn a_state_that_never_was_is_caught() {
        assert!(text(&sequence(&ACTIONS, 2).judge_found(x(3))).contains("never was"), "an add counted twice");
    }

    #[test]
    fn a_wrong_reply_is_caught() {
        let mut judge = sequence(&ACTIONS, 0);
        judge.entries[2].acked = Some((25, vec![Reply::Value(Some(1))]));
        assert!(text(&judge.judge_found(OwnedCounters::new())).contains("expected [Value(Some(2))]"));
    }

    #[test]
    fn what_another_client_was_shown_is_not_taken_back() {
        let foreign_read = ForeignRead { key: "x".to_owned(), invoked: 31, acked: 33, value: Some(9) };
        let mut judge = sequence(&ACTIONS, 2);
        judge.push_foreign_read(foreign_read.clone());
        assert_eq!(judge.judge_found(x(9)), []);
        let mut judge = sequence(&ACTIONS, 2);
        judge.push_foreign_read(foreign_read);
        assert!(text(&judge.judge_found(x(2))).contains("taken back"));
    }

    #[test]
    fn a_sight_of_something_older_than_what_was_acknowledged_is_caught() {
        let mut judge = sequence(&ACTIONS, 2);
        judge.push_foreign_read(ForeignRead { key: "x".to_owned(), invoked: 16, acked: 18, value: Some(1) });
        assert!(text(&judge.judge_found(x(2))).contains("never was between"));
    }

    #[test]
    fn half_an_exec_is_caught() {
        let mut judge = SequenceJudge::new("client");
        let steps = vec![step("x", StepAction::Set(1)), step("y", StepAction::Add(1))];
        judge.push(SequenceEntry { steps, invoked: 0, acked: None });
        let mut whole = x(1);
        whole.insert("y".to_owned(), OwnedCounter { value: 1, expires: ExpiryTime::Never });
        for found in [OwnedCounters::new(), whole] {
            assert_eq!(judge.clone().judge_found(found), []);
        }
        assert!(text(&judge.judge_found(x(1))).contains("never was"));
    }

    #[test]
    fn a_lost_expiry_is_caught_and_one_of_unknown_time_is_not_mistaken() {
        let counter = |expires| OwnedCounters::from([("x".to_owned(), OwnedCounter { value: 1, expires })]);
        let until = [StepAction::SetUntil(1, 5_000_000_000)];
        assert_eq!(sequence(&until, 0).judge_found(counter(ExpiryTime::At(5_000_000_000_000))), []);
        assert_ne!(sequence(&until, 0).judge_found(counter(ExpiryTime::At(5_000_000_000_001))), []);
        assert_ne!(sequence(&until, 0).judge_found(counter(ExpiryTime::Never)), []);
        let relative = [StepAction::Set(1), StepAction::ExpireIn(100_000)];
        assert_eq!(sequence(&relative, 0).judge_found(counter(ExpiryTime::At(123))), []);
        assert_ne!(sequence(&relative, 0).judge_found(counter(ExpiryTime::Never)), []);
    }

    #[test]
    fn the_model_answers_as_redis_does() {
        let mut state = OwnedCounters::new();
        for (action, expected) in [
            (StepAction::Persist, Reply::Integer(0)),
            (StepAction::ExpireIn(1000), Reply::Integer(0)),
            (StepAction::Take, Reply::Value(None)),
            (StepAction::Add(-3), Reply::Integer(-3)),
            (StepAction::ExpireIn(1000), Reply::Integer(1)),
            (StepAction::Add(1), Reply::Integer(-2)),
            (StepAction::Persist, Reply::Integer(1)),
            (StepAction::Persist, Reply::Integer(0)),
            (StepAction::SetFor(4, 1000), Reply::Ok),
            (StepAction::Swap(5), Reply::Value(Some(4))),
            (StepAction::Persist, Reply::Integer(0)),
            (StepAction::Read, Reply::Value(Some(5))),
            (StepAction::Delete, Reply::Integer(1)),
            (StepAction::Delete, Reply::Integer(0)),
        ] {
            assert_eq!(step("x", action).run(&mut state), expected, "{action:?}");
        }
    }
}

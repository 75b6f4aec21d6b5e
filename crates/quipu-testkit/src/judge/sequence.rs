//! Judges the counters that one client alone changes.
//!
//! In: its operations in the order it asked them, each one step or several in one EXEC; what others saw of its counters; and
//! what was found after the life. Out: violations.
//!
//! The client's requests are carried out in order, and the journal keeps that order, so what is found is the state after all
//! acknowledged operations and a prefix of those in flight, and not before any state that somebody was shown.

use std::collections::{BTreeMap, BTreeSet};

use quipu_model::Reply;

use super::Violation;

/// What is asked of one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
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

/// An action on a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which counter.
    pub key: String,
    /// What is done.
    pub action: Action,
}

/// When a counter expires. Always far in the future: that time passes is not judged here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expires {
    /// It does not.
    Never,
    /// It does; the moment depends on when the server took the request.
    Sometime,
    /// Milliseconds since the Unix epoch.
    At(i64),
}

/// A counter that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its value.
    pub value: i64,
    /// Its expiry.
    pub expires: Expires,
}

/// What was found after a life: every counter of the client that exists.
pub type Found = BTreeMap<String, Held>;

/// An operation of the client: all its steps or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// Stamp drawn before the request left.
    pub invoked: u64,
    /// Stamp drawn after the replies came, and the replies, one per step; `None`: unknown.
    pub acked: Option<(u64, Vec<Reply>)>,
}

/// What another client read of one of the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// Which counter.
    pub key: String,
    /// Stamp drawn before the read left.
    pub invoked: u64,
    /// Stamp drawn after its reply came.
    pub acked: u64,
    /// What it showed.
    pub value: Option<i64>,
}

/// The judge of one client's counters.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    client: String,
    state: Found, // at the start of this life
    entries: Vec<Entry>,
    sights: Vec<Sight>,
}

impl Sequence {
    /// A client with no counters yet.
    pub fn new(client: impl Into<String>) -> Sequence {
        Sequence { client: client.into(), ..Sequence::default() }
    }

    /// Takes in an operation, in the order the client asked. One that was refused is left out: it changes nothing.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Takes in what another client saw.
    pub fn push_sight(&mut self, sight: Sight) {
        self.sights.push(sight);
    }

    /// Judges the life that ended; the next one starts from what was found.
    pub fn found(&mut self, found: Found) -> Vec<Violation> {
        let (states, mut violations) = self.states();
        let (floor, unexplained) = self.shown(&states);
        violations.extend(unexplained);
        let acked = self.entries.iter().rposition(|entry| entry.acked.is_some()).map_or(0, |last| last + 1);
        let from = acked.max(floor);
        if !states[from..].iter().any(|state| is_alike(state, &found)) {
            violations.push(self.not_explained(&states, acked, floor, &found));
        }
        self.end_life(found, violations)
    }

    /// Judges a life after which acknowledged operations may be lost (mode memory): only replies and sights within it.
    pub fn found_after_loss(&mut self, found: Found) -> Vec<Violation> {
        let (states, mut violations) = self.states();
        violations.extend(self.shown(&states).1);
        self.end_life(found, violations)
    }

    fn end_life(&mut self, found: Found, violations: Vec<Violation>) -> Vec<Violation> {
        let entries = std::mem::take(&mut self.entries);
        self.sights.clear();
        self.state = found;
        violations.into_iter().map(|violation| violation.with_tail(&entries)).collect()
    }

    /// The state after each number of operations, and the replies that do not fit them.
    fn states(&self) -> (Vec<Found>, Vec<Violation>) {
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

    /// How many operations, at least, somebody has been shown; and the sights that no state explains.
    fn shown(&self, states: &[Found]) -> (usize, Vec<Violation>) {
        let (mut floor, mut violations) = (0, Vec::new());
        for sight in &self.sights {
            // Acks come in the order of the requests, so both are places in the list.
            let acked_before = |entry: &Entry| matches!(&entry.acked, Some((at, _)) if *at < sight.invoked);
            let least = self.entries.partition_point(acked_before);
            let most = self.entries.partition_point(|entry| entry.invoked < sight.acked);
            let shows = |state: &Found| state.get(&sight.key).map(|held| held.value) == sight.value;
            match (least..=most).find(|&place| shows(&states[place])) {
                Some(place) => floor = floor.max(place),
                None => {
                    let what =
                        format!("{sight:?} shows what the counter never was between operations {least} and {most}");
                    violations.push(Violation::new(&self.client, what));
                }
            }
        }
        (floor, violations)
    }

    fn not_explained(&self, states: &[Found], acked: usize, floor: usize, found: &Found) -> Violation {
        let asked = self.entries.len();
        let verdict = match states.iter().rposition(|state| is_alike(state, found)) {
            Some(place) if place < acked => {
                format!("lost: found the state after {place} operations, but {acked} were acknowledged")
            }
            Some(place) => format!("taken back: found the state after {place} operations, but {floor} were shown"),
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
        let what = format!("{verdict}; {acked} of {asked} operations acknowledged; {}", differing.join("; "));
        Violation::new(&self.client, what)
    }
}

impl Step {
    /// Carries the step out, as the server should, and returns the reply it should give.
    pub fn run(&self, state: &mut Found) -> Reply {
        let before = state.get(&self.key).copied();
        let value = before.map(|held| held.value);
        let (after, reply) = match self.action {
            Action::Add(delta) => {
                let sum = value.unwrap_or(0) + delta;
                let expires = before.map_or(Expires::Never, |held| held.expires);
                (Some(Held { value: sum, expires }), Reply::Integer(sum))
            }
            Action::Set(value) => (Some(Held { value, expires: Expires::Never }), Reply::Ok),
            Action::SetUntil(value, at) => (Some(Held { value, expires: Expires::At(at * 1000) }), Reply::Ok),
            Action::SetFor(value, _) => (Some(Held { value, expires: Expires::Sometime }), Reply::Ok),
            Action::Swap(new) => (Some(Held { value: new, expires: Expires::Never }), Reply::Value(value)),
            Action::Take => (None, Reply::Value(value)),
            Action::Delete => (None, Reply::Integer(i64::from(before.is_some()))),
            Action::ExpireAt(at) => expire(before, Expires::At(at * 1000)),
            Action::ExpireIn(_) => expire(before, Expires::Sometime),
            Action::Persist => {
                let had = before.is_some_and(|held| held.expires != Expires::Never);
                (before.map(|held| Held { expires: Expires::Never, ..held }), Reply::Integer(i64::from(had)))
            }
            Action::Read => (before, Reply::Value(value)),
        };
        match after {
            Some(held) => state.insert(self.key.clone(), held),
            None => state.remove(&self.key),
        };
        reply
    }
}

fn expire(before: Option<Held>, expires: Expires) -> (Option<Held>, Reply) {
    (before.map(|held| Held { expires, ..held }), Reply::Integer(i64::from(before.is_some())))
}

/// Whether what was found is this state; an expiry whose moment we cannot know is like any.
fn is_alike(state: &Found, found: &Found) -> bool {
    let alike = |expected: Expires, found: Expires| match expected {
        Expires::Sometime => found != Expires::Never,
        other => other == found,
    };
    state.len() == found.len()
        && state.iter().zip(found).all(|((key, held), (found_key, found))| {
            key == found_key && held.value == found.value && alike(held.expires, found.expires)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(key: &str, action: Action) -> Step {
        Step { key: key.to_owned(), action }
    }

    /// Operations on `x`, each asked when the one before was answered; the last `unknown` are not.
    fn sequence(actions: &[Action], unknown: usize) -> Sequence {
        let (mut sequence, mut state) = (Sequence::new("client"), Found::new());
        for (place, &action) in actions.iter().enumerate() {
            let steps = vec![step("x", action)];
            let replies = steps.iter().map(|step| step.run(&mut state)).collect();
            let stamp = place as u64 * 10;
            let acked = (place + unknown < actions.len()).then_some((stamp + 5, replies));
            sequence.push(Entry { steps, invoked: stamp, acked });
        }
        sequence
    }

    fn x(value: i64) -> Found {
        Found::from([("x".to_owned(), Held { value, expires: Expires::Never })])
    }

    fn text(violations: &[Violation]) -> String {
        violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("\n")
    }

    const ACTIONS: [Action; 4] = [Action::Set(1), Action::Add(1), Action::Swap(9), Action::Delete];

    #[test]
    fn any_prefix_of_what_was_in_flight_is_accepted() {
        for found in [x(2), x(9), Found::new()] {
            assert_eq!(sequence(&ACTIONS, 2).found(found), []);
        }
    }

    #[test]
    fn a_lost_acknowledged_operation_is_caught() {
        let violations = sequence(&ACTIONS, 2).found(x(1));
        assert!(text(&violations).contains("lost"), "{}", text(&violations));
    }

    #[test]
    fn a_state_that_never_was_is_caught() {
        assert!(text(&sequence(&ACTIONS, 2).found(x(3))).contains("never was"), "an add counted twice");
    }

    #[test]
    fn a_wrong_reply_is_caught() {
        let mut judge = sequence(&ACTIONS, 0);
        judge.entries[2].acked = Some((25, vec![Reply::Value(Some(1))]));
        assert!(text(&judge.found(Found::new())).contains("expected [Value(Some(2))]"));
    }

    #[test]
    fn what_another_client_was_shown_is_not_taken_back() {
        let sight = Sight { key: "x".to_owned(), invoked: 31, acked: 33, value: Some(9) };
        let mut judge = sequence(&ACTIONS, 2);
        judge.push_sight(sight.clone());
        assert_eq!(judge.found(x(9)), []);
        let mut judge = sequence(&ACTIONS, 2);
        judge.push_sight(sight);
        assert!(text(&judge.found(x(2))).contains("taken back"));
    }

    #[test]
    fn a_sight_of_something_older_than_what_was_acknowledged_is_caught() {
        let mut judge = sequence(&ACTIONS, 2);
        judge.push_sight(Sight { key: "x".to_owned(), invoked: 16, acked: 18, value: Some(1) });
        assert!(text(&judge.found(x(2))).contains("never was between"));
    }

    #[test]
    fn half_an_exec_is_caught() {
        let mut judge = Sequence::new("client");
        let steps = vec![step("x", Action::Set(1)), step("y", Action::Add(1))];
        judge.push(Entry { steps, invoked: 0, acked: None });
        let mut whole = x(1);
        whole.insert("y".to_owned(), Held { value: 1, expires: Expires::Never });
        for found in [Found::new(), whole] {
            assert_eq!(judge.clone().found(found), []);
        }
        assert!(text(&judge.found(x(1))).contains("never was"));
    }

    #[test]
    fn a_lost_expiry_is_caught_and_one_of_unknown_moment_is_not_mistaken() {
        let held = |expires| Found::from([("x".to_owned(), Held { value: 1, expires })]);
        let until = [Action::SetUntil(1, 5_000_000_000)];
        assert_eq!(sequence(&until, 0).found(held(Expires::At(5_000_000_000_000))), []);
        assert_ne!(sequence(&until, 0).found(held(Expires::At(5_000_000_000_001))), []);
        assert_ne!(sequence(&until, 0).found(held(Expires::Never)), []);
        let relative = [Action::Set(1), Action::ExpireIn(100_000)];
        assert_eq!(sequence(&relative, 0).found(held(Expires::At(123))), []);
        assert_ne!(sequence(&relative, 0).found(held(Expires::Never)), []);
    }

    #[test]
    fn the_model_answers_as_redis_does() {
        let mut state = Found::new();
        for (action, expected) in [
            (Action::Persist, Reply::Integer(0)),
            (Action::ExpireIn(1000), Reply::Integer(0)),
            (Action::Take, Reply::Value(None)),
            (Action::Add(-3), Reply::Integer(-3)),
            (Action::ExpireIn(1000), Reply::Integer(1)),
            (Action::Add(1), Reply::Integer(-2)),
            (Action::Persist, Reply::Integer(1)),
            (Action::Persist, Reply::Integer(0)),
            (Action::SetFor(4, 1000), Reply::Ok),
            (Action::Swap(5), Reply::Value(Some(4))),
            (Action::Persist, Reply::Integer(0)),
            (Action::Read, Reply::Value(Some(5))),
            (Action::Delete, Reply::Integer(1)),
            (Action::Delete, Reply::Integer(0)),
        ] {
            assert_eq!(step("x", action).run(&mut state), expected, "{action:?}");
        }
    }
}

//! Judges whether a history of one object is linearizable.
//!
//! In: a sequential specification of the object, and operations with the time of each request and
//! reply. Out: nothing, or the smallest window of operations that no order explains.
//!
//! The search is that of Wing and Gong. It takes operations one by one, in any order that
//! contradicts no reply and no time. It remembers each visited pair of taken operations and state
//! (Lowe's variant), so that it never searches one twice. If orders differ only invisibly, it takes
//! one of them. Examples are the time of a read, and the order of two equal adds without replies.
//!
//! An operation without a reply took effect once, after its request and before its end, or never.
//! An object may be several counters: a specification with a state of all of them judges
//! transactions as one operation.
//!
//! Not here: the behaviour of a counter (`counters`), the clients (the suites).

mod counters;
mod search;

use std::fmt;
use std::hash::Hash;

pub use self::counters::{CELLS, CounterAction, CounterSpec, CounterState, CounterStep, Deadline};
use self::search::{SearchEntry, SearchOutcome, search};
use super::Violation;

/// Sequential specification of an object.
pub trait Specification {
    /// All state that decides later replies.
    type State: Clone + Eq + Hash + fmt::Debug;
    /// An action on the object.
    type Action: PartialEq + fmt::Debug;
    /// A reply of the object.
    type Reply: fmt::Debug;

    /// Adds to `next` every possible state after the operation; none, if its reply contradicts the
    /// state.
    fn step(
        &self,
        state: &Self::State,
        operation: &HistoryOperation<Self::Action, Self::Reply>,
        next: &mut Vec<Self::State>,
    );

    /// Returns true if the action changes nothing in any state. The search then takes it as soon as
    /// its reply is right, which shortens searches.
    fn is_read(&self, _action: &Self::Action) -> bool {
        false
    }

    /// Returns true if the action's effect in this state is independent of time. Of two equal
    /// actions without replies, the search then takes the earlier one first, which shortens
    /// searches.
    fn is_timeless(&self, _state: &Self::State, _action: &Self::Action) -> bool {
        false
    }
}

/// One operation of a history. Times are those of one clock, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryOperation<A, R> {
    /// Index of the client.
    pub client: usize,
    /// The action.
    pub action: A,
    /// The reply. `None`: unknown, so any reply explains it.
    pub reply: Option<R>,
    /// Time before the request left.
    pub invoked: u64,
    /// Time after the reply came. Without a reply: a time after which the operation cannot take
    /// effect.
    pub returned: u64,
    /// True if it took effect. Otherwise it may have taken effect, or never will.
    pub is_certain: bool,
    /// Index of an operation that took effect before this one: those of one connection keep their
    /// order.
    pub after: Option<usize>,
}

/// All operations of one object.
#[derive(Debug, Clone)]
pub struct History<A, R> {
    key: String,
    operations: Vec<HistoryOperation<A, R>>,
}

/// Size of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchSize {
    /// Points that it visited.
    pub points: usize,
    /// True if it found an order. Otherwise it ended undecided.
    pub is_decided: bool,
}

impl<A: PartialEq + fmt::Debug, R: fmt::Debug> History<A, R> {
    /// Creates an empty history of the object with this name.
    pub fn new(key: impl Into<String>) -> History<A, R> {
        History { key: key.into(), operations: Vec::new() }
    }

    /// Adds an operation, in any order; returns its index.
    pub fn push(&mut self, operation: HistoryOperation<A, R>) -> usize {
        debug_assert!(operation.invoked <= operation.returned, "{operation:?} ends before it begins");
        self.operations.push(operation);
        self.operations.len() - 1
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns true if there is no operation.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Judges whether some order of the operations explains every reply, from this state on.
    /// `unknown` is a state that stands for any state; it shortens the window of a violation.
    pub fn judge<S: Specification<Action = A, Reply = R>>(
        &self,
        spec: &S,
        initial: &S::State,
        unknown: Option<&S::State>,
    ) -> Result<SearchSize, Violation> {
        let order = self.order();
        match search(spec, initial, &self.entries_within(&order, Window::WHOLE)) {
            SearchOutcome::Explained { points } => Ok(SearchSize { points, is_decided: true }),
            SearchOutcome::Undecided { points } => Ok(SearchSize { points, is_decided: false }),
            SearchOutcome::Unexplained => Err(self.smallest_violation(spec, initial, unknown, &order)),
        }
    }

    /// Indexes of the operations, by the time of their requests.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.operations.len()).collect();
        order.sort_by_key(|&index| (self.operations[index].invoked, index));
        order
    }

    /// The operations that overlap a window, by the time of their requests.
    fn entries_within(&self, order: &[usize], window: Window) -> Vec<SearchEntry<'_, A, R>> {
        let mut indexes = vec![None; self.operations.len()];
        let mut entries = Vec::with_capacity(order.len());
        for &index in order {
            let operation = &self.operations[index];
            if operation.returned < window.from || window.until < operation.invoked {
                continue;
            }
            indexes[index] = Some(entries.len());
            let is_inside = window.from <= operation.invoked && operation.returned <= window.until;
            entries.push(SearchEntry {
                operation,
                is_certain: operation.is_certain && is_inside,
                after: None,
                is_followed: false,
            });
        }
        for index in 0..entries.len() {
            let after = entries[index].operation.after.and_then(|after| indexes[after]);
            entries[index].after = after;
            if let Some(before) = after {
                entries[before].is_followed = true;
            }
        }
        entries
    }

    /// The smallest unexplained window: first its end moves forward, then its beginning.
    fn smallest_violation<S: Specification<Action = A, Reply = R>>(
        &self,
        spec: &S,
        initial: &S::State,
        unknown: Option<&S::State>,
        order: &[usize],
    ) -> Violation {
        let is_unexplained = |state: &S::State, window| {
            matches!(search(spec, state, &self.entries_within(order, window)), SearchOutcome::Unexplained)
        };
        let mut ends: Vec<u64> =
            self.operations.iter().filter(|each| each.is_certain).map(|each| each.returned).collect();
        ends.sort_unstable();
        // An explained history has only explained beginnings, so bisection finds the first
        // unexplained end.
        let first = ends.partition_point(|&until| !is_unexplained(initial, Window { until, ..Window::WHOLE }));
        let mut window = Window { until: ends.get(first).copied().unwrap_or(u64::MAX), ..Window::WHOLE };
        let mut from_unknown = false;
        if let Some(unknown) = unknown {
            let begins: Vec<u64> = order.iter().map(|&index| self.operations[index].invoked).collect();
            let later = begins.partition_point(|&from| is_unexplained(unknown, Window { from, ..window }));
            if later > 0 {
                (window.from, from_unknown) = (begins[later - 1], true);
            }
        }
        let entries = self.entries_within(order, window);
        let start = if from_unknown { "any state".to_owned() } else { format!("{initial:?}") };
        let what = format!(
            "not linearizable: from {start} no order explains these {} of {} operations, up to the last reply",
            entries.len(),
            self.operations.len()
        );
        let mut violation = Violation::new(&self.key, what);
        violation.tail = entries.iter().map(|each| each.to_string()).collect();
        violation
    }
}

/// A window of a history. Operations that reach into it may or may not have taken effect there.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: u64,
    until: u64,
}

impl Window {
    const WHOLE: Window = Window { from: 0, until: u64::MAX };
}

#[cfg(test)]
mod tests;

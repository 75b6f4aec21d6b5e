//! Checks that the state after a fault matches the promises.
//!
//! In: each request with client and time, each reply with its time, and the state found after the
//! fault. Out: violations, as text.
//!
//! Two kinds of keys are judged under heavy load, because two things can be known exactly:
//! - [`AddJudge`]: keys to which all clients add, and which one client may harvest. Only sums can
//!   be known: final = acknowledged adds + some subset of the unknown ones;
//! - [`SequenceJudge`]: keys that one client alone changes, by any command. Everything can be
//!   known: the found state follows all its acknowledged operations and a prefix of those in
//!   flight.
//!
//! A third judge, [`History`], checks one promise only: some order of all operations explains every
//! reply. It takes any commands of any clients. It is too slow for more than some hundred
//! operations of one object.
//!
//! In the first two, a value shown to any client, by a write's reply or a read's, may not be taken
//! back.
//!
//! Time is a stamp from any counter that only rises. The client draws one just before a request
//! leaves and one just after its reply came. Only the order of stamps proves that one event was
//! before another.

mod adds;
mod linearizable;
mod sequence;
mod subset;

use std::fmt;

pub use self::adds::{AddAction, AddCall, AddJudge, CallOutcome};
pub use self::linearizable::{
    CELLS, CounterAction, CounterSpec, CounterState, CounterStep, Deadline, History, HistoryOperation, SearchSize,
    Specification,
};
pub use self::sequence::{
    ExpiryTime, ForeignRead, OwnedCounter, OwnedCounters, SequenceEntry, SequenceJudge, SequenceStep, StepAction,
};
pub use self::subset::is_subset_sum;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The counter or the client.
    pub key: String,
    /// The expected and the found state.
    pub what: String,
    /// The last calls before it, one a line.
    pub tail: Vec<String>,
}

/// Most calls that a violation quotes: enough for everything in flight on a few connections.
const TAIL_CALLS_MAX: usize = 40;

impl Violation {
    fn new(key: &str, what: String) -> Violation {
        Violation { key: key.to_owned(), what, tail: Vec::new() }
    }

    fn with_tail<T: fmt::Debug>(mut self, calls: &[T]) -> Violation {
        let from = calls.len().saturating_sub(TAIL_CALLS_MAX);
        self.tail = calls[from..].iter().map(|call| format!("{call:?}")).collect();
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.what)?;
        for line in &self.tail {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// Checks counters that only change together, by the same amount in one EXEC: at any time they are
/// equal.
pub fn check_equal_values(keys: &[&str], values: &[i64]) -> Option<Violation> {
    let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
    differ.then(|| {
        Violation::new(
            &keys.join(" and "),
            format!("half an EXEC: changed only together, yet the values are {values:?}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_exec_is_caught() {
        assert_eq!(check_equal_values(&["a", "b"], &[3, 3]), None);
        let violation = check_equal_values(&["a", "b"], &[3, 4]).unwrap();
        assert!(violation.to_string().contains("half an EXEC"), "{violation}");
    }
}

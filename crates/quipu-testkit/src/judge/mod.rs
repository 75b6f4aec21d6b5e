//! The judge: whether what came back after a fault is something that was promised.
//!
//! In: who asked what when, what was answered when, and what was found after the fault. Out: violations, in words.
//!
//! Two kinds of keys are judged under much load, because two things can be known exactly:
//! - [`AddJudge`]: keys that everybody adds to, and perhaps one client harvests. Only sums can be known:
//!   final = acknowledged adds + some subset of the unknown ones;
//! - [`SequenceJudge`]: keys that one client alone changes, by any command. Everything can be known: the state found is the one
//!   after all its acknowledged operations and a prefix of those in flight.
//!
//! A third judge, [`History`], knows no promise but one: some order of all operations explains every reply. It takes any
//! commands of any clients, and is too slow for more than some hundred operations of one object.
//!
//! In the first two, what was shown to anyone, by a write's reply or a read's, may not be taken back.
//!
//! Time is a stamp: any counter that only rises, drawn just before a request leaves and just after its reply came. A stamp
//! that orders two events is proof that one was before the other; nothing else is.

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

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which counter, or whose.
    pub key: String,
    /// What should have been, and what was.
    pub what: String,
    /// The last calls before it, one a line.
    pub tail: Vec<String>,
}

/// How many calls a violation quotes: enough for all that can be in flight on a few connections.
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

/// Counters that are only ever changed together, by the same amount in one EXEC, have the same value at every moment.
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

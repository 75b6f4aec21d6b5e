//! Queues a shard's counters that a shared store has not confirmed, by due time.
//!
//! In: names with changed own cells, and the outcome of each put. Out: the due names, without a
//! scan of the others.
//!
//! ```text
//! entries   name ─► due time, failed puts, unconfirmed, evicted  one per name
//! queue     (due time, name)                                     the same names, the earliest first
//! ```
//!
//! Invariants:
//! - `queue` holds exactly the names of `entries`, each under its due time;
//! - at most [`AT_REST_MAX`] entries are of evicted counters; all others are resident.
//!
//! Not here: the contents of puts (`sharing::settle`), the comparison with the store
//! (`sharing::audit`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::NameBuf;

/// Most evicted unsettled counters of a shard that are remembered by name: 65,536 in the 1,024
/// shards of a server. An entry takes about 130 bytes, and twice the bytes of a name over 22 bytes:
/// 9 MB with short names, 76 MB with the longest. An audit pass over the ledger finds the others.
pub const AT_REST_MAX: usize = 64;

/// State of an unsettled counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnsettledEntry {
    /// Time of the next put of its cells.
    pub due: Duration,
    /// Number of consecutive puts without a verdict.
    pub failures: u32,
    /// An audit pass waits until the store confirms it.
    pub unconfirmed: bool,
    /// It was evicted while an audit pass waited for it. The ledger does not record this, so the
    /// audit doubts its cells again after a load.
    pub was_unconfirmed: bool,
    /// It was evicted.
    pub at_rest: bool,
}

/// Unsettled names of a shard, see the module.
#[derive(Default)]
pub struct UnsettledNames {
    entries: BTreeMap<NameBuf, UnsettledEntry>,
    queue: BTreeSet<(Duration, NameBuf)>,
    unconfirmed: usize,
    failing: usize,
    unconfirmed_failing: usize,
    at_rest: usize,
}

impl UnsettledNames {
    /// Number of names, resident or evicted.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Number of resident names.
    pub fn resident(&self) -> usize {
        self.entries.len() - self.at_rest
    }

    /// Number of names that an audit pass waits for.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed
    }

    /// Number of those whose last put had a verdict.
    pub fn unconfirmed_not_failing(&self) -> usize {
        self.unconfirmed - self.unconfirmed_failing
    }

    /// Number of names whose last put had no verdict.
    pub fn failing(&self) -> usize {
        self.failing
    }

    /// Returns true if a name is listed.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.entries.contains_key(name)
    }

    /// The due names, earliest first.
    pub fn due(&self, now: Duration) -> impl Iterator<Item = (&NameBuf, UnsettledEntry)> {
        let due = self.queue.iter().take_while(move |(due, _)| *due <= now);
        due.filter_map(|(_, name)| Some((name, *self.entries.get(&**name)?)))
    }

    /// Replaces a name's state; `None`: it is not listed.
    pub fn update(&mut self, name: &NameBuf, update: impl FnOnce(Option<UnsettledEntry>) -> Option<UnsettledEntry>) {
        let before = self.entries.get(&**name).copied();
        let after = update(before);
        if before == after {
            return;
        }
        self.adjust(before, |count, by| *count -= by);
        self.adjust(after, |count, by| *count += by);
        let (due_before, due_after) = (before.map(|entry| entry.due), after.map(|entry| entry.due));
        if due_before != due_after {
            if let Some(due) = due_before {
                self.queue.remove(&(due, name.clone()));
            }
            if let Some(due) = due_after {
                self.queue.insert((due, name.clone()));
            }
        }
        match after {
            Some(after) => drop(self.entries.insert(name.clone(), after)),
            None => drop(self.entries.remove(&**name)),
        }
    }

    /// Records an eviction. False if too many are recorded already: then the name is dropped.
    pub fn mark_evicted(&mut self, name: &[u8]) -> bool {
        let Some(entry) = self.entries.get(name).copied() else { return true };
        let stays = entry.at_rest || self.at_rest < AT_REST_MAX;
        let entry = UnsettledEntry { at_rest: true, was_unconfirmed: entry.unconfirmed, ..entry };
        self.update(&name.into(), |_| stays.then_some(entry));
        stays
    }

    /// Records that a counter was loaded again.
    pub fn mark_loaded(&mut self, name: &[u8]) {
        if self.at_rest > 0 && self.contains(name) {
            self.update(&name.into(), |entry| entry.map(|entry| UnsettledEntry { at_rest: false, ..entry }));
        }
    }

    fn adjust(&mut self, entry: Option<UnsettledEntry>, change: impl Fn(&mut usize, usize)) {
        let Some(UnsettledEntry { failures, unconfirmed, at_rest, .. }) = entry else { return };
        change(&mut self.unconfirmed, usize::from(unconfirmed));
        change(&mut self.failing, usize::from(failures > 0));
        change(&mut self.unconfirmed_failing, usize::from(unconfirmed && failures > 0));
        change(&mut self.at_rest, usize::from(at_rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> NameBuf {
        NameBuf::from(format!("likes:{n}").as_bytes())
    }

    fn listed(due: u64) -> Option<UnsettledEntry> {
        Some(UnsettledEntry { due: Duration::from_millis(due), ..UnsettledEntry::default() })
    }

    fn due(names: &UnsettledNames, now: u64) -> Vec<NameBuf> {
        names.due(Duration::from_millis(now)).map(|(name, _)| name.clone()).collect()
    }

    #[test]
    fn names_are_due_in_the_order_of_their_time_and_the_others_are_not() {
        let mut names = UnsettledNames::default();
        for (n, at) in [(1, 30), (2, 10), (3, 20)] {
            names.update(&name(n), |_| listed(at));
        }
        assert_eq!(due(&names, 9), []);
        assert_eq!(due(&names, 20), [name(2), name(3)]);
        names.update(&name(2), |_| listed(40));
        names.update(&name(3), |_| None);
        assert_eq!((due(&names, 100), names.count()), (vec![name(1), name(2)], 2));
    }

    #[test]
    fn what_is_doubted_or_fails_is_counted_until_it_is_not() {
        let mut names = UnsettledNames::default();
        let with = |failures, unconfirmed| Some(UnsettledEntry { failures, unconfirmed, ..UnsettledEntry::default() });
        for (n, entry) in [with(0, true), with(3, true), with(1, false)].into_iter().enumerate() {
            names.update(&name(n), |_| entry);
        }
        assert_eq!((names.unconfirmed(), names.unconfirmed_not_failing(), names.failing()), (2, 1, 2));
        names.update(&name(1), |_| with(0, false));
        names.update(&name(2), |_| None);
        assert_eq!((names.unconfirmed(), names.unconfirmed_not_failing(), names.failing()), (1, 1, 0));
    }

    #[test]
    fn names_of_what_left_memory_are_remembered_up_to_a_bound() {
        let mut names = UnsettledNames::default();
        for n in 0..=AT_REST_MAX {
            names.update(&name(n), |_| Some(UnsettledEntry { unconfirmed: n == 0, ..UnsettledEntry::default() }));
        }
        assert!(names.mark_evicted(&name(AT_REST_MAX + 1)), "it was not listed");
        for n in 0..AT_REST_MAX {
            assert!(names.mark_evicted(&name(n)));
            assert!(names.mark_evicted(&name(n)), "once more, and it is one name");
        }
        assert_eq!(names.resident(), 1);
        assert!(!names.mark_evicted(&name(AT_REST_MAX)));
        assert_eq!((names.count(), names.resident()), (AT_REST_MAX, 0));
        assert_eq!(names.due(Duration::ZERO).filter(|(_, entry)| entry.was_unconfirmed).count(), 1);
        names.mark_loaded(&name(0));
        assert_eq!((names.count(), names.resident()), (AT_REST_MAX, 1));
    }
}

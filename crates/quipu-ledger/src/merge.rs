//! Merges tables by key, with the same result as the tree but without opening it.
//!
//! In: tables in any order, each sorted. Out: every key once, in order, with its newest value;
//! deleted keys are left out.
//!
//! The merge opens a table when it reaches the table's first key. The tables of one level do not
//! overlap, so it reads one of them at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Bound;

use lsm_tree::{InternalValue, Table, UserKey, UserValue};

/// A merging iterator over the keys of several tables.
pub struct Merge<'t> {
    /// Tables not reached yet, the next one last.
    unopened: Vec<&'t Table>,
    /// The next record of each reached table: the smallest key first, of equal keys the newest.
    heads: BinaryHeap<Reverse<TableHead<'t>>>,
    from: UserKey,
    end: UserKey,
}

/// Records of one table.
type Records<'t> = Box<dyn Iterator<Item = lsm_tree::Result<InternalValue>> + 't>;

struct TableHead<'t> {
    next: InternalValue,
    records: Records<'t>,
    table: &'t Table,
}

/// A table with a read error.
pub type TableError<'t> = (lsm_tree::Error, &'t Table);

impl<'t> Merge<'t> {
    /// Merges all keys from `from` up to, not including, `end`.
    pub fn new(tables: &'t [Table], from: &[u8], end: &[u8]) -> Merge<'t> {
        let (from, end) = (UserKey::from(from), UserKey::from(end));
        let reaches = |table: &&Table| *table.metadata.key_range.min() < end && *table.metadata.key_range.max() >= from;
        let mut ahead: Vec<&Table> = tables.iter().filter(reaches).collect();
        ahead.sort_by(|a, b| b.metadata.key_range.min().cmp(a.metadata.key_range.min()));
        Merge { unopened: ahead, heads: BinaryHeap::new(), from, end }
    }

    fn try_next(&mut self) -> Result<Option<(UserKey, UserValue)>, TableError<'t>> {
        loop {
            self.open_reached_tables()?;
            let Some(newest) = self.take_next()? else { return Ok(None) };
            while self.heads.peek().is_some_and(|Reverse(head)| head.next.key.user_key == newest.key.user_key) {
                self.take_next()?;
            }
            if !newest.is_tombstone() {
                return Ok(Some((newest.key.user_key, newest.value)));
            }
        }
    }

    /// Opens the tables that may hold the next key.
    fn open_reached_tables(&mut self) -> Result<(), TableError<'t>> {
        while let Some(table) = self.unopened.last() {
            let reached =
                self.heads.peek().is_none_or(|Reverse(head)| head.next.key.user_key >= *table.metadata.key_range.min());
            if !reached {
                break;
            }
            let (table, bounds) = (*table, (Bound::Included(self.from.clone()), Bound::Excluded(self.end.clone())));
            self.unopened.pop();
            let mut records: Records<'t> = Box::new(table.range(bounds));
            if let Some(next) = records.next() {
                let next = next.map_err(|error| (error, table))?;
                self.heads.push(Reverse(TableHead { next, records, table }));
            }
        }
        Ok(())
    }

    /// Takes the next record of all open tables, older versions of a key included.
    fn take_next(&mut self) -> Result<Option<InternalValue>, TableError<'t>> {
        let Some(mut first) = self.heads.peek_mut() else { return Ok(None) };
        let table = first.0.table;
        let taken = match first.0.records.next().transpose().map_err(|error| (error, table))? {
            Some(next) => std::mem::replace(&mut first.0.next, next),
            None => PeekMut::pop(first).0.next,
        };
        Ok(Some(taken))
    }
}

impl<'t> Iterator for Merge<'t> {
    type Item = Result<(UserKey, UserValue), TableError<'t>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}

impl Ord for TableHead<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Of one key the newest sorts first.
        self.next.key.cmp(&other.next.key)
    }
}

impl PartialOrd for TableHead<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for TableHead<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.next.key == other.next.key
    }
}

impl Eq for TableHead<'_> {}

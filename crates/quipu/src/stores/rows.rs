//! Walks over all rows of a store.
//!
//! In: a store. Out: rows with their names, each once, as of their reading.
//!
//! Invariants:
//! - a row that exists throughout the walk is visited exactly once, even if the store repeats its
//!   name;
//! - an unreadable row is distinguished from a store that does not answer.

use std::collections::{HashSet, VecDeque};

use anyhow::{Context, anyhow};
use futures_util::future::join_all;
use quipu_model::shared::{FetchedRow, RowWithBodies};
use quipu_model::{Cursor, Name, Pattern, SCAN_NAMES_MAX, Store, StoreError, StoreFuture};
use xxhash_rust::xxh3::xxh3_128;

use crate::stores::retry::{block_on, call_with_retry};

/// Rows that are read at the same time: enough to hide the round trip, few enough that none waits
/// for a connection for long.
const READS_MAX: usize = 256;

/// Attempts to read an unreadable row of a store that answers.
const TRIES: usize = 3;

/// A row, or the reason why it is unreadable.
pub type NamedRow = (Box<[u8]>, Result<FetchedRow, StoreError>);

/// A walk over rows.
pub struct RowWalk<'s> {
    store: &'s dyn Store,
    pattern: Option<&'s str>,
    /// Hashes of the visited names: at 128 bits no two are equal by chance.
    visited: HashSet<u128>,
    next: Option<Cursor>,
    begun: bool,
    names: VecDeque<Box<[u8]>>,
}

impl<'s> RowWalk<'s> {
    /// A walk over all rows, or over those with names that match a glob.
    pub fn new(store: &'s dyn Store, pattern: Option<&'s str>) -> RowWalk<'s> {
        RowWalk { store, pattern, visited: HashSet::new(), next: None, begun: false, names: VecDeque::new() }
    }

    /// A walk over the rows of another store that this walk has not visited.
    pub fn unvisited_in(self, store: &'s dyn Store) -> RowWalk<'s> {
        RowWalk { visited: self.visited, ..RowWalk::new(store, self.pattern) }
    }

    /// The next page; `None` after the last.
    pub fn next_page(&mut self) -> anyhow::Result<Option<Vec<NamedRow>>> {
        while self.names.is_empty() {
            if self.begun && self.next.is_none() {
                return Ok(None);
            }
            let scan = || self.store.scan(self.next.as_ref(), SCAN_NAMES_MAX);
            // Without a retry: a wrong address or password should not take half a minute.
            let page =
                if self.begun { call_with_retry(scan) } else { block_on(scan()) }.context("list the counters")?;
            (self.begun, self.next) = (true, page.next);
            let matcher = self.pattern.map(|pattern| Pattern(pattern.as_bytes()).matcher());
            let wanted = page.names.into_iter().filter(|name| matcher.as_ref().is_none_or(|glob| glob.matches(name)));
            self.names.extend(wanted.filter(|name| self.visited.insert(xxh3_128(name))));
        }
        let names = self.names.drain(..self.names.len().min(READS_MAX)).collect();
        read_rows(self.store, names).map(Some)
    }
}

/// Reads rows.
pub fn read_rows(store: &dyn Store, names: Vec<Box<[u8]>>) -> anyhow::Result<Vec<NamedRow>> {
    let mut rows = Vec::with_capacity(names.len());
    let mut names = names.into_iter();
    loop {
        let batch: Vec<Box<[u8]>> = names.by_ref().take(READS_MAX).collect();
        if batch.is_empty() {
            return Ok(rows);
        }
        let reads = batch.iter().map(|name| Ok(store.read(parse_name(name)?))).collect::<anyhow::Result<Vec<_>>>()?;
        let answers = block_on(join_all(reads));
        for (name, answer) in batch.into_iter().zip(answers) {
            let answer = match answer {
                Err(_) => {
                    let name = parse_name(&name)?;
                    match retry_read(store, || store.read(name)) {
                        Err(ReadFailure::NoAnswer(error)) => return Err(error),
                        Err(ReadFailure::Unreadable(error)) => Err(error),
                        Ok(row) => Ok(row),
                    }
                }
                answer => answer,
            };
            rows.push((name, answer));
        }
    }
}

/// Reads rows that must be readable.
pub fn read_all(store: &dyn Store, names: Vec<Box<[u8]>>) -> anyhow::Result<Vec<(Box<[u8]>, FetchedRow)>> {
    read_rows(store, names)?.into_iter().map(require_readable).collect()
}

/// A row that must be readable.
pub fn require_readable((name, row): NamedRow) -> anyhow::Result<(Box<[u8]>, FetchedRow)> {
    let read_row = row.with_context(|| unreadable_message(&name))?;
    Ok((name, read_row))
}

/// A row that must be readable, and the bodies beside it.
pub fn read_bodies(store: &dyn Store, name: &[u8]) -> anyhow::Result<RowWithBodies> {
    let read = parse_name(name)?;
    if let Ok(row) = block_on(store.read_bodies(read)) {
        return Ok(row);
    }
    retry_read(store, || store.read_bodies(read)).map_err(|failure| match failure {
        ReadFailure::NoAnswer(error) => error,
        ReadFailure::Unreadable(error) => anyhow!(error).context(unreadable_message(name)),
    })
}

fn unreadable_message(name: &[u8]) -> String {
    format!("read the row of {}; `quipu audit --store` lists what is damaged", crate::terminal::format_name(name))
}

/// Reason why a repeated read has failed.
enum ReadFailure {
    /// The store does not answer.
    NoAnswer(anyhow::Error),
    /// The store answers, but this row is unreadable.
    Unreadable(StoreError),
}

/// Reads an unreadable row again. A store that returns the time is up, so then the row is the
/// cause.
fn retry_read<'a, T>(store: &'a dyn Store, read: impl Fn() -> StoreFuture<'a, T>) -> Result<T, ReadFailure> {
    let mut tries = 0;
    loop {
        let up = call_with_retry(|| store.clock()).context("the store does not answer");
        up.map_err(ReadFailure::NoAnswer)?;
        tries += 1;
        match block_on(read()) {
            Err(_) if tries < TRIES => {}
            answer => return answer.map_err(ReadFailure::Unreadable),
        }
    }
}

/// Parses a name that a Quipu store returned.
fn parse_name(bytes: &[u8]) -> anyhow::Result<Name<'_>> {
    Name::new(bytes).map_err(|error| anyhow!("the store names a counter that cannot be one: {error}"))
}

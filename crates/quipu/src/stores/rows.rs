//! Walks over all rows of a store.
//!
//! In: a store. Out: rows with their names, each once, as they were when they were read.
//!
//! Invariants:
//! - a row that is there all the while is met, however often the store names it: once;
//! - a row that cannot be read is told apart from a store that does not answer.

use std::collections::{HashSet, VecDeque};

use anyhow::{Context, anyhow};
use futures_util::future::join_all;
use quipu_model::shared::{Seen, SeenBodies};
use quipu_model::{Answer, Cursor, Name, Pattern, SCAN_NAMES_MAX, Store, StoreError};
use xxhash_rust::xxh3::xxh3_128;

use crate::stores::ask::{patiently, wait};

/// Rows that are read at the same time: enough to hide the way to the store and back, few enough that none waits for a connection for long.
const READS_MAX: usize = 256;

/// How often a row that cannot be read is tried, of a store that answers.
const TRIES: usize = 3;

/// A row, or why it cannot be read.
pub type Row = (Box<[u8]>, Result<Seen, StoreError>);

/// A walk.
pub struct Rows<'s> {
    store: &'s dyn Store,
    pattern: Option<&'s str>,
    /// Hashes of the names met: 128 bits, of which no two come to the same by chance.
    met: HashSet<u128>,
    next: Option<Cursor>,
    begun: bool,
    names: VecDeque<Box<[u8]>>,
}

impl<'s> Rows<'s> {
    /// Over all rows, or over those whose names match a glob.
    pub fn new(store: &'s dyn Store, pattern: Option<&'s str>) -> Rows<'s> {
        Rows { store, pattern, met: HashSet::new(), next: None, begun: false, names: VecDeque::new() }
    }

    /// Over those rows of another store whose names this walk has not met.
    pub fn others(self, store: &'s dyn Store) -> Rows<'s> {
        Rows { met: self.met, ..Rows::new(store, self.pattern) }
    }

    /// Some more of them; none after the last.
    pub fn page(&mut self) -> anyhow::Result<Option<Vec<Row>>> {
        while self.names.is_empty() {
            if self.begun && self.next.is_none() {
                return Ok(None);
            }
            let scan = || self.store.scan(self.next.as_ref(), SCAN_NAMES_MAX);
            // The first call is not repeated: a wrong address or password should not take half a minute.
            let page = if self.begun { patiently(scan) } else { wait(scan()) }.context("list the counters")?;
            (self.begun, self.next) = (true, page.next);
            let matcher = self.pattern.map(|pattern| Pattern(pattern.as_bytes()).matcher());
            let wanted = page.names.into_iter().filter(|name| matcher.as_ref().is_none_or(|glob| glob.matches(name)));
            self.names.extend(wanted.filter(|name| self.met.insert(xxh3_128(name))));
        }
        let names = self.names.drain(..self.names.len().min(READS_MAX)).collect();
        read(self.store, names).map(Some)
    }
}

/// Reads rows.
pub fn read(store: &dyn Store, names: Vec<Box<[u8]>>) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::with_capacity(names.len());
    let mut names = names.into_iter();
    loop {
        let some: Vec<Box<[u8]>> = names.by_ref().take(READS_MAX).collect();
        if some.is_empty() {
            return Ok(rows);
        }
        let asked = some.iter().map(|name| Ok(store.read(named(name)?))).collect::<anyhow::Result<Vec<_>>>()?;
        let answers = wait(join_all(asked));
        for (name, answer) in some.into_iter().zip(answers) {
            let answer = match answer {
                Err(_) => {
                    let name = named(&name)?;
                    read_again(store, || store.read(name))?
                }
                answer => answer,
            };
            rows.push((name, answer));
        }
    }
}

/// Reads rows that must be readable.
pub fn read_all(store: &dyn Store, names: Vec<Box<[u8]>>) -> anyhow::Result<Vec<(Box<[u8]>, Seen)>> {
    read(store, names)?.into_iter().map(sound).collect()
}

/// A row that must be readable.
pub fn sound((name, row): Row) -> anyhow::Result<(Box<[u8]>, Seen)> {
    let seen = row.with_context(|| unreadable(&name))?;
    Ok((name, seen))
}

/// A row that must be readable, and the bodies beside it.
pub fn read_bodies(store: &dyn Store, name: &[u8]) -> anyhow::Result<SeenBodies> {
    let read = named(name)?;
    let answer = match wait(store.read_bodies(read)) {
        Err(_) => read_again(store, || store.read_bodies(read))?,
        answer => answer,
    };
    answer.with_context(|| unreadable(name))
}

fn unreadable(name: &[u8]) -> String {
    format!("read the row of {}; `quipu audit --store` lists what is damaged", crate::show::name(name))
}

/// Whether it is the row or the store: one that tells the time is there.
fn read_again<'a, T>(store: &'a dyn Store, read: impl Fn() -> Answer<'a, T>) -> anyhow::Result<Result<T, StoreError>> {
    let mut tries = 0;
    loop {
        patiently(|| store.clock()).context("the store does not answer")?;
        tries += 1;
        match wait(read()) {
            Err(_) if tries < TRIES => {}
            answer => return Ok(answer),
        }
    }
}

/// A name that a store of ours gave us.
fn named(bytes: &[u8]) -> anyhow::Result<Name<'_>> {
    Name::new(bytes).map_err(|error| anyhow!("the store names a counter that cannot be one: {error}"))
}

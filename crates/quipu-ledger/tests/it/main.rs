//! Tests the ledger through its public API: a model, crashes, full and damaged disks.
//!
//! Lines that begin with `proof:` count the tried cases; `cargo xtask test` gathers them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod copy;
mod damage;
mod full;
mod kill;
mod life;
mod model;
mod notes;
mod read_only;

use std::collections::BTreeMap;
use std::path::Path;

use quipu_ledger::{Ledger, LedgerError, LedgerOptions};
use quipu_model::{Cell, Epoch, Millis, NodeId};
use quipu_testkit::SeededRng;
use xxhash_rust::xxh3::xxh3_64;

/// What should be at rest.
type Model = BTreeMap<(u64, Vec<u8>), Cell>;

/// Cells of a batch, sorted.
type Batch = BTreeMap<(u64, Vec<u8>), Option<Cell>>;

fn open(dir: &Path) -> Result<Ledger, LedgerError> {
    Ledger::open(dir, LedgerOptions { cache_bytes: 1 << 20 })
}

fn ingest(ledger: &Ledger, batch: &Batch, watermark: &[u8]) -> Result<(), LedgerError> {
    let cells = batch.iter().map(|((hash, name), cell)| (*hash, &name[..], *cell));
    ledger.ingest(cells, watermark).map(|_| ())
}

fn apply(model: &mut Model, batch: &Batch) {
    for (key, cell) in batch {
        match cell {
            Some(cell) => model.insert(key.clone(), *cell),
            None => model.remove(key),
        };
    }
}

/// A key, with a hash so poor that names collide: the name must decide.
fn key(number: usize) -> (u64, Vec<u8>) {
    let name = format!("n:{number}").into_bytes();
    (xxh3_64(&name) >> 60 << 60, name)
}

fn cell(rng: &SeededRng) -> Cell {
    let epoch = if rng.chance(50) {
        Epoch::FIRST
    } else {
        Epoch { millis: rng.next_u64() >> 20, node: NodeId(rng.next_u64()) }
    };
    let expires_at = rng.chance(30).then(|| Millis(rng.next_u64() >> 20));
    Cell { epoch, value: rng.next_u64() as i64 >> rng.below(64), expires_at }
}

/// A batch of up to so many of the first `names` names, a quarter of them tombstones.
fn batch(rng: &SeededRng, size: usize, names: usize) -> Batch {
    let pick = |_| (key(rng.below(names)), (!rng.chance(25)).then(|| cell(rng)));
    (0..size).map(pick).collect()
}

/// Everything at rest, by range and by name.
fn read_all(ledger: &Ledger) -> Result<Model, LedgerError> {
    let cells = ledger.range(0).map(|item| item.map(|(hash, name, cell)| ((hash, name.into_vec()), cell)));
    let cells = cells.collect::<Result<Model, _>>()?;
    for ((hash, name), cell) in &cells {
        assert_eq!(ledger.get(*hash, name)?, Some(*cell), "{}", name.escape_ascii());
    }
    Ok(cells)
}

fn compact_all(ledger: &Ledger) -> Result<(), LedgerError> {
    while ledger.compact()?.more {}
    Ok(())
}

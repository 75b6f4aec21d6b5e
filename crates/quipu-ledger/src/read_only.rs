//! Reads a ledger that no process uses, and changes nothing, not even the leftovers of a crash.
//!
//! In: a directory. Out: a cell by name, all cells in order, and the watermark, equal to those of
//! an opened ledger; a copy.
//!
//! The tree removes leftovers when it opens, so this module opens its tables one by one instead. Of
//! all versions of a key the newest counts, in any table. For few keys this is slower than the
//! tree's own lookup; for a full scan (`merge`) it is equal.

use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_tree::{Cache, Checksum, DescriptorTable, InternalValue, Slice, Table, UserKey};
use quipu_model::Cell;

use crate::copy::{Tables, copy};
use crate::ledger::{FORMAT_FILE, LedgerStats, generation_path, generations, read_format};
use crate::manifest::{self, Manifest};
use crate::merge::Merge;
use crate::record::{self, AUX, CELL, OWN, RecordError, WATERMARK};
use crate::{LedgerError, archive, error, verify};

/// Bytes of blocks kept in memory: enough for the index of the tables read.
const CACHE_BYTES: u64 = 8 << 20;

/// Most table files held open.
const DESCRIPTORS_MAX: usize = 64;

/// A ledger opened read-only.
pub struct ReadOnlyLedger {
    /// `None`: nothing is at rest yet.
    generation: Option<ReadOnlyGeneration>,
}

struct ReadOnlyGeneration {
    dir: PathBuf,
    number: u64,
    manifest: Manifest,
    tables: Vec<Table>,
}

impl ReadOnlyLedger {
    /// Opens a directory; an absent or empty one holds nothing, like a new ledger.
    pub fn open(dir: &Path) -> Result<ReadOnlyLedger, LedgerError> {
        if !dir.exists() {
            return Ok(ReadOnlyLedger { generation: None });
        }
        let formatted = read_format(dir)?;
        let Some(number) = generations(dir)?.pop() else {
            return match formatted {
                true => Err(LedgerError::damaged(&generation_path(dir, 1), "it is missing")),
                false => Ok(ReadOnlyLedger { generation: None }),
            };
        };
        let ledger =
            ReadOnlyLedger { generation: Some(ReadOnlyGeneration::open(generation_path(dir, number), number)?) };
        match formatted {
            true => Ok(ledger),
            false if ledger.watermark()?.is_some() => {
                Err(LedgerError::damaged(&dir.join(FORMAT_FILE), "it is missing"))
            }
            false => Ok(ReadOnlyLedger { generation: None }),
        }
    }

    /// Returns the watermark of the newest batch; none before the first batch.
    pub fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        Ok(self.newest(WATERMARK)?.map(|value| value.to_vec()))
    }

    /// Returns the cell of a counter, if at rest.
    pub fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        let mut key = Vec::new();
        record::cell_key(&mut key, hash, name);
        let (Some(generation), Some(value)) = (&self.generation, self.newest(&key)?) else { return Ok(None) };
        let cell = record::decode_cell(&value);
        cell.map(Some).map_err(|error| LedgerError::damaged(&generation.dir, error.to_string()))
    }

    /// Returns this node's own cells of a counter on a shared store.
    pub fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        let mut key = Vec::new();
        record::own_key(&mut key, hash, name);
        Ok(self.newest(&key)?.map(|value| Box::from(&*value)))
    }

    /// Visits all cells from a hash on, by hash, then name; a break ends the visit.
    pub fn range(
        &self,
        from_hash: u64,
        mut visit: impl FnMut(u64, &[u8], Cell) -> ControlFlow<()>,
    ) -> Result<(), LedgerError> {
        let mut from = Vec::new();
        record::cell_key(&mut from, from_hash, b"");
        self.walk(&from, &[CELL + 1], |key, value| {
            let (hash, name) = record::decode_key(key)?;
            Ok(visit(hash, name, record::decode_cell(value)?))
        })
    }

    /// Visits this node's own cells of counters on a shared store, likewise.
    pub fn range_own_cells(
        &self,
        from_hash: u64,
        mut visit: impl FnMut(u64, &[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), LedgerError> {
        let mut from = Vec::new();
        record::own_key(&mut from, from_hash, b"");
        self.walk(&from, &[OWN + 1], |key, value| {
            let (hash, name) = record::decode_key(key)?;
            Ok(visit(hash, name, value))
        })
    }

    /// Visits all auxiliary records by key; a break ends the visit.
    pub fn aux_records(&self, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), LedgerError> {
        self.walk(&[AUX], &[AUX + 1], |key, value| Ok(visit(&key[1..], value)))
    }

    /// Returns the size of the ledger on disk.
    pub fn stats(&self) -> LedgerStats {
        let (mut stats, none) = (LedgerStats::default(), Vec::new());
        let tables = self.generation.as_ref().map_or(&none, |generation| &generation.tables);
        for table in tables {
            stats.tables += 1;
            stats.cells += table.metadata.item_count;
            stats.tombstones += table.tombstone_count();
            stats.disk_bytes += table.path.metadata().map_or(0, |metadata| metadata.len());
        }
        stats.runs = self.generation.as_ref().map_or(0, |generation| generation.manifest.runs);
        stats
    }

    /// Writes a copy to an empty or absent directory. It calls `progress` with the bytes of every
    /// piece; a break ends the copy. The copy shares no files.
    pub fn copy_to(&self, dir: &Path, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<(), LedgerError> {
        match &self.generation {
            Some(ReadOnlyGeneration { dir: from, number, manifest, .. }) => {
                copy(from, manifest, *number, dir, Tables::Copied, &mut progress)
            }
            None => Ok(()),
        }
    }

    fn walk(
        &self,
        from: &[u8],
        end: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, RecordError>,
    ) -> Result<(), LedgerError> {
        let Some(generation) = &self.generation else { return Ok(()) };
        for record in Merge::new(&generation.tables, from, end) {
            let (key, value) = record.map_err(|(error, table)| generation.read_error(error, table))?;
            let flow = visit(&key, &value).map_err(|error| LedgerError::damaged(&generation.dir, error.to_string()))?;
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn newest(&self, key: &[u8]) -> Result<Option<Slice>, LedgerError> {
        let Some(generation) = &self.generation else { return Ok(None) };
        let mut newest: Option<InternalValue> = None;
        for table in generation.tables.iter().filter(|table| table.metadata.key_range.contains_key(key)) {
            let bound = UserKey::from(key);
            for item in table.range((Bound::Included(bound.clone()), Bound::Included(bound))) {
                let item = item.map_err(|error| generation.read_error(error, table))?;
                if newest.as_ref().is_none_or(|newest| newest.key.seqno < item.key.seqno) {
                    newest = Some(item);
                }
            }
        }
        Ok(newest.filter(|item| !item.is_tombstone()).map(|item| item.value))
    }
}

impl ReadOnlyGeneration {
    fn open(dir: PathBuf, number: u64) -> Result<ReadOnlyGeneration, LedgerError> {
        let manifest = Manifest::read(&dir)?;
        let cache = Arc::new(Cache::with_capacity_bytes(CACHE_BYTES));
        let descriptors = Arc::new(DescriptorTable::new(DESCRIPTORS_MAX));
        let mut tables = Vec::with_capacity(manifest.tables.len());
        for entry in &manifest.tables {
            let path = manifest::table_path(&dir, entry.id);
            archive::check_at_open(&path)?;
            let (checksum, files) = (Checksum::from_raw(entry.checksum), Some(Arc::clone(&descriptors)));
            let table = Table::recover(path, checksum, entry.seqno, 0, Arc::clone(&cache), files, false, false)
                .map_err(|error| LedgerError::tree("open", &dir, error))?;
            if table.id() != entry.id {
                return Err(LedgerError::damaged(&table.path, format!("it holds table {}", table.id())));
            }
            tables.push(table);
        }
        Ok(ReadOnlyGeneration { dir, number, manifest, tables })
    }

    /// Finds the damaged file behind a table's read error.
    fn read_error(&self, error: lsm_tree::Error, table: &Table) -> LedgerError {
        if error::is_damage(&error)
            && let Err(damage) = verify::check_table(&table.path, table.checksum().into_u128(), &mut |_| ())
        {
            return damage;
        }
        LedgerError::tree("read", &self.dir, error)
    }
}

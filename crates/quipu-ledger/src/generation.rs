//! Keeps one tree in one directory: all ingested cells since the ledger was created, or last
//! cleared.
//!
//! Invariants:
//! - only ingestion and compaction write to it, one at a time (`Ledger` holds the lock), so the
//!   memtable is always empty;
//! - a failed write leaves no file that the current version does not name;
//! - a replaced generation removes its directory when its last reader is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy,
    RestartIntervalPolicy,
};
use lsm_tree::{AbstractTree, AnyTree, Cache, Config, DescriptorTable, SeqNo, SequenceNumberCounter};
use quipu_model::Cell;

use crate::error::is_damage;
use crate::manifest::{self, Manifest};
use crate::record::{self, WATERMARK};
use crate::{LedgerError, archive, verify};

/// Bytes of cells in a block, the unit of a disk read. A cell takes about 30 bytes, so a block
/// holds a hundred.
const BLOCK_BYTES: u32 = 4096;

/// Cells between two whole keys inside a block; the others omit the prefix shared with their
/// neighbour. Hashes share short prefixes, so few are enough.
const RESTART_INTERVAL: u8 = 8;

/// Filter bits per cell: one in a hundred lookups of an absent name reads the disk.
const FILTER_BITS: f32 = 10.0;

/// Most table files held open. They count against the process's descriptor limit, often 1024; most
/// descriptors are for connections.
const DESCRIPTORS_MAX: usize = 128;

/// Sequence number for reads: everything ingested is visible.
const NEWEST: SeqNo = SeqNo::MAX;

/// A tree and its directory.
pub struct Generation {
    pub number: u64,
    pub dir: PathBuf,
    pub tree: AnyTree,
    /// Sequence number of the next ingestion or compaction.
    seqno: SequenceNumberCounter,
    /// Set once another generation has replaced this one.
    replaced: AtomicBool,
}

/// Size of an ingestion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestStats {
    /// Cells and tombstones.
    pub cells: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

impl Generation {
    /// Creates an empty tree in a directory that does not exist yet.
    pub fn create(dir: PathBuf, number: u64, cache: Arc<Cache>) -> Result<Generation, LedgerError> {
        Generation::open_tree(dir, number, cache)
    }

    /// Opens the tree in a directory, after checking all data that the tree would trust.
    pub fn open(dir: PathBuf, number: u64, cache: Arc<Cache>) -> Result<Generation, LedgerError> {
        let manifest = Manifest::read(&dir)?;
        for table in &manifest.tables {
            archive::check_at_open(&manifest::table_path(&dir, table.id))?;
        }
        remove_leftovers(&dir)?;
        let generation = Generation::open_tree(dir, number, cache)?;
        // The tree places a table by its file name and reads the rest from its contents: both must
        // match.
        for table in generation.tree.current_version().iter_tables() {
            if table.path.file_name() != Some(table.id().to_string().as_ref()) {
                return Err(LedgerError::damaged(&table.path, format!("it holds table {}", table.id())));
            }
        }
        Ok(generation)
    }

    fn open_tree(dir: PathBuf, number: u64, cache: Arc<Cache>) -> Result<Generation, LedgerError> {
        let (seqno, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(FILTER_BITS));
        let tree = Config::new(&dir, seqno.clone(), visible.clone())
            .use_cache(cache)
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(DESCRIPTORS_MAX))))
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
            .data_block_restart_interval_policy(RestartIntervalPolicy::all(RESTART_INTERVAL))
            .filter_policy(FilterPolicy::all(filter))
            // The tree reads index and filter of a table in pieces through the cache. So the cache
            // bounds the ledger's memory for any number of counters; only the list of the pieces
            // stays in memory.
            .index_block_partitioning_policy(PartitioningPolicy::all(true))
            .filter_block_partitioning_policy(PartitioningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(false))
            .filter_block_pinning_policy(PinningPolicy::all(false))
            .open()
            .map_err(|error| LedgerError::tree("open", &dir, error))?;
        let next = tree.get_highest_persisted_seqno().map_or(0, |seqno| seqno + 1);
        seqno.set(next);
        visible.set(next);
        Ok(Generation { number, dir, tree, seqno, replaced: AtomicBool::new(false) })
    }

    /// Writes sorted cells and the watermark as one unit.
    pub fn ingest<'b, N: AsRef<[u8]>>(
        &self,
        cells: impl IntoIterator<Item = (u64, N, Option<Cell>)>,
        own: impl IntoIterator<Item = (u64, N, &'b [u8])>,
        aux_records: impl IntoIterator<Item = (&'b [u8], Option<&'b [u8]>)>,
        watermark: &[u8],
    ) -> Result<IngestStats, LedgerError> {
        let first_new = self.tree.next_table_id();
        let written = self
            .write(cells, own, aux_records, watermark)
            .map_err(|error| LedgerError::tree("write to", &self.dir, error));
        match written {
            Ok(cells) => Ok(IngestStats { cells, bytes: self.bytes_since(first_new) }),
            Err(error) => {
                self.remove_unnamed_since(first_new);
                Err(error)
            }
        }
    }

    fn write<'b, N: AsRef<[u8]>>(
        &self,
        cells: impl IntoIterator<Item = (u64, N, Option<Cell>)>,
        own: impl IntoIterator<Item = (u64, N, &'b [u8])>,
        aux_records: impl IntoIterator<Item = (&'b [u8], Option<&'b [u8]>)>,
        watermark: &[u8],
    ) -> lsm_tree::Result<u64> {
        let mut ingestion = self.tree.ingestion()?;
        let (mut key, mut before, mut value) = (Vec::new(), Vec::new(), Vec::new());
        let mut count = 0;
        for (hash, name, cell) in cells {
            record::cell_key(&mut key, hash, name.as_ref());
            assert!(before < key, "cells are sealed in order, each name once");
            match cell {
                Some(cell) => {
                    record::encode_cell(&mut value, &cell);
                    ingestion.write(&key[..], &value[..])?;
                }
                // Never a weak tombstone: it hides only one older value, and there may be several.
                None => ingestion.write_tombstone(&key[..])?,
            }
            count += 1;
            std::mem::swap(&mut key, &mut before);
        }
        for (hash, name, own) in own {
            record::own_key(&mut key, hash, name.as_ref());
            assert!(before < key, "what a node says is sealed in order, each name once");
            match own {
                [] => ingestion.write_tombstone(&key[..])?,
                own => ingestion.write(&key[..], own)?,
            }
            std::mem::swap(&mut key, &mut before);
        }
        for (aux_key, value) in aux_records {
            record::aux_record_key(&mut key, aux_key);
            assert!(before < key, "notes are sealed in order, each once");
            match value {
                Some(value) => ingestion.write(&key[..], value)?,
                None => ingestion.write_tombstone(&key[..])?,
            }
            std::mem::swap(&mut key, &mut before);
        }
        ingestion.write(WATERMARK, watermark)?;
        ingestion.finish()?;
        Ok(count)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<lsm_tree::UserValue>, LedgerError> {
        self.tree.get(key, NEWEST).map_err(|error| self.read_error(error, Some(key)))
    }

    /// Returns all keys from `key` up to, not including, `end`.
    pub fn range(&self, key: &[u8], end: &[u8]) -> Box<dyn DoubleEndedIterator<Item = lsm_tree::IterGuardImpl> + Send> {
        self.tree.range(key..end, NEWEST, None)
    }

    /// Finds the damaged file behind a read error of the tree: it reads the tables that may hold
    /// `key`, or all. Slow, but damage is rare.
    pub fn read_error(&self, error: lsm_tree::Error, key: Option<&[u8]>) -> LedgerError {
        if is_damage(&error) {
            let version = self.tree.current_version();
            for table in version.iter_tables() {
                if key.is_some_and(|key| !table.metadata.key_range.contains_key(key)) {
                    continue;
                }
                if let Err(damage) = verify::check_table(&table.path, table.checksum().into_u128(), &mut |_| ()) {
                    return damage;
                }
            }
        }
        LedgerError::tree("read", &self.dir, error)
    }

    /// Returns the sequence number below which compaction may drop all but the newest versions, of
    /// a cell and of the tree. It is one above the number of the compaction about to begin. Readers
    /// pin their tables, so this number need not protect them. One less would keep the space of the
    /// merged tables until the next merge.
    pub fn collectable(&self) -> SeqNo {
        self.seqno.get() + 1
    }

    /// Removes the tables of a failed write. Tables of older versions stay: their readers remove
    /// them.
    pub fn remove_unnamed_since(&self, first_new: u64) {
        let version = self.tree.current_version();
        for id in first_new..self.tree.next_table_id() {
            if !version.iter_tables().any(|table| table.id() == id) {
                // The next open removes a file that cannot be removed now.
                let _ = fs::remove_file(manifest::table_path(&self.dir, id));
            }
        }
    }

    /// Bytes on disk of the tables created since a write began.
    pub fn bytes_since(&self, first_new: u64) -> u64 {
        let version = self.tree.current_version();
        version.iter_tables().filter(|table| table.id() >= first_new).map(|table| bytes_of(&table.path)).sum()
    }

    /// Bytes on disk of all tables.
    pub fn bytes(&self) -> u64 {
        self.bytes_since(0)
    }

    /// Bytes on disk of the ingestions not yet merged.
    pub fn bytes_waiting(&self) -> u64 {
        let version = self.tree.current_version();
        version.l0().iter().flat_map(|run| run.iter()).map(|table| bytes_of(&table.path)).sum()
    }

    /// Reserves all table numbers of `other`, an earlier opening of the same directory. The last
    /// reader of a table of `other` removes its file by that number.
    pub fn number_tables_after(&self, other: &Generation) {
        if let AnyTree::Standard(tree) = &self.tree {
            tree.table_id_counter.fetch_max(other.tree.next_table_id());
        }
    }

    /// Marks the generation as replaced by another one.
    pub fn mark_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.replaced.load(Ordering::Acquire) {
            // The next open removes a directory that cannot be removed now.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Removes temporary files of an interrupted update of `current`. The tree itself removes stale
/// tables and versions.
fn remove_leftovers(dir: &Path) -> Result<(), LedgerError> {
    let failed = |error| LedgerError::io("list", dir, error);
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with(".tmp") {
            fs::remove_file(entry.path()).map_err(|error| LedgerError::io("remove", &entry.path(), error))?;
        }
    }
    Ok(())
}

fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

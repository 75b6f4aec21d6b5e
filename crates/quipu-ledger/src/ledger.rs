//! Implements the ledger: the current generation, and the step to the next one.
//!
//! In: batches, and lookups from any thread. Out: cells.
//!
//! Invariants:
//! - one write at a time (ingestion, compaction, clear); readers never wait for one;
//! - after a failed write, memory matches the state that a restart would find. If the failure came
//!   after the disk had moved on, the ledger moves on with it.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use lsm_tree::{AbstractTree, Cache, Guard};
use quipu_model::Cell;

use crate::compact::{CompactionProgress, RUNS_DAMAGED_MAX, RUNS_MAX, compact, is_due};
use crate::copy::{Tables, copy, write_durably};
use crate::generation::{Generation, IngestStats};
use crate::manifest::Manifest;
use crate::record::{self, AUX, CELL, OWN, WATERMARK};
use crate::verify::{VerifyStats, verify};
use crate::{LedgerError, archive};

/// File with the directory's layout version.
pub(crate) const FORMAT_FILE: &str = "FORMAT";

/// Layout version that this program writes, and the newest that it reads.
const FORMAT: u64 = 1;

/// Suffix of an unfinished generation.
const UNFINISHED: &str = ".new";

/// Cells at rest. Any thread may read and write; reads continue during writes.
pub struct Ledger {
    dir: PathBuf,
    cache: Arc<Cache>,
    current: RwLock<Arc<Generation>>,
    /// Held by the writing thread; true while a compaction has begun and has work left.
    writing: Mutex<bool>,
}

/// Options of opening a ledger.
#[derive(Debug, Clone, Copy)]
pub struct LedgerOptions {
    /// Bytes of blocks kept in memory.
    pub cache_bytes: u64,
}

/// Size of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerStats {
    /// Number of tables.
    pub tables: u64,
    /// Number of ingestions not yet merged.
    pub runs: u64,
    /// Number of cells in all tables, including older versions and tombstones.
    pub cells: u64,
    /// Number of tombstones among them.
    pub tombstones: u64,
    /// Bytes of the tables.
    pub disk_bytes: u64,
    /// Bytes of indexes held in memory besides the cache.
    pub memory_bytes: u64,
    /// Bytes in the cache.
    pub cache_bytes: u64,
}

impl Ledger {
    /// Opens the ledger in a directory, or creates one. Removes the unfinished work of a crash.
    pub fn open(dir: &Path, options: LedgerOptions) -> Result<Ledger, LedgerError> {
        let cache = Arc::new(Cache::with_capacity_bytes(options.cache_bytes));
        fs::create_dir_all(dir).map_err(|error| LedgerError::io("make", dir, error))?;
        let formatted = read_format(dir)?;
        remove_unfinished(dir)?;
        let mut numbers = generations(dir)?;
        let number = match numbers.pop() {
            Some(number) => number,
            None if formatted => return Err(LedgerError::damaged(&generation_path(dir, 1), "it is missing")),
            None => {
                make_generation(dir, 1, |_| Ok(()), &cache)?;
                1
            }
        };
        let generation = Generation::open(generation_path(dir, number), number, Arc::clone(&cache))?;
        if !formatted {
            if generation.get(WATERMARK)?.is_some() {
                return Err(LedgerError::damaged(&dir.join(FORMAT_FILE), "it is missing"));
            }
            write_format(dir)?;
            // A name is durable once its directory is synced; the creator of this directory may not
            // have synced it.
            match dir.parent() {
                Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new("."))?,
                Some(parent) => sync_dir(parent)?,
                None => {}
            }
        }
        for older in numbers {
            let path = generation_path(dir, older);
            fs::remove_dir_all(&path).map_err(|error| LedgerError::io("remove", &path, error))?;
        }
        Ok(Ledger { dir: dir.into(), cache, current: RwLock::new(Arc::new(generation)), writing: Mutex::new(false) })
    }

    /// Writes one sealed batch and its watermark. After a crash both are at rest or neither is;
    /// both are durable when this returns.
    ///
    /// `cells` are sorted by hash, then name, each name once; `None` is a tombstone for a deleted
    /// counter. A tombstone for an absent name is harmless and not needed. After an error the
    /// ledger is as before, unless the watermark shows otherwise.
    ///
    /// # Panics
    /// If the cells are not sorted.
    pub fn ingest<N: AsRef<[u8]>>(
        &self,
        cells: impl IntoIterator<Item = (u64, N, Option<Cell>)>,
        watermark: &[u8],
    ) -> Result<IngestStats, LedgerError> {
        self.ingest_with(cells, std::iter::empty::<(u64, N, &[u8])>(), [], watermark)
    }

    /// As `ingest`, plus this node's own cells of counters on a shared store, sorted alike (an
    /// empty value deletes), and auxiliary records, sorted by key.
    ///
    /// # Panics
    /// If any of them is not sorted.
    pub fn ingest_with<'b, N: AsRef<[u8]>>(
        &self,
        cells: impl IntoIterator<Item = (u64, N, Option<Cell>)>,
        own: impl IntoIterator<Item = (u64, N, &'b [u8])>,
        aux_records: impl IntoIterator<Item = (&'b [u8], Option<&'b [u8]>)>,
        watermark: &[u8],
    ) -> Result<IngestStats, LedgerError> {
        let _writing = self.write();
        let mut generation = self.reload_current()?;
        while generation.tree.l0_run_count() >= RUNS_MAX {
            match compact(&generation) {
                Ok(_) => {}
                // Damage at rest prevents merging tables, not writing new ones: new cells must
                // still reach the disk.
                Err(LedgerError::Damaged { .. }) if generation.tree.l0_run_count() < RUNS_DAMAGED_MAX => break,
                Err(error) => {
                    self.try_reload_current();
                    return Err(error);
                }
            }
            generation = self.generation();
        }
        generation.ingest(cells, own, aux_records, watermark).inspect_err(|_| self.try_reload_current())
    }

    /// Returns the watermark of the newest batch; none before the first batch.
    pub fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        Ok(self.generation().get(WATERMARK)?.map(|value| value.to_vec()))
    }

    /// Returns the cell of a counter, if at rest.
    pub fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        let generation = self.generation();
        let mut key = Vec::with_capacity(16 + name.len());
        record::cell_key(&mut key, hash, name);
        let Some(value) = generation.get(&key)? else {
            return Ok(None);
        };
        let cell = record::decode_cell(&value);
        cell.map(Some).map_err(|error| LedgerError::damaged(&generation.dir, error.to_string()))
    }

    /// Iterates over the current cells from a hash on, by hash, then name; later writes are not
    /// visible.
    pub fn range(&self, from_hash: u64) -> Cells {
        let generation = self.generation();
        let mut from = Vec::new();
        record::cell_key(&mut from, from_hash, b"");
        let items = generation.range(&from, &[CELL + 1]);
        Cells { items, generation }
    }

    /// Returns this node's own cells of a counter on a shared store.
    pub fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        let mut key = Vec::with_capacity(16 + name.len());
        record::own_key(&mut key, hash, name);
        Ok(self.generation().get(&key)?.map(|value| Box::from(&*value)))
    }

    /// Visits the current own cells from a hash on, by hash, then name; a break ends the visit.
    pub fn range_own_cells(
        &self,
        from_hash: u64,
        mut visit: impl FnMut(u64, &[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), LedgerError> {
        let generation = self.generation();
        let mut from = Vec::new();
        record::own_key(&mut from, from_hash, b"");
        for item in generation.range(&from, &[OWN + 1]) {
            let (key, value) = item.into_inner().map_err(|error| generation.read_error(error, None))?;
            let (hash, name) =
                record::decode_key(&key).map_err(|error| LedgerError::damaged(&generation.dir, error.to_string()))?;
            if visit(hash, name, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Visits all current auxiliary records by key; a break ends the visit.
    pub fn aux_records(&self, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), LedgerError> {
        let generation = self.generation();
        for item in generation.range(&[AUX], &[AUX + 1]) {
            let (key, value) = item.into_inner().map_err(|error| generation.read_error(error, None))?;
            if visit(&key[1..], &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Removes all counters and sets the watermark, atomically across a crash. It writes no
    /// tombstones: the cells stay in the old generation, whose files go with its last reader.
    pub fn clear(&self, watermark: &[u8]) -> Result<(), LedgerError> {
        self.clear_with([], watermark)
    }

    /// As `clear`, plus auxiliary records of the new generation, sorted by key.
    ///
    /// # Panics
    /// If they are not sorted.
    pub fn clear_with<'b>(
        &self,
        aux_records: impl IntoIterator<Item = (&'b [u8], Option<&'b [u8]>)>,
        watermark: &[u8],
    ) -> Result<(), LedgerError> {
        let mut unfinished = self.write();
        let number = self.reload_current()?.number + 1;
        let generation =
            |generation: &Generation| generation.ingest::<&[u8]>([], [], aux_records, watermark).map(|_| ());
        make_generation(&self.dir, number, generation, &self.cache).inspect_err(|_| self.try_reload_current())?;
        *unfinished = false;
        // The new generation is current on disk: load it.
        self.reload_current().map(|_| ())
    }

    /// Runs one bounded piece of compaction, which also drops older versions and tombstones.
    pub fn compact(&self) -> Result<CompactionProgress, LedgerError> {
        let mut unfinished = self.write();
        let generation = self.reload_current()?;
        if !*unfinished && !is_due(&generation) {
            return Ok(CompactionProgress { more: false, bytes_written: 0 });
        }
        let compacted = compact(&generation).inspect_err(|_| self.try_reload_current())?;
        *unfinished = compacted.more;
        Ok(compacted)
    }

    /// Returns the size of the ledger.
    pub fn stats(&self) -> LedgerStats {
        let generation = self.generation();
        let tree = &generation.tree;
        LedgerStats {
            tables: tree.table_count() as u64,
            runs: tree.l0_run_count() as u64,
            cells: tree.approximate_len() as u64,
            tombstones: tree.tombstone_count(),
            disk_bytes: generation.bytes(),
            memory_bytes: (tree.pinned_filter_size() + tree.pinned_block_index_size()) as u64,
            cache_bytes: self.cache.size(),
        }
    }

    /// Reads every byte at rest in a directory and compares it with its checksum; `progress` gets
    /// the bytes done and to do. Changes nothing, and may run while the ledger is in use.
    pub fn verify(dir: &Path, progress: impl FnMut(u64, u64)) -> Result<VerifyStats, LedgerError> {
        if !read_format(dir)? {
            return Err(LedgerError::damaged(&dir.join(FORMAT_FILE), "it is missing"));
        }
        verify(dir, progress)
    }

    /// Writes a consistent copy to an empty or absent directory, while the ledger is in use.
    ///
    /// It calls `progress` with the bytes of every piece; a break ends the copy. Within one file
    /// system the copy shares the tables, since they never change.
    pub fn copy_to(&self, dir: &Path, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<(), LedgerError> {
        let (generation, manifest, _pinned) = {
            let _writing = self.write();
            let generation = self.reload_current()?;
            // A pinned version keeps its tables, regardless of compaction.
            let pinned = generation.tree.current_version();
            let manifest = Manifest::read(&generation.dir)?;
            (generation, manifest, pinned)
        };
        copy(&generation.dir, &manifest, generation.number, dir, Tables::Linked, &mut progress)
    }

    fn write(&self) -> MutexGuard<'_, bool> {
        // Each write rereads the guarded state from disk, so a panicked writer has spoilt nothing.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the generation that a restart would find, reloading it if memory differs. They
    /// differ if a write failed in its last step, the sync after a rename. Without the reload, the
    /// next write would overwrite the version that is current on disk.
    fn reload_current(&self) -> Result<Arc<Generation>, LedgerError> {
        let current = self.generation();
        let number = newest_generation(&self.dir)?;
        let dir = generation_path(&self.dir, number);
        if number == current.number && Manifest::read_version(&dir)? == current.tree.current_version().id() {
            return Ok(current);
        }
        sync_dir(&dir)?;
        sync_dir(&self.dir)?;
        let next = Generation::open(dir, number, Arc::clone(&self.cache))?;
        if number == current.number {
            next.number_tables_after(&current);
        } else {
            current.mark_replaced();
        }
        let next = Arc::new(next);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&next);
        Ok(next)
    }

    /// Reloads after a failure. If that fails too, the next write tries again and reports the
    /// error.
    fn try_reload_current(&self) {
        let _ = self.reload_current();
    }
}

/// Cells in key order, as of the start of the iteration.
pub struct Cells {
    // Declared before the generation because it reads its files: fields are dropped in order.
    items: Box<dyn DoubleEndedIterator<Item = lsm_tree::IterGuardImpl> + Send>,
    generation: Arc<Generation>,
}

impl Iterator for Cells {
    type Item = Result<(u64, Box<[u8]>, Cell), LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.items.next()?.into_inner() {
            Ok((key, value)) => record::decode_key(&key)
                .and_then(|(hash, name)| Ok((hash, name.into(), record::decode_cell(&value)?)))
                .map_err(|error| LedgerError::damaged(&self.generation.dir, error.to_string())),
            Err(error) => Err(self.generation.read_error(error, None)),
        })
    }
}

/// Directory of a generation.
pub(crate) fn generation_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("g{number:06}"))
}

/// Number of the current generation on disk.
pub(crate) fn newest_generation(dir: &Path) -> Result<u64, LedgerError> {
    generations(dir)?.pop().ok_or_else(|| LedgerError::damaged(&generation_path(dir, 1), "it is missing"))
}

/// Makes the created, renamed and removed entries of a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), LedgerError> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| LedgerError::io("sync", dir, error))
}

/// Writes the layout version durably: from then on the directory is a ledger.
pub(crate) fn write_format(dir: &Path) -> Result<(), LedgerError> {
    let (path, unfinished) = (dir.join(FORMAT_FILE), dir.join(format!("{FORMAT_FILE}{UNFINISHED}")));
    write_durably(&unfinished, format!("quipu-ledger {FORMAT}\n").as_bytes())?;
    fs::rename(&unfinished, &path).map_err(|error| LedgerError::io("rename", &unfinished, error))?;
    sync_dir(dir)
}

/// Returns true if the directory is a ledger of a known layout.
pub(crate) fn read_format(dir: &Path) -> Result<bool, LedgerError> {
    let path = dir.join(FORMAT_FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if archive::is_absent(&error) => return Ok(false),
        Err(error) => return Err(LedgerError::io("read", &path, error)),
    };
    let format = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.strip_prefix("quipu-ledger ")?.strip_suffix('\n')?.parse::<u64>().ok())
        .ok_or_else(|| LedgerError::damaged(&path, "it does not say `quipu-ledger` and a number"))?;
    match format {
        FORMAT => Ok(true),
        format if format > FORMAT => Err(LedgerError::Newer { file: path, format, known: FORMAT }),
        _ => Err(LedgerError::damaged(&path, "there never was such a format")),
    }
}

/// Numbers of the generations in a directory, ascending.
pub(crate) fn generations(dir: &Path) -> Result<Vec<u64>, LedgerError> {
    let mut numbers: Vec<u64> =
        list(dir)?.iter().filter_map(|name| name.strip_prefix('g').and_then(|digits| digits.parse().ok())).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Creates a generation beside the others, fills it, and makes it current by renaming it.
fn make_generation(
    dir: &Path,
    number: u64,
    fill: impl FnOnce(&Generation) -> Result<(), LedgerError>,
    cache: &Arc<Cache>,
) -> Result<(), LedgerError> {
    remove_unfinished(dir)?;
    let path = generation_path(dir, number);
    let unfinished = path.with_extension(&UNFINISHED[1..]);
    let made = Generation::create(unfinished.clone(), number, Arc::clone(cache)).and_then(|made| fill(&made));
    if let Err(error) = made {
        let _ = remove_unfinished(dir);
        return Err(error);
    }
    fs::rename(&unfinished, &path).map_err(|error| LedgerError::io("rename", &unfinished, error))?;
    sync_dir(dir)
}

/// Removes unfinished generations and files of an ended process.
fn remove_unfinished(dir: &Path) -> Result<(), LedgerError> {
    for name in list(dir)?.iter().filter(|name| name.ends_with(UNFINISHED)) {
        let path = dir.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(|error| LedgerError::io("remove", &path, error))?;
    }
    Ok(())
}

fn list(dir: &Path) -> Result<Vec<String>, LedgerError> {
    let failed = |error| LedgerError::io("list", dir, error);
    fs::read_dir(dir)
        .map_err(failed)?
        .map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned()))
        .collect()
}

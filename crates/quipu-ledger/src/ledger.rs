//! The ledger: the newest generation, and the way from one to the next.
//!
//! In: batches, and questions from any thread. Out: cells.
//!
//! Invariants:
//! - one write at a time (ingestion, compaction, clear); readers never wait for one;
//! - after a write that failed, what is in memory is what a restart would find: if a failure came so late that the disk had already gone on, the
//!   ledger goes on with it.

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

/// The file that says which layout the directory has.
pub(crate) const FORMAT_FILE: &str = "FORMAT";

/// The layout this program writes, and the newest it reads.
const FORMAT: u64 = 1;

/// Ending of a generation in the making.
const UNFINISHED: &str = ".new";

/// Cells at rest. Any thread may read and write; reads go on during writes.
pub struct Ledger {
    dir: PathBuf,
    cache: Arc<Cache>,
    current: RwLock<Arc<Generation>>,
    /// Held by whoever writes; true while compaction has begun and not yet run out of work.
    writing: Mutex<bool>,
}

/// How to open a ledger.
#[derive(Debug, Clone, Copy)]
pub struct LedgerOptions {
    /// Bytes of blocks kept in memory.
    pub cache_bytes: u64,
}

/// What the ledger takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerStats {
    /// Tables.
    pub tables: u64,
    /// Ingestions not yet merged.
    pub runs: u64,
    /// Cells in all tables, older versions and tombstones included.
    pub cells: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// Bytes of the tables.
    pub disk_bytes: u64,
    /// Bytes of indexes held in memory besides the cache.
    pub memory_bytes: u64,
    /// Bytes in the cache.
    pub cache_bytes: u64,
}

impl Ledger {
    /// Opens the ledger in a directory, or makes one. What a crash left half done is removed.
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
            // A name is durable once its directory is synced; whoever made ours may not have done that.
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

    /// Writes one sealed batch and its watermark: after a crash both are at rest or neither is, and both are durable when this returns.
    ///
    /// `cells` are sorted by hash, then name, each name once; `None` says the counter is gone. A tombstone for a name that is not at rest does no harm
    /// and is not needed. After an error the ledger is as it was, unless the watermark says otherwise.
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

    /// The same, with what this node says of counters on a shared store, sorted alike; empty: nothing any more. And with notes, sorted by their keys.
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
                // Damage at rest keeps tables from being merged, not new ones from being written: what is counted now must go somewhere.
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

    /// What the newest batch said; nothing if there never was one.
    pub fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        Ok(self.generation().get(WATERMARK)?.map(|value| value.to_vec()))
    }

    /// The cell of a counter, if one is at rest.
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

    /// All cells from a hash on, by hash, then name, as they are now: later writes are not seen.
    pub fn range(&self, from_hash: u64) -> Cells {
        let generation = self.generation();
        let mut from = Vec::new();
        record::cell_key(&mut from, from_hash, b"");
        let items = generation.range(&from, &[CELL + 1]);
        Cells { items, generation }
    }

    /// What this node says of a counter on a shared store.
    pub fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        let mut key = Vec::with_capacity(16 + name.len());
        record::own_key(&mut key, hash, name);
        Ok(self.generation().get(&key)?.map(|value| Box::from(&*value)))
    }

    /// All of that from a hash on, by hash, then name, as it is now; a break ends it.
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

    /// All notes, by key, as they are now; a break ends it.
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

    /// Takes all counters away, and sets the watermark with it: after a crash both are done or neither is. No tombstones: the cells stay
    /// behind with their generation, whose files go when its last reader does.
    pub fn clear(&self, watermark: &[u8]) -> Result<(), LedgerError> {
        self.clear_with([], watermark)
    }

    /// The same, but for these notes, which are sorted by their keys.
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
        // The new generation is in place: in step is with it.
        self.reload_current().map(|_| ())
    }

    /// Does one bounded piece of compaction. Older versions and tombstones are collected on the way.
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

    /// What the ledger takes.
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

    /// Reads every byte at rest in a directory and compares it with its checksum; `progress` gets the bytes done and to do. Changes nothing, and
    /// may run while the ledger is in use.
    pub fn verify(dir: &Path, progress: impl FnMut(u64, u64)) -> Result<VerifyStats, LedgerError> {
        if !read_format(dir)? {
            return Err(LedgerError::damaged(&dir.join(FORMAT_FILE), "it is missing"));
        }
        verify(dir, progress)
    }

    /// Writes a consistent copy to a directory that is empty or absent, while the ledger is in use.
    ///
    /// `progress` hears of every piece, by its bytes, and may end it. Within one file system tables are shared, since they never change.
    pub fn copy_to(&self, dir: &Path, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<(), LedgerError> {
        let (generation, manifest, _pinned) = {
            let _writing = self.write();
            let generation = self.reload_current()?;
            // Whoever holds a version holds its tables, whatever compaction does meanwhile.
            let pinned = generation.tree.current_version();
            let manifest = Manifest::read(&generation.dir)?;
            (generation, manifest, pinned)
        };
        copy(&generation.dir, &manifest, generation.number, dir, Tables::Linked, &mut progress)
    }

    fn write(&self) -> MutexGuard<'_, bool> {
        // What the lock guards is on disk, and looked at anew by each write; one that panicked has spoilt nothing.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The generation in force, after making sure that a restart would find it so. It would not if the last step of a write, making a rename
    /// durable, had failed after the rename; then the next write would overwrite what the disk has in force.
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

    /// Gets in step after a failure. If that fails too, the next write tries again, and says why it could not.
    fn try_reload_current(&self) {
        let _ = self.reload_current();
    }
}

/// Cells in key order, as they were when the iteration began.
pub struct Cells {
    // Before the generation, whose files it reads: fields are dropped in order.
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

/// The number of the generation in force on disk.
pub(crate) fn newest_generation(dir: &Path) -> Result<u64, LedgerError> {
    generations(dir)?.pop().ok_or_else(|| LedgerError::damaged(&generation_path(dir, 1), "it is missing"))
}

/// Makes what was created, renamed and removed in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), LedgerError> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| LedgerError::io("sync", dir, error))
}

/// Writes, durably, which layout the directory has: from then on it is a ledger.
pub(crate) fn write_format(dir: &Path) -> Result<(), LedgerError> {
    let (path, unfinished) = (dir.join(FORMAT_FILE), dir.join(format!("{FORMAT_FILE}{UNFINISHED}")));
    write_durably(&unfinished, format!("quipu-ledger {FORMAT}\n").as_bytes())?;
    fs::rename(&unfinished, &path).map_err(|error| LedgerError::io("rename", &unfinished, error))?;
    sync_dir(dir)
}

/// Whether the directory says that it is a ledger, of a layout we know.
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

/// Makes a generation beside the others, fills it, and puts it in force by its name.
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

/// Removes what was in the making when the process ended.
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

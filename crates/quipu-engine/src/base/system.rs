//! Implements the ports on a real machine: clocks, random numbers, file system, ledger.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use quipu_model::{
    AuxRecord, AuxRecordVisitor, Cell, CellVisitor, Clock, CopyProgress, DirLock, Ledger, LedgerError, LedgerStats,
    LockError, Millis, OwnCellsVisitor, Rng, SealedCell, Vfs, VfsFile,
};

use xxhash_rust::xxh3::xxh3_64;

use crate::base::file_names::{CONTROL_FILE, LOCK_FILE};
use crate::base::options::LEDGER_DIR;
use crate::base::sync::Arc;

/// The machine's clocks.
pub struct SystemClock {
    began: Duration,
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock { began: since_boot() }
    }
}

/// The monotonic clock that runs on while the machine is suspended: a lease runs out meanwhile, and
/// the wall clock has not jumped.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Without such a clock: the one that stops during a suspension, from its first use on.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "this is the Clock port")]
fn since_boot() -> Duration {
    static BEGAN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(std::time::Instant::now).elapsed()
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the Clock port")]
    fn wall(&self) -> Millis {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn elapsed(&self) -> Duration {
        since_boot().saturating_sub(self.began)
    }
}

/// The operating system's random bytes.
pub struct SystemRng;

impl Rng for SystemRng {
    fn next(&self) -> u64 {
        getrandom::u64().expect("the operating system has random bytes")
    }
}

/// The machine's file system.
pub struct SystemDisk;

impl Vfs for SystemDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let new: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
        std::fs::create_dir_all(dir)?;
        // The entry of a new directory is in its parent.
        for dir in new {
            match dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent)?,
                _ => self.sync_dir(Path::new("."))?,
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            // A name that is not UTF-8 is none of ours, but a directory with such a file is not
            // empty.
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(SystemFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(SystemFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn clear_dir(&self, dir: &Path, keep: &str) -> io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name() == keep {
                continue;
            }
            // A link is removed, but not its target.
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::remove_dir(dir)
    }

    fn identity(&self, path: &Path) -> io::Result<u64> {
        let metadata = std::fs::metadata(path)?;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&metadata.dev().to_le_bytes());
        bytes[8..].copy_from_slice(&metadata.ino().to_le_bytes());
        Ok(xxh3_64(&bytes))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(dir)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let pid_file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut lock = SystemLock { pid_file, locked: Vec::new(), kept_open: Vec::new() };
        match lock.try_lock_file(File::open(dir)?) {
            Err(LockError::Io(error)) if is_lock_unsupported(&error) => tracing::warn!(
                %error,
                dir = %dir.display(),
                "the file system does not lock directories: the lock of the file `control` has to do"
            ),
            locked => locked?,
        }
        // Versions before this one lock the file with the process id alone.
        let pid_file = lock.pid_file.try_clone()?;
        lock.try_lock_file(pid_file)?;
        lock.pid_file.set_len(0)?;
        lock.pid_file.rewind()?;
        write!(lock.pid_file, "{}", std::process::id())?;
        Ok(Box::new(lock))
    }
}

/// Returns true if a process has a data directory locked. Takes each lock briefly, shared with
/// other readers.
pub fn is_in_use(dir: &Path) -> bool {
    [dir.to_owned(), dir.join(CONTROL_FILE), dir.join(LOCK_FILE)].iter().any(|path| {
        // Closing the file releases its lock.
        File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    })
}

/// Errors of `flock` where a file system, or the kernel for this kind of file, has no locks. On
/// Linux NFS, FUSE and others return these.
fn is_lock_unsupported(error: &io::Error) -> bool {
    const ERRORS: [rustix::io::Errno; 7] = {
        use rustix::io::Errno;
        [Errno::BADF, Errno::INVAL, Errno::ISDIR, Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOTSUP]
    };
    error.raw_os_error().is_some_and(|code| ERRORS.iter().any(|known| known.raw_os_error() == code))
}

/// Files that are locked until this is dropped.
struct SystemLock {
    /// Holds the owner's pid, for a process that finds the directory locked.
    pid_file: File,
    locked: Vec<File>,
    /// Open, and not locked.
    kept_open: Vec<File>,
}

impl SystemLock {
    fn try_lock_file(&mut self, file: File) -> Result<(), LockError> {
        for _ in 0..LOCK_ATTEMPTS {
            match file.try_lock() {
                Ok(()) => {
                    self.locked.push(file);
                    return Ok(());
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY_AFTER),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        let mut text = String::new();
        self.pid_file.read_to_string(&mut text)?;
        Err(LockError::Held { holder: text.trim().parse().ok() })
    }
}

impl DirLock for SystemLock {
    fn lock_file(&mut self, path: &Path) -> Result<(), LockError> {
        self.try_lock_file(OpenOptions::new().read(true).write(true).open(path)?)
    }

    fn keep_open(&mut self, path: &Path) -> io::Result<()> {
        self.kept_open.push(File::open(path)?);
        Ok(())
    }
}

/// A command that inspects a directory holds its lock briefly; a start waits that long before it is
/// refused.
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_RETRY_AFTER: Duration = Duration::from_millis(10);

struct SystemFile(File);

impl VfsFile for SystemFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.write_zeros(bytes),
            allocated => Ok(allocated?),
        }
    }
}

/// The ledger on this machine's disk.
pub struct SystemLedger(quipu_ledger::Ledger);

impl SystemLedger {
    /// Opens the ledger, creating it if there is none.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<SystemLedger, LedgerError> {
        quipu_ledger::Ledger::open(dir, quipu_ledger::LedgerOptions { cache_bytes })
            .map(SystemLedger)
            .map_err(convert_error)
    }
}

impl SystemLedger {
    /// Opens the ledger of an unused data directory read-only: every write is refused.
    pub fn open_read_only(data: &Path) -> Result<Arc<dyn Ledger>, LedgerError> {
        let ledger = quipu_ledger::ReadOnlyLedger::open(&data.join(LEDGER_DIR)).map_err(convert_error)?;
        Ok(Arc::new(ReadOnlySystemLedger(ledger)))
    }

    /// Compares every byte at rest in a data directory with its checksum. `progress` gets the bytes
    /// done and in all. Returns the number of bytes; a directory without a ledger has none.
    pub fn verify(data: &Path, progress: impl FnMut(u64, u64)) -> Result<u64, LedgerError> {
        let dir = data.join(LEDGER_DIR);
        // An unfinished ledger is judged by its reader; there is nothing to compare.
        if quipu_ledger::ReadOnlyLedger::open(&dir).map_err(convert_error)?.stats().tables == 0 {
            return Ok(0);
        }
        quipu_ledger::Ledger::verify(&dir, progress).map(|verified| verified.bytes).map_err(convert_error)
    }
}

impl Ledger for SystemLedger {
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        self.0.watermark().map_err(convert_error)
    }

    fn ingest(&self, cells: &[SealedCell], aux_records: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        let own = cells.iter().filter_map(|sealed| Some((sealed.hash, &*sealed.name, sealed.own.as_deref()?)));
        let cells = cells.iter().map(|sealed| (sealed.hash, &*sealed.name, sealed.cell));
        self.0
            .ingest_with(cells, own, aux_records.iter().map(key_and_value), watermark)
            .map(|_| ())
            .map_err(convert_error)
    }

    fn clear(&self, aux_records: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        self.0.clear_with(aux_records.iter().map(key_and_value), watermark).map_err(convert_error)
    }

    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        self.0.get(hash, name).map_err(convert_error)
    }

    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError> {
        for row in self.0.range(from) {
            let (hash, name, cell) = row.map_err(convert_error)?;
            if visit(hash, &name, cell).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        self.0.own_cells(hash, name).map_err(convert_error)
    }

    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError> {
        self.0.range_own_cells(from, visit).map_err(convert_error)
    }

    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError> {
        self.0.aux_records(visit).map_err(convert_error)
    }

    fn compact(&self) -> Result<bool, LedgerError> {
        self.0.compact().map(|compacted| compacted.more).map_err(convert_error)
    }

    fn copy_to(&self, data: &Path, progress: &mut CopyProgress<'_>) -> Result<(), LedgerError> {
        self.0.copy_to(&data.join(LEDGER_DIR), progress).map_err(convert_error)
    }

    fn stats(&self) -> LedgerStats {
        convert_stats(self.0.stats())
    }
}

struct ReadOnlySystemLedger(quipu_ledger::ReadOnlyLedger);

impl ReadOnlySystemLedger {
    fn refuse_write<T>() -> Result<T, LedgerError> {
        Err(LedgerError::Io("it is only looked at".to_owned()))
    }
}

impl Ledger for ReadOnlySystemLedger {
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        self.0.watermark().map_err(convert_error)
    }

    fn ingest(&self, _cells: &[SealedCell], _aux_records: &[AuxRecord], _watermark: &[u8]) -> Result<(), LedgerError> {
        ReadOnlySystemLedger::refuse_write()
    }

    fn clear(&self, _aux_records: &[AuxRecord], _watermark: &[u8]) -> Result<(), LedgerError> {
        ReadOnlySystemLedger::refuse_write()
    }

    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        self.0.get(hash, name).map_err(convert_error)
    }

    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError> {
        self.0.range(from, visit).map_err(convert_error)
    }

    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        self.0.own_cells(hash, name).map_err(convert_error)
    }

    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError> {
        self.0.range_own_cells(from, visit).map_err(convert_error)
    }

    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError> {
        self.0.aux_records(visit).map_err(convert_error)
    }

    fn compact(&self) -> Result<bool, LedgerError> {
        ReadOnlySystemLedger::refuse_write()
    }

    fn copy_to(&self, data: &Path, progress: &mut CopyProgress<'_>) -> Result<(), LedgerError> {
        self.0.copy_to(&data.join(LEDGER_DIR), progress).map_err(convert_error)
    }

    fn stats(&self) -> LedgerStats {
        convert_stats(self.0.stats())
    }
}

fn key_and_value(aux_record: &AuxRecord) -> (&[u8], Option<&[u8]>) {
    (&aux_record.key, aux_record.value.as_deref())
}

fn convert_stats(stats: quipu_ledger::LedgerStats) -> LedgerStats {
    let quipu_ledger::LedgerStats { tables, runs, disk_bytes, memory_bytes, cache_bytes, .. } = stats;
    LedgerStats { disk_bytes, memory_bytes: memory_bytes + cache_bytes, tables, runs }
}

/// Classifies an error by the engine's response to it.
fn convert_error(error: quipu_ledger::LedgerError) -> LedgerError {
    let text = match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    match error {
        quipu_ledger::LedgerError::Full { .. } => LedgerError::Full(text),
        quipu_ledger::LedgerError::Damaged { .. } => LedgerError::Damaged(text),
        _ => LedgerError::Io(text),
    }
}

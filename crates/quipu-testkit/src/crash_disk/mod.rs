//! Simulates a disk in memory that shows every state a power loss may leave.
//!
//! In: calls of the code under test through `Vfs`. Out: the answers of a correct file system. For
//! any point of the run, also [`Image`]s of the disk that the machine may find.
//!
//! Invariants:
//! - the promises of the `Vfs` contract hold in every image;
//! - everything beyond them is broken in some image: unsynced writes are lost, torn and reordered,
//!   and entries of directories are lost, in any combination.
//!
//! A point is a number of operations that have returned. A test records [`CrashDisk::operations`]
//! when a reply leaves, and any image of that point or a later one must contain it.
//!
//! Not here: hard links, files renamed across directories, a disk that lies about its flush.

mod content;
mod crash;
mod faults;
mod image;
mod media;
mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quipu_model::{DirLock, LockError, Vfs, VfsFile};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::faults::DiskFault;
pub use self::image::Image;
pub use self::recording::OpKind;

use self::content::FileContent;
use self::faults::DiskFaultPlan;
use self::media::Media;
use self::recording::{DiskOperation, FileId};
use crate::SeededRng;

/// Number of operations between two snapshots of the media. An image replays half of this on
/// average. A run of 10,000 operations keeps about 300 snapshots that share their pages.
const SNAPSHOT_EVERY: usize = 32;

/// The disk. Clones are handles to the same one.
#[derive(Clone, Default)]
pub struct CrashDisk {
    inner: Arc<DiskInner>,
}

#[derive(Default)]
struct DiskInner {
    state: Mutex<DiskState>,
    on_sync: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

struct DiskState {
    /// Entries as the running system sees them.
    dirs: BTreeMap<PathBuf, BTreeMap<String, FileId>>,
    /// Bytes as the running system sees them, of removed files too: a handle may still be open.
    files: BTreeMap<FileId, FileContent>,
    locked: BTreeSet<PathBuf>,
    operations: Vec<DiskOperation>,
    // snapshots[i] holds the media after i * SNAPSHOT_EVERY operations; never empty.
    snapshots: Vec<Media>,
    faults: DiskFaultPlan,
    capacity: Option<u64>,
    /// Number of this copy: files of different copies are different files.
    copy: u64,
}

impl CrashDisk {
    /// Creates an empty disk.
    pub fn new() -> CrashDisk {
        CrashDisk::default()
    }

    fn from_image(image: &Image, copy: u64) -> CrashDisk {
        let media = Media::from_image(image);
        let state = DiskState {
            dirs: media.dirs.iter().map(|(dir, media)| (dir.clone(), media.entries.clone())).collect(),
            files: media.files.iter().map(|(id, media)| (*id, media.content.clone())).collect(),
            snapshots: vec![media],
            copy,
            ..DiskState::default()
        };
        CrashDisk { inner: Arc::new(DiskInner { state: Mutex::new(state), on_sync: Mutex::new(None) }) }
    }

    /// Number of operations that have returned.
    pub fn operations(&self) -> usize {
        self.state().operations.len()
    }

    /// Kind of an operation, to choose points; `None` if it has not happened.
    pub fn kind_of(&self, operation: usize) -> Option<OpKind> {
        self.state().operations.get(operation).map(DiskOperation::kind)
    }

    /// Text of an operation, for the message of a failed test.
    pub fn describe(&self, operation: usize) -> String {
        match self.state().operations.get(operation) {
            Some(done) => format!("{operation}: {done}"),
            None => format!("{operation}: not done"),
        }
    }

    /// Draws one of the disks that a power loss may leave when the first `at` operations have
    /// returned and the next one, if any, is in flight.
    pub fn crash(&self, at: usize, rng: &SeededRng) -> Image {
        let mut state = self.state();
        let media = state.platter(at);
        let in_flight = (at < state.operations.len()).then_some(at);
        crash::draw_crash_image(media, &state.operations, in_flight, rng)
    }

    /// The disk if the process is killed after the first `at` operations, and the machine stays up.
    pub fn kill(&self, at: usize) -> Image {
        let mut state = self.state();
        let media = state.platter(at);
        crash::image_of_all(&media, &state.operations)
    }

    /// Lets `after` more operations of this kind succeed and the next one fail.
    pub fn fail_nth(&self, kind: OpKind, after: usize, fault: DiskFault) {
        self.state().faults.plan(kind, after, fault);
    }

    /// Limits the bytes of all files together; a write that would grow them beyond it is cut short
    /// and fails.
    pub fn capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Number of bytes in all files together.
    pub fn bytes_used(&self) -> u64 {
        self.state().bytes_used()
    }

    /// Sets a hook that runs in the middle of every `sync_data` and `sync_dir`, with no lock held.
    /// A slow disk moves the clock in it; the sync does not cover writes of the hook.
    pub fn on_sync(&self, hook: Option<Arc<dyn Fn() + Send + Sync>>) {
        *lock(&self.inner.on_sync) = hook;
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.inner.state)
    }

    /// Runs the slow part of a sync.
    fn flush(&self) {
        let hook = lock(&self.inner.on_sync).clone();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl fmt::Debug for CrashDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CrashDisk({} operations)", self.operations())
    }
}

impl Default for DiskState {
    fn default() -> DiskState {
        DiskState {
            dirs: BTreeMap::new(),
            files: BTreeMap::new(),
            locked: BTreeSet::new(),
            operations: Vec::new(),
            snapshots: vec![Media::default()],
            faults: DiskFaultPlan::default(),
            capacity: None,
            copy: 0,
        }
    }
}

impl DiskState {
    /// The media when the first `at` operations have returned.
    fn platter(&mut self, at: usize) -> Media {
        assert!(at <= self.operations.len(), "only {} operations were recorded, not {at}", self.operations.len());
        while self.snapshots.len() <= at / SNAPSHOT_EVERY {
            let last = self.snapshots.len() - 1;
            let media = self.replay(last, (last + 1) * SNAPSHOT_EVERY);
            self.snapshots.push(media);
        }
        self.replay(at / SNAPSHOT_EVERY, at)
    }

    fn replay(&self, snapshot: usize, until: usize) -> Media {
        let mut media = self.snapshots[snapshot].clone();
        for index in snapshot * SNAPSHOT_EVERY..until {
            media.step(index, &self.operations);
        }
        media
    }

    fn bytes_used(&self) -> u64 {
        let entries = self.dirs.values().flat_map(BTreeMap::values);
        entries.map(|file| self.files[file].len() as u64).sum()
    }

    fn fail_if_planned(&mut self, kind: OpKind) -> io::Result<()> {
        self.faults.take_due(kind).map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn entries_mut(&mut self, dir: &Path) -> io::Result<&mut BTreeMap<String, FileId>> {
        self.dirs.get_mut(dir).ok_or_else(|| not_found(dir))
    }

    fn look_up(&mut self, path: &Path) -> io::Result<(PathBuf, String, FileId)> {
        let (dir, name) = split(path)?;
        let file = *self.entries_mut(&dir)?.get(&name).ok_or_else(|| not_found(path))?;
        Ok((dir, name, file))
    }

    fn create(&mut self, path: &Path) -> io::Result<FileId> {
        let (dir, name) = split(path)?;
        let file = FileId(self.files.keys().next_back().map_or(0, |last| last.0 + 1));
        let entries = self.entries_mut(&dir)?;
        if entries.contains_key(&name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", path.display())));
        }
        entries.insert(name.clone(), file);
        self.files.insert(file, FileContent::default());
        self.operations.push(DiskOperation::Create { dir, name, file });
        Ok(file)
    }

    /// Writes the bytes that faults and capacity allow, and records them.
    fn write(&mut self, file: FileId, buf: &[u8], offset: usize) -> io::Result<()> {
        let (fits, outcome) = match self.faults.take_due(OpKind::Write) {
            Some(fault @ DiskFault::ShortWrite(bytes)) => (bytes.min(buf.len()), Err(fault.error())),
            Some(fault) => (0, Err(fault.error())),
            None => match self.fitting(file, buf.len(), offset) {
                fits if fits < buf.len() => (fits, Err(faults::full())),
                fits => (fits, Ok(())),
            },
        };
        if fits > 0 {
            let content = self.files.get_mut(&file).expect("a handle is given out only for a file that exists");
            content.write(&buf[..fits], offset);
            self.operations.push(DiskOperation::Write { file, offset, bytes: buf[..fits].into() });
        }
        outcome
    }

    /// Number of bytes of a write that fit under the capacity.
    fn fitting(&self, file: FileId, len: usize, offset: usize) -> usize {
        let Some(capacity) = self.capacity else { return len };
        let used = self.files[&file].len();
        let growth = (offset + len).saturating_sub(used);
        let room = usize::try_from(capacity.saturating_sub(self.bytes_used())).unwrap_or(usize::MAX);
        if growth <= room { len } else { (used + room).saturating_sub(offset) }
    }
}

impl Vfs for CrashDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.fail_if_planned(OpKind::CreateDir)?;
        if state.dirs.contains_key(dir) {
            return Ok(());
        }
        for ancestor in dir.ancestors() {
            state.dirs.entry(ancestor.to_path_buf()).or_default();
        }
        state.operations.push(DiskOperation::CreateDir { dir: dir.to_path_buf() });
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.state().entries_mut(dir)?.keys().cloned().collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let mut state = self.state();
        state.fail_if_planned(OpKind::Create)?;
        let file = state.create(path)?;
        Ok(Arc::new(CrashFile { disk: self.clone(), file }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let (_, _, file) = self.state().look_up(path)?;
        Ok(Arc::new(CrashFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.fail_if_planned(OpKind::Rename)?;
        let (dir, from, file) = state.look_up(from)?;
        let (target, to) = split(to)?;
        if target != dir {
            return Err(io::Error::new(io::ErrorKind::CrossesDevices, "a rename stays within one directory"));
        }
        let entries = state.entries_mut(&dir)?;
        entries.remove(&from);
        entries.insert(to.clone(), file);
        state.operations.push(DiskOperation::Rename { dir, from, to, file });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.fail_if_planned(OpKind::Remove)?;
        let (dir, name, file) = state.look_up(path)?;
        state.entries_mut(&dir)?.remove(&name);
        state.operations.push(DiskOperation::Remove { dir, name, file });
        Ok(())
    }

    fn clear_dir(&self, dir: &Path, keep: &str) -> io::Result<()> {
        let files = self.list(dir)?;
        files.iter().filter(|file| *file != keep).try_for_each(|file| self.remove(&dir.join(file)))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        // Crashes lose no directories here, and none comes back: an empty one counts as absent.
        match self.list(dir)?.is_empty() {
            true => Ok(()),
            false => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }

    /// By path: a file is copied only with the whole disk, or through `create`, under another name.
    fn identity(&self, path: &Path) -> io::Result<u64> {
        let mut state = self.state();
        if !state.dirs.contains_key(path) {
            state.look_up(path)?;
        }
        Ok(xxh3_64_with_seed(path.as_os_str().as_encoded_bytes(), state.copy))
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let state = self.state();
        Ok(state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.bytes_used())))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let begun = {
            let mut state = self.state();
            state.entries_mut(dir)?;
            state.operations.len()
        };
        self.flush();
        let mut state = self.state();
        state.fail_if_planned(OpKind::SyncDir)?;
        state.operations.push(DiskOperation::SyncDir { dir: dir.to_path_buf(), begun });
        Ok(())
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let mut state = self.state();
        if !state.locked.insert(path.to_path_buf()) {
            return Err(LockError::Held { holder: Some(std::process::id()) });
        }
        // The real lock is held through a file, which stays behind when the process ends.
        if state.look_up(path).is_err()
            && let Err(error) = state.create(path)
        {
            state.locked.remove(path);
            return Err(error.into());
        }
        Ok(Box::new(CrashLock { disk: self.clone(), path: path.to_path_buf() }))
    }
}

struct CrashFile {
    disk: CrashDisk,
    file: FileId,
}

impl VfsFile for CrashFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[&self.file].len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.disk.state().files[&self.file].read(buf, to_index(offset)?))
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.disk.state().write(self.file, buf, to_index(offset)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        let begun = self.disk.operations();
        self.disk.flush();
        let mut state = self.disk.state();
        let (file, fault) = (self.file, state.faults.take_due(OpKind::SyncData));
        state.operations.push(match fault {
            None => DiskOperation::SyncData { file, begun },
            Some(_) => DiskOperation::SyncDataFailed { file, begun },
        });
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }
}

struct CrashLock {
    disk: CrashDisk,
    path: PathBuf,
}

impl DirLock for CrashLock {}

impl Drop for CrashLock {
    fn drop(&mut self) {
        self.disk.state().locked.remove(&self.path);
    }
}

/// A test that panicked elsewhere has reported it; the disk's state is whole between operations.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Splits a path into its directory and the name in it.
fn split(path: &Path) -> io::Result<(PathBuf, String)> {
    match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(dir), Some(name)) => Ok((dir.to_path_buf(), name.to_owned())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", path.display()))),
    }
}

fn to_index(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(|error| io::Error::new(io::ErrorKind::FileTooLarge, error))
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no {}", path.display()))
}

#[cfg(test)]
mod tests;

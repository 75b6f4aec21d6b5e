//! Maintains the journal: prepares segments ahead, cuts sealed records, keeps the control file
//! current.
//!
//! In: calls from the background thread, and from a worker that needs room. Out: room, a shorter
//! journal, a current control file.
//!
//! Invariants:
//! - one thread at a time, under the lock `maintenance`;
//! - everything in the control file is durable by the time it is written there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quipu_model::{Incarnation, Refusal, Vfs};

use super::control::{ControlFile, ControlState};
use super::format::{Position, SegmentHeader};
use super::segments::{CutMark, Segment, segment_file};
use super::watched_files::{WatchedFiles, check_exists, check_identity};
use super::{Journal, JournalError, io_error};
use crate::base::failpoint::step;
use crate::base::sync::{Ordering, lock, try_lock};

/// Most bytes of freed segments kept for reuse. The bound is this or two segments, whichever is
/// more.
const SPARE_BYTES_MAX: u64 = 64 << 20;

/// File that reserves disk space for a seal on a full disk.
const RESERVE_FILE: &str = "reserve";

/// Interval between attempts to recreate the reserve: an attempt on a full disk writes until it is
/// refused.
const RESERVE_RETRY_EVERY: Duration = Duration::from_secs(10);

/// State of the journal's maintenance.
pub(super) struct MaintenanceState {
    pub(super) control: ControlFile,
    /// Files that must exist as long as the journal does.
    pub(super) watched: WatchedFiles,
    /// Files freed by the cut, each of `segment_bytes`.
    pub(super) spare_files: Vec<PathBuf>,
    /// Reason why the last attempt to prepare a segment failed.
    pub(super) full_reason: Option<String>,
    /// True if the reserve exists; then the time of the last attempt to make it.
    pub(super) has_reserve: bool,
    pub(super) reserve_tried_at: Option<Duration>,
    /// Number of copies of the journal in progress; above zero, the journal is not cut.
    pub(super) cut_holds: usize,
}

/// Keeps the journal from being cut while a backup copies it. All other work goes on.
pub(crate) struct CutHold<'j> {
    journal: &'j Journal,
}

impl CutHold<'_> {
    /// Returns the control state, and the segments from the journal's start to `end`.
    pub(crate) fn extent(&self, end: Position) -> (ControlState, Vec<Segment>) {
        let maintenance = lock(&self.journal.maintenance);
        let control = *maintenance.control.state();
        // With nothing after the start yet, this is the segment of the next record.
        let segments = lock(&self.journal.log).segments_between(control.start, end.max(control.start.plus(1)));
        (control, segments)
    }
}

impl Drop for CutHold<'_> {
    fn drop(&mut self) {
        lock(&self.journal.maintenance).cut_holds -= 1;
    }
}

impl Journal {
    /// Keeps the journal from being cut while the guard lives.
    pub(crate) fn hold_cut(&self) -> CutHold<'_> {
        // A cut in progress holds this lock until it is done.
        lock(&self.maintenance).cut_holds += 1;
        CutHold { journal: self }
    }

    /// Returns true while a copy keeps the journal from being cut.
    pub(crate) fn is_cut_held(&self) -> bool {
        lock(&self.maintenance).cut_holds > 0
    }

    /// Prepares segments until the room ahead is restored. A full disk is not an error here: writes
    /// are refused until space returns.
    pub fn prepare_segments(&self) -> Result<(), JournalError> {
        // A worker may have set "full" for a need larger than the room kept ahead. Only this loop
        // finds out that the disk has space again.
        while self.is_room_low() || self.is_full() {
            // The lock is released after each segment, so that a waiting worker gets its turn.
            if !self.prepare_segment(&mut lock(&self.maintenance))? {
                break;
            }
        }
        self.ensure_reserve(&mut lock(&self.maintenance))
    }

    /// Prepares segments for a worker that found no room for `bytes`. Does nothing if another
    /// thread just did, or if the disk is full.
    pub fn prepare_room_now(&self, bytes: usize) -> Result<(), Refusal> {
        let mut maintenance = lock(&self.maintenance);
        // The background thread finds out when the disk has space again; commands do not probe it.
        if let Some(reason) = maintenance.full_reason.clone() {
            return Err(Refusal::NoRoom { reason });
        }
        if self.room.load(Ordering::Acquire) < bytes as i64 {
            self.shortages.fetch_add(1, Ordering::Relaxed);
        }
        while self.room.load(Ordering::Acquire) < bytes as i64 {
            match self.prepare_segment(&mut maintenance) {
                Ok(true) => {}
                Ok(false) => {
                    return Err(Refusal::NoRoom { reason: maintenance.full_reason.clone().unwrap_or_default() });
                }
                Err(error) => {
                    self.fail(&error);
                    return Err(Refusal::NoRoom { reason: error.to_string() });
                }
            }
        }
        Ok(())
    }

    /// Prepares segments for [overcommitted](Journal::overcommit_room) room. On failure the journal
    /// ends: the applied command cannot be journaled, so no reply confirms it.
    pub fn replenish_room(&self) {
        let mut maintenance = lock(&self.maintenance);
        while self.room.load(Ordering::Acquire) < 0 {
            if let Err(error) = self.try_prepare_segment(&mut maintenance) {
                return self.fail(&error);
            }
        }
    }

    /// Returns true if the last attempt to prepare a segment found the disk full.
    pub fn is_full(&self) -> bool {
        lock(&self.maintenance).full_reason.is_some()
    }

    /// Like `is_full` without waiting for the maintenance lock; false if another thread holds it.
    pub fn is_full_hint(&self) -> bool {
        try_lock(&self.maintenance).is_some_and(|maintenance| maintenance.full_reason.is_some())
    }

    /// Prepares one segment; false if the disk is full.
    fn prepare_segment(&self, maintenance: &mut MaintenanceState) -> Result<bool, JournalError> {
        match self.try_prepare_segment(maintenance) {
            Ok(()) => maintenance.full_reason = None,
            Err(error) if error.is_full() => maintenance.full_reason = Some(error.to_string()),
            Err(error) => return Err(error),
        }
        Ok(maintenance.full_reason.is_none())
    }

    fn try_prepare_segment(&self, maintenance: &mut MaintenanceState) -> Result<(), JournalError> {
        let state = *maintenance.control.state();
        let (bytes, number) = (self.options.segment_bytes, state.end);
        let header = SegmentHeader { log: self.log_id, number, base: state.base, bytes };
        // A failed attempt left this file, which blocks the next one.
        let path = self.dir.join(segment_file(number));
        match self.vfs.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&path, "remove", error)),
            _ => {}
        }
        let spare = maintenance.spare_files.pop();
        let recycled = spare.is_some();
        if !recycled {
            self.check_quota(bytes).map_err(|e| io_error(&path, "create", e))?;
        }
        let segment = Segment::prepare(&*self.vfs, &self.dir, header, spare.as_deref(), self.options.zeros)
            .inspect_err(|_| {
                // The partial file must not keep the last of the space from others.
                let _ = self.vfs.remove(&path);
                if recycled {
                    self.files_bytes.fetch_sub(bytes, Ordering::AcqRel);
                }
            })?;
        step!("prepared");
        maintenance.control.update(|control| {
            control.end = number + 1;
            control.base = segment.end;
        })?;
        let payload = segment.end.0 - segment.base.0;
        if !recycled {
            self.files_bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        lock(&self.log).segments.push_back(segment);
        self.segments.fetch_add(1, Ordering::AcqRel);
        self.room.fetch_add(payload as i64, Ordering::AcqRel);
        Ok(())
    }

    /// Checks that `bytes` more fit the quota; the error has the same kind as that of a full disk.
    pub fn check_quota(&self, bytes: u64) -> io::Result<()> {
        self.enforce_quota(self.disk_bytes() + self.ledger_growth_bytes.load(Ordering::Acquire) + bytes)
    }

    /// Reserves quota for the ledger to grow by `bytes`. It counts the journal as cut at `at`,
    /// since a seal must be able to give back the journal's space. The journal cannot take the
    /// reserved bytes meanwhile.
    pub fn reserve_ledger_growth(&self, at: Position, bytes: u64) -> io::Result<()> {
        self.ledger_growth_bytes.store(bytes, Ordering::Release);
        let freed: u64 = {
            let log = lock(&self.log);
            log.segments.iter().take_while(|segment| segment.end <= at).map(Segment::bytes).sum()
        };
        let files = self.files_bytes.load(Ordering::Acquire).saturating_sub(freed);
        self.enforce_quota(files + self.ledger_bytes.load(Ordering::Acquire) + bytes)
    }

    /// Sets the size of the ledger.
    pub fn set_ledger_bytes(&self, bytes: u64) {
        self.ledger_bytes.store(bytes, Ordering::Release);
    }

    /// Releases the reserved growth at the end of a seal.
    pub fn release_ledger_growth(&self) {
        self.ledger_growth_bytes.store(0, Ordering::Release);
    }

    fn enforce_quota(&self, bytes: u64) -> io::Result<()> {
        let Some(bytes_max) = self.options.disk_bytes_max else { return Ok(()) };
        if bytes <= bytes_max {
            return Ok(());
        }
        let reason = format!("the quota of {bytes_max} bytes for journal and ledger (--max-disk) is used up");
        Err(io::Error::new(io::ErrorKind::StorageFull, reason))
    }

    /// Bytes that files may still take, by the disk and by the quota. A disk that does not report
    /// its free space counts as large enough.
    pub fn free_bytes(&self) -> u64 {
        let quota =
            self.options.disk_bytes_max.map_or(u64::MAX, |bytes_max| bytes_max.saturating_sub(self.disk_bytes()));
        self.vfs.free_bytes(&self.dir).unwrap_or(u64::MAX).min(quota)
    }

    /// Bytes taken by journal and ledger, spare files and reserve included.
    pub fn disk_bytes(&self) -> u64 {
        self.files_bytes.load(Ordering::Acquire) + self.ledger_bytes.load(Ordering::Acquire)
    }

    /// Reserves disk space for a seal on a full disk, if there is space.
    fn ensure_reserve(&self, maintenance: &mut MaintenanceState) -> Result<(), JournalError> {
        let (bytes, path) = (self.options.reserve_bytes, self.dir.join(RESERVE_FILE));
        let (now, tried_at) = (self.clock.elapsed(), maintenance.reserve_tried_at);
        let is_early = tried_at.is_some_and(|tried_at| now.saturating_sub(tried_at) < RESERVE_RETRY_EVERY);
        if maintenance.has_reserve || bytes == 0 || maintenance.full_reason.is_some() || is_early {
            return Ok(());
        }
        maintenance.reserve_tried_at = Some(now);
        let allocated = self.check_quota(bytes).and_then(|()| allocate_file(&*self.vfs, &path, bytes));
        match allocated.map_err(|e| io_error(&path, "create", e)) {
            Ok(()) => {
                maintenance.has_reserve = true;
                self.files_bytes.fetch_add(bytes, Ordering::AcqRel);
                Ok(())
            }
            // Segments come first: no reserve for now.
            Err(error) if error.is_full() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Finds the reserve of the last incarnation. On a full disk, a seal has no other space.
    pub(crate) fn find_reserve(&self) -> Result<(), JournalError> {
        let (mut maintenance, path) = (lock(&self.maintenance), self.dir.join(RESERVE_FILE));
        match self.vfs.open(&path).and_then(|file| file.bytes()) {
            Ok(bytes) if bytes > 0 && bytes == self.options.reserve_bytes => {
                maintenance.has_reserve = true;
                self.files_bytes.fetch_add(bytes, Ordering::AcqRel);
                Ok(())
            }
            // A partial reserve, or one of an incarnation with other options.
            Ok(_) => self.vfs.remove(&path).map_err(|e| io_error(&path, "remove", e)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error(&path, "open", error)),
        }
    }

    /// Gives back spare files and the reserve, for a seal that found no space. Returns true if it
    /// freed any.
    pub fn release_spare_space(&self) -> Result<bool, JournalError> {
        let mut maintenance = lock(&self.maintenance);
        let mut freed = 0;
        for path in std::mem::take(&mut maintenance.spare_files) {
            self.vfs.remove(&path).map_err(|e| io_error(&path, "remove", e))?;
            freed += self.options.segment_bytes;
        }
        if std::mem::take(&mut maintenance.has_reserve) {
            let path = self.dir.join(RESERVE_FILE);
            match self.vfs.remove(&path) {
                // Another user of the disk has removed it.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&path, "remove", error)),
                _ => freed += self.options.reserve_bytes,
            }
        }
        self.files_bytes.fetch_sub(freed, Ordering::AcqRel);
        step!("given");
        Ok(freed > 0)
    }

    /// Records an incarnation that began after the journal's start.
    pub fn record_incarnation(&self, incarnation: Incarnation) -> Result<(), JournalError> {
        lock(&self.maintenance).control.update(|control| control.incarnation = incarnation)
    }

    /// Records the version that a clean stop is about to give the registration of the present
    /// incarnation.
    pub fn record_released(&self, released: u32) -> Result<(), JournalError> {
        lock(&self.maintenance).control.update(|control| control.released = released)
    }

    /// Records the synced position; `clean` marks a clean stop.
    pub fn record_synced(&self, clean: bool) -> Result<(), JournalError> {
        let mut maintenance = lock(&self.maintenance);
        let synced = self.synced();
        let state = *maintenance.control.state();
        if state.synced == synced && state.clean == clean {
            return Ok(());
        }
        maintenance.control.update(|control| {
            control.synced = synced;
            control.clean = clean;
        })
    }

    /// Checks that the directory, its control file and its segments are the ones that this process
    /// has open. Data written to a removed file ends with the process. A directory without that
    /// file is refused as damaged.
    pub fn check_files(&self) -> Result<(), JournalError> {
        // Under this lock no thread creates, renames or removes a segment.
        let maintenance = lock(&self.maintenance);
        maintenance.watched.check(&*self.vfs)?;
        let segments: Vec<Segment> = lock(&self.log).segments.iter().cloned().collect();
        segments.iter().try_for_each(|Segment { path, identity, file, .. }| match file {
            Some(_) => check_identity(&*self.vfs, path, *identity),
            // A closed segment is whole and synced. Only an open file keeps its number on all file
            // systems.
            None => check_exists(&*self.vfs, path),
        })
    }

    /// Marks the present end of the journal as the next position to cut at.
    pub fn mark_cut(&self) -> Position {
        // Under the log's lock no thread writes records, so the chain at this position is not
        // missed.
        let mut log = lock(&self.log);
        let position = self.reserved();
        let previous = (log.written == position).then_some(log.previous);
        log.mark = Some(CutMark { position, previous });
        position
    }

    /// The marked position and its chain, once all records before it are written.
    pub fn cut_mark(&self) -> Option<(Position, u32)> {
        let log = lock(&self.log);
        let mark = log.mark?;
        let previous = mark.previous.or((log.written == mark.position).then_some(log.previous))?;
        Some((mark.position, previous))
    }

    /// Drops the records before the mark: the ledger has all of them. Does nothing while a copy is
    /// in progress; the next cut catches up.
    pub fn cut(&self, at: Position, previous: u32) -> Result<(), JournalError> {
        debug_assert!(at <= self.synced());
        let mut maintenance = lock(&self.maintenance);
        if maintenance.cut_holds > 0 || maintenance.control.state().start == at {
            return Ok(());
        }
        let freed: Vec<Segment> = {
            let log = lock(&self.log);
            log.segments.iter().take_while(|segment| segment.end <= at).cloned().collect()
        };
        let first = maintenance.control.state().first + freed.len() as u64;
        let synced = self.synced();
        maintenance.control.update(|control| {
            control.start = at;
            control.previous = previous;
            control.first = first;
            control.synced = synced;
        })?;
        step!("cut");
        lock(&self.log).segments.drain(..freed.len());
        self.start.store(at.0, Ordering::Release);
        self.segments.fetch_sub(freed.len() as u64, Ordering::AcqRel);
        // Recreate the reserve before keeping spare files: a journal that takes all space again
        // could never be cut.
        let reserved = maintenance.has_reserve || self.options.reserve_bytes == 0;
        let keep = if reserved { (SPARE_BYTES_MAX / self.options.segment_bytes).max(2) as usize } else { 0 };
        for segment in freed {
            let spares = maintenance.spare_files.len() < keep && self.check_quota(0).is_ok();
            if spares && segment.bytes() == self.options.segment_bytes {
                maintenance.spare_files.push(segment.path);
            } else {
                self.vfs.remove(&segment.path).map_err(|e| io_error(&segment.path, "remove", e))?;
                self.files_bytes.fetch_sub(segment.bytes(), Ordering::AcqRel);
            }
        }
        step!("freed");
        Ok(())
    }

    /// Bytes between the start and the reserved end, and the number of segments; for INFO and the
    /// seal.
    pub fn size(&self) -> (u64, usize) {
        // Clients ask for this, so it takes no lock that is held over disk I/O: `maintenance` and
        // `log` are held over syncs and writes.
        let start = self.start.load(Ordering::Acquire);
        (self.reserved().0.saturating_sub(start), self.segments.load(Ordering::Acquire) as usize)
    }
}

/// Makes a file of `bytes` bytes, unless it exists. The file need not survive a crash.
fn allocate_file(vfs: &dyn Vfs, path: &Path, bytes: u64) -> io::Result<()> {
    if vfs.open(path).and_then(|file| file.bytes()).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    match vfs.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    vfs.create(path).and_then(|file| file.allocate(bytes)).inspect_err(|_| {
        let _ = vfs.remove(path);
    })
}

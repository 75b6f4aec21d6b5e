//! Tends the journal: prepares segments ahead of the writing, cuts what seal has made superfluous, keeps the control file fresh.
//!
//! In: calls from the background, and from a worker in need of room. Out: room; a shorter journal; a control file that knows.
//!
//! Invariant: one thread at a time (`maintenance`), and whatever the control file is told is durable by then.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quipu_model::{Incarnation, Refusal, Vfs};

use super::control::{ControlFile, ControlState};
use super::format::{Position, SegmentHeader};
use super::segments::{CutMark, Segment, segment_file};
use super::watched_files::{WatchedFiles, check_exists, check_identity};
use super::{Journal, JournalError, io_error};
use crate::failpoint::step;
use crate::sync::{Ordering, lock, try_lock};

/// Segments that the cut freed are kept for the next ones up to this many bytes or two segments, whichever is more.
const SPARE_BYTES_MAX: u64 = 64 << 20;

/// Disk space kept for a seal when there is none left.
const RESERVE_FILE: &str = "reserve";

/// It is tried this often to have the reserve again: an attempt on a full disk writes until it is refused.
const RESERVE_RETRY_EVERY: Duration = Duration::from_secs(10);

/// What tending works on.
pub(super) struct MaintenanceState {
    pub(super) control: ControlFile,
    /// Files that are there for as long as the journal is.
    pub(super) watched: WatchedFiles,
    /// Files the cut has freed, all of `segment_bytes`.
    pub(super) spare_files: Vec<PathBuf>,
    /// Why the last attempt to prepare a segment failed.
    pub(super) full_reason: Option<String>,
    /// Whether the reserve is there, and when it was last tried to make it.
    pub(super) has_reserve: bool,
    pub(super) reserve_tried_at: Option<Duration>,
    /// How many are copying the journal, which is not cut meanwhile.
    pub(super) cut_holds: usize,
}

/// Keeps the journal from being cut, so that it can be copied; everything else goes on.
pub(crate) struct CutHold<'j> {
    journal: &'j Journal,
}

impl CutHold<'_> {
    /// What the control file says, and the segments that hold the journal from its start to here.
    pub(crate) fn extent(&self, end: Position) -> (ControlState, Vec<Segment>) {
        let maintenance = lock(&self.journal.maintenance);
        let control = *maintenance.control.state();
        // Also where nothing follows the start yet: the next record goes into that segment.
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
    /// Keeps the journal from being cut while this is held.
    pub(crate) fn hold_cut(&self) -> CutHold<'_> {
        // A cut under way has the lock until it is done.
        lock(&self.maintenance).cut_holds += 1;
        CutHold { journal: self }
    }

    /// Whether someone keeps it from being cut.
    pub(crate) fn is_cut_held(&self) -> bool {
        lock(&self.maintenance).cut_holds > 0
    }

    /// Prepares segments until there is room ahead again. A full disk is not an error here: writes are refused until it heals.
    pub fn prepare_segments(&self) -> Result<(), JournalError> {
        // A worker may have found the disk full for want of more than is kept ahead; whether it still is, nobody else would find out.
        while self.is_room_low() || self.is_full() {
            // One at a time, so that a worker in need gets its turn.
            if !self.prepare_segment(&mut lock(&self.maintenance))? {
                break;
            }
        }
        self.ensure_reserve(&mut lock(&self.maintenance))
    }

    /// Prepares segments for a worker that found no room for so many bytes, unless someone else just did or the disk is full.
    pub fn prepare_room_now(&self, bytes: usize) -> Result<(), Refusal> {
        let mut maintenance = lock(&self.maintenance);
        // Whether the disk is still full is for the background to find out, not for every command.
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

    /// Prepares segments for what was [overdrawn](Journal::overdraw). Without them the journal ends: what was applied cannot be written down, and nobody is told of it.
    pub fn replenish_room(&self) {
        let mut maintenance = lock(&self.maintenance);
        while self.room.load(Ordering::Acquire) < 0 {
            if let Err(error) = self.try_prepare_segment(&mut maintenance) {
                return self.fail(&error);
            }
        }
    }

    /// Whether the last attempt to prepare a segment found the disk full.
    pub fn is_full(&self) -> bool {
        lock(&self.maintenance).full_reason.is_some()
    }

    /// The same, without waiting for whoever tends at the moment: then it is not known to be.
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
        // What an attempt that failed left behind is in the way of the next one.
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
                // Nor does it keep the last of the space from others meanwhile.
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

    /// Whether so many bytes more are within the quota; an error of the kind that a full disk gives if not.
    pub fn check_quota(&self, bytes: u64) -> io::Result<()> {
        self.enforce_quota(self.disk_bytes() + self.ledger_growth_bytes.load(Ordering::Acquire) + bytes)
    }

    /// Whether the ledger may grow by so many bytes, with the journal as short as a cut at this place leaves it: a seal must not be kept from giving back what
    /// the journal has taken. Nor may the journal take meanwhile what the ledger is about to.
    pub fn reserve_ledger_growth(&self, at: Position, bytes: u64) -> io::Result<()> {
        self.ledger_growth_bytes.store(bytes, Ordering::Release);
        let freed: u64 = {
            let log = lock(&self.log);
            log.segments.iter().take_while(|segment| segment.end <= at).map(Segment::bytes).sum()
        };
        let files = self.files_bytes.load(Ordering::Acquire).saturating_sub(freed);
        self.enforce_quota(files + self.ledger_bytes.load(Ordering::Acquire) + bytes)
    }

    /// What the ledger has grown or shrunk to.
    pub fn set_ledger_bytes(&self, bytes: u64) {
        self.ledger_bytes.store(bytes, Ordering::Release);
    }

    /// The seal that was to make the ledger grow is over.
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

    /// Bytes that files may still take, by the disk and by the quota. What the disk does not tell is taken to be enough.
    pub fn free_bytes(&self) -> u64 {
        let quota =
            self.options.disk_bytes_max.map_or(u64::MAX, |bytes_max| bytes_max.saturating_sub(self.disk_bytes()));
        self.vfs.free_bytes(&self.dir).unwrap_or(u64::MAX).min(quota)
    }

    /// Bytes that journal and ledger take, what is kept for later included.
    pub fn disk_bytes(&self) -> u64 {
        self.files_bytes.load(Ordering::Acquire) + self.ledger_bytes.load(Ordering::Acquire)
    }

    /// Takes disk space for the day when there is none, if there is some to take.
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
            // Then there is none; segments come first.
            Err(error) if error.is_full() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Finds what the last life kept for a full disk: on one, there is nothing else to seal with.
    pub(crate) fn find_reserve(&self) -> Result<(), JournalError> {
        let (mut maintenance, path) = (lock(&self.maintenance), self.dir.join(RESERVE_FILE));
        match self.vfs.open(&path).and_then(|file| file.bytes()) {
            Ok(bytes) if bytes > 0 && bytes == self.options.reserve_bytes => {
                maintenance.has_reserve = true;
                self.files_bytes.fetch_add(bytes, Ordering::AcqRel);
                Ok(())
            }
            // Half made, or of a life with other options.
            Ok(_) => self.vfs.remove(&path).map_err(|e| io_error(&path, "remove", e)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error(&path, "open", error)),
        }
    }

    /// Gives back disk space that is kept for later, for a seal that found none; whether there was any.
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
                // Somebody else in need of space has removed it.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&path, "remove", error)),
                _ => freed += self.options.reserve_bytes,
            }
        }
        self.files_bytes.fetch_sub(freed, Ordering::AcqRel);
        step!("given");
        Ok(freed > 0)
    }

    /// Lets the control file know of a life that began after the start.
    pub fn record_incarnation(&self, incarnation: Incarnation) -> Result<(), JournalError> {
        lock(&self.maintenance).control.update(|control| control.incarnation = incarnation)
    }

    /// Lets the control file know what a clean stop is about to make of the version of the present life's registration.
    pub fn record_released(&self, released: u32) -> Result<(), JournalError> {
        lock(&self.maintenance).control.update(|control| control.released = released)
    }

    /// Lets the control file know how far the journal is synced; `clean` marks a clean stop.
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

    /// Checks that the directory, its control file and its segments are those that this process has open. What is written to a
    /// file that was removed ends with the process, and a directory without it is refused as damaged.
    pub fn check_files(&self) -> Result<(), JournalError> {
        // Under this lock no segment is made, renamed or removed.
        let maintenance = lock(&self.maintenance);
        maintenance.watched.check(&*self.vfs)?;
        let segments: Vec<Segment> = lock(&self.log).segments.iter().cloned().collect();
        segments.iter().try_for_each(|Segment { path, identity, file, .. }| match file {
            Some(_) => check_identity(&*self.vfs, path, *identity),
            // Whole and synced; only a file that is open keeps its number everywhere.
            None => check_exists(&*self.vfs, path),
        })
    }

    /// Marks the present end of the journal as a place to cut at.
    pub fn mark_cut(&self) -> Position {
        // Under the log's lock nothing is handed over, so the chain at this place is not missed.
        let mut log = lock(&self.log);
        let position = self.reserved();
        let previous = (log.written == position).then_some(log.previous);
        log.mark = Some(CutMark { position, previous });
        position
    }

    /// The marked place and the chain there, once everything before it was handed over.
    pub fn cut_mark(&self) -> Option<(Position, u32)> {
        let log = lock(&self.log);
        let mark = log.mark?;
        let previous = mark.previous.or((log.written == mark.position).then_some(log.previous))?;
        Some((mark.position, previous))
    }

    /// Drops what lies before the mark: the ledger has all of it. Not while someone copies the journal; the next cut makes up for it.
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
        // What was given up for a seal on a full disk is made up for first: a journal that takes it all again could never be cut.
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

    /// For INFO and the decision to seal: bytes between the start and what is reserved, and how many segments there are.
    pub fn size(&self) -> (u64, usize) {
        // Asked for by clients, so it waits for no disk: the locks of tending and writing are held over syncs and writes.
        let start = self.start.load(Ordering::Acquire);
        (self.reserved().0.saturating_sub(start), self.segments.load(Ordering::Acquire) as usize)
    }
}

/// Makes a file that takes so many bytes, unless there is one. It need not survive anything.
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

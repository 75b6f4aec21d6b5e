//! Journals the node's results in one ordered log before any reply confirms them.
//!
//! In: records of results, from a turn. Out: written and synced positions, which replies wait for;
//! after a restart, the records again, in order.
//!
//! A commit has two steps, for all filled records. One thread at a time does each step:
//! 1. [`Journal::write_filled`] chains the records and writes them to the file.
//! 2. [`Journal::sync_written`] makes the written bytes durable.
//!
//! A thread that finds a step taken goes on with other work and is woken afterwards.
//!
//! Invariants:
//! - the order of records is the order in which their commands were applied;
//! - `synced` ≤ `written` ≤ reserved, and none of them ever decreases;
//! - after an error of write or sync nothing more is written, synced or acknowledged: the process
//!   ends.
//!
//! Not here: the meaning of a record (`apply`), the schedule of preparing, syncing and cutting
//! (`background`).

pub(crate) mod claim_record;
pub mod control;
mod error;
pub mod format;
mod maintenance;
mod pending_records;
pub(crate) mod pressure;
pub mod reader;
mod record_builder;
pub(crate) mod sampling_record;
pub mod segments;
pub(crate) mod stored_outcome;
mod sync_times;
pub(crate) mod token_key;
mod waiters;
mod watched_files;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::task::Waker;
use std::time::Duration;

use quipu_model::{Clock, Refusal, Vfs, VfsFile};

use self::control::ControlFile;
pub(crate) use self::error::io_error;
pub use self::error::{Damage, JournalError};
use self::format::{Position, finish_record};
pub(crate) use self::maintenance::CutHold;
use self::maintenance::MaintenanceState;
use self::pending_records::{FilledRecords, PendingRecords};
use self::pressure::{PressureSigns, SYNC_LATE};
use self::reader::Tail;
pub use self::record_builder::{AddResult, RecordBuilder};
use self::segments::{Segment, SegmentLog};
use self::sync_times::SyncTimes;
pub use self::sync_times::{SYNC_SECONDS, SyncCounts};
pub use self::waiters::Wait;
use self::waiters::Waiters;
use self::watched_files::WatchedFiles;
use crate::base::failpoint::step;
use crate::base::options::LEDGER_DIR;
use crate::base::sync::{Arc, AtomicI64, AtomicU64, Mutex, OnceLock, Ordering, lock, try_lock};

/// Slow fsync: beyond this, commits move to a thread and workers go on with work that needs no
/// disk.
pub const SYNC_SLOW: Duration = Duration::from_millis(10);

/// Number of consecutive fast fsyncs that move commits back to the workers.
const SYNC_FAST_RUNS: u64 = 8;

/// Sizes of a journal.
#[derive(Debug, Clone, Copy)]
pub struct JournalOptions {
    /// Length of a segment file.
    pub segment_bytes: u64,
    /// Room kept prepared ahead.
    pub ahead_bytes: u64,
    /// True: new segments are filled with zeros, so that syncs touch no metadata. False: their
    /// space is only allocated. That writes half as much, and is enough if no reply waits for
    /// syncs.
    pub zeros: bool,
    /// Most bytes applied but not yet written; beyond it, writes are refused.
    pub pending_bytes_max: u64,
    /// Most bytes of disk for journal and ledger.
    pub disk_bytes_max: Option<u64>,
    /// Disk space reserved for a seal on a full disk.
    pub reserve_bytes: u64,
}

/// Most bytes of a write buffer kept for reuse: the records of one turn of a worker with short
/// pipelines. A buffer of one megabyte was visible in the footprint of a server with a small memory
/// limit.
const SPARE_BUFFER_BYTES_MAX: usize = 128 << 10;

/// The journal of a running node.
pub struct Journal {
    vfs: Arc<dyn Vfs>,
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    /// Log id, drawn when the directory was made.
    log_id: u64,
    options: JournalOptions,
    /// A leaf lock: no other lock is taken while it is held.
    pending: Mutex<PendingRecords>,
    /// Held by the thread that writes records. It is separate from `log`, which others hold
    /// briefly. A thread that finds this lock taken relies on the holder to look for newly filled
    /// records after it releases the lock.
    write_lock: Mutex<()>,
    /// Held during a write of records, and briefly to add, drop and look up segments.
    log: Mutex<SegmentLog>,
    /// Held during an fsync.
    sync_lock: Mutex<()>,
    /// Held while segments are prepared or cut, and while the control file is written.
    maintenance: Mutex<MaintenanceState>,
    written: AtomicU64,
    synced: AtomicU64,
    /// Bytes of prepared segments that are not reserved for an admitted command.
    room: AtomicI64,
    /// Position of the first live record; then the number of segments. For [`Journal::size`].
    start: AtomicU64,
    segments: AtomicU64,
    waiters: Waiters,
    /// Set once, by the first error of write or sync.
    failure_reason: OnceLock<String>,
    on_failure: Arc<dyn Fn(&str) + Send + Sync>,
    /// Duration of the newest slow fsync, in microseconds; while it is set, the background thread
    /// commits. 0: syncs are fast.
    slow_micros: AtomicU64,
    fast_runs: AtomicU64,
    /// Bytes of all files of the journal; then bytes of the ledger. The quota limits their sum.
    files_bytes: AtomicU64,
    ledger_bytes: AtomicU64,
    /// Bytes by which the ledger is about to grow.
    ledger_growth_bytes: AtomicU64,
    /// Number of commands that found no room prepared.
    shortages: AtomicU64,
    /// Start of the sync in progress, in microseconds, plus one; 0: no sync in progress.
    sync_began_micros: AtomicU64,
    /// Sync durations, for INFO and metrics.
    pub(crate) sync_times: SyncTimes,
}

impl Journal {
    /// Continues a journal at its tail.
    pub fn new(
        (vfs, clock): (Arc<dyn Vfs>, Arc<dyn Clock>),
        dir: &Path,
        options: JournalOptions,
        control: ControlFile,
        segments: Vec<Segment>,
        tail: &Tail,
        on_failure: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Journal {
        let log = SegmentLog {
            segments: VecDeque::from(segments),
            written: tail.position,
            previous: tail.previous,
            mark: None,
            spare_buffers: FilledRecords::default(),
        };
        let files_bytes = log.segments.iter().map(Segment::bytes).sum();
        let room = log.end().map_or(0, |end| end.0 - tail.position.0);
        let watched = WatchedFiles::new(&*vfs, [dir, control.path(), &dir.join(LEDGER_DIR)]);
        let (control_state, segment_count) = (*control.state(), log.segments.len() as u64);
        Journal {
            vfs,
            clock,
            dir: dir.to_owned(),
            log_id: control_state.log,
            options,
            pending: Mutex::new(PendingRecords::new(tail.position)),
            log: Mutex::new(log),
            write_lock: Mutex::new(()),
            sync_lock: Mutex::new(()),
            maintenance: Mutex::new(MaintenanceState {
                control,
                watched,
                spare_files: Vec::new(),
                full_reason: None,
                has_reserve: false,
                reserve_tried_at: None,
                cut_holds: 0,
            }),
            written: AtomicU64::new(tail.position.0),
            // Bytes in the files that are not known to be synced may still be lost: only a sync
            // counts.
            synced: AtomicU64::new(tail.synced.0),
            room: AtomicI64::new(room as i64),
            start: AtomicU64::new(control_state.start.0),
            segments: AtomicU64::new(segment_count),
            waiters: Waiters::default(),
            failure_reason: OnceLock::new(),
            on_failure,
            slow_micros: AtomicU64::new(0),
            fast_runs: AtomicU64::new(0),
            files_bytes: AtomicU64::new(files_bytes),
            ledger_bytes: AtomicU64::new(0),
            ledger_growth_bytes: AtomicU64::new(0),
            shortages: AtomicU64::new(0),
            sync_began_micros: AtomicU64::new(0),
            sync_times: SyncTimes::new(),
        }
    }

    /// The file system of the journal.
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        &*self.vfs
    }

    // ---- room ----

    /// Reserves room for `bytes`, or refuses.
    pub fn reserve_room(&self, bytes: usize) -> Result<(), Refusal> {
        let behind_bytes = lock(&self.pending).end().0 - self.written.load(Ordering::Acquire);
        if behind_bytes > 0 && behind_bytes + bytes as u64 > self.options.pending_bytes_max {
            return Err(Refusal::Behind { behind_bytes });
        }
        // One atomic step. With subtract and give back, another turn could be refused although room
        // exists.
        let left = |room: i64| room.checked_sub(bytes as i64).filter(|left| *left >= 0);
        if self.room.fetch_update(Ordering::AcqRel, Ordering::Acquire, left).is_ok() {
            return Ok(());
        }
        let maintenance = try_lock(&self.maintenance);
        let reason = maintenance
            .and_then(|t| t.full_reason.clone())
            .unwrap_or_else(|| "segments are still being prepared".to_owned());
        Err(Refusal::NoRoom { reason })
    }

    /// Keeps room unreserved: a start on a full disk must write a record, and so must the starts
    /// after it.
    pub fn reserve_start_room(&self) {
        /// About twenty starts.
        const STARTS_BYTES: i64 = 1024;
        self.room.fetch_sub(STARTS_BYTES, Ordering::AcqRel);
    }

    /// Returns room that was reserved and not used.
    pub fn return_room(&self, bytes: usize) {
        self.room.fetch_add(bytes as i64, Ordering::AcqRel);
    }

    /// Takes unreserved room, for a record that already has its position. Until
    /// [`Journal::replenish_room`], other commands may be refused.
    pub fn overcommit_room(&self, bytes: usize) {
        self.room.fetch_sub(bytes as i64, Ordering::AcqRel);
    }

    /// Returns true if segments should be prepared.
    pub fn is_room_low(&self) -> bool {
        self.room.load(Ordering::Acquire) < self.options.ahead_bytes as i64
    }

    // ---- reserve, fill, write, sync ----

    /// Reserves the next range for a record of `bytes`. The caller holds the lock of the record's
    /// table shards, and has room.
    pub fn reserve(&self, bytes: usize) -> Position {
        lock(&self.pending).reserve(bytes)
    }

    /// Copies record bytes into reserved ranges.
    pub fn fill<'r>(&self, records: impl IntoIterator<Item = (Position, &'r [u8])>) {
        let mut pending = lock(&self.pending);
        let blocked = !pending.has_filled();
        for (position, record) in records {
            pending.fill(position, record);
        }
        // Other threads may wait behind the range that was empty until now, and this thread may not
        // commit.
        let unblocked = blocked && pending.has_filled();
        drop(pending);
        if unblocked {
            self.waiters.wake();
        }
    }

    /// Writes all filled records to the file. Does nothing if another thread is writing.
    pub fn write_filled(&self) {
        let Some(write_guard) = try_lock(&self.write_lock) else { return };
        let before = self.written();
        self.write_filled_locked(&mut lock(&self.log));
        let progress = before < self.written();
        drop(write_guard);
        // A thread that filled a record meanwhile found this one writing, and waits for its
        // wake-up.
        if progress || lock(&self.pending).has_filled() {
            self.waiters.wake();
        }
    }

    fn write_filled_locked(&self, log: &mut SegmentLog) {
        if self.failure_reason.get().is_some() {
            return;
        }
        let mut filled = lock(&self.pending).take_filled(std::mem::take(&mut log.spare_buffers));
        if filled.bytes.is_empty() {
            log.spare_buffers = filled;
            return;
        }
        debug_assert_eq!(filled.base, log.written, "records are handed over without a gap");
        let synced = Position(self.synced.load(Ordering::Acquire));
        let (mut position, mut rest) = (filled.base, filled.bytes.as_mut_slice());
        for &length in &filled.lengths {
            let (record, later) = rest.split_at_mut(length);
            log.record_mark_chain(position);
            log.previous = finish_record(record, self.log_id, position, log.previous, synced) as u32;
            position = position.plus(length as u64);
            rest = later;
        }
        step!("chained");
        if let Err(error) = log.write(&filled.bytes) {
            return self.fail(&error);
        }
        step!("written");
        if filled.bytes.capacity() <= SPARE_BUFFER_BYTES_MAX {
            log.spare_buffers = filled;
        }
        self.written.store(position.0, Ordering::Release);
    }

    /// Makes all written records durable. Does nothing if another thread is syncing.
    pub fn sync_written(&self) {
        let Some(sync_guard) = try_lock(&self.sync_lock) else { return };
        let (from, to) = (self.synced(), self.written());
        if from < to && self.failure_reason.get().is_none() {
            let segments = lock(&self.log).segments_between(from, to);
            let began = self.clock.elapsed();
            self.sync_began_micros.store(began.as_micros() as u64 + 1, Ordering::Relaxed);
            for segment in &segments {
                let file = segment.file.as_ref().expect("a segment stays open until it is synced to its end");
                if let Err(error) = file.sync_data() {
                    return self.fail(&io_error(&segment.path, "sync", error));
                }
            }
            self.sync_began_micros.store(0, Ordering::Relaxed);
            self.record_sync_time(self.clock.elapsed().saturating_sub(began));
            step!("synced");
            self.synced.store(to.0, Ordering::Release);
            if segments.len() > 1 {
                lock(&self.log).close_synced(to);
            }
        }
        drop(sync_guard);
        // As in `write_filled`: records written meanwhile may belong to a thread that found this
        // one syncing.
        if from < to || self.synced() < self.written() {
            self.waiters.wake();
        }
    }

    /// Waits until all filled records are written; for the background thread, with its large
    /// records.
    pub fn drain_filled(&self) -> Result<(), Refusal> {
        // Blocks on purpose: the holder of the lock is writing, and then it is this thread's turn.
        drop(lock(&self.write_lock));
        self.write_filled();
        match self.failure() {
            Some(reason) => Err(Refusal::NoRoom { reason: reason.to_owned() }),
            None => Ok(()),
        }
    }

    fn record_sync_time(&self, took: Duration) {
        self.sync_times.record(took);
        if took > SYNC_SLOW {
            self.fast_runs.store(0, Ordering::Relaxed);
            self.slow_micros.store(took.as_micros() as u64, Ordering::Release);
        } else if self.fast_runs.fetch_add(1, Ordering::Relaxed) + 1 >= SYNC_FAST_RUNS {
            self.slow_micros.store(0, Ordering::Release);
        }
    }

    /// Signs of pressure, for [`pressure::Pressure`].
    pub fn pressure_signs(&self) -> PressureSigns {
        let written = self.written();
        let behind_bytes = lock(&self.pending).end().0.saturating_sub(written.0);
        PressureSigns {
            full: self.is_full_hint(),
            behind: behind_bytes > self.options.pending_bytes_max / 2,
            late_syncs: self.sync_times.count_longer_than(SYNC_LATE),
            shortages: self.shortages.load(Ordering::Relaxed),
            sync_since: self.sync_began_micros.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros),
        }
    }

    /// Returns true while the background thread commits.
    pub fn is_slow(&self) -> bool {
        self.slow_sync().is_some()
    }

    /// Duration of the slow fsync that moved commits to the background thread.
    pub fn slow_sync(&self) -> Option<Duration> {
        let micros = self.slow_micros.load(Ordering::Acquire);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Ends the journal: nothing is written, synced or acknowledged after this.
    pub fn fail(&self, error: &JournalError) {
        let text = error.to_string();
        if self.failure_reason.set(text.clone()).is_ok() {
            (self.on_failure)(&text);
        }
        self.waiters.wake();
    }

    /// Reason why the journal accepts nothing more, if it has failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure_reason.get().map(String::as_str)
    }

    // ---- positions ----

    /// Position up to which records are written to the file.
    pub fn written(&self) -> Position {
        Position(self.written.load(Ordering::Acquire))
    }

    /// Position up to which records are synced.
    pub fn synced(&self) -> Position {
        Position(self.synced.load(Ordering::Acquire))
    }

    /// Position up to which ranges are reserved.
    pub fn reserved(&self) -> Position {
        lock(&self.pending).end()
    }

    /// Returns true if a reply with this wait may leave.
    pub fn has_reached(&self, wait: Wait) -> bool {
        wait.written <= self.written() && wait.synced <= self.synced()
    }

    /// Wakes all waiters to check their positions again.
    pub fn wake_all(&self) {
        self.waiters.wake();
    }

    /// Registers a waker for the next step of a commit.
    pub fn register_waker(&self, waker: &Waker) {
        self.waiters.add(waker);
    }
}

/// Reads until the buffer is full or the file ends; returns the number of bytes read.
pub(crate) fn read_full(file: &dyn VfsFile, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

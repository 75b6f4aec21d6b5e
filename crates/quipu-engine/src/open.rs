//! Opening a data directory: lock, control file, replay, and a new life.
//!
//! In: a directory, of a new node, after a clean stop or after a crash at any point, one within this very function included.
//! Out: an engine whose table is the state that the journal describes; or an error that names the file, and nothing changed.
//!
//! Invariants:
//! - nothing is written before the whole journal was read and found good;
//! - what was recovered is synced, and a record that begins the new life stands behind it, before anyone is told anything.

use std::path::Path;

use quipu_model::{Cell, Incarnation, LockError, Millis, NodeId, Vfs, Writer};

use crate::admit::Policies;
use crate::apply::table::Table;
use crate::engine::Inner;
use crate::failpoint::step;
use crate::journal::control::{Control, ControlFile};
use crate::journal::format::{Entry, Position};
use crate::journal::recover::{Found, Record, Tail, find_segments, open_control, replay, stream_damage};
use crate::journal::segments::Segment;
use crate::journal::{Damage, Draft, Journal, JournalError, JournalOptions, io_error};
use crate::options::{Environment, Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::sync::{AtomicBool, AtomicU64, Mutex, OnceLock};

/// The file whose lock marks a directory as in use.
const LOCK_FILE: &str = "lock";

/// Why an engine could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the directory.
    #[error("data directory {} is in use: {source}", .dir.display())]
    InUse {
        /// Which directory.
        dir: std::path::PathBuf,
        /// By whom.
        source: LockError,
    },
    /// The journal cannot be used as it is.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// There is no space even to begin.
    #[error("no room to begin in {}: {reason}", .dir.display())]
    NoRoom {
        /// Which directory.
        dir: std::path::PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// An option that makes no sense.
    #[error("{0}")]
    Options(String),
}

/// What a start found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Records read.
    pub records: u64,
    /// Where they ended, and whether something torn stood behind them.
    pub tail: Tail,
    /// Whether the last life ended with a clean stop.
    pub clean: bool,
}

pub(crate) fn open(options: Options, environment: Environment) -> Result<Inner, OpenError> {
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
        let bytes = options.segment_bytes;
        let bounds = format!("from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}");
        return Err(OpenError::Options(format!("segment_bytes is {bytes}, it must be {bounds}")));
    }
    let Environment { clock, rng, vfs, on_failure } = environment;
    let dir = options.data.clone();
    vfs.create_dir(&dir).map_err(|e| io_error(&dir, "create", e))?;
    let lock = vfs.lock(&dir.join(LOCK_FILE)).map_err(|source| OpenError::InUse { dir: dir.clone(), source })?;

    let mut control = match open_control(&*vfs, &dir)? {
        Some(control) => control,
        None => ControlFile::create(&*vfs, &dir, new_control(rng.next(), rng.next()))?,
    };
    step!("control");
    let Found { mut segments, leftovers } = find_segments(&*vfs, &dir, control.state())?;
    let table = Table::new(options.table_shards, rng.next());
    let mut restored = Restored { table: &table, time: Millis(0), records: 0 };
    let tail = replay(&*vfs, control.state(), &segments, |record| restored.take(&segments, record))?;
    let Restored { time, records, .. } = restored;
    step!("replayed");

    for path in leftovers {
        vfs.remove(&path).map_err(|e| io_error(&path, "remove", e))?;
    }
    adopt_prepared(&*vfs, &dir, &mut control, &segments)?;
    // Those that may have something to sync or to write.
    for segment in segments.iter_mut().filter(|segment| segment.end > tail.synced) {
        segment.reopen(&*vfs)?;
    }
    let clean = control.state().clean;
    // After a crash a suffix of the last life may be lost that others have seen: a new incarnation.
    let incarnation = if clean { control.state().incarnation } else { Incarnation(rng.next()) };
    let writer = Writer { node: control.state().node, incarnation };
    // Into both slots: a damaged one must not fall back to a clean stop that is no longer true.
    for _ in 0..2 {
        control.write(|control| {
            control.clean = false;
            control.incarnation = incarnation;
        })?;
    }
    step!("incarnation");
    let journal_options = JournalOptions {
        segment_bytes: options.segment_bytes,
        ahead_bytes: options.ahead_bytes(),
        pending_bytes_max: options.pending_bytes_max,
    };
    let environment = (vfs, clock.clone());
    let journal = Journal::new(environment, &dir, journal_options, control, segments, &tail, on_failure);
    journal.prepare()?;
    let inner = Inner {
        policies: Policies::new(options.durability, options.namespaces.iter().cloned()),
        table,
        journal,
        writer,
        clock,
        time: AtomicU64::new(time.0),
        recovery: Recovery { records, tail, clean },
        kick: OnceLock::new(),
        closed: AtomicBool::new(false),
        closing: Mutex::new(false),
        options,
        _lock: lock,
    };
    begin_life(&inner).map_err(|reason| OpenError::NoRoom { dir, reason })?;
    Ok(inner)
}

fn new_control(node: u64, log: u64) -> Control {
    let (start, base, synced) = (Position(0), Position(0), Position(0));
    let (node, incarnation) = (NodeId(node), Incarnation(0));
    Control { clean: false, generation: 0, node, log, incarnation, start, previous: 0, first: 0, end: 0, base, synced }
}

/// Segments that were prepared but not yet entered in the control file are entered now, once they are surely durable.
fn adopt_prepared(
    vfs: &dyn Vfs,
    dir: &Path,
    control: &mut ControlFile,
    segments: &[Segment],
) -> Result<(), JournalError> {
    let end = control.state().first + segments.len() as u64;
    if end == control.state().end {
        return Ok(());
    }
    for segment in segments.iter().filter(|segment| segment.number >= control.state().end) {
        let file = vfs.open(&segment.path).map_err(|e| io_error(&segment.path, "open", e))?;
        file.sync_data().map_err(|e| io_error(&segment.path, "sync", e))?;
    }
    vfs.sync_dir(dir).map_err(|e| io_error(dir, "sync", e))?;
    let base = segments.last().map_or(control.state().base, |segment| segment.end);
    control.write(|control| {
        control.end = end;
        control.base = base;
    })
}

/// Makes what was recovered durable and writes the record that begins this life: it breaks the chain to whatever a torn tail left.
fn begin_life(inner: &Inner) -> Result<(), String> {
    let mut draft = Draft::default();
    draft.push(inner.now(), &Entry::Start { writer: inner.writer });
    let record = draft.close().expect("an entry was pushed");
    let journal = &inner.journal;
    journal.reserve_room(record.len()).map_err(|refusal| refusal.to_string())?;
    let position = journal.reserve(record.len());
    journal.fill([(position, &draft.bytes()[record])]);
    journal.hand_over();
    journal.sync();
    step!("begun");
    match journal.failure() {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(()),
    }
}

struct Restored<'t> {
    table: &'t Table,
    time: Millis,
    records: u64,
}

impl Restored<'_> {
    /// Last record wins: every entry replaces what was known of its counter.
    fn take(&mut self, segments: &[Segment], record: &Record<'_>) -> Result<(), Damage> {
        self.time = self.time.max(record.body.time);
        self.records += 1;
        for entry in record.body.entries() {
            match entry.map_err(|bad| stream_damage(segments, record.position, bad.to_string()))? {
                Entry::Cell { name, epoch, value, expires_at, .. } => {
                    let hash = self.table.hash(name);
                    let mut shard = self.table.lock(self.table.shard_of(hash));
                    let made = shard.put(hash, name, Cell { epoch, value, expires_at });
                    self.table.note_counters(i64::from(made));
                }
                Entry::Gone { name, epoch } => {
                    let hash = self.table.hash(name);
                    let mut shard = self.table.lock(self.table.shard_of(hash));
                    let gone = shard.remove(hash, name).is_some();
                    shard.floor = shard.floor.max(epoch);
                    self.table.note_counters(-i64::from(gone));
                }
                Entry::Flush { epoch } => self.each_shard(|shard| {
                    let gone = shard.clear();
                    shard.floor = shard.floor.max(epoch);
                    -(gone as i64)
                }),
                Entry::Floor { epoch } => self.each_shard(|shard| {
                    shard.floor = shard.floor.max(epoch);
                    0
                }),
                Entry::Start { .. } => {}
            }
        }
        Ok(())
    }

    fn each_shard(&self, mut change: impl FnMut(&mut crate::apply::table::Shard) -> i64) {
        for index in 0..self.table.shard_count() {
            let counters = change(&mut self.table.lock(index));
            self.table.note_counters(counters);
        }
    }
}

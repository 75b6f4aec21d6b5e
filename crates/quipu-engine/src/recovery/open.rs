//! Opens a data directory: takes the lock, reads the control file, replays, begins a new
//! incarnation.
//!
//! In: a directory: of a new node, after a clean stop, or after a crash at any point. That includes
//! a crash within this very function. Out: an engine with the state that the journal describes.
//! Otherwise: an error that names the file, and nothing changed.
//!
//! Invariants:
//! - nothing is written before the whole journal was read and found good;
//! - before any reply, the recovered state is synced, with a record behind it that begins the new
//!   incarnation.

use std::path::Path;

use quipu_model::{Durability, Incarnation, LedgerError, LockError, Namespace, NodeId, Vfs, Writer};

use crate::apply::bodies as sketches;
use crate::base::failpoint::step;
use crate::base::file_names::LOCK_FILE;
use crate::base::options::{Environment, LEDGER_DIR, Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, OnceLock};
use crate::base::time::EngineTime;
use crate::core::load::LoadQueues;
use crate::core::watermark::Watermark;
use crate::core::{CompactionState, Core, Recovery};
use crate::journal::control::{CONTROL_FILE, CONTROL_FILE_NEW, CONTROL_FILE_UNFINISHED, ControlFile, ControlState};
use crate::journal::format::{Entry, Position};
use crate::journal::pressure::Pressure;
use crate::journal::reader::{SegmentList, find_segments, open_control};
use crate::journal::segments::{Segment, segment_number};
use crate::journal::{Journal, JournalError, JournalOptions, RecordBuilder, io_error};
use crate::namespaces::{Namespaces, SamplingRecord};
use crate::recovery::{self, RecoveredState, read_watermark, recover};
use crate::sharing::{CleanStop, StoreLink};
use crate::table::lanes::LaneRegistry;
use crate::tokens::Tokens;

/// Directory that file systems create in their root: an empty mount has nothing else.
const LOST_AND_FOUND: &str = "lost+found";

/// Most file names of a foreign directory in an error.
const FOREIGN_NAMES_MAX: usize = 3;

/// Reason why an engine could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses the directory.
    #[error("data directory {} is in use: {source}", .dir.display())]
    InUse {
        /// The directory.
        dir: std::path::PathBuf,
        /// The lock's error, with its holder.
        source: LockError,
    },
    /// No file can be created in the directory.
    #[error("cannot write to data directory {}: {source}; {}, or name another directory", .dir.display(), write_advice(source))]
    Unwritable {
        /// The directory.
        dir: std::path::PathBuf,
        /// The file system's error.
        source: std::io::Error,
    },
    /// The directory has files of another program.
    #[error("{} is not a data directory, and not empty: it has {found}; name an empty or a new directory", .dir.display())]
    Foreign {
        /// The directory.
        dir: std::path::PathBuf,
        /// Some of its files.
        found: String,
    },
    /// The journal cannot be used as it is.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The ledger cannot be used as it is.
    #[error("{}: {source}", .dir.join(LEDGER_DIR).display())]
    Ledger {
        /// The data directory.
        dir: std::path::PathBuf,
        /// The ledger's error.
        source: LedgerError,
    },
    /// There is no disk space for the first record.
    #[error("no room to begin in {}: {reason}", .dir.display())]
    NoRoom {
        /// The directory.
        dir: std::path::PathBuf,
        /// The reason.
        reason: String,
    },
    /// An invalid option.
    #[error("{0}")]
    Options(String),
}

/// Advice for a directory that cannot be written.
fn write_advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::ReadOnlyFilesystem => "mount its file system for writing",
        _ => "check its owner and permissions",
    }
}

pub(crate) fn open(options: Options, environment: Environment) -> Result<Core, OpenError> {
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
        let bytes = options.segment_bytes;
        let bounds = format!("from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}");
        return Err(OpenError::Options(format!("segment_bytes is {bytes}, it must be {bounds}")));
    }
    let Environment { clock, rng, vfs, open_ledger, store, on_failure } = environment;
    options.namespaces.iter().try_for_each(|(name, settings)| check_namespace(name, settings, store.is_some()))?;
    let dir = options.data.clone();
    vfs.create_dir(&dir).map_err(|e| io_error(&dir, "create", e))?;
    check_directory(&*vfs, &dir)?;
    let refused = |error| match error {
        LockError::Held { .. } => OpenError::InUse { dir: dir.clone(), source: error },
        LockError::Io(source) => OpenError::Unwritable { dir: dir.clone(), source },
    };
    let mut lock = vfs.lock(&dir.join(LOCK_FILE)).map_err(refused)?;

    let mut control = match open_control(&*vfs, &dir)? {
        Some(control) => control,
        None => ControlFile::create(&*vfs, &dir, new_control(rng.next(), rng.next()))?,
    };
    lock.lock_file(control.path()).map_err(refused)?;
    step!("control");
    let SegmentList { mut segments, leftovers } = find_segments(&*vfs, &dir, control.state())?;
    let ledger = open_ledger(&options).map_err(|source| OpenError::Ledger { dir: dir.clone(), source })?;
    let ledger_dir = dir.join(LEDGER_DIR);
    // A ledger need not be a directory of this file system.
    if vfs.identity(&ledger_dir).is_ok() {
        lock.keep_open(&ledger_dir).map_err(|e| io_error(&ledger_dir, "open", e))?;
    }
    let at_rest = read_watermark(&*ledger, &dir, control.state())?;
    step!("watermark");
    let fresh = || Watermark::new(control.state().log, options.table_shards, rng.next());
    let directory = recovery::DataDir {
        vfs: &*vfs,
        dir: &dir,
        control: control.state(),
        segments: &segments,
        ledger: &*ledger,
        threads: options.restore_threads,
    };
    let recovered = recover(directory, at_rest, fresh, |_| Ok(()))?;
    let RecoveredState {
        table,
        watermark,
        unloaded,
        time,
        records,
        flush,
        tail,
        joined,
        horizon,
        namespaces: declared,
        sampling,
    } = recovered;
    if store.is_none() && !joined.is_empty() {
        let reason =
            "its counters are shared with other nodes: it cannot be opened without the store that it has joined";
        return Err(OpenError::Options(format!("{}: {reason}", dir.display())));
    }
    if store.is_some() && (0..table.shard_count()).any(|shard| !table.lock(shard).bodies().is_empty()) {
        let reason = "it has counters of approximate kinds from before it had a store: they hash what they count by a secret of this directory, so that they cannot be laid together with those of other nodes";
        return Err(OpenError::Options(format!("{}: {reason}", dir.display())));
    }
    if store.is_some()
        && let Some((name, _)) = sampling.first_key_value()
    {
        let reason = "was sampled before it had a store: other nodes would take its counters for exact ones";
        return Err(OpenError::Options(format!("{}: namespace {} {reason}", dir.display(), name.escape_ascii())));
    }
    declared.iter().try_for_each(|(name, put)| check_namespace(name, &put.settings, store.is_some()))?;
    let (namespaces, unjournaled) = Namespaces::new(&options, declared, sampling);
    step!("replayed");

    for path in leftovers {
        vfs.remove(&path).map_err(|e| io_error(&path, "remove", e))?;
    }
    adopt_prepared_segments(&*vfs, &dir, &mut control, &segments)?;
    // The segments that may have something to sync or to write.
    for segment in segments.iter_mut().filter(|segment| segment.end > tail.synced) {
        segment.reopen(&*vfs)?;
    }
    let clean = control.state().clean;
    let identity = vfs.identity(control.path()).map_err(|e| io_error(control.path(), "look at", e))?;
    let copied = ![0, identity].contains(&control.state().identity);
    // After a crash, a suffix of the last incarnation that others have seen may be lost. Of a
    // copied directory, two may continue from the same stop. Both cases need a new incarnation.
    let last = (clean && !copied).then_some(control.state().incarnation);
    let released = control.state().released;
    // On a shared store, a cleanly stopped incarnation continues once the store has confirmed it;
    // until then another one adds.
    let incarnation = last.filter(|_| store.is_none()).unwrap_or_else(|| Incarnation(rng.next()));
    let writer = Writer { node: control.state().node, incarnation };
    // Into both slots: a damaged one must not fall back to a clean stop that is no longer true.
    for _ in 0..2 {
        control.update(|control| {
            control.clean = false;
            control.released = 0;
            control.incarnation = incarnation;
            control.identity = identity;
        })?;
    }
    step!("incarnation");
    let journal_options = JournalOptions {
        segment_bytes: options.segment_bytes,
        ahead_bytes: options.ahead_bytes(),
        pending_bytes_max: options.pending_bytes_max,
        disk_bytes_max: options.disk_bytes_max,
        reserve_bytes: options.reserve_bytes,
        zeros: namespaces.current().strictest() > Durability::Relaxed,
    };
    let (environment, log) = ((vfs, clock.clone()), control.state().log);
    let journal = Journal::new(environment, &dir, journal_options, control, segments, &tail, on_failure);
    let ledger_stats = ledger.stats();
    journal.set_ledger_bytes(ledger_stats.disk_bytes);
    journal.find_reserve()?;
    journal.prepare_segments()?;
    if journal.is_full() && journal.release_spare_space()? {
        journal.prepare_segments()?;
    }
    let clean_stop =
        last.filter(|_| released != 0).map(|incarnation| CleanStop { incarnation, released_version: released });
    let shared = store.map(|store| StoreLink::new(store, options.sharing.clone(), rng.clone(), writer, clean_stop));
    let remembered = (0..table.shard_count()).map(|shard| table.lock(shard).tokens().counts());
    let remembered = remembered.fold((0, 0), |(tokens, producers), one| (tokens + one.0, producers + one.1));
    let tokens = Tokens::new(&options, log, horizon, remembered);
    let core = Core {
        sketch_key: match &shared {
            Some(shared) => sketches::shared_key(&shared.options.secret.0),
            None => sketches::directory_key(log),
        },
        tokens,
        namespaces,
        table,
        journal,
        writer,
        time: EngineTime::begin(time, &*clock),
        clock,
        recovery: Recovery { records, tail, clean, copied },
        unloaded: AtomicBool::new(unloaded && flush.end == Position(0)),
        seal_lock: Mutex::new(()),
        backup_lock: Mutex::new(()),
        ledger,
        ledger_stats: Mutex::new(ledger_stats),
        watermark: Mutex::new(watermark),
        lanes: LaneRegistry::default(),
        loads: LoadQueues::default(),
        batch_next: AtomicU32::new(0),
        batch_sealed: AtomicU32::new(0),
        evicted: AtomicU64::new(0),
        flush: Mutex::new(flush),
        compaction: CompactionState::default(),
        joined: Mutex::new(joined),
        shared,
        pressure: Mutex::new(Pressure::new()),
        signals: OnceLock::new(),
        closed: AtomicBool::new(false),
        close_done: Mutex::new(false),
        options,
        _lock: lock,
    };
    core.count_all_limited().map_err(|source| OpenError::Ledger { dir: dir.clone(), source })?;
    core.table.seed_rng(core.writer.incarnation.0 ^ core.recovery.tail.position.0.rotate_left(32));
    begin_incarnation(&core, &unjournaled).map_err(|reason| OpenError::NoRoom { dir, reason })?;
    // Ends sampling that this incarnation no longer does; without room, that happens later.
    core.retry_end_sampling();
    Ok(core)
}

/// Refuses a namespace with settings that exclude each other or the store.
fn check_namespace(name: &[u8], settings: &Namespace, shared: bool) -> Result<(), OpenError> {
    let mistakes = settings.conflicts(shared);
    if mistakes.is_empty() {
        return Ok(());
    }
    Err(OpenError::Options(format!("namespace {}: {}", name.escape_ascii(), mistakes.join("; "))))
}

/// Refuses a directory that has files but none of ours.
fn check_directory(vfs: &dyn Vfs, dir: &Path) -> Result<(), OpenError> {
    let mut names = vfs.list(dir).map_err(|e| io_error(dir, "list", e))?;
    names.retain(|name| name != LOST_AND_FOUND);
    let is_ours = |name: &String| {
        [LOCK_FILE, CONTROL_FILE, CONTROL_FILE_NEW, CONTROL_FILE_UNFINISHED, LEDGER_DIR].contains(&name.as_str())
            || segment_number(name).is_some()
    };
    if names.is_empty() || names.iter().any(is_ours) {
        return Ok(());
    }
    names.sort();
    let more = names.len().saturating_sub(FOREIGN_NAMES_MAX);
    names.truncate(FOREIGN_NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(OpenError::Foreign { dir: dir.to_owned(), found: format!("{}{more}", names.join(", ")) })
}

fn new_control(node: u64, log: u64) -> ControlState {
    let (start, base, synced) = (Position(0), Position(0), Position(0));
    let (node, incarnation) = (NodeId(node), Incarnation(0));
    let (first, end, identity) = (0, 0, 0);
    ControlState {
        clean: false,
        generation: 0,
        node,
        log,
        incarnation,
        start,
        previous: 0,
        released: 0,
        first,
        end,
        base,
        synced,
        identity,
    }
}

/// Adds segments to the control file that were prepared but not yet listed, once they are surely
/// durable.
fn adopt_prepared_segments(
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
    control.update(|control| {
        control.end = end;
        control.base = base;
    })
}

/// Makes the recovered state durable and writes the record that begins this incarnation. That
/// record breaks the chain to the bytes of a torn tail. It also holds the namespaces' sampling from
/// here on.
fn begin_incarnation(core: &Core, sampling: &[(Box<[u8]>, SamplingRecord)]) -> Result<(), String> {
    let mut builder = RecordBuilder::default();
    builder.push(core.now(), &Entry::Start { writer: core.writer });
    for (name, sampling) in sampling {
        builder.push(core.now(), &Entry::Sampling { name, sampling: *sampling });
    }
    let record = builder.close_record().expect("an entry was pushed");
    let journal = &core.journal;
    journal.reserve_room(record.len()).map_err(|refusal| refusal.to_string())?;
    let position = journal.reserve(record.len());
    journal.fill([(position, &builder.bytes()[record])]);
    journal.write_filled();
    journal.sync_written();
    journal.reserve_start_room();
    step!("begun");
    match journal.failure() {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(()),
    }
}

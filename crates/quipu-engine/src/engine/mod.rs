//! The engine's public interface: open, count, read, close.
//!
//! Protocol crates take [`Engine::turn`] and await [`Engine::commit_until`]. Programs that embed
//! the engine call `add`, `read` and the like, which do both and block. This module knows no socket
//! and no runtime.

pub(crate) mod handle;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use quipu_model::{
    Clock, Command, DirLock, Durability, Freshness, Identity, Incarnation, Ledger, LedgerError, LedgerStats, Millis,
    Name, NameTooLong, Namespace, Reading, Refusal, Reply, Set, SetCondition, SetExpiry, Writer,
};

use self::handle::Handle;
use crate::apply::bodies::bodies_bytes_max;
use crate::background::overload::Pressure;
use crate::background::steps::Steps;
use crate::background::{BackgroundThreads, Signals};
use crate::base::options::{Environment, Options};
use crate::base::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, OnceLock, Ordering, lock};
use crate::base::time::{EngineTime, STEP_MAX};
use crate::core::watermark::Watermark;
use crate::execute::turn::{LaneVisit, Turn};
use crate::journal::format::Position;
use crate::journal::{Journal, JournalError, SyncCounts, Wait};
use crate::namespaces::{Namespaces, Policies, PutNamespaceError};
use crate::offline::backup::{Backup, BackupError, BackupStep, BackupSummary};
use crate::recovery::open::{OpenError, Recovery, open};
use crate::seal::load::{Load, LoadFuture, LoadOutcome, LoadQueues};
use crate::seal::{Seal, SealError, SealStep};
use crate::sharing::{Sharing, StoreLink};
use crate::table::Table;
use crate::table::lanes::{LaneRegistry, LaneSet};
use crate::tokens::{TokenRecord, TokenStats, Tokens};

/// An open data directory. Clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    /// Its threads end when the last clone is dropped; a simulated engine has no threads.
    driver: Option<Arc<BackgroundThreads>>,
}

/// State shared by all clones of an [`Engine`].
pub(crate) struct Inner {
    pub(crate) options: Options,
    /// The policy in force in each namespace.
    pub(crate) namespaces: Namespaces,
    pub(crate) table: Table,
    pub(crate) journal: Journal,
    pub(crate) writer: Writer,
    pub(crate) clock: Arc<dyn Clock>,
    /// Never earlier than the newest time returned or found in the journal, restarts included.
    pub(crate) time: EngineTime,
    pub(crate) recovery: Recovery,
    /// Durable storage of the cells.
    pub(crate) ledger: Arc<dyn Ledger>,
    /// The ledger's size after its last change, cached because a query reads the disk.
    pub(crate) ledger_stats: Mutex<LedgerStats>,
    /// The watermark of the newest ingestion.
    pub(crate) watermark: Mutex<Watermark>,
    /// The part of the applied tokens' state that all shards share.
    pub(crate) tokens: Tokens,
    /// Hash key of native sketches: one per directory, equal in all its incarnations and copies.
    pub(crate) sketch_key: quipu_sketch::Key,
    /// Lanes of the counters that have a [`Handle`].
    pub(crate) lanes: LaneRegistry,
    /// Commands that wait for counters that are not resident.
    pub(crate) loads: LoadQueues,
    /// Set if some counters are in the ledger only.
    pub(crate) unloaded: AtomicBool,
    /// Numbers of the last batch with a begun seal, and of the last with a finished one.
    pub(crate) batch_next: AtomicU32,
    pub(crate) batch_sealed: AtomicU32,
    /// Counters evicted since the start.
    pub(crate) evicted: AtomicU64,
    /// The newest flush; written while all shards are locked.
    pub(crate) flush: Mutex<FlushMark>,
    /// Held during a seal: one at a time, since a seal marks the journal.
    pub(crate) seal_lock: Mutex<()>,
    /// Held during a backup: one at a time, and a close waits for it.
    pub(crate) backup_lock: Mutex<()>,
    /// Progress of compaction.
    pub(crate) compaction: CompactionState,
    /// Incarnations registered with a shared store that have not ended, and their registration
    /// times. An incarnation is here before its record is in the journal.
    pub(crate) joined: Mutex<BTreeMap<Incarnation, Millis>>,
    /// The link to the shared store, if the node has one.
    pub(crate) shared: Option<StoreLink>,
    /// Recent load of the journal; sampled only if a namespace uses it.
    pub(crate) pressure: Mutex<Pressure>,
    /// Wakes the background threads.
    pub(crate) signals: std::sync::OnceLock<Arc<Signals>>,
    pub(crate) closed: AtomicBool,
    /// Set once a close has succeeded.
    pub(crate) close_done: Mutex<bool>,
    pub(crate) _lock: Box<dyn DirLock>,
}

/// A deletion of all counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlushMark {
    /// Number of flushes since the start.
    pub(crate) count: u64,
    /// Start and end of its journal record, until the ledger includes the flush.
    pub(crate) start: Position,
    pub(crate) end: Position,
}

/// Progress of compaction since the start.
#[derive(Default)]
pub(crate) struct CompactionState {
    pub(crate) pieces: AtomicU64,
    pub(crate) micros: AtomicU64,
    pub(crate) running: AtomicBool,
    /// Why compaction has ended until the next start: the ledger is damaged at the next piece.
    pub(crate) damage: OnceLock<String>,
}

/// An operation was refused, its outcome is unknown, or the journal failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a valid name.
    #[error(transparent)]
    Name(#[from] NameTooLong),
    /// Not applied.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Perhaps applied: the journal failed before the operation was durable.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
    /// Perhaps applied: the shared store did not answer, or the engine was closed meanwhile.
    #[error("nobody can say what became of it: it was applied once or not at all")]
    OutcomeUnknown,
}

/// The journal failed. Only the next start, which reads the journal, shows whether an operation
/// survived.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal failed: {reason}")]
pub struct JournalFailure {
    /// The cause.
    pub reason: String,
}

impl Engine {
    /// Opens a directory of this machine and starts background threads.
    pub fn open(options: Options) -> Result<Engine, OpenError> {
        Engine::open_with_threads(options, Environment::system())
    }

    /// Opens a directory in a given environment and starts background threads.
    pub fn open_with_threads(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        let inner = Arc::new(open(options, environment)?);
        let driver = BackgroundThreads::start(inner.clone());
        Ok(Engine { inner, driver: Some(Arc::new(driver)) })
    }

    /// Opens a directory in a given environment without threads. The caller drives background work
    /// with [`Engine::steps`].
    pub fn open_with(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        Ok(Engine { inner: Arc::new(open(options, environment)?), driver: None })
    }

    // ---- for programs --------------------------------------------------------------------------

    /// Adds, and returns the value after it once it is as durable as the namespace asks.
    pub fn add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<i64, Error> {
        self.add_to(Name::new(name.as_ref())?, delta)
    }

    /// Reads a counter; one that does not exist reads as 0.
    pub fn read(&self, name: impl AsRef<[u8]>) -> Result<Reading, Error> {
        self.read_within(name, Freshness::Usual)
    }

    /// Reads a counter with a bound on the age of other nodes' state.
    pub fn read_within(&self, name: impl AsRef<[u8]>, freshness: Freshness) -> Result<Reading, Error> {
        let name = Name::new(name.as_ref())?;
        let mut since = None;
        loop {
            let mut turn = self.turn();
            since.into_iter().for_each(|since| turn.set_rows_since(since));
            let read = turn.reading(name, freshness);
            let wait = turn.finish();
            match read {
                Ok(reading) => {
                    let reading = reading?;
                    self.wait(wait)?;
                    return Ok(reading);
                }
                Err(load) => self
                    .load_now(load, &mut since)?
                    .map_or((), |reply| unreachable!("loading a name has no reply: {reply:?}")),
            }
        }
    }

    /// Sets a counter to a value and removes its expiry.
    pub fn set(&self, name: impl AsRef<[u8]>, value: i64) -> Result<(), Error> {
        let name = Name::new(name.as_ref())?;
        let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
        self.execute(&Command::Set(Set { name, value, condition, expiry, reply_old: false }))?;
        Ok(())
    }

    /// Sets a counter to 0 and returns what it had: every add is in this value or comes after it.
    pub fn reset(&self, name: impl AsRef<[u8]>) -> Result<i64, Error> {
        let name = Name::new(name.as_ref())?;
        match self.execute(&Command::Reset { name })? {
            Reply::Integer(before) => Ok(before),
            other => unreachable!("a reset replies with a number, not {other:?}"),
        }
    }

    /// Deletes a counter; returns whether it existed.
    pub fn delete(&self, name: impl AsRef<[u8]>) -> Result<bool, Error> {
        let names = vec![Name::new(name.as_ref())?];
        Ok(self.execute(&Command::Delete { names })? == Reply::Integer(1))
    }

    /// A counter, resolved once, for many adds.
    pub fn handle(&self, name: impl AsRef<[u8]>) -> Result<Handle, NameTooLong> {
        Handle::new(self, name.as_ref())
    }

    /// Applies any command and waits until its reply may be sent.
    pub fn execute(&self, command: &Command<'_>) -> Result<Reply, Error> {
        self.execute_with(|turn| turn.run(command))
    }

    /// Applies a mutation once, however often it is called. Every call with the same identity and
    /// the same command has the same reply.
    pub fn execute_once(&self, identity: &Identity<'_>, command: &Command<'_>) -> Result<Reply, Error> {
        self.execute_with(|turn| turn.run_once(identity, std::slice::from_ref(command)))
    }

    fn execute_with(&self, run: impl Fn(&mut Turn<'_>) -> Result<Reply, Load>) -> Result<Reply, Error> {
        let mut since = None;
        let reply = loop {
            let mut turn = self.turn();
            since.into_iter().for_each(|since| turn.set_rows_since(since));
            let result = run(&mut turn);
            let wait = turn.finish();
            match result {
                Ok(reply) => {
                    self.wait(wait)?;
                    break reply;
                }
                Err(load) => {
                    if let Some(reply) = self.load_now(load, &mut since)? {
                        break reply;
                    }
                }
            }
        };
        match reply {
            Reply::Refused(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }

    /// Replaces a namespace's run-time settings. A setting left open falls back to the options. The
    /// settings are durable and in force on return; refused settings change nothing. Blocks: not
    /// for a thread that serves other clients.
    pub fn put_namespace(&self, name: impl AsRef<[u8]>, settings: Namespace) -> Result<(), PutNamespaceError> {
        self.inner.put_namespace(name.as_ref(), settings)
    }

    /// Returns the problems that `put_namespace` would report for these settings; changes nothing.
    pub fn check_namespace(&self, name: impl AsRef<[u8]>, settings: &Namespace) -> Vec<String> {
        self.inner.check_namespace(name.as_ref(), settings)
    }

    /// The policies in force, per namespace.
    pub fn policies(&self) -> impl std::ops::Deref<Target = Policies> + '_ {
        self.inner.namespaces.current()
    }

    /// The options of the open call.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Copies the whole directory to an empty or new directory, while counting goes on. The copy
    /// holds a state that existed, with all adds acknowledged before the call. It opens as an
    /// independent data directory. Blocks: not for a thread that serves other clients.
    pub fn backup(&self, dir: impl AsRef<Path>) -> Result<BackupSummary, BackupError> {
        let mut backup = Backup::begin(&self.inner, dir.as_ref())?;
        loop {
            match backup.step()? {
                BackupStep::More => {}
                BackupStep::WaitFor(wait) => self.wait(wait)?,
                BackupStep::Done(backed_up) => return Ok(backed_up),
            }
        }
    }

    /// Sets the engine's time back to the wall clock, durably. `None`: the time is not further
    /// ahead than the clocks of a network differ. For a directory that only this handle uses.
    ///
    /// Decisions made by the earlier time stay: expiry, panes of windows, and tokens forgotten too
    /// early. Of those, tokens that carry their time are refused from here on; others may be
    /// applied again.
    pub fn lower_time(&self) -> Result<Option<TimeCorrection>, SealError> {
        self.inner.lower_time()
    }

    /// Makes all adds durable and marks a clean stop. Later writes are refused.
    pub fn close(&self) -> Result<(), CloseError> {
        // The threads first: none of them may write after the mark of a clean stop.
        if let Some(driver) = &self.driver {
            driver.stop();
            if let Some(sharing) = self.sharing() {
                block_on(sharing.release());
            }
        }
        self.inner.close()
    }

    // ---- for protocols -------------------------------------------------------------------------

    /// Begins a turn.
    pub fn turn(&self) -> Turn<'_> {
        self.turn_at(self.now())
    }

    /// Begins a turn at a time that [`Engine::now`] returned shortly before; for callers that begin
    /// many turns in a row.
    pub fn turn_at(&self, now: Millis) -> Turn<'_> {
        Turn::at(&self.inner, now)
    }

    /// Waits until replies may leave. Commits all filled records if no other thread is committing.
    pub fn commit_until(&self, wait: Wait) -> CommitFuture<'_> {
        self.inner.commit_until(wait)
    }

    /// Loads counters from the ledger, or walks the ledger.
    pub fn load(&self, load: Load) -> LoadFuture {
        let signal = match &load {
            Load::Names(_) | Load::Memory => Signals::request_load,
            Load::Scan { .. } | Load::List { .. } => Signals::request_walk,
            Load::Rows(_) => Signals::request_fetch,
            Load::Swap(_) | Load::Once(_) => Signals::request_swap,
        };
        let loading = self.inner.loads.enqueue(load, self.inner.clock.elapsed());
        match self.inner.signals.get() {
            Some(signals) if !signals.is_stopped() => signal(signals),
            // Without background threads, the caller loads.
            _ => {
                self.steps().run_loads();
                self.steps().run_walks();
            }
        }
        loading
    }

    /// The engine's time: the wall clock's, except during a clock jump, and never earlier than the
    /// newest time in the journal.
    pub fn now(&self) -> Millis {
        self.inner.now()
    }

    /// The halves of a commit and the background work, one step at a time, for a simulator.
    pub fn steps(&self) -> Steps<'_> {
        Steps::new(&self.inner)
    }

    /// The shared store's side of this node, if it has a shared store.
    pub fn sharing(&self) -> Option<Sharing<'_>> {
        self.inner.sharing()
    }

    /// The results of recovery at the start.
    pub fn recovery(&self) -> &Recovery {
        &self.inner.recovery
    }

    /// Figures for INFO.
    pub fn stats(&self) -> Stats {
        let inner = &self.inner;
        let (journal_bytes, segments) = inner.journal.size();
        Stats {
            writer: inner.writer,
            durability: inner.namespaces.current().default_durability(),
            counters: inner.table.counters(),
            counters_split: inner.lanes.all().iter().filter(|lanes| lanes.is_open()).count(),
            journal_bytes,
            segments,
            written: inner.journal.written(),
            synced: inner.journal.synced(),
            syncs: inner.journal.sync_times.counts().iter().sum(),
            sync_counts: inner.journal.sync_times.counts(),
            sync_micros_total: inner.journal.sync_times.micros_total(),
            sync_micros_last: inner.journal.sync_times.micros_last(),
            sync_slow: inner.journal.is_slow(),
            ledger: *lock(&inner.ledger_stats),
            disk_bytes: inner.journal.disk_bytes(),
            disk_full: inner.journal.is_full_hint(),
            resident_bytes: inner.table.bytes(),
            bodies_bytes: inner.table.bodies_bytes(),
            late_events: inner.table.late_events(),
            sampled_events: inner.table.sampled_events(),
            sampling_rate: inner.namespaces.current().overload_p(),
            memory_bytes_max: inner.options.memory_bytes_max,
            disk_bytes_max: inner.options.disk_bytes_max,
            seals: u64::from(inner.batch_sealed()),
            evicted: inner.evicted.load(Ordering::Relaxed),
            tokens: inner.tokens.stats(),
            loaded: inner.loads.lookups(),
            compactions: inner.compaction.pieces.load(Ordering::Relaxed),
            compaction_micros: inner.compaction.micros.load(Ordering::Relaxed),
            compaction_running: inner.compaction.running.load(Ordering::Relaxed),
            ledger_damage: inner.compaction.damage.get().cloned(),
            clock_ahead_millis: inner.time.observe(&*inner.clock).ahead_millis,
        }
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    pub(crate) fn add_to(&self, name: Name<'_>, delta: i64) -> Result<i64, Error> {
        match self.execute(&Command::Add { name, delta, shard_key: None })? {
            Reply::Integer(value) => Ok(value),
            other => unreachable!("an add replies with a number, not {other:?}"),
        }
    }

    /// Loads and waits; returns the reply if the load itself has one.
    pub(crate) fn load_now(&self, load: Load, since: &mut Option<Duration>) -> Result<Option<Reply>, Error> {
        let loading = self.load(load);
        match block_on(loading) {
            LoadOutcome::Retry => Ok(None),
            LoadOutcome::Fetched(at) => {
                // Rows fetched by the first load stay fresh enough. Otherwise several counters
                // would never be fresh at once.
                since.get_or_insert(at);
                Ok(None)
            }
            LoadOutcome::Refused(refusal) => Err(refusal.into()),
            LoadOutcome::Unknown => Err(Error::OutcomeUnknown),
            LoadOutcome::Reply(reply, wait) => {
                self.wait(wait)?;
                Ok(Some(reply))
            }
        }
    }

    pub(crate) fn wait(&self, wait: Wait) -> Result<(), JournalFailure> {
        block_on(self.commit_until(wait))
    }
}

/// The engine's time was set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeCorrection {
    /// The time before.
    pub from: Millis,
    /// The time after.
    pub to: Millis,
}

/// Why a clean stop failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Counters could not be sealed. Counters of memory namespaces are lost; all others are in the
    /// journal.
    #[error("counters could not be sealed: {0}")]
    Unsealed(SealError),
    /// The journal failed.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
    /// The control file could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Inner {
    pub(crate) fn now(&self) -> Millis {
        self.time.now(&*self.clock)
    }

    pub(crate) fn sharing(&self) -> Option<Sharing<'_>> {
        self.shared.as_ref().map(|shared| Sharing::new(self, shared))
    }

    pub(crate) fn commit_until(&self, wait: Wait) -> CommitFuture<'_> {
        CommitFuture { inner: self, wait }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.is_closed() {
            return Err(Refusal::NoRoom { reason: "the engine is closed".to_owned() });
        }
        Ok(())
    }

    /// Requests segments if few are left.
    pub(crate) fn request_segments_if_low(&self) {
        // The background thread retries a full disk at intervals by itself. A request after every
        // turn would keep it busy.
        if self.journal.is_room_low() && !self.journal.is_full_hint() {
            self.request_maintenance();
        }
    }

    pub(crate) fn request_maintenance(&self) {
        if let Some(signals) = self.signals.get() {
            signals.request_maintenance();
        }
    }

    pub(crate) fn close(&self) -> Result<(), CloseError> {
        // One at a time: a second call returns when the first is done, and retries its failed part.
        let mut closed = lock(&self.close_done);
        if *closed {
            return Ok(());
        }
        // While the journal may still grant more room than the lanes hold.
        self.visit_all_lanes(LaneVisit::Join);
        self.closed.store(true, Ordering::Release);
        self.visit_all_lanes(LaneVisit::Close);
        // A concurrent `put_namespace` is refused too, or finishes before the mark.
        self.namespaces.wait_for_change();
        // A running backup notices the close, gives up and removes its files.
        drop(lock(&self.backup_lock));
        let sealed = loop {
            match self.seal_all() {
                // Caused by a turn that was under way when the close began; there cannot be
                // another.
                Err(SealError::Flushed) => {}
                sealed => break sealed,
            }
        };
        let end = self.journal.reserved();
        block_on(self.commit_until(Wait { written: end, synced: end }))?;
        match sealed {
            // The journal has all counters but those of memory namespaces: the stop is clean
            // without a seal.
            Err(SealError::Ledger(LedgerError::Full(_))) if !self.namespaces.current().has_memory() => {}
            sealed => sealed.map_err(CloseError::Unsealed)?,
        }
        self.journal.record_synced(true)?;
        *closed = true;
        Ok(())
    }

    /// The lanes of a counter, with one more handle.
    pub(crate) fn acquire_lanes(&self, name: Name<'_>) -> Arc<LaneSet> {
        let hash = self.table.hash(name.bytes());
        let mut shard = self.table.lock(self.table.shard_of(hash));
        if let Some(lanes) = shard.lanes.find(name.bytes()) {
            lanes.add_handle();
            return lanes.clone();
        }
        let lanes = Arc::new(LaneSet::new(name.bytes(), hash, self.options.lanes));
        // Lanes beyond the registry's bound are never opened.
        if self.lanes.try_add(&lanes) {
            shard.lanes.insert(lanes.clone());
        }
        lanes
    }

    /// Visits the lanes of all counters.
    pub(crate) fn visit_all_lanes(&self, visit: LaneVisit) {
        for lanes in self.lanes.all() {
            if visit == LaneVisit::CloseIdle {
                lanes.reset_recent_adds();
            }
            // A close visits each under its lock, since lanes may be about to be opened.
            if visit == LaneVisit::Close || lanes.is_live() || lanes.has_no_handles() {
                self.visit_lanes(&lanes, visit);
            }
        }
    }

    pub(crate) fn visit_lanes(&self, lanes: &LaneSet, visit: LaneVisit) {
        let visit_once = || {
            let mut turn = Turn::new(self);
            let visited = turn.visit_lanes(lanes, visit);
            turn.finish();
            visited
        };
        // For the sum of a late add, left in a lane after its counter was evicted. If the load
        // fails, the next visit retries.
        if !visit_once() && self.loads.load_counter(self, lanes.name().bytes()).is_ok() {
            visit_once();
        }
    }

    /// Seals all changed cells and cuts the journal. On a full disk it uses the reserved space.
    pub(crate) fn seal_all(&self) -> Result<(), SealError> {
        let _one = lock(&self.seal_lock);
        self.journal.check_files()?;
        match self.try_seal_all() {
            Err(SealError::Ledger(LedgerError::Full(_))) if self.journal.release_spare_space()? => self.try_seal_all(),
            sealed => sealed,
        }
    }

    fn try_seal_all(&self) -> Result<(), SealError> {
        let mut seal = Seal::begin(self);
        loop {
            match seal.step(self)? {
                SealStep::More => {}
                SealStep::WaitFor(wait) => block_on(self.commit_until(wait)).inspect_err(|_| seal.abort(self))?,
                SealStep::Done => break,
            }
            // A long seal must not starve the writer of segments.
            if self.journal.is_room_low() && !self.journal.is_full() {
                self.journal.prepare_segments().inspect_err(|_| seal.abort(self))?;
            }
        }
        Ok(seal.finish(self)?)
    }

    fn lower_time(&self) -> Result<Option<TimeCorrection>, SealError> {
        let (from, wall) = (self.now(), self.clock.wall());
        if from.0.saturating_sub(wall.0) <= STEP_MAX.as_millis() as u64 {
            return Ok(None);
        }
        // After this seal the journal has no record left, so only the watermark holds the newest
        // time.
        self.seal_all()?;
        let _one = lock(&self.seal_lock);
        let to = self.time.lower(&*self.clock);
        let horizon = TokenRecord::Horizon(self.tokens.lower_horizon(to)).to_aux_record();
        let watermark = Watermark { time: to, ..lock(&self.watermark).clone() };
        self.ledger.ingest(&[], &[horizon], &watermark.encode())?;
        *lock(&self.watermark) = watermark;
        Ok(Some(TimeCorrection { from, to }))
    }

    /// Returns an error if the ledger may not grow by `bytes` once the journal is cut at `cut`.
    pub(crate) fn check_quota(&self, cut: Position, bytes: u64) -> Result<(), LedgerError> {
        self.journal.reserve_ledger_growth(cut, bytes).map_err(|error| LedgerError::Full(error.to_string()))
    }

    /// Refreshes the cached size of the ledger.
    pub(crate) fn update_ledger_stats(&self) {
        // Queried under the lock: if a seal and a merge end together, the later figure stays.
        let mut stats = lock(&self.ledger_stats);
        *stats = self.ledger.stats();
        self.journal.set_ledger_bytes(stats.disk_bytes);
    }

    pub(crate) fn batch_sealed(&self) -> u32 {
        self.batch_sealed.load(Ordering::Acquire)
    }

    pub(crate) fn flush(&self) -> FlushMark {
        *lock(&self.flush)
    }

    /// Records a flush by its record's position. The caller holds all shards.
    pub(crate) fn record_flush(&self, start: Position, end: Position) {
        let mut flush = lock(&self.flush);
        *flush = FlushMark { count: flush.count + 1, start, end };
        self.unloaded.store(false, Ordering::Release);
    }

    pub(crate) fn has_unloaded(&self) -> bool {
        self.unloaded.load(Ordering::Acquire)
    }

    /// Memory used by all state except sketch bodies, and its limit. Bodies are never evicted, so
    /// at most their fixed share is subtracted from the limit, however much they use.
    pub(crate) fn cells_memory(&self) -> Option<(u64, u64)> {
        let bytes_max = self.options.table_bytes_max()?;
        let bodies = self.table.bodies_bytes();
        Some((self.table.bytes().saturating_sub(bodies), bytes_max - bodies.min(bodies_bytes_max(bytes_max))))
    }

    /// Returns true if new counters must wait for memory.
    pub(crate) fn memory_is_full(&self) -> bool {
        self.cells_memory().is_some_and(|(bytes, bytes_max)| bytes > bytes_max)
    }

    /// Returns true if existing counters must wait for memory, too.
    pub(crate) fn memory_is_overfull(&self) -> bool {
        self.cells_memory().is_some_and(|(bytes, bytes_max)| bytes > bytes_max + bytes_max / 16)
    }
}

/// Resolves when replies may leave.
pub struct CommitFuture<'e> {
    inner: &'e Inner,
    wait: Wait,
}

impl CommitFuture<'_> {
    fn try_commit(&self) -> bool {
        let journal = &self.inner.journal;
        journal.has_reached(self.wait) || {
            if self.wait.written > journal.written() {
                journal.write_filled();
            }
            if self.wait.synced > journal.synced() {
                match self.inner.signals.get() {
                    // On a slow disk the background thread syncs. The worker goes on with commands
                    // that need no sync.
                    Some(signals) if journal.is_slow() && !signals.is_stopped() => signals.request_sync(),
                    _ => journal.sync(),
                }
            }
            journal.has_reached(self.wait)
        }
    }
}

impl Future for CommitFuture<'_> {
    type Output = Result<(), JournalFailure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let journal = &self.inner.journal;
        if journal.has_reached(self.wait) {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = journal.failure() {
            return Poll::Ready(Err(JournalFailure { reason: reason.to_owned() }));
        }
        if self.try_commit() {
            return Poll::Ready(Ok(()));
        }
        // Another thread is committing. Register, then try again: the committing thread either sees
        // this waker or is done.
        journal.register_waker(context.waker());
        if self.try_commit() {
            return Poll::Ready(Ok(()));
        }
        match journal.failure() {
            Some(reason) => Poll::Ready(Err(JournalFailure { reason: reason.to_owned() })),
            None => Poll::Pending,
        }
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct ParkedThread(thread::Thread);
    impl Wake for ParkedThread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ParkedThread(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(feature = "shuttle")]
use shuttle::thread;
#[cfg(not(feature = "shuttle"))]
use std::thread;

/// Figures for INFO and metrics.
#[derive(Debug, Clone)]
pub struct Stats {
    /// This node's writer identity.
    pub writer: Writer,
    /// The server's default durability.
    pub durability: Durability,
    /// Number of counters.
    pub counters: u64,
    /// Number of counters with open lanes.
    pub counters_split: usize,
    /// Bytes of the journal from its start.
    pub journal_bytes: u64,
    /// Segment files, prepared ones included.
    pub segments: usize,
    /// End of the records handed to the operating system.
    pub written: Position,
    /// End of the synced records.
    pub synced: Position,
    /// Fsyncs since the start.
    pub syncs: u64,
    /// Fsyncs by duration, see [`SYNC_SECONDS`](crate::SYNC_SECONDS).
    pub sync_counts: SyncCounts,
    /// Total duration of fsyncs.
    pub sync_micros_total: u64,
    /// Duration of the last fsync.
    pub sync_micros_last: u64,
    /// True if the background thread commits because the disk is slow.
    pub sync_slow: bool,
    /// Size of the ledger.
    pub ledger: LedgerStats,
    /// Bytes of journal and ledger.
    pub disk_bytes: u64,
    /// True if the disk, or the quota, was found full.
    pub disk_full: bool,
    /// Approximate bytes of the resident counters.
    pub resident_bytes: u64,
    /// Bytes of sketch bodies, included in `resident_bytes`.
    pub bodies_bytes: u64,
    /// Events too late for the window of their sketch, since the start.
    pub late_events: u64,
    /// Events of sampled counts, taken or not, since the start.
    pub sampled_events: u64,
    /// The sampling rate, one in N, of namespaces that sample under overload; 1: the journal keeps
    /// up.
    pub sampling_rate: u32,
    /// Memory limit in force.
    pub memory_bytes_max: Option<u64>,
    /// Disk limit in force.
    pub disk_bytes_max: Option<u64>,
    /// Seals since the start.
    pub seals: u64,
    /// Counters evicted since the start.
    pub evicted: u64,
    /// Figures of the token index.
    pub tokens: TokenStats,
    /// Counters loaded from the ledger since the start, lookups of absent counters included.
    pub loaded: u64,
    /// Pieces of compaction since the start.
    pub compactions: u64,
    /// Total duration of compaction.
    pub compaction_micros: u64,
    /// True while compaction runs.
    pub compaction_running: bool,
    /// Why compaction has ended until the next start, if it has.
    pub ledger_damage: Option<String>,
    /// Lead of the wall clock over the engine's time, in milliseconds; negative: behind.
    pub clock_ahead_millis: i64,
}

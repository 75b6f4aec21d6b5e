//! The engine as its callers hold it: open, count, read, close.
//!
//! Doors take [`Engine::turn`] and await [`Engine::commit_until`]; programs that embed the engine call `add`, `read` and the like, which
//! do both and block. Nothing here knows a socket or a runtime.

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

use crate::apply::table::Table;
use crate::background::{BackgroundThreads, Signals};
use crate::backup::{Backup, BackupError, BackupStep, BackupSummary};
use crate::handle::Handle;
use crate::journal::format::Position;
use crate::journal::{Journal, JournalError, SyncCounts, Wait};
use crate::load::{Load, LoadFuture, LoadOutcome, LoadQueues};
use crate::namespaces::{Namespaces, Policies, PutNamespaceError};
use crate::open::{OpenError, Recovery, open};
use crate::options::{Environment, Options};
use crate::overload::Pressure;
use crate::seal::{Seal, SealError, SealStep};
use crate::sharing::{Sharing, StoreLink};
use crate::sketches::bodies_bytes_max;
use crate::split::{LaneRegistry, LaneSet};
use crate::steps::Steps;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, OnceLock, Ordering, lock};
use crate::time::{EngineTime, STEP_MAX};
use crate::tokens::{TokenRecord, TokenStats, Tokens};
use crate::turn::{LaneVisit, Turn};
use crate::watermark::Watermark;

/// An open data directory. Clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    /// Its threads end with the last handle; a simulated engine has none.
    driver: Option<Arc<BackgroundThreads>>,
}

/// What all handles share.
pub(crate) struct Inner {
    pub(crate) options: Options,
    /// What is in force in which namespace.
    pub(crate) namespaces: Namespaces,
    pub(crate) table: Table,
    pub(crate) journal: Journal,
    pub(crate) writer: Writer,
    pub(crate) clock: Arc<dyn Clock>,
    /// Never before the newest time given out or found in the journal, not even over a restart.
    pub(crate) time: EngineTime,
    pub(crate) recovery: Recovery,
    /// Cells at rest.
    pub(crate) ledger: Arc<dyn Ledger>,
    /// What it took when it last changed: asking it goes to the disk.
    pub(crate) ledger_stats: Mutex<LedgerStats>,
    /// What came with the newest ingestion.
    pub(crate) watermark: Mutex<Watermark>,
    /// What was applied under which token: what the shards' books have in common.
    pub(crate) tokens: Tokens,
    /// Under which sketches of our own form hash what they count: the directory's, in every life and every copy of it.
    pub(crate) sketch_key: quipu_sketch::Key,
    /// Counters that somebody has a handle of, and their lanes.
    pub(crate) lanes: LaneRegistry,
    /// Commands that wait for counters at rest.
    pub(crate) loads: LoadQueues,
    /// Some counters are in the ledger only.
    pub(crate) unloaded: AtomicBool,
    /// The batch of the last seal that was begun, and of the last that was finished.
    pub(crate) batch_next: AtomicU32,
    pub(crate) batch_sealed: AtomicU32,
    /// Counters that left memory since the start.
    pub(crate) evicted: AtomicU64,
    /// The newest deletion of everything; noted while all shards are held.
    pub(crate) flush: Mutex<FlushMark>,
    /// Held by whoever seals: one at a time, since a seal marks the journal.
    pub(crate) seal_lock: Mutex<()>,
    /// Held by whoever backs up: one at a time, and a close waits for it.
    pub(crate) backup_lock: Mutex<()>,
    /// What compaction has done.
    pub(crate) compaction: CompactionState,
    /// Lives that were registered with a shared store and are not over, and when they were; each is here before its record is in the journal.
    pub(crate) joined: Mutex<BTreeMap<Incarnation, Millis>>,
    /// What is shared with other nodes, and with whom.
    pub(crate) shared: Option<StoreLink>,
    /// How the journal has done lately, where somebody wants to know.
    pub(crate) pressure: Mutex<Pressure>,
    /// Wakes the driver's threads.
    pub(crate) signals: std::sync::OnceLock<Arc<Signals>>,
    pub(crate) closed: AtomicBool,
    /// Whether a close has gone well.
    pub(crate) close_done: Mutex<bool>,
    pub(crate) _lock: Box<dyn DirLock>,
}

/// A deletion of everything.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlushMark {
    /// How many there were in this life.
    pub(crate) count: u64,
    /// Where its record begins and ends, if the ledger does not know of it yet.
    pub(crate) start: Position,
    pub(crate) end: Position,
}

/// What compaction has done since the start.
#[derive(Default)]
pub(crate) struct CompactionState {
    pub(crate) pieces: AtomicU64,
    pub(crate) micros: AtomicU64,
    pub(crate) running: AtomicBool,
    /// Why it has ended for this life: the ledger is damaged where it wanted to go on.
    pub(crate) damage: OnceLock<String>,
}

/// An operation that has not been applied, or a journal that has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a name.
    #[error(transparent)]
    Name(#[from] NameTooLong),
    /// Not applied.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Perhaps applied; the journal failed before it was durable.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
    /// Perhaps applied; the shared store did not answer, or the engine was closed in the middle of it.
    #[error("nobody can say what became of it: it was applied once or not at all")]
    OutcomeUnknown,
}

/// The journal has failed: whether an operation survives is unknown until the next start has read the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal failed: {reason}")]
pub struct JournalFailure {
    /// What happened to it.
    pub reason: String,
}

impl Engine {
    /// Opens a directory of this machine, with threads of its own for what happens in the background.
    pub fn open(options: Options) -> Result<Engine, OpenError> {
        Engine::open_with_threads(options, Environment::system())
    }

    /// Opens a directory in another world, with the same threads.
    pub fn open_with_threads(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        let inner = Arc::new(open(options, environment)?);
        let driver = BackgroundThreads::start(inner.clone());
        Ok(Engine { inner, driver: Some(Arc::new(driver)) })
    }

    /// Opens a directory in another world and starts no threads: background work is done by calling [`Engine::steps`].
    pub fn open_with(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        Ok(Engine { inner: Arc::new(open(options, environment)?), driver: None })
    }

    // ---- for programs ---------------------------------------------------------------------------------------------------------

    /// Adds, and returns the value after it once it is as durable as the namespace asks.
    pub fn add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<i64, Error> {
        self.add_to(Name::new(name.as_ref())?, delta)
    }

    /// Reads a counter; one that does not exist reads as 0.
    pub fn read(&self, name: impl AsRef<[u8]>) -> Result<Reading, Error> {
        self.read_within(name, Freshness::Usual)
    }

    /// The same, where what is known of other nodes may be so old.
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

    /// A counter, resolved once, to be added to many times.
    pub fn handle(&self, name: impl AsRef<[u8]>) -> Result<Handle, NameTooLong> {
        Handle::new(self, name.as_ref())
    }

    /// Applies any command and waits until its reply may be told.
    pub fn execute(&self, command: &Command<'_>) -> Result<Reply, Error> {
        self.execute_with(|turn| turn.run(command))
    }

    /// Applies a mutation once, however often this is called for it: with the same identity and the same command, every call has the same reply.
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

    /// Says what holds in a namespace, in place of what was said of it at run time before; what is left open is as the options say. It is durable and in force when this
    /// returns, and nothing of it is if it is refused. Blocks; not for a thread that serves others.
    pub fn put_namespace(&self, name: impl AsRef<[u8]>, settings: Namespace) -> Result<(), PutNamespaceError> {
        self.inner.put_namespace(name.as_ref(), settings)
    }

    /// What is wrong with saying this of a namespace; nothing is changed.
    pub fn check_namespace(&self, name: impl AsRef<[u8]>, settings: &Namespace) -> Vec<String> {
        self.inner.check_namespace(name.as_ref(), settings)
    }

    /// What is in force in which namespace.
    pub fn policies(&self) -> impl std::ops::Deref<Target = Policies> + '_ {
        self.inner.namespaces.current()
    }

    /// What it was opened with.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Writes a copy of everything to a directory that is empty or does not exist yet, while counting goes on. It holds a state that existed, with all
    /// that was acknowledged before the call, and opens as a data directory of its own. Blocks; not for a thread that serves others.
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

    /// Puts the engine's time back to the wall clock's, durably, if it is further ahead than the clocks of a network are apart;
    /// `None`: it is not. For a directory that only this handle uses.
    ///
    /// What was decided by the time before stays as it is: tokens that were forgotten too early (those that carry their time are
    /// refused from here on, others may be applied again), expiry, and panes of windows.
    pub fn lower_time(&self) -> Result<Option<TimeCorrection>, SealError> {
        self.inner.lower_time()
    }

    /// Makes everything durable and marks a clean stop. Writes are refused from here on.
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

    // ---- for doors --------------------------------------------------------------------------------------------------------------

    /// Begins a turn.
    pub fn turn(&self) -> Turn<'_> {
        self.turn_at(self.now())
    }

    /// Begins a turn at a time that [`Engine::now`] told a moment ago: for one who begins many in a row.
    pub fn turn_at(&self, now: Millis) -> Turn<'_> {
        Turn::at(&self.inner, now)
    }

    /// Waits until replies may leave; commits, for all that is filled, if nobody else is at it.
    pub fn commit_until(&self, wait: Wait) -> CommitFuture<'_> {
        self.inner.commit_until(wait)
    }

    /// Brings counters back from the ledger, or walks it.
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
            // No threads, or none any more: whoever asks does it.
            _ => {
                self.steps().run_loads();
                self.steps().run_walks();
            }
        }
        loading
    }

    /// The engine's time: the wall clock's, unless that jumps, and never before what the journal has seen.
    pub fn now(&self) -> Millis {
        self.inner.now()
    }

    /// The halves of a commit and the work of the background, one step at a time, for a simulator.
    pub fn steps(&self) -> Steps<'_> {
        Steps::new(&self.inner)
    }

    /// What this node does with its shared store, if it has one.
    pub fn sharing(&self) -> Option<Sharing<'_>> {
        self.inner.sharing()
    }

    /// What the start found.
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

    /// Loads and waits for it; the reply, if the load itself has one.
    pub(crate) fn load_now(&self, load: Load, since: &mut Option<Duration>) -> Result<Option<Reply>, Error> {
        let loading = self.load(load);
        match block_on(loading) {
            LoadOutcome::Retry => Ok(None),
            LoadOutcome::Fetched(at) => {
                // What was fetched the first time stays fresh enough, or several counters would never be fresh at once.
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

/// The engine's time was put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeCorrection {
    /// What it was.
    pub from: Millis,
    /// What it is.
    pub to: Millis,
}

/// Why a clean stop was not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Counters could not be sealed; those of memory namespaces are lost, all others are in the journal.
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

    /// Asks for segments if they are running out.
    pub(crate) fn request_segments_if_low(&self) {
        // A full disk is tried again now and then without being asked; asking after every turn would keep the thread busy.
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
        // One at a time: a second call returns when the first is done, and tries again what the first could not do.
        let mut closed = lock(&self.close_done);
        if *closed {
            return Ok(());
        }
        // While there may be more room to ask for than lanes hold of it.
        self.visit_all_lanes(LaneVisit::Join);
        self.closed.store(true, Ordering::Release);
        self.visit_all_lanes(LaneVisit::Close);
        // So does whoever is saying something of a namespace, or is done with it before the mark.
        self.namespaces.wait_for_change();
        // A backup under way sees that, gives up and removes what it wrote.
        drop(lock(&self.backup_lock));
        let sealed = loop {
            match self.seal_all() {
                // By a turn that was under way when the close began; another cannot come.
                Err(SealError::Flushed) => {}
                sealed => break sealed,
            }
        };
        let end = self.journal.reserved();
        block_on(self.commit_until(Wait { written: end, synced: end }))?;
        match sealed {
            // The journal has everything but the counters that are not journaled; the stop is clean without a seal.
            Err(SealError::Ledger(LedgerError::Full(_))) if !self.namespaces.current().has_memory() => {}
            sealed => sealed.map_err(CloseError::Unsealed)?,
        }
        self.journal.record_synced(true)?;
        *closed = true;
        Ok(())
    }

    /// The lanes of a counter, to be added to by one more handle.
    pub(crate) fn acquire_lanes(&self, name: Name<'_>) -> Arc<LaneSet> {
        let hash = self.table.hash(name.bytes());
        let mut shard = self.table.lock(self.table.shard_of(hash));
        if let Some(lanes) = shard.lanes.find(name.bytes()) {
            lanes.add_handle();
            return lanes.clone();
        }
        let lanes = Arc::new(LaneSet::new(name.bytes(), hash, self.options.lanes));
        // One that is too many is never opened.
        if self.lanes.try_add(&lanes) {
            shard.lanes.insert(lanes.clone());
        }
        lanes
    }

    /// Looks at the lanes of all counters.
    pub(crate) fn visit_all_lanes(&self, visit: LaneVisit) {
        for lanes in self.lanes.all() {
            if visit == LaneVisit::CloseIdle {
                lanes.reset_recent_adds();
            }
            // A close looks at each, under its lock: one may be about to be opened.
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
        // What a late add has left in a lane after its counter has gone to rest. If that cannot be read, the next look tries again.
        if !visit_once() && self.loads.load_counter(self, lanes.name().bytes()).is_ok() {
            visit_once();
        }
    }

    /// Seals everything that has changed and cuts the journal. On a full disk it takes the space that was kept for this.
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
            // A long seal must not keep the writing from its segments.
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
        // Then no record is left in the journal, and the watermark alone has the newest time.
        self.seal_all()?;
        let _one = lock(&self.seal_lock);
        let to = self.time.lower(&*self.clock);
        let horizon = TokenRecord::Horizon(self.tokens.lower_horizon(to)).to_aux_record();
        let watermark = Watermark { time: to, ..lock(&self.watermark).clone() };
        self.ledger.ingest(&[], &[horizon], &watermark.encode())?;
        *lock(&self.watermark) = watermark;
        Ok(Some(TimeCorrection { from, to }))
    }

    /// Whether the ledger may grow by so much when the journal is cut there.
    pub(crate) fn check_quota(&self, cut: Position, bytes: u64) -> Result<(), LedgerError> {
        self.journal.reserve_ledger_growth(cut, bytes).map_err(|error| LedgerError::Full(error.to_string()))
    }

    /// Takes note of what the ledger has grown or shrunk to.
    pub(crate) fn update_ledger_stats(&self) {
        // Asked for under the lock, so that of a seal and a merge that end together the later one has the last word.
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

    /// Everything was deleted by the record between these positions. Called while all shards are held.
    pub(crate) fn record_flush(&self, start: Position, end: Position) {
        let mut flush = lock(&self.flush);
        *flush = FlushMark { count: flush.count + 1, start, end };
        self.unloaded.store(false, Ordering::Release);
    }

    pub(crate) fn has_unloaded(&self) -> bool {
        self.unloaded.load(Ordering::Acquire)
    }

    /// What cells and all else but bodies of sketches take in memory, and how much they may: bodies do not leave, and have no more than their part, whatever they take.
    pub(crate) fn cells_memory(&self) -> Option<(u64, u64)> {
        let bytes_max = self.options.table_bytes_max()?;
        let bodies = self.table.bodies_bytes();
        Some((self.table.bytes().saturating_sub(bodies), bytes_max - bodies.min(bodies_bytes_max(bytes_max))))
    }

    /// Whether new counters must wait for memory.
    pub(crate) fn memory_is_full(&self) -> bool {
        self.cells_memory().is_some_and(|(bytes, bytes_max)| bytes > bytes_max)
    }

    /// Whether those that exist must wait for memory, too.
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
                    // A slow disk: the driver's thread waits for it, the worker goes on with what needs none.
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
        // Someone else is committing. Register, then try again: whoever was at it either sees us or is done.
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
    /// Who writes.
    pub writer: Writer,
    /// The server's default.
    pub durability: Durability,
    /// How many counters there are.
    pub counters: u64,
    /// How many of them are added to in lanes at the moment.
    pub counters_split: usize,
    /// Bytes of the journal from its start.
    pub journal_bytes: u64,
    /// Segment files, prepared ones included.
    pub segments: usize,
    /// Handed to the operating system up to here.
    pub written: Position,
    /// Synced up to here.
    pub synced: Position,
    /// Fsyncs since the start.
    pub syncs: u64,
    /// The same by how long they took, see [`SYNC_SECONDS`](crate::SYNC_SECONDS).
    pub sync_counts: SyncCounts,
    /// How long they took in all.
    pub sync_micros_total: u64,
    /// How long the last one took.
    pub sync_micros_last: u64,
    /// Whether commits are with the driver's thread because the disk is slow.
    pub sync_slow: bool,
    /// What the ledger takes.
    pub ledger: LedgerStats,
    /// Bytes that journal and ledger take.
    pub disk_bytes: u64,
    /// Whether the disk, or the quota, was found full.
    pub disk_full: bool,
    /// About how many bytes the resident counters take.
    pub resident_bytes: u64,
    /// Of these, what bodies of sketches take.
    pub bodies_bytes: u64,
    /// Events that came too late for the window of their sketch, in this life.
    pub late_events: u64,
    /// Events of counts that were sampled, counted for others or not, in this life.
    pub sampled_events: u64,
    /// How rarely namespaces are sampled that are while the journal cannot keep up; 1: it keeps up.
    pub sampling_rate: u32,
    /// The limits in force.
    pub memory_bytes_max: Option<u64>,
    /// The limits in force.
    pub disk_bytes_max: Option<u64>,
    /// Seals since the start.
    pub seals: u64,
    /// Counters that left memory since the start.
    pub evicted: u64,
    /// What is remembered of tokens.
    pub tokens: TokenStats,
    /// Counters brought back from the ledger since the start, those that turned out not to exist included.
    pub loaded: u64,
    /// Pieces of compaction since the start.
    pub compactions: u64,
    /// How long they took in all.
    pub compaction_micros: u64,
    /// Whether one is under way.
    pub compaction_running: bool,
    /// Why compaction has ended for this life, if it has.
    pub ledger_damage: Option<String>,
    /// How far the wall clock is ahead of the engine's time, in milliseconds; less than 0: behind.
    pub clock_ahead_millis: i64,
}

//! The engine as its callers hold it: open, count, read, close.
//!
//! Doors take [`Engine::turn`] and await [`Engine::committed`]; programs that embed the engine call `add`, `read` and the like, which
//! do both and block. Nothing here knows a socket or a runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use quipu_model::{
    Clock, Command, DirLock, Durability, Kind, Millis, Name, NameTooLong, Reading, Refusal, Reply, Set, SetCondition,
    SetExpiry, Writer,
};

use crate::admit::Policies;
use crate::apply::table::Table;
use crate::driver::{Driver, Kick};
use crate::journal::format::Position;
use crate::journal::{Journal, JournalError, Wait};
use crate::open::{OpenError, Recovery, open};
use crate::options::{Environment, Options};
use crate::seal::seal_unsealed;
use crate::steps::Steps;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::turn::Turn;

/// An open data directory. Clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    /// Its threads end with the last handle; a simulated engine has none.
    driver: Option<Arc<Driver>>,
}

/// What all handles share.
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) policies: Policies,
    pub(crate) table: Table,
    pub(crate) journal: Journal,
    pub(crate) writer: Writer,
    pub(crate) clock: Arc<dyn Clock>,
    /// The newest time given out or found in the journal: time never goes back, not even over a restart.
    pub(crate) time: AtomicU64,
    pub(crate) recovery: Recovery,
    /// Wakes the driver's threads.
    pub(crate) kick: std::sync::OnceLock<Arc<Kick>>,
    pub(crate) closed: AtomicBool,
    /// Whether a close has gone well.
    pub(crate) closing: Mutex<bool>,
    pub(crate) _lock: Box<dyn DirLock>,
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
    Dead(#[from] Dead),
}

/// The journal has failed: whether an operation survives is unknown until the next start has read the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal failed: {reason}")]
pub struct Dead {
    /// What happened to it.
    pub reason: String,
}

impl Engine {
    /// Opens a directory of this machine, with threads of its own for what happens in the background.
    pub fn open(options: Options) -> Result<Engine, OpenError> {
        Engine::open_driven(options, Environment::system())
    }

    /// Opens a directory in another world, with the same threads.
    pub fn open_driven(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        let inner = Arc::new(open(options, environment)?);
        let driver = Driver::start(inner.clone());
        Ok(Engine { inner, driver: Some(Arc::new(driver)) })
    }

    /// Opens a directory in another world and starts no threads: background work is done by calling [`Engine::steps`].
    pub fn open_with(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        Ok(Engine { inner: Arc::new(open(options, environment)?), driver: None })
    }

    // ---- for programs ---------------------------------------------------------------------------------------------------------

    /// Adds, and returns the value after it once it is as durable as the namespace asks.
    pub fn add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<i64, Error> {
        self.handle(name)?.add(delta)
    }

    /// Reads a counter; one that does not exist reads as 0.
    pub fn read(&self, name: impl AsRef<[u8]>) -> Result<Reading, Error> {
        let mut turn = self.turn();
        let (cell, floor) = turn.cell(Name::new(name.as_ref())?);
        let as_of = turn.now();
        self.wait(turn.finish())?;
        Ok(Reading {
            kind: Kind::Count,
            value: cell.map_or(0, |cell| cell.value),
            exists: cell.is_some(),
            exact: true,
            as_of,
            epoch: cell.map_or(floor, |cell| cell.epoch),
            expires_at: cell.and_then(|cell| cell.expires_at),
        })
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
        let name = Name::new(name.as_ref())?.bytes().into();
        Ok(Handle { engine: self.clone(), name })
    }

    /// Applies any command and waits until its reply may be told.
    pub fn execute(&self, command: &Command<'_>) -> Result<Reply, Error> {
        let mut turn = self.turn();
        let reply = turn.run(command);
        self.wait(turn.finish())?;
        match reply {
            Reply::Refused(refusal) => Err(refusal.into()),
            reply => Ok(reply),
        }
    }

    /// Makes everything durable and marks a clean stop. Writes are refused from here on.
    pub fn close(&self) -> Result<(), CloseError> {
        // The threads first: none of them may write after the mark of a clean stop.
        if let Some(driver) = &self.driver {
            driver.stop();
        }
        self.inner.close()
    }

    // ---- for doors --------------------------------------------------------------------------------------------------------------

    /// Begins a turn.
    pub fn turn(&self) -> Turn<'_> {
        Turn::new(&self.inner)
    }

    /// Waits until replies may leave; commits, for all that is filled, if nobody else is at it.
    pub fn committed(&self, wait: Wait) -> Committed<'_> {
        self.inner.committed(wait)
    }

    /// The engine's time: the wall's, but never before what the journal has seen.
    pub fn now(&self) -> Millis {
        self.inner.now()
    }

    /// The halves of a commit and the work of the background, one step at a time, for a simulator.
    pub fn steps(&self) -> Steps<'_> {
        Steps::new(&self.inner)
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
            durability: inner.policies.default_durability(),
            counters: inner.table.counters(),
            journal_bytes,
            segments,
            written: inner.journal.written(),
            synced: inner.journal.synced(),
            syncs: inner.journal.syncs.load(Ordering::Relaxed),
            sync_micros_last: inner.journal.sync_micros_last.load(Ordering::Relaxed),
            sync_slow: inner.journal.is_slow(),
        }
    }

    fn wait(&self, wait: Wait) -> Result<(), Dead> {
        block_on(self.committed(wait))
    }
}

/// Why a clean stop was not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Counters of memory namespaces could not be sealed.
    #[error("counters in memory could not be sealed: {0}")]
    Unsealed(Refusal),
    /// The journal failed.
    #[error(transparent)]
    Dead(#[from] Dead),
    /// The control file could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Inner {
    pub(crate) fn now(&self) -> Millis {
        let wall = self.clock.wall().0;
        Millis(self.time.fetch_max(wall, Ordering::AcqRel).max(wall))
    }

    pub(crate) fn committed(&self, wait: Wait) -> Committed<'_> {
        Committed { inner: self, wait }
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
    pub(crate) fn tend_if_low(&self) {
        if self.journal.room_is_low() {
            self.tend_now();
        }
    }

    pub(crate) fn tend_now(&self) {
        if let Some(kick) = self.kick.get() {
            kick.tend();
        }
    }

    pub(crate) fn close(&self) -> Result<(), CloseError> {
        // One at a time: a second call returns when the first is done, and tries again what the first could not do.
        let mut closed = lock(&self.closing);
        if *closed {
            return Ok(());
        }
        self.closed.store(true, Ordering::Release);
        let sealed = self.seal_memory();
        let end = self.journal.reserved();
        block_on(self.committed(Wait { written: end, synced: end }))?;
        // What could not be sealed was in memory only; everything else is durable, but the stop was not clean.
        sealed.map_err(CloseError::Unsealed)?;
        self.journal.note_synced(true)?;
        *closed = true;
        Ok(())
    }

    /// Seals the changed counters of memory namespaces, as many as there is room for; the first refusal, if there was one.
    pub(crate) fn seal_memory(&self) -> Result<(), Refusal> {
        let mut sealed = Ok(());
        for shard in 0..self.table.shard_count() {
            loop {
                match seal_unsealed(self, shard) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(refusal) => {
                        sealed = sealed.and(Err(refusal));
                        break;
                    }
                }
            }
        }
        sealed
    }
}

/// A counter, resolved once.
#[derive(Clone)]
pub struct Handle {
    engine: Engine,
    name: Box<[u8]>,
}

impl Handle {
    /// Adds, and returns the value after it once it is as durable as the namespace asks.
    pub fn add(&self, delta: i64) -> Result<i64, Error> {
        let name = Name::new(&self.name).expect("the length was checked when the handle was made");
        match self.engine.execute(&Command::Add { name, delta })? {
            Reply::Integer(value) => Ok(value),
            other => unreachable!("an add replies with a number, not {other:?}"),
        }
    }
}

/// Resolves when replies may leave.
pub struct Committed<'e> {
    inner: &'e Inner,
    wait: Wait,
}

impl Committed<'_> {
    fn try_commit(&self) -> bool {
        let journal = &self.inner.journal;
        journal.reached(self.wait) || {
            if self.wait.written > journal.written() {
                journal.hand_over();
            }
            if self.wait.synced > journal.synced() {
                match self.inner.kick.get() {
                    // A slow disk: the driver's thread waits for it, the worker goes on with what needs none.
                    Some(kick) if journal.is_slow() && !kick.is_stopped() => kick.sync(),
                    _ => journal.sync(),
                }
            }
            journal.reached(self.wait)
        }
    }
}

impl Future for Committed<'_> {
    type Output = Result<(), Dead>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let journal = &self.inner.journal;
        if journal.reached(self.wait) {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = journal.failure() {
            return Poll::Ready(Err(Dead { reason: reason.to_owned() }));
        }
        if self.try_commit() {
            return Poll::Ready(Ok(()));
        }
        // Someone else is committing. Register, then try again: whoever was at it either sees us or is done.
        journal.wake_later(context.waker());
        if self.try_commit() {
            return Poll::Ready(Ok(()));
        }
        match journal.failure() {
            Some(reason) => Poll::Ready(Err(Dead { reason: reason.to_owned() })),
            None => Poll::Pending,
        }
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
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
    /// How long the last one took.
    pub sync_micros_last: u64,
    /// Whether commits are with the driver's thread because the disk is slow.
    pub sync_slow: bool,
}

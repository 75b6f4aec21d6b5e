//! The engine's public interface: open, count, read, close.
//!
//! Protocol crates take [`Engine::turn`] and await [`Engine::commit_until`]. Programs that embed
//! the engine call `add`, `read` and the like, which do both and block. This module knows no socket
//! and no runtime.

pub(crate) mod close;
pub(crate) mod error;
pub(crate) mod handle;
pub(crate) mod namespace_change;
pub(crate) mod stats;
pub(crate) mod time_correction;

use std::path::Path;
use std::time::Duration;

use quipu_model::{
    Command, Freshness, Identity, Millis, Name, NameTooLong, Namespace, Reading, Reply, Set, SetCondition, SetExpiry,
};

use self::close::CloseError;
use self::error::Error;
use self::handle::Handle;
use self::namespace_change::PutNamespaceError;
use self::time_correction::TimeCorrection;
use crate::background::BackgroundThreads;
use crate::background::steps::Steps;
use crate::base::options::{Environment, Options};
use crate::base::sync::Arc;
use crate::core::commit::{CommitFuture, JournalFailure, block_on};
use crate::core::load::{Load, LoadFuture, LoadOutcome};
use crate::core::signals::Signals;
use crate::core::{Core, Recovery};
use crate::execute::turn::{NotRun, Turn};
use crate::journal::Wait;
use crate::namespaces::Policies;
use crate::offline::backup::{Backup, BackupError, BackupStep, BackupSummary};
use crate::recovery::open::{OpenError, open};
use crate::seal::SealError;
use crate::sharing::Sharing;

/// An open data directory. Clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
    /// Its threads end when the last clone is dropped; a simulated engine has no threads.
    driver: Option<Arc<BackgroundThreads>>,
}

impl Engine {
    /// Opens a directory of this machine and starts background threads.
    pub fn open(options: Options) -> Result<Engine, OpenError> {
        Engine::open_with_threads(options, Environment::system())
    }

    /// Opens a directory in a given environment and starts background threads.
    pub fn open_with_threads(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        let core = Arc::new(open(options, environment)?);
        let driver = BackgroundThreads::start(core.clone());
        Ok(Engine { core, driver: Some(Arc::new(driver)) })
    }

    /// Opens a directory in a given environment without threads. The caller drives background work
    /// with [`Engine::steps`].
    pub fn open_with(options: Options, environment: Environment) -> Result<Engine, OpenError> {
        Ok(Engine { core: Arc::new(open(options, environment)?), driver: None })
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
                    self.wait(wait)?;
                    return Ok(reading);
                }
                Err(NotRun::Refused(refusal)) => return Err(refusal.into()),
                Err(NotRun::Load(load)) => self
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
        self.core.put_namespace(name.as_ref(), settings)
    }

    /// Returns the problems that `put_namespace` would report for these settings; changes nothing.
    pub fn check_namespace(&self, name: impl AsRef<[u8]>, settings: &Namespace) -> Vec<String> {
        self.core.check_namespace(name.as_ref(), settings)
    }

    /// The policies in force, per namespace.
    pub fn policies(&self) -> impl std::ops::Deref<Target = Policies> + '_ {
        self.core.namespaces.current()
    }

    /// The options of the open call.
    pub fn options(&self) -> &Options {
        &self.core.options
    }

    /// Copies the whole directory to an empty or new directory, while counting goes on. The copy
    /// holds a state that existed, with all adds acknowledged before the call. It opens as an
    /// independent data directory. Blocks: not for a thread that serves other clients.
    pub fn backup(&self, dir: impl AsRef<Path>) -> Result<BackupSummary, BackupError> {
        let mut backup = Backup::begin(&self.core, dir.as_ref())?;
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
        self.core.lower_time()
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
        self.core.close()
    }

    // ---- for protocols -------------------------------------------------------------------------

    /// Begins a turn.
    pub fn turn(&self) -> Turn<'_> {
        self.turn_at(self.now())
    }

    /// Begins a turn at a time that [`Engine::now`] returned shortly before; for callers that begin
    /// many turns in a row.
    pub fn turn_at(&self, now: Millis) -> Turn<'_> {
        Turn::at(&self.core, now)
    }

    /// Waits until replies may leave. Commits all filled records if no other thread is committing.
    pub fn commit_until(&self, wait: Wait) -> CommitFuture<'_> {
        self.core.commit_until(wait)
    }

    /// Loads counters from the ledger, or walks the ledger.
    pub fn load(&self, load: Load) -> LoadFuture {
        let signal = match &load {
            Load::Names(_) | Load::Memory => Signals::request_load,
            Load::Scan { .. } | Load::List { .. } => Signals::request_walk,
            Load::Rows(_) => Signals::request_fetch,
            Load::Swap(_) | Load::Once(_) => Signals::request_swap,
        };
        let loading = self.core.loads.enqueue(load, self.core.clock.elapsed());
        match self.core.signals.get() {
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
        self.core.now()
    }

    /// The halves of a commit and the background work, one step at a time, for a simulator.
    pub fn steps(&self) -> Steps<'_> {
        Steps::new(&self.core)
    }

    /// The shared store's side of this node, if it has a shared store.
    pub fn sharing(&self) -> Option<Sharing<'_>> {
        self.core.sharing()
    }

    /// The results of recovery at the start.
    pub fn recovery(&self) -> &Recovery {
        &self.core.recovery
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
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

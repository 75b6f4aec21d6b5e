//! Runs the background threads of an engine on a real machine.
//!
//! - The sync thread joins lanes and makes relaxed writes durable within their window. While the
//!   disk is slow, it does all commits.
//! - The maintenance thread (`quipu-tend`) prepares segments, removes expired counters, seals,
//!   evicts counters from memory, and updates the control file.
//! - The load thread loads counters from the ledger.
//! - The walk thread lists names at rest.
//! - The compact thread merges the ledger's tables, for half of its time at most.
//! - With a shared store, further threads settle, fetch, swap, retire and probe.
//!
//! All of them only call [`Steps`], or the rounds of `sharing`; the work itself is elsewhere.

pub(crate) mod overload;
pub(crate) mod steps;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::Duration;

use quipu_model::LedgerError;

use self::steps::Steps;
use crate::base::logging::{self, LogThrottle};
use crate::base::options::LEDGER_DIR;
use crate::base::sync::{Arc, Mutex, lock};
use crate::base::time::{ClockObservation, STEP_MAX, STEP_STAYS};
use crate::core::Core;
use crate::core::commit::block_on;
use crate::core::signals::Signals;
use crate::journal::JournalError;
use crate::seal::SealError;

/// Interval between sweeps of the load thread for expired counters at rest; then shards per sweep.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
const SWEEP_SHARDS: usize = 64;

/// Most time of a sweep, a tenth of the thread's time: a sweep reads a shard at rest.
const SWEEP_TIME: Duration = Duration::from_millis(10);

/// Interval between checks for memory while a load waits for it. The maintenance thread signals
/// free memory.
const MEMORY_RETRY_EVERY: Duration = Duration::from_millis(10);

/// Interval of the compact thread; then its longest pause between two pieces of work.
const COMPACT_EVERY: Duration = Duration::from_millis(500);
const COMPACT_PAUSE_MAX: Duration = Duration::from_secs(5);

type ThreadMain = fn(&Core, &Signals);

/// Each thread does one thing, so that none waits for the disk or store call of another.
const THREADS: [(&str, ThreadMain); 5] = [
    ("quipu-sync", sync_thread),
    ("quipu-tend", maintenance_thread),
    ("quipu-load", load_thread),
    ("quipu-walk", walk_thread),
    ("quipu-compact", compact_thread),
];

/// With a shared store, each of these waits for its replies by itself.
const SHARING_THREADS: [(&str, ThreadMain); 5] = [
    ("quipu-settle", settle_thread),
    ("quipu-fetch", fetch_thread),
    ("quipu-swap", swap_thread),
    ("quipu-retire", retire_thread),
    ("quipu-probe", probe_thread),
];

/// Rounds of the settle thread per shortest `settle_every`; then the bounds of its interval. Each
/// round visits every shard.
const SETTLE_POLLS: u32 = 8;
const SETTLE_EVERY_MIN: Duration = Duration::from_millis(2);
const SETTLE_EVERY_MAX: Duration = Duration::from_millis(100);

/// Interval of retries of fetches and swaps; new ones are signalled.
const SHARING_RETRY_EVERY: Duration = Duration::from_millis(10);

/// Interval of the retire thread. Writers are gone for days before a node acts on that.
const RETIRE_EVERY: Duration = Duration::from_secs(1);

/// Interval of probes of the store: an outage must be known within 2 s.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Interval at which the control file gets the synced position, and slots move into huge pages.
const CONTROL_FILE_EVERY: Duration = Duration::from_secs(1);

/// Interval of the maintenance thread.
const MAINTENANCE_EVERY: Duration = Duration::from_millis(100);

/// Interval of retries on a full disk.
const FULL_RETRY_EVERY: Duration = Duration::from_secs(1);

/// The running threads; dropping it stops them and closes the engine.
pub struct BackgroundThreads {
    core: Arc<Core>,
    signals: Arc<Signals>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl BackgroundThreads {
    /// Starts the threads.
    pub fn start(core: Arc<Core>) -> BackgroundThreads {
        let signals = Arc::new(Signals::new());
        let _ = core.signals.set(signals.clone());
        let sharing: &[(&str, ThreadMain)] = if core.shared.is_some() { &SHARING_THREADS } else { &[] };
        let threads = THREADS.iter().chain(sharing).map(|(name, work)| spawn(name, &core, &signals, *work)).collect();
        BackgroundThreads { core, signals, threads: Mutex::new(threads) }
    }

    /// Ends the threads. From then on, callers do their work themselves.
    pub fn stop(&self) {
        self.signals.raise(|flags| &mut flags.stop);
        // A waiter for a thread that has just ended checks again, and finds that it must act
        // itself.
        self.core.journal.wake_all();
        // Held until all have ended: another closing thread must not begin before.
        let mut threads = lock(&self.threads);
        for thread in threads.drain(..) {
            // One of them may drop the last handle, in a waker that it calls.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        self.stop();
        // A caller that needs the result calls `close` first.
        let _ = self.core.close();
    }
}

fn spawn(name: &str, core: &Arc<Core>, signals: &Arc<Signals>, work: ThreadMain) -> JoinHandle<()> {
    let (core, signals) = (core.clone(), signals.clone());
    let thread = std::thread::Builder::new().name(name.to_owned());
    let name = name.to_owned();
    let run = move || {
        // Other threads wait for this one's work; none of them may wait for ever.
        if catch_unwind(AssertUnwindSafe(|| work(&core, &signals))).is_err() {
            let (file, source) = (core.options.data.clone(), std::io::Error::other(format!("{name} panicked")));
            core.journal.fail(&JournalError::Io { file, what: "use", source });
        }
    };
    thread.spawn(run).expect("the operating system gives a thread at start")
}

fn sync_thread(core: &Core, signals: &Signals) {
    let (steps, window) = (Steps::new(core), core.options.relaxed_window);
    let mut joined_at = core.clock.elapsed();
    while signals.wait(window, |flags| &mut flags.sync) {
        // A slow disk sends more requests; lanes need whole windows to detect that adds have become
        // few.
        let now = core.clock.elapsed();
        if now.saturating_sub(joined_at) >= window {
            joined_at = now;
            steps.join_lanes();
        }
        steps.write_filled();
        steps.sync();
    }
}

fn settle_thread(core: &Core, signals: &Signals) {
    let Some(sharing) = core.sharing() else { return };
    let settle_every = || {
        let settle_every = core.namespaces.current().settle_every_min() / SETTLE_POLLS;
        settle_every.clamp(SETTLE_EVERY_MIN, SETTLE_EVERY_MAX)
    };
    while signals.wait(settle_every(), |flags| &mut flags.settle) {
        block_on(async {
            // If counters change faster than the store takes them, there is always more to settle.
            // The lease and the audit pass must go on all the same.
            loop {
                sharing.renew().await;
                let settled = sharing.settle().await;
                sharing.audit().await;
                if settled == 0 {
                    break;
                }
            }
        });
    }
}

fn fetch_thread(core: &Core, signals: &Signals) {
    let Some(sharing) = core.sharing() else { return };
    while signals.wait(SHARING_RETRY_EVERY, |flags| &mut flags.fetch) {
        while block_on(sharing.fetch()) > 0 {}
    }
}

fn swap_thread(core: &Core, signals: &Signals) {
    let Some(sharing) = core.sharing() else { return };
    while signals.wait(SHARING_RETRY_EVERY, |flags| &mut flags.swap) {
        while block_on(async { sharing.swap().await + sharing.claim().await + sharing.restore_claims().await }) > 0 {}
    }
}

fn retire_thread(core: &Core, signals: &Signals) {
    let Some(sharing) = core.sharing() else { return };
    while signals.wait(RETIRE_EVERY, |flags| &mut flags.retire) {
        while block_on(sharing.retire()) > 0 {}
    }
}

fn probe_thread(core: &Core, signals: &Signals) {
    let Some(sharing) = core.sharing() else { return };
    loop {
        block_on(sharing.probe());
        if !signals.wait(PROBE_EVERY, |flags| &mut flags.probe) {
            return;
        }
    }
}

fn load_thread(core: &Core, signals: &Signals) {
    let steps = Steps::new(core);
    let (mut waiting, mut swept) = (0, 0);
    while signals.wait(if waiting > 0 { MEMORY_RETRY_EVERY } else { SWEEP_EVERY }, |flags| &mut flags.load) {
        loop {
            let done;
            (done, waiting) = steps.run_loads();
            if done == 0 {
                break;
            }
        }
        if waiting > 0 {
            signals.request_maintenance();
        }
        let began = core.clock.elapsed();
        for _ in 0..SWEEP_SHARDS {
            swept = (swept + 1) % steps.shard_count();
            // A read of a counter reports an unreadable ledger.
            if steps.sweep(swept).is_err() || core.clock.elapsed().saturating_sub(began) >= SWEEP_TIME {
                break;
            }
            // A sweep reads a whole shard at rest; a waiting load must not wait for all of them.
            steps.run_loads();
        }
    }
    // Loads that still wait get a reply.
    steps.run_loads();
}

fn walk_thread(core: &Core, signals: &Signals) {
    let steps = Steps::new(core);
    while signals.wait(SWEEP_EVERY, |flags| &mut flags.walk) {
        while steps.run_walks() > 0 {}
    }
    steps.run_walks();
}

fn compact_thread(core: &Core, signals: &Signals) {
    let steps = Steps::new(core);
    let mut pause = COMPACT_EVERY;
    while signals.wait(pause, |flags| &mut flags.compact) {
        let began = core.clock.elapsed();
        pause = COMPACT_EVERY;
        match steps.compact() {
            // It pauses as long as it worked: half a core at most.
            Ok(true) => pause = core.clock.elapsed().saturating_sub(began).min(COMPACT_PAUSE_MAX),
            // Without space the tables stay as they are; the next attempt may find some.
            Ok(false) | Err(LedgerError::Full(_)) => {}
            Err(LedgerError::Io(reason)) => return fail_journal(core, ledger_error(core, reason)),
            // Intact cells are served, damaged ones are refused by name; but no table is rewritten
            // from damaged ones.
            Err(error) => {
                return report_ledger_damage(core, &format!("compaction has ended: {error}"));
            }
        }
    }
}

fn maintenance_thread(core: &Core, signals: &Signals) {
    let steps = Steps::new(core);
    let now = core.clock.elapsed();
    let (full, slow, unsealed, lease_lost, clock_jumped) = Default::default();
    let mut maintenance = MaintenanceLoop {
        sealed_at: now,
        prepared_at: now,
        control_written_at: now,
        last_seal_succeeded: true,
        next_evict_shard: 0,
        full,
        slow,
        unsealed,
        lease_lost,
        clock_jumped,
    };
    while signals.wait(MAINTENANCE_EVERY, |flags| &mut flags.maintenance) {
        if let Err(error) = maintenance.run_maintenance(core, &steps) {
            return fail_journal(core, error);
        }
        if maintenance.has_free_memory(core) {
            signals.request_load();
        }
    }
}

/// State of the maintenance thread between rounds.
struct MaintenanceLoop {
    sealed_at: Duration,
    prepared_at: Duration,
    control_written_at: Duration,
    /// True if the last seal succeeded.
    last_seal_succeeded: bool,
    /// Shard at which eviction continues, so that it does not always begin with the same ones.
    next_evict_shard: usize,
    /// Log throttles for the disk, seals, the lease and the wall clock.
    full: LogThrottle,
    slow: LogThrottle,
    unsealed: LogThrottle,
    lease_lost: LogThrottle,
    clock_jumped: LogThrottle,
}

impl MaintenanceLoop {
    fn run_maintenance(&mut self, core: &Core, steps: &Steps<'_>) -> Result<(), JournalError> {
        let now = core.clock.elapsed();
        steps.adjust_overload_rate();
        // A full disk is retried at intervals: an attempt writes until it is refused.
        let full = core.journal.is_full();
        if !full || now.saturating_sub(self.prepared_at) >= FULL_RETRY_EVERY {
            self.prepared_at = now;
            steps.prepare_segments()?;
        }
        if let Some(sharing) = core.sharing() {
            // On this thread, since it never waits for the store.
            sharing.serve_stale();
            sharing.check_probe();
        }
        for shard in 0..steps.shard_count() {
            while steps.expire(shard) > 0 {}
            steps.purge(shard);
        }
        if now.saturating_sub(self.control_written_at) >= CONTROL_FILE_EVERY {
            self.control_written_at = now;
            core.journal.check_files()?;
            steps.record_synced()?;
            core.table.collapse_huge_pages();
        }
        let since = now.saturating_sub(self.sealed_at);
        let overfull = self.evict_under_pressure(core, steps);
        // On a full disk a seal may free space. A failed seal is not retried at once: it visits
        // every counter.
        let wanted = overfull || steps.needs_seal() || core.journal.is_full() || since >= core.options.seal_every;
        if wanted && (self.last_seal_succeeded || since >= FULL_RETRY_EVERY) {
            self.seal(core)?;
            self.evict_under_pressure(core, steps);
        }
        self.log_transitions(core, now);
        self.compare_clocks(core, now);
        Ok(())
    }

    /// Advances the time while no command asks for it, and warns of a disbelieved wall clock.
    fn compare_clocks(&mut self, core: &Core, now: Duration) {
        let ClockObservation { ahead_millis, moved_millis, .. } = core.time.observe(&*core.clock);
        let ahead_seconds = ahead_millis / 1_000;
        if let Some(moved_millis) = moved_millis {
            let (moved_seconds, stayed_seconds) = (moved_millis / 1_000, STEP_STAYS.as_secs());
            tracing::warn!(
                moved_seconds,
                stayed_seconds,
                "the wall clock has stayed where it jumped to, and is believed"
            );
        }
        match self.clock_jumped.transition(ahead_seconds.unsigned_abs() > STEP_MAX.as_secs(), now) {
            Some(true) => tracing::warn!(
                ahead_seconds,
                "the wall clock has jumped: time goes on by the monotonic clock, and expiry and tokens with it; check the machine's time service"
            ),
            Some(false) => tracing::info!("the wall clock and the engine's time agree again"),
            None => {}
        }
    }

    /// Logs changes in the state of the disk and of the lease.
    fn log_transitions(&mut self, core: &Core, now: Duration) {
        match self.full.transition(core.journal.is_full(), now) {
            Some(true) => tracing::error!(
                "the disk is full: what must be journaled is refused, reads go on; it heals when there is space again"
            ),
            Some(false) => tracing::info!("the disk has space again: everything is taken"),
            None => {}
        }
        let slow_sync = core.journal.slow_sync();
        match self.slow.transition(slow_sync.is_some(), now) {
            Some(true) => {
                // Not that of the last sync, which may have been a fast one.
                let sync_millis = slow_sync.unwrap_or_default().as_millis() as u64;
                tracing::warn!(sync_millis, "the disk is slow: commits have moved to a thread of their own");
            }
            Some(false) => tracing::info!("the disk is no longer slow"),
            None => {}
        }
        let lease_lost = core.sharing().is_some_and(|sharing| sharing.has_lost_lease());
        match self.lease_lost.transition(lease_lost, now) {
            Some(true) => tracing::warn!(
                "the lease at the shared store has run out: nothing is put there until it is renewed, counting goes on"
            ),
            Some(false) => tracing::info!("the lease at the shared store is held again"),
            None => {}
        }
    }

    fn seal(&mut self, core: &Core) -> Result<(), JournalError> {
        let sealed = core.seal_all();
        // A full disk needs space from other files, unless the journal had something to give.
        self.last_seal_succeeded = sealed.is_ok() && !core.journal.is_full();
        self.sealed_at = core.clock.elapsed();
        let failed = if let Err(SealError::Ledger(error)) = &sealed { Some(error.to_string()) } else { None };
        match self.unsealed.transition(failed.is_some(), self.sealed_at) {
            Some(true) => {
                let reason = failed.unwrap_or_default();
                tracing::warn!(reason, "a seal failed: the journal keeps what it has, and a later one tries again");
            }
            Some(false) => tracing::info!("seals succeed again"),
            None => {}
        }
        match sealed {
            // Nothing is lost: the journal has it all, and a later round tries again.
            Ok(())
            | Err(SealError::Ledger(LedgerError::Full(_)) | SealError::Flushed | SealError::JournalFailed(_)) => Ok(()),
            Err(SealError::Journal(error)) => Err(error),
            // The journal keeps the cells that the ledger cannot take any more.
            Err(SealError::Ledger(error @ LedgerError::Damaged(_))) => {
                report_ledger_damage(core, &format!("sealing has ended: {error}"));
                Ok(())
            }
            Err(SealError::Ledger(error)) => Err(ledger_error(core, error.to_string())),
        }
    }

    /// Evicts counters when memory runs short. Returns true if that did not help because too many
    /// cells have changed.
    fn evict_under_pressure(&mut self, core: &Core, steps: &Steps<'_>) -> bool {
        let Some((bytes, bytes_max)) = core.cells_memory() else { return false };
        let (begin, aim) = (bytes_max / 10 * 9, bytes_max / 10 * 8);
        let is_above = |most: u64| core.cells_memory().is_some_and(|(bytes, _)| bytes > most);
        if bytes <= begin {
            return false;
        }
        // Two rounds: the first one spares recently used counters.
        for _ in 0..2 * steps.shard_count() {
            steps.evict(self.next_evict_shard);
            self.next_evict_shard = (self.next_evict_shard + 1) % steps.shard_count();
            if !is_above(aim) {
                return false;
            }
        }
        is_above(begin)
    }

    /// Returns true if there is memory for waiting loads.
    fn has_free_memory(&self, core: &Core) -> bool {
        core.options.memory_bytes_max.is_some() && !core.memory_is_full()
    }
}

/// Ends the journal. If files were removed or replaced, that is the reason, regardless of the first
/// file missed.
fn fail_journal(core: &Core, error: JournalError) {
    core.journal.fail(&core.journal.check_files().err().unwrap_or(error));
}

/// Logs damage of the ledger, once.
fn report_ledger_damage(core: &Core, text: &str) {
    if core.compaction.damage.set(text.to_owned()).is_ok() {
        logging::error(text, "the ledger is damaged; restore a backup, or what is damaged");
    }
}

fn ledger_error(core: &Core, reason: String) -> JournalError {
    let file = core.options.data.join(LEDGER_DIR);
    JournalError::Io { file, what: "use", source: std::io::Error::other(reason) }
}

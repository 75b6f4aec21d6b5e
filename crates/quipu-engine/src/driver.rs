//! The threads of a real engine: one that syncs, one that tends.
//!
//! The sync thread makes relaxed writes durable within their window, and does all commits while the disk is slow. The tend thread prepares
//! segments, removes expired counters, seals, and keeps the control file fresh. Both only call [`Steps`]; what a step does is elsewhere.

use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::Inner;
use crate::journal::Wait;
use crate::steps::Steps;
use crate::sync::{Arc, Condvar, Mutex, lock};

/// The tend thread looks around this often.
const TEND_EVERY: Duration = Duration::from_millis(100);

/// A disk that was full is tried again this often.
const FULL_RETRY_EVERY: Duration = Duration::from_secs(1);

/// Wakes the threads.
pub struct Kick {
    asked: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Default, Clone, Copy)]
struct Asked {
    sync: bool,
    tend: bool,
    stop: bool,
}

impl Kick {
    /// Asks for a commit.
    pub fn sync(&self) {
        self.ask(|asked| &mut asked.sync);
    }

    /// Asks for segments.
    pub fn tend(&self) {
        self.ask(|asked| &mut asked.tend);
    }

    /// Whether the threads were told to end: then nobody else commits.
    pub fn is_stopped(&self) -> bool {
        lock(&self.asked).stop
    }

    fn ask(&self, which: impl FnOnce(&mut Asked) -> &mut bool) {
        let mut asked = lock(&self.asked);
        if !std::mem::replace(which(&mut asked), true) {
            self.changed.notify_all();
        }
    }

    /// Waits until it is asked for or the time is up; false when it is time to stop.
    fn wait(&self, at_most: Duration, which: impl Fn(&mut Asked) -> &mut bool) -> bool {
        let asked = lock(&self.asked);
        let waiting = |asked: &mut Asked| !*which(asked) && !asked.stop;
        let waited = self.changed.wait_timeout_while(asked, at_most, waiting);
        let (mut asked, _) = waited.expect("no thread panics while it holds this lock");
        *which(&mut asked) = false;
        !asked.stop
    }
}

/// The running threads; dropping it stops them and closes the engine.
pub struct Driver {
    inner: Arc<Inner>,
    kick: Arc<Kick>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Driver {
    /// Starts the threads.
    pub fn start(inner: Arc<Inner>) -> Driver {
        let kick = Arc::new(Kick { asked: Mutex::new(Asked::default()), changed: Condvar::new() });
        let _ = inner.kick.set(kick.clone());
        let threads =
            vec![spawn("quipu-sync", &inner, &kick, sync_thread), spawn("quipu-tend", &inner, &kick, tend_thread)];
        Driver { inner, kick, threads: Mutex::new(threads) }
    }

    /// Ends the threads. What they would have done is done by whoever needs it.
    pub fn stop(&self) {
        self.kick.ask(|asked| &mut asked.stop);
        // Whoever waits for a thread that has just ended looks again, and finds that it must do for itself.
        self.inner.journal.wake_all();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // The last handle may be dropped by one of them, in a waker it calls.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
        // Whoever wants to know whether it went well calls close first.
        let _ = self.inner.close();
    }
}

fn spawn(name: &str, inner: &Arc<Inner>, kick: &Arc<Kick>, work: fn(&Inner, &Kick)) -> JoinHandle<()> {
    let (inner, kick) = (inner.clone(), kick.clone());
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || work(&inner, &kick)).expect("the operating system gives a thread at start")
}

fn sync_thread(inner: &Inner, kick: &Kick) {
    let steps = Steps::new(inner);
    while kick.wait(inner.options.relaxed_window, |asked| &mut asked.sync) {
        steps.hand_over();
        steps.sync();
    }
}

fn tend_thread(inner: &Inner, kick: &Kick) {
    let steps = Steps::new(inner);
    let (mut sealed_at, mut prepared_at) = (inner.clock.elapsed(), inner.clock.elapsed());
    while kick.wait(TEND_EVERY, |asked| &mut asked.tend) {
        // A full disk is tried again now and then: an attempt writes until it is refused.
        let now = inner.clock.elapsed();
        let wait_for_space = inner.journal.is_full() && now.saturating_sub(prepared_at) < FULL_RETRY_EVERY;
        let prepared = if wait_for_space { Ok(()) } else { steps.prepare() };
        prepared_at = if wait_for_space { prepared_at } else { now };
        let tended = prepared.and_then(|()| {
            (0..steps.shards()).for_each(|shard| while steps.expire(shard) > 0 {});
            if inner.clock.elapsed().saturating_sub(sealed_at) >= inner.options.seal_every {
                sealed_at = inner.clock.elapsed();
                // Without room the counters stay unsealed; the next round tries again.
                let _ = inner.seal_memory();
                steps.note_synced()?;
            }
            if steps.wants_seal() { seal_all(inner, &steps) } else { Ok(()) }
        });
        if let Err(error) = tended {
            inner.journal.fail(&error);
            return;
        }
    }
}

/// Seals all cells, preparing segments on the way. Given up for this time when there is no room: the journal stays as it is.
fn seal_all(inner: &Inner, steps: &Steps<'_>) -> Result<(), crate::journal::JournalError> {
    let Ok(mut seal) = steps.seal_begin() else { return Ok(()) };
    loop {
        // On a full disk the seal goes on with the room there is, since its cut frees segments; asking the disk before every shard would
        // only write until it refuses, again and again.
        if !inner.journal.is_full() {
            steps.prepare()?;
        }
        match steps.seal_step(&mut seal) {
            Ok(false) => {}
            Ok(true) => break,
            Err(_) => return Ok(()),
        }
    }
    let end = seal.end();
    if crate::engine::block_on(inner.committed(Wait { written: end, synced: end })).is_ok() {
        steps.seal_finish(seal)?;
    }
    Ok(())
}

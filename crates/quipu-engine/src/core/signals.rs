//! Wakes the background threads.

use std::time::Duration;

use crate::base::sync::{Condvar, Mutex, lock};

/// Wake-up signals of the threads.
pub struct Signals {
    pub(crate) flags: Mutex<SignalFlags>,
    pub(crate) changed: Condvar,
}

/// The raised signals.
#[derive(Default, Clone, Copy)]
pub struct SignalFlags {
    pub(crate) sync: bool,
    pub(crate) maintenance: bool,
    pub(crate) load: bool,
    pub(crate) walk: bool,
    pub(crate) compact: bool,
    pub(crate) settle: bool,
    pub(crate) fetch: bool,
    pub(crate) swap: bool,
    pub(crate) retire: bool,
    pub(crate) probe: bool,
    pub(crate) stop: bool,
}

impl Signals {
    /// No signal is raised.
    pub fn new() -> Signals {
        Signals { flags: Mutex::new(SignalFlags::default()), changed: Condvar::new() }
    }

    /// Requests a commit.
    pub fn request_sync(&self) {
        self.raise(|flags| &mut flags.sync);
    }

    /// Requests segments.
    pub fn request_maintenance(&self) {
        self.raise(|flags| &mut flags.maintenance);
    }

    /// Requests counters at rest.
    pub fn request_load(&self) {
        self.raise(|flags| &mut flags.load);
    }

    /// Requests a walk over all names.
    pub fn request_walk(&self) {
        self.raise(|flags| &mut flags.walk);
    }

    /// Requests rows of the shared store.
    pub fn request_fetch(&self) {
        self.raise(|flags| &mut flags.fetch);
    }

    /// Requests swaps and claims at the shared store.
    pub fn request_swap(&self) {
        self.raise(|flags| &mut flags.swap);
    }

    /// Returns true once the threads were told to end: then callers commit for themselves.
    pub fn is_stopped(&self) -> bool {
        lock(&self.flags).stop
    }

    pub(crate) fn raise(&self, which: impl FnOnce(&mut SignalFlags) -> &mut bool) {
        let mut flags = lock(&self.flags);
        if !std::mem::replace(which(&mut flags), true) {
            self.changed.notify_all();
        }
    }

    /// Waits for the signal or the timeout; false when it is time to stop.
    pub(crate) fn wait(&self, at_most: Duration, which: impl Fn(&mut SignalFlags) -> &mut bool) -> bool {
        let flags = lock(&self.flags);
        let waiting = |flags: &mut SignalFlags| !*which(flags) && !flags.stop;
        let waited = self.changed.wait_timeout_while(flags, at_most, waiting);
        let (mut flags, _) = waited.expect("no thread panics while it holds this lock");
        *which(&mut flags) = false;
        !flags.stop
    }
}

//! Signals the server's shutdown to the HTTP connections.
//!
//! A flag that each connection checks, and a list of wakers. A channel that each connection polled
//! in every turn cost more than the turn. All connections are tasks of one thread, so the list's
//! lock is never contended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Shutdown flag and wakers; one for all connections.
#[derive(Default)]
pub(super) struct ShutdownSignal {
    stopping: AtomicBool,
    slots: Mutex<WakerSlots>,
}

#[derive(Default)]
struct WakerSlots {
    /// Wakers by slot.
    wakers: Vec<Option<Waker>>,
    /// Free slots.
    free: Vec<usize>,
}

impl ShutdownSignal {
    /// Returns true after the signal.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Signals all connections.
    pub fn trigger(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let wakers: Vec<Waker> = self.lock().wakers.iter_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, WakerSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's registration.
pub(super) struct ShutdownWait {
    signal: Arc<ShutdownSignal>,
    /// Slot and waker, once it has waited.
    slot: Option<(usize, Waker)>,
}

impl ShutdownWait {
    pub fn new(signal: Arc<ShutdownSignal>) -> ShutdownWait {
        ShutdownWait { signal, slot: None }
    }

    /// Returns true if the server is stopping; else registers the waker.
    #[inline]
    pub fn poll(&mut self, waker: &Waker) -> bool {
        if self.signal.is_stopping() {
            return true;
        }
        if !self.slot.as_ref().is_some_and(|(_, registered)| registered.will_wake(waker)) {
            self.register(waker);
        }
        false
    }

    fn register(&mut self, waker: &Waker) {
        let mut slots = self.signal.lock();
        let WakerSlots { wakers, free } = &mut *slots;
        let slot = match &self.slot {
            Some((slot, _)) => *slot,
            None => free.pop().unwrap_or_else(|| {
                wakers.push(None);
                wakers.len() - 1
            }),
        };
        wakers[slot] = Some(waker.clone());
        self.slot = Some((slot, waker.clone()));
    }
}

impl Drop for ShutdownWait {
    fn drop(&mut self) {
        if let Some((slot, _)) = self.slot.take() {
            let mut slots = self.signal.lock();
            slots.wakers[slot] = None;
            slots.free.push(slot);
        }
    }
}

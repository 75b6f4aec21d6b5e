//! How the connections of this door learn that the server stops.
//!
//! A flag that each of them looks at, and a list of whom to wake: a channel that each of them looked at in every turn cost more than the turn. All of them are tasks of one thread, so nobody ever waits for the list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Whether the server stops; one for all of them.
#[derive(Default)]
pub(super) struct ShutdownSignal {
    stopping: AtomicBool,
    slots: Mutex<WakerSlots>,
}

#[derive(Default)]
struct WakerSlots {
    /// Whom to wake, by place.
    wakers: Vec<Option<Waker>>,
    /// Places that were given back.
    free: Vec<usize>,
}

impl ShutdownSignal {
    /// Whether everybody was told.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Tells everybody.
    pub fn trigger(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let wakers: Vec<Waker> = self.lock().wakers.iter_mut().filter_map(Option::take).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, WakerSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's share in it.
pub(super) struct ShutdownWait {
    signal: Arc<ShutdownSignal>,
    /// Its place, once it has waited, and who is woken there.
    slot: Option<(usize, Waker)>,
}

impl ShutdownWait {
    pub fn new(signal: Arc<ShutdownSignal>) -> ShutdownWait {
        ShutdownWait { signal, slot: None }
    }

    /// Whether the server stops; if not, this one is woken when it does.
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

//! Queues the slots of a worker that were woken.
//!
//! In: wake-ups, by the runtime on the worker's own thread, or by the engine on others. Out: slots,
//! each once, in the order of their wake-ups.
//!
//! Invariant: a slot woken after its handle was cleared is queued again, so no wake-up is lost
//! between draining and polling.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// Wake queue of one worker.
#[derive(Default)]
pub(super) struct WakeQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    slots: Vec<usize>,
    /// Waker of the worker, woken by the first entry.
    worker: Option<Waker>,
}

/// Wake handle of one slot, with a flag for its presence in the queue.
pub(super) struct WakeHandle {
    slot: usize,
    is_queued: AtomicBool,
    queue: Arc<WakeQueue>,
}

impl WakeQueue {
    /// Appends all queued slots to `slots`; the next wake-up wakes the worker.
    pub fn drain_into(&self, context: &Context<'_>, slots: &mut Vec<usize>) {
        let mut state = self.lock();
        if !state.worker.as_ref().is_some_and(|worker| worker.will_wake(context.waker())) {
            state.worker = Some(context.waker().clone());
        }
        slots.append(&mut state.slots);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakeHandle {
    /// Creates a slot's handle and the waker for it.
    pub fn new(slot: usize, queue: &Arc<WakeQueue>) -> (Arc<WakeHandle>, Waker) {
        let handle = Arc::new(WakeHandle { slot, is_queued: AtomicBool::new(false), queue: Arc::clone(queue) });
        (Arc::clone(&handle), Waker::from(handle))
    }

    /// Called before the worker polls the slot. A later wake-up queues the slot again; this poll
    /// sees the effects of all earlier ones.
    pub fn clear(&self) {
        self.is_queued.swap(false, Ordering::AcqRel);
    }
}

impl Wake for WakeHandle {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.queue.lock();
        state.slots.push(self.slot);
        if state.slots.len() == 1
            && let Some(worker) = &state.worker
        {
            worker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct WakeFlag(AtomicBool);

    impl Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_slot_is_queued_once_until_it_is_served_and_the_first_wakes_the_worker() {
        let (queue, flag) = (Arc::new(WakeQueue::default()), Arc::new(WakeFlag::default()));
        let waker = Waker::from(Arc::clone(&flag));
        let (context, mut slots) = (Context::from_waker(&waker), Vec::new());
        let [(first, first_waker), (_, second_waker)] = [3, 7].map(|slot| WakeHandle::new(slot, &queue));
        queue.drain_into(&context, &mut slots);
        assert!(slots.is_empty() && !flag.0.load(Ordering::Relaxed));
        for handle in [&second_waker, &first_waker, &second_waker] {
            handle.wake_by_ref();
        }
        assert!(flag.0.swap(false, Ordering::Relaxed));
        queue.drain_into(&context, &mut slots);
        assert_eq!(slots, [7, 3]);
        // Drained but not polled: the coming poll covers this wake-up.
        first_waker.wake_by_ref();
        queue.drain_into(&context, &mut slots);
        assert_eq!((&*slots, flag.0.load(Ordering::Relaxed)), (&[7, 3][..], false));
        first.clear();
        first_waker.wake_by_ref();
        assert!(flag.0.load(Ordering::Relaxed));
        queue.drain_into(&context, &mut slots);
        assert_eq!(slots, [7, 3, 3]);
    }
}

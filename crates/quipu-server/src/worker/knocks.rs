//! Who of a worker's places wants to be looked at.
//!
//! In: wake-ups, by the runtime on the worker's own thread, or by the engine on others. Out: places, each once, in the order in which they knocked.
//!
//! Invariant: a place that knocks after it was taken out is told again, so no wake-up is lost between taking and looking.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// The knocks of one worker.
#[derive(Default)]
pub(super) struct Knocks(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    places: Vec<usize>,
    /// Whoever takes them out; woken by the first.
    worker: Option<Waker>,
}

/// One place, and whether it has knocked since it was taken out.
pub(super) struct Knock {
    place: usize,
    waits: AtomicBool,
    knocks: Arc<Knocks>,
}

impl Knocks {
    /// Takes all of them out, behind those that are in the list; the worker is woken by the next one.
    pub fn take(&self, context: &Context<'_>, places: &mut Vec<usize>) {
        let mut waiting = self.waiting();
        if !waiting.worker.as_ref().is_some_and(|worker| worker.will_wake(context.waker())) {
            waiting.worker = Some(context.waker().clone());
        }
        places.append(&mut waiting.places);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Knock {
    /// A place's, and what wakes by it.
    pub fn new(place: usize, knocks: &Arc<Knocks>) -> (Arc<Knock>, Waker) {
        let knock = Arc::new(Knock { place, waits: AtomicBool::new(false), knocks: Arc::clone(knocks) });
        (Arc::clone(&knock), Waker::from(knock))
    }

    /// It is looked at now: whoever knocks from here on wants another look, and what those before have done is seen by this one.
    pub fn heed(&self) {
        self.waits.swap(false, Ordering::AcqRel);
    }
}

impl Wake for Knock {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut waiting = self.knocks.waiting();
        waiting.places.push(self.place);
        if waiting.places.len() == 1
            && let Some(worker) = &waiting.worker
        {
            worker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_place_is_told_once_until_it_was_looked_at_and_the_first_wakes_the_worker() {
        let (knocks, woken) = (Arc::new(Knocks::default()), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let (context, mut places) = (Context::from_waker(&waker), Vec::new());
        let [(first, knock_first), (_, knock_second)] = [3, 7].map(|place| Knock::new(place, &knocks));
        knocks.take(&context, &mut places);
        assert!(places.is_empty() && !woken.0.load(Ordering::Relaxed));
        for knock in [&knock_second, &knock_first, &knock_second] {
            knock.wake_by_ref();
        }
        assert!(woken.0.swap(false, Ordering::Relaxed));
        knocks.take(&context, &mut places);
        assert_eq!(places, [7, 3]);
        // Taken out, but not looked at: whoever looks will see what this one is about.
        knock_first.wake_by_ref();
        knocks.take(&context, &mut places);
        assert_eq!((&*places, woken.0.load(Ordering::Relaxed)), (&[7, 3][..], false));
        first.heed();
        knock_first.wake_by_ref();
        assert!(woken.0.load(Ordering::Relaxed));
        knocks.take(&context, &mut places);
        assert_eq!(places, [7, 3, 3]);
    }
}

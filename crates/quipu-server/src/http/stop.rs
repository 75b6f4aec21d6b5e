//! How the connections of this door learn that the server stops.
//!
//! A flag that each of them looks at, and a list of whom to wake: a channel that each of them looked at in every turn cost more than the turn. All of them are tasks of one thread, so nobody ever waits for the list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Whether the server stops; one for all of them.
#[derive(Default)]
pub(super) struct Stop {
    stopping: AtomicBool,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// Whom to wake, by place.
    waiting: Vec<Option<Waker>>,
    /// Places that were given back.
    free: Vec<usize>,
}

impl Stop {
    /// Whether everybody was told.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Tells everybody.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let waiting: Vec<Waker> = self.places().waiting.iter_mut().filter_map(Option::take).collect();
        waiting.into_iter().for_each(Waker::wake);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's share in it.
pub(super) struct Stopping {
    stop: Arc<Stop>,
    /// Its place, once it has waited, and who is woken there.
    place: Option<(usize, Waker)>,
}

impl Stopping {
    pub fn new(stop: Arc<Stop>) -> Stopping {
        Stopping { stop, place: None }
    }

    /// Whether the server stops; if not, this one is woken when it does.
    #[inline]
    pub fn poll(&mut self, waker: &Waker) -> bool {
        if self.stop.is_stopping() {
            return true;
        }
        if !self.place.as_ref().is_some_and(|(_, known)| known.will_wake(waker)) {
            self.wait(waker);
        }
        false
    }

    fn wait(&mut self, waker: &Waker) {
        let mut places = self.stop.places();
        let Places { waiting, free } = &mut *places;
        let place = match &self.place {
            Some((place, _)) => *place,
            None => free.pop().unwrap_or_else(|| {
                waiting.push(None);
                waiting.len() - 1
            }),
        };
        waiting[place] = Some(waker.clone());
        self.place = Some((place, waker.clone()));
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        if let Some((place, _)) = self.place.take() {
            let mut places = self.stop.places();
            places.waiting[place] = None;
            places.free.push(place);
        }
    }
}

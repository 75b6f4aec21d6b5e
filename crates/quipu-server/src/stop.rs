//! How the connections of a worker learn that the server stops.
//!
//! All of them are tasks of one thread, so a flag and a list of whom to wake are enough; a channel that each of them looked at in every turn cost more than the turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// Whether the server stops; one per worker.
#[derive(Default)]
pub(crate) struct Stop {
    stopping: Cell<bool>,
    /// Whom to wake, by place.
    waiting: RefCell<Vec<Option<Waker>>>,
    /// Places that were given back.
    free: RefCell<Vec<usize>>,
}

impl Stop {
    /// Whether everybody was told.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Tells everybody.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.waiting.borrow_mut().iter_mut().filter_map(Option::take).for_each(Waker::wake);
    }
}

/// One connection's share in it.
pub(crate) struct Stopping {
    stop: Rc<Stop>,
    /// Its place, once it has waited, and who is woken there.
    place: Option<(usize, Waker)>,
}

impl Stopping {
    pub fn new(stop: Rc<Stop>) -> Stopping {
        Stopping { stop, place: None }
    }

    /// Whether the server stops; if not, this one is woken when it does.
    #[inline]
    pub fn poll(&mut self, waker: &Waker) -> bool {
        if self.stop.stopping.get() {
            return true;
        }
        if !self.place.as_ref().is_some_and(|(_, known)| known.will_wake(waker)) {
            self.wait(waker);
        }
        false
    }

    fn wait(&mut self, waker: &Waker) {
        let mut waiting = self.stop.waiting.borrow_mut();
        let place = match &self.place {
            Some((place, _)) => *place,
            None => self.stop.free.borrow_mut().pop().unwrap_or_else(|| {
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
            self.stop.waiting.borrow_mut()[place] = None;
            self.stop.free.borrow_mut().push(place);
        }
    }
}

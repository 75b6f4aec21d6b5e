//! Who sits where: the connections of a worker, by number.
//!
//! Invariant: a place is given to one connection at a time, and given back once.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use super::knocks::{Knock, Knocks};
use crate::connection::Connection;

/// A connection that is served apart from the others; it comes back when there is nothing to do but to wait.
pub(super) type Apart = Pin<Box<dyn Future<Output = Option<Box<Connection>>>>>;

/// The places of a worker.
pub(super) struct Places {
    knocks: Arc<Knocks>,
    places: Vec<Place>,
    /// Those that nobody has.
    free: Vec<usize>,
}

/// One of them.
pub(super) struct Place {
    pub seat: Seat,
    pub knock: Arc<Knock>,
    pub waker: Waker,
}

/// What is going on there.
pub(super) enum Seat {
    Free,
    /// It waits for bytes, and knocks when some have come.
    Rests(Box<Connection>),
    /// It waits for its replies to be sent; knocks are about nothing until it rests again.
    Asked(Box<Connection>),
    Apart(Apart),
}

impl Seat {
    /// It was read from.
    pub fn ask(&mut self) {
        *self = match mem::replace(self, Seat::Free) {
            Seat::Rests(connection) => Seat::Asked(connection),
            other => other,
        };
    }
}

impl Places {
    pub fn new(knocks: Arc<Knocks>) -> Places {
        Places { knocks, places: Vec::new(), free: Vec::new() }
    }

    /// Gives a place to a connection that has nothing to read yet.
    pub fn give(&mut self, connection: Box<Connection>) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            let (knock, waker) = Knock::new(self.places.len(), &self.knocks);
            self.places.push(Place { seat: Seat::Free, knock, waker });
            self.places.len() - 1
        });
        self.places[place].seat = Seat::Asked(connection);
        place
    }

    /// The connection there is over.
    pub fn leave(&mut self, place: usize) {
        if !matches!(mem::replace(&mut self.places[place].seat, Seat::Free), Seat::Free) {
            self.free.push(place);
        }
    }

    pub fn at(&mut self, place: usize) -> &mut Place {
        &mut self.places[place]
    }

    /// The connection there, if it waits for its replies.
    pub fn asked(&mut self, place: usize) -> Option<&mut Connection> {
        match &mut self.places[place].seat {
            Seat::Asked(connection) => Some(connection),
            _ => None,
        }
    }

    pub fn are_all_free(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Has everybody looked at.
    pub fn knock_everywhere(&self) {
        self.places.iter().for_each(|place| place.waker.wake_by_ref());
    }
}

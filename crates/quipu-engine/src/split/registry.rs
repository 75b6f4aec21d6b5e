//! All splits of an engine, and the room in the journal that they hold together.

use super::LaneSet;
use crate::journal::Journal;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

/// Counters with lanes at a time, each of which is looked at in every window, and what their lanes take together, at 256 bytes a core and counter.
/// Handles of others count the ordinary way.
const LANE_SETS_MAX: usize = 4096;
const LANES_BYTES_MAX: usize = 16 << 20;

/// Room in the journal that open lanes hold together at most, beside what is prepared ahead of the writing; at some 100 bytes each, enough for all of them.
const ROOM_BYTES_MAX: u64 = 1 << 20;

/// See the module.
#[derive(Default)]
pub struct LaneRegistry {
    /// A leaf: no other lock is taken while it is held.
    all: Mutex<Vec<Arc<LaneSet>>>,
    room: AtomicU64,
}

impl LaneRegistry {
    /// Takes a split on; false if there are too many.
    pub fn try_add(&self, lanes: &Arc<LaneSet>) -> bool {
        let mut all = lock(&self.all);
        let fits = all.len() < LANE_SETS_MAX && (all.len() + 1) * lanes.lanes_bytes() <= LANES_BYTES_MAX;
        if fits {
            all.push(lanes.clone());
        }
        fits
    }

    pub fn remove(&self, lanes: &LaneSet) {
        let mut all = lock(&self.all);
        if let Some(at) = all.iter().position(|other| std::ptr::eq(&**other, lanes)) {
            all.swap_remove(at);
        }
    }

    /// All of them, at this moment.
    pub fn all(&self) -> Vec<Arc<LaneSet>> {
        lock(&self.all).clone()
    }

    /// Holds room in the journal; false if there is none, or lanes hold enough of it.
    pub fn reserve_room(&self, journal: &Journal, bytes: usize) -> bool {
        let fits = |held: u64| held.checked_add(bytes as u64).filter(|held| *held <= ROOM_BYTES_MAX);
        if self.room.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_err() {
            return false;
        }
        let has_room = bytes == 0 || journal.reserve_room(bytes).is_ok();
        if !has_room {
            self.room.fetch_sub(bytes as u64, Ordering::AcqRel);
        }
        has_room
    }

    /// Room that lanes held goes to whoever writes down what they came to.
    pub fn consume_room(&self, bytes: usize) {
        self.room.fetch_sub(bytes as u64, Ordering::AcqRel);
    }

    /// Gives room back.
    pub fn return_room(&self, journal: &Journal, bytes: usize) {
        if bytes > 0 {
            self.consume_room(bytes);
            journal.return_room(bytes);
        }
    }
}

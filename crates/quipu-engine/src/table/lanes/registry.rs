//! Registers all lane sets of an engine, and the journal room that they hold together.

use crate::base::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::journal::Journal;
use crate::table::lanes::LaneSet;

/// Most counters with lanes at a time, each of which is visited in every window; and most bytes of
/// their lanes, at 256 bytes per core and counter. Handles beyond these bounds add by the general
/// path.
const LANE_SETS_MAX: usize = 4096;
const LANES_BYTES_MAX: usize = 16 << 20;

/// Most journal room of all open lanes, beside the room prepared ahead of the writes. At some 100
/// bytes each, it suffices for all of them.
const ROOM_BYTES_MAX: u64 = 1 << 20;

/// All lane sets, see the module.
#[derive(Default)]
pub struct LaneRegistry {
    /// A leaf: no other lock is taken while it is held.
    all: Mutex<Vec<Arc<LaneSet>>>,
    room: AtomicU64,
}

impl LaneRegistry {
    /// Registers a lane set; false if there are too many.
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

    /// A snapshot of all lane sets.
    pub fn all(&self) -> Vec<Arc<LaneSet>> {
        lock(&self.all).clone()
    }

    /// Reserves journal room for lanes; false if there is none, or the bound is reached.
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

    /// Passes the lanes' room to the turn that journals their sum.
    pub fn consume_room(&self, bytes: usize) {
        self.room.fetch_sub(bytes as u64, Ordering::AcqRel);
    }

    /// Returns the lanes' room to the journal.
    pub fn return_room(&self, journal: &Journal, bytes: usize) {
        if bytes > 0 {
            self.consume_room(bytes);
            journal.return_room(bytes);
        }
    }
}

//! Lanes: a counter that many add to at once, and nobody asks, is added to in several places, which are joined when somebody does ask.
//!
//! In: adds of any thread that want no value back, without a lock. Out: their sum, to whoever holds the lock of the counter's shard.
//!
//! A lane holds the running value of all that was ever added to it, and a mark: how much of that was joined. Nothing is ever taken out of it, so a
//! join that is refused leaves everything as it was, by not moving the mark, and nothing can be joined twice.
//!
//! How an add meets a closing: the adder adds, passes a barrier, then looks whether the lanes are open; the closer closes them, passes a barrier,
//! then looks at the lanes. So at least one sees the other: the closer joins the add, or the adder sees the closing. Such an add is late: its own
//! thread joins what the lane holds, under the lock, before it returns.
//!
//! A full barrier costs an adder more than everything else it does. So a lane belongs to one thread, which adds without a locked instruction and
//! passes a barrier that only the compiler sees, and it is the closer who has all threads pass a real one; there is one closing to millions of adds.
//! Threads beyond the lanes, and all where the system has no such barrier, share lanes and add by a locked instruction, which is one.
//!
//! Invariants:
//! - lanes are opened, closed and joined under the lock of the counter's shard alone, and what was joined is applied before the lock is let go: so an add that has
//!   returned is in the value, or in a lane that the next command looks at;
//! - lanes that may hold something of an add that has returned are **live**; a counter whose lanes are live stays in memory;
//! - while lanes are open, the counter exists, does not expire, has a value within [`VALUE_MAX`], and the journal has room for the entry of a join:
//!   so a join is not refused.
//!
//! Not here: applying a join (`apply/join`), opening and the ordinary way of an add (`turn/count`), when to look (`driver`).

mod lane;
mod registry;
mod shard_lanes;
mod thread_slot;

use quipu_model::{Name, NameBuf};

use self::lane::Lane;
pub use self::registry::LaneRegistry;
pub use self::shard_lanes::{LaneEntry, ShardLanes};
use self::thread_slot::thread_slot;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, has_heavy_barrier, heavy_barrier, light_barrier};

/// Larger adds take the ordinary way: a lane has to hold what threads add to it before one of them can have joined it.
const DELTA_MAX: u64 = 1 << 32;

/// A lane that holds more than this is joined by whoever pushed it there: far more than adds of 1 bring within a window.
const PENDING_MAX: u64 = 1 << 40;

/// Lanes are open while the value is within this. Beyond it there is room for what they may hold: [`PENDING_MAX`] in each of 128 lanes and, of each
/// of 2^15 threads, one add of [`DELTA_MAX`] on top, which is less than 2^49.
const VALUE_MAX: u64 = 1 << 62;

/// Most lanes of a counter that belong to a thread, and as many again that threads share. Beyond so many, looking at them would cost more than they save.
pub const LANES_MAX: usize = 64;

/// A counter's lanes, and who uses them.
pub struct LaneSet {
    name: NameBuf,
    hash: u64,
    open: AtomicBool,
    /// Those of one thread each, by its seat, then those that are shared, a power of two of them.
    lanes: Box<[Lane]>,
    /// How many are of one thread each.
    exclusive: usize,
    /// Lanes may hold something; changed under the shard's lock.
    live: AtomicBool,
    /// Adds without a value that took the ordinary way since the last look.
    recent_adds: AtomicU32,
    /// Who may add. It comes from 0 under the shard's lock only.
    handles: AtomicU64,
}

/// What became of an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneAdd {
    /// It is in a lane, and counts.
    Added,
    /// The same, and the lane holds so much that it is to be joined now.
    Full,
    /// Nothing was added: the lanes are closed, or it is too large for them.
    NotAdded,
    /// It is in a lane that was closed meanwhile, unless whoever closed it has joined it: it counts once its own thread has looked, under the lock.
    Late,
}

impl LaneSet {
    pub fn new(name: &[u8], hash: u64, lanes: usize) -> LaneSet {
        let shared = lanes.clamp(1, LANES_MAX).next_power_of_two();
        let exclusive = if has_heavy_barrier() { shared } else { 0 };
        LaneSet {
            name: name.into(),
            hash,
            open: AtomicBool::new(false),
            lanes: (0..exclusive + shared).map(|_| Lane::default()).collect(),
            exclusive,
            live: AtomicBool::new(false),
            recent_adds: AtomicU32::new(0),
            handles: AtomicU64::new(1),
        }
    }

    pub fn name(&self) -> Name<'_> {
        Name::new(&self.name).expect("the length was checked when the handle was made")
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lanes_bytes(&self) -> usize {
        size_of_val(&*self.lanes)
    }

    // ---- by any thread ----------------------------------------------------------------------------------------------------------

    /// Adds to the thread's lane, if that is open.
    #[inline(always)]
    pub fn add(&self, delta: i64) -> LaneAdd {
        if !self.open.load(Ordering::Acquire) || delta.unsigned_abs() > DELTA_MAX {
            return LaneAdd::NotAdded;
        }
        let slot = thread_slot();
        let pending = if slot < self.exclusive {
            self.lanes[slot].add_exclusive(delta)
        } else {
            let shared = self.lanes.len() - self.exclusive;
            self.lanes[self.exclusive + (slot & (shared - 1))].add_shared(delta)
        };
        light_barrier();
        match self.open.load(Ordering::SeqCst) {
            true if pending.unsigned_abs() <= PENDING_MAX => LaneAdd::Added,
            true => LaneAdd::Full,
            false => LaneAdd::Late,
        }
    }

    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Whether lanes hold something that was not joined.
    pub fn has_pending(&self) -> bool {
        self.lanes.iter().any(|lane| lane.pending() != 0)
    }

    /// One more add came the ordinary way; how many that makes since the last look.
    pub fn count_general_add(&self) -> u32 {
        self.recent_adds.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// How many came since the last look.
    pub fn recent_adds(&self) -> u32 {
        self.recent_adds.load(Ordering::Relaxed)
    }

    /// Counts those anew.
    pub fn reset_recent_adds(&self) {
        self.recent_adds.store(0, Ordering::Relaxed);
    }

    pub fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    pub fn drop_handle(&self) {
        // Whoever lets the lanes go must see all that was added through this handle.
        self.handles.fetch_sub(1, Ordering::Release);
    }

    pub fn has_no_handles(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    // ---- under the lock of the counter's shard ----------------------------------------------------------------------------------

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// From here on lanes show every add that has returned, and whoever adds sees that they are closed.
    pub fn close(&self) {
        if self.open.swap(false, Ordering::SeqCst) && self.exclusive > 0 {
            heavy_barrier();
        }
    }

    /// What lanes hold; from here on it counts as joined.
    pub fn take(&self) -> i64 {
        self.lanes.iter().map(Lane::take).sum()
    }

    /// It was not joined after all.
    pub fn restore(&self, sum: i64) {
        self.lanes[0].restore(sum);
    }

    /// The running value of all lanes together: as long as it stays, nobody adds.
    fn total(&self) -> i64 {
        self.lanes.iter().fold(0, |total: i64, lane| total.wrapping_add(lane.total()))
    }
}

/// Whether a counter of this value may have open lanes.
pub fn fits_lanes(value: i64) -> bool {
    value.unsigned_abs() <= VALUE_MAX
}

/// Whether lanes that are open stay so when a command adds this.
pub fn is_lane_sized(delta: i64) -> bool {
    delta.unsigned_abs() <= DELTA_MAX
}

#[cfg(test)]
mod tests;

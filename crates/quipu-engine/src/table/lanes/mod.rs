//! Splits hot counters into lanes: per-thread cells that take adds without a lock, and that a
//! reader joins.
//!
//! In: adds of any thread that need no value back. Out: their sum, for the holder of the counter's
//! shard lock.
//!
//! A lane holds the running sum of all its adds, and a mark: the part of it that was joined. A join
//! only moves the mark. So a refused join leaves everything as it was, and no add is joined twice.
//!
//! How an add meets a closing: the adder adds, passes a barrier, then checks that the lanes are
//! open. The closer closes them, passes a barrier, then reads the lanes. So at least one sees the
//! other: the closer joins the add, or the adder sees the closing. The second case is a late add:
//! its own thread joins the lane, under the lock, before it returns.
//!
//! A full barrier costs an adder more than the rest of an add. So a lane belongs to one thread,
//! which adds without a locked instruction and passes a compiler barrier only. The closer makes all
//! threads pass a real one; there is one closing to millions of adds. Threads beyond the lanes
//! share lanes and add by a locked instruction, which is a barrier. So do all threads if the system
//! cannot make other threads pass a barrier.
//!
//! Invariants:
//! - lanes are opened, closed and joined only under the lock of the counter's shard, and a joined
//!   sum is applied before the lock is released: so an add that has returned is in the value, or in
//!   a lane that the next command joins;
//! - lanes that may hold a returned add are **live**; a counter with live lanes stays in memory;
//! - while lanes are open, the counter exists, does not expire, has a value within [`VALUE_MAX`],
//!   and the journal has room for a join's entry: so no join is refused.
//!
//! Not here: applying a join (`apply/join`), opening lanes and the general path of an add
//! (`turn/count`), scheduling of visits (`background`).

mod lane;
mod registry;
mod shard_lanes;
mod thread_slot;

use quipu_model::{Name, NameBuf};

use self::lane::Lane;
pub use self::registry::LaneRegistry;
pub use self::shard_lanes::{LaneEntry, ShardLanes};
use self::thread_slot::thread_slot;
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, has_heavy_barrier, heavy_barrier, light_barrier};

/// Larger adds take the general path: a lane must have room for the adds of all threads until one
/// of them can join it.
const DELTA_MAX: u64 = 1 << 32;

/// The adder that raises a lane above this joins it. Adds of 1 stay far below it within a window.
const PENDING_MAX: u64 = 1 << 40;

/// Lanes are open while the value is within this. The rest has room for their sums: [`PENDING_MAX`]
/// in each of 128 lanes, plus one add of [`DELTA_MAX`] by each of 2^15 threads, which is less than
/// 2^49.
const VALUE_MAX: u64 = 1 << 62;

/// Most exclusive lanes of a counter, and as many shared ones. A visit of more lanes would cost
/// more than they save.
pub const LANES_MAX: usize = 64;

/// A counter's lanes and their state.
pub struct LaneSet {
    name: NameBuf,
    hash: u64,
    open: AtomicBool,
    /// The exclusive lanes, by thread slot, then the shared ones, a power of two of them.
    lanes: Box<[Lane]>,
    /// Number of exclusive lanes.
    exclusive: usize,
    /// Lanes may hold a sum; changed under the shard's lock.
    live: AtomicBool,
    /// Adds without a value by the general path since the last visit.
    recent_adds: AtomicU32,
    /// Number of handles. It leaves 0 only under the shard's lock.
    handles: AtomicU64,
}

/// Outcome of an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneAdd {
    /// The add is in a lane, and counts.
    Added,
    /// The same, and the lane is full: the caller joins it now.
    Full,
    /// Nothing was added: the lanes are closed, or the delta is too large for them.
    NotAdded,
    /// The lane was closed during the add, and the closing thread may have missed it. The add
    /// counts once its own thread has checked the lane, under the lock.
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

    // ---- by any thread -------------------------------------------------------------------------

    /// Adds to the thread's lane, if the lanes are open.
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

    /// Returns true if lanes hold a sum that was not joined.
    pub fn has_pending(&self) -> bool {
        self.lanes.iter().any(|lane| lane.pending() != 0)
    }

    /// Counts an add by the general path; returns their number since the last visit.
    pub fn count_general_add(&self) -> u32 {
        self.recent_adds.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Number of adds by the general path since the last visit.
    pub fn recent_adds(&self) -> u32 {
        self.recent_adds.load(Ordering::Relaxed)
    }

    /// Resets that number.
    pub fn reset_recent_adds(&self) {
        self.recent_adds.store(0, Ordering::Relaxed);
    }

    pub fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    pub fn drop_handle(&self) {
        // The thread that removes the lanes must see all adds made through this handle.
        self.handles.fetch_sub(1, Ordering::Release);
    }

    pub fn has_no_handles(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    // ---- under the lock of the counter's shard -------------------------------------------------

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// After this, lanes show every add that has returned, and every later adder sees them closed.
    pub fn close(&self) {
        if self.open.swap(false, Ordering::SeqCst) && self.exclusive > 0 {
            heavy_barrier();
        }
    }

    /// Returns the sum of the lanes and marks it as joined.
    pub fn take(&self) -> i64 {
        self.lanes.iter().map(Lane::take).sum()
    }

    /// Reverts a `take` after its join was refused.
    pub fn restore(&self, sum: i64) {
        self.lanes[0].restore(sum);
    }

    /// Running sum of all lanes; it is unchanged while there are no adds.
    fn total(&self) -> i64 {
        self.lanes.iter().fold(0, |total: i64, lane| total.wrapping_add(lane.total()))
    }
}

/// Returns true if a counter of this value may have open lanes.
pub fn fits_lanes(value: i64) -> bool {
    value.unsigned_abs() <= VALUE_MAX
}

/// Returns true if open lanes stay open when a command adds this.
pub fn is_lane_sized(delta: i64) -> bool {
    delta.unsigned_abs() <= DELTA_MAX
}

#[cfg(test)]
mod tests;

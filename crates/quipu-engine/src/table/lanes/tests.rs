use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, TryLockError};

use crate::table::lanes::*;

/// About 20 µs: longer than an add that waits for a lock, shorter than a thread's wait for a core.
const SPINS_MAX: usize = 2_000;

/// Most visits of lanes while all cores add to them; every other visit closes them.
const LOOKS_MAX: usize = 100_000;

/// Enough closings after which every adder was seen to have returned. A missing barrier shows
/// within some hundreds.
const CHECKS: usize = 5_000;
#[test]
fn a_lane_holds_what_was_added_until_it_is_taken_and_again_when_it_is_given_back() {
    let lanes = LaneSet::new(b"a", 7, 2);
    assert_eq!(lanes.add(5), LaneAdd::NotAdded, "lanes are closed until somebody opens them");
    lanes.open();
    assert_eq!((lanes.add(5), lanes.add(-7), lanes.has_pending()), (LaneAdd::Added, LaneAdd::Added, true));
    assert_eq!((lanes.take(), lanes.has_pending(), lanes.take()), (-2, false, 0));
    lanes.add(9);
    let taken = lanes.take();
    lanes.restore(taken);
    lanes.add(1);
    assert_eq!((lanes.has_pending(), lanes.take()), (true, 10));
    lanes.close();
    assert_eq!((lanes.add(5), lanes.has_pending()), (LaneAdd::NotAdded, false));
}

#[test]
fn a_large_add_takes_another_way_and_a_full_lane_is_reported() {
    let lanes = LaneSet::new(b"a", 7, 1);
    lanes.open();
    let most = DELTA_MAX as i64;
    assert_eq!((lanes.add(most), lanes.add(-most)), (LaneAdd::Added, LaneAdd::Added));
    assert_eq!(
        (lanes.add(most + 1), lanes.add(-most - 1), lanes.add(i64::MIN)),
        (LaneAdd::NotAdded, LaneAdd::NotAdded, LaneAdd::NotAdded)
    );
    let rounds = PENDING_MAX as i64 / most;
    for _ in 0..rounds {
        assert_eq!(lanes.add(-most), LaneAdd::Added);
    }
    assert_eq!(lanes.add(-1), LaneAdd::Full);
    assert_eq!(lanes.take(), -(PENDING_MAX as i64) - 1);
    assert_eq!(lanes.add(-1), LaneAdd::Added);
}

#[test]
fn the_value_up_to_which_lanes_are_open_leaves_room_for_all_they_may_hold() {
    let held = 2 * LANES_MAX as i128 * i128::from(PENDING_MAX) + (1 << 15) * i128::from(DELTA_MAX);
    assert!(i128::from(VALUE_MAX) + i128::from(DELTA_MAX) + held < i128::from(i64::MAX));
    assert!(fits_lanes(1 << 62) && fits_lanes(-(1 << 62)) && !fits_lanes((1 << 62) + 1) && !fits_lanes(i64::MIN));
}

#[test]
fn live_threads_have_different_seats_and_the_smallest_there_are() {
    let slots = |threads: usize| {
        let barrier = Barrier::new(threads);
        std::thread::scope(|scope| {
            let each = || {
                let slot = thread_slot();
                barrier.wait();
                slot
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(each)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<std::collections::BTreeSet<_>>()
        })
    };
    // Other tests of this process may hold some slots, too.
    for _ in 0..20 {
        let slots = slots(8);
        assert_eq!(slots.len(), 8);
        assert!(slots.last().is_some_and(|last| *last < 200), "{slots:?}");
    }
}

/// Stands in for a shard: a lock, and the value of a counter with lanes.
struct LaneCounter {
    lanes: LaneSet,
    value: Mutex<i64>,
}

impl LaneCounter {
    /// Spins: a thread put to sleep by a lock would miss the next closing.
    fn lock(&self) -> MutexGuard<'_, i64> {
        loop {
            match self.value.try_lock() {
                Ok(value) => return value,
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                Err(TryLockError::Poisoned(_)) => panic!("the test has failed elsewhere"),
            }
        }
    }

    fn count(&self, delta: i64) {
        match self.lanes.add(delta) {
            LaneAdd::Added | LaneAdd::Full => {}
            LaneAdd::NotAdded => *self.lock() += delta,
            LaneAdd::Late => {
                let mut value = self.lock();
                *value += self.lanes.take();
            }
        }
    }

    /// A reader's join, or a closer's.
    fn join(&self, close: bool) -> i64 {
        let mut value = self.lock();
        // A read of the lane takes its cache line from the adder. The adder's next store then waits
        // in its core while the adder goes on: this is where a missing barrier shows.
        self.lanes.has_pending();
        if close {
            self.lanes.close();
        }
        *value += self.lanes.take();
        *value
    }
}

/// Ends the adders, also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pins this thread to one core, so that it meets threads on other cores.
#[cfg(target_os = "linux")]
fn pin(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut one = CpuSet::new();
    one.set(cores[index % cores.len()]);
    sched_setaffinity(None, &one).unwrap();
}

#[cfg(not(target_os = "linux"))]
fn pin(_: usize) {}

/// Number of a thread's returned adds, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct ReturnedAdds(AtomicI64);

/// On real threads, where barriers matter: the scheduler's tests cannot reproduce a processor's
/// reordering of a plain store.
#[test]
fn adds_on_all_cores_meet_closings_and_every_one_counts_once() {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    // Of 16 lanes one belongs to an adder, even if other tests hold slots; with one lane, most
    // adders share the other.
    for (adders, lanes, rounds_max) in
        [(1, 16, LOOKS_MAX), (threads, 16, LOOKS_MAX / 50), (2 * threads, 1, LOOKS_MAX / 50)]
    {
        let counter = LaneCounter { lanes: LaneSet::new(b"a", 7, lanes), value: Mutex::new(0) };
        let returned: Vec<ReturnedAdds> = (0..adders).map(|_| ReturnedAdds::default()).collect();
        let (done, mut rounds, mut checked) = (AtomicBool::new(false), 0, 0);
        let each = |returned: &ReturnedAdds| returned.0.load(Ordering::Acquire);
        std::thread::scope(|scope| {
            for (index, returned) in returned.iter().enumerate() {
                let (counter, done) = (&counter, &done);
                scope.spawn(move || {
                    pin(index + 1);
                    let mut adds = 0;
                    while !done.load(Ordering::Relaxed) {
                        counter.count(1);
                        adds += 1;
                        returned.0.store(adds, Ordering::Release);
                    }
                });
            }
            let _end = StopOnDrop(&done);
            pin(0);
            while rounds < rounds_max && checked < CHECKS {
                let round = rounds;
                rounds += 1;
                {
                    let _value = counter.lock();
                    counter.lanes.open();
                }
                (0..round % 50).for_each(|_| std::hint::spin_loop());
                let before: i64 = returned.iter().map(each).sum();
                let joined = counter.join(round % 2 == 0);
                assert!(joined >= before, "{before} adds had returned, {joined} were seen");
                if round % 2 == 0 {
                    let at: Vec<i64> = returned.iter().map(each).collect();
                    let have_returned = || returned.iter().zip(&at).all(|(returned, at)| each(returned) >= at + 2);
                    // Threads that do not run now are not awaited.
                    let returned = (0..SPINS_MAX).any(|_| {
                        std::hint::spin_loop();
                        have_returned()
                    });
                    let _value = counter.lock();
                    // All adds at the closing have returned: closed lanes hold no sum.
                    if returned {
                        checked += 1;
                        assert!(
                            !counter.lanes.has_pending(),
                            "an add that has returned is in a lane that nobody looks at"
                        );
                    }
                }
            }
        });
        let added: i64 = returned.iter().map(each).sum();
        assert_eq!(counter.join(true), added);
        println!(
            "proof: lanes: {adders} threads, {lanes} lanes, {added} adds, {rounds} looks, every other a closing, {checked} of them checked after"
        );
    }
}

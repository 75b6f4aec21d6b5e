//! Assigns each adding thread its slot: a unique number, the smallest that is free.
//!
//! A slot passes from an ending thread to a new one through a lock. So the new owner of a lane sees
//! all adds of the earlier one.

#[cfg(not(feature = "shuttle"))]
pub use of_the_machine::thread_slot;
#[cfg(feature = "shuttle")]
pub use of_the_scheduler::thread_slot;

#[cfg(not(feature = "shuttle"))]
mod of_the_machine {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use crate::base::sync::lock;

    /// Slots released by ended threads; all from `next` on are free, too.
    struct FreeSlots {
        released: BTreeSet<usize>,
        next: usize,
    }

    static FREE: Mutex<FreeSlots> = Mutex::new(FreeSlots { released: BTreeSet::new(), next: 0 });

    /// No slot assigned yet.
    const NONE: usize = usize::MAX;

    /// Slot of an ending thread that has released its own: it owns no lane.
    const ENDED: usize = usize::MAX - 1;

    thread_local! {
        /// Without a destructor, so that a read of it is a plain load.
        static SLOT: Cell<usize> = const { Cell::new(NONE) };
        static RELEASE: SlotRelease = const { SlotRelease(Cell::new(NONE)) };
    }

    /// Releases the slot when the thread ends.
    struct SlotRelease(Cell<usize>);

    impl Drop for SlotRelease {
        fn drop(&mut self) {
            SLOT.set(ENDED);
            if self.0.get() != NONE {
                lock(&FREE).released.insert(self.0.get());
            }
        }
    }

    /// This thread's slot.
    #[inline]
    pub fn thread_slot() -> usize {
        let slot = SLOT.get();
        if slot == NONE { assign_slot() } else { slot }
    }

    #[cold]
    fn assign_slot() -> usize {
        let slot = RELEASE.try_with(|release| {
            let mut free = lock(&FREE);
            let slot = free.released.pop_first().unwrap_or_else(|| {
                free.next += 1;
                free.next - 1
            });
            release.0.set(slot);
            slot
        });
        let slot = slot.unwrap_or(ENDED);
        SLOT.set(slot);
        slot
    }
}

#[cfg(feature = "shuttle")]
mod of_the_scheduler {
    /// The scheduler's threads share one thread of the machine, so each has its own slot.
    pub fn thread_slot() -> usize {
        usize::from(shuttle::thread::current().id())
    }
}

//! Which lane a thread adds to: threads that count have numbers, no two of them the same, and the smallest there are.
//!
//! A number goes from a thread that ends to the next that begins through a lock, so all that the one has added is there for the other to go on from.

#[cfg(not(feature = "shuttle"))]
pub use of_the_machine::thread_slot;
#[cfg(feature = "shuttle")]
pub use of_the_scheduler::thread_slot;

#[cfg(not(feature = "shuttle"))]
mod of_the_machine {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use crate::sync::lock;

    /// Given back by threads that have ended; all from `next` on are free, too.
    struct FreeSlots {
        released: BTreeSet<usize>,
        next: usize,
    }

    static FREE: Mutex<FreeSlots> = Mutex::new(FreeSlots { released: BTreeSet::new(), next: 0 });

    /// No number yet.
    const NONE: usize = usize::MAX;

    /// A thread that is ending and has given its number back, if it had one: no lane is its own.
    const ENDED: usize = usize::MAX - 1;

    thread_local! {
        /// Without a destructor, so that looking at it costs a load.
        static SLOT: Cell<usize> = const { Cell::new(NONE) };
        static RELEASE: SlotRelease = const { SlotRelease(Cell::new(NONE)) };
    }

    /// Gives the number back.
    struct SlotRelease(Cell<usize>);

    impl Drop for SlotRelease {
        fn drop(&mut self) {
            SLOT.set(ENDED);
            if self.0.get() != NONE {
                lock(&FREE).released.insert(self.0.get());
            }
        }
    }

    /// This thread's number.
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
    /// The scheduler's threads share one of the machine's; they have numbers of their own.
    pub fn thread_slot() -> usize {
        usize::from(shuttle::thread::current().id())
    }
}

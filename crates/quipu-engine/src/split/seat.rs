//! Which lane a thread adds to: threads that count have numbers, no two of them the same, and the smallest there are.
//!
//! A number goes from a thread that ends to the next that begins through a lock, so all that the one has added is there for the other to go on from.

#[cfg(not(feature = "shuttle"))]
pub use of_the_machine::seat;
#[cfg(feature = "shuttle")]
pub use of_the_scheduler::seat;

#[cfg(not(feature = "shuttle"))]
mod of_the_machine {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use crate::sync::lock;

    /// Given back by threads that have ended; all from `next` on are free, too.
    struct Free {
        given_back: BTreeSet<usize>,
        next: usize,
    }

    static FREE: Mutex<Free> = Mutex::new(Free { given_back: BTreeSet::new(), next: 0 });

    /// No number yet.
    const NONE: usize = usize::MAX;

    /// A thread that is ending and has given its number back, if it had one: no lane is its own.
    const AWAY: usize = usize::MAX - 1;

    thread_local! {
        /// Without a destructor, so that looking at it costs a load.
        static SEAT: Cell<usize> = const { Cell::new(NONE) };
        static LEAVING: Leaving = const { Leaving(Cell::new(NONE)) };
    }

    /// Gives the number back.
    struct Leaving(Cell<usize>);

    impl Drop for Leaving {
        fn drop(&mut self) {
            SEAT.set(AWAY);
            if self.0.get() != NONE {
                lock(&FREE).given_back.insert(self.0.get());
            }
        }
    }

    /// This thread's number.
    #[inline]
    pub fn seat() -> usize {
        let seat = SEAT.get();
        if seat == NONE { sit_down() } else { seat }
    }

    #[cold]
    fn sit_down() -> usize {
        let seat = LEAVING.try_with(|leaving| {
            let mut free = lock(&FREE);
            let seat = free.given_back.pop_first().unwrap_or_else(|| {
                free.next += 1;
                free.next - 1
            });
            leaving.0.set(seat);
            seat
        });
        let seat = seat.unwrap_or(AWAY);
        SEAT.set(seat);
        seat
    }
}

#[cfg(feature = "shuttle")]
mod of_the_scheduler {
    /// The scheduler's threads share one of the machine's; they have numbers of their own.
    pub fn seat() -> usize {
        usize::from(shuttle::thread::current().id())
    }
}

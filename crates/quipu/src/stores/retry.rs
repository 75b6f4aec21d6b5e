//! Calls a store, and again if there is no answer.
//!
//! Invariant: only repeatable calls are repeated; all calls of the port are.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use quipu_model::{StoreError, StoreFuture};

/// Number of retries, and the pauses before them: doubled each time, half a minute in all. A store
/// that fails over is back by then.
const RETRIES_MAX: u32 = 9;
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(6);

/// Waits for an answer, and calls again while there is none.
pub fn call_with_retry<'a, T>(mut call: impl FnMut() -> StoreFuture<'a, T>) -> Result<T, StoreError> {
    let mut pause = RETRY_PAUSE_FIRST;
    for _ in 0..RETRIES_MAX {
        match block_on(call()) {
            Ok(answer) => return Ok(answer),
            Err(_) => thread::sleep(pause),
        }
        pause = (2 * pause).min(RETRY_PAUSE_MAX);
    }
    block_on(call())
}

/// Waits for a store's future. Its driver has a thread of its own, so nothing has to run on this
/// one.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(UnparkWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match work.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            // A wake-up that came in between is not lost: `park` then returns at once.
            Poll::Pending => thread::park(),
        }
    }
}

struct UnparkWaker(thread::Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

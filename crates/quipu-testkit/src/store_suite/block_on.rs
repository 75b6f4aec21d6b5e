//! Blocks this thread on a future, with std alone: for stores that need no runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct BlockOnWaker(Thread);

impl Wake for BlockOnWaker {
    fn wake(self: Arc<BlockOnWaker>) {
        self.0.unpark();
    }
}

/// Polls the future until it is ready, and returns its output.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(BlockOnWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_that_is_woken_from_another_thread_is_waited_for() {
        let mut woken = false;
        let value = block_on(std::future::poll_fn(|context| {
            if woken {
                return Poll::Ready(7);
            }
            woken = true;
            let waker = context.waker().clone();
            thread::spawn(move || waker.wake());
            Poll::Pending
        }));
        assert_eq!(value, 7);
    }
}

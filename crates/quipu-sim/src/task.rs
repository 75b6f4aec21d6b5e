//! Polls a future one step at a time, and only when it was woken: a lost wake-up hangs here as it
//! would on a machine.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A future under the scheduler's control.
pub struct Task<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    wake_state: Arc<WakeState>,
    waker: Waker,
}

struct WakeState {
    task: AtomicBool,
    signal: WakeSignal,
}

impl Wake for WakeState {
    fn wake(self: Arc<WakeState>) {
        self.task.store(true, Ordering::Relaxed);
        self.signal.0.store(true, Ordering::Relaxed);
    }
}

/// Set when any of the tasks that share it is woken.
#[derive(Clone, Default)]
pub struct WakeSignal(Arc<AtomicBool>);

impl WakeSignal {
    /// Returns true if a task was woken since the last `clear`.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Resets the signal.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<T> Task<T> {
    /// Creates a task that has not begun.
    pub fn new(future: impl Future<Output = T> + 'static, signal: &WakeSignal) -> Task<T> {
        let wake_state = Arc::new(WakeState { task: AtomicBool::new(true), signal: signal.clone() });
        signal.0.store(true, Ordering::Relaxed);
        Task { future: Box::pin(future), waker: Waker::from(wake_state.clone()), wake_state }
    }

    /// Returns true if the task was woken since its last poll.
    pub fn is_woken(&self) -> bool {
        self.wake_state.task.load(Ordering::Relaxed)
    }

    /// Polls once.
    pub fn poll(&mut self) -> Option<T> {
        self.wake_state.task.store(false, Ordering::Relaxed);
        match self.future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

/// Ends a step: any other event may happen here.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_takes_a_step_at_a_time_and_stands_still_until_it_is_woken() {
        let signal = WakeSignal::default();
        let two_steps = async {
            yield_now().await;
            7
        };
        let mut task = Task::new(two_steps, &signal);
        assert!(task.is_woken() && signal.is_set());
        signal.clear();
        assert_eq!(task.poll(), None);
        assert!(task.is_woken() && signal.is_set());
        assert_eq!(task.poll(), Some(7));
        let mut task = Task::new(std::future::pending::<()>(), &signal);
        assert_eq!(task.poll(), None);
        assert!(!task.is_woken());
    }
}

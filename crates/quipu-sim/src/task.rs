//! A future that the scheduler polls, one step at a time, and only when somebody has woken it: a lost wake-up stands still here as it would on a
//! machine.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// See the module.
pub struct Task<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Woken>,
    waker: Waker,
}

struct Woken {
    task: AtomicBool,
    bell: Bell,
}

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.task.store(true, Ordering::Relaxed);
        self.bell.0.store(true, Ordering::Relaxed);
    }
}

/// Rings when any of the tasks that share it is woken.
#[derive(Clone, Default)]
pub struct Bell(Arc<AtomicBool>);

impl Bell {
    /// Whether it has rung since it was last muted.
    pub fn is_rung(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits for the next ring.
    pub fn mute(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<T> Task<T> {
    /// A task that has not begun.
    pub fn new(future: impl Future<Output = T> + 'static, bell: &Bell) -> Task<T> {
        let woken = Arc::new(Woken { task: AtomicBool::new(true), bell: bell.clone() });
        bell.0.store(true, Ordering::Relaxed);
        Task { future: Box::pin(future), waker: Waker::from(woken.clone()), woken }
    }

    /// Whether polling it may come to something.
    pub fn is_woken(&self) -> bool {
        self.woken.task.load(Ordering::Relaxed)
    }

    /// One step.
    pub fn poll(&mut self) -> Option<T> {
        self.woken.task.store(false, Ordering::Relaxed);
        match self.future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

/// Ends a step: whatever else may happen, may happen here.
pub async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
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
        let bell = Bell::default();
        let two_steps = async {
            pause().await;
            7
        };
        let mut task = Task::new(two_steps, &bell);
        assert!(task.is_woken() && bell.is_rung());
        bell.mute();
        assert_eq!(task.poll(), None);
        assert!(task.is_woken() && bell.is_rung());
        assert_eq!(task.poll(), Some(7));
        let mut task = Task::new(std::future::pending::<()>(), &bell);
        assert_eq!(task.poll(), None);
        assert!(!task.is_woken());
    }
}

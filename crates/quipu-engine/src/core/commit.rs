//! Waits until the journal has reached the position that a reply waits for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use crate::base::sync::Arc;
use crate::core::Core;
use crate::journal::Wait;

#[cfg(feature = "shuttle")]
use shuttle::thread;
#[cfg(not(feature = "shuttle"))]
use std::thread;

/// The journal failed. Only the next start, which reads the journal, shows whether an operation
/// survived.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal failed: {reason}")]
pub struct JournalFailure {
    /// The cause.
    pub reason: String,
}

/// Resolves when replies may leave.
pub struct CommitFuture<'e> {
    pub(crate) core: &'e Core,
    pub(crate) wait: Wait,
}

impl CommitFuture<'_> {
    fn try_commit(&self) -> bool {
        let journal = &self.core.journal;
        journal.has_reached(self.wait) || {
            if self.wait.written > journal.written() {
                journal.write_filled();
            }
            if self.wait.synced > journal.synced() {
                match self.core.signals.get() {
                    // On a slow disk the background thread syncs. The worker goes on with commands
                    // that need no sync.
                    Some(signals) if journal.is_slow() && !signals.is_stopped() => signals.request_sync(),
                    _ => journal.sync_written(),
                }
            }
            journal.has_reached(self.wait)
        }
    }
}

impl Future for CommitFuture<'_> {
    type Output = Result<(), JournalFailure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let journal = &self.core.journal;
        if journal.has_reached(self.wait) {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = journal.failure() {
            return Poll::Ready(Err(JournalFailure { reason: reason.to_owned() }));
        }
        if self.try_commit() {
            return Poll::Ready(Ok(()));
        }
        // Another thread is committing. Register, then try again: the committing thread either sees
        // this waker or is done.
        journal.register_waker(context.waker());
        if self.try_commit() {
            return Poll::Ready(Ok(()));
        }
        match journal.failure() {
            Some(reason) => Poll::Ready(Err(JournalFailure { reason: reason.to_owned() })),
            None => Poll::Pending,
        }
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct ParkedThread(thread::Thread);
    impl Wake for ParkedThread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ParkedThread(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

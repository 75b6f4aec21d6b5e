//! Runs the driver on its own thread: threads that wait for a store are not tokio's.
//!
//! Invariants:
//! - a call runs to its end even if the caller stops waiting: at the latest its timeout ends it;
//! - the thread ends with the store.

use std::future::Future;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::CallFailure;

/// A thread with a runtime.
pub(crate) struct Runtime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    pub(crate) fn start() -> std::io::Result<Runtime> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("quipu-redis".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped); // signalled, or the sender was dropped
        })?;
        Ok(Runtime { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a call on the driver's thread; the caller may await it anywhere.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, CallFailure>> + Send + 'static,
    ) -> Result<T, CallFailure> {
        self.handle.spawn(work).await.unwrap_or_else(|error| Err(CallFailure::lost(error)))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

//! Runs the driver on its own thread: threads that wait for a store are not tokio's.
//!
//! Invariants:
//! - a call runs to its end even if the caller stops waiting: at the latest its timeout ends it;
//! - the thread ends with the store.

use std::thread::JoinHandle;

use quipu_model::{StoreCall, StoreError};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::CallFailure;

/// A thread with a runtime.
pub struct DriverThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DriverThread {
    /// Starts a thread of this name.
    pub fn start(name: &str) -> std::io::Result<DriverThread> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped); // signalled, or the sender was dropped
        })?;
        Ok(DriverThread { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a call of the port on the driver's thread; the caller may await it anywhere.
    pub async fn run_call<T: Send + 'static>(
        &self,
        call: StoreCall,
        work: impl Future<Output = Result<T, CallFailure>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let answer = self.handle.spawn(work).await.unwrap_or_else(|error| Err(CallFailure::lost(error)));
        answer.map_err(|failure| failure.into_store_error(call))
    }
}

impl Drop for DriverThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

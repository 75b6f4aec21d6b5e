//! Turns SIGINT, SIGTERM and SIGHUP into an error at the next check, so that servers and
//! directories are cleaned up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};

/// A flag that a signal sets.
#[derive(Clone)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Listens for signals from now on, on a thread of its own.
    pub fn listen() -> anyhow::Result<StopFlag> {
        let is_requested = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        let (mut interrupt, mut terminate, mut hang_up) = {
            let _inside = runtime.enter();
            let of = |kind| signal(kind).context("listen for signals");
            (of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?)
        };
        let flag = Arc::clone(&is_requested);
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hang_up.recv() => {} }
            });
            flag.store(true, Ordering::Relaxed);
        });
        Ok(StopFlag(is_requested))
    }

    /// An error once a signal has come.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

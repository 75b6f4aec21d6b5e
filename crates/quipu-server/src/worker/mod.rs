//! A worker: a thread, a runtime, and the connections pinned to it.
//!
//! In: sockets from the acceptor. Out: served connections; it ends when the acceptor is gone and its connections are.

mod knocks;
mod places;
mod rounds;

use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use self::rounds::Rounds;
use crate::clients::Client;
use crate::process::WORKER_THREAD_PREFIX;
use crate::shared::Shared;

/// Sockets that wait for a worker to take them; the acceptor waits when there are more.
const HANDED_MAX: usize = 1_024;

/// A socket that was let in.
pub(crate) type Admitted = (TcpStream, Arc<Client>);

/// The acceptor's end of a worker.
pub(crate) struct Worker {
    pub hand: mpsc::Sender<Admitted>,
    pub ended: oneshot::Receiver<()>,
    pub thread: JoinHandle<()>,
}

impl Worker {
    /// Starts a worker.
    pub fn start(index: usize, shared: Arc<Shared>, stop: watch::Receiver<bool>) -> std::io::Result<Worker> {
        let (hand, handed) = mpsc::channel(HANDED_MAX);
        let (end, ended) = oneshot::channel();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build()?;
        let thread = std::thread::Builder::new().name(format!("{WORKER_THREAD_PREFIX}{index}")).spawn(move || {
            // Without the runtime's budget of what one task may do in a row: this one is all connections at once, and has bounds of its own.
            runtime.block_on(unconstrained(serve(handed, shared, stop)));
            // Nobody listens if the server was dropped instead of stopped.
            let _ = end.send(());
        })?;
        Ok(Worker { hand, ended, thread })
    }
}

async fn serve(handed: mpsc::Receiver<Admitted>, shared: Arc<Shared>, stopped: watch::Receiver<bool>) {
    let drain_time_max = shared.limits.drain_time_max;
    let mut rounds = Rounds::new(handed, stopped, shared);
    rounds.until_nobody_comes().await;
    rounds.stop();
    // Whoever has not been answered by then does not read; dropping the rounds closes them.
    let _ = timeout(drain_time_max, rounds.until_all_have_gone()).await;
}

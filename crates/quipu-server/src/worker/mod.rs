//! A worker: a thread, a runtime, and the connections pinned to it.
//!
//! In: sockets from the acceptor. Out: served connections; it ends when the acceptor is gone and its connections are.

mod connection_slots;
mod event_loop;
mod wake_queue;

use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use self::event_loop::EventLoop;
use crate::clients::ClientInfo;
use crate::process::WORKER_THREAD_PREFIX;
use crate::server_state::ServerState;

/// Sockets that wait for a worker to take them; the acceptor waits when there are more.
const ACCEPT_QUEUE_MAX: usize = 1_024;

/// A socket that was let in.
pub(crate) type AcceptedSocket = (TcpStream, Arc<ClientInfo>);

/// The acceptor's end of a worker.
pub(crate) struct Worker {
    pub sockets: mpsc::Sender<AcceptedSocket>,
    pub ended: oneshot::Receiver<()>,
    pub thread: JoinHandle<()>,
}

impl Worker {
    /// Starts a worker.
    pub fn start(index: usize, server: Arc<ServerState>, stop: watch::Receiver<bool>) -> std::io::Result<Worker> {
        let (sockets, accepted_sockets) = mpsc::channel(ACCEPT_QUEUE_MAX);
        let (end, ended) = oneshot::channel();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build()?;
        let thread = std::thread::Builder::new().name(format!("{WORKER_THREAD_PREFIX}{index}")).spawn(move || {
            // Without the runtime's budget of what one task may do in a row: this one is all connections at once, and has bounds of its own.
            runtime.block_on(unconstrained(serve(accepted_sockets, server, stop)));
            // Nobody listens if the server was dropped instead of stopped.
            let _ = end.send(());
        })?;
        Ok(Worker { sockets, ended, thread })
    }
}

async fn serve(
    accepted_sockets: mpsc::Receiver<AcceptedSocket>,
    server: Arc<ServerState>,
    stopped: watch::Receiver<bool>,
) {
    let drain_time_max = server.limits.drain_time_max;
    let mut event_loop = EventLoop::new(accepted_sockets, stopped, server);
    event_loop.run_until_acceptor_ends().await;
    event_loop.stop();
    // Whoever has not been answered by then does not read; dropping the rounds closes them.
    let _ = timeout(drain_time_max, event_loop.run_until_empty()).await;
}

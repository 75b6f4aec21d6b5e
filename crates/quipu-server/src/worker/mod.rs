//! Runs a worker: a thread, a runtime, and the connections pinned to it.
//!
//! In: sockets from the acceptor. Out: served connections. The worker ends after the acceptor and
//! all its connections.

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

/// Most sockets in a worker's accept queue; beyond that the acceptor waits.
const ACCEPT_QUEUE_MAX: usize = 1_024;

/// An admitted socket.
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
            // Without the runtime's cooperative budget per task: this task serves all connections,
            // and has bounds of its own.
            runtime.block_on(unconstrained(serve(accepted_sockets, server, stop)));
            // The send fails if the server was dropped instead of stopped.
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
    // A client not served by then does not read; dropping the event loop closes its connection.
    let _ = timeout(drain_time_max, event_loop.run_until_empty()).await;
}

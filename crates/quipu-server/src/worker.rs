//! A worker: a thread, a runtime, and the connections pinned to it.
//!
//! In: sockets from the acceptor. Out: served connections; it ends when the acceptor is gone and its connections are.

use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clients::Client;
use crate::connection;
use crate::moment;
use crate::process::WORKER_THREAD_PREFIX;
use crate::shared::Shared;
use crate::stop::{Stop, Stopping};

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
        let runtime = runtime.enable_all().on_thread_unpark(moment::pass).build()?;
        let thread = std::thread::Builder::new().name(format!("{WORKER_THREAD_PREFIX}{index}")).spawn(move || {
            runtime.block_on(serve(handed, shared, stop));
            // Nobody listens if the server was dropped instead of stopped.
            let _ = end.send(());
        })?;
        Ok(Worker { hand, ended, thread })
    }
}

async fn serve(mut handed: mpsc::Receiver<Admitted>, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let (mut connections, stop) = (JoinSet::new(), Arc::new(Stop::default()));
    loop {
        tokio::select! {
            // Its sender outlives the acceptor, which is what ends this loop.
            _ = stopped.wait_for(|stopped| *stopped), if !stop.is_stopping() => stop.stop(),
            next = handed.recv() => {
                let Some((socket, client)) = next else { break };
                // A socket that cannot be used any more is a client that has gone.
                let Ok(stream) = tokio::net::TcpStream::from_std(socket) else { continue };
                let stopping = Stopping::new(Arc::clone(&stop));
                connections.spawn(connection::serve(stream, client, Arc::clone(&shared), stopping));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    stop.stop();
    // Whoever has not been answered by then does not read; dropping the set closes them.
    let _ = timeout(shared.limits.drain_time_max, async { while connections.join_next().await.is_some() {} }).await;
}

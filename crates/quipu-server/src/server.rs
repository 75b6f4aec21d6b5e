//! Runs the server: listens, distributes connections, stops.
//!
//! In: an engine, options, and a shutdown future. Out: nothing; the caller closes the engine.

use std::future::Future;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quipu_engine::Engine;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::sync::watch;

use crate::clients::Clients;
use crate::connection::ConnectionError;
use crate::hot_keys::HotKeyTracker;
use crate::http::Http;
use crate::metrics::{CommandLatencies, HttpLatencies};
use crate::server_state::{ServerState, ServerStats, add_stat};
use crate::settings::Settings;
use crate::worker::Worker;
use crate::{Options, process};

/// Pause after a failed accept, mostly for lack of files: long enough for one to close, too short
/// to notice.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Length of the accept backlog. The usual 128 overflows when a fleet reconnects at once. Each
/// dropped connection then waits a second before it retries.
const BACKLOG: i32 = 4_096;

/// The server's addresses, reserved: no other process can listen there, and the server accepts no
/// clients yet.
pub struct Addresses {
    options: Options,
    resp: OwnedFd,
    http: Option<OwnedFd>,
    connections_possible: u32,
}

/// A server that is bound to its addresses and does not reply yet.
pub struct Server {
    pub(crate) state: Arc<ServerState>,
    resp: TcpListener,
    http: Option<TcpListener>,
}

/// Error of reserving or listening.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Any host that reaches the address could change every counter.
    #[error(
        "{addr} can be reached from other machines and no password is set: set one (--password, QUIPU_PASSWORD), bind to a \
         loopback address, or say --insecure if the network is trusted"
    )]
    Open {
        /// The address.
        addr: SocketAddr,
    },
    /// The address is taken or not ours.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The limit leaves no file for even one connection beside the journal and HTTP.
    #[error("at most {files} files may be open, and at least {needed} are needed: raise 'ulimit -n'")]
    Files {
        /// The limit.
        files: u64,
        /// Files needed.
        needed: u64,
    },
}

/// Error of starting to serve.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a worker")]
pub struct RunError(#[from] io::Error);

impl Addresses {
    /// Checks the options and reserves the addresses, before the server opens anything.
    pub fn reserve(mut options: Options) -> Result<Addresses, BindError> {
        let Options { resp, http, workers, password, insecure, limits, .. } = &mut options;
        if let Some(addr) = [Some(*resp), *http].into_iter().flatten().find(|addr| !addr.ip().is_loopback())
            && password.is_none()
            && !*insecure
        {
            return Err(BindError::Open { addr });
        }
        let files = process::raise_open_files();
        let http_possible = process::http_connections_possible(files, workers.get());
        if http.is_some() && limits.http_connections_max > http_possible.max(1) {
            let (asked, possible) = (limits.http_connections_max, http_possible.max(1));
            warn(files, &format!("HTTP connections have been reduced from {asked} to {possible}"));
            limits.http_connections_max = http_possible.max(1);
        }
        let reserved = process::files_reserved(limits, workers.get());
        let Some(connections_possible) = process::connections_possible(files, reserved) else {
            return Err(BindError::Files { files, needed: reserved + 1 });
        };
        if limits.connections_max > connections_possible {
            // Redis's wording, which people search for.
            let asked = limits.connections_max;
            let reduced = format!("maxclients has been reduced from {asked} to {connections_possible}");
            warn(files, &format!("{reserved} are for the journal, HTTP and the like, so {reduced}"));
            limits.connections_max = connections_possible;
        }
        let (resp, http) = (reserve(*resp)?, http.map(reserve).transpose()?);
        Ok(Addresses { options, resp, http, connections_possible })
    }

    /// Listens: from here on clients can connect, and [`Server::run`] serves them.
    pub fn listen(self, engine: Engine) -> Result<Server, BindError> {
        let Addresses { options, resp, http, connections_possible } = self;
        let Options { resp: resp_addr, http: http_addr, http_hosts, workers, password, limits, origins, store, .. } =
            options;
        let resp = listen(resp, resp_addr)?;
        let http = http.zip(http_addr).map(|(socket, addr)| listen(socket, addr)).transpose()?;
        let hot_keys = HotKeyTracker::new(engine.now());
        let state = ServerState {
            started: engine.now(),
            durability: engine.stats().durability,
            engine,
            password,
            http_hosts,
            origins,
            store,
            settings: Settings::new(&limits, connections_possible),
            limits,
            clients: Clients::default(),
            stats: ServerStats::default(),
            http_latencies: HttpLatencies::default(),
            command_latencies: CommandLatencies::default(),
            hot_keys,
            http_open: AtomicU64::new(0),
            resp: resp.1,
            http: http.as_ref().map(|(_, addr)| *addr),
            workers: workers.get(),
        };
        Ok(Server { state: Arc::new(state), resp: resp.0, http: http.map(|(listener, _)| listener) })
    }
}

impl Server {
    /// Reserves the addresses and listens; see [`Addresses::listen`].
    pub fn bind(engine: Engine, options: Options) -> Result<Server, BindError> {
        Addresses::reserve(options)?.listen(engine)
    }

    /// RESP address; the actual port if the option was port 0.
    pub fn resp_addr(&self) -> SocketAddr {
        self.state.resp
    }

    /// HTTP address, if HTTP is on.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.state.http
    }

    /// Serves until `shutdown` is ready; then stops accepting, answers the received commands,
    /// closes and returns.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        process::abort_on_worker_panic();
        let Server { state, resp, http } = self;
        let (stop, stopping) = watch::channel(false);
        let workers = (0..state.workers)
            .map(|index| Worker::start(index, Arc::clone(&state), stopping.clone()))
            .collect::<io::Result<Vec<Worker>>>()?;
        let http = http.map(|listener| Http::start(listener, Arc::clone(&state), stopping)).transpose()?;
        let listener = tokio::net::TcpListener::from_std(resp)?;
        tokio::select! {
            () = pin!(shutdown) => {}
            () = accept(&listener, &state, &workers) => {}
        }
        drop(listener);
        stop.send_replace(true);
        let threads: Vec<_> = workers
            .into_iter()
            .map(|Worker { sockets, ended, thread }| {
                drop(sockets);
                (ended, thread)
            })
            .chain(http.map(|Http { ended, thread }| (ended, thread)))
            .collect();
        for (ended, thread) in threads {
            // Only a panic drops the sender, and that has ended the process already.
            let _ = ended.await;
            let _ = thread.join();
        }
        Ok(())
    }
}

/// Admits clients and distributes them over the workers in turn.
async fn accept(listener: &tokio::net::TcpListener, state: &ServerState, workers: &[Worker]) {
    let mut next = 0;
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        add_stat(&state.stats.connections, 1);
        let local = socket.local_addr().unwrap_or(state.resp);
        let connections_max = state.settings.connections_max();
        let Some(client) = state.clients.admit(peer, local, state.engine.now(), connections_max) else {
            add_stat(&state.stats.connections_refused, 1);
            // A new socket has room for one line; the client may or may not read it.
            let _ = socket.try_write(format!("-{}\r\n", ConnectionError::TooManyClients).as_bytes());
            continue;
        };
        configure_socket(&socket, state.limits.write_time_max);
        let Ok(socket) = socket.into_std() else { continue };
        let worker = &workers[next % workers.len()];
        next = next.wrapping_add(1);
        if worker.sockets.send((socket, client)).await.is_err() {
            // A worker ends before the acceptor only by a panic, which ends the process.
            return;
        }
    }
}

/// Idle time after which TCP keepalive probes a connection, as in Redis.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);

/// Sets the socket options. A failed option is ignored.
pub(crate) fn configure_socket(socket: &tokio::net::TcpStream, write_time_max: Duration) {
    // Replies are written whole; waiting for more would only add delay.
    let _ = socket.set_nodelay(true);
    // Otherwise a vanished peer would hold its connection for ever.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    // Time after which the system drops a client that does not read, also when the system holds the
    // whole reply. Twice the write time, because the system sees less of a slow reader's progress.
    let millis = u32::try_from(2 * write_time_max.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(socket, millis);
}

/// Warns of the effect of the open-files limit; on stderr if no tracing subscriber is set.
fn warn(files: u64, text: &str) {
    let next = "for more, raise 'ulimit -n'";
    if tracing::dispatcher::has_been_set() {
        tracing::warn!(files, "the maximum of open files is {files}: {text}; {next}");
    } else {
        // stderr may be closed.
        let _ = writeln!(io::stderr(), "quipu: the maximum of open files is {files}: {text}; {next}");
    }
}

/// Binds a socket to the address without listening. Fails if another process listens there.
fn reserve(addr: SocketAddr) -> Result<OwnedFd, BindError> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let reserved = rustix::net::socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
        // As the standard library does: connections of the previous process do not block the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &addr)?;
        Ok(socket)
    });
    reserved.map_err(|error| BindError::Listen { addr, source: error.into() })
}

fn listen(socket: OwnedFd, addr: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let listening = rustix::net::listen(&socket, BACKLOG).map_err(io::Error::from).and_then(|()| {
        let listener = TcpListener::from(socket);
        let addr = listener.local_addr()?;
        Ok((listener, addr))
    });
    listening.map_err(|source| BindError::Listen { addr, source })
}

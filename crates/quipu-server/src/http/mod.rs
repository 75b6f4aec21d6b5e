//! Serves HTTP: counters as JSON.
//!
//! In: HTTP/1 requests, on persistent connections. Out: readings, replies, events, metrics; or a
//! problem in the format of RFC 9457.
//!
//! ```text
//! accept ─► TimedStream ─► hyper ─► guard ─► routes ─► counters │ batch │ watch │ namespaces │ metrics
//!                │                             │                            │      └─► execute ─► Turn ─► Engine
//!                │                             └─► problem                  │
//!                └─► SocketWriter ◄────────────── events, past hyper ───────┘
//! ```
//!
//! Invariants:
//! - Connections, headers, bodies, batches and watchers have bounds in number, size and time.
//! - A connection has one request in flight, so requests never outnumber connections.
//! - hyper answers malformed HTTP with 400 and closes.
//! - A reply to a mutation has the same meaning in both protocols: see `execute`.
//!
//! Not here: parsing of bodies and names (`quipu_protocol::json`), execution of commands
//! (`quipu-engine`).

mod batch;
mod counters;
mod deadlines;
mod execute;
mod guard;
mod health;
mod hot_keys;
mod items;
mod metrics;
mod namespaces;
mod observe;
mod openapi;
pub(crate) mod problem;
pub(crate) mod reason;
mod request;
mod routes;
mod shutdown;
mod socket_writer;
mod token;
mod uniques;
mod watch;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::IntoResponse;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use quipu_model::ProblemType;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch as watch_channel};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use self::deadlines::{Deadlines, ResponseInFlight, TimedStream, Traffic, WriteTimeout};
pub use self::openapi::page as openapi_page;
use self::problem::SuppressedResponse;
use self::shutdown::{ShutdownSignal, ShutdownWait};
use self::socket_writer::SocketWriter;
use crate::process::WORKER_THREAD_PREFIX;
use crate::server::{ACCEPT_PAUSE, configure_socket};
use crate::server_state::{ServerState, add_stat};

/// Most bytes of request line and headers together. The longest name takes 1.5 KB in a path; the
/// rest is for proxies and their cookies. Before authentication the server reads no more than this.
const HEADERS_BYTES_MAX: usize = 16 << 10;

/// Most headers of one request.
const HEADERS_MAX: usize = 64;

/// The thread that serves HTTP, separate from the workers, so that neither waits for the other.
pub(crate) struct Http {
    pub ended: oneshot::Receiver<()>,
    pub thread: JoinHandle<()>,
}

/// State that all requests share.
struct HttpState {
    server: Arc<ServerState>,
    /// Permits for concurrent batches.
    batch_permits: Semaphore,
    watches: watch::WatchRegistry,
    /// Permit for the one change of a namespace at a time.
    change_permit: Arc<Semaphore>,
}

impl Http {
    /// Starts the HTTP listener.
    pub fn start(
        listener: std::net::TcpListener,
        server: Arc<ServerState>,
        shutdown: watch_channel::Receiver<bool>,
    ) -> io::Result<Http> {
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        // Has a worker's name because it takes turns: a panic during a turn ends the process.
        let thread = std::thread::Builder::new().name(format!("{WORKER_THREAD_PREFIX}http")).spawn(move || {
            LocalSet::new().block_on(&runtime, accept(listener, server, shutdown));
            let _ = end.send(());
        })?;
        Ok(Http { ended, thread })
    }
}

async fn accept(listener: TcpListener, server: Arc<ServerState>, mut stopped: watch_channel::Receiver<bool>) {
    let state = Arc::new(HttpState {
        server: Arc::clone(&server),
        batch_permits: Semaphore::new(batch::BATCHES_MAX),
        watches: watch::WatchRegistry::new(server.limits.http_connections_max),
        change_permit: Arc::new(Semaphore::new(1)),
    });
    let mut watch_loop = pin!(watch::run_loop(&state));
    let router = TowerToHyperService::new(routes::router(Arc::clone(&state)));
    let permits = Arc::new(Semaphore::new(server.limits.http_connections_max.min(Semaphore::MAX_PERMITS)));
    let (mut connections, shutdown) = (JoinSet::new(), Arc::new(ShutdownSignal::default()));
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            Some(_) = connections.join_next() => {}
            () = &mut watch_loop => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // The cause of a failed accept lasts a while.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                add_stat(&server.stats.http_connections, 1);
                // Without a permit the connection is closed at once.
                let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                    add_stat(&server.stats.http_connections_refused, 1);
                    tokio::task::yield_now().await;
                    continue;
                };
                configure_socket(&stream, server.limits.write_time_max);
                let (state, router, shutdown_wait) = (Arc::clone(&state), router.clone(), ShutdownWait::new(Arc::clone(&shutdown)));
                let server = Arc::clone(&server);
                connections.spawn_local(async move {
                    server.http_open.fetch_add(1, Ordering::Relaxed);
                    serve(stream, state, router, shutdown_wait).await;
                    server.http_open.fetch_sub(1, Ordering::Relaxed);
                    drop(permit);
                });
            }
        }
    }
    drop(listener);
    state.watches.end();
    shutdown.trigger();
    // A shutdown does not wait for clients that do not read.
    let _ = timeout(server.limits.drain_time_max, async { while connections.join_next().await.is_some() {} }).await;
}

async fn serve(
    stream: TcpStream,
    state: Arc<HttpState>,
    router: TowerToHyperService<Router>,
    mut shutdown_wait: ShutdownWait,
) {
    let (traffic, limits) = (Traffic::default(), &state.server.limits);
    let (mut deadlines, mut write_timeout) =
        (Deadlines::new(traffic.clone(), limits), WriteTimeout::new(limits.write_time_max));
    let (read_half, write_half) = stream.into_split();
    let writer = SocketWriter::new(write_half);
    let socket = TokioIo::new(TimedStream::new(read_half, Arc::clone(&writer), traffic.clone(), limits.write_time_max));
    let service = service_fn({
        let writer = Arc::clone(&writer);
        move |mut request: Request<Incoming>| {
            if watch::needs_writer(request.uri().path()) {
                request.extensions_mut().insert(Arc::clone(&writer));
            }
            respond(Arc::clone(&state), router.clone(), traffic.begin_response(), request)
        }
    });
    let connection = http1::Builder::new()
        // `deadlines` replaces hyper's own deadline, which needs a timer and is silently off
        // without one.
        .header_read_timeout(None)
        .max_buf_size(HEADERS_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(socket, service);
    let (mut connection, mut is_stopping) = (pin!(connection), false);
    poll_fn(|cx| {
        if !is_stopping && shutdown_wait.poll(cx.waker()) {
            is_stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        // Errors are the client's; hyper has already replied where it could.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let sent = writer.poll_events(cx);
        match write_timeout.check_progress(cx, sent) {
            Poll::Ready(Ok(())) if deadlines.is_late(cx) => Poll::Ready(()),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
}

/// The server sends no reply and closes the connection.
#[derive(Debug, thiserror::Error)]
#[error("nobody can say what became of the request")]
struct NoResponse;

async fn respond(
    state: Arc<HttpState>,
    router: TowerToHyperService<Router>,
    in_flight: ResponseInFlight,
    request: Request<Incoming>,
) -> Result<Response<TrackedBody>, NoResponse> {
    let response = match guard::check_request(&state.server, &request) {
        Ok(()) => router.call(request).await.unwrap_or_else(|never| match never {}),
        Err(problem) => problem.into_response(),
    };
    add_stat(&state.server.stats.http_requests, 1);
    if let Some(reason) = response.extensions().get::<&'static ProblemType>() {
        state.server.stats.refusals_http.add(reason, 1);
    }
    if response.extensions().get::<SuppressedResponse>().is_some() {
        return Err(NoResponse);
    }
    Ok(response.map(|body| TrackedBody { body, _in_flight: in_flight }))
}

/// Body of a reply that is in flight.
struct TrackedBody {
    body: Body,
    _in_flight: ResponseInFlight,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

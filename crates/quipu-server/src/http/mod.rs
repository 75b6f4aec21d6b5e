//! The HTTP door: counters as JSON, for whoever speaks HTTP.
//!
//! In: HTTP/1 requests, on connections that are kept. Out: readings, replies, events, metrics; or a problem as RFC 9457 writes it.
//!
//! ```text
//! accept ─► pace (deadlines) ─► hyper ─► guard ─► routes (axum) ─► counters │ batch │ watch │ namespaces │ metrics
//!                      │                                 │                   │      └─► ask ─► Turn ─► Engine
//!                      │                                 └─► problem         │
//!                      └─► line (the socket) ◄─────── events, past hyper ────┘
//! ```
//!
//! Invariants:
//! - connections, headers, bodies, batches and watchers have bounds in number, size and time;
//! - one request of a connection is answered at a time, so there are no more under way than there are connections;
//! - what is not HTTP is answered 400 by hyper and closed;
//! - a reply to a mutation means what it means on every door: see `execute`.
//!
//! Not here: what bodies and names mean (`quipu_protocol::json`), what commands do (`quipu-engine`).

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

/// Request line and headers together. The longest name takes 1.5 KB in a path; the rest is for proxies and their cookies. It is also all that is listened to before
/// the password.
const HEADERS_BYTES_MAX: usize = 16 << 10;

/// Headers of one request.
const HEADERS_MAX: usize = 64;

/// The thread that serves HTTP, apart from the workers, so that neither waits for the other.
pub(crate) struct Http {
    pub ended: oneshot::Receiver<()>,
    pub thread: JoinHandle<()>,
}

/// What all requests share.
struct HttpState {
    server: Arc<ServerState>,
    /// Places for batches under way.
    batch_permits: Semaphore,
    watches: watch::WatchRegistry,
    /// The place for a change of a namespace under way.
    change_permit: Arc<Semaphore>,
}

impl Http {
    /// Starts the door.
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
        // Named as a worker, because it takes turns: a panic in the middle of one ends the process.
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
                    // Whatever keeps it from accepting is not over at once.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                add_stat(&server.stats.http_connections, 1);
                // Without a place the connection is closed at once.
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
    // A stop does not wait for those who do not read.
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
        // Deadlines are `deadlines`'s; hyper's needs a timer and is silently off without one.
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
        // Errors are the client's; it has been told what can be told.
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

/// There is no reply; the connection is closed.
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

/// A reply that is under way.
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

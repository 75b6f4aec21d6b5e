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
//! - a reply to a mutation means what it means on every door: see `ask`.
//!
//! Not here: what bodies and names mean (`quipu_protocol::json`), what commands do (`quipu-engine`).

mod ask;
mod batch;
mod counters;
mod guard;
mod health;
mod hot;
mod items;
mod line;
mod metrics;
mod namespaces;
mod observe;
mod openapi;
mod pace;
pub(crate) mod problem;
pub(crate) mod reason;
mod request;
mod routes;
mod stop;
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
use tokio::sync::{Semaphore, oneshot, watch as told};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use self::line::Line;
pub use self::openapi::page as openapi_page;
use self::pace::{Answer, Pace, Paced, Patience, Traffic};
use self::problem::Silence;
use self::stop::{Stop, Stopping};
use crate::process::WORKER_THREAD_PREFIX;
use crate::server::{ACCEPT_PAUSE, prepare};
use crate::shared::{Shared, tally};

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
struct Door {
    shared: Arc<Shared>,
    /// Places for batches under way.
    batches: Semaphore,
    watches: watch::Watches,
    /// The place for a change of a namespace under way.
    changes: Arc<Semaphore>,
}

impl Http {
    /// Starts the door.
    pub fn start(listener: std::net::TcpListener, shared: Arc<Shared>, stop: told::Receiver<bool>) -> io::Result<Http> {
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        // Named as a worker, because it takes turns: a panic in the middle of one ends the process.
        let thread = std::thread::Builder::new().name(format!("{WORKER_THREAD_PREFIX}http")).spawn(move || {
            LocalSet::new().block_on(&runtime, accept(listener, shared, stop));
            let _ = end.send(());
        })?;
        Ok(Http { ended, thread })
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stopped: told::Receiver<bool>) {
    let door = Arc::new(Door {
        shared: Arc::clone(&shared),
        batches: Semaphore::new(batch::BATCHES_MAX),
        watches: watch::Watches::new(shared.limits.http_connections_max),
        changes: Arc::new(Semaphore::new(1)),
    });
    let mut watching = pin!(watch::run(&door));
    let router = TowerToHyperService::new(routes::router(Arc::clone(&door)));
    let places = Arc::new(Semaphore::new(shared.limits.http_connections_max.min(Semaphore::MAX_PERMITS)));
    let (mut connections, stop) = (JoinSet::new(), Arc::new(Stop::default()));
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            Some(_) = connections.join_next() => {}
            () = &mut watching => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // Whatever keeps it from accepting is not over at once.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                tally(&shared.tally.http_connections, 1);
                // Without a place the connection is closed at once.
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    tally(&shared.tally.http_connections_refused, 1);
                    tokio::task::yield_now().await;
                    continue;
                };
                prepare(&stream, shared.limits.write_time_max);
                let (door, router, stopping) = (Arc::clone(&door), router.clone(), Stopping::new(Arc::clone(&stop)));
                let shared = Arc::clone(&shared);
                connections.spawn_local(async move {
                    shared.http_open.fetch_add(1, Ordering::Relaxed);
                    serve(stream, door, router, stopping).await;
                    shared.http_open.fetch_sub(1, Ordering::Relaxed);
                    drop(place);
                });
            }
        }
    }
    drop(listener);
    door.watches.end();
    stop.stop();
    // A stop does not wait for those who do not read.
    let _ = timeout(shared.limits.drain_time_max, async { while connections.join_next().await.is_some() {} }).await;
}

async fn serve(stream: TcpStream, door: Arc<Door>, router: TowerToHyperService<Router>, mut stopping: Stopping) {
    let (traffic, limits) = (Traffic::default(), &door.shared.limits);
    let (mut pace, mut patience) = (Pace::new(traffic.clone(), limits), Patience::new(limits.write_time_max));
    let (heard, said) = stream.into_split();
    let line = Line::new(said);
    let socket = TokioIo::new(Paced::new(heard, Arc::clone(&line), traffic.clone(), limits.write_time_max));
    let service = service_fn({
        let line = Arc::clone(&line);
        move |mut request: Request<Incoming>| {
            if watch::is_asked(request.uri().path()) {
                request.extensions_mut().insert(Arc::clone(&line));
            }
            answer(Arc::clone(&door), router.clone(), traffic.begin_answer(), request)
        }
    });
    let connection = http1::Builder::new()
        // Deadlines are `pace`'s; hyper's needs a timer and is silently off without one.
        .header_read_timeout(None)
        .max_buf_size(HEADERS_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(socket, service);
    let (mut connection, mut told) = (pin!(connection), false);
    poll_fn(|cx| {
        if !told && stopping.poll(cx.waker()) {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        // Errors are the client's; it has been told what can be told.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let told = line.poll_told(cx);
        match patience.paced(cx, told) {
            Poll::Ready(Ok(())) if pace.is_late(cx) => Poll::Ready(()),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
}

/// There is no reply; the connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("nobody can say what became of the request")]
struct Unanswered;

async fn answer(
    door: Arc<Door>,
    router: TowerToHyperService<Router>,
    answer: Answer,
    request: Request<Incoming>,
) -> Result<Response<Told>, Unanswered> {
    let response = match guard::check_request(&door.shared, &request) {
        Ok(()) => router.call(request).await.unwrap_or_else(|never| match never {}),
        Err(problem) => problem.into_response(),
    };
    tally(&door.shared.tally.http_requests, 1);
    if let Some(reason) = response.extensions().get::<&'static ProblemType>() {
        door.shared.tally.refusals_http.add(reason, 1);
    }
    if response.extensions().get::<Silence>().is_some() {
        return Err(Unanswered);
    }
    Ok(response.map(|body| Told { body, _answer: answer }))
}

/// A reply that is under way.
struct Told {
    body: Body,
    _answer: Answer,
}

impl HttpBody for Told {
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

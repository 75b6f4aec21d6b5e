//! The HTTP door: `/healthz` for now.
//!
//! In: HTTP/1 requests, one per connection. Out: whether the server is well, or a problem as RFC 9457 writes it.
//!
//! Invariants:
//! - a connection has a bound in time, headers have one in time and size, and there is a bound on connections;
//! - what is not HTTP is answered 400 by hyper and closed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::server::ACCEPT_PAUSE;
use crate::shared::Shared;

/// Request line and headers together. Health checks send a few hundred bytes.
const HEADERS_BYTES_MAX: usize = 16 << 10;

/// Headers of one request.
const HEADERS_MAX: usize = 64;

/// The thread that serves HTTP, apart from the workers, so that neither waits for the other.
pub(crate) struct Http {
    pub ended: oneshot::Receiver<()>,
    pub thread: JoinHandle<()>,
}

impl Http {
    /// Starts the door.
    pub fn start(
        listener: std::net::TcpListener,
        shared: Arc<Shared>,
        stop: watch::Receiver<bool>,
    ) -> io::Result<Http> {
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let thread = std::thread::Builder::new().name("quipu-http".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, accept(listener, shared, stop));
            let _ = end.send(());
        })?;
        Ok(Http { ended, thread })
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(shared.limits.http_connections_max.min(Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.wait_for(|stopping| *stopping) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // Whatever keeps it from accepting is not over at once.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                // Without a place the connection is closed at once.
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let shared = Arc::clone(&shared);
                connections.spawn_local(async move {
                    serve(stream, &shared).await;
                    drop(place);
                });
            }
        }
    }
    // A stop does not wait for those who have not asked anything yet.
    let _ = timeout(shared.limits.drain_time_max, async { while connections.join_next().await.is_some() {} }).await;
}

async fn serve(stream: TcpStream, shared: &Shared) {
    let header_time_max = shared.limits.http_header_time_max;
    let connection = http1::Builder::new()
        // Without a timer the next line would silently do nothing.
        .timer(TokioTimer::new())
        .header_read_timeout(header_time_max)
        .max_buf_size(HEADERS_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request)))),
        );
    // A client that does not read its reply is bounded as well. Errors are the client's; it has been told what can be told.
    let _ = timeout(header_time_max + shared.limits.write_time_max, connection).await;
}

fn answer(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    match (request.uri().path(), request.method()) {
        ("/healthz", &Method::GET | &Method::HEAD) => {
            // A journal that failed has ended the process, so whoever can answer is well.
            let mut response = Response::new(Full::from("ok\n"));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            response
        }
        ("/healthz", _) => {
            let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "/healthz is read with GET");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        _ => problem(StatusCode::NOT_FOUND, "there is nothing here; see /healthz"),
    }
}

/// RFC 9457. The words are ours, so nothing in them needs escaping.
fn problem(status: StatusCode, detail: &'static str) -> Response<Full<Bytes>> {
    let title = status.canonical_reason().unwrap_or_default();
    let body = format!(
        "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{},\"detail\":\"{detail}\"}}\n",
        status.as_u16()
    );
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

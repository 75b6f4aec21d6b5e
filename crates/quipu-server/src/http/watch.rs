//! Serves `GET /v1/counters/{name}/watch`: a counter's value, then every change, as server-sent
//! events.
//!
//! In: watchers. Out: events, each formatted once for all watchers of a counter, and written to one
//! socket after the other.
//!
//! ```text
//! every tick with watchers ─► one turn: per counter, shard changed? ─► read it ─► commit ─► send to its watchers
//! ```
//!
//! Invariants:
//! - A tick checks a counter once, however many watchers it has, and reads it only after a change
//!   in its table shard.
//! - An event shows the same as a read: it leaves when its content is as durable as the namespace
//!   requires.
//! - A watcher without events costs only its registration: one tick serves all, comments included.
//! - A slow watcher misses intermediate values, never the newest. It delays no other watcher and
//!   costs the memory of two events (`socket_writer`).
//! - Watchers take at most a share of the connections, so that other clients can connect.
//! - The loop sends events in rounds, and other requests are served between them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Version};
use axum::response::Response;
use futures_util::stream::unfold;
use quipu_engine::{Load, NotRun, WatchedVersion};
use quipu_model::{Freshness, Millis, NameBuf, Reading};
use quipu_protocol::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::HttpState;
use super::execute;
use super::problem::{Problem, RequestFailure};
use super::reason;
use super::request::{self, checked_name};
use super::socket_writer::{BodyFraming, SocketWriter, SseText, WatchEvent, WatchedValue};

/// Interval between two checks: a change is sent within twice this, on a machine that keeps up.
const TICK: Duration = Duration::from_millis(40);

/// Time without an event after which a comment is sent, so that proxies keep the connection and
/// dead clients are detected.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Watchers may take one in two connections.
const CONNECTIONS_SHARE: usize = 2;

/// Watchers served in a row before other ready tasks run: about 300 µs.
const ROUND_WATCHERS_MAX: usize = 64;

/// The watched counters.
pub(super) struct WatchRegistry {
    table: Mutex<WatchTable>,
    /// Notified when a watcher begins.
    watch_begun: Notify,
    /// Set when the server stops.
    ended: watch::Sender<bool>,
    watchers_max: usize,
    comment: SseText,
}

#[derive(Default)]
struct WatchTable {
    counters: BTreeMap<NameBuf, WatchedCounter>,
    /// Number of the next watcher.
    next_number: u64,
}

/// A watched counter.
struct WatchedCounter {
    /// Its watchers, by number.
    writers: BTreeMap<u64, Arc<SocketWriter>>,
    /// Value last sent to its watchers, and time of the last event or comment to all of them.
    last_sent: Option<WatchedValue>,
    last_sent_at: Instant,
    /// Version of its shard at the last check; `None`: it must be read.
    version: Option<WatchedVersion>,
    /// A watcher has joined since the last read, possibly with a value that differs from the
    /// others'.
    has_newcomer: bool,
    expires_at: Option<Millis>,
}

/// A watcher's registration, until it is dropped.
struct Watcher {
    state: Arc<HttpState>,
    name: Vec<u8>,
    number: u64,
    writer: Arc<SocketWriter>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.writer.stop_watching();
        if let Some(counter) = self.state.watches.lock().counters.get_mut(&self.name[..]) {
            counter.writers.remove(&self.number);
        }
    }
}

/// Returns true if a request of this path needs its [`SocketWriter`]: all paths of the route below.
/// Attaching it to every request would cost every request.
pub(super) fn needs_writer(path: &str) -> bool {
    path.ends_with("/watch")
}

/// `GET /v1/counters/{name}/watch`
pub(super) async fn watch(State(state): State<Arc<HttpState>>, request: Request) -> Result<Response, RequestFailure> {
    let (mut parts, _) = request.into_parts();
    let name = request::counter_name(&parts.uri)?;
    request::expect_no_query(&parts)?;
    let writer =
        parts.extensions.remove::<Arc<SocketWriter>>().expect("a path that ends like this comes with its line");
    let framing = if parts.version < Version::HTTP_11 { BodyFraming::UntilClose } else { BodyFraming::Chunked };
    let watcher = register_watcher(&state, name, writer, framing)?;
    let reading = execute::read_counter(&state.server, checked_name(&watcher.name), Freshness::Usual).await?;
    state.watches.mark_newcomer(&watcher.name);
    let step = WatchStep::First(reading_event(&watcher.name, &reading));
    let frames = unfold((watcher, step), |(watcher, step)| async move {
        let (frame, step) = next_frame(&watcher, step).await?;
        Some((Ok::<_, Infallible>(frame), (watcher, step)))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The next step of hyper's body stream for a watcher.
enum WatchStep {
    First(WatchEvent),
    /// The watcher has received this value. The loop sends it events past hyper until the server
    /// stops.
    Wait(WatchedValue),
    End,
}

async fn next_frame(watcher: &Watcher, step: WatchStep) -> Option<(Bytes, WatchStep)> {
    match step {
        WatchStep::First(event) => Some((event.sse_text.plain_bytes(), WatchStep::Wait(event.value))),
        WatchStep::Wait(last_value) => {
            watcher.writer.switch_to_events(last_value);
            watcher.state.watches.wait_for_end().await;
            watcher.writer.switch_to_hyper().map(|last| (last, WatchStep::End))
        }
        WatchStep::End => None,
    }
}

fn register_watcher(
    state: &Arc<HttpState>,
    name: Vec<u8>,
    writer: Arc<SocketWriter>,
    framing: BodyFraming,
) -> Result<Watcher, Problem> {
    let watches = &state.watches;
    let mut table = watches.lock();
    if *watches.ended.borrow() {
        return Err(Problem::new(reason::NOT_READY, "the server stops"));
    }
    if table.watchers() >= watches.watchers_max {
        return Err(Problem::new(reason::BUSY, format!("{} are watching already", watches.watchers_max)));
    }
    writer.start_watching(framing);
    let number = table.next_number;
    table.next_number += 1;
    let counter = table.counters.entry(name.as_slice().into()).or_insert_with(|| WatchedCounter {
        writers: BTreeMap::new(),
        last_sent: None,
        last_sent_at: Instant::now(),
        version: None,
        has_newcomer: false,
        expires_at: None,
    });
    counter.writers.insert(number, Arc::clone(&writer));
    drop(table);
    watches.watch_begun.notify_one();
    Ok(Watcher { state: Arc::clone(state), name, number, writer })
}

/// Checks the watched counters at every tick.
pub(super) async fn run_loop(state: &HttpState) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if state.watches.is_idle() {
            state.watches.watch_begun.notified().await;
        }
        ticks.tick().await;
        poll_counters(state).await;
    }
}

impl WatchRegistry {
    pub fn new(connections_max: usize) -> WatchRegistry {
        let watchers_max = (connections_max / CONNECTIONS_SHARE).max(1);
        WatchRegistry {
            table: Mutex::default(),
            watch_begun: Notify::new(),
            ended: watch::Sender::new(false),
            watchers_max,
            comment: SseText::new(b":\n\n"),
        }
    }

    /// Records that a new watcher has read this counter for its first event. The next check must
    /// then compare with the newcomer's value, not only with the others'.
    fn mark_newcomer(&self, name: &[u8]) {
        if let Some(counter) = self.lock().counters.get_mut(name) {
            counter.has_newcomer = true;
        }
    }

    /// Ends all streams.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Number of watchers.
    pub fn watchers(&self) -> usize {
        self.lock().watchers()
    }

    /// Waits for the end of all streams.
    async fn wait_for_end(&self) {
        // `self` owns the sender.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Returns true without watchers. Drops counters that have no watchers left.
    fn is_idle(&self) -> bool {
        let mut table = self.lock();
        table.counters.retain(|_, counter| !counter.writers.is_empty());
        table.counters.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, WatchTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchTable {
    fn watchers(&self) -> usize {
        self.counters.values().map(|counter| counter.writers.len()).sum()
    }
}

/// Checks all watched counters once.
async fn poll_counters(state: &HttpState) {
    let is_shared = state.server.engine.sharing().is_some();
    let (mut changed, mut heartbeat_due, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    let now = Instant::now();
    let wait = {
        let mut turn = state.server.engine.turn();
        let mut table = state.watches.lock();
        for (name, counter) in &mut table.counters {
            if now.duration_since(counter.last_sent_at) >= HEARTBEAT {
                counter.last_sent_at = now;
                heartbeat_due.push(name.clone());
            }
            let expired = counter.expires_at.is_some_and(|at| at <= turn.now());
            let version = match turn.watch(checked_name(name)) {
                Ok(version) => Some(version),
                // The counter has left memory, so its value no longer changes. But a last change
                // may have come just before.
                Err(_) if counter.version.is_none() && !expired && !is_shared && !counter.has_newcomer => continue,
                Err(_) => None,
            };
            if version.is_some() && version == counter.version && !is_shared && !counter.has_newcomer {
                continue;
            }
            counter.version = version;
            match turn.reading(checked_name(name), Freshness::Usual) {
                Ok(reading) => {
                    counter.expires_at = reading.expires_at;
                    changed.push((name.clone(), reading, std::mem::take(&mut counter.has_newcomer)));
                }
                // A counter that cannot be read now is read at a later tick.
                Err(NotRun::Refused(_)) => counter.version = None,
                Err(NotRun::Load(load)) => missing.push(load),
            }
        }
        drop(table);
        turn.finish()
    };
    let mut round = SendRound::default();
    if !changed.is_empty() && state.server.engine.commit_until(wait).await.is_ok() {
        for (name, reading, has_newcomer) in changed {
            if let Some(event) = state.watches.changed_event(&name, &reading, has_newcomer) {
                round.for_each_writer(state, &name, |writer| writer.send_event(&event)).await;
            }
        }
    }
    for name in heartbeat_due {
        round.for_each_writer(state, &name, |writer| writer.send_if_idle(&state.watches.comment)).await;
    }
    if !missing.is_empty() {
        load_missing(state, missing).await;
    }
}

/// Loads evicted counters and stale rows for the next check, all at once.
async fn load_missing(state: &HttpState, missing: Vec<Load>) {
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    for load in missing {
        match load {
            Load::Names(more) => names.extend(more),
            Load::Rows(more) => rows.extend(more),
            // A reading needs no other load.
            _ => {}
        }
    }
    for load in [Load::Names(names), Load::Rows(rows)] {
        if !matches!(&load, Load::Names(names) | Load::Rows(names) if names.is_empty()) {
            // The next check reads the outcome.
            state.server.engine.load(load).await;
        }
    }
}

impl WatchRegistry {
    /// The event for a counter's watchers, if its value differs from the last one sent. Also if a
    /// newcomer may have received another value.
    fn changed_event(&self, name: &[u8], reading: &Reading, has_newcomer: bool) -> Option<WatchEvent> {
        let mut table = self.lock();
        let counter = table.counters.get_mut(name)?;
        let value = Some((reading.value, reading.exists));
        if counter.last_sent != value {
            (counter.last_sent, counter.last_sent_at) = (value, Instant::now());
        } else if !has_newcomer {
            return None;
        }
        Some(reading_event(name, reading))
    }
}

/// Counts the watchers served without a pause.
#[derive(Default)]
struct SendRound {
    sent: usize,
}

impl SendRound {
    /// Calls `send` for each watcher of a counter, with pauses. Watchers may join and leave during
    /// a pause; a new one has read the counter after the check.
    async fn for_each_writer(&mut self, state: &HttpState, name: &[u8], send: impl Fn(&SocketWriter)) {
        let mut from = Some(0);
        while let Some(first) = from {
            if self.sent >= ROUND_WATCHERS_MAX {
                self.sent = 0;
                tokio::task::yield_now().await;
            }
            let table = state.watches.lock();
            let Some(counter) = table.counters.get(name) else { return };
            let mut writers = counter.writers.range(first..);
            let round: Vec<_> =
                writers.by_ref().take(ROUND_WATCHERS_MAX - self.sent).map(|(_, writer)| writer).collect();
            self.sent += round.len();
            // Fetches the memory for all of these sends at once. Between two writes the system has
            // used the caches for itself, and each send would wait for memory alone.
            black_box(round.iter().map(|writer| writer.touch()).fold(0, |all, one| all ^ one));
            round.into_iter().for_each(|writer| send(writer));
            from = writers.next().map(|(number, _)| *number);
        }
    }
}

fn reading_event(name: &[u8], reading: &Reading) -> WatchEvent {
    let mut text = b"event: reading\ndata: ".to_vec();
    json::write_reading(&mut text, name, reading);
    text.extend_from_slice(b"\n\n");
    WatchEvent { value: (reading.value, reading.exists), sse_text: SseText::new(&text) }
}

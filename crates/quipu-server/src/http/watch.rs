//! `GET /v1/counters/{name}/watch`: a counter's value at once, then whenever it has changed, as server-sent events.
//!
//! In: watchers. Out: events, each made once for all watchers of a counter, and written to one socket after the other.
//!
//! ```text
//! every tick, if anybody watches ─► one turn: per counter, has its shard changed? ─► if so, read it ─► commit ─► tell its watchers
//! ```
//!
//! Invariants:
//! - a counter is looked at once a tick however many watch it, and is read only if something of its table shard has changed;
//! - an event shows what a read would: it leaves when what it includes is as durable as the namespace asks;
//! - a watcher that hears nothing costs nothing but its place: one tick serves all, comments included;
//! - a watcher that reads slowly misses values in between, never the newest, holds nobody up, and costs two events of memory (`socket_writer`);
//! - watchers take a part of the connections at most, so that others get in, and are told in rounds, so that others are answered in between.

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
use quipu_engine::{Load, WatchedVersion};
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

/// Between two looks: a change is told within twice this, on a machine that keeps up.
const TICK: Duration = Duration::from_millis(40);

/// A comment is sent after so long without an event, so that proxies keep the connection and clients that are gone are noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Watchers may take one in so many of the connections.
const CONNECTIONS_SHARE: usize = 2;

/// Watchers that are told in a row, before whatever else is ready has its turn: some 300 µs.
const ROUND_WATCHERS_MAX: usize = 64;

/// The counters that are watched.
pub(super) struct WatchRegistry {
    table: Mutex<WatchTable>,
    /// Somebody has begun to watch.
    watch_begun: Notify,
    /// The server stops.
    ended: watch::Sender<bool>,
    watchers_max: usize,
    comment: SseText,
}

#[derive(Default)]
struct WatchTable {
    counters: BTreeMap<NameBuf, WatchedCounter>,
    /// The number of the next watcher.
    next_number: u64,
}

/// A counter that is watched.
struct WatchedCounter {
    /// Its watchers, by number.
    writers: BTreeMap<u64, Arc<SocketWriter>>,
    /// What they were told last, and when something was last said to all of them.
    last_sent: Option<WatchedValue>,
    last_sent_at: Instant,
    /// What its shard was like when it was last looked at; none: it has to be read.
    version: Option<WatchedVersion>,
    /// Somebody has come, and may have been told another value than the others, since it was last read.
    has_newcomer: bool,
    expires_at: Option<Millis>,
}

/// A watcher's place, until it is dropped.
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

/// Whether a request of this path needs its line: all that the route below matches do. To put it into every request would cost every request.
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

/// What hyper is to say next to a watcher.
enum WatchStep {
    First(WatchEvent),
    /// Nothing, until the server stops: the watcher, who has heard this, is told past hyper.
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

/// Looks at what is watched, again and again.
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

    /// Somebody has read this counter for a first event. Whatever the others were told, the next look compares with what the newcomer was.
    fn mark_newcomer(&self, name: &[u8]) {
        if let Some(counter) = self.lock().counters.get_mut(name) {
            counter.has_newcomer = true;
        }
    }

    /// Ends all streams.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// How many watch.
    pub fn watchers(&self) -> usize {
        self.lock().watchers()
    }

    /// Waits for the end of all streams.
    async fn wait_for_end(&self) {
        // The other end is `self`'s.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Nobody watches. Counters that nobody watches any more are forgotten.
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

/// One look at all that is watched.
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
                // It has left memory, so nobody has changed it; but it may have changed just before that.
                Err(_) if counter.version.is_none() && !expired && !is_shared && !counter.has_newcomer => continue,
                Err(_) => None,
            };
            if version.is_some() && version == counter.version && !is_shared && !counter.has_newcomer {
                continue;
            }
            counter.version = version;
            match turn.reading(checked_name(name), Freshness::Usual) {
                Ok(Ok(reading)) => {
                    counter.expires_at = reading.expires_at;
                    changed.push((name.clone(), reading, std::mem::take(&mut counter.has_newcomer)));
                }
                // What cannot be read now is read when it can.
                Ok(Err(_)) => counter.version = None,
                Err(load) => missing.push(load),
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

/// Brings back what is at rest, or fetches what is known too badly, for the next look; all of it at once.
async fn load_missing(state: &HttpState, missing: Vec<Load>) {
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    for load in missing {
        match load {
            Load::Names(more) => names.extend(more),
            Load::Rows(more) => rows.extend(more),
            // A reading asks for nothing else.
            _ => {}
        }
    }
    for load in [Load::Names(names), Load::Rows(rows)] {
        if !matches!(&load, Load::Names(names) | Load::Rows(names) if names.is_empty()) {
            // Whatever came of it, the next look sees.
            state.server.engine.load(load).await;
        }
    }
}

impl WatchRegistry {
    /// What the watchers of a counter are to be told, if it is another value than they were told, or if somebody has joined them who may have been told another.
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

/// Watchers that were told without a pause.
#[derive(Default)]
struct SendRound {
    sent: usize,
}

impl SendRound {
    /// Does something for each watcher of a counter, with pauses. Watchers may come and go in these; who comes has read the counter later than it was looked at.
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
            // What telling them takes is fetched for all of them at once: between two writes the system has used the caches for itself, and each watcher would be waited for alone.
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

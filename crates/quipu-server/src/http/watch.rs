//! `GET /v1/counters/{name}/watch`: a counter's value at once, then whenever it has changed, as server-sent events.
//!
//! In: watchers. Out: events, each made once for all watchers of a counter.
//!
//! ```text
//! every tick, if anybody watches ─► one turn: per counter, has its shard changed? ─► if so, read it ─► commit ─► tell its watchers
//! ```
//!
//! Invariants:
//! - a counter is looked at once a tick however many watch it, and is read only if something of its table shard has changed;
//! - an event shows what a read would: it leaves when what it includes is as durable as the namespace asks;
//! - a watcher that reads slowly misses values in between, never the newest, and costs one event of memory;
//! - watchers take a part of the connections at most, so that others get in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use futures_util::stream::unfold;
use quipu_engine::{Load, Watch};
use quipu_model::{Freshness, KeptName, Millis, Reading};
use quipu_protocol::json;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Door;
use super::ask;
use super::problem::{Failure, Problem, Reason};
use super::request::{self, checked};

/// Between two looks: a change is told within twice this, on a machine that keeps up.
const TICK: Duration = Duration::from_millis(40);

/// A comment is sent after so long without an event, so that proxies keep the connection and clients that are gone are noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Watchers may take one in so many of the connections.
const CONNECTIONS_SHARE: usize = 2;

/// The counters that are watched.
pub(super) struct Watches {
    watched: Mutex<Watched>,
    /// Somebody has begun to watch.
    begun: Notify,
    watchers_max: usize,
}

#[derive(Default)]
struct Watched {
    counters: BTreeMap<KeptName, Counter>,
    /// The server stops.
    ended: bool,
}

/// A counter that is watched.
struct Counter {
    tell: watch::Sender<Option<Event>>,
    /// What its shard was like when it was last looked at; none: it has to be read.
    seen: Option<Watch>,
    expires_at: Option<Millis>,
}

/// What its watchers are told.
#[derive(Clone)]
struct Event {
    value: (i64, bool),
    frame: Bytes,
}

/// `GET /v1/counters/{name}/watch`
pub(super) async fn watch(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Failure> {
    let (parts, _) = request.into_parts();
    let name = request::counter(&parts.uri)?;
    request::expect_no_query(&parts)?;
    // First: a change between the two would be missed the other way round.
    let newer = door.watches.begin(&name)?;
    let first = event(&name, &ask::read(&door.shared, checked(&name), Freshness::Usual).await?);
    let frames = unfold((newer, None, Some(first)), |(mut newer, told, first)| async move {
        if let Some(first) = first {
            return Some((Ok::<_, std::convert::Infallible>(first.frame), (newer, Some(first.value), None)));
        }
        loop {
            tokio::select! {
                changed = newer.changed() => {
                    // The other end is gone when the server stops.
                    changed.ok()?;
                    let event = newer.borrow_and_update().clone();
                    match event.filter(|event| Some(event.value) != told) {
                        Some(event) => return Some((Ok(event.frame), (newer, Some(event.value), None))),
                        None => continue,
                    }
                }
                () = sleep(HEARTBEAT) => return Some((Ok(Bytes::from_static(b":\n\n")), (newer, told, None))),
            }
        }
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Looks at what is watched, again and again.
pub(super) async fn run(door: &Door) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if door.watches.is_quiet() {
            door.watches.begun.notified().await;
        }
        ticks.tick().await;
        look(door).await;
    }
}

impl Watches {
    pub fn new(connections_max: usize) -> Watches {
        let watchers_max = (connections_max / CONNECTIONS_SHARE).max(1);
        Watches { watched: Mutex::default(), begun: Notify::new(), watchers_max }
    }

    /// Ends all streams.
    pub fn end(&self) {
        let mut watched = self.lock();
        watched.ended = true;
        watched.counters.clear();
    }

    /// How many watch.
    pub fn watchers(&self) -> usize {
        self.lock().watchers()
    }

    fn begin(&self, name: &[u8]) -> Result<watch::Receiver<Option<Event>>, Problem> {
        let mut watched = self.lock();
        if watched.ended {
            return Err(Problem::new(Reason::NotReady, "the server stops"));
        }
        if watched.watchers() >= self.watchers_max {
            return Err(Problem::new(Reason::Busy, format!("{} are watching already", self.watchers_max)));
        }
        let newer = match watched.counters.get(name) {
            Some(counter) => counter.tell.subscribe(),
            None => {
                let (tell, newer) = watch::channel(None);
                watched.counters.insert(name.into(), Counter { tell, seen: None, expires_at: None });
                newer
            }
        };
        drop(watched);
        self.begun.notify_one();
        Ok(newer)
    }

    /// Nobody watches. Counters that nobody watches any more are forgotten.
    fn is_quiet(&self) -> bool {
        let mut watched = self.lock();
        watched.counters.retain(|_, counter| counter.tell.receiver_count() > 0);
        watched.counters.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn watchers(&self) -> usize {
        self.counters.values().map(|counter| counter.tell.receiver_count()).sum()
    }
}

/// One look at all that is watched.
async fn look(door: &Door) {
    let shared = door.shared.engine.sharing().is_some();
    let (mut changed, mut missing) = (Vec::new(), Vec::new());
    let wait = {
        let mut turn = door.shared.engine.turn();
        let mut watched = door.watches.lock();
        for (name, counter) in &mut watched.counters {
            let expired = counter.expires_at.is_some_and(|at| at <= turn.now());
            let seen = match turn.watch(checked(name)) {
                Ok(seen) => Some(seen),
                // It has left memory, so nobody has changed it; but it may have changed just before that.
                Err(_) if counter.seen.is_none() && !expired && !shared => continue,
                Err(_) => None,
            };
            if seen.is_some() && seen == counter.seen && !shared {
                continue;
            }
            counter.seen = seen;
            match turn.reading(checked(name), Freshness::Usual) {
                Ok(Ok(reading)) => {
                    counter.expires_at = reading.expires_at;
                    changed.push((name.clone(), reading));
                }
                // What cannot be read now is read when it can.
                Ok(Err(_)) => counter.seen = None,
                Err(load) => missing.push(load),
            }
        }
        drop(watched);
        turn.finish()
    };
    if !changed.is_empty() && door.shared.engine.committed(wait).await.is_ok() {
        for (name, reading) in changed {
            door.watches.tell(&name, &reading);
        }
    }
    if !missing.is_empty() {
        load(door, missing).await;
    }
}

/// Brings back what is at rest, or fetches what is known too badly, for the next look; all of it at once.
async fn load(door: &Door, missing: Vec<Load>) {
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
            door.shared.engine.load(load).await;
        }
    }
}

impl Watches {
    /// Tells the watchers of a counter, if it is another value than they were told.
    fn tell(&self, name: &[u8], reading: &Reading) {
        let mut watched = self.lock();
        let Some(counter) = watched.counters.get_mut(name) else { return };
        counter.expires_at = reading.expires_at;
        let value = (reading.value, reading.exists);
        counter.tell.send_if_modified(|told| {
            let differs = told.as_ref().is_none_or(|told| told.value != value);
            if differs {
                *told = Some(event(name, reading));
            }
            differs
        });
    }
}

fn event(name: &[u8], reading: &Reading) -> Event {
    let mut frame = b"event: reading\ndata: ".to_vec();
    json::write_reading(&mut frame, name, reading);
    frame.extend_from_slice(b"\n\n");
    Event { value: (reading.value, reading.exists), frame: frame.into() }
}

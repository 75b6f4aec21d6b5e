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
//! - a watcher that reads slowly misses values in between, never the newest, holds nobody up, and costs two events of memory (`line`);
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
use quipu_engine::{Load, Watch};
use quipu_model::{Freshness, KeptName, Millis, Reading};
use quipu_protocol::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Door;
use super::ask;
use super::line::{Event, Form, Line, Piece, Value};
use super::problem::{Failure, Problem};
use super::reason;
use super::request::{self, checked};

/// Between two looks: a change is told within twice this, on a machine that keeps up.
const TICK: Duration = Duration::from_millis(40);

/// A comment is sent after so long without an event, so that proxies keep the connection and clients that are gone are noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Watchers may take one in so many of the connections.
const CONNECTIONS_SHARE: usize = 2;

/// Watchers that are told in a row, before whatever else is ready has its turn: some 300 µs.
const ROUND_WATCHERS_MAX: usize = 64;

/// The counters that are watched.
pub(super) struct Watches {
    watched: Mutex<Watched>,
    /// Somebody has begun to watch.
    begun: Notify,
    /// The server stops.
    ended: watch::Sender<bool>,
    watchers_max: usize,
    comment: Piece,
}

#[derive(Default)]
struct Watched {
    counters: BTreeMap<KeptName, Counter>,
    /// The number of the next watcher.
    next: u64,
}

/// A counter that is watched.
struct Counter {
    /// Its watchers, by number.
    lines: BTreeMap<u64, Arc<Line>>,
    /// What they were told last, and when something was last said to all of them.
    told: Option<Value>,
    spoken: Instant,
    /// What its shard was like when it was last looked at; none: it has to be read.
    seen: Option<Watch>,
    /// Somebody has come, and may have been told another value than the others, since it was last read.
    joined: bool,
    expires_at: Option<Millis>,
}

/// A watcher's place, until it is dropped.
struct Watching {
    door: Arc<Door>,
    name: Vec<u8>,
    number: u64,
    line: Arc<Line>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.line.end();
        if let Some(counter) = self.door.watches.lock().counters.get_mut(&self.name[..]) {
            counter.lines.remove(&self.number);
        }
    }
}

/// Whether a request of this path needs its line: all that the route below matches do. To put it into every request would cost every request.
pub(super) fn is_asked(path: &str) -> bool {
    path.ends_with("/watch")
}

/// `GET /v1/counters/{name}/watch`
pub(super) async fn watch(State(door): State<Arc<Door>>, request: Request) -> Result<Response, Failure> {
    let (mut parts, _) = request.into_parts();
    let name = request::counter(&parts.uri)?;
    request::expect_no_query(&parts)?;
    let line = parts.extensions.remove::<Arc<Line>>().expect("a path that ends like this comes with its line");
    let form = if parts.version < Version::HTTP_11 { Form::Plain } else { Form::Chunks };
    let watching = begin(&door, name, line, form)?;
    let reading = ask::read(&door.shared, checked(&watching.name), Freshness::Usual).await?;
    door.watches.join(&watching.name);
    let step = Step::First(event(&watching.name, &reading));
    let frames = unfold((watching, step), |(watching, step)| async move {
        let (frame, step) = say(&watching, step).await?;
        Some((Ok::<_, Infallible>(frame), (watching, step)))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// What hyper is to say next to a watcher.
enum Step {
    First(Event),
    /// Nothing, until the server stops: the watcher, who has heard this, is told past hyper.
    Quiet(Value),
    End,
}

async fn say(watching: &Watching, step: Step) -> Option<(Bytes, Step)> {
    match step {
        Step::First(event) => Some((event.piece.text(), Step::Quiet(event.value))),
        Step::Quiet(told) => {
            watching.line.hand_over(told);
            watching.door.watches.ended().await;
            watching.line.take_back().map(|last| (last, Step::End))
        }
        Step::End => None,
    }
}

fn begin(door: &Arc<Door>, name: Vec<u8>, line: Arc<Line>, form: Form) -> Result<Watching, Problem> {
    let watches = &door.watches;
    let mut watched = watches.lock();
    if *watches.ended.borrow() {
        return Err(Problem::new(reason::NOT_READY, "the server stops"));
    }
    if watched.watchers() >= watches.watchers_max {
        return Err(Problem::new(reason::BUSY, format!("{} are watching already", watches.watchers_max)));
    }
    line.begin(form);
    let number = watched.next;
    watched.next += 1;
    let counter = watched.counters.entry(name.as_slice().into()).or_insert_with(|| Counter {
        lines: BTreeMap::new(),
        told: None,
        spoken: Instant::now(),
        seen: None,
        joined: false,
        expires_at: None,
    });
    counter.lines.insert(number, Arc::clone(&line));
    drop(watched);
    watches.begun.notify_one();
    Ok(Watching { door: Arc::clone(door), name, number, line })
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
        Watches {
            watched: Mutex::default(),
            begun: Notify::new(),
            ended: watch::Sender::new(false),
            watchers_max,
            comment: Piece::new(b":\n\n"),
        }
    }

    /// Somebody has read this counter for a first event. Whatever the others were told, the next look compares with what the newcomer was.
    fn join(&self, name: &[u8]) {
        if let Some(counter) = self.lock().counters.get_mut(name) {
            counter.joined = true;
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
    async fn ended(&self) {
        // The other end is `self`'s.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Nobody watches. Counters that nobody watches any more are forgotten.
    fn is_quiet(&self) -> bool {
        let mut watched = self.lock();
        watched.counters.retain(|_, counter| !counter.lines.is_empty());
        watched.counters.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn watchers(&self) -> usize {
        self.counters.values().map(|counter| counter.lines.len()).sum()
    }
}

/// One look at all that is watched.
async fn look(door: &Door) {
    let shared = door.shared.engine.sharing().is_some();
    let (mut changed, mut silent, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    let now = Instant::now();
    let wait = {
        let mut turn = door.shared.engine.turn();
        let mut watched = door.watches.lock();
        for (name, counter) in &mut watched.counters {
            if now.duration_since(counter.spoken) >= HEARTBEAT {
                counter.spoken = now;
                silent.push(name.clone());
            }
            let expired = counter.expires_at.is_some_and(|at| at <= turn.now());
            let seen = match turn.watch(checked(name)) {
                Ok(seen) => Some(seen),
                // It has left memory, so nobody has changed it; but it may have changed just before that.
                Err(_) if counter.seen.is_none() && !expired && !shared && !counter.joined => continue,
                Err(_) => None,
            };
            if seen.is_some() && seen == counter.seen && !shared && !counter.joined {
                continue;
            }
            counter.seen = seen;
            match turn.reading(checked(name), Freshness::Usual) {
                Ok(Ok(reading)) => {
                    counter.expires_at = reading.expires_at;
                    changed.push((name.clone(), reading, std::mem::take(&mut counter.joined)));
                }
                // What cannot be read now is read when it can.
                Ok(Err(_)) => counter.seen = None,
                Err(load) => missing.push(load),
            }
        }
        drop(watched);
        turn.finish()
    };
    let mut round = Round::default();
    if !changed.is_empty() && door.shared.engine.committed(wait).await.is_ok() {
        for (name, reading, joined) in changed {
            if let Some(event) = door.watches.news(&name, &reading, joined) {
                round.each(door, &name, |line| line.tell(&event)).await;
            }
        }
    }
    for name in silent {
        round.each(door, &name, |line| line.mention(&door.watches.comment)).await;
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
    /// What the watchers of a counter are to be told, if it is another value than they were told, or if somebody has joined them who may have been told another.
    fn news(&self, name: &[u8], reading: &Reading, joined: bool) -> Option<Event> {
        let mut watched = self.lock();
        let counter = watched.counters.get_mut(name)?;
        let value = Some((reading.value, reading.exists));
        if counter.told != value {
            (counter.told, counter.spoken) = (value, Instant::now());
        } else if !joined {
            return None;
        }
        Some(event(name, reading))
    }
}

/// Watchers that were told without a pause.
#[derive(Default)]
struct Round {
    told: usize,
}

impl Round {
    /// Does something for each watcher of a counter, with pauses. Watchers may come and go in these; who comes has read the counter later than it was looked at.
    async fn each(&mut self, door: &Door, name: &[u8], tell: impl Fn(&Line)) {
        let mut from = Some(0);
        while let Some(first) = from {
            if self.told >= ROUND_WATCHERS_MAX {
                self.told = 0;
                tokio::task::yield_now().await;
            }
            let watched = door.watches.lock();
            let Some(counter) = watched.counters.get(name) else { return };
            let mut lines = counter.lines.range(first..);
            let round: Vec<_> = lines.by_ref().take(ROUND_WATCHERS_MAX - self.told).map(|(_, line)| line).collect();
            self.told += round.len();
            // What telling them takes is fetched for all of them at once: between two writes the system has used the caches for itself, and each watcher would be waited for alone.
            black_box(round.iter().map(|line| line.glance()).fold(0, |all, one| all ^ one));
            round.into_iter().for_each(|line| tell(line));
            from = lines.next().map(|(number, _)| *number);
        }
    }
}

fn event(name: &[u8], reading: &Reading) -> Event {
    let mut text = b"event: reading\ndata: ".to_vec();
    json::write_reading(&mut text, name, reading);
    text.extend_from_slice(b"\n\n");
    Event { value: (reading.value, reading.exists), piece: Piece::new(&text) }
}

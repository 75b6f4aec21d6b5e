//! The calls: each a request, sent until it is answered or its time is over.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu_model::Name;
use quipu_protocol::Address;
use quipu_protocol::resp::{Value, request};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::adder::{Adder, AdderOptions};
use crate::dial::{Target, dial};
use crate::driver::Driver;
use crate::job::{Answer, Job};
use crate::reading::Reading;
use crate::token::{Item, Tokens};
use crate::{Error, Freshness, Options, Trouble};

/// A client of one server. Clones share its connection.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    jobs: mpsc::Sender<Job>,
    places: Arc<Semaphore>,
    tokens: Tokens,
    options: Options,
    adds_dropped: AtomicU64,
}

impl Client {
    /// Connects to `host`, `host:port`, or `quipu://[:password@]host[:port]`. The first connection is made here, once; when it is lost, the next ones are made by themselves as soon as something is asked.
    ///
    /// Its work is done by a task of the runtime that this is called in.
    pub async fn connect(address: &str, options: Options) -> Result<Client, Error> {
        let target = Arc::new(Target { address: Address::parse(address)?, options: options.clone() });
        let stream =
            dial(&target).await.map_err(|source| Error::Connect { address: target.address.to_string(), source })?;
        let places = options.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        // As many jobs as places: sending never waits.
        let (jobs, queue) = mpsc::channel(places);
        spawn(Driver::new(target, queue).run(stream));
        let (places, tokens) = (Arc::new(Semaphore::new(places)), Tokens::new());
        Ok(Client { shared: Arc::new(Shared { jobs, places, tokens, options, adds_dropped: AtomicU64::new(0) }) })
    }

    /// Adds, and returns the value after it.
    pub async fn add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<i64, Error> {
        let deadline = self.deadline();
        let answer = self.send_add(name.as_ref(), delta, &self.token(), deadline).await?;
        number(ended(answer).await?)
    }

    /// Sets the value.
    pub async fn set(&self, name: impl AsRef<[u8]>, value: i64) -> Result<(), Error> {
        self.mutate(&[b"SET", checked(name.as_ref())?, value.to_string().as_bytes()]).await.map(drop)
    }

    /// Sets the value to 0 and returns what it was: every add is in that value, or comes after it.
    pub async fn reset(&self, name: impl AsRef<[u8]>) -> Result<i64, Error> {
        number(self.mutate(&[b"QUIPU.RESET", checked(name.as_ref())?]).await?)
    }

    /// Deletes the counter; says whether there was one.
    pub async fn delete(&self, name: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(number(self.mutate(&[b"DEL", checked(name.as_ref())?]).await?)? != 0)
    }

    /// The value, and how good it is; as fresh as its namespace says.
    pub async fn read(&self, name: impl AsRef<[u8]>) -> Result<Reading, Error> {
        self.read_with(name, Freshness::Usual).await
    }

    /// The value, and how good it is. What is known of other nodes is no older than this.
    pub async fn read_with(&self, name: impl AsRef<[u8]>, freshness: Freshness) -> Result<Reading, Error> {
        let within = match freshness {
            Freshness::Usual => None,
            Freshness::Cached => Some("cached".to_owned()),
            Freshness::Fresh => Some("fresh".to_owned()),
            Freshness::Within(time) => Some(format!("{}ms", time.as_millis())),
        };
        let mut arguments: Vec<&[u8]> = vec![b"QUIPU.READ", checked(name.as_ref())?];
        if let Some(within) = &within {
            arguments.extend([b"FRESHNESS", within.as_bytes()]);
        }
        let reply = self.ask(request(&arguments)).await?;
        Reading::of(&reply).ok_or_else(|| nonsense(&reply))
    }

    /// Sums adds here and sends them together.
    pub fn adder(&self, options: AdderOptions) -> Adder {
        Adder::new(self.clone(), options)
    }

    /// Adds that were lost because the last handle of their [`Adder`] was dropped without a flush. Of those on their way then, some may have been counted by the server.
    pub fn adds_dropped(&self) -> u64 {
        self.shared.adds_dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn note_dropped(&self, adds: u64) {
        self.shared.adds_dropped.fetch_add(adds, Ordering::Relaxed);
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        // Who wants to wait for ever waits for a year.
        now.checked_add(self.shared.options.timeout).unwrap_or(now + std::time::Duration::from_secs(31_536_000))
    }

    pub(crate) fn token(&self) -> Item {
        self.shared.tokens.next()
    }

    /// Sends an add under a token; returns when it has a place, not when it is answered.
    pub(crate) async fn send_add(&self, name: &[u8], delta: i64, token: &Item, by: Instant) -> Result<Answer, Error> {
        let delta = delta.to_string();
        self.send(self.tokened(&[b"INCRBY", checked(name)?, delta.as_bytes()], token), by).await
    }

    /// The same, of what was sampled, at one in so many at most.
    pub(crate) async fn send_thinned(
        &self,
        name: &[u8],
        (amount, p): (i64, u32),
        token: &Item,
        by: Instant,
    ) -> Result<Answer, Error> {
        let (amount, p) = (amount.to_string(), p.to_string());
        let arguments: [&[u8]; 4] = [b"QUIPU.THINNED", checked(name)?, amount.as_bytes(), p.as_bytes()];
        self.send(self.tokened(&arguments, token), by).await
    }

    /// A number to throw dice by, another one each time.
    pub(crate) fn seed(&self) -> u64 {
        self.shared.tokens.seed()
    }

    async fn mutate(&self, arguments: &[&[u8]]) -> Result<Value, Error> {
        self.ask(self.tokened(arguments, &self.token())).await
    }

    fn tokened(&self, arguments: &[&[u8]], token: &Item) -> Vec<u8> {
        request(&[arguments, &[b"IDMP", self.shared.tokens.producer(), token.bytes()]].concat())
    }

    async fn ask(&self, request: Vec<u8>) -> Result<Value, Error> {
        ended(self.send(request, self.deadline()).await?).await
    }

    async fn send(&self, request: Vec<u8>, deadline: Instant) -> Result<Answer, Error> {
        let late = |_| Error::NotApplied { attempts: 0, source: Trouble::Late };
        let place = timeout_at(deadline, self.shared.places.clone().acquire_owned()).await.map_err(late)?;
        let (job, answer) = Job::new(request, deadline, place.map_err(|_| Error::Closed)?);
        self.shared.jobs.send(job).await.map_err(|_| Error::Closed)?;
        Ok(answer)
    }
}

/// Waits for the end of what was sent.
pub(crate) async fn ended(answer: Answer) -> Result<Value, Error> {
    answer.await.unwrap_or(Err(Error::Closed))
}

/// Starts a task that outlives its caller.
#[allow(clippy::disallowed_methods, reason = "a client runs in its user's runtime, whose tasks may move")]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

fn checked(name: &[u8]) -> Result<&[u8], Error> {
    Ok(Name::new(name)?.bytes())
}

pub(crate) fn number(reply: Value) -> Result<i64, Error> {
    match reply {
        // What a reset replies for a counter that did not exist.
        Value::Null => Ok(0),
        reply => reply.number().ok_or_else(|| nonsense(&reply)),
    }
}

/// An answer that makes no sense was an answer: what became of the request is not known.
fn nonsense(reply: &impl Debug) -> Error {
    Error::Unknown { attempts: 1, source: Trouble::Nonsense(format!("{reply:?}")) }
}

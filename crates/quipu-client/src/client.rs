//! The calls of a client: each is a request, sent until it is answered or its deadline has passed.

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
use crate::driver::ConnectionDriver;
use crate::job::{Job, ReplyReceiver};
use crate::reading::Reading;
use crate::token::{TokenItem, TokenSource};
use crate::{Error, Freshness, Options, Trouble};

/// A client of one server. Clones share its connection.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    jobs: mpsc::Sender<Job>,
    permits: Arc<Semaphore>,
    tokens: TokenSource,
    options: Options,
    adds_dropped: AtomicU64,
}

impl Client {
    /// Connects to `host`, `host:port`, or `quipu://[:password@]host[:port]`.
    ///
    /// This call makes the first connection, in one attempt. The client replaces a lost connection
    /// as soon as a call needs one. A task of the caller's runtime does its work.
    pub async fn connect(address: &str, options: Options) -> Result<Client, Error> {
        let target = Arc::new(Target { address: Address::parse(address)?, options: options.clone() });
        let stream =
            dial(&target).await.map_err(|source| Error::Connect { address: target.address.to_string(), source })?;
        let permits = options.in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        // As many jobs as permits: sending never waits.
        let (jobs, queue) = mpsc::channel(permits);
        spawn(ConnectionDriver::new(target, queue).run(stream));
        let (permits, tokens) = (Arc::new(Semaphore::new(permits)), TokenSource::new());
        Ok(Client { inner: Arc::new(ClientInner { jobs, permits, tokens, options, adds_dropped: AtomicU64::new(0) }) })
    }

    /// Adds, and returns the value after it.
    pub async fn add(&self, name: impl AsRef<[u8]>, delta: i64) -> Result<i64, Error> {
        let deadline = self.deadline();
        let answer = self.send_add(name.as_ref(), delta, &self.token(), deadline).await?;
        reply_number(await_reply(answer).await?)
    }

    /// Sets the value.
    pub async fn set(&self, name: impl AsRef<[u8]>, value: i64) -> Result<(), Error> {
        self.call_with_token(&[b"SET", check_name(name.as_ref())?, value.to_string().as_bytes()]).await.map(drop)
    }

    /// Sets the value to 0 and returns the old one: every add is in that value, or comes after it.
    pub async fn reset(&self, name: impl AsRef<[u8]>) -> Result<i64, Error> {
        reply_number(self.call_with_token(&[b"QUIPU.RESET", check_name(name.as_ref())?]).await?)
    }

    /// Deletes the counter; returns true if it existed.
    pub async fn delete(&self, name: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(reply_number(self.call_with_token(&[b"DEL", check_name(name.as_ref())?]).await?)? != 0)
    }

    /// Reads the value and its quality, with its namespace's freshness.
    pub async fn read(&self, name: impl AsRef<[u8]>) -> Result<Reading, Error> {
        self.read_with(name, Freshness::Usual).await
    }

    /// Reads the value and its quality. Its data of other nodes is no older than `freshness`.
    pub async fn read_with(&self, name: impl AsRef<[u8]>, freshness: Freshness) -> Result<Reading, Error> {
        let within = match freshness {
            Freshness::Usual => None,
            Freshness::Cached => Some("cached".to_owned()),
            Freshness::Fresh => Some("fresh".to_owned()),
            Freshness::Within(time) => Some(format!("{}ms", time.as_millis())),
        };
        let mut arguments: Vec<&[u8]> = vec![b"QUIPU.READ", check_name(name.as_ref())?];
        if let Some(within) = &within {
            arguments.extend([b"FRESHNESS", within.as_bytes()]);
        }
        let reply = self.call(request(&arguments)).await?;
        Reading::from_reply(&reply).ok_or_else(|| unexpected_reply(&reply))
    }

    /// Sums adds in the client and sends the sums.
    pub fn adder(&self, options: AdderOptions) -> Adder {
        Adder::new(self.clone(), options)
    }

    /// Adds lost because the last handle of their [`Adder`] was dropped without a flush. The server
    /// may have counted some that were on their way.
    pub fn adds_dropped(&self) -> u64 {
        self.inner.adds_dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn record_dropped_adds(&self, adds: u64) {
        self.inner.adds_dropped.fetch_add(adds, Ordering::Relaxed);
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        // An endless timeout becomes a year.
        now.checked_add(self.inner.options.timeout).unwrap_or(now + std::time::Duration::from_secs(31_536_000))
    }

    pub(crate) fn token(&self) -> TokenItem {
        self.inner.tokens.next()
    }

    /// Sends an add under a token; returns when it has a permit, not when it is answered.
    pub(crate) async fn send_add(
        &self,
        name: &[u8],
        delta: i64,
        token: &TokenItem,
        by: Instant,
    ) -> Result<ReplyReceiver, Error> {
        let delta = delta.to_string();
        self.enqueue(self.request_with_token(&[b"INCRBY", check_name(name)?, delta.as_bytes()], token), by).await
    }

    /// The same for a sampled sum; at most `p` events per sampled one.
    pub(crate) async fn send_sampled(
        &self,
        name: &[u8],
        (amount, p): (i64, u32),
        token: &TokenItem,
        by: Instant,
    ) -> Result<ReplyReceiver, Error> {
        let (amount, p) = (amount.to_string(), p.to_string());
        let arguments: [&[u8]; 4] = [b"QUIPU.THINNED", check_name(name)?, amount.as_bytes(), p.as_bytes()];
        self.enqueue(self.request_with_token(&arguments, token), by).await
    }

    /// A seed for random numbers, a new one on each call.
    pub(crate) fn seed(&self) -> u64 {
        self.inner.tokens.seed()
    }

    async fn call_with_token(&self, arguments: &[&[u8]]) -> Result<Value, Error> {
        self.call(self.request_with_token(arguments, &self.token())).await
    }

    fn request_with_token(&self, arguments: &[&[u8]], token: &TokenItem) -> Vec<u8> {
        request(&[arguments, &[b"IDMP", self.inner.tokens.producer(), token.bytes()]].concat())
    }

    async fn call(&self, request: Vec<u8>) -> Result<Value, Error> {
        await_reply(self.enqueue(request, self.deadline()).await?).await
    }

    async fn enqueue(&self, request: Vec<u8>, deadline: Instant) -> Result<ReplyReceiver, Error> {
        let late = |_| Error::NotApplied { attempts: 0, source: Trouble::Late };
        let permit = timeout_at(deadline, self.inner.permits.clone().acquire_owned()).await.map_err(late)?;
        let (job, answer) = Job::new(request, deadline, permit.map_err(|_| Error::Closed)?);
        self.inner.jobs.send(job).await.map_err(|_| Error::Closed)?;
        Ok(answer)
    }
}

/// Waits for the reply to a request.
pub(crate) async fn await_reply(answer: ReplyReceiver) -> Result<Value, Error> {
    answer.await.unwrap_or(Err(Error::Closed))
}

/// Starts a task that outlives its caller.
#[allow(clippy::disallowed_methods, reason = "a client runs in its user's runtime, whose tasks may move")]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

fn check_name(name: &[u8]) -> Result<&[u8], Error> {
    Ok(Name::new(name)?.bytes())
}

pub(crate) fn reply_number(reply: Value) -> Result<i64, Error> {
    match reply {
        // The reply to a reset of a missing counter.
        Value::Null => Ok(0),
        reply => reply.number().ok_or_else(|| unexpected_reply(&reply)),
    }
}

/// An unintelligible reply is a reply too: the outcome of the request is unknown.
fn unexpected_reply(reply: &impl Debug) -> Error {
    Error::Unknown { attempts: 1, source: Trouble::Nonsense(format!("{reply:?}")) }
}

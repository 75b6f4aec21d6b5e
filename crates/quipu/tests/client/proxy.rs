//! A proxy between a client and the program, at an address that stays the same over restarts.
//!
//! It cuts connections at random: in the middle of a request, in the middle of a reply, or after
//! requests with withheld replies.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use quipu_testkit::SeededRng;

/// Bytes that a direction passes before it is cut: a few requests or replies, or a few hundred.
const SHORT_BYTES: i64 = 400;
const LONG_BYTES: i64 = 8_000;

/// A proxy that goes on until the test ends.
#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
}

struct ProxyState {
    upstream: Mutex<Option<SocketAddr>>,
    rng: Mutex<SeededRng>,
    cuts: AtomicU64,
    /// Whether connections are left alone from now on.
    is_calm: AtomicBool,
}

impl Proxy {
    pub fn start(seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(ProxyState {
            upstream: Mutex::new(None),
            rng: Mutex::new(SeededRng::new(seed)),
            cuts: AtomicU64::new(0),
            is_calm: AtomicBool::new(true),
        });
        let shared = state.clone();
        thread::spawn(move || {
            // A client that is gone before it was accepted is none.
            for client in listener.incoming().filter_map(Result::ok) {
                join(client, &shared);
            }
        });
        Proxy { address, state }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Where connections go from now on; nowhere: they are closed.
    pub fn lead_to(&self, upstream: Option<SocketAddr>) {
        *self.state.upstream.lock().expect("nothing panics with it") = upstream;
    }

    /// Begins or stops cutting, new connections only.
    pub fn cut(&self, cuts: bool) {
        self.state.is_calm.store(!cuts, Ordering::Relaxed);
    }

    pub fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::Relaxed)
    }
}

fn join(client: TcpStream, state: &Arc<ProxyState>) {
    let Some(upstream) = *state.upstream.lock().expect("nothing panics with it") else { return };
    let Ok(server) = TcpStream::connect(upstream) else { return };
    let (mut requests, mut replies) = (None, None);
    if !state.is_calm.load(Ordering::Relaxed) {
        let rng = state.rng.lock().expect("nothing panics with it");
        let longest = if rng.between(0..=1) == 0 { SHORT_BYTES } else { LONG_BYTES };
        let bytes = rng.between(0..=longest).unsigned_abs();
        if rng.between(0..=2) == 0 { requests = Some(bytes) } else { replies = Some(bytes) }
    }
    let ends = |a: &TcpStream, b: &TcpStream| (a.try_clone().expect("a handle"), b.try_clone().expect("a handle"));
    for ((from, to), limit) in [(ends(&client, &server), requests), (ends(&server, &client), replies)] {
        let state = state.clone();
        thread::spawn(move || pass(from, to, limit, &state));
    }
}

/// Passes bytes on, up to a limit, and then closes both ends: what comes after it is lost.
fn pass(mut from: TcpStream, mut to: TcpStream, limit: Option<u64>, state: &ProxyState) {
    let mut left = limit;
    let mut bytes = [0; 4096];
    while let Ok(count) = from.read(&mut bytes) {
        let passed = left.map_or(count, |left| count.min(left as usize));
        if count == 0 || to.write_all(&bytes[..passed]).is_err() {
            break;
        }
        left = left.map(|left| left - passed as u64);
        if passed < count || left == Some(0) {
            state.cuts.fetch_add(1, Ordering::Relaxed);
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

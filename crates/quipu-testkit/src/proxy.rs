//! Simulates a faulty network between a client and a real server: slow TCP, lost replies, broken
//! connections.
//!
//! In: the server's address, and a plan with the fault of each request, by its number. Out: an
//! address to connect to instead.
//!
//! A request here is a chunk of bytes that arrives at once. A small call is one chunk, a long
//! pipeline several, so that it may break half-way.
//!
//! Invariants:
//! - forwarded bytes are the sent ones, in order;
//! - a delayed request reaches the server even if its client has given up meanwhile;
//! - a dropped proxy closes everything it opened.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes per read: less than a long pipeline has, so that it comes in several.
const CHUNK_BYTES: usize = 16 << 10;

/// Timeout of connecting to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkFault {
    /// The request and its reply go through.
    PassThrough,
    /// The request goes through after this delay.
    Delay(Duration),
    /// The request goes through; its reply and all later ones on this connection are lost.
    LoseReplies,
    /// The request goes through, then the connection is closed, before any reply.
    CutAfter,
    /// The connection is closed, and the request does not go through.
    CutBefore,
    /// This connection transfers nothing more, in either direction, and neither side is notified.
    HalfOpen,
    /// The client's connection is reset, and the request does not go through.
    Reset,
}

/// A proxy.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
    acceptor: Option<JoinHandle<()>>,
}

struct ProxyState {
    to: SocketAddr,
    plan: Box<dyn Fn(u64) -> NetworkFault + Send + Sync>,
    requests: AtomicU64,
    closed: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Listens on a free port, and forwards to this server as the plan says.
    pub fn start(to: SocketAddr, plan: impl Fn(u64) -> NetworkFault + Send + Sync + 'static) -> io::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (requests, closed, streams) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::default());
        let state = Arc::new(ProxyState { to, plan: Box::new(plan), requests, closed, streams });
        let acceptor = thread::spawn({
            let state = state.clone();
            move || {
                for client in listener.incoming() {
                    if state.closed.load(Ordering::SeqCst) {
                        return;
                    }
                    // If the server is down, the connection is closed at once.
                    if let Ok(client) = client {
                        let _ = state.connect(client);
                    }
                }
            }
        });
        Ok(Proxy { address, state, acceptor: Some(acceptor) })
    }

    /// Address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for stream in self.state.lock_streams().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl ProxyState {
    fn lock_streams(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<ProxyState>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect_timeout(&self.to, CONNECT_TIMEOUT)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.lock_streams().extend([client.try_clone()?, server.try_clone()?]);
        let drops_replies = Arc::new(AtomicBool::new(false));
        thread::spawn({
            let (drops_replies, from, to) = (drops_replies.clone(), server.try_clone()?, client.try_clone()?);
            move || replies(&drops_replies, from, to)
        });
        let state = self.clone();
        thread::spawn(move || state.forward_requests(client, server, &drops_replies));
        Ok(())
    }

    /// Forwards requests until either side ends or a fault ends the connection.
    fn forward_requests(&self, mut client: TcpStream, mut server: TcpStream, drops_replies: &AtomicBool) {
        let mut chunk = vec![0; CHUNK_BYTES];
        while client.peek(&mut chunk).is_ok_and(|bytes| bytes > 0) {
            let fault = (self.plan)(self.requests.fetch_add(1, Ordering::SeqCst));
            match fault {
                // Closing a socket with unread bytes makes it a reset; the other copies are dropped
                // first.
                NetworkFault::Reset => {
                    drops_replies.store(true, Ordering::SeqCst);
                    let _ = server.shutdown(Shutdown::Both);
                    self.forget_client(&client);
                    return;
                }
                NetworkFault::HalfOpen => {
                    drops_replies.store(true, Ordering::SeqCst);
                    while client.read(&mut chunk).is_ok_and(|bytes| bytes > 0) {}
                    break;
                }
                NetworkFault::LoseReplies | NetworkFault::CutAfter => drops_replies.store(true, Ordering::SeqCst),
                NetworkFault::PassThrough | NetworkFault::Delay(_) | NetworkFault::CutBefore => {}
            }
            let Ok(bytes) = client.read(&mut chunk) else { break };
            if let NetworkFault::Delay(delay) = fault {
                thread::sleep(delay);
            }
            if fault == NetworkFault::CutBefore || server.write_all(&chunk[..bytes]).is_err() {
                break;
            }
            if fault == NetworkFault::CutAfter {
                let _ = client.shutdown(Shutdown::Both);
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        // Bytes written before this still arrive.
        let _ = server.shutdown(Shutdown::Write);
    }

    fn forget_client(&self, client: &TcpStream) {
        let peer = client.peer_addr().ok();
        self.lock_streams().retain(|stream| stream.peer_addr().ok() != peer);
    }
}

/// Forwards replies, or drops them, until the server ends the connection.
fn replies(drops_replies: &AtomicBool, mut from: TcpStream, mut to: TcpStream) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(bytes) = from.read(&mut chunk) {
        if bytes == 0 {
            break;
        }
        if !drops_replies.load(Ordering::SeqCst) && to.write_all(&chunk[..bytes]).is_err() {
            break;
        }
    }
    // A connection that becomes half open, or is reset, is not closed here.
    if !drops_replies.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each byte with the next one, and records the received bytes.
    fn server() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, got) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let received = got.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, received) = (stream.unwrap(), received.clone());
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() {
                        received.lock().unwrap().push(byte[0]);
                        if stream.write_all(&[byte[0] + 1]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (address, got)
    }

    fn ask(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
        stream.write_all(&[byte])?;
        let mut reply = [0];
        stream.read_exact(&mut reply)?;
        Ok(reply[0])
    }

    /// Result of a connection's second request, and a flag if the server received it.
    fn send_through(fault: NetworkFault) -> (io::Result<u8>, bool) {
        let (address, got) = server();
        let proxy = Proxy::start(address, move |n| if n == 1 { fault } else { NetworkFault::PassThrough }).unwrap();
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert_eq!(ask(&mut client, 7).unwrap(), 8);
        let reply = ask(&mut client, 20);
        // The server may receive it a little later.
        let came = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(if reply.is_ok() { 0 } else { 5 }));
            got.lock().unwrap().contains(&20)
        });
        let mut next = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(ask(&mut next, 30).unwrap(), 31, "the next connection is fine");
        (reply, came)
    }

    #[test]
    fn what_goes_through_is_answered_now_or_later() {
        for fault in [NetworkFault::PassThrough, NetworkFault::Delay(Duration::from_millis(50))] {
            let (reply, came) = send_through(fault);
            assert_eq!((reply.unwrap(), came), (21, true), "{fault:?}");
        }
    }

    #[test]
    fn a_delayed_request_arrives_though_its_client_has_given_up() {
        let (reply, came) = send_through(NetworkFault::Delay(Duration::from_millis(300)));
        assert!(reply.is_err() && came);
    }

    #[test]
    fn replies_are_lost_and_connections_break_before_and_after_a_request() {
        use io::ErrorKind::{ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        for (fault, kinds, comes) in [
            (NetworkFault::LoseReplies, [WouldBlock, TimedOut], true),
            (NetworkFault::HalfOpen, [WouldBlock, TimedOut], false),
            (NetworkFault::CutAfter, [UnexpectedEof, ConnectionReset], true),
            (NetworkFault::CutBefore, [UnexpectedEof, ConnectionReset], false),
            (NetworkFault::Reset, [ConnectionReset, ConnectionReset], false),
        ] {
            let (reply, came) = send_through(fault);
            let kind = reply.expect_err("no reply comes").kind();
            assert!(kinds.contains(&kind), "{fault:?}: {kind:?}");
            assert_eq!(came, comes, "{fault:?}: whether the server gets it");
        }
    }
}

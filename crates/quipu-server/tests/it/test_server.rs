//! A server for one test, and a client that checks exact bytes sent and received.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use quipu_engine::{Engine, Environment};
use quipu_server::{Options, Server};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// No step of a test takes so long unless the server hangs.
pub const TEST_TIME_MAX: Duration = Duration::from_secs(30);

/// A running server on a directory of its own.
pub struct TestServer {
    pub resp: SocketAddr,
    pub http: SocketAddr,
    pub engine: Engine,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _directory: TempDir,
}

impl TestServer {
    pub fn open() -> TestServer {
        TestServer::open_with(|_| {})
    }

    pub fn open_with(change: impl FnOnce(&mut Options)) -> TestServer {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::open(quipu_engine::Options::new(directory.path())).unwrap();
        TestServer::serve(engine, directory, change)
    }

    /// On another disk than the machine's.
    pub fn open_on(environment: Environment) -> TestServer {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::open_with(quipu_engine::Options::new(directory.path()), environment).unwrap();
        TestServer::serve(engine, directory, |_| {})
    }

    pub fn serve(engine: Engine, directory: TempDir, change: impl FnOnce(&mut Options)) -> TestServer {
        let mut options = Options {
            resp: "127.0.0.1:0".parse().unwrap(),
            http: Some("127.0.0.1:0".parse().unwrap()),
            workers: NonZeroUsize::new(2).unwrap(),
            ..Options::default()
        };
        change(&mut options);
        let server = Server::bind(engine.clone(), options).unwrap();
        let (resp, http) = (server.resp_addr(), server.http_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let shutdown = async {
                let _ = stopped.await;
            };
            runtime.block_on(server.run(shutdown)).unwrap();
        });
        TestServer { resp, http, engine, stop: Some(stop), thread: Some(thread), _directory: directory }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.resp)
    }

    /// Asks the server to stop, without waiting for it.
    pub fn ask_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until it has stopped.
    pub fn join(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.join();
            // Refused by an engine whose disk has failed, which is what one test is about.
            let _ = self.engine.close();
        }
    }
}

/// A client without opinions.
pub struct Client(pub TcpStream);

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TEST_TIME_MAX)).unwrap();
        stream.set_write_timeout(Some(TEST_TIME_MAX)).unwrap();
        Client(stream)
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        self.0.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// The next bytes are these.
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) -> &mut Client {
        let expected = expected.as_ref();
        let mut got = vec![0; expected.len()];
        let mut at = 0;
        while at < got.len() {
            match self.0.read(&mut got[at..]) {
                Ok(0) => break,
                Ok(read) => at += read,
                Err(error) => panic!("{error} after {:?}", got[..at].escape_ascii().to_string()),
            }
            if got[..at] != expected[..at] {
                break;
            }
        }
        assert_eq!(got[..at].escape_ascii().to_string(), expected.escape_ascii().to_string());
        self
    }

    /// Sends lines and expects these replies.
    pub fn ask(&mut self, lines: &str, expected: impl AsRef<[u8]>) -> &mut Client {
        self.send(format!("{}\r\n", lines.replace('\n', "\r\n"))).expect(expected)
    }

    /// One line of the reply, without its end.
    pub fn line(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\r\n") {
            assert_eq!(self.0.read(&mut byte).unwrap(), 1, "closed after {}", line.escape_ascii());
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).unwrap()
    }

    /// One line that ends as lines of text do, with its end.
    pub fn line_of_text(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\n") {
            assert_eq!(self.0.read(&mut byte).unwrap(), 1, "closed after {}", line.escape_ascii());
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// One bulk string (or, in RESP3, verbatim string) of the reply.
    pub fn bulk(&mut self) -> String {
        let header = self.line();
        let len: usize = header[1..].parse().unwrap_or_else(|_| panic!("not a bulk string: {header}"));
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.truncate(len);
        String::from_utf8(bytes).unwrap()
    }

    /// All that comes until the server closes.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            match self.0.read(&mut chunk) {
                Ok(0) => return rest,
                Ok(read) => rest.extend_from_slice(&chunk[..read]),
                // A close with bytes of ours unread is a reset.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return rest,
                Err(error) => panic!("{error}: the server did not close"),
            }
        }
    }

    /// The server has closed, having said this last.
    pub fn expect_closed_after(&mut self, last: impl AsRef<[u8]>) {
        assert_eq!(self.rest().escape_ascii().to_string(), last.as_ref().escape_ascii().to_string());
    }

    /// Nothing is said within a moment.
    pub fn expect_silence(&mut self, moment: Duration) {
        self.0.set_read_timeout(Some(moment)).unwrap();
        let read = self.0.read(&mut [0; 1]);
        self.0.set_read_timeout(Some(TEST_TIME_MAX)).unwrap();
        assert!(read.as_ref().is_err_and(is_timeout), "{read:?}");
    }

    /// Whether the server has closed, as far as can be seen within a moment.
    pub fn is_closed_within(&mut self, moment: Duration) -> bool {
        self.0.set_read_timeout(Some(moment)).unwrap();
        let read = self.0.read(&mut [0; 1]);
        self.0.set_read_timeout(Some(TEST_TIME_MAX)).unwrap();
        match read {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => !is_timeout(&error),
        }
    }
}

pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

//! A server that acts on a test's script, and records its requests.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quipu_client::{Client, Options};
use quipu_protocol::resp::{ReplyReader, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What the toy does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToyAction {
    /// Replies this.
    Reply(&'static str),
    /// Closes the connection.
    Cut,
    /// Says nothing, for ever.
    Hang,
}

/// The server's next action, by the words of a request and the number of earlier requests on all
/// connections, greetings excluded.
pub type Script = fn(&[String], usize) -> ToyAction;

/// A running toy.
pub struct ToyServer {
    pub address: String,
    requests: Arc<Mutex<Vec<Vec<String>>>>,
    _tasks: JoinSet<()>,
}

impl ToyServer {
    pub async fn start(script: Script) -> ToyServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, requests) =
            (listener.local_addr().expect("an address").to_string(), Arc::new(Mutex::new(Vec::new())));
        let (mut tasks, seen) = (JoinSet::new(), requests.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("a client");
                connections.spawn(serve(stream, script, seen.clone()));
            }
        });
        ToyServer { address, requests, _tasks: tasks }
    }

    /// A client of it, impatient unless told otherwise.
    pub async fn client(&self, timeout: Duration) -> Client {
        let options = Options { timeout, pause_max: Duration::from_millis(20), ..Options::default() };
        Client::connect(&self.address, options).await.expect("the toy answers")
    }

    /// What it was asked, greetings not counted.
    pub fn requests(&self) -> Vec<Vec<String>> {
        self.requests.lock().expect("no test panicked with it").clone()
    }
}

async fn serve(mut stream: TcpStream, script: Script, requests: Arc<Mutex<Vec<Vec<String>>>>) {
    let (mut reader, mut bytes) = (ReplyReader::default(), [0; 4096]);
    loop {
        // A request is an array of strings, and so is a reply.
        while let Some(request) = reader.take().expect("clients speak RESP") {
            let words: Vec<String> = request.elements().iter().map(text).collect();
            let does = if words[0] == "PING" {
                ToyAction::Reply("+PONG\r\n")
            } else {
                let mut requests = requests.lock().expect("no test panicked with it");
                requests.push(words.clone());
                script(&words, requests.len() - 1)
            };
            match does {
                ToyAction::Reply(reply) => {
                    if stream.write_all(reply.as_bytes()).await.is_err() {
                        return;
                    }
                }
                ToyAction::Cut => return,
                ToyAction::Hang => std::future::pending().await,
            }
        }
        match stream.read(&mut bytes).await {
            Ok(count) if count > 0 => reader.feed(&bytes[..count]),
            _ => return,
        }
    }
}

fn text(value: &Value) -> String {
    String::from_utf8_lossy(value.bytes().expect("arguments are strings")).into_owned()
}

/// Runs a test in a runtime of its own.
pub fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

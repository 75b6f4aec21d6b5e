//! Clients of the two protocols, for the same counters.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quipu_model::Reply;
use quipu_protocol::resp;
use quipu_testkit::judge::CounterAction;
use serde_json::{Value, json};

use crate::request::{Answer, Request, producer};

/// Timeout of a reply. A killed server closes its connections at once; one that is silent for this
/// time hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Problems that a healthy server may answer: the operation was not applied.
const REFUSALS: [&str; 4] = ["no-room", "behind", "no-memory", "busy"];

/// Where a program serves.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub resp: SocketAddr,
    pub http: SocketAddr,
}

/// A connection.
pub enum ProtocolClient {
    Resp(resp::RespConnection),
    Http(HttpConnection),
}

/// An HTTP connection that is kept.
pub struct HttpConnection {
    reader: BufReader<TcpStream>,
}

impl ProtocolClient {
    pub fn connect_resp(addresses: Addresses) -> io::Result<ProtocolClient> {
        resp::RespConnection::connect(addresses.resp, REPLY_TIMEOUT).map(ProtocolClient::Resp)
    }

    pub fn connect_http(addresses: Addresses) -> io::Result<ProtocolClient> {
        let stream = TcpStream::connect(addresses.http)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(ProtocolClient::Http(HttpConnection { reader: BufReader::new(stream) }))
    }

    /// Sends requests in one write. Over HTTP there is one at a time.
    pub fn send(&mut self, client: usize, requests: &[&Request]) -> io::Result<()> {
        match self {
            ProtocolClient::Resp(connection) => {
                let commands: Vec<_> = requests.iter().flat_map(|request| request.commands(client).0).collect();
                connection.send(&commands)
            }
            ProtocolClient::Http(connection) => {
                requests.iter().try_for_each(|request| connection.send(client, request))
            }
        }
    }

    /// Reads the replies to a request.
    pub fn receive(&mut self, client: usize, request: &Request) -> io::Result<Answer> {
        match self {
            ProtocolClient::Resp(connection) => {
                for _ in 0..request.commands(client).1 {
                    connection.receive()?;
                }
                Ok(request.answer(&connection.receive()?))
            }
            ProtocolClient::Http(connection) => connection.receive(request),
        }
    }
}

impl HttpConnection {
    fn send(&mut self, client: usize, request: &Request) -> io::Result<()> {
        let step = request.steps[0];
        let name = request.name(step.cell);
        let mut body = json!({});
        let (method, path) = match step.action {
            CounterAction::Add(delta) => {
                body["delta"] = delta.into();
                ("POST", format!("/v1/counters/{name}/add"))
            }
            CounterAction::Read => ("GET", format!("/v1/counters/{name}")),
            CounterAction::Reset => ("POST", format!("/v1/counters/{name}/reset")),
            CounterAction::Delete => ("DELETE", format!("/v1/counters/{name}")),
            other => unreachable!("HTTP has no {other:?}"),
        };
        if let Some(token) = request.token {
            (body["producer"], body["token"]) = (producer(client).into(), token.to_string().into());
        }
        let body = if step.action == CounterAction::Read { String::new() } else { body.to_string() };
        let stream = self.reader.get_mut();
        let host = stream.peer_addr()?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes())
    }

    fn receive(&mut self, request: &Request) -> io::Result<Answer> {
        let status_line = self.line()?;
        let mut length = 0;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        let body: Value = serde_json::from_slice(&body).map_err(io::Error::other)?;
        let status = status_line.split(' ').nth(1).unwrap_or_default();
        Ok(if status.starts_with('2') { answer(request, &body) } else { problem(request, &body) })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

fn answer(request: &Request, body: &Value) -> Answer {
    let reply = match request.steps[0].action {
        CounterAction::Add(_) => body["value"].as_i64().map(Reply::Integer),
        CounterAction::Read if body["exists"] == false => Some(Reply::Value(None)),
        CounterAction::Read => body["value"].as_i64().map(|value| Reply::Value(Some(value))),
        CounterAction::Reset => body["before"].as_i64().map(Reply::Integer),
        CounterAction::Delete => body["deleted"].as_bool().map(|deleted| Reply::Integer(i64::from(deleted))),
        _ => None,
    };
    match reply {
        Some(reply) => Answer::Replies(vec![reply]),
        None => Answer::Wrong(format!("{request:?} was answered {body}")),
    }
}

fn problem(request: &Request, body: &Value) -> Answer {
    let word = body["type"].as_str().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default();
    match REFUSALS.contains(&word) {
        true => Answer::Refused,
        false => Answer::Wrong(format!("{request:?} was answered {body}")),
    }
}

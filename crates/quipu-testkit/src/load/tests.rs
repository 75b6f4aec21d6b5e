//! Tests the load and its account on a toy server without defects or with one known defect.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quipu_model::Reply;
use quipu_protocol::resp::ReplyReader;

use super::*;
use crate::SeededRng;
use crate::judge::{ExpiryTime, OwnedCounter, OwnedCounters, SequenceStep, StepAction};
use quipu_protocol::resp::{RespConnection, Value};

/// Commands after which the toy server dies, with everything in flight.
const COMMANDS_PER_LIFE: usize = 6_000;

/// A server that runs one command at a time, and keeps its whole state unless a test damages it.
struct ToyServer {
    state: Mutex<OwnedCounters>,
    commands: AtomicUsize,
    /// Interval at which an add is answered but not applied; 0: never.
    forgets_every: usize,
}

impl ToyServer {
    fn new(state: OwnedCounters, forgets_every: usize) -> Arc<ToyServer> {
        Arc::new(ToyServer { state: Mutex::new(state), commands: AtomicUsize::new(0), forgets_every })
    }

    fn start(self: &Arc<ToyServer>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, toy) = (listener.local_addr().unwrap(), Arc::clone(self));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let toy = Arc::clone(&toy);
                thread::spawn(move || toy.serve(stream));
            }
        });
        address
    }

    fn serve(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let (mut requests, mut reader) = (stream.try_clone().unwrap(), ReplyReader::default());
        let mut queue: Option<Vec<Vec<String>>> = None;
        // A request is an array of strings, and so is a reply.
        while let Ok(request) = reader.read_from(&mut requests) {
            let words: Vec<String> = request.elements().iter().map(text).collect();
            let reply = match (words[0].as_str(), &mut queue) {
                ("MULTI", _) => {
                    queue = Some(Vec::new());
                    "+OK\r\n".to_owned()
                }
                ("EXEC", _) => {
                    let mut state = self.state.lock().unwrap();
                    let commands = queue.take().unwrap();
                    let replies: String = commands.iter().map(|words| self.execute(&mut state, words)).collect();
                    format!("*{}\r\n{replies}", commands.len())
                }
                (_, Some(queue)) => {
                    queue.push(words);
                    "+QUEUED\r\n".to_owned()
                }
                (_, None) => self.execute(&mut self.state.lock().unwrap(), &words),
            };
            // The command was applied; the reply may still get lost.
            if self.commands.fetch_add(1, Ordering::SeqCst) >= COMMANDS_PER_LIFE {
                return;
            }
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn execute(&self, state: &mut OwnedCounters, words: &[String]) -> String {
        let key = words[1].clone();
        let number = |index: usize| words[index].parse::<i64>().unwrap();
        let action = match (words[0].as_str(), words.len()) {
            ("MGET", _) => {
                let values = words[1..].iter().map(|key| bulk(state.get(key).map(|counter| counter.value)));
                return format!("*{}\r\n{}", words.len() - 1, values.collect::<String>());
            }
            ("PEXPIRETIME", _) => {
                return match state.get(&key).map(|counter| counter.expires) {
                    None => ":-2\r\n".to_owned(),
                    Some(ExpiryTime::Never) => ":-1\r\n".to_owned(),
                    Some(ExpiryTime::Sometime) => ":5\r\n".to_owned(),
                    Some(ExpiryTime::At(at)) => format!(":{at}\r\n"),
                };
            }
            ("INCR", _) => StepAction::Add(1),
            ("DECR", _) => StepAction::Add(-1),
            ("INCRBY", _) => StepAction::Add(number(2)),
            ("DECRBY", _) => StepAction::Add(-number(2)),
            ("SET", 3) => StepAction::Set(number(2)),
            ("SET", _) if words[3] == "EXAT" => StepAction::SetUntil(number(2), number(4)),
            ("SET", _) => StepAction::SetFor(number(2), number(4)),
            ("GETSET", _) => StepAction::Swap(number(2)),
            ("GETDEL", _) => StepAction::Take,
            ("DEL", _) => StepAction::Delete,
            ("EXPIREAT", _) => StepAction::ExpireAt(number(2)),
            ("EXPIRE", _) => StepAction::ExpireIn(number(2)),
            ("PERSIST", _) => StepAction::Persist,
            ("GET", _) => StepAction::Read,
            other => panic!("the toy does not know {other:?}"),
        };
        let count = self.commands.load(Ordering::SeqCst) + 1;
        let forgotten = key.starts_with("rise") && self.forgets_every > 0 && count.is_multiple_of(self.forgets_every);
        let step = SequenceStep { key, action };
        match if forgotten { step.run(&mut state.clone()) } else { step.run(state) } {
            Reply::Ok => "+OK\r\n".to_owned(),
            Reply::Integer(integer) => format!(":{integer}\r\n"),
            Reply::Value(value) => bulk(value),
            other => panic!("the model does not answer {other:?}"),
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Bulk(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("a request is made of bulk strings, not {other:?}"),
    }
}

fn bulk(value: Option<i64>) -> String {
    value.map_or("$-1\r\n".to_owned(), |value| format!("${}\r\n{value}\r\n", value.to_string().len()))
}

/// Runs two incarnations under load, with damage to the state in between; returns both judgements.
fn judged(forgets_every: usize, damage: impl Fn(&mut OwnedCounters)) -> [String; 2] {
    let (rng, mut account, mut state) = (SeededRng::new(5), LoadAccount::new(), OwnedCounters::new());
    [(); 2].map(|()| {
        let toy = ToyServer::new(std::mem::take(&mut state), forgets_every);
        let (driver, address) = (LoadDriver::new(), toy.start());
        let logs: Vec<ClientLog> = thread::scope(|scope| {
            let (driver, rng) = (&driver, &rng);
            let clients: Vec<_> =
                (0..CLIENTS).map(|client| scope.spawn(move || driver.run(address, client, &rng.fork()))).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert!(logs.iter().all(|log| log.ended.is_some()), "the toy died under them");
        logs.into_iter().for_each(|log| account.add_log(log));
        state = toy.state.lock().unwrap().clone();
        damage(&mut state);
        let address = ToyServer::new(state.clone(), 0).start();
        let mut client = RespConnection::connect(address, Duration::from_secs(5)).unwrap();
        let violations = account.judge(&mut client, Loss::Nothing).unwrap();
        violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })
}

fn change(state: &mut OwnedCounters, key: &str, by: i64) {
    state.entry(key.to_owned()).or_insert(OwnedCounter { value: 0, expires: ExpiryTime::Never }).value += by;
}

#[test]
fn an_honest_server_is_found_honest() {
    assert_eq!(judged(0, |_| {}), ["", ""]);
}

#[test]
fn an_add_that_was_answered_and_forgotten_is_caught() {
    let [first, _] = judged(97, |_| {});
    assert!(first.contains("equal replies") || first.contains("taken back"), "{first}");
}

#[test]
fn damage_done_between_lives_is_caught_in_every_class() {
    for (key, by, verdict) in [
        ("rise:1", -400, "rise:1: taken back"),
        ("rise:2", 400, "rise:2: doubled"),
        ("drift:0", -100_003, "drift:0: lost"),
        ("drift:3", 100_003, "drift:3: doubled"),
        ("crop:1", 100_003, "crop:1: doubled"),
        ("pair:2:b", 1, "pair:2:a and pair:2:b: half an EXEC"),
        ("own:3:1", 5_000, "client 3: found a state that never was"),
    ] {
        let [first, _] = judged(0, |state| change(state, key, by));
        assert!(first.contains(verdict), "{verdict} expected, got: {first}");
    }
}

#[test]
fn a_changed_expiry_is_caught() {
    let [first, _] = judged(0, |state| {
        for counter in state.iter_mut().filter(|(key, _)| key.starts_with("own")).map(|(_, counter)| counter) {
            counter.expires = if counter.expires == ExpiryTime::Never { ExpiryTime::At(7) } else { ExpiryTime::Never };
        }
    });
    assert!(first.contains("found a state that never was"), "{first}");
}

#[test]
fn every_command_of_the_classes_is_drawn() {
    let rng = SeededRng::new(9);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for draw in 0..20_000 {
        for command in LoadRequest::draw(draw % CLIENTS, &rng).commands() {
            *counts.entry(command[0].clone()).or_default() += 1;
        }
    }
    for command in
        "INCR DECR INCRBY DECRBY GET MGET SET GETSET GETDEL DEL EXPIRE EXPIREAT PERSIST MULTI EXEC".split_whitespace()
    {
        assert!(counts.get(command).is_some_and(|&count| count > 100), "{command}: {counts:?}");
    }
}

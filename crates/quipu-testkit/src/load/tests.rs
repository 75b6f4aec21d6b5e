//! The load and its account, on a toy server that is honest or has one known defect.

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
use crate::Dice;
use crate::judge::{Action, Expires, Found, Held, Step};
use crate::resp::{Client, Value};

/// Commands after which the toy dies, with whatever is in flight.
const COMMANDS_PER_LIFE: usize = 6_000;

/// A server that carries out commands one at a time, and survives its death in full unless a test says otherwise.
struct Toy {
    state: Mutex<Found>,
    commands: AtomicUsize,
    /// Every so many commands an add is answered and not carried out; 0: never.
    forgets_every: usize,
}

impl Toy {
    fn new(state: Found, forgets_every: usize) -> Arc<Toy> {
        Arc::new(Toy { state: Mutex::new(state), commands: AtomicUsize::new(0), forgets_every })
    }

    fn start(self: &Arc<Toy>) -> SocketAddr {
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
            // It has been carried out; whether the reply gets out is another matter.
            if self.commands.fetch_add(1, Ordering::SeqCst) >= COMMANDS_PER_LIFE {
                return;
            }
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn execute(&self, state: &mut Found, words: &[String]) -> String {
        let key = words[1].clone();
        let number = |place: usize| words[place].parse::<i64>().unwrap();
        let action = match (words[0].as_str(), words.len()) {
            ("MGET", _) => {
                let values = words[1..].iter().map(|key| bulk(state.get(key).map(|held| held.value)));
                return format!("*{}\r\n{}", words.len() - 1, values.collect::<String>());
            }
            ("PEXPIRETIME", _) => {
                return match state.get(&key).map(|held| held.expires) {
                    None => ":-2\r\n".to_owned(),
                    Some(Expires::Never) => ":-1\r\n".to_owned(),
                    Some(Expires::Sometime) => ":5\r\n".to_owned(),
                    Some(Expires::At(at)) => format!(":{at}\r\n"),
                };
            }
            ("INCR", _) => Action::Add(1),
            ("DECR", _) => Action::Add(-1),
            ("INCRBY", _) => Action::Add(number(2)),
            ("DECRBY", _) => Action::Add(-number(2)),
            ("SET", 3) => Action::Set(number(2)),
            ("SET", _) if words[3] == "EXAT" => Action::SetUntil(number(2), number(4)),
            ("SET", _) => Action::SetFor(number(2), number(4)),
            ("GETSET", _) => Action::Swap(number(2)),
            ("GETDEL", _) => Action::Take,
            ("DEL", _) => Action::Delete,
            ("EXPIREAT", _) => Action::ExpireAt(number(2)),
            ("EXPIRE", _) => Action::ExpireIn(number(2)),
            ("PERSIST", _) => Action::Persist,
            ("GET", _) => Action::Read,
            other => panic!("the toy does not know {other:?}"),
        };
        let count = self.commands.load(Ordering::SeqCst) + 1;
        let forgotten = key.starts_with("rise") && self.forgets_every > 0 && count.is_multiple_of(self.forgets_every);
        let step = Step { key, action };
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

/// Two lives under load, with something done to the state in between; what the judge says of the first and of the second.
fn judged(forgets_every: usize, damage: impl Fn(&mut Found)) -> [String; 2] {
    let (dice, mut account, mut state) = (Dice::new(5), Account::new(), Found::new());
    [(); 2].map(|()| {
        let toy = Toy::new(std::mem::take(&mut state), forgets_every);
        let (driver, address) = (Driver::new(), toy.start());
        let logs: Vec<Log> = thread::scope(|scope| {
            let (driver, dice) = (&driver, &dice);
            let clients: Vec<_> =
                (0..CLIENTS).map(|client| scope.spawn(move || driver.run(address, client, &dice.fork()))).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert!(logs.iter().all(|log| log.ended.is_some()), "the toy died under them");
        logs.into_iter().for_each(|log| account.take(log));
        state = toy.state.lock().unwrap().clone();
        damage(&mut state);
        let address = Toy::new(state.clone(), 0).start();
        let mut client = Client::connect(address, Duration::from_secs(5)).unwrap();
        let violations = account.judge(&mut client, Loss::Nothing).unwrap();
        violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })
}

fn change(state: &mut Found, key: &str, by: i64) {
    state.entry(key.to_owned()).or_insert(Held { value: 0, expires: Expires::Never }).value += by;
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
        for held in state.iter_mut().filter(|(key, _)| key.starts_with("own")).map(|(_, held)| held) {
            held.expires = if held.expires == Expires::Never { Expires::At(7) } else { Expires::Never };
        }
    });
    assert!(first.contains("found a state that never was"), "{first}");
}

#[test]
fn every_command_of_the_classes_is_drawn() {
    let dice = Dice::new(9);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for draw in 0..20_000 {
        for command in Request::draw(draw % CLIENTS, &dice).commands() {
            *seen.entry(command[0].clone()).or_default() += 1;
        }
    }
    for command in
        "INCR DECR INCRBY DECRBY GET MGET SET GETSET GETDEL DEL EXPIRE EXPIREAT PERSIST MULTI EXEC".split_whitespace()
    {
        assert!(seen.get(command).is_some_and(|&count| count > 100), "{command}: {seen:?}");
    }
}

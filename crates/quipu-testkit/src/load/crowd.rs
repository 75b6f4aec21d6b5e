//! Drives a crowd of counters, more than fit in memory: adds to any of them, and the account of
//! each.
//!
//! In: the address of a RESP listener. Out: violations, once the server has restarted and every
//! counter was read.
//!
//! All adds are above 0 and nothing is deleted, so each counter is judged exactly: found =
//! acknowledged adds + some subset of the unknown adds, and never less than a shown value. If
//! acknowledged adds may be lost (mode memory), the value is never below the one found after an
//! earlier start: that one was sealed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::account::{LoadTally, Loss, REFUSALS};
use super::drive::LoadDriver;
use crate::SeededRng;
use crate::judge::{Violation, is_subset_sum};
use quipu_protocol::resp::{RespConnection, Value, write_request};

/// Deepest pipeline, in adds: deep enough that one load reads many counters.
pub const PIPELINE_MAX: usize = 200;

/// Timeout of a reply: longer than a counter waits for memory.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Counters of one pipeline in a pass over all of them.
const SWEEP_NAMES: usize = 500;

/// Names per step of SCAN.
const SCAN_COUNT: &str = "1000";

/// Most violations reported; more add nothing.
const VIOLATIONS_MAX: usize = 20;

/// Names of the crowd: generated from numbers, with lengths in a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrowdNames {
    /// Prefix of every name, with its namespace.
    pub prefix: &'static str,
    /// Number of names.
    pub count: usize,
    /// Lengths of the names, in bytes.
    pub bytes: RangeInclusive<usize>,
}

/// The account of a crowd on one data directory.
#[derive(Debug)]
pub struct CrowdAccount {
    names: CrowdNames,
    counters: Vec<CrowdCounter>,
    unknown: HashMap<u32, Vec<i64>>, // adds without a reply since the last read of the counter
    tally: LoadTally,
    violations: Vec<Violation>,
}

#[derive(Debug, Clone, Copy, Default)]
struct CrowdCounter {
    /// Value at the last read after a start.
    found: i64,
    /// That value plus all adds acknowledged since.
    certain: i64,
    /// Largest value that a reply has shown since.
    shown: i64,
}

/// One client's requests to a crowd in one incarnation.
#[derive(Debug, Default)]
pub struct CrowdLog {
    adds: Vec<(u32, i64, Option<i64>)>,
    refused: Vec<String>,
    ended: Option<io::Error>,
}

impl CrowdNames {
    /// Name of a number.
    pub fn name(&self, number: usize) -> String {
        let (least, most) = (*self.bytes.start(), *self.bytes.end());
        // Lengths do not rise with the numbers, so names with near numbers have different lengths.
        let bytes = least + number.wrapping_mul(7_919) % (most - least + 1);
        let mut name = format!("{}{number:07}", self.prefix);
        while name.len() < bytes {
            name.push((b'a' + (number % 26) as u8) as char);
        }
        name
    }

    /// All names.
    pub fn all(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.count).map(|number| self.name(number))
    }
}

impl CrowdAccount {
    /// Creates the account of an empty directory.
    pub fn new(names: CrowdNames) -> CrowdAccount {
        let counters = vec![CrowdCounter::default(); names.count];
        CrowdAccount { names, counters, unknown: HashMap::new(), tally: LoadTally::default(), violations: Vec::new() }
    }

    /// Names of the crowd.
    pub fn names(&self) -> &CrowdNames {
        &self.names
    }

    /// Number of adds in all incarnations.
    pub fn tally(&self) -> LoadTally {
        self.tally
    }

    /// Least value of a counter, by its number.
    pub fn certain(&self, number: usize) -> i64 {
        self.counters[number].certain
    }

    /// Adds 1 to every counter; every add must be acknowledged.
    pub fn fill(&mut self, client: &mut RespConnection) -> io::Result<()> {
        let numbers: Vec<usize> = (0..self.names.count).collect();
        for numbers in numbers.chunks(SWEEP_NAMES) {
            let mut log = CrowdLog::default();
            send_pipeline(client, &self.names, numbers.iter().map(|&number| (number as u32, 1)), &mut log)?;
            if let Some(text) = log.refused.first() {
                return Err(io::Error::other(format!("an add was refused: {text}")));
            }
            self.add_log(log);
        }
        Ok(())
    }

    /// Adds 1 to every counter; some adds may be refused.
    pub fn fill_some(&mut self, client: &mut RespConnection) -> io::Result<()> {
        let numbers: Vec<usize> = (0..self.names.count).collect();
        for numbers in numbers.chunks(SWEEP_NAMES) {
            let mut log = CrowdLog::default();
            let sent = send_pipeline(client, &self.names, numbers.iter().map(|&number| (number as u32, 1)), &mut log);
            self.add_log(log);
            sent?;
        }
        Ok(())
    }

    /// Adds a client's log of the ended incarnation.
    pub fn add_log(&mut self, log: CrowdLog) {
        if let Some(kind @ (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)) =
            log.ended.as_ref().map(io::Error::kind)
        {
            self.add_violation("the crowd", format!("no reply: {kind:?}"));
        }
        for text in log.refused {
            self.tally.refused += 1;
            if !REFUSALS.iter().any(|refusal| text.starts_with(refusal)) {
                self.add_violation("the crowd", format!("an add was answered {text:?}"));
            }
        }
        for (number, delta, reply) in log.adds {
            let counter = &mut self.counters[number as usize];
            match reply {
                None => {
                    self.tally.unknown += 1;
                    self.unknown.entry(number).or_default().push(delta);
                }
                Some(value) => {
                    self.tally.acked += 1;
                    counter.certain += delta;
                    counter.shown = counter.shown.max(value);
                }
            }
        }
    }

    /// Records an acknowledged delete of everything.
    pub fn record_flush(&mut self) {
        self.counters.fill(CrowdCounter::default());
        self.unknown.clear();
    }

    /// Reads and judges every counter; the next incarnation starts from the found values. Also
    /// returns the number of existing counters.
    pub fn judge(&mut self, client: &mut RespConnection, loss: Loss) -> io::Result<(usize, Vec<Violation>)> {
        let mut violations = std::mem::take(&mut self.violations);
        let found = read_all_values(client, &self.names)?;
        for (number, value) in found.iter().enumerate() {
            let (counter, value) = (self.counters[number], value.unwrap_or(0));
            let unknown = self.unknown.get(&(number as u32)).map(Vec::as_slice).unwrap_or_default();
            let what = match loss {
                Loss::Nothing if value < counter.shown => {
                    Some(format!("taken back: {} was shown before", counter.shown))
                }
                Loss::Nothing => (!is_subset_sum(i128::from(value - counter.certain), unknown.iter().copied()))
                    .then(|| if value < counter.certain { "lost".to_owned() } else { "doubled".to_owned() }),
                Loss::Unsealed => {
                    let most = counter.certain + unknown.iter().sum::<i64>();
                    (!(counter.found..=most).contains(&value)).then(|| format!("not from {} to {most}", counter.found))
                }
            };
            if let Some(what) = what.filter(|_| violations.len() < VIOLATIONS_MAX) {
                let what = format!("{what}: found {value}; {counter:?}, unknown {unknown:?}");
                violations.push(Violation { key: self.names.name(number), what, tail: Vec::new() });
            }
            self.counters[number] = CrowdCounter { found: value, certain: value, shown: value };
        }
        self.unknown.clear();
        Ok((found.iter().flatten().count(), violations))
    }

    fn add_violation(&mut self, key: &str, what: String) {
        self.violations.push(Violation { key: key.to_owned(), what, tail: Vec::new() });
    }
}

impl LoadDriver {
    /// Adds to counters of a crowd in pipelines, in the calling thread, until the connection breaks
    /// or the driver is stopped.
    pub fn run_crowd(&self, address: SocketAddr, names: &CrowdNames, rng: &SeededRng) -> CrowdLog {
        let mut log = CrowdLog::default();
        let outcome = RespConnection::connect(address, REPLY_TIMEOUT).and_then(|mut client| {
            while !self.is_stopped() {
                let depth = 1 + rng.below(PIPELINE_MAX);
                let adds: Vec<_> = (0..depth).map(|_| (rng.below(names.count) as u32, rng.between(1..=9))).collect();
                send_pipeline(&mut client, names, adds.into_iter(), &mut log)?;
            }
            Ok(())
        });
        log.ended = outcome.err();
        log
    }

    /// Reads counters of a crowd without changing any (reads, scans, counts) until the connection
    /// breaks or the driver is stopped. Returns the impossible replies.
    pub fn read_crowd(&self, address: SocketAddr, names: &CrowdNames, rng: &SeededRng) -> Vec<String> {
        let (mut cursor, mut wrong) = ("0".to_owned(), Vec::new());
        let _broken = RespConnection::connect(address, REPLY_TIMEOUT).and_then(|mut client| {
            while !self.is_stopped() && wrong.len() < VIOLATIONS_MAX {
                let reply = match rng.below(4) {
                    0 => client.call(&["SCAN", &cursor, "COUNT", "100"])?,
                    1 => client.call(&["DBSIZE"])?,
                    _ => {
                        let some: Vec<String> = (0..20).map(|_| names.name(rng.below(names.count))).collect();
                        let words: Vec<&str> = std::iter::once("MGET").chain(some.iter().map(String::as_str)).collect();
                        client.call(&words)?
                    }
                };
                match &reply {
                    Value::Array(elements) if elements.len() == 2 => {
                        cursor = elements[0].number().unwrap_or(0).to_string();
                    }
                    Value::Array(elements) if elements.len() == 20 => {}
                    Value::Integer(_) => {}
                    Value::Error(text) if REFUSALS.iter().any(|refusal| text.starts_with(refusal)) => {}
                    other => wrong.push(format!("{other:?}")),
                }
            }
            Ok(())
        });
        wrong
    }
}

/// Sends adds, all in one write, and records the outcome of each.
fn send_pipeline(
    client: &mut RespConnection,
    names: &CrowdNames,
    adds: impl Iterator<Item = (u32, i64)>,
    log: &mut CrowdLog,
) -> io::Result<()> {
    let (first, mut bytes) = (log.adds.len(), Vec::new());
    for (number, delta) in adds {
        write_request(&["INCRBY".to_owned(), names.name(number as usize), delta.to_string()], &mut bytes);
        log.adds.push((number, delta, None));
    }
    let mut index = first;
    client.send_encoded(&bytes)?;
    while index < log.adds.len() {
        match client.receive()? {
            Value::Integer(value) => {
                log.adds[index].2 = Some(value);
                index += 1;
            }
            // Not applied, or no reply to this add: not in the account, but reported.
            other => {
                log.refused.push(other.error().map_or_else(|| format!("{other:?}"), str::to_owned));
                log.adds.remove(index);
            }
        }
    }
    Ok(())
}

/// Reads every counter, in the order of their numbers; `None` for an absent one.
fn read_all_values(client: &mut RespConnection, names: &CrowdNames) -> io::Result<Vec<Option<i64>>> {
    let (mut found, numbers) = (Vec::with_capacity(names.count), (0..names.count).collect::<Vec<_>>());
    for numbers in numbers.chunks(SWEEP_NAMES) {
        let mut words = vec!["MGET".to_owned()];
        words.extend(numbers.iter().map(|&number| names.name(number)));
        client.send(&[words])?;
        let reply = client.receive()?;
        if reply.elements().len() != numbers.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("MGET was answered {reply:?}")));
        }
        found.extend(reply.elements().iter().map(Value::number));
    }
    Ok(found)
}

/// Runs a whole pass of SCAN; an error if a name comes twice.
pub fn scan_names(client: &mut RespConnection, pattern: Option<&str>) -> io::Result<HashSet<Vec<u8>>> {
    let (mut scanned, mut cursor) = (HashSet::new(), "0".to_owned());
    loop {
        let mut words = vec!["SCAN", &cursor, "COUNT", SCAN_COUNT];
        words.extend(pattern.iter().flat_map(|pattern| ["MATCH", pattern]));
        let reply = client.call(&words)?;
        let [next, names] = reply.elements() else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("SCAN was answered {reply:?}")));
        };
        for name in names.elements() {
            let Value::Bulk(name) = name else { continue };
            if !scanned.insert(name.clone()) {
                return Err(io::Error::other(format!("SCAN shows {} twice", String::from_utf8_lossy(name))));
            }
        }
        cursor = next.number().unwrap_or(0).to_string();
        if cursor == "0" {
            return Ok(scanned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_have_the_lengths_asked_for() {
        let names = CrowdNames { prefix: "crowd:", count: 5_000, bytes: 20..=60 };
        let all: HashSet<String> = names.all().collect();
        assert_eq!(all.len(), 5_000);
        assert!(all.iter().all(|name| (20..=60).contains(&name.len())));
        assert!((20..=60).all(|bytes| all.iter().any(|name| name.len() == bytes)));
    }

    #[test]
    fn a_counter_is_what_was_acknowledged_and_perhaps_what_was_not() {
        let names = CrowdNames { prefix: "c:", count: 1, bytes: 9..=9 };
        let judged = |found: i64, loss: Loss| {
            let mut crowd = CrowdAccount::new(names.clone());
            crowd.add_log(CrowdLog { adds: vec![(0, 2, Some(2)), (0, 5, None)], ..CrowdLog::default() });
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                use std::io::{Read, Write};
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 256];
                let _ = stream.read(&mut request).unwrap();
                stream.write_all(format!("*1\r\n${}\r\n{found}\r\n", found.to_string().len()).as_bytes()).unwrap();
            });
            let mut client = RespConnection::connect(address, REPLY_TIMEOUT).unwrap();
            let (_, violations) = crowd.judge(&mut client, loss).unwrap();
            server.join().unwrap();
            violations.len()
        };
        assert_eq!([1, 2, 3, 7, 9].map(|found| judged(found, Loss::Nothing)), [1, 0, 1, 0, 1]);
        assert_eq!([-1, 0, 2, 7, 8].map(|found| judged(found, Loss::Unsealed)), [1, 0, 0, 0, 1]);
    }
}

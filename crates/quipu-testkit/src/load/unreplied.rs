//! Sends adds without replies (`CLIENT REPLY OFF`), and checks their results.
//!
//! Several connections add to a few counters, thousands of times between two replies. The next
//! reply acknowledges all earlier adds of its connection. Another connection reads. So a counter
//! must hold all acknowledged adds and every shown value, and no more than all adds sent.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Loss, read_info};
use crate::rng::SeededRng;
use quipu_protocol::resp::{RespConnection, Value, write_request};

/// Few counters, so that connections share them.
const COUNTERS: [&str; 3] = ["hot:1", "hot:2", "hot:3"];

/// Connections that add.
const ADDERS: usize = 3;

/// Most adds between two replies: enough that a kill cuts off a part of them.
const ADDS_MAX: usize = 3_000;

/// Timeout of a reply.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The account of the counters.
#[derive(Debug, Default)]
pub struct UnrepliedAccount {
    totals: [UnrepliedTotals; COUNTERS.len()],
    /// Sum of acknowledged adds.
    pub acked: i64,
    /// Sum of adds without acknowledgement.
    pub unknown: i64,
    /// Sum of both kinds that was missing at the judgement.
    pub missing: i64,
}

/// Totals of one counter since the last judgement: its value then, the adds sent, the adds
/// acknowledged, and the largest shown value.
#[derive(Debug, Default, Clone, Copy)]
struct UnrepliedTotals {
    base: i64,
    invoked: i64,
    acked: i64,
    shown: i64,
}

impl UnrepliedAccount {
    /// Adds and reads until the loaded program is gone, or `end` has returned.
    pub fn load<T>(&mut self, address: SocketAddr, rng: &SeededRng, end: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let adders: Vec<_> = (0..ADDERS)
                .map(|_| {
                    let (rng, stop) = (rng.fork(), &stop);
                    scope.spawn(move || send_adds(address, &rng, stop))
                })
                .collect();
            let reader = scope.spawn(|| read_values(address, &stop));
            let ended = end();
            stop.store(true, Ordering::Relaxed);
            for (totals, shown) in self.totals.iter_mut().zip(reader.join().expect("a client does not panic")) {
                totals.shown = totals.shown.max(shown);
            }
            for adder in adders {
                for (totals, (invoked, acked)) in
                    self.totals.iter_mut().zip(adder.join().expect("a client does not panic"))
                {
                    totals.invoked += invoked;
                    totals.acked += acked;
                }
            }
            ended
        })
    }

    /// Reads every counter and returns the violations. The next judgement starts from the found
    /// values.
    pub fn judge(&mut self, client: &mut RespConnection, loss: Loss) -> Vec<String> {
        let mut violations = Vec::new();
        for (counter, totals) in COUNTERS.iter().zip(&mut self.totals) {
            let value = client.call(&["GET", counter]).expect("a program that serves answers").number().unwrap_or(0);
            let least = match loss {
                Loss::Nothing => (totals.base + totals.acked).max(totals.shown),
                Loss::Unsealed => 0,
            };
            let most = totals.base + totals.invoked;
            if !(least..=most).contains(&value) {
                violations.push(format!("{counter} is {value}, and must be from {least} to {most}: {totals:?}"));
            }
            self.acked += totals.acked;
            self.unknown += totals.invoked - totals.acked;
            self.missing += most - value;
            *totals = UnrepliedTotals { base: value, ..UnrepliedTotals::default() };
        }
        violations
    }
}

/// Number of counters with split lanes at present.
pub fn count_split_counters(client: &mut RespConnection) -> u64 {
    let info = read_info(client, "quipu").unwrap_or_default();
    info.get("counters_split").and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Sends adds with an occasional reply until the program is gone; returns the sent and acknowledged
/// sums of each counter.
fn send_adds(address: SocketAddr, rng: &SeededRng, stop: &AtomicBool) -> [(i64, i64); COUNTERS.len()] {
    let mut totals = [(0, 0); COUNTERS.len()];
    let Ok(mut client) = RespConnection::connect(address, TIMEOUT) else { return totals };
    while !stop.load(Ordering::Relaxed) {
        let mut bytes = Vec::new();
        let mut push_command = |words: &[&str]| write_request(words, &mut bytes);
        push_command(&["CLIENT", "REPLY", "OFF"]);
        let mut counter = rng.below(COUNTERS.len());
        for _ in 0..1 + rng.below(ADDS_MAX) {
            if rng.chance(1) {
                counter = rng.below(COUNTERS.len());
            }
            let delta = rng.between(1..=9);
            push_command(&["INCRBY", COUNTERS[counter], &delta.to_string()]);
            totals[counter].0 += delta;
        }
        push_command(&["CLIENT", "REPLY", "ON"]);
        let replied = client.send_encoded(&bytes).and_then(|()| client.receive());
        if !matches!(replied, Ok(Value::Simple(_))) {
            break;
        }
        totals.iter_mut().for_each(|(invoked, acked)| *acked = *invoked);
    }
    totals
}

/// Reads until the program is gone, and checks that no value falls; returns the largest shown
/// values.
fn read_values(address: SocketAddr, stop: &AtomicBool) -> [i64; COUNTERS.len()] {
    let mut shown = [0; COUNTERS.len()];
    let Ok(mut client) = RespConnection::connect(address, TIMEOUT) else { return shown };
    'reading: while !stop.load(Ordering::Relaxed) {
        for (counter, shown) in COUNTERS.iter().zip(&mut shown) {
            let Ok(value) = client.call(&["GET", counter]) else { break 'reading };
            let value = value.number().unwrap_or(0);
            assert!(value >= *shown, "{counter} went back from {shown} to {value}");
            *shown = value;
        }
    }
    shown
}

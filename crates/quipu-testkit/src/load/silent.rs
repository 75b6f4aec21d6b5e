//! Adds without replies (`CLIENT REPLY OFF`), and the account of what must come of them.
//!
//! Several connections add to a few counters, thousands of times between two replies; the next reply acknowledges all that a connection has added before it. Another one
//! reads. So a counter must hold what was acknowledged, whatever it was shown as, and no more than was sent.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Loss, info};
use crate::dice::Dice;
use crate::resp::{Client, Value, encode};

/// Few counters, so that connections meet in them.
const COUNTERS: [&str; 3] = ["hot:1", "hot:2", "hot:3"];

/// Connections that add.
const ADDERS: usize = 3;

/// Adds between two replies, at most: so many that a kill cuts off a part of them.
const ADDS_MAX: usize = 3_000;

/// How long a reply may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What is known of the counters.
#[derive(Debug, Default)]
pub struct SilentAccount {
    told: [Told; COUNTERS.len()],
    /// What was acknowledged, what was not, and how much of both was not there when it was judged.
    pub acked: i64,
    /// See above.
    pub unknown: i64,
    /// See above.
    pub missing: i64,
}

/// What is known of one counter: its value when it was last judged, what was sent since, how much of that a reply has acknowledged, and the most that a reader was shown.
#[derive(Debug, Default, Clone, Copy)]
struct Told {
    base: i64,
    invoked: i64,
    acked: i64,
    shown: i64,
}

impl SilentAccount {
    /// Adds and reads until the program that is loaded is gone, or `end` has returned.
    pub fn load<T>(&mut self, address: SocketAddr, dice: &Dice, end: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let adders: Vec<_> = (0..ADDERS)
                .map(|_| {
                    let (dice, stop) = (dice.fork(), &stop);
                    scope.spawn(move || add(address, &dice, stop))
                })
                .collect();
            let reader = scope.spawn(|| read(address, &stop));
            let ended = end();
            stop.store(true, Ordering::Relaxed);
            for (told, shown) in self.told.iter_mut().zip(reader.join().expect("a client does not panic")) {
                told.shown = told.shown.max(shown);
            }
            for adder in adders {
                for (told, (invoked, acked)) in self.told.iter_mut().zip(adder.join().expect("a client does not panic"))
                {
                    told.invoked += invoked;
                    told.acked += acked;
                }
            }
            ended
        })
    }

    /// Reads every counter; what is wrong with them. From here on they have the values that were found.
    pub fn judge(&mut self, client: &mut Client, loss: Loss) -> Vec<String> {
        let mut violations = Vec::new();
        for (counter, told) in COUNTERS.iter().zip(&mut self.told) {
            let value = client.call(&["GET", counter]).expect("a program that serves answers").number().unwrap_or(0);
            let least = match loss {
                Loss::Nothing => (told.base + told.acked).max(told.shown),
                Loss::Unsealed => 0,
            };
            let most = told.base + told.invoked;
            if !(least..=most).contains(&value) {
                violations.push(format!("{counter} is {value}, and must be from {least} to {most}: {told:?}"));
            }
            self.acked += told.acked;
            self.unknown += told.invoked - told.acked;
            self.missing += most - value;
            *told = Told { base: value, ..Told::default() };
        }
        violations
    }
}

/// How many counters are added to in lanes at the moment.
pub fn counters_split(client: &mut Client) -> u64 {
    let info = info(client, "quipu").unwrap_or_default();
    info.get("counters_split").and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Adds, asks for a reply now and then, until the program is gone; what was added to each counter, and how much of that was acknowledged.
fn add(address: SocketAddr, dice: &Dice, stop: &AtomicBool) -> [(i64, i64); COUNTERS.len()] {
    let mut told = [(0, 0); COUNTERS.len()];
    let Ok(mut client) = Client::connect(address, TIMEOUT) else { return told };
    while !stop.load(Ordering::Relaxed) {
        let mut bytes = Vec::new();
        let mut say =
            |words: &[&str]| encode(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>(), &mut bytes);
        say(&["CLIENT", "REPLY", "OFF"]);
        let mut counter = dice.below(COUNTERS.len());
        for _ in 0..1 + dice.below(ADDS_MAX) {
            if dice.chance(1) {
                counter = dice.below(COUNTERS.len());
            }
            let delta = dice.between(1..=9);
            say(&["INCRBY", COUNTERS[counter], &delta.to_string()]);
            told[counter].0 += delta;
        }
        say(&["CLIENT", "REPLY", "ON"]);
        let replied = client.send_encoded(&bytes).and_then(|()| client.receive());
        if !matches!(replied, Ok(Value::Simple(_))) {
            break;
        }
        told.iter_mut().for_each(|(invoked, acked)| *acked = *invoked);
    }
    told
}

/// Reads until the program is gone, and sees that nothing is taken back; the most that was shown.
fn read(address: SocketAddr, stop: &AtomicBool) -> [i64; COUNTERS.len()] {
    let mut shown = [0; COUNTERS.len()];
    let Ok(mut client) = Client::connect(address, TIMEOUT) else { return shown };
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

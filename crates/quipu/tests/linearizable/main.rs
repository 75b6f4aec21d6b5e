//! Linearizability of the real program: several clients over RESP and HTTP, kill -9 and restarts,
//! and a judge.
//!
//! The judge accepts a history only if some order of its operations explains every reply.
//!
//! A history has two or three runs of the program on one data directory. Half of them delay the
//! journal's steps. So a kill meets changes that are applied and not yet written. A read that
//! returned such a change returned one that the next run does not have.
//!
//! | variable | |
//! |---|---|
//! | `QUIPU_HISTORIES` | number of histories |
//! | `QUIPU_HISTORY_FROM` | the first seed; the others follow it |
//!
//! A seed decides requests, delays and ends. It does not decide the interleaving of threads: the
//! same seed is the same kind of run.

mod client;
mod protocols;
mod request;
mod trial;

use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use self::trial::Trial;

/// Histories unless `QUIPU_HISTORIES` says otherwise: a few seconds.
const HISTORIES_DEFAULT: u64 = 24;

/// Histories at once: programs that wait for disks and delays leave the processor to one another.
const HISTORIES_AT_ONCE: usize = 2;

/// Operations of a history, at least, on average: with fewer there is little to judge.
const OPERATIONS_MIN: usize = 200;

/// One of so many histories may be too much for the judge: it is searched in vain, and is no proof
/// of anything.
const HISTORIES_PER_UNDECIDED: u64 = 40;

/// From so many histories on, everything must have occurred in them.
const HISTORIES_OF_EVERYTHING: u64 = 50;

/// What histories consisted of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub operations: usize,
    pub unknown: usize,
    pub refused: usize,
    pub transactions: usize,
    pub silent: usize,
    pub over_http: usize,
    /// Retries under a token of operations that were answered, and of those that were not.
    pub retried_answered: usize,
    pub retried_unknown: usize,
    /// Exchanges by WATCH that took place, and that another client prevented.
    pub exchanged: usize,
    pub prevented: usize,
    pub kills: usize,
    pub stops: usize,
    /// Points that the judge's search visited.
    pub points: usize,
    /// Searches that ended before they knew.
    pub undecided: usize,
}

impl Figures {
    /// Whether all of it has occurred.
    fn are_complete(&self) -> bool {
        let occurred = [
            self.unknown,
            self.transactions,
            self.silent,
            self.over_http,
            self.retried_answered,
            self.retried_unknown,
            self.exchanged,
            self.prevented,
            self.stops,
        ];
        occurred.iter().all(|&count| count > 0)
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, more: Figures) {
        self.operations += more.operations;
        self.unknown += more.unknown;
        self.refused += more.refused;
        self.transactions += more.transactions;
        self.silent += more.silent;
        self.over_http += more.over_http;
        self.retried_answered += more.retried_answered;
        self.retried_unknown += more.retried_unknown;
        self.exchanged += more.exchanged;
        self.prevented += more.prevented;
        self.kills += more.kills;
        self.stops += more.stops;
        self.points += more.points;
        self.undecided += more.undecided;
    }
}

/// What all threads have found.
#[derive(Debug, Default)]
struct Findings {
    figures: Figures,
    violation: Option<String>,
}

#[test]
fn every_history_of_the_program_is_linearizable() {
    let histories = number_from("QUIPU_HISTORIES").unwrap_or(HISTORIES_DEFAULT);
    let from = number_from("QUIPU_HISTORY_FROM").unwrap_or(1);
    let (next, findings) = (AtomicU64::new(0), Mutex::new(Findings::default()));
    thread::scope(|scope| {
        for _ in 0..HISTORIES_AT_ONCE {
            scope.spawn(|| {
                loop {
                    let history = next.fetch_add(1, Ordering::Relaxed);
                    if history >= histories || findings.lock().expect("no history panics").violation.is_some() {
                        return;
                    }
                    let outcome = Trial::new(from + history).run();
                    let mut findings = findings.lock().expect("no history panics");
                    match outcome {
                        Ok(figures) => findings.figures += figures,
                        Err(violation) => findings.violation = Some(violation),
                    }
                }
            });
        }
    });
    let Findings { figures, violation } = findings.into_inner().expect("no history panics");
    if let Some(violation) = violation {
        panic!("{violation}");
    }
    println!(
        "proof: linearizability: histories {histories}, seeds from {from}, kills {}, clean stops {}, operations {}: unknown {}, \
         transactions {}, without reply {}, over HTTP {}, retried after an answer {}, without one {}, exchanged {}, prevented {}, \
         refused {}; search points {}, undecided {}, violations 0",
        figures.kills,
        figures.stops,
        figures.operations,
        figures.unknown,
        figures.transactions,
        figures.silent,
        figures.over_http,
        figures.retried_answered,
        figures.retried_unknown,
        figures.exchanged,
        figures.prevented,
        figures.refused,
        figures.points,
        figures.undecided,
    );
    let least = usize::try_from(histories).expect("histories are few");
    assert!(figures.operations >= OPERATIONS_MIN * least && figures.kills >= 2 * least, "too little: {figures:?}");
    let undecided_max = usize::try_from(histories.div_ceil(HISTORIES_PER_UNDECIDED)).expect("histories are few");
    assert!(figures.undecided <= undecided_max, "too many searches ended in vain: {figures:?}");
    assert!(histories < HISTORIES_OF_EVERYTHING || figures.are_complete(), "not everything occurred: {figures:?}");
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")))
}

//! Runs seeds: one, or many on all cores; and shrinks violations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::log::EventLog;
use crate::plan::{ACTS, Fault, Plan};
use crate::world::{RunTally, Simulation};

/// A broken promise of a seed.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// The broken promise.
    pub what: String,
    /// Smallest run that breaks it: number of acts, and the faults left out.
    pub shrunk: (usize, Vec<Fault>),
    /// Last events of the smallest run that breaks it.
    pub log: Vec<String>,
}

/// Runs a plan; a panic counts as a violation.
pub fn run(plan: Plan, log: &EventLog) -> Result<RunTally, String> {
    let run = || {
        let mut world = Simulation::new(plan, log.clone());
        world.run().map(|()| world.tally.clone())
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("it panicked: {}", text.unwrap_or_default()))
    })
}

/// Runs a seed. A violation is shrunk, and the smallest run repeated for its log.
pub fn run_seed(seed: u64) -> Result<RunTally, Box<Violation>> {
    run(Plan::new(seed), &EventLog::disabled()).map_err(|what| Box::new(shrink(seed, what)))
}

/// Runs seeds on all cores; returns the sum of their tallies, or the first found violation by seed
/// order.
pub fn run_seeds(seeds: impl IntoIterator<Item = u64>) -> Result<RunTally, Box<Violation>> {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let (next, broken) = (AtomicU64::new(0), AtomicBool::new(false));
    let (total, violation) = (Mutex::new(RunTally::default()), Mutex::new(None::<Box<Violation>>));
    let work = || {
        let mut own = RunTally::default();
        while !broken.load(Ordering::Relaxed) {
            let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) else { break };
            match run_seed(*seed) {
                Ok(tally) => own.add(&tally),
                Err(found) => {
                    broken.store(true, Ordering::Relaxed);
                    let mut violation = violation.lock().unwrap_or_else(|poison| poison.into_inner());
                    let earlier = violation.take().filter(|known| known.seed < found.seed);
                    *violation = Some(earlier.unwrap_or(found));
                }
            }
        }
        total.lock().unwrap_or_else(|poison| poison.into_inner()).add(&own);
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    match violation.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
        Some(violation) => Err(violation),
        None => Ok(total.into_inner().unwrap_or_else(|poison| poison.into_inner())),
    }
}

/// Leaves out one kind of fault after another, then acts, while the same violation remains.
fn shrink(seed: u64, what: String) -> Violation {
    let (mut acts, mut without, mut what) = (ACTS, Vec::new(), what);
    let kind = without_numbers(&what);
    let try_one = |acts: usize, without: &[Fault]| {
        run(Plan::limited(seed, acts, without), &EventLog::disabled())
            .err()
            .filter(|still| without_numbers(still) == kind)
    };
    for fault in Fault::ALL {
        without.push(fault);
        match try_one(acts, &without) {
            Some(still) => what = still,
            None => drop(without.pop()),
        }
    }
    while acts > 10 {
        let fewer = acts * 3 / 4;
        let Some(still) = try_one(fewer, &without) else { break };
        (acts, what) = (fewer, still);
    }
    let log = EventLog::bounded();
    let again = run(Plan::limited(seed, acts, &without), &log).err();
    let what = again.unwrap_or_else(|| format!("{what} (and not when it was run again: it is not deterministic)"));
    Violation { seed, what, shrunk: (acts, without), log: log.lines() }
}

/// A violation without its numbers, to compare kinds of violations.
fn without_numbers(what: &str) -> String {
    what.chars().filter(|letter| !letter.is_ascii_digit() && *letter != '-').take(80).collect()
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (acts, without) = &self.shrunk;
        self.log.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        writeln!(f, "it takes {acts} acts, and none of these faults: {without:?}")?;
        writeln!(f, "again: QUIPU_SIM_FROM={}", self.seed)?;
        write!(f, "once it is understood, add the seed to seeds.txt")
    }
}

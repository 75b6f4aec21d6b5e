//! Runs one seed and prints every event:
//! `cargo run -p quipu-sim --example seed -- SEED [ACTS] [WITHOUT …]`. The last arguments are kinds
//! of faults to leave out, as a violation names them.

use quipu_sim::{ACTS, EventLog, Fault, Plan, run};

fn main() {
    let mut words = std::env::args().skip(1);
    let seed = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let acts = words.next().and_then(|word| word.parse().ok()).unwrap_or(ACTS);
    let named: Vec<String> = words.flat_map(|word| word.split(',').map(str::to_owned).collect::<Vec<_>>()).collect();
    let without: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| named.contains(&format!("{fault:?}"))).collect();
    let plan = Plan::limited(seed, acts, &without);
    println!("{plan:#?}");
    let log = EventLog::unbounded();
    let end = run(plan, &log);
    log.lines().iter().for_each(|line| println!("{line}"));
    match end {
        Ok(tally) => println!("seed {seed}: {tally}"),
        Err(what) => println!("seed {seed}: {what}"),
    }
}

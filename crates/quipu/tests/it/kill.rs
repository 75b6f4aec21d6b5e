//! Kill -9 of the real program under load, again and again on the same directory.
//!
//! Every acknowledged operation is there, once. No number that a client has seen is taken back.
//!
//! Most counters do not fit in memory, changes are sealed ten times a second, and the journal is
//! small. So a kill meets seals, cuts, evictions, loads and compaction at any point of theirs.
//!
//! `QUIPU_KILLS` sets the number of kills in each mode, `QUIPU_SEED` the seed. A seed decides the
//! load and the time of each kill, not the interleaving of threads. It finds the same kind of run
//! again, not the same run.

mod once;
mod silent;

use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::SeededRng;
use quipu_testkit::judge::Violation;
use quipu_testkit::load::{BackgroundStats, CrowdAccount, CrowdNames, LoadAccount, LoadTally, Loss, scan_names};
use quipu_testkit::program::Program;
use tempfile::TempDir;

use crate::life::{connect, judge, launch_tight, load_all, number_from, seed};

/// So many kills per mode have everything in the mix.
const KILLS_OF_EVERYTHING: usize = 30;

/// Durability modes of this suite.
const MODES: usize = 3;

/// Kills of each mode unless `QUIPU_KILLS` says otherwise.
const KILLS_DEFAULT: usize = 12;

/// Number of program runs per directory: enough to rotate and recycle its segments, few enough that
/// fresh directories are frequent.
const LIVES_PER_DIRECTORY: usize = 40;

/// The crowd is read as a whole after so many lives: reading it costs more than a life.
const LIVES_PER_JUDGEMENT: usize = 6;

/// Counters of the crowd: some four times what the memory limit has room for.
const CROWD: usize = 300_000;

/// How many acks a life has on average, at least: fewer, and the suite would prove little.
const ACKS_PER_LIFE_MIN: usize = 20;

/// How many kills pass between two lines of progress.
const PROGRESS_EVERY: usize = 50;

#[test]
fn durable_loses_and_takes_back_nothing_acknowledged_or_shown() {
    run(Durability::Durable, Loss::Nothing);
}

#[test]
fn relaxed_loses_and_takes_back_nothing_while_the_machine_stays_up() {
    run(Durability::Relaxed, Loss::Nothing);
}

#[test]
fn memory_comes_back_to_a_value_it_could_have_had() {
    run(Durability::Memory, Loss::Unsealed);
}

fn run(mode: Durability, loss: Loss) {
    let kills_asked = number_from("QUIPU_KILLS", KILLS_DEFAULT);
    let seed = seed();
    let rng = SeededRng::new(seed);
    let mut total = Total { mode, seed, ..Total::default() };
    while total.kills < kills_asked {
        let lives = LIVES_PER_DIRECTORY.min(kills_asked - total.kills);
        run_directory(mode, loss, lives, &rng, &mut total);
        total.directories += 1;
    }
    print_line(&format!("proof: {total}, violations 0"));
    assert!(total.tally.acked >= ACKS_PER_LIFE_MIN * total.lives, "too little load to prove anything: {total}");
    check_all_modes(&total);
    // In a few kills a merge may not have come round.
    assert!(
        kills_asked < KILLS_OF_EVERYTHING || total.figures.are_complete(),
        "not everything was in the mix: {total}"
    );
}

/// Figures of the modes that are done, in this process.
static MODES_DONE: Mutex<ModesDone> =
    Mutex::new(ModesDone { modes: 0, figures: BackgroundStats { seals: 0, evicted: 0, loads: 0, compactions: 0 } });

struct ModesDone {
    modes: usize,
    figures: BackgroundStats,
}

/// A few kills a mode must have met everything in all modes together.
fn check_all_modes(total: &Total) {
    let mut done = MODES_DONE.lock().unwrap_or_else(PoisonError::into_inner);
    done.modes += 1;
    done.figures += total.figures;
    if done.modes == MODES && MODES * total.kills >= KILLS_OF_EVERYTHING {
        assert!(done.figures.are_complete(), "in all modes together not everything was met: {}", done.figures);
        print_line(&format!("proof: kill, all modes: {}", done.figures));
    }
}

/// Lives on one directory, each judged by the start after it.
fn run_directory(mode: Durability, loss: Loss, kills: usize, rng: &SeededRng, total: &mut Total) {
    let data = TempDir::new().expect("a temporary directory can be made");
    let launch = launch_tight(data.path(), mode);
    let mut account = LoadAccount::new();
    let mut crowd = CrowdAccount::new(CrowdNames { prefix: "crowd:", count: CROWD, bytes: 20..=60 });
    let program = launch.start().expect("it starts on an empty directory");
    crowd.fill(&mut connect(&program)).expect("a program that serves takes new counters");
    // A clean stop, so that what is filled in is at rest in every mode.
    let (status, said) = program.terminate().expect("it can be signalled");
    assert!(status.success(), "{status}: {said}");
    let until = total.kills + kills;
    let mut stderr_text = String::new(); // what the program said in the life before
    let mut unjudged = LIVES_PER_JUDGEMENT; // so that what was filled in is judged first
    loop {
        // Some starts are killed too, at any moment of recovery; the next one must not mind.
        while total.kills < until && rng.chance(15) {
            let length = Duration::from_micros(rng.below(20_000) as u64);
            launch.start_and_kill(length).expect("the program can be run");
            total.count_kill();
        }
        let program = match launch.start() {
            Ok(program) => program,
            Err(error) => fail(total, data, &[], &format!("{error}\nin the life before it said:\n{stderr_text}")),
        };
        let mut violations = judge(&program, &mut account, loss);
        let last = total.kills >= until;
        if last || unjudged >= LIVES_PER_JUDGEMENT {
            unjudged = 0;
            violations.extend(judge_crowd(&program, &mut crowd, &account.names(), loss, last));
            total.judgements += 1;
        }
        if !violations.is_empty() {
            fail(total, data, &violations, &stderr_text);
        }
        if last {
            break;
        }
        // Most runs are short, so that there are many kills. Some are long enough for compaction,
        // which begins after half a second.
        let length = if rng.chance(70) { rng.between(20..=200) } else { rng.between(600..=1_500) };
        let length = Duration::from_millis(length.unsigned_abs());
        let (stderr, loaded) = load_all(program, length, rng, Some(crowd.names()), Program::kill9);
        stderr_text = stderr;
        if !loaded.wrong.is_empty() {
            fail(total, data, &[], &format!("answers that cannot be: {:#?}\n{stderr_text}", loaded.wrong));
        }
        loaded.logs.into_iter().for_each(|log| account.add_log(log));
        loaded.crowd.into_iter().for_each(|log| crowd.add_log(log));
        total.figures += loaded.figures;
        total.lives += 1;
        unjudged += 1;
        total.count_kill();
    }
    total.tally += account.tally();
    total.split_pairs += account.unequal_pairs();
    total.tally += crowd.tally();
}

/// Reads the whole crowd; and, since every name is known, counts what exists, and lists it if asked
/// to.
fn judge_crowd(program: &Program, crowd: &mut CrowdAccount, few: &[String], loss: Loss, lists: bool) -> Vec<Violation> {
    let mut client = connect(program);
    let wrong = |what: String| Violation { key: "all names".to_owned(), what, tail: Vec::new() };
    let (existing, mut violations) = match crowd.judge(&mut client, loss) {
        Ok(judged) => judged,
        Err(error) => return vec![wrong(format!("the crowd could not be read: {error}"))],
    };
    let words: Vec<&str> = std::iter::once("EXISTS").chain(few.iter().map(String::as_str)).collect();
    let existing = existing as i64 + client.call(&words).expect("it answers").number().unwrap_or(0);
    let count = client.call(&["DBSIZE"]).expect("it answers").number();
    if count != Some(existing) {
        violations.push(wrong(format!("{existing} exist, DBSIZE is {count:?}")));
    }
    if lists {
        let seen = scan_names(&mut client, None).map(|names| names.len() as i64);
        if !seen.as_ref().is_ok_and(|seen| *seen == existing) {
            violations.push(wrong(format!("{existing} exist, SCAN shows {seen:?}")));
        }
    }
    violations
}

/// Ends the test with all that helps to find out why; the directory stays.
fn fail(total: &Total, data: TempDir, violations: &[Violation], stderr_text: &str) -> ! {
    let kept = data.keep();
    let messages: Vec<String> = violations.iter().map(Violation::to_string).collect();
    panic!(
        "{total}, violations {}\ndirectory kept: {}\n{}\n{stderr_text}",
        messages.len(),
        kept.display(),
        messages.join("\n")
    );
}

/// What was done so far.
#[derive(Debug, Default)]
struct Total {
    mode: Durability,
    seed: u64,
    kills: usize,
    lives: usize,
    judgements: usize,
    directories: usize,
    tally: LoadTally, // of finished directories
    figures: BackgroundStats,
    split_pairs: usize,
}

impl Total {
    fn count_kill(&mut self) {
        self.kills += 1;
        if self.kills.is_multiple_of(PROGRESS_EVERY) {
            print_line(&format!("{self} …"));
        }
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Total { mode, seed, kills, lives, judgements, directories, figures, .. } = self;
        let LoadTally { acked, unknown, refused } = self.tally;
        write!(
            f,
            "kill {mode}: kills {kills} ({lives} under load, {directories} directories done), acked {acked}, unknown {unknown}, \
             refused {refused}, {CROWD} counters read {judgements} times, {figures}, seed {seed}"
        )?;
        match self.split_pairs {
            0 => Ok(()),
            // Only where acknowledged operations may be lost at all.
            split => write!(f, ", EXECs of which a seal had a part only {split}"),
        }
    }
}

/// Tells it also when the test harness keeps what tests print to itself: the figures are the point
/// of this suite.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

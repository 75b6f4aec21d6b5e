//! One run of the program under load.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use quipu_model::Durability;
use quipu_protocol::resp::RespConnection;
use quipu_testkit::SeededRng;
use quipu_testkit::judge::Violation;
use quipu_testkit::load::{BackgroundStats, CLIENTS, ClientLog, CrowdLog, CrowdNames, LoadAccount, LoadDriver, Loss};
use quipu_testkit::program::{Launch, Program};

/// How long a reply may take when the program is asked what it holds.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Clients that add to the crowd.
const CROWD_CLIENTS: usize = 2;

/// The program under test on this directory.
pub fn launch(data: &Path, durability: Durability) -> Launch {
    Launch::new(env!("CARGO_BIN_EXE_quipu"), data, durability)
}

/// The same with little of everything, so that a life of a second seals, cuts, evicts, loads and
/// compacts many times.
pub fn launch_tight(data: &Path, durability: Durability) -> Launch {
    let mut launch = launch(data, durability);
    let words = ["--seal-every", "100ms", "--max-memory", "16MB", "--journal-bytes-max", "1MB"];
    launch.arguments = words.map(Into::into).to_vec();
    launch
}

/// For how long something is waited for.
#[allow(clippy::disallowed_methods, reason = "real programs are waited for")]
pub fn now() -> Instant {
    Instant::now()
}

/// A connection to a program that serves.
pub fn connect(program: &Program) -> RespConnection {
    RespConnection::connect(program.address(), ANSWER_TIMEOUT).expect("a program that serves accepts")
}

/// Judges what the program holds after the life before.
pub fn judge(program: &Program, account: &mut LoadAccount, loss: Loss) -> Vec<Violation> {
    account.judge(&mut connect(program), loss).expect("a program that serves answers")
}

/// Loads the program from all clients, does something to it after a while, and returns once every
/// client has ended.
pub fn load<T>(
    program: Program,
    length: Duration,
    rng: &SeededRng,
    end: impl FnOnce(Program) -> T,
) -> (T, Vec<ClientLog>) {
    let (outcome, loaded) = load_all(program, length, rng, None, end);
    (outcome, loaded.logs)
}

/// What was asked in a life, and what the program did beside answering.
#[derive(Debug, Default)]
pub struct LoadReport {
    pub logs: Vec<ClientLog>,
    pub crowd: Vec<CrowdLog>,
    /// What those who only looked were answered that cannot be.
    pub wrong: Vec<String>,
    pub figures: BackgroundStats,
}

/// The same, with a crowd of counters beside the few, and someone who looks at it.
pub fn load_all<T>(
    program: Program,
    length: Duration,
    rng: &SeededRng,
    names: Option<&CrowdNames>,
    end: impl FnOnce(Program) -> T,
) -> (T, LoadReport) {
    let (driver, address) = (LoadDriver::new(), program.address());
    let mut observer = connect(&program);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (driver, rng) = (driver.clone(), rng.fork());
                scope.spawn(move || driver.run(address, client, &rng))
            })
            .collect();
        let adders: Vec<_> = (0..if names.is_some() { CROWD_CLIENTS } else { 0 })
            .map(|_| {
                let (driver, rng) = (driver.clone(), rng.fork());
                scope.spawn(move || driver.run_crowd(address, names.expect("there is a crowd"), &rng))
            })
            .collect();
        let looker = names.map(|names| {
            let (driver, rng) = (driver.clone(), rng.fork());
            scope.spawn(move || driver.read_crowd(address, names, &rng))
        });
        // Not to wait for anything: how long the program is left alone is what the dice decide.
        thread::sleep(length);
        let figures = BackgroundStats::fetch(&mut observer).expect("a program that serves tells of itself");
        let outcome = end(program);
        driver.stop();
        let loaded = LoadReport {
            logs: clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect(),
            crowd: adders.into_iter().map(|client| client.join().expect("a client does not panic")).collect(),
            wrong: looker.map(|client| client.join().expect("a client does not panic")).unwrap_or_default(),
            figures,
        };
        (outcome, loaded)
    })
}

/// A seed to run by: `QUIPU_SEED` if it is set, else one that differs from run to run.
pub fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("QUIPU_SEED").ok().map(|text| text.parse().expect("QUIPU_SEED is a number"));
    given.unwrap_or_else(|| RandomState::new().hash_one("seed"))
}

/// A number that a variable gives, or this one.
pub fn number_from(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")))
}

//! One life of the program under load.

use std::path::Path;
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::Dice;
use quipu_testkit::judge::Violation;
use quipu_testkit::load::{Account, CLIENTS, Driver, Log, Loss};
use quipu_testkit::program::{Launch, Program};
use quipu_testkit::resp::Client;

/// How long a reply may take when the program is asked what it holds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The program under test on this directory.
pub fn launch(data: &Path, durability: Durability) -> Launch {
    Launch::new(env!("CARGO_BIN_EXE_quipu"), data, durability)
}

/// Judges what the program holds after the life before.
pub fn judge(program: &Program, account: &mut Account, loss: Loss) -> Vec<Violation> {
    let mut client = Client::connect(program.address(), ANSWER_TIMEOUT).expect("a program that serves accepts");
    account.judge(&mut client, loss).expect("a program that serves answers")
}

/// Loads the program from all clients, does something to it after a while, and returns once every client has ended.
pub fn load<T>(program: Program, length: Duration, dice: &Dice, end: impl FnOnce(Program) -> T) -> (T, Vec<Log>) {
    let (driver, address) = (Driver::new(), program.address());
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (driver, dice) = (driver.clone(), dice.fork());
                scope.spawn(move || driver.run(address, client, &dice))
            })
            .collect();
        // Not to wait for anything: how long the program is left alone is what the dice decide.
        thread::sleep(length);
        let outcome = end(program);
        driver.stop();
        let logs = clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect();
        (outcome, logs)
    })
}

/// A seed to run by: `QUIPU_SEED` if it is set, else one that differs from run to run.
pub fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("QUIPU_SEED").ok().map(|text| text.parse().expect("QUIPU_SEED is a number"));
    given.unwrap_or_else(|| RandomState::new().hash_one("seed"))
}

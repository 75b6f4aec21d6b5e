//! Opens engines with small options on simulated machines.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quipu_engine::{Engine, Environment, OpenError, OpenLedger, Options, Seal, SealStep};
use quipu_model::{Durability, Ledger, LedgerError, Namespace};
use quipu_testkit::CrashDisk;
pub use quipu_testkit::machine::{BEGIN, DATA};
use quipu_testkit::machine::{SimMachine, open_ledger};

/// How long tokens are remembered.
pub const WINDOW: Duration = Duration::from_secs(600);

/// A machine for an engine.
pub struct World(SimMachine);

impl Deref for World {
    type Target = SimMachine;

    fn deref(&self) -> &SimMachine {
        &self.0
    }
}

impl World {
    pub fn new(disk: CrashDisk, seed: u64) -> World {
        World(SimMachine::new(disk, seed))
    }

    pub fn environment(&self) -> Environment {
        Environment {
            clock: self.clock.clone(),
            rng: self.rng.clone(),
            vfs: Arc::new(self.disk.clone()),
            open_ledger: ledger_on(self.disk.clone()),
            store: None,
            on_failure: self.failure_callback(),
        }
    }

    pub fn open(&self, options: Options) -> Result<Engine, OpenError> {
        Engine::open_with(options, self.environment())
    }

    /// The wall's time.
    pub fn clock_wall(&self) -> u64 {
        quipu_model::Clock::wall(&*self.clock).0
    }
}

/// A ledger on a simulated disk.
pub fn ledger_on(disk: CrashDisk) -> OpenLedger {
    Arc::new(move |options| open_ledger(&disk, &options.data))
}

/// Opens the ledger of a directory to look at it, as `inspect` wants it.
pub fn ledger_opener(disk: &CrashDisk, dir: &Path) -> impl FnOnce() -> Result<Arc<dyn Ledger>, LedgerError> {
    let disk = disk.clone();
    let dir = dir.to_owned();
    move || open_ledger(&disk, &dir)
}

/// Small everything, so that a short run rotates and cuts; `r:` is relaxed, `m:` in memory, all
/// else durable.
pub fn small_options(segment_bytes: u64) -> Options {
    Options {
        namespaces: vec![
            (Box::from(*b"r"), Namespace::with_durability(Durability::Relaxed)),
            (Box::from(*b"m"), Namespace::with_durability(Durability::Memory)),
        ],
        segment_bytes,
        ahead_bytes: Some(2 * segment_bytes),
        journal_bytes_max: 6 * segment_bytes,
        table_shards: 4,
        reserve_bytes: 0,
        lanes: 2,
        split_after: 2,
        token_window: WINDOW,
        ..Options::new(DATA)
    }
}

pub fn data_path(file: &str) -> std::path::PathBuf {
    Path::new(DATA).join(file)
}

/// Fails with the engine's own words.
pub fn refusal(result: Result<Engine, OpenError>) -> String {
    match result {
        Ok(_) => panic!("it opened"),
        Err(error) => error.to_string(),
    }
}

/// Everything into the ledger, and the journal not cut yet.
pub fn seal_without_cut(engine: &Engine) -> Seal {
    let steps = engine.steps();
    let mut seal = steps.begin_seal();
    loop {
        match steps.step_seal(&mut seal).unwrap() {
            SealStep::More => {}
            SealStep::WaitFor(_) => {
                steps.write_filled();
                steps.sync();
            }
            SealStep::Done => return seal,
        }
    }
}

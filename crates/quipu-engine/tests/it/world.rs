//! Provides a small world for an engine: a disk that can crash, a clock that can jump, a seeded
//! rng.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use quipu_engine::{Engine, Environment, OpenError, OpenLedger, Options, Seal, SealStep};
use quipu_model::{Durability, Ledger, LedgerError, Millis, Namespace};
use quipu_testkit::{CrashDisk, FileLedger, SeededRng, SimClock};

/// Where the data is, in every world.
pub const DATA: &str = "/data";

/// The time at which every world begins: some day in 2026.
pub const BEGIN: Millis = Millis(1_780_000_000_000);

/// Disk, clock and dice.
pub struct World {
    pub disk: CrashDisk,
    pub clock: Arc<SimClock>,
    pub rng: Arc<SeededRng>,
    /// Why the journal failed, if it did.
    pub failure: Arc<Mutex<Option<String>>>,
    failed: Arc<AtomicBool>,
}

impl World {
    pub fn new(disk: CrashDisk, seed: u64) -> World {
        World {
            disk,
            clock: Arc::new(SimClock::new(BEGIN)),
            rng: Arc::new(SeededRng::new(seed)),
            failure: Arc::default(),
            failed: Arc::default(),
        }
    }

    pub fn environment(&self) -> Environment {
        let (failure, failed) = (self.failure.clone(), self.failed.clone());
        Environment {
            clock: self.clock.clone(),
            rng: self.rng.clone(),
            vfs: Arc::new(self.disk.clone()),
            open_ledger: ledger_on(self.disk.clone()),
            store: None,
            on_failure: Arc::new(move |reason| {
                *failure.lock().unwrap() = Some(reason.to_owned());
                failed.store(true, Ordering::SeqCst);
            }),
        }
    }

    pub fn open(&self, options: Options) -> Result<Engine, OpenError> {
        Engine::open_with(options, self.environment())
    }

    /// The wall's time.
    pub fn clock_wall(&self) -> u64 {
        quipu_model::Clock::wall(&*self.clock).0
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }
}

/// A ledger on a simulated disk.
pub fn ledger_on(disk: CrashDisk) -> OpenLedger {
    Arc::new(move |options| Ok(Arc::new(FileLedger::open(Arc::new(disk.clone()), &options.data)?)))
}

/// Opens the ledger of a directory to look at it, as `inspect` wants it.
pub fn ledger_opener(disk: &CrashDisk, dir: &Path) -> impl FnOnce() -> Result<Arc<dyn Ledger>, LedgerError> {
    let (disk, dir) = (Arc::new(disk.clone()), dir.to_owned());
    move || Ok(Arc::new(FileLedger::open(disk, &dir)?))
}

/// Small everything, so that a short run rotates and cuts; `r:` is relaxed, `m:` in memory, all else durable.
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
        token_window: crate::once::WINDOW,
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

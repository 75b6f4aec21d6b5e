//! Simulates a machine: a disk that can crash, a clock that can jump, seeded random numbers, and a
//! note of the engine's failure.
//!
//! Not here: the engine, which this crate does not know. `quipu-sim` and the engine's own tests
//! open it on these parts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quipu_model::{Ledger, LedgerError, Millis};

use crate::{CrashDisk, FileLedger, SeededRng, SimClock};

/// Data directory of every simulated machine.
pub const DATA: &str = "/data";

/// Time at which simulations begin: some day in 2026.
pub const BEGIN: Millis = Millis(1_780_000_000_000);

/// A machine without an engine.
pub struct SimMachine {
    /// Its disk.
    pub disk: CrashDisk,
    /// Its clock.
    pub clock: Arc<SimClock>,
    /// Its random numbers.
    pub rng: Arc<SeededRng>,
    failed: Arc<AtomicBool>,
}

impl SimMachine {
    /// Creates a machine at [`BEGIN`] with a seed of its own.
    pub fn new(disk: CrashDisk, seed: u64) -> SimMachine {
        SimMachine::with_clock(disk, SimClock::new(BEGIN), SeededRng::new(seed))
    }

    /// Creates a machine with this clock and these random numbers.
    pub fn with_clock(disk: CrashDisk, clock: SimClock, rng: SeededRng) -> SimMachine {
        SimMachine { disk, clock: Arc::new(clock), rng: Arc::new(rng), failed: Arc::default() }
    }

    /// Returns true if its engine has reported a failure.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// A callback of the engine that notes its failure.
    pub fn failure_callback(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        let failed = self.failed.clone();
        Arc::new(move |_| failed.store(true, Ordering::SeqCst))
    }
}

/// Opens the ledger in a directory of a simulated disk.
pub fn open_ledger(disk: &CrashDisk, dir: &Path) -> Result<Arc<dyn Ledger>, LedgerError> {
    Ok(Arc::new(FileLedger::open(Arc::new(disk.clone()), dir)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_begins_sound_and_notes_a_failure() {
        let machine = SimMachine::new(CrashDisk::new(), 7);
        assert_eq!(quipu_model::Clock::wall(&*machine.clock), BEGIN);
        assert_eq!(machine.rng.next_u64(), SeededRng::new(7).next_u64());
        assert!(!machine.has_failed());
        machine.failure_callback()("the disk is gone");
        assert!(machine.has_failed());
    }
}

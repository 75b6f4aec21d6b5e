//! Reads all that a data directory holds, of a node that is stopped or runs, and changes nothing.
//!
//! Invariant: nothing is written and no lock is kept.

use std::path::Path;

use anyhow::{anyhow, bail};
use quipu_engine::OpenError;

use crate::inspect::holder;

/// So often a directory in use is read again if it went on while it was read. Reading takes longer than what it goes on by; a directory that looks
/// damaged each time is.
const ATTEMPTS_MAX: usize = 10;

/// Reads a directory, and again if that found something amiss because the node went on meanwhile. `is_suspect`: what was found is not as it should be.
pub fn read<T>(
    action: &str,
    data: &Path,
    mut read: impl FnMut() -> Result<Option<T>, OpenError>,
    is_suspect: impl Fn(&T) -> bool,
) -> anyhow::Result<T> {
    let mut outcome = read();
    for _ in 1..ATTEMPTS_MAX {
        let good = matches!(&outcome, Ok(outcome) if !outcome.as_ref().is_some_and(&is_suspect));
        if good || holder(data).is_none() {
            break;
        }
        outcome = read();
    }
    match outcome {
        Ok(Some(outcome)) => Ok(outcome),
        Ok(None) => bail!("cannot {action} {}: there is no journal", data.display()),
        Err(error) => Err(anyhow!("cannot {action} {}: {error}", data.display())),
    }
}

//! Reads a whole data directory, of a stopped or running node, and changes nothing.
//!
//! Invariant: nothing is written and no lock is kept.

use std::path::Path;

use anyhow::{anyhow, bail};
use quipu_engine::OpenError;

use crate::inspect::holder;

/// Most reads of a directory in use that changes meanwhile. A read takes longer than the interval
/// between changes. A directory that looks damaged each time is damaged.
const ATTEMPTS_MAX: usize = 10;

/// Reads a directory, and again if it looked damaged because the node changed it meanwhile.
/// `is_suspect` returns true for a report of damage.
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

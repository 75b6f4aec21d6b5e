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

/// Reads a directory, and again if that found something amiss because the node went on meanwhile. `amiss`: what was found is not as it should be.
pub fn read<T>(
    what: &str,
    data: &Path,
    mut read: impl FnMut() -> Result<Option<T>, OpenError>,
    amiss: impl Fn(&T) -> bool,
) -> anyhow::Result<T> {
    let mut found = read();
    for _ in 1..ATTEMPTS_MAX {
        let good = matches!(&found, Ok(found) if !found.as_ref().is_some_and(&amiss));
        if good || holder(data).is_none() {
            break;
        }
        found = read();
    }
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => bail!("cannot {what} {}: there is no journal", data.display()),
        Err(error) => Err(anyhow!("cannot {what} {}: {error}", data.display())),
    }
}

//! Opens the data directory of a stopped server for one change.

use std::path::Path;

use anyhow::{anyhow, bail};
use quipu_engine::journal::control::CONTROL_FILE;
use quipu_engine::{Engine, Environment, OpenError, Options};

/// The least that it needs to begin.
const SEGMENT_BYTES: u64 = 64 << 10;

/// The options of such an engine.
pub fn options(data: &Path) -> Options {
    Options { segment_bytes: SEGMENT_BYTES, ahead_bytes: Some(SEGMENT_BYTES), reserve_bytes: 0, ..Options::new(data) }
}

/// Opens it; if the server runs, the error says to stop it.
pub fn open_engine(data: &Path, environment: Environment) -> anyhow::Result<Engine> {
    let shown = data.display();
    Engine::open_with(options(data), environment).map_err(|error| match error {
        OpenError::InUse { .. } => anyhow!("cannot open {shown}: {error}; stop the server first"),
        error => anyhow!("cannot open {shown}: {error}"),
    })
}

/// Checks that there is a data directory: an open would make one in an empty place.
pub fn check(data: &Path) -> anyhow::Result<()> {
    if !data.join(CONTROL_FILE).exists() {
        bail!("{} holds no journal: is it the data directory of a server?", data.display());
    }
    Ok(())
}

//! The data directory of a server that is stopped, opened for one thing to be done to it.

use std::path::Path;

use anyhow::{anyhow, bail};
use quipu_engine::journal::control::CONTROL_FILE;
use quipu_engine::{Engine, Environment, OpenError, Options};

/// It gets no more than it needs to begin.
const SEGMENT_BYTES: u64 = 64 << 10;

/// How it is opened.
pub fn options(data: &Path) -> Options {
    Options { segment_bytes: SEGMENT_BYTES, ahead_bytes: Some(SEGMENT_BYTES), reserve_bytes: 0, ..Options::new(data) }
}

/// Opens it; the error says what to do if its server runs.
pub fn open_engine(data: &Path, environment: Environment) -> anyhow::Result<Engine> {
    let shown = data.display();
    Engine::open_with(options(data), environment).map_err(|error| match error {
        OpenError::InUse { .. } => anyhow!("cannot open {shown}: {error}; stop the server first"),
        error => anyhow!("cannot open {shown}: {error}"),
    })
}

/// That there is one: an empty place would be made into one.
pub fn check(data: &Path) -> anyhow::Result<()> {
    if !data.join(CONTROL_FILE).exists() {
        bail!("{} holds no journal: is it the data directory of a server?", data.display());
    }
    Ok(())
}

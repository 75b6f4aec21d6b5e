//! `quipu backup`: requests a copy of everything from a running server, or copies the directory of
//! a stopped one.
//!
//! In: an empty directory. Out: a data directory there. `quipu inspect` verifies it, and
//! `quipu restore` makes a new one from it.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use quipu_engine::{BackupSummary, Engine, Environment, OpenError};

use crate::args;
use crate::offline_engine;
use crate::resp_client::{RespClient, Value};

/// Most time for a server: 100 GB over a slow network take hours. The user can interrupt the
/// command earlier.
const BACKUP_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Backs up and prints the next step.
pub fn backup(target: &args::BackupArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    // The server has another working directory, so it needs an absolute path.
    let dir = std::path::absolute(&target.dir).with_context(|| format!("find {}", target.dir.display()))?;
    match &target.data {
        Some(data) => back_up_stopped(data, &dir, out)?,
        None => request_backup(&target.target, &dir, out)?,
    }
    let dir = dir.display();
    writeln!(out, "next: quipu inspect {dir}                  is it whole?")?;
    writeln!(out, "      quipu restore {dir} --data DIR       when it is needed")?;
    Ok(ExitCode::SUCCESS)
}

fn request_backup(target: &args::ServerArgs, dir: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let mut client = RespClient::connect(&target.server, target.password.as_deref())?;
    client.wait_for(BACKUP_TIME_MAX).context("wait for a long reply")?;
    match client.call(&[b"QUIPU.BACKUP", dir.as_os_str().as_bytes()])? {
        Value::Simple(text) => Ok(writeln!(out, "{}", text.strip_prefix("OK ").unwrap_or(&text))?),
        other => bail!("the server sent {other:?} for a backup"),
    }
}

fn back_up_stopped(data: &Path, dir: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let shown = data.display();
    offline_engine::check(data)?;
    let engine =
        Engine::open_with(offline_engine::options(data), Environment::system()).map_err(|error| match error {
            OpenError::InUse { .. } => {
                anyhow!("cannot open {shown}: {error}; of a running server ask for a backup without --data")
            }
            error => anyhow!("cannot open {shown}: {error}"),
        })?;
    let backed_up = engine.backup(dir);
    engine.close().with_context(|| format!("close {shown}"))?;
    let BackupSummary { position, journal_bytes, ledger_bytes } = backed_up?;
    let dir = dir.display();
    writeln!(
        out,
        "{dir} holds the journal up to position {position} ({journal_bytes} bytes) and the ledger ({ledger_bytes} bytes)"
    )?;
    Ok(())
}

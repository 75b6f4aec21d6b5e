//! `quipu restore`: verifies a backup, then makes a data directory from it.
//!
//! Invariants:
//! - nothing is written before all of the backup was read and found whole;
//! - the backup is only read, and shares nothing with what is made from it;
//! - a directory that was not filled to the end is refused by the server, and removed if the process is there to do it.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use quipu_engine::{SystemDisk, restore_bytes};

use crate::args;
use crate::inspect::{holder, inspect_directory};
use crate::progress::Progress;
use crate::read_only::ReadOnlyDisk;

/// Restores and says what, and what to do next.
pub fn restore(target: &args::RestoreArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let args::RestoreArgs { backup, data } = target;
    let (from, to) = (backup.display(), data.display());
    if let Some(holder) = holder(backup) {
        bail!("{from} is in use: held by {holder}; ask that server for a backup with `quipu backup`, and restore that");
    }
    // Said again by whoever fills it, but before a long look at the backup is kinder.
    if std::fs::read_dir(data).is_ok_and(|mut files| files.next().is_some()) {
        bail!("{to} is not empty: name a directory that is empty or does not exist yet, or move what is there aside");
    }
    let inspection =
        inspect_directory(backup, |_, _| Ok(())).map_err(|error| anyhow!("cannot read {from}: {error}"))?;
    if inspection.control.is_none() && inspection.verdict.is_ok() {
        bail!("{from} holds no backup: name a directory that `quipu backup` has made");
    }
    let tail = match &inspection.verdict {
        Ok(tail) => tail,
        Err(error) => bail!("{error}; nothing was restored: choose another backup"),
    };
    let progress = Progress::new("copying", restore_bytes(&inspection));
    let mut copied = |bytes| {
        progress.add(bytes);
        ControlFlow::Continue(())
    };
    quipu_engine::restore(&ReadOnlyDisk, &inspection, &SystemDisk, data, &mut copied)
        .map_err(|error| anyhow!("cannot restore into {to}: {error}; what was written has been removed"))?;
    drop(progress);
    writeln!(
        out,
        "restored {} counters, the journal up to position {}, into {to}",
        inspection.counters, tail.position
    )?;
    writeln!(out, "next: quipu serve --data {to}")?;
    Ok(ExitCode::SUCCESS)
}

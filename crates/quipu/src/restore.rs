//! `quipu restore`: verifies a backup, then makes a data directory from it.
//!
//! Invariants:
//! - it writes nothing before it has read all of the backup and found it whole;
//! - the backup is only read, and shares no file with the new directory;
//! - the server refuses an incomplete directory; this process removes one if it is still alive.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use quipu_engine::{SystemDisk, restore_bytes};

use crate::args;
use crate::inspect::{holder, inspect_directory};
use crate::progress::Progress;
use crate::read_only::ReadOnlyDisk;

/// Restores, and prints the result and the next step.
pub fn restore(target: &args::RestoreArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let args::RestoreArgs { backup, data } = target;
    let (from, to) = (backup.display(), data.display());
    if let Some(holder) = holder(backup) {
        bail!("{from} is in use: held by {holder}; ask that server for a backup with `quipu backup`, and restore that");
    }
    // The copy repeats this check, but here it comes before the long verification.
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

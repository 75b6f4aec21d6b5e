//! Copies a ledger, in use or not.
//!
//! In: a generation with pinned tables. Out: a directory that opens as a ledger in the generation's
//! state, durable when the call returns.
//!
//! Tables never change. Within one file system a copy may hard-link them and take no time and no
//! space; across file systems it copies them. A crash during the copy leaves a directory without
//! FORMAT. `open` takes it for empty only while it has no watermark: an unfinished copy is never
//! mistaken for a ledger.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;

use quipu_model::CopyProgress;

use crate::LedgerError;
use crate::ledger;
use crate::manifest::{self, Manifest, TABLES};

/// Bytes copied between two progress calls.
const PIECE_BYTES: usize = 1 << 20;

/// Transfer of tables into a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// By hard link where possible.
    Linked,
    /// By copying the bytes.
    Copied,
}

/// Writes a copy of the generation in `from`, with the tables of `manifest`, to `to`, which must be
/// empty or absent. It calls `progress` for every piece; a break ends the copy.
pub fn copy(
    from: &Path,
    manifest: &Manifest,
    number: u64,
    to: &Path,
    how: Tables,
    progress: &mut CopyProgress<'_>,
) -> Result<(), LedgerError> {
    let create_error = |error| LedgerError::io("make", to, error);
    fs::create_dir_all(to).map_err(create_error)?;
    if fs::read_dir(to).map_err(create_error)?.next().is_some() {
        return Err(LedgerError::io("copy to", to, io::ErrorKind::DirectoryNotEmpty.into()));
    }
    let generation = ledger::generation_path(to, number);
    let tables = generation.join(TABLES);
    fs::create_dir_all(&tables).map_err(|error| LedgerError::io("make", &tables, error))?;
    for table in &manifest.tables {
        let (source, target) = (manifest::table_path(from, table.id), manifest::table_path(&generation, table.id));
        if how == Tables::Linked && fs::hard_link(&source, &target).is_ok() {
            report_progress(progress, bytes_of(&source), &target)?;
        } else {
            copy_table(&source, &target, progress)?;
        }
    }
    write_durably(&manifest::version_path(&generation, manifest.version), &manifest.bytes)?;
    write_durably(&manifest::current_path(&generation), &manifest.current)?;
    for dir in [&tables, &generation, to] {
        ledger::sync_dir(dir)?;
    }
    ledger::write_format(to)
}

/// Writes a new file; it is durable once its directory is synced too.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), LedgerError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| LedgerError::io("write", path, error))
}

fn copy_table(from: &Path, to: &Path, progress: &mut CopyProgress<'_>) -> Result<(), LedgerError> {
    let read_error = |error| LedgerError::unreadable(from, error);
    let write_error = |error| LedgerError::io("write", to, error);
    let mut source = File::open(from).map_err(read_error)?;
    let mut target = File::create(to).map_err(write_error)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let bytes = source.read(&mut piece).map_err(read_error)?;
        if bytes == 0 {
            return target.sync_all().map_err(write_error);
        }
        target.write_all(&piece[..bytes]).map_err(write_error)?;
        report_progress(progress, bytes as u64, to)?;
    }
}

fn report_progress(progress: &mut CopyProgress<'_>, bytes: u64, to: &Path) -> Result<(), LedgerError> {
    match progress(bytes) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(LedgerError::io("copy to", to, io::ErrorKind::Interrupted.into())),
    }
}

fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

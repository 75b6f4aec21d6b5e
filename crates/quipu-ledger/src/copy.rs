//! Copies the ledger while it is in use.
//!
//! In: a generation, pinned. Out: a directory that opens as a ledger in the state the generation had, durable when the call returns.
//!
//! Tables never change, so within one file system the copy holds them by a second name and takes no time and no space; across file systems
//! they are copied. A crash on the way leaves a directory without FORMAT, which `open` takes for empty only while it has no watermark: a
//! copy that did not finish cannot be mistaken for one.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::LedgerError;
use crate::ledger;
use crate::manifest::{self, Manifest, TABLES};

/// Writes a copy of the generation in `from`, as `manifest` has it, to `to`, which must be empty or absent.
pub fn copy(from: &Path, manifest: &Manifest, number: u64, to: &Path) -> Result<(), LedgerError> {
    let making = |error| LedgerError::io("make", to, error);
    fs::create_dir_all(to).map_err(making)?;
    if fs::read_dir(to).map_err(making)?.next().is_some() {
        return Err(LedgerError::io("copy to", to, std::io::ErrorKind::DirectoryNotEmpty.into()));
    }
    let generation = ledger::generation_path(to, number);
    let tables = generation.join(TABLES);
    fs::create_dir_all(&tables).map_err(|error| LedgerError::io("make", &tables, error))?;
    for table in &manifest.tables {
        link_or_copy(&manifest::table_path(from, table.id), &manifest::table_path(&generation, table.id))?;
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

fn link_or_copy(from: &Path, to: &Path) -> Result<(), LedgerError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let copy = || {
        fs::copy(from, to)?;
        File::open(to)?.sync_all()
    };
    copy().map_err(|error| LedgerError::io("copy", from, error))
}

//! Verifies: reads every byte at rest and compares it with its checksum.
//!
//! It only reads, and knows nothing of the tree but its files. So it may run beside a process that
//! has the ledger open. If that process removes a table or version meanwhile, verification starts
//! again.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

use crate::manifest::{self, Manifest};
use crate::{LedgerError, archive, ledger};

/// Bytes read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Most attempts while the ledger changes. A compaction takes seconds; if the ledger still outruns
/// the last attempt, the error is reported as damage.
const ATTEMPTS_MAX: usize = 10;

/// Size of the verified ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyStats {
    /// Number of tables.
    pub tables: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Verifies a ledger; `progress` gets the bytes done and to do.
pub fn verify(dir: &Path, mut progress: impl FnMut(u64, u64)) -> Result<VerifyStats, LedgerError> {
    for _ in 1..ATTEMPTS_MAX {
        let outcome = verify_once(dir, &mut progress);
        match outcome {
            Err((Some(version), LedgerError::Damaged { .. }))
                if current_version_id(dir).is_ok_and(|now| now != version) => {}
            outcome => return outcome.map_err(|(_, error)| error),
        }
    }
    verify_once(dir, &mut progress).map_err(|(_, error)| error)
}

type VersionId = (u64, u64);

fn current_version_id(dir: &Path) -> Result<VersionId, LedgerError> {
    let number = ledger::newest_generation(dir)?;
    Ok((number, Manifest::read_version(&ledger::generation_path(dir, number))?))
}

fn verify_once(
    dir: &Path,
    progress: &mut impl FnMut(u64, u64),
) -> Result<VerifyStats, (Option<VersionId>, LedgerError)> {
    let version = current_version_id(dir).map_err(|error| (None, error))?;
    verify_generation(&ledger::generation_path(dir, version.0), progress).map_err(|error| (Some(version), error))
}

fn verify_generation(dir: &Path, progress: &mut impl FnMut(u64, u64)) -> Result<VerifyStats, LedgerError> {
    let manifest = Manifest::read(dir)?;
    let mut total = 0;
    for table in &manifest.tables {
        let path = manifest::table_path(dir, table.id);
        total += path.metadata().map_err(|error| LedgerError::unreadable(&path, error))?.len();
    }
    let mut done = 0;
    progress(done, total);
    for table in &manifest.tables {
        check_table(&manifest::table_path(dir, table.id), table.checksum, &mut |bytes| {
            done += bytes;
            progress(done, total);
        })?;
    }
    Ok(VerifyStats { tables: manifest.tables.len() as u64, bytes: done })
}

/// Compares a table with its checksum; if they differ, the error names the block.
pub fn check_table(path: &Path, checksum: u128, progress: &mut impl FnMut(u64)) -> Result<(), LedgerError> {
    let read_error = |error| LedgerError::unreadable(path, error);
    let mut file = File::open(path).map_err(read_error)?;
    let mut hasher = Xxh3Default::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let bytes = file.read(&mut buffer).map_err(read_error)?;
        if bytes == 0 {
            break;
        }
        hasher.update(&buffer[..bytes]);
        progress(bytes as u64);
    }
    if hasher.digest128() == checksum {
        return Ok(());
    }
    archive::check_all(path)?;
    Err(LedgerError::damaged(path, "it does not have the checksum its version names"))
}

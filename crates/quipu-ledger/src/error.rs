//! Defines the errors of cells at rest: one variant per reaction of the caller.

use std::io;
use std::path::{Path, PathBuf};

/// Error of a ledger call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Nothing was changed; free some space and try again.
    #[error("no space left for the ledger")]
    Full {
        /// Error of the file system.
        source: io::Error,
    },
    /// The bytes at rest differ from the written ones. Stop, and restore the file or the whole
    /// directory.
    #[error("{} is damaged{}: {reason}", file.display(), match offset { Some(offset) => format!(" at byte {offset}"), None => String::new() })]
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// Offset of the damage, if known.
        offset: Option<u64>,
        /// Kind of the damage.
        reason: String,
    },
    /// A newer program wrote it: use that one.
    #[error("{} has format {format}, this program knows up to {known}", file.display())]
    Newer {
        /// File with the format.
        file: PathBuf,
        /// Its format.
        format: u64,
        /// Newest format that this program reads.
        known: u64,
    },
    /// The file system failed. The cells at rest are as before. Only if the very last step failed
    /// may the call have succeeded: the watermark shows it.
    #[error("could not {action} {}", path.display())]
    Io {
        /// The failed action, verb first.
        action: &'static str,
        /// File or directory of the action.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
}

impl LedgerError {
    /// Error of a file system call.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> LedgerError {
        if is_full(&source) {
            LedgerError::Full { source }
        } else {
            LedgerError::Io { action, path: path.into(), source }
        }
    }

    pub(crate) fn damaged(file: &Path, reason: impl Into<String>) -> LedgerError {
        LedgerError::Damaged { file: file.into(), offset: None, reason: reason.into() }
    }

    pub(crate) fn damaged_at(file: &Path, offset: u64, reason: impl Into<String>) -> LedgerError {
        LedgerError::Damaged { file: file.into(), offset: Some(offset), reason: reason.into() }
    }

    /// Error of reading a file that must exist: a missing or short file is damage, not a failing
    /// disk.
    pub(crate) fn unreadable(path: &Path, source: io::Error) -> LedgerError {
        match source.kind() {
            io::ErrorKind::NotFound => LedgerError::damaged(path, "it is missing"),
            io::ErrorKind::UnexpectedEof => LedgerError::damaged(path, "it is shorter than it was"),
            _ => LedgerError::io("read", path, source),
        }
    }

    /// Error of the tree during `action` in `dir`.
    pub(crate) fn tree(action: &'static str, dir: &Path, error: lsm_tree::Error) -> LedgerError {
        match error {
            lsm_tree::Error::Io(source) if is_missing(&source) => LedgerError::unreadable(dir, source),
            lsm_tree::Error::Io(source) => LedgerError::io(action, dir, source),
            error => LedgerError::damaged(dir, format!("could not {action}: {error}")),
        }
    }
}

/// Returns true if the tree's error means that the bytes read differ from the written ones.
pub(crate) fn is_damage(error: &lsm_tree::Error) -> bool {
    match error {
        lsm_tree::Error::Io(source) => is_missing(source),
        _ => true,
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

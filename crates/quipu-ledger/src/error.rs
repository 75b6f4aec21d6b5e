//! What can go wrong with cells at rest, told apart by what the caller would do.

use std::io;
use std::path::{Path, PathBuf};

/// Why the ledger did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Nothing was changed; free some space and try again.
    #[error("no space left for the ledger")]
    Full {
        /// What the file system said.
        source: io::Error,
    },
    /// The bytes at rest are not those that were written. Do not go on: restore the file or the whole directory.
    #[error("{} is damaged{}: {reason}", file.display(), match offset { Some(offset) => format!(" at byte {offset}"), None => String::new() })]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where in it, when that is known.
        offset: Option<u64>,
        /// What is wrong with it.
        reason: String,
    },
    /// Written by a newer program: use that one.
    #[error("{} has format {format}, this program knows up to {known}", file.display())]
    Newer {
        /// The file that says so.
        file: PathBuf,
        /// The format it names.
        format: u64,
        /// The newest this program reads.
        known: u64,
    },
    /// The file system failed. What is at rest is as before, or, if its very last step failed, as asked: the watermark tells.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried, verb first.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },
}

impl LedgerError {
    /// An error of a call on the file system.
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

    /// A file we know must exist could not be read: missing and shortened files are damage, not a failing disk.
    pub(crate) fn unreadable(path: &Path, source: io::Error) -> LedgerError {
        match source.kind() {
            io::ErrorKind::NotFound => LedgerError::damaged(path, "it is missing"),
            io::ErrorKind::UnexpectedEof => LedgerError::damaged(path, "it is shorter than it was"),
            _ => LedgerError::io("read", path, source),
        }
    }

    /// An error of the tree while it did `action` in `dir`.
    pub(crate) fn tree(action: &'static str, dir: &Path, error: lsm_tree::Error) -> LedgerError {
        match error {
            lsm_tree::Error::Io(source) if is_missing(&source) => LedgerError::unreadable(dir, source),
            lsm_tree::Error::Io(source) => LedgerError::io(action, dir, source),
            error => LedgerError::damaged(dir, format!("could not {action}: {error}")),
        }
    }
}

/// Whether the tree's error says that what it read is not what was written.
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

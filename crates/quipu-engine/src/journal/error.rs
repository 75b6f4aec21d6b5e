//! Errors of the journal, in wording that the server and `quipu inspect` share.

use std::io;
use std::path::{Path, PathBuf};

use super::format::Position;

/// `errno` values for too many open files, in the system or in this process.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// The journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system returned an error.
    #[error("cannot {what} {}: {source}", file.display())]
    Io {
        /// The file or directory.
        file: PathBuf,
        /// The attempted operation, as a verb.
        what: &'static str,
        /// The file system's error.
        source: io::Error,
    },
    /// A backup or restore into this directory did not finish.
    #[error("{} is not whole: a backup or restore into it did not finish, or is still under way; remove the directory and begin again", dir.display())]
    Unfinished {
        /// The directory.
        dir: PathBuf,
    },
    /// A file is no longer the one that this process has open.
    #[error("{} was removed or replaced while this process used it: what was acknowledged in the last seconds may be in no file any more; find out who changes the data directory, then start again: the start verifies what is there", file.display())]
    Replaced {
        /// The file or directory.
        file: PathBuf,
    },
    /// The bytes are not those that were written.
    #[error(transparent)]
    Damage(#[from] Damage),
}

impl JournalError {
    pub(crate) fn is_full(&self) -> bool {
        // A lack of descriptors is as temporary as a lack of space: neither ends the process.
        matches!(self, JournalError::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
                || matches!(source.raw_os_error(), Some(ENFILE | EMFILE)))
    }
}

/// The place where the bytes on disk are not those that were written. The server and `quipu
/// inspect` share the wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at byte {offset}{}: {reason}",
    file.display(), position.map(|p| format!(" (position {p})")).unwrap_or_default())]
pub struct Damage {
    /// The damaged file.
    pub file: PathBuf,
    /// Byte offset in the file.
    pub offset: u64,
    /// Position in the stream, for records.
    pub position: Option<Position>,
    /// Description of the damage.
    pub reason: String,
}

pub(crate) fn io_error(file: &Path, what: &'static str, source: io::Error) -> JournalError {
    JournalError::Io { file: file.to_owned(), what, source }
}

//! Why a journal cannot be used, in words that the server and `quipu inspect` share.

use std::io;
use std::path::{Path, PathBuf};

use super::format::Position;

/// The system, or this process, has too many files open.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// The journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system said no.
    #[error("cannot {what} {}: {source}", file.display())]
    Io {
        /// Which file or directory.
        file: PathBuf,
        /// What was tried, as a verb.
        what: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// The directory was being filled by a backup or a restore that did not come to its end.
    #[error("{} is not whole: a backup or restore into it did not finish, or is still under way; remove the directory and begin again", dir.display())]
    Unfinished {
        /// Which directory.
        dir: PathBuf,
    },
    /// A file is no longer the one that this process has open.
    #[error("{} was removed or replaced while this process used it: what was acknowledged in the last seconds may be in no file any more; find out who changes the data directory, then start again: the start verifies what is there", file.display())]
    Replaced {
        /// Which file or directory.
        file: PathBuf,
    },
    /// The bytes are not what was written.
    #[error(transparent)]
    Damage(#[from] Damage),
}

impl JournalError {
    pub(crate) fn is_full(&self) -> bool {
        // Out of descriptors is as passing as out of space, and as little a reason to end the process.
        matches!(self, JournalError::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
                || matches!(source.raw_os_error(), Some(ENFILE | EMFILE)))
    }
}

/// Where the bytes on disk are not what was written, in words that the server and `quipu inspect` share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at byte {offset}{}: {reason}",
    file.display(), position.map(|p| format!(" (position {p})")).unwrap_or_default())]
pub struct Damage {
    /// Which file.
    pub file: PathBuf,
    /// At which byte of it.
    pub offset: u64,
    /// The place in the stream, for records.
    pub position: Option<Position>,
    /// What is wrong.
    pub reason: String,
}

pub(crate) fn io_error(file: &Path, what: &'static str, source: io::Error) -> JournalError {
    JournalError::Io { file: file.to_owned(), what, source }
}

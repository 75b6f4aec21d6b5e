//! Detects files of the directory that were removed or replaced while this process has them open.
//!
//! A lock cannot prevent that: it does not bind other programs with write access to the directory.
//! Data written to a removed file is lost with the process. So the process must end before it
//! acknowledges much more.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quipu_model::Vfs;

use super::JournalError;

/// Paths and the ids of their files.
pub(super) struct WatchedFiles {
    files: Vec<(PathBuf, u64)>,
}

impl WatchedFiles {
    /// Records the paths that exist.
    pub(super) fn new<'p>(vfs: &dyn Vfs, paths: impl IntoIterator<Item = &'p Path>) -> WatchedFiles {
        let identity = |path: &Path| Some((path.to_owned(), vfs.identity(path).ok()?));
        WatchedFiles { files: paths.into_iter().filter_map(identity).collect() }
    }

    /// Checks that every path still names the same file.
    pub(super) fn check(&self, vfs: &dyn Vfs) -> Result<(), JournalError> {
        self.files.iter().try_for_each(|(path, identity)| check_identity(vfs, path, *identity))
    }
}

/// Checks that a path still names the open file with this id.
pub(super) fn check_identity(vfs: &dyn Vfs, path: &Path, identity: u64) -> Result<(), JournalError> {
    match find_identity(vfs, path)? {
        Some(found) if found != identity => Err(JournalError::Replaced { file: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Checks that a path still names a file.
pub(super) fn check_exists(vfs: &dyn Vfs, path: &Path) -> Result<(), JournalError> {
    find_identity(vfs, path).map(|_| ())
}

/// Id of a file that must exist; `None` if it cannot be determined now.
fn find_identity(vfs: &dyn Vfs, path: &Path) -> Result<Option<u64>, JournalError> {
    match vfs.identity(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if MISSING_FILE_KINDS.contains(&error.kind()) => {
            Err(JournalError::Replaced { file: path.to_owned() })
        }
        // The result is unknown, and the open file still works: the next check may find more.
        Err(_) => Ok(None),
    }
}

/// Errors that a file system returns for a missing file.
const MISSING_FILE_KINDS: [ErrorKind; 3] =
    [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::StaleNetworkFileHandle];

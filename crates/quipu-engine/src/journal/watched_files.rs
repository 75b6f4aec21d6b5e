//! Notices that somebody has removed or replaced files of the directory while this process has them open.
//!
//! A lock cannot prevent that: whoever may write to the directory may do so. What is written to a removed file is lost with the
//! process, so the process has to end before it acknowledges much more.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quipu_model::Vfs;

use super::JournalError;

/// Files and the numbers that the file system gave them.
pub(super) struct WatchedFiles {
    files: Vec<(PathBuf, u64)>,
}

impl WatchedFiles {
    /// Those of the paths that exist.
    pub(super) fn new<'p>(vfs: &dyn Vfs, paths: impl IntoIterator<Item = &'p Path>) -> WatchedFiles {
        let identity = |path: &Path| Some((path.to_owned(), vfs.identity(path).ok()?));
        WatchedFiles { files: paths.into_iter().filter_map(identity).collect() }
    }

    /// Whether all of them are still those.
    pub(super) fn check(&self, vfs: &dyn Vfs) -> Result<(), JournalError> {
        self.files.iter().try_for_each(|(path, identity)| check_identity(vfs, path, *identity))
    }
}

/// Whether a path still names the file of this number, which is open.
pub(super) fn check_identity(vfs: &dyn Vfs, path: &Path, identity: u64) -> Result<(), JournalError> {
    match find_identity(vfs, path)? {
        Some(found) if found != identity => Err(JournalError::Replaced { file: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Whether a path still names a file.
pub(super) fn check_exists(vfs: &dyn Vfs, path: &Path) -> Result<(), JournalError> {
    find_identity(vfs, path).map(|_| ())
}

/// The number of a file that has to be there; `None` if it cannot be told just now.
fn find_identity(vfs: &dyn Vfs, path: &Path) -> Result<Option<u64>, JournalError> {
    match vfs.identity(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if MISSING_FILE_KINDS.contains(&error.kind()) => {
            Err(JournalError::Replaced { file: path.to_owned() })
        }
        // Nothing is known, and the open file still serves: the next look may tell more.
        Err(_) => Ok(None),
    }
}

/// What a file system answers where a file was.
const MISSING_FILE_KINDS: [ErrorKind; 3] =
    [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::StaleNetworkFileHandle];

//! Stages a data directory: a backup or a restore fills it, and every open refuses it until it is
//! whole.
//!
//! In: an empty or absent directory, segments, a ledger's copy of itself. Out: a data directory;
//! or, after an error, the directory as it was before.
//!
//! Invariants:
//! - from its first byte until all of it is durable it holds `control.unfinished`. It shows `open`
//!   the directory's state, even if the machine stops;
//! - an unfinished directory is removed, the mark last.
//!
//! Not here: the choice of the copied state (`backup`, `restore`).

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quipu_model::{CopyProgress, LedgerError, Vfs};

use crate::base::options::LEDGER_DIR;
use crate::journal::control::{CONTROL_FILE, CONTROL_FILE_UNFINISHED, ControlFile, ControlState};
use crate::journal::format::{Position, SegmentHeader};
use crate::journal::segments::{Segment, segment_file};
use crate::journal::{JournalError, io_error, read_full};

/// Bytes copied at once: few calls, little memory.
const PIECE_BYTES: usize = 1 << 20;

/// Reason why a data directory could not be filled. The written files have been removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// Nothing was changed.
    #[error("{} is not empty: name a directory that is empty or does not exist yet", .dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// Nothing was changed.
    #[error("{} is inside {}, of which it would be a copy: name a place outside of it", .dir.display(), .of.display())]
    Inside {
        /// The directory.
        dir: PathBuf,
        /// The original directory.
        of: PathBuf,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The ledger could not be copied.
    #[error("{}: {source}", .dir.join(LEDGER_DIR).display())]
    Ledger {
        /// The target data directory.
        dir: PathBuf,
        /// The ledger's error.
        source: LedgerError,
    },
    /// The progress callback ended the copy.
    #[error("copying to {} was ended before it was done", .dir.display())]
    Interrupted {
        /// The directory.
        dir: PathBuf,
    },
}

/// A data directory being filled.
pub(crate) struct StagedDirectory<'v> {
    vfs: &'v dyn Vfs,
    dir: PathBuf,
    /// True if the directory did not exist before.
    created: bool,
    finished: bool,
}

impl<'v> StagedDirectory<'v> {
    /// Takes a directory, if it is empty or absent and not within the original `of`.
    pub(crate) fn begin(vfs: &'v dyn Vfs, dir: &Path, of: &Path) -> Result<StagedDirectory<'v>, StagingError> {
        let original = vfs.identity(of).map_err(|e| io_error(of, "look at", e))?;
        let absolute = std::path::absolute(dir).map_err(|e| io_error(dir, "find", e))?;
        // The check compares file ids, not names: a link may lead there, too, or to a place below.
        let there = absolute.ancestors().find(|above| vfs.identity(above).is_ok()).unwrap_or(&absolute);
        if absolute.ancestors().any(|above| vfs.identity(above).is_ok_and(|identity| identity == original))
            || is_below(vfs, there, original)
        {
            return Err(StagingError::Inside { dir: dir.to_owned(), of: of.to_owned() });
        }
        let created = match vfs.list(dir) {
            Ok(files) if files.is_empty() => false,
            Ok(_) => return Err(StagingError::NotEmpty { dir: dir.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(io_error(dir, "list", error).into()),
        };
        if created {
            vfs.create_dir(dir).map_err(|e| io_error(dir, "create", e))?;
        }
        // From here on every error is undone.
        let staged = StagedDirectory { vfs, dir: dir.to_owned(), created, finished: false };
        ControlFile::mark_unfinished(vfs, dir)?;
        Ok(staged)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// An error of the ledger, or of the callback that ended its copy.
    pub(crate) fn ledger_error(&self, source: LedgerError) -> StagingError {
        StagingError::Ledger { dir: self.dir.clone(), source }
    }

    /// Adds a segment of another directory: its stream up to a position, and zeros behind.
    pub(crate) fn add_segment(
        &self,
        source: &dyn Vfs,
        segment: &Segment,
        log: u64,
        end: Position,
        progress: &mut CopyProgress<'_>,
    ) -> Result<(), StagingError> {
        let path = self.dir.join(segment_file(segment.number));
        let from = source.open(&segment.path).map_err(|e| io_error(&segment.path, "open", e))?;
        let file = self.vfs.create(&path).map_err(|e| io_error(&path, "create", e))?;
        let header = SegmentHeader { log, number: segment.number, base: segment.base, bytes: segment.bytes() };
        file.write_all_at(&header.encode(), 0).map_err(|e| io_error(&path, "write", e))?;
        let (mut at, mut piece) = (segment.base, vec![0; PIECE_BYTES]);
        while at < segment.end {
            let bytes = usize::try_from(segment.end.0 - at.0).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let within = usize::try_from(end.0.saturating_sub(at.0)).unwrap_or(bytes).min(bytes);
            let read = read_full(&*from, &mut piece[..within], segment.offset(at));
            if read.map_err(|e| io_error(&segment.path, "read", e))? < within {
                let error = io_error(&segment.path, "read", io::ErrorKind::UnexpectedEof.into());
                return Err(error.into());
            }
            piece[within..bytes].fill(0);
            file.write_all_at(&piece[..bytes], segment.offset(at)).map_err(|e| io_error(&path, "write", e))?;
            at = at.plus(bytes as u64);
            if let ControlFlow::Break(()) = progress(bytes as u64) {
                return Err(StagingError::Interrupted { dir: self.dir.clone() });
            }
        }
        file.sync_data().map_err(|e| io_error(&path, "sync", e))?;
        Ok(())
    }

    /// Makes it a data directory: all files are durable before the control file gets its name.
    pub(crate) fn finish(mut self, control: ControlState) -> Result<(), StagingError> {
        self.vfs.sync_dir(&self.dir).map_err(|e| io_error(&self.dir, "sync", e))?;
        ControlFile::complete_unfinished(self.vfs, &self.dir, control)?;
        self.finished = true;
        Ok(())
    }
}

/// Returns true if a directory, or one of its real parents, is the original.
fn is_below(vfs: &dyn Vfs, dir: &Path, original: u64) -> bool {
    let (mut at, mut before) = (dir.to_owned(), None);
    // The root is its own parent.
    while let Ok(identity) = vfs.identity(&at)
        && before != Some(identity)
    {
        if identity == original {
            return true;
        }
        before = Some(identity);
        at.push("..");
    }
    false
}

impl Drop for StagedDirectory<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // If the very last sync failed, the control file may have its name already. It must not
        // outlive the files that it refers to.
        let _ = self.vfs.remove(&self.dir.join(CONTROL_FILE));
        // A file that cannot be removed stays, with the mark.
        let remove = || {
            self.vfs.clear_dir(&self.dir, CONTROL_FILE_UNFINISHED)?;
            self.vfs.sync_dir(&self.dir)?;
            self.vfs.remove(&self.dir.join(CONTROL_FILE_UNFINISHED))
        };
        let _ = remove();
        if self.created {
            let _ = self.vfs.remove_dir(&self.dir);
        }
    }
}

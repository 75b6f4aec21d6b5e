//! Port to the file system: the operations that the journal needs.
//!
//! Guarantees after a loss of power:
//! - bytes written to a file survive once `sync_data` of that file has returned; before that, any
//!   part of them may survive;
//! - a file created, renamed or removed stays so once `sync_dir` of its directory has returned;
//!   before that, maybe;
//! - `sync_data` does not make the file's name durable; `sync_dir` does not make its bytes durable.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file system.
pub trait Vfs: Send + Sync {
    /// Creates the directory and its parents, durably; no error if it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the names of the files in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates a new file of length 0, readable and writable; an error if it exists.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Opens an existing file to read and write.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Renames within one directory, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes everything in a directory except the file of this name; subdirectories too.
    fn clear_dir(&self, dir: &Path, keep: &str) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the number that identifies a file or directory while it exists. A copy has another
    /// number, so a copied directory is recognised.
    fn identity(&self, path: &Path) -> io::Result<u64>;

    /// Returns the free space for files in this directory, in bytes, as reported by the disk.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;

    /// Makes creations, renames and removals in the directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Locks the directory of this file for this process. The lock ends with the guard or the
    /// process. The file gets the process id as text, for the error message of a refused process.
    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>, LockError>;
}

/// An open file. Reads and writes take an offset, so one handle serves several threads.
pub trait VfsFile: Send + Sync {
    /// Returns the length in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads up to `buf.len()` bytes; 0 at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `buf`, growing the file if need be. After an error any part of it may have
    /// been written.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when all bytes written so far would survive a loss of power.
    fn sync_data(&self) -> io::Result<()>;

    /// Grows the file to this length by writing zeros.
    fn write_zeros(&self, bytes: u64) -> io::Result<()> {
        let mut length = self.bytes()?;
        while length < bytes {
            let piece = (bytes - length).min(ZEROS.len() as u64);
            self.write_all_at(&ZEROS[..piece as usize], length)?;
            length += piece;
        }
        Ok(())
    }

    /// Grows the file to this length and reserves the space. The new part reads as zeros. If the
    /// system can do so without writing them, it does.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.write_zeros(bytes)
    }
}

/// Zeros for new files, written a piece at a time.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Lock on a directory until it is dropped.
pub trait DirLock: Send + Sync {
    /// Also locks a file in the directory. Some file systems cannot lock a directory, or not
    /// against other machines.
    fn lock_file(&mut self, _path: &Path) -> Result<(), LockError> {
        Ok(())
    }

    /// Keeps a file or directory open. Some file systems change the number of an entry that no
    /// process has open.
    fn keep_open(&mut self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Reason why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{}", match holder { Some(pid) => format!("held by process {pid}"), None => "held by another process".to_owned() })]
    Held {
        /// Its process id, if it wrote one.
        holder: Option<u32>,
    },
    /// The lock file itself could not be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

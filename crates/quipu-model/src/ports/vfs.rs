//! Disk: the few things the journal asks of a file system.
//!
//! What each promises after a loss of power:
//! - bytes written are there, all of them, once `sync_data` of that file has returned; before that, any part of them may be;
//! - a file created, renamed or removed is so once `sync_dir` of its directory has returned; before that, maybe;
//! - `sync_data` does not make the file's name durable; `sync_dir` does not make its bytes durable.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file system.
pub trait Vfs: Send + Sync {
    /// Makes the directory and its parents, durably; no error if it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names of the files in a directory, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes a new file of length 0, readable and writable; an error if it exists.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Opens an existing file to read and write.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Renames within one directory, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes everything in a directory but the file of this name, the directories in it included.
    fn clear_dir(&self, dir: &Path, keep: &str) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// A number that a file or directory keeps while it is there and that a copy of it does not share: by it a copied directory is recognised.
    fn identity(&self, path: &Path) -> io::Result<u64>;

    /// How many bytes more files in this directory may take, as far as the disk says.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;

    /// Makes what was created, renamed and removed in the directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Locks the directory of this file for this process; the lock ends with the guard or the process. The file gets the process
    /// id as text, for whoever is refused.
    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>, LockError>;
}

/// An open file. Reads and writes name their place, so that one handle serves several threads.
pub trait VfsFile: Send + Sync {
    /// Length in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads up to `buf.len()` bytes; 0 at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `buf`, growing the file if need be. After an error any part of it may have been written.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when every byte written so far would survive a loss of power.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the file so long, by writing zeros.
    fn write_zeros(&self, bytes: u64) -> io::Result<()> {
        let mut length = self.bytes()?;
        while length < bytes {
            let piece = (bytes - length).min(ZEROS.len() as u64);
            self.write_all_at(&ZEROS[..piece as usize], length)?;
            length += piece;
        }
        Ok(())
    }

    /// Makes the file so long. What is added reads as zeros, and takes its space from here on; where the system can do that without writing them, it does.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.write_zeros(bytes)
    }
}

/// What new files are filled with, a piece at a time.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Holds a directory until it is dropped.
pub trait DirLock: Send + Sync {
    /// Locks a file in the directory as well, for file systems where a directory cannot be locked, or not for other machines.
    fn lock_file(&mut self, _path: &Path) -> Result<(), LockError> {
        Ok(())
    }

    /// Keeps a file or directory open: some file systems give one that nobody has open another number now and then.
    fn keep_open(&mut self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Why a directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{}", match holder { Some(pid) => format!("held by process {pid}"), None => "held by another process".to_owned() })]
    Held {
        /// Its process id, when it wrote one.
        holder: Option<u32>,
    },
    /// The lock file itself could not be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

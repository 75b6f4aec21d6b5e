//! A read-only file system for `inspect`: it cannot change anything.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use quipu_engine::SystemDisk;
use quipu_model::{DirLock, LockError, Vfs, VfsFile};

/// Opens files to read; refuses everything else.
pub struct ReadOnlyDisk;

impl Vfs for ReadOnlyDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Err(refusal())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        SystemDisk.list(dir)
    }

    fn create(&self, _path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Err(refusal())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(ReadOnlyFile(File::open(path)?)))
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(refusal())
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        Err(refusal())
    }

    fn clear_dir(&self, _dir: &Path, _keep: &str) -> io::Result<()> {
        Err(refusal())
    }

    fn remove_dir(&self, _dir: &Path) -> io::Result<()> {
        Err(refusal())
    }

    fn identity(&self, path: &Path) -> io::Result<u64> {
        SystemDisk.identity(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        SystemDisk.free_bytes(dir)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Err(refusal())
    }

    fn lock(&self, _path: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Err(refusal().into())
    }
}

struct ReadOnlyFile(File);

impl VfsFile for ReadOnlyFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_all_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        Err(refusal())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(refusal())
    }
}

fn refusal() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "inspecting changes nothing")
}

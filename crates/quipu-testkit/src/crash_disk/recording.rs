//! Records the disk's operations, in order.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Identity of a file, independent of its name; it survives renames and removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(pub(super) usize);

/// One operation on the disk. Only completed work is recorded: of a failed write, the written part.
#[derive(Debug, Clone)]
pub(super) enum DiskOperation {
    CreateDir {
        dir: PathBuf,
    },
    Create {
        dir: PathBuf,
        name: String,
        file: FileId,
    },
    Rename {
        dir: PathBuf,
        from: String,
        to: String,
        file: FileId,
    },
    Remove {
        dir: PathBuf,
        name: String,
        file: FileId,
    },
    /// Covers the operations on the directory before operation `begun`.
    SyncDir {
        dir: PathBuf,
        begun: usize,
    },
    Write {
        file: FileId,
        offset: usize,
        bytes: Arc<[u8]>,
    },
    /// Covers the writes to the file before operation `begun`.
    SyncData {
        file: FileId,
        begun: usize,
    },
    /// A sync that returned an error. No later one covers the writes before operation `begun`
    /// either, because the kernel has marked their pages clean.
    SyncDataFailed {
        file: FileId,
        begun: usize,
    },
}

/// Kind of an operation, to choose the failing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// `Vfs::create_dir`.
    CreateDir,
    /// `Vfs::create`.
    Create,
    /// `Vfs::rename`.
    Rename,
    /// `Vfs::remove`.
    Remove,
    /// `Vfs::sync_dir`.
    SyncDir,
    /// `VfsFile::write_all_at`.
    Write,
    /// `VfsFile::sync_data`.
    SyncData,
}

impl DiskOperation {
    pub(super) fn kind(&self) -> OpKind {
        match self {
            DiskOperation::CreateDir { .. } => OpKind::CreateDir,
            DiskOperation::Create { .. } => OpKind::Create,
            DiskOperation::Rename { .. } => OpKind::Rename,
            DiskOperation::Remove { .. } => OpKind::Remove,
            DiskOperation::SyncDir { .. } => OpKind::SyncDir,
            DiskOperation::Write { .. } => OpKind::Write,
            DiskOperation::SyncData { .. } | DiskOperation::SyncDataFailed { .. } => OpKind::SyncData,
        }
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// One line, for the reader of a failed test.
impl fmt::Display for DiskOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskOperation::CreateDir { dir } => write!(f, "create dir {}", dir.display()),
            DiskOperation::Create { dir, name, file } => write!(f, "create {}/{name} as {file}", dir.display()),
            DiskOperation::Rename { dir, from, to, file } => {
                write!(f, "rename {}/{from} to {to}, {file}", dir.display())
            }
            DiskOperation::Remove { dir, name, file } => write!(f, "remove {}/{name}, {file}", dir.display()),
            DiskOperation::SyncDir { dir, begun } => write!(f, "sync dir {} as of {begun}", dir.display()),
            DiskOperation::Write { file, offset, bytes } => {
                write!(f, "write {file} at {offset}, {} bytes", bytes.len())
            }
            DiskOperation::SyncData { file, begun } => write!(f, "sync {file} as of {begun}"),
            DiskOperation::SyncDataFailed { file, begun } => write!(f, "sync {file} as of {begun}: failed"),
        }
    }
}

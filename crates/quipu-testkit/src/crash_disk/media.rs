//! Tracks the certain and the open operations on the medium after each operation.
//!
//! In: operations, in order. Out: per file and directory, the durable state and the later
//! operations that may or may not be durable.
//!
//! Invariants:
//! - a certain operation stays certain;
//! - an open operation was really done, and no sync covered it.
//!
//! Not here: drawing the survivors (`crash`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::content::FileContent;
use super::image::Image;
use super::recording::{DiskOperation, FileId};

/// State of the storage medium.
#[derive(Debug, Clone, Default)]
pub(super) struct Media {
    pub(super) dirs: BTreeMap<PathBuf, DirMedia>,
    pub(super) files: BTreeMap<FileId, FileMedia>,
}

/// A directory.
#[derive(Debug, Clone, Default)]
pub(super) struct DirMedia {
    /// Durable entries.
    pub(super) entries: BTreeMap<String, FileId>,
    /// Later operations on entries, in order.
    pub(super) open: Vec<usize>,
}

/// A file.
#[derive(Debug, Clone, Default)]
pub(super) struct FileMedia {
    /// Durable bytes.
    pub(super) content: FileContent,
    /// Later writes, in order.
    pub(super) pending: Vec<PendingWrite>,
}

/// A write that is not part of the durable bytes yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingWrite {
    pub(super) operation: usize,
    pub(super) certainty: WriteCertainty,
}

/// Certainty of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteCertainty {
    /// No sync has covered it yet.
    Open,
    /// A sync covered it and failed: no later one will.
    Doubtful,
    /// Durable, but it overlaps a doubtful one and so cannot be folded into the durable bytes.
    Certain,
}

impl Media {
    /// Creates media on which everything is durable.
    pub(super) fn from_image(image: &Image) -> Media {
        let mut media = Media::default();
        for dir in image.dirs() {
            media.dirs.insert(dir.to_path_buf(), DirMedia::default());
        }
        for (id, (path, content)) in image.contents().enumerate() {
            let (dir, name) = super::split(path).expect("an image holds only paths that were split before");
            media.dirs.entry(dir).or_default().entries.insert(name, FileId(id));
            media.files.insert(FileId(id), FileMedia { content: content.clone(), pending: Vec::new() });
        }
        media
    }

    /// Processes the operation with this index.
    pub(super) fn step(&mut self, index: usize, all: &[DiskOperation]) {
        match &all[index] {
            DiskOperation::CreateDir { dir } => {
                for ancestor in dir.ancestors() {
                    self.dirs.entry(ancestor.to_path_buf()).or_default();
                }
            }
            DiskOperation::Create { dir, file, .. } => {
                self.files.insert(*file, FileMedia::default());
                self.dir_mut(dir).open.push(index);
            }
            DiskOperation::Rename { dir, .. } | DiskOperation::Remove { dir, .. } => self.dir_mut(dir).open.push(index),
            DiskOperation::SyncDir { dir, begun } => {
                let media = self.dir_mut(dir);
                let covered = media.open.partition_point(|operation| operation < begun);
                for operation in media.open.drain(..covered) {
                    apply_entry(&mut media.entries, &all[operation]);
                }
            }
            DiskOperation::Write { file, .. } => {
                self.file_mut(*file).pending.push(PendingWrite { operation: index, certainty: WriteCertainty::Open });
            }
            DiskOperation::SyncData { file, begun } => {
                let media = self.file_mut(*file);
                media.settle(*begun, WriteCertainty::Certain);
                media.fold(all);
            }
            DiskOperation::SyncDataFailed { file, begun } => {
                self.file_mut(*file).settle(*begun, WriteCertainty::Doubtful)
            }
        }
    }

    fn dir_mut(&mut self, dir: &PathBuf) -> &mut DirMedia {
        self.dirs.get_mut(dir).expect("an operation is recorded only on a directory that exists")
    }

    fn file_mut(&mut self, file: FileId) -> &mut FileMedia {
        self.files.get_mut(&file).expect("an operation is recorded only on a file that was created")
    }
}

impl FileMedia {
    /// Sets the certainty of the undecided writes before operation `begun`.
    fn settle(&mut self, begun: usize, certainty: WriteCertainty) {
        for write in &mut self.pending {
            if write.operation < begun && write.certainty == WriteCertainty::Open {
                write.certainty = certainty;
            }
        }
    }

    /// Folds certain writes into the durable bytes, up to the first that is not certain.
    fn fold(&mut self, all: &[DiskOperation]) {
        let certain = self.pending.iter().take_while(|write| write.certainty == WriteCertainty::Certain).count();
        for write in self.pending.drain(..certain) {
            apply_write(&mut self.content, &all[write.operation]);
        }
    }
}

/// Applies a write to the bytes of its file.
pub(super) fn apply_write(content: &mut FileContent, operation: &DiskOperation) {
    if let DiskOperation::Write { offset, bytes, .. } = operation {
        content.write(bytes, *offset);
    }
}

/// Applies an operation to the entries of its directory, if they allow it. A rename or remove takes
/// the file that it took when it was recorded, or nothing.
pub(super) fn apply_entry(entries: &mut BTreeMap<String, FileId>, operation: &DiskOperation) {
    match operation {
        DiskOperation::Create { name, file, .. } => {
            entries.insert(name.clone(), *file);
        }
        DiskOperation::Rename { from, to, file, .. } if entries.get(from) == Some(file) => {
            entries.remove(from);
            entries.insert(to.clone(), *file);
        }
        DiskOperation::Remove { name, file, .. } if entries.get(name) == Some(file) => {
            entries.remove(name);
        }
        _ => {}
    }
}

/// Builds an image from the surviving entries and bytes.
pub(super) fn image_of(
    dirs: impl Iterator<Item = (PathBuf, BTreeMap<String, FileId>)>,
    mut content_of: impl FnMut(FileId) -> FileContent,
) -> Image {
    let (mut names, mut files) = (BTreeSet::new(), BTreeMap::new());
    for (dir, entries) in dirs {
        for (name, file) in entries {
            files.insert(dir.join(name), content_of(file));
        }
        names.insert(dir);
    }
    Image::new(names, files)
}

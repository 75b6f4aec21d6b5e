//! Holds a disk at rest: the files that a machine finds when it starts again.
//!
//! Tests can damage it further: flip a bit, cut a file, swap two files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::CrashDisk;
use super::content::FileContent;

/// The files of a disk, by path. Copies are cheap.
#[derive(Debug, Clone, Default)]
pub struct Image {
    dirs: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, FileContent>, // each in one of `dirs`
}

impl Image {
    pub(super) fn new(dirs: BTreeSet<PathBuf>, files: BTreeMap<PathBuf, FileContent>) -> Image {
        Image { dirs, files }
    }

    /// A number that is equal only for images with the same files and bytes, to count distinct
    /// states.
    pub fn digest(&self) -> u64 {
        let mut hasher = Xxh3::new();
        for (path, content) in &self.files {
            let name = path.as_os_str().as_encoded_bytes();
            hasher.update(&name.len().to_le_bytes());
            hasher.update(name);
            hasher.update(&content.len().to_le_bytes());
            for page in content.pages() {
                hasher.update(page);
            }
        }
        hasher.digest()
    }

    /// A running disk with these files, all durable, with no recording and no locks.
    #[must_use]
    pub fn into_disk(self) -> CrashDisk {
        CrashDisk::from_image(&self, 0)
    }

    /// The same, as a copy on another machine: each file is a different one with the same bytes.
    #[must_use]
    pub fn into_copied_disk(self) -> CrashDisk {
        CrashDisk::from_image(&self, 1)
    }

    /// The same, as the copy with this number. Two copies of one number have the same files, like a
    /// machine and its snapshot.
    #[must_use]
    pub fn into_disk_of(self, copy: u64) -> CrashDisk {
        CrashDisk::from_image(&self, copy)
    }

    /// The paths of all files, in order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// Length of a file, if it exists.
    pub fn len_of(&self, path: impl AsRef<Path>) -> Option<usize> {
        self.files.get(path.as_ref()).map(FileContent::len)
    }

    /// All bytes of a file, if it exists.
    pub fn bytes_of(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.files.get(path.as_ref()).map(FileContent::to_vec)
    }

    /// Flips one bit; bit 0 is the lowest of the first byte. Panics if the file or the bit does not
    /// exist.
    pub fn flip_bit(&mut self, path: impl AsRef<Path>, bit: usize) {
        self.content_mut(path.as_ref()).flip_bit(bit);
    }

    /// Cuts a file to this length, if it is longer. Panics if the file does not exist.
    pub fn truncate(&mut self, path: impl AsRef<Path>, len: usize) {
        self.content_mut(path.as_ref()).truncate(len);
    }

    /// Writes into a file, growing it if necessary. Panics if the file does not exist.
    pub fn overwrite(&mut self, path: impl AsRef<Path>, offset: usize, bytes: &[u8]) {
        self.content_mut(path.as_ref()).write(bytes, offset);
    }

    /// Adds a file with these bytes, or replaces one.
    pub fn insert(&mut self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = path.as_ref();
        for dir in path.ancestors().skip(1) {
            self.dirs.insert(dir.to_path_buf());
        }
        self.files.insert(path.to_path_buf(), FileContent::from_bytes(bytes));
    }

    /// Removes a file. Panics if it does not exist.
    pub fn remove(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        assert!(self.files.remove(path).is_some(), "no file {}", path.display());
    }

    /// Renames a file, replacing any other. Panics if it does not exist.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        let (from, to) = (from.as_ref(), to.as_ref());
        let content = self.files.remove(from).unwrap_or_else(|| panic!("no file {}", from.display()));
        self.files.insert(to.to_path_buf(), content);
    }

    pub(super) fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.dirs.iter().map(PathBuf::as_path)
    }

    pub(super) fn contents(&self) -> impl Iterator<Item = (&Path, &FileContent)> {
        self.files.iter().map(|(path, content)| (path.as_path(), content))
    }

    fn content_mut(&mut self, path: &Path) -> &mut FileContent {
        self.files.get_mut(path).unwrap_or_else(|| panic!("no file {}", path.display()))
    }
}

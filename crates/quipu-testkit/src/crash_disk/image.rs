//! A disk at rest: what a machine finds when it comes up again.
//!
//! Also the place to damage it further: a flipped bit, a cut file, two files swapped.

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

    /// A number that two images share only if they hold the same files with the same bytes; for counting distinct states.
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

    /// A running disk with these files, everything durable, nothing recorded, no locks held.
    #[must_use]
    pub fn into_disk(self) -> CrashDisk {
        CrashDisk::from_image(&self, 0)
    }

    /// The same, as it is after the files were copied to another machine: each is another file with the same bytes.
    #[must_use]
    pub fn into_copied_disk(self) -> CrashDisk {
        CrashDisk::from_image(&self, 1)
    }

    /// The same, as the copy of this number: two of the same number have the same files, as a machine and its snapshot have.
    #[must_use]
    pub fn into_disk_of(self, copy: u64) -> CrashDisk {
        CrashDisk::from_image(&self, copy)
    }

    /// The paths of all files, in order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// How long a file is, if it is there.
    pub fn len_of(&self, path: impl AsRef<Path>) -> Option<usize> {
        self.files.get(path.as_ref()).map(FileContent::len)
    }

    /// All bytes of a file, if it is there.
    pub fn bytes_of(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.files.get(path.as_ref()).map(FileContent::to_vec)
    }

    /// Flips one bit; bit 0 is the lowest of the first byte. Panics if the file or the bit is not there.
    pub fn flip_bit(&mut self, path: impl AsRef<Path>, bit: usize) {
        self.content_mut(path.as_ref()).flip_bit(bit);
    }

    /// Cuts a file to this length, if it is longer. Panics if the file is not there.
    pub fn truncate(&mut self, path: impl AsRef<Path>, len: usize) {
        self.content_mut(path.as_ref()).truncate(len);
    }

    /// Writes into a file, growing it if need be. Panics if the file is not there.
    pub fn overwrite(&mut self, path: impl AsRef<Path>, offset: usize, bytes: &[u8]) {
        self.content_mut(path.as_ref()).write(bytes, offset);
    }

    /// Puts a file there, with these bytes, in place of any other.
    pub fn insert(&mut self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = path.as_ref();
        for dir in path.ancestors().skip(1) {
            self.dirs.insert(dir.to_path_buf());
        }
        self.files.insert(path.to_path_buf(), FileContent::from_bytes(bytes));
    }

    /// Removes a file. Panics if it is not there.
    pub fn remove(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        assert!(self.files.remove(path).is_some(), "no file {}", path.display());
    }

    /// Renames a file, in place of any other. Panics if it is not there.
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

//! The machine behind the ports: its clocks, its random bytes, its disk.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use quipu_model::{Clock, DirLock, LockError, Millis, Rng, Vfs, VfsFile};

use crate::sync::Arc;

/// The machine's clocks.
pub struct SystemClock {
    began: Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the Clock port")]
    fn default() -> SystemClock {
        SystemClock { began: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the Clock port")]
    fn wall(&self) -> Millis {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// The operating system's random bytes.
pub struct SystemRng;

impl Rng for SystemRng {
    fn next(&self) -> u64 {
        getrandom::u64().expect("the operating system has random bytes")
    }
}

/// The machine's file system.
pub struct SystemDisk;

impl Vfs for SystemDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let new: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
        std::fs::create_dir_all(dir)?;
        // The entry of a new directory is in its parent.
        for dir in new {
            match dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent)?,
                _ => self.sync_dir(Path::new("."))?,
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(SystemFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(SystemFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                // For whoever finds it locked; the lock itself is the kernel's and ends with the process.
                file.set_len(0)?;
                file.rewind()?;
                write!(file, "{}", std::process::id())?;
                Ok(Box::new(SystemLock(file)))
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                Err(LockError::Held { holder: text.trim().parse().ok() })
            }
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }
}

struct SystemFile(File);

impl VfsFile for SystemFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

struct SystemLock(#[expect(dead_code, reason = "held for its lock")] File);

impl DirLock for SystemLock {}

//! Mounts a disk of a few megabytes for a test to fill: a tmpfs for one test.
//!
//! It mounts directly where that is allowed (root). Otherwise the test runs itself again in its own
//! mount namespace. If neither works, the test fails with the reason: without a full disk it proves
//! nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in a test that runs in its own namespace.
const NAMESPACE_VARIABLE: &str = "QUIPU_TEST_IN_NAMESPACE";

/// Bytes per write of a filler; smaller at the end, so that no space is left.
const PIECE_BYTES: usize = 64 << 10;

/// A mounted disk. Dropping it unmounts it and deletes its contents.
#[derive(Debug)]
pub struct SmallDisk {
    dir: PathBuf,
}

/// A file that takes the free space.
#[derive(Debug)]
pub struct Filler {
    path: PathBuf,
}

/// Runs a test on a disk of this size. `name` is the test's own full name, for a second run in a
/// namespace.
///
/// # Panics
/// If there is no way to mount such a disk, or the test fails.
pub fn on_small_disk(name: &str, bytes: u64, test: impl FnOnce(&SmallDisk)) {
    match SmallDisk::mount(bytes) {
        Ok(disk) => test(&disk),
        Err(error) if std::env::var_os(NAMESPACE_VARIABLE).is_some() => {
            panic!("no tmpfs can be mounted, not even in a namespace of its own: {error}")
        }
        Err(error) => run_in_namespace(name, &error),
    }
}

impl SmallDisk {
    fn mount(bytes: u64) -> io::Result<SmallDisk> {
        let dir = std::env::temp_dir().join(format!(
            "quipu-small-disk-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let dir = PathBuf::from(dir.to_string_lossy().replace(['(', ')'], ""));
        std::fs::create_dir_all(&dir)?;
        let disk = SmallDisk { dir };
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(&disk.dir)
            .output()?;
        if mounted.status.success() {
            return Ok(disk);
        }
        let output = String::from_utf8_lossy(&mounted.stderr).trim().to_owned();
        // Not mounted, so only the directory must be removed.
        let _ = std::fs::remove_dir(&disk.dir);
        std::mem::forget(disk);
        Err(io::Error::other(output))
    }

    /// Directory of the disk.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates another file that takes all free space.
    pub fn fill(&self) -> io::Result<Filler> {
        let filler = Filler { path: self.dir.join("another-file") };
        filler.grow()?;
        Ok(filler)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process with an open file there keeps it until it is closed.
        let _ = Command::new("umount").arg("-l").arg(&self.dir).output();
        let _ = std::fs::remove_dir(&self.dir);
    }
}

impl Filler {
    /// Takes newly freed space; returns the number of bytes.
    pub fn grow(&self) -> io::Result<u64> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let (mut piece, mut taken) = (PIECE_BYTES, 0);
        while piece > 0 {
            match file.write(&vec![b'x'; piece]) {
                Ok(written) if written > 0 => taken += written as u64,
                Ok(_) => piece /= 2,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => piece /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Frees all of it.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// Runs the test again, in a namespace where it may mount.
fn run_in_namespace(name: &str, why: &io::Error) {
    let test = std::env::current_exe().expect("a test knows its program");
    let outcome = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--"])
        .arg(test)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(NAMESPACE_VARIABLE, "1")
        .output();
    let outcome = outcome
        .unwrap_or_else(|error| panic!("a tmpfs cannot be mounted ({why}), and unshare cannot be run ({error})"));
    let output = format!("{}{}", String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
    print!("{output}");
    assert!(
        outcome.status.success(),
        "a tmpfs cannot be mounted here ({why}); in a namespace of its own the test ended so:\n{output}"
    );
    assert!(output.contains("1 passed"), "there is no test called {name}:\n{output}");
}

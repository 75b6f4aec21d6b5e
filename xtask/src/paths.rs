//! Finds the workspace and cargo's target directory, and checks the free disk space.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Free disk space that a whole run needs: builds, data directories of tests, and the copy in which
/// patches are tried.
const FREE_BYTES_MIN: u64 = 15 << 30;

/// The root of the present workspace. If several clones share a target directory, this program may
/// have been built in another.
pub fn root() -> PathBuf {
    let worked_in = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let xtask = worked_in.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf());
    xtask.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Cargo's target directory: the one this program was built in, unless the environment names
/// another.
pub fn target() -> PathBuf {
    if let Some(given) = std::env::var_os("CARGO_TARGET_DIR") {
        return std::path::absolute(&given).unwrap_or_else(|_| given.into());
    }
    let built = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.to_path_buf()));
    built.unwrap_or_else(|| root().join("target"))
}

/// A directory of xtask within it.
pub fn own(name: &str) -> PathBuf {
    target().join("xtask").join(name)
}

/// Refuses to begin on a disk that a build would fill.
pub fn check_free_space() -> anyhow::Result<()> {
    let target = target();
    let there = target.ancestors().find(|folder| folder.exists()).context("find the target directory's disk")?;
    let disk = rustix::fs::statvfs(there).with_context(|| format!("ask for the free space of {}", there.display()))?;
    let free = disk.f_bavail * disk.f_frsize;
    if free < FREE_BYTES_MIN {
        bail!(
            "{} GB are free where {} is, {} are needed; `cargo clean` or deleting {} makes room",
            free >> 30,
            target.display(),
            FREE_BYTES_MIN >> 30,
            own("patches").display()
        );
    }
    Ok(())
}

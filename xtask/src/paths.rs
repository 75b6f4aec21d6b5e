//! Where things are.

use std::path::{Path, PathBuf};

/// The root of the workspace: of the one that is worked in. Where several clones share a target directory, this program may have been built in another.
pub fn root() -> PathBuf {
    let worked_in = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let xtask = worked_in.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf());
    xtask.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Cargo's target directory: the one this program was built in, unless the environment names another.
pub fn target() -> PathBuf {
    if let Some(given) = std::env::var_os("CARGO_TARGET_DIR") {
        return std::path::absolute(&given).unwrap_or_else(|_| given.into());
    }
    let built = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.to_path_buf()));
    built.unwrap_or_else(|| root().join("target"))
}

/// A directory of ours within it.
pub fn own(name: &str) -> PathBuf {
    target().join("xtask").join(name)
}

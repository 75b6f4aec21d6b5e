//! Names of the files at the root of a data directory.

/// The file that holds the pid of the process that uses the directory.
pub const LOCK_FILE: &str = "lock";

/// Name of the control file.
pub const CONTROL_FILE: &str = "control";
pub(crate) const CONTROL_FILE_NEW: &str = "control.new";

/// Name of the control file while a backup or restore still fills the directory.
pub const CONTROL_FILE_UNFINISHED: &str = "control.unfinished";

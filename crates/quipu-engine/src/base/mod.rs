//! Ports to the machine, settings and names that every other module may use.
//!
//! Rank 0: these modules use none of the engine's others.

pub(crate) mod failpoint;
pub(crate) mod file_names;
pub(crate) mod logging;
pub(crate) mod options;
pub(crate) mod sharing_options;
pub(crate) mod sync;
pub(crate) mod system;
pub(crate) mod time;

//! Runs commands: admission, turns, and the fast path for simple commands.
//!
//! Not here: the effect of a command on a locked shard (`apply`), durability (`journal`).

pub(crate) mod fast_path;
pub mod routing;
pub mod turn;

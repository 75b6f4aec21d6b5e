//! Runs real servers under test on free ports in temporary directories: starts, stops, kills and
//! restarts them by process id.
//!
//! A server that is not installed is a failure that names the package, never a skipped test.

pub mod postgres;
pub mod redis;

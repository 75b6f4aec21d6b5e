//! Real servers under test: started on free ports in temporary directories, stopped, killed and started again by process id.
//!
//! A server that is not installed is a failure that names the package, never a skipped test.

pub mod postgres;
pub mod redis;

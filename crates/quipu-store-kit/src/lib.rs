//! Provides what the stores on outside systems share.
//!
//! In: a store's URL, and its driver's futures and errors. Out: checked options, and answers of the
//! store port.
//!
//! - [`StoreUrl`] and [`Options`]: from a URL to checked options, without the password in errors;
//! - [`DriverThread`]: runs a driver that needs a runtime; any thread awaits its answers;
//! - [`CallFailure`]: why a call has no answer, and what that means for its outcome;
//! - [`await_reply`]: the bound on a reply.
//!
//! Not here: the meaning of one driver's errors, any data layout, any driver.

mod config;
mod driver_thread;
mod failure;
mod reply;

pub use config::{ConfigError, Options, StoreUrl};
pub use driver_thread::DriverThread;
pub use failure::{CallFailure, Cause};
pub use reply::await_reply;

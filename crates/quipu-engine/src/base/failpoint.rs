//! Names steps at which a test can end, delay or fail the process.
//!
//! With the feature `failpoints`, `FAILPOINTS="written=37*off->panic"` ends the process at the 38th
//! pass. Without it the calls are nothing.

/// Passes a named step.
#[cfg(feature = "failpoints")]
macro_rules! step {
    ($name:literal) => {
        fail::fail_point!($name)
    };
}

/// Passes a named step.
#[cfg(not(feature = "failpoints"))]
macro_rules! step {
    ($name:literal) => {};
}

pub(crate) use step;

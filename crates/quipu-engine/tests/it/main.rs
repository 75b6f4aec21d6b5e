//! Tests the engine through its public interface, on a simulated disk and clock.
//!
//! Lines that begin with `proof:` report the number of cases tried; `cargo xtask test` gathers
//! them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod backups;
mod clock;
mod cold;
mod commands;
mod counting_lives;
mod damage;
mod faults;
mod golden;
mod hazards;
mod lives;
mod lost_store;
mod namespaces;
mod regressions;
mod replay;
mod sampling;
mod settling;
mod shared_sketches;
mod sharing;
mod sketches;
mod split;
mod survey;
mod tokens;
mod world;

//! Tests of sketches through the engine's interface: edits, bytes, replay.

mod damage;
mod edits;
mod fuzz;

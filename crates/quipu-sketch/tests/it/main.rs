//! Sketches through the door that the engine uses: edits, bytes, replay.

mod damage;
mod edits;
mod fuzz;

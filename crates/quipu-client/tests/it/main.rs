//! Tests the client against servers that misbehave in one known way each. With the real program:
//! `crates/quipu/tests/client`.

mod toy;

mod adder;
mod calls;

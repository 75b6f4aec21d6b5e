//! The client, on servers that misbehave in one known way each. On the real program: `crates/quipu/tests/client.rs`.

mod toy;

mod adder;
mod calls;

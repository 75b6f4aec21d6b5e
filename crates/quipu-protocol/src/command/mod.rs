//! Defines every operation once: its name, its arguments, its request.
//!
//! In: the arguments of one frame. Out: a [`Request`], or the error text of Redis.
//!
//! Parsing has two steps, because Redis treats their failures differently in a transaction:
//! - [`lookup`] finds the operation and checks the number of arguments. A failure here aborts a
//!   MULTI.
//! - [`Spec::parse`] reads the arguments. A failure here is one reply of EXEC.

mod absent;
mod arguments;
mod connection;
mod counter;
mod describe;
mod error;
mod expiry;
mod identity;
mod page;
mod request;
mod sketch;
mod spec;
mod table;

pub use arguments::{Argument, ArgumentKind};
pub use connection::{
    ClientCommand, ClientReplyMode, ConfigCommand, ConnectionCommand, Hello, HotKeysCommand, Introspection,
};
pub use describe::{describe, help};
pub use error::CommandError;
pub use page::page;
pub use request::{CounterRequest, OnceRequest, Request};
pub use spec::{Flag, Group, Keys, Spec, lookup};
pub use table::TABLE;

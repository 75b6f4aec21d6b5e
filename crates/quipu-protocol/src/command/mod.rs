//! Every operation, once: what it is called, how it is asked for, what it becomes.
//!
//! In: the arguments of one frame. Out: a [`Request`], or the error text that Redis would give.
//!
//! Two steps, because a transaction needs them apart as Redis does: [`lookup`] finds the operation and checks the number of
//! arguments (a failure there spoils a MULTI), [`Spec::parse`] reads the arguments (a failure there is one reply of EXEC).

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

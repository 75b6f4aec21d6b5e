//! Translates RESP2, RESP3 and JSON to commands, and replies back.
//!
//! In: bytes from a socket. Out: requests for the engine or the connection, and bytes for their
//! replies.
//!
//! ```text
//! bytes ─► resp::decode ─► Args ─► command::lookup ─► Spec ─► Spec::parse ─► Request
//!                                                                              │
//! bytes ◄─ resp::encode ◄─────────────────────────── Reply + ReplyShape ◄─── engine, connection
//! ```
//!
//! Invariants:
//! - This crate allocates for bytes received, never for lengths announced.
//! - No client bytes make this crate panic.
//! - `command::table` alone describes the operations of RESP; [`json`] has the forms of the HTTP
//!   interface.
//!
//! Not here: sockets, time-outs, access control (`quipu-server`); execution of commands
//! (`quipu-engine`).

mod address;
pub mod command;
mod items;
pub mod json;
pub mod number;
pub mod resp;
mod simple;

pub use address::{Address, BadAddress};
pub use command::{CommandError, Request, Spec, lookup};
pub use items::{ItemCount, ItemFrame, SketchTarget, decode_item};
pub use resp::{Args, DecodeError, Decoder, Frame, Limits, RespVersion, RespWriter};
pub use simple::{SimpleFrame, SimpleVerb, decode_simple};

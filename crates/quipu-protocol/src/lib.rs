//! RESP2, RESP3 and JSON on one side, commands and replies on the other.
//!
//! In: bytes from a socket. Out: requests that the engine or the connection understands, and bytes for their replies.
//!
//! ```text
//! bytes ─► resp::decode ─► Args ─► command::lookup ─► Spec ─► Spec::parse ─► Request
//!                                                                              │
//! bytes ◄─ resp::encode ◄──────────────────────────────── Reply + Shape ◄─── engine, connection
//! ```
//!
//! Invariants:
//! - nothing is allocated because a client announced a length, only because bytes arrived;
//! - no bytes from outside can make this crate panic;
//! - every operation of RESP is described in one place, `command::table`; the forms of the HTTP door are in [`json`].
//!
//! Not here: sockets, time-outs, who may ask what (`quipu-server`); what a command does (`quipu-engine`).

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

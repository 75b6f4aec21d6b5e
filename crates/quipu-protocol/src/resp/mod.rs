//! RESP on the wire: decodes frames and encodes replies; for clients, decodes replies.

mod args;
mod connection;
mod decode;
mod dump;
mod encode;
mod inline;
mod limits;
mod reading;
mod reply;
mod sketch;
mod value;

pub use args::{Args, ArgsIter, StoredArgs};
pub use connection::RespConnection;
pub use decode::{DecodeError, Decoder, Frame};
pub use encode::{ReplyShape, RespVersion, RespWriter, request, write_request};
pub use limits::Limits;
pub use reply::{ReplyError, ReplyReader};
pub use value::Value;

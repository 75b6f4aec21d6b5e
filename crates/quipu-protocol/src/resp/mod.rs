//! The wire: frames in, replies out.

mod args;
mod decode;
mod encode;
mod inline;
mod limits;
mod reading;

pub use args::{Args, ArgsIter, Stored};
pub use decode::{DecodeError, Decoder, Frame};
pub use encode::{Shape, Version, Writer, request};
pub use limits::Limits;

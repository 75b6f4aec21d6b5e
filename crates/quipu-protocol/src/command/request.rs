//! Typed request of a frame.

use quipu_model::{Command, Identity};

use super::ConnectionCommand;
use crate::resp::ReplyShape;

/// One request of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Request<'a> {
    /// For the engine.
    Counter(CounterRequest<'a>),
    /// Several commands for the engine as one step: all applied, or none; replies OK. MSET.
    SetMany(Vec<Command<'a>>),
    /// For the engine, once: a retry gets the same reply.
    Once(OnceRequest<'a>),
    /// For the connection or the server.
    Connection(ConnectionCommand<'a>),
}

/// A mutation with an identity, and its reply shape.
#[derive(Debug, Clone, PartialEq)]
pub struct OnceRequest<'a> {
    /// Identity.
    pub identity: Identity<'a>,
    /// One command, or several as one step.
    pub commands: Vec<Command<'a>>,
    /// Reply shape.
    pub shape: ReplyShape,
}

/// A command for the engine, and its reply shape.
#[derive(Debug, Clone, PartialEq)]
pub struct CounterRequest<'a> {
    /// Command.
    pub command: Command<'a>,
    /// Reply shape.
    pub shape: ReplyShape,
}

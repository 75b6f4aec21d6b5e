//! What a frame asks for, typed.

use quipu_model::{Command, Identity};

use super::ConnectionCommand;
use crate::resp::ReplyShape;

/// One request of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Request<'a> {
    /// For the engine.
    Counter(CounterRequest<'a>),
    /// Several commands for the engine that are one step: all applied, or none; replies OK. MSET.
    SetMany(Vec<Command<'a>>),
    /// For the engine, once: a retry gets the same reply.
    Once(OnceRequest<'a>),
    /// For the connection or the server around it.
    Connection(ConnectionCommand<'a>),
}

/// A mutation that has a name, and how its answer looks.
#[derive(Debug, Clone, PartialEq)]
pub struct OnceRequest<'a> {
    /// Its name.
    pub identity: Identity<'a>,
    /// What is asked: one command, or several that are one step.
    pub commands: Vec<Command<'a>>,
    /// How the answer is written.
    pub shape: ReplyShape,
}

/// A command for the engine, and how its answer looks.
#[derive(Debug, Clone, PartialEq)]
pub struct CounterRequest<'a> {
    /// What is asked.
    pub command: Command<'a>,
    /// How the answer is written.
    pub shape: ReplyShape,
}

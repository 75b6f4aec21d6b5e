//! Asks the engine, as every door does: admitted, applied, committed, then answered.
//!
//! In: a command. Out: its reply, once that may be told.
//!
//! Invariants:
//! - no reply leaves before what it includes is as durable as its namespace asks; adds of many connections ride the same commit;
//! - a request that needs counters at rest, or rows of a shared store, waits alone;
//! - a turn lives within one step, never across a wait.

use quipu_engine::{Load, Loaded, Turn, Wait};
use quipu_model::{Command, Freshness, Name, Reading, Reply};

use super::problem::Failure;
use super::token::Token;
use crate::shared::Shared;

/// Carries out a command.
pub(super) async fn carry_out(shared: &Shared, command: &Command<'_>) -> Result<Reply, Failure> {
    carry_out_once(shared, None, command).await
}

/// Carries out a mutation, once however often it is asked for if it has a token.
pub(super) async fn carry_out_once(
    shared: &Shared,
    token: Option<&Token>,
    command: &Command<'_>,
) -> Result<Reply, Failure> {
    shared.hot.ran_one(command, shared.engine.now());
    match turns(shared, |turn| run(turn, token, command)).await? {
        Ran::Turned(Reply::Refused(refusal)) | Ran::Loaded(Reply::Refused(refusal)) => Err(refusal.into()),
        Ran::Turned(reply) | Ran::Loaded(reply) => Ok(reply),
    }
}

/// Runs a command, under its token if it has one.
pub(super) fn run(turn: &mut Turn<'_>, token: Option<&Token>, command: &Command<'_>) -> Result<Reply, Load> {
    match token {
        Some(token) => turn.run_once(&token.identity(), std::slice::from_ref(command)),
        None => turn.run(command),
    }
}

/// Reads a counter.
pub(super) async fn read(shared: &Shared, name: Name<'_>, freshness: Freshness) -> Result<Reading, Failure> {
    match turns(shared, |turn| turn.reading(name, freshness)).await? {
        Ran::Turned(reading) => Ok(reading?),
        Ran::Loaded(reply) => unreachable!("what is loaded for a reading has no reply of its own: {reply:?}"),
    }
}

/// How a step came to its end.
pub(super) enum Ran<T> {
    /// In a turn.
    Turned(T),
    /// By what was loaded for it.
    Loaded(Reply),
}

/// Takes turns until a step needs nothing more, and commits.
pub(super) async fn turns<T>(
    shared: &Shared,
    mut step: impl FnMut(&mut Turn<'_>) -> Result<T, Load>,
) -> Result<Ran<T>, Failure> {
    let mut rows_since = None;
    loop {
        let (ran, wait) = {
            let mut turn = shared.engine.turn();
            if let Some(since) = rows_since {
                turn.rows_since(since);
            }
            let ran = step(&mut turn);
            (ran, turn.finish())
        };
        let load = match ran {
            Ok(value) => {
                commit(shared, wait).await?;
                return Ok(Ran::Turned(value));
            }
            Err(load) => load,
        };
        // What the step has done before it found something missing is told later, by whoever asked for it.
        commit(shared, wait).await?;
        match shared.engine.load(load).await {
            Loaded::Again => {}
            Loaded::Fetched(at) => {
                // What was fetched the first time stays fresh enough, or several counters would never be fresh at once.
                rows_since.get_or_insert(at);
            }
            Loaded::Refused(refusal) => return Err(refusal.into()),
            Loaded::Unknown => return Err(Failure::Silence),
            Loaded::Reply(reply, wait) => {
                commit(shared, wait).await?;
                return Ok(Ran::Loaded(reply));
            }
        }
    }
}

async fn commit(shared: &Shared, wait: Wait) -> Result<(), Failure> {
    if wait != Wait::default() {
        // Whoever else is ready applies first, so that one commit serves all.
        tokio::task::yield_now().await;
        shared.engine.committed(wait).await.map_err(|_| Failure::Silence)?;
    }
    Ok(())
}

//! Asks the engine, as every door does: admitted, applied, committed, then answered.
//!
//! In: a command. Out: its reply, once that may be told.
//!
//! Invariants:
//! - no reply leaves before what it includes is as durable as its namespace asks; adds of many connections ride the same commit;
//! - a request that needs counters at rest, or rows of a shared store, waits alone;
//! - a turn lives within one step, never across a wait.

use quipu_engine::{Load, LoadOutcome, Turn, Wait};
use quipu_model::{Command, Freshness, Name, Reading, Reply};

use super::problem::RequestFailure;
use super::token::RequestToken;
use crate::server_state::ServerState;

/// Carries out a command.
pub(super) async fn execute_command(server: &ServerState, command: &Command<'_>) -> Result<Reply, RequestFailure> {
    execute_once(server, None, command).await
}

/// Carries out a mutation, once however often it is asked for if it has a token.
pub(super) async fn execute_once(
    server: &ServerState,
    token: Option<&RequestToken>,
    command: &Command<'_>,
) -> Result<Reply, RequestFailure> {
    server.hot_keys.record_command(command, server.engine.now());
    match run_with_loads(server, |turn| run_in_turn(turn, token, command)).await? {
        StepOutcome::Completed(Reply::Refused(refusal)) | StepOutcome::Loaded(Reply::Refused(refusal)) => {
            Err(refusal.into())
        }
        StepOutcome::Completed(reply) | StepOutcome::Loaded(reply) => Ok(reply),
    }
}

/// Runs a command, under its token if it has one.
pub(super) fn run_in_turn(
    turn: &mut Turn<'_>,
    token: Option<&RequestToken>,
    command: &Command<'_>,
) -> Result<Reply, Load> {
    match token {
        Some(token) => turn.run_once(&token.identity(), std::slice::from_ref(command)),
        None => turn.run(command),
    }
}

/// Reads a counter.
pub(super) async fn read_counter(
    server: &ServerState,
    name: Name<'_>,
    freshness: Freshness,
) -> Result<Reading, RequestFailure> {
    match run_with_loads(server, |turn| turn.reading(name, freshness)).await? {
        StepOutcome::Completed(reading) => Ok(reading?),
        StepOutcome::Loaded(reply) => unreachable!("what is loaded for a reading has no reply of its own: {reply:?}"),
    }
}

/// How a step came to its end.
pub(super) enum StepOutcome<T> {
    /// In a turn.
    Completed(T),
    /// By what was loaded for it.
    Loaded(Reply),
}

/// Takes turns until a step needs nothing more, and commits.
pub(super) async fn run_with_loads<T>(
    server: &ServerState,
    mut step: impl FnMut(&mut Turn<'_>) -> Result<T, Load>,
) -> Result<StepOutcome<T>, RequestFailure> {
    let mut rows_since = None;
    loop {
        let (result, wait) = {
            let mut turn = server.engine.turn();
            if let Some(since) = rows_since {
                turn.set_rows_since(since);
            }
            let result = step(&mut turn);
            (result, turn.finish())
        };
        let load = match result {
            Ok(value) => {
                commit(server, wait).await?;
                return Ok(StepOutcome::Completed(value));
            }
            Err(load) => load,
        };
        // What the step has done before it found something missing is told later, by whoever asked for it.
        commit(server, wait).await?;
        match server.engine.load(load).await {
            LoadOutcome::Retry => {}
            LoadOutcome::Fetched(at) => {
                // What was fetched the first time stays fresh enough, or several counters would never be fresh at once.
                rows_since.get_or_insert(at);
            }
            LoadOutcome::Refused(refusal) => return Err(refusal.into()),
            LoadOutcome::Unknown => return Err(RequestFailure::OutcomeUnknown),
            LoadOutcome::Reply(reply, wait) => {
                commit(server, wait).await?;
                return Ok(StepOutcome::Loaded(reply));
            }
        }
    }
}

async fn commit(server: &ServerState, wait: Wait) -> Result<(), RequestFailure> {
    if wait != Wait::default() {
        // Whoever else is ready applies first, so that one commit serves all.
        tokio::task::yield_now().await;
        server.engine.commit_until(wait).await.map_err(|_| RequestFailure::OutcomeUnknown)?;
    }
    Ok(())
}

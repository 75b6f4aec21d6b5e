//! Executes commands on the engine, in the same steps as RESP: admitted, applied, committed,
//! replied.
//!
//! In: a command. Out: its reply, once its content is durable.
//!
//! Invariants:
//! - No reply leaves before its content is as durable as its namespace requires. Adds of many
//!   connections share one commit.
//! - A request that needs evicted counters, or rows of a shared store, waits alone.
//! - A turn lives within one step, never across an await.

use quipu_engine::{Load, LoadOutcome, NotRun, Turn, Wait};
use quipu_model::{Command, Freshness, Name, Reading, Reply};

use super::problem::RequestFailure;
use super::token::RequestToken;
use crate::server_state::ServerState;

/// Executes a command.
pub(super) async fn execute_command(server: &ServerState, command: &Command<'_>) -> Result<Reply, RequestFailure> {
    execute_once(server, None, command).await
}

/// Executes a mutation; with a token once, however many retries.
pub(super) async fn execute_once(
    server: &ServerState,
    token: Option<&RequestToken>,
    command: &Command<'_>,
) -> Result<Reply, RequestFailure> {
    server.hot_keys.record_command(command, server.engine.now());
    match run_with_loads(server, |turn| Ok(run_in_turn(turn, token, command)?)).await? {
        StepOutcome::Completed(Reply::Refused(refusal)) | StepOutcome::Loaded(Reply::Refused(refusal)) => {
            Err(refusal.into())
        }
        StepOutcome::Completed(reply) | StepOutcome::Loaded(reply) => Ok(reply),
    }
}

/// Runs a command in a turn, under its token if it has one.
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
        StepOutcome::Completed(reading) => Ok(reading),
        StepOutcome::Loaded(reply) => unreachable!("what is loaded for a reading has no reply of its own: {reply:?}"),
    }
}

/// End of a step.
pub(super) enum StepOutcome<T> {
    /// Completed in a turn.
    Completed(T),
    /// Replied by the load.
    Loaded(Reply),
}

/// Takes turns until a step needs no more loads, and commits.
pub(super) async fn run_with_loads<T>(
    server: &ServerState,
    mut step: impl FnMut(&mut Turn<'_>) -> Result<T, NotRun>,
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
            Err(NotRun::Refused(refusal)) => {
                // The refusal shows the counter's state, which must be durable.
                commit(server, wait).await?;
                return Err(refusal.into());
            }
            Err(NotRun::Load(load)) => load,
        };
        // The step may have applied something before the missing load; a later reply reports it.
        commit(server, wait).await?;
        match server.engine.load(load).await {
            LoadOutcome::Retry => {}
            LoadOutcome::Fetched(at) => {
                // The first fetched rows stay fresh enough; otherwise several counters would never
                // be fresh at once.
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
        // Other ready tasks apply first, so that one commit serves all.
        tokio::task::yield_now().await;
        server.engine.commit_until(wait).await.map_err(|_| RequestFailure::OutcomeUnknown)?;
    }
    Ok(())
}

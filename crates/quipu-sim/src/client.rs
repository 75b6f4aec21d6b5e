//! Simulates a client and its worker: one act, cut into steps; any event may happen between two
//! steps.
//!
//! Run the turn → fill → hand over and sync, until the reply is as durable as required → reply. Or
//! wait for a row or a swap, and run again.

use std::sync::Arc;

use quipu_engine::{Engine, Load, LoadOutcome, Position, SimpleReply, Turn, Wait};
use quipu_model::{Command, Refusal, Reply, SimpleCommand};
use quipu_testkit::SeededRng;

use crate::act::Act;
use crate::counters::{COUNTERS, counter_name};
use crate::judge::ActOutcome;
use crate::machine::step_commit;
use crate::task::yield_now;

/// Serves one act.
pub async fn serve(engine: Engine, rng: Arc<SeededRng>, act: Act) -> ActOutcome {
    if let Some(once) = act.once() {
        let loaded = engine.steps().enqueue_load(Load::Once(once.into())).await;
        let position = engine.steps().reserved();
        let again = ActOutcome { reply: None, position };
        return outcome_of_load(&engine, &rng, loaded, position).await.unwrap_or(again);
    }
    let command = act.command();
    let mut since = None;
    loop {
        let mut turn = engine.turn();
        since.into_iter().for_each(|since| turn.set_rows_since(since));
        let ran = run(&mut turn, &rng, &act, &command);
        turn.end_run();
        let position = engine.steps().reserved();
        yield_now().await;
        turn.fill();
        yield_now().await;
        let wait = turn.finish();
        let load = match ran {
            Ok(reply) => return reply_when_reached(&engine, &rng, wait, reply, position).await,
            Err(load) => load,
        };
        let loaded = engine.steps().enqueue_load(load).await;
        if let LoadOutcome::Fetched(at) = loaded {
            // The first fetch fixes the freshness; otherwise several counters would never be fresh
            // at once.
            since = since.or(Some(at));
        }
        if let Some(outcome) = outcome_of_load(&engine, &rng, loaded, position).await {
            return outcome;
        }
    }
}

/// Runs a command as a server does: a simple one together with others from the same read, any other
/// alone.
fn run(turn: &mut Turn<'_>, rng: &SeededRng, act: &Act, command: &Command<'_>) -> Result<Reply, Load> {
    let Some(simple) = act.simple_command() else { return turn.run(command) };
    let read_of = |counter| SimpleCommand { name: counter_name(counter), delta: None };
    let (mut simple_commands, mut replies) = (vec![simple], Vec::new());
    if rng.chance(30) {
        simple_commands.insert(0, read_of(rng.below(COUNTERS.len())));
    }
    if rng.chance(30) {
        simple_commands.push(read_of(act.counter));
    }
    let at = usize::from(simple_commands[0] != simple);
    turn.run_simple(&simple_commands, |reply| replies.push(reply));
    match replies.get(at) {
        Some(SimpleReply::Added(value)) => Ok(Reply::Integer(*value)),
        Some(SimpleReply::Read(value)) => Ok(Reply::Value(*value)),
        Some(SimpleReply::Overflow) => Ok(Reply::Refused(Refusal::Overflow)),
        None => turn.run(command),
    }
}

/// Returns the load's outcome as the answer, unless the command has to run again.
async fn outcome_of_load(
    engine: &Engine,
    rng: &SeededRng,
    loaded: LoadOutcome,
    position: Position,
) -> Option<ActOutcome> {
    match loaded {
        LoadOutcome::Retry | LoadOutcome::Fetched(_) => None,
        LoadOutcome::Reply(reply, wait) => Some(reply_when_reached(engine, rng, wait, reply, position).await),
        LoadOutcome::Refused(refusal) => Some(ActOutcome { reply: Some(Reply::Refused(refusal)), position }),
        LoadOutcome::Unknown => Some(ActOutcome { reply: None, position }),
    }
}

async fn reply_when_reached(
    engine: &Engine,
    rng: &SeededRng,
    wait: Wait,
    reply: Reply,
    position: Position,
) -> ActOutcome {
    while !engine.steps().has_reached(wait) {
        yield_now().await;
        step_commit(engine, rng);
    }
    ActOutcome { reply: Some(reply), position }
}

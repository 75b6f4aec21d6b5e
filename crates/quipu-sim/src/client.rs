//! A client and the worker that serves it: one act, cut into the steps between which anything may happen.
//!
//! run the turn → fill → hand over, sync, until what the reply shows is as durable as it must be → reply; or wait for a row or a swap, and run again.

use std::sync::Arc;

use quipu_engine::{Engine, Load, Loaded, Position, Wait};
use quipu_model::Reply;
use quipu_testkit::Dice;

use crate::act::Act;
use crate::judge::Answer;
use crate::task::pause;

/// Serves one act.
pub async fn serve(engine: Engine, dice: Arc<Dice>, act: Act) -> Answer {
    if let Some(once) = act.once() {
        let loaded = engine.steps().ask(Load::Once(once.into())).await;
        let position = engine.steps().reserved();
        let again = Answer { reply: None, position };
        return answer(&engine, &dice, loaded, position).await.unwrap_or(again);
    }
    let command = act.command();
    let mut since = None;
    loop {
        let mut turn = engine.turn();
        since.into_iter().for_each(|since| turn.rows_since(since));
        let ran = turn.run(&command);
        turn.release();
        let position = engine.steps().reserved();
        pause().await;
        turn.fill();
        pause().await;
        let wait = turn.finish();
        let load = match ran {
            Ok(reply) => return reply_after(&engine, &dice, wait, reply, position).await,
            Err(load) => load,
        };
        let loaded = engine.steps().ask(load).await;
        if let Loaded::Fetched(at) = loaded {
            // What was fetched the first time stays fresh enough, or several counters would never be fresh at once.
            since = since.or(Some(at));
        }
        if let Some(answer) = answer(&engine, &dice, loaded, position).await {
            return answer;
        }
    }
}

/// What was waited for is the answer, unless the command has to run again.
async fn answer(engine: &Engine, dice: &Dice, loaded: Loaded, position: Position) -> Option<Answer> {
    match loaded {
        Loaded::Again | Loaded::Fetched(_) => None,
        Loaded::Reply(reply, wait) => Some(reply_after(engine, dice, wait, reply, position).await),
        Loaded::Refused(refusal) => Some(Answer { reply: Some(Reply::Refused(refusal)), position }),
        Loaded::Unknown => Some(Answer { reply: None, position }),
    }
}

async fn reply_after(engine: &Engine, dice: &Dice, wait: Wait, reply: Reply, position: Position) -> Answer {
    while !engine.steps().reached(wait) {
        pause().await;
        // Any worker's commit serves all of them.
        if dice.chance(50) {
            engine.steps().hand_over();
        } else {
            engine.steps().sync();
        }
    }
    Answer { reply: Some(reply), position }
}

//! A client and the worker that serves it: one act, cut into the steps between which anything may happen.
//!
//! run the turn → fill → hand over, sync, until what the reply shows is as durable as it must be → reply; or wait for a row or a swap, and run again.

use std::sync::Arc;

use quipu_engine::{BriefReply, Engine, Load, Loaded, Position, Turn, Wait};
use quipu_model::{Brief, Command, Refusal, Reply};
use quipu_testkit::Dice;

use crate::act::Act;
use crate::counters::{COUNTERS, name_of};
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
        let ran = run(&mut turn, &dice, &act, &command);
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

/// Runs a command as a server does: together with others that came in the same read if it is of those that can, by itself if not.
fn run(turn: &mut Turn<'_>, dice: &Dice, act: &Act, command: &Command<'_>) -> Result<Reply, Load> {
    let Some(brief) = act.brief() else { return turn.run(command) };
    let look = |counter| Brief { name: name_of(counter), delta: None };
    let (mut briefs, mut replies) = (vec![brief], Vec::new());
    if dice.chance(30) {
        briefs.insert(0, look(dice.below(COUNTERS.len())));
    }
    if dice.chance(30) {
        briefs.push(look(act.counter));
    }
    let at = usize::from(briefs[0] != brief);
    turn.run_briefs(&briefs, |reply| replies.push(reply));
    match replies.get(at) {
        Some(BriefReply::Added(value)) => Ok(Reply::Integer(*value)),
        Some(BriefReply::Read(value)) => Ok(Reply::Value(*value)),
        Some(BriefReply::Overflow) => Ok(Reply::Refused(Refusal::Overflow)),
        None => turn.run(command),
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

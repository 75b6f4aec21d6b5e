//! A mutation with a token: applied once, answered as often as it is asked for.
//!
//! In: an identity and a mutation. Out: its reply, the first one's if it is a retry; what must be durable before it may leave.
//!
//! The shard of the token is held beside those of the counters from the look-up to the end of the run, so of two turns with the same token one applies and the other finds
//! it applied. Both wait for the newest record of that shard, which is that of the effect or comes after it. The token and its effect are one record: after a crash both
//! are there, or neither is. So a counter in memory mode is journaled when it is changed under a token; nobody waits for that.
//!
//! Invariants:
//! - what was refused is not remembered: nothing was applied;
//! - a retry is answered also where nothing can be written;
//! - who is told that something was applied, by its reply or by a refusal, is told after that is durable.

use std::time::Duration;

use quipu_model::shared::Token;
use quipu_model::{
    Command, Durability, Identity, Item, Name, OUTCOME_BYTES_MAX, Outcome, Refusal, Reply, Set, SetCondition, SetExpiry,
};

use super::{NotRun, Turn};
use crate::admit::{Reach, reach};
use crate::apply::Held;
use crate::journal::format::{ENTRY_BYTES_MAX, Entry, RECORD_BYTES_MAX};
use crate::load::Load;
use crate::sharing::Once;
use crate::sketches::outcome_bytes_max;
use crate::tokens::{Applied, CLAIM_RECORD_BYTES_MAX, ClaimRecord, Last, Seen, TokenKey};

/// A mutation under a token.
struct Mutation<'m, 'a> {
    identity: &'m Identity<'a>,
    commands: &'m [Command<'a>],
    key: TokenKey,
    /// The shard that the token is kept in.
    shard: usize,
    digest: u64,
    /// What its reply waits for.
    durability: Durability,
    /// How long it is remembered.
    window: Duration,
    /// Whether the shared store judges its time.
    is_shared: bool,
    /// The claim at the shared store under which it is applied.
    claim: Option<&'m ClaimRecord>,
}

impl<'e> Turn<'e> {
    /// Admits and applies one mutation, or several plain sets as one (replies `Ok`), under a token, unless that was done before. `Err`: counters are at rest, or a
    /// shared store has to be asked; nothing was applied.
    pub fn run_once(&mut self, identity: &Identity<'_>, commands: &[Command<'_>]) -> Result<Reply, Load> {
        let ran = match self.engine.shared {
            Some(_) => Err(self.once_shared(identity, commands)),
            None => self.try_once(identity, commands, None),
        };
        reply_or_load(ran)
    }

    /// Applies one mutation whose token was claimed at the shared store, and remembers the claim in the record of the effect. A mutation that
    /// this node has applied before is answered.
    pub(crate) fn run_claimed(
        &mut self,
        identity: &Identity<'_>,
        command: &Command<'_>,
        claim: &ClaimRecord,
    ) -> Result<Reply, Load> {
        if let Some(refusal) = self.engine.shared.as_ref().and_then(|shared| shared.refusal()) {
            return Ok(Reply::Refused(refusal));
        }
        reply_or_load(self.try_once(identity, std::slice::from_ref(command), Some(claim)))
    }

    /// The reply of a mutation that this node has applied on a shared store, or its refusal if the token was used for another one.
    pub(crate) fn find_applied(&mut self, identity: &Identity<'_>, command: &Command<'_>) -> Option<Reply> {
        self.release();
        let commands = std::slice::from_ref(command);
        let mutation = self.mutation(identity, commands, None).ok()?;
        let held = Held::one(&self.engine.table, mutation.shard);
        self.look(held, &mutation).err()
    }

    fn try_once(
        &mut self,
        identity: &Identity<'_>,
        commands: &[Command<'_>],
        claim: Option<&ClaimRecord>,
    ) -> Result<Reply, NotRun> {
        let mut bodies_bytes = 0;
        loop {
            if let Some(reply) = self.once_as_admitted(identity, commands, claim, &mut bodies_bytes)? {
                return Ok(reply);
            }
        }
    }

    fn mutation<'m, 'a>(
        &self,
        identity: &'m Identity<'a>,
        commands: &'m [Command<'a>],
        claim: Option<&'m ClaimRecord>,
    ) -> Result<Mutation<'m, 'a>, Refusal> {
        let engine = self.engine;
        let digest = engine.tokens.digest(commands).filter(|_| is_one_step(commands)).ok_or(Refusal::NotOnce)?;
        let (key, policies) = (engine.tokens.key(identity), &self.policies);
        let durability = commands.iter().map(|command| reach(command).durability(policies)).max().unwrap_or_default();
        let (shard, window) = (engine.table.shard_of(key.hash()), self.window(commands));
        let is_shared = engine.shared.is_some();
        Ok(Mutation { identity, commands, key, shard, digest, durability, window, is_shared, claim })
    }

    /// `None` if other policies came in force meanwhile, or bodies of sketches were found to need more room: then nothing was applied.
    fn once_as_admitted(
        &mut self,
        identity: &Identity<'_>,
        commands: &[Command<'_>],
        claim: Option<&ClaimRecord>,
        bodies_bytes: &mut usize,
    ) -> Result<Option<Reply>, NotRun> {
        self.release();
        let engine = self.engine;
        let mutation = self.mutation(identity, commands, claim)?;
        let shard = mutation.shard;
        // A retry needs no room, and no counters either.
        if let Err(told) = self.look(Held::one(&engine.table, shard), &mutation) {
            return Ok(Some(told));
        }
        let outcome_bytes: usize = commands.iter().map(outcome_bytes_max).sum();
        if outcome_bytes > OUTCOME_BYTES_MAX {
            return Err(Refusal::TokenReply { bytes_max: OUTCOME_BYTES_MAX }.into());
        }
        let claim_bytes = if claim.is_some() { CLAIM_RECORD_BYTES_MAX } else { 0 };
        let (mut shards, mut bytes) = (vec![shard], ENTRY_BYTES_MAX + outcome_bytes + claim_bytes + *bodies_bytes);
        for command in commands {
            reach(command).shards(&engine.table, &mut shards);
            bytes += reach(command).record_bytes_max(self.own_bytes_max());
        }
        if bytes > RECORD_BYTES_MAX {
            let reason = format!("a command of {bytes} bytes is longer than a record may be");
            return Err(Refusal::NoRoom { reason }.into());
        }
        self.admit(bytes, true, true)?;
        // Somebody else may have come first.
        let held = Held::many(&engine.table, shards);
        if !self.is_admitted() || self.needs_more(&held, commands, bodies_bytes) {
            self.promised = 0;
            return Ok(None);
        }
        match self.look(held, &mutation) {
            Ok(held) => self.apply_once(held, &mutation).map(Some),
            Err(told) => Ok(Some(told)),
        }
    }

    /// How long a mutation is remembered: as the namespace of its counter says, or of several counters the one that says longest.
    fn window(&self, commands: &[Command<'_>]) -> Duration {
        let of = |name: &Name<'_>| self.policies.policy(*name).token_window;
        let windows = commands.iter().map(|command| match reach(command) {
            Reach::One(name) => of(&name),
            Reach::Many(names) => names.iter().map(of).max().unwrap_or_default(),
            Reach::All | Reach::Walk => self.policies.token_window_max(),
        });
        windows.max().unwrap_or_default()
    }

    /// The locks back if the mutation is new; what is to be told about it if it is not.
    fn look(&mut self, mut held: Held<'e>, mutation: &Mutation<'_, '_>) -> Result<Held<'e>, Reply> {
        let tokens = &self.engine.tokens;
        let &Mutation { identity, key, digest, window, .. } = mutation;
        let book = held.shard(mutation.shard).book();
        let seen = match mutation.is_shared {
            true => tokens.find(book, identity, (key, digest), self.now, window),
            false => tokens.look(book, identity, (key, digest), self.now, window),
        };
        let told = match seen {
            Ok(Seen::New) => return Ok(held),
            Ok(Seen::Again(outcome)) => {
                tokens.note_hit();
                outcome.reply()
            }
            Err(refusal) => Reply::Refused(refusal),
        };
        self.held = Some(held);
        self.run_durability = mutation.durability;
        self.release();
        Err(told)
    }

    /// Applies a new mutation and remembers it, in one record.
    fn apply_once(&mut self, mut held: Held<'e>, mutation: &Mutation<'_, '_>) -> Result<Reply, NotRun> {
        let Mutation { identity, commands, key, shard, durability, .. } = *mutation;
        let engine = self.engine;
        // Under the locks: what was admitted before the close must not come after its mark.
        engine.check_open()?;
        if let Some(load) = self.missing(&mut held, commands) {
            return Err(NotRun::Load(load));
        }
        self.check_rows(&mut held, commands)?;
        self.held = Some(held);
        let places = self.hold_places(commands);
        let mut held = self.held.take().expect("it was just put there");
        let _places = places?;
        let has_taken = engine.tokens.take_place(held.shard(shard).book(), identity, key)?;
        self.held = Some(held);
        self.run_durability = durability;
        let mut reply = Reply::Ok;
        for command in commands {
            reply = self.apply(command, Some(durability.max(Durability::Relaxed)), true);
        }
        match Outcome::of(&reply) {
            Some(outcome) => self.remember(mutation, outcome),
            None if has_taken => engine.tokens.give_back(identity),
            None => {}
        }
        self.release();
        Ok(reply)
    }

    fn remember(&mut self, mutation: &Mutation<'_, '_>, outcome: Outcome) {
        let Mutation { identity, key, shard, digest, claim, .. } = *mutation;
        let claim = claim.cloned().map(Box::new);
        let number = if let Item::Sequence(n) = identity.item() { Some(n) } else { None };
        self.draft
            .push(self.now, &Entry::Token { key, digest, number, outcome: outcome.clone(), claim: claim.clone() });
        let book = self.held.as_mut().expect("the run is open").shard(shard).book_mut();
        match number {
            None => book.apply(key, Applied { at: self.now, digest, outcome, claim }),
            Some(n) => book.follow(key, Last { n, digest, outcome }),
        }
    }

    /// On a shared store a token is claimed there, and only adds can be so far.
    fn once_shared(&self, identity: &Identity<'_>, commands: &[Command<'_>]) -> NotRun {
        if self.engine.tokens.digest(commands).filter(|_| is_one_step(commands)).is_none() {
            return Refusal::NotOnce.into();
        }
        if let Some(refusal) = self.engine.shared.as_ref().and_then(|shared| shared.refusal()) {
            return refusal.into();
        }
        match (identity.item(), commands) {
            (Item::Token(_), [Command::Add { name, delta, shard_key: None }]) => {
                let token = Token::new(&identity.key()).expect("an identity is no longer than a token");
                let (window, name, delta) = (self.window(commands), name.bytes().into(), *delta);
                NotRun::Load(Load::Once(Box::new(Once { token, name, delta, window })))
            }
            (Item::Token(_), _) => Refusal::OneOwner { what: "a token on anything but a plain add" }.into(),
            (Item::Sequence(_), _) => Refusal::OneOwner { what: "a sequence number" }.into(),
        }
    }
}

fn reply_or_load(ran: Result<Reply, NotRun>) -> Result<Reply, Load> {
    match ran {
        Ok(reply) => Ok(reply),
        Err(NotRun::Refused(refusal)) => Ok(Reply::Refused(refusal)),
        Err(NotRun::Load(load)) => Err(load),
    }
}

/// Whether all is applied or all is refused: one command, or several of which none is refused once there is room.
fn is_one_step(commands: &[Command<'_>]) -> bool {
    let is_plain = |command: &Command<'_>| {
        let plain = (SetCondition::Always, SetExpiry::Remove, false);
        matches!(command, Command::Set(Set { condition, expiry, reply_old, .. }) if (*condition, *expiry, *reply_old) == plain)
    };
    commands.len() == 1 || commands.iter().all(is_plain)
}

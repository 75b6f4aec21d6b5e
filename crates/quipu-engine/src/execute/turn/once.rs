//! Applies a mutation with a token once, and answers every retry.
//!
//! In: an identity and a mutation. Out: its reply, for a retry the first one's; and the journal
//! position that the reply waits for.
//!
//! The turn holds the token's shard beside the counters' shards, from the look-up to the end of the
//! run. So of two turns with the same token one applies, and the other finds the token applied.
//! Both wait for the newest record of that shard, which is the effect's record or a later one. The
//! token and its effect are one record: a crash keeps both or neither. So a counter in memory mode
//! is journaled when it is changed under a token; no reply waits for that.
//!
//! Invariants:
//! - a refused mutation is not remembered: nothing was applied;
//! - a retry is answered even when no write is possible;
//! - a reply or a refusal that reveals an applied mutation leaves after that mutation is durable.

use std::time::Duration;

use quipu_model::shared::ClaimToken;
use quipu_model::{
    Command, CommandTargets, Durability, Identity, IdentityItem, Name, Refusal, Reply, STORED_REPLY_BYTES_MAX, Set,
    SetCondition, SetExpiry, StoredReply,
};

use crate::apply::bodies::outcome_bytes_max;
use crate::apply::targets::{collect_target_shards, strictest_durability, target_record_bytes_max};
use crate::core::load::Load;
use crate::core::load::TokenAdd;
use crate::execute::turn::{NotRun, OpenRun, Turn};
use crate::journal::claim_record::{CLAIM_RECORD_BYTES_MAX, ClaimRecord};
use crate::journal::format::{ENTRY_BYTES_MAX, Entry, RECORD_BYTES_MAX};
use crate::table::locks::ShardLocks;
use crate::tokens::{AppliedToken, LastSequence, TokenKey, TokenLookup};

/// A mutation under a token.
struct Mutation<'m, 'a> {
    identity: &'m Identity<'a>,
    commands: &'m [Command<'a>],
    key: TokenKey,
    /// The shard that holds the token.
    shard: usize,
    digest: u64,
    /// Durability that the reply waits for.
    durability: Durability,
    /// How long the token is remembered.
    window: Duration,
    /// The shared store judges the token's time.
    is_shared: bool,
    /// The claim at the shared store under which it is applied.
    claim: Option<&'m ClaimRecord>,
}

/// Result of the look-up of a token.
enum TokenCheck<'e> {
    /// The mutation is new; its locks are still held.
    New(ShardLocks<'e>),
    /// The reply to a repeat, or to a token of another mutation. The locks are released.
    Known(Reply),
}

impl<'e> Turn<'e> {
    /// Admits and applies one mutation, or several plain sets as one (replies `Ok`), under a token,
    /// unless it was applied before. `Err`: counters are not resident, or the shared store must
    /// claim the token; nothing was applied.
    pub fn run_once(&mut self, identity: &Identity<'_>, commands: &[Command<'_>]) -> Result<Reply, Load> {
        let result = match self.engine.shared {
            Some(_) => Err(self.request_claim(identity, commands)),
            None => self.try_once(identity, commands, None),
        };
        reply_or_load(result)
    }

    /// Applies a mutation after the shared store has claimed its token. The record of the effect
    /// includes the claim. If this node has applied the mutation before, the earlier reply is
    /// returned.
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

    /// Returns the reply of a mutation that this node has applied on a shared store. A token used
    /// for another mutation is refused.
    pub(crate) fn find_applied(&mut self, identity: &Identity<'_>, command: &Command<'_>) -> Option<Reply> {
        self.end_run();
        let commands = std::slice::from_ref(command);
        let mutation = self.build_mutation(identity, commands, None).ok()?;
        let locks = ShardLocks::lock_one(&self.engine.table, mutation.shard);
        match self.check_token(locks, &mutation) {
            TokenCheck::New(_) => None,
            TokenCheck::Known(reply) => Some(reply),
        }
    }

    fn try_once(
        &mut self,
        identity: &Identity<'_>,
        commands: &[Command<'_>],
        claim: Option<&ClaimRecord>,
    ) -> Result<Reply, NotRun> {
        let mut bodies_bytes = 0;
        loop {
            if let Some(reply) = self.attempt_once(identity, commands, claim, &mut bodies_bytes)? {
                return Ok(reply);
            }
        }
    }

    fn build_mutation<'m, 'a>(
        &self,
        identity: &'m Identity<'a>,
        commands: &'m [Command<'a>],
        claim: Option<&'m ClaimRecord>,
    ) -> Result<Mutation<'m, 'a>, Refusal> {
        let engine = self.engine;
        let digest = engine.tokens.digest(commands).filter(|_| is_all_or_nothing(commands)).ok_or(Refusal::NotOnce)?;
        let (key, policies) = (engine.tokens.key(identity), &self.policies);
        let durability = commands
            .iter()
            .map(|command| strictest_durability(&command.facts().targets, policies))
            .max()
            .unwrap_or_default();
        let (shard, window) = (engine.table.shard_of(key.hash()), self.token_window(commands));
        let is_shared = engine.shared.is_some();
        Ok(Mutation { identity, commands, key, shard, digest, durability, window, is_shared, claim })
    }

    /// `None` if the policies changed meanwhile, or sketch bodies need more room: then nothing was
    /// applied.
    fn attempt_once(
        &mut self,
        identity: &Identity<'_>,
        commands: &[Command<'_>],
        claim: Option<&ClaimRecord>,
        bodies_bytes: &mut usize,
    ) -> Result<Option<Reply>, NotRun> {
        self.end_run();
        let engine = self.engine;
        let mutation = self.build_mutation(identity, commands, claim)?;
        let shard = mutation.shard;
        // A retry needs no room and no counters.
        if let TokenCheck::Known(reply) = self.check_token(ShardLocks::lock_one(&engine.table, shard), &mutation) {
            return Ok(Some(reply));
        }
        let outcome_bytes: usize = commands.iter().map(outcome_bytes_max).sum();
        if outcome_bytes > STORED_REPLY_BYTES_MAX {
            return Err(Refusal::TokenReply { bytes_max: STORED_REPLY_BYTES_MAX }.into());
        }
        let claim_bytes = if claim.is_some() { CLAIM_RECORD_BYTES_MAX } else { 0 };
        let (mut shards, mut bytes) = (vec![shard], ENTRY_BYTES_MAX + outcome_bytes + claim_bytes + *bodies_bytes);
        for command in commands {
            let targets = command.facts().targets;
            collect_target_shards(&targets, &engine.table, &mut shards);
            bytes += target_record_bytes_max(&targets, self.own_bytes_max());
        }
        if bytes > RECORD_BYTES_MAX {
            let reason = format!("a command of {bytes} bytes is longer than a record may be");
            return Err(Refusal::NoRoom { reason }.into());
        }
        self.admit(bytes, true, true)?;
        // Another turn may have applied it meanwhile.
        let locks = ShardLocks::lock_sorted(&engine.table, shards);
        if !self.policies_unchanged() || self.needs_more_room(&locks, commands, bodies_bytes) {
            self.run_room_max = 0;
            return Ok(None);
        }
        match self.check_token(locks, &mutation) {
            TokenCheck::New(locks) => self.apply_once(locks, &mutation).map(Some),
            TokenCheck::Known(reply) => Ok(Some(reply)),
        }
    }

    /// The token window of the counter's namespace; of several counters, the longest.
    fn token_window(&self, commands: &[Command<'_>]) -> Duration {
        let window_of = |name: &Name<'_>| self.policies.policy(*name).token_window;
        let windows = commands.iter().map(|command| match command.facts().targets {
            CommandTargets::All | CommandTargets::Walk => self.policies.token_window_max(),
            targets => targets.names().iter().map(window_of).max().unwrap_or_default(),
        });
        windows.max().unwrap_or_default()
    }

    /// Looks up the token of a mutation; its shard is held.
    fn check_token(&mut self, mut locks: ShardLocks<'e>, mutation: &Mutation<'_, '_>) -> TokenCheck<'e> {
        let tokens = &self.engine.tokens;
        let &Mutation { identity, key, digest, window, .. } = mutation;
        let token_index = locks.shard(mutation.shard).tokens();
        let lookup = match mutation.is_shared {
            true => tokens.find(token_index, identity, (key, digest), self.now, window),
            false => tokens.check_and_find(token_index, identity, (key, digest), self.now, window),
        };
        let known_reply = match lookup {
            Ok(TokenLookup::New) => return TokenCheck::New(locks),
            Ok(TokenLookup::Repeat(outcome)) => {
                tokens.record_hit();
                outcome.to_reply()
            }
            Err(refusal) => Reply::Refused(refusal),
        };
        self.open_run = Some(OpenRun::new(locks, mutation.durability));
        self.end_run();
        TokenCheck::Known(known_reply)
    }

    /// Applies a new mutation and records its token, in one record.
    fn apply_once(&mut self, mut locks: ShardLocks<'e>, mutation: &Mutation<'_, '_>) -> Result<Reply, NotRun> {
        let Mutation { identity, commands, key, shard, durability, .. } = *mutation;
        let engine = self.engine;
        // Under the locks: a write admitted before the close must not follow its mark.
        engine.check_open()?;
        if let Some(load) = self.find_missing(&mut locks, commands) {
            return Err(NotRun::Load(load));
        }
        self.check_rows(&mut locks, commands)?;
        self.open_run = Some(OpenRun::new(locks, durability));
        let reserved = self.reserve_counter_slots(commands).and_then(|reservation| {
            let has_reserved = engine.tokens.reserve(self.held_shard(shard).tokens(), identity, key)?;
            Ok((reservation, has_reserved))
        });
        let (_reservation, has_reserved) = reserved.inspect_err(|_| self.open_run = None)?;
        let mut reply = Reply::Ok;
        for command in commands {
            reply = self.apply(command, Some(durability.max(Durability::Relaxed)), true);
        }
        match StoredReply::from_reply(&reply) {
            Some(outcome) => self.record_token(mutation, outcome),
            None if has_reserved => engine.tokens.unreserve(identity),
            None => {}
        }
        self.end_run();
        Ok(reply)
    }

    fn record_token(&mut self, mutation: &Mutation<'_, '_>, outcome: StoredReply) {
        let Mutation { identity, key, shard, digest, claim, .. } = *mutation;
        let claim = claim.cloned().map(Box::new);
        let number = if let IdentityItem::Sequence(n) = identity.item() { Some(n) } else { None };
        self.builder
            .push(self.now, &Entry::Token { key, digest, number, outcome: outcome.clone(), claim: claim.clone() });
        let now = self.now;
        let token_index = self.held_shard(shard).tokens_mut();
        match number {
            None => token_index.insert_token(key, AppliedToken { at: now, digest, outcome, claim }),
            Some(n) => token_index.advance_producer(key, LastSequence { number: n, digest, outcome }),
        }
    }

    /// On a shared store the store claims the token; so far only adds can have one.
    fn request_claim(&self, identity: &Identity<'_>, commands: &[Command<'_>]) -> NotRun {
        if self.engine.tokens.digest(commands).filter(|_| is_all_or_nothing(commands)).is_none() {
            return Refusal::NotOnce.into();
        }
        if let Some(refusal) = self.engine.shared.as_ref().and_then(|shared| shared.refusal()) {
            return refusal.into();
        }
        match (identity.item(), commands) {
            (IdentityItem::Token(_), [Command::Add { name, delta, shard_key: None }]) => {
                let token = ClaimToken::new(&identity.key()).expect("an identity is no longer than a token");
                let (window, name, delta) = (self.token_window(commands), name.bytes().into(), *delta);
                NotRun::Load(Load::Once(Box::new(TokenAdd { token, name, delta, window })))
            }
            (IdentityItem::Token(_), _) => Refusal::OneOwner { what: "a token on anything but a plain add" }.into(),
            (IdentityItem::Sequence(_), _) => Refusal::OneOwner { what: "a sequence number" }.into(),
        }
    }
}

fn reply_or_load(result: Result<Reply, NotRun>) -> Result<Reply, Load> {
    match result {
        Ok(reply) => Ok(reply),
        Err(NotRun::Refused(refusal)) => Ok(Reply::Refused(refusal)),
        Err(NotRun::Load(load)) => Err(load),
    }
}

/// Returns true if the commands are applied all or not at all: one command, or several that cannot
/// be refused once there is room.
fn is_all_or_nothing(commands: &[Command<'_>]) -> bool {
    let is_plain = |command: &Command<'_>| {
        let plain = (SetCondition::Always, SetExpiry::Remove, false);
        matches!(command, Command::Set(Set { condition, expiry, reply_old, .. }) if (*condition, *expiry, *reply_old) == plain)
    };
    commands.len() == 1 || commands.iter().all(is_plain)
}

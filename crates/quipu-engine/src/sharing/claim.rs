//! Applies adds with a token: each is claimed at the store first, so that a retry on any node finds
//! it.
//!
//! In: adds with tokens. Out: the add, applied by one attempt of one node; its reply for all
//! others.
//!
//! ```text
//! own tokens ─► applied here before: its reply
//!    │ not
//!    ▼
//! claim at the store ─┬► applied elsewhere: its reply
//!    │ granted        ├► claimed by another attempt: refused
//!    │                └► claimed by an ended attempt of this incarnation: ended, claimed again
//!    ▼
//! own tokens once more, the add, the token and its claim: one step, one record
//!    │
//!    ▼
//! reply ─► the claim ends at the store
//! ```
//!
//! Invariants:
//! - one node applies a token once, whichever verdict the store gives: the look-up and the add are
//!   one step under the token's lock;
//! - a token is applied only after the store has granted it to this attempt;
//! - its reply is stored after it is durable here.
//!
//! Not here: claims that the store has lost (`restore`).

use quipu_model::shared::claim::forget_at;
use quipu_model::shared::{Claim, ClaimEnd, ClaimEndVerdict, ClaimVerdict};
use quipu_model::{Command, Identity, Refusal, Reply, StoreError, Writer};
use xxhash_rust::xxh3::xxh3_64;

use super::settle::as_name;
use super::{Sharing, StoreLink};
use crate::base::sync::{Arc, lock};
use crate::core::load::{Load, LoadJob, LoadOutcome, TokenAdd};
use crate::execute::turn::Turn;
use crate::journal::claim_record::ClaimRecord;

/// Immediate tries of a call with unknown outcome. After them the client gets an unknown outcome,
/// or the end of the claim is left to the restoration of claims.
const CALL_TRIES: usize = 3;

/// An attempt in progress in this process. An attempt of this node that is not in progress has
/// ended.
struct LiveAttempt<'s> {
    link: &'s StoreLink,
    number: u64,
}

impl<'s> LiveAttempt<'s> {
    fn begin(link: &'s StoreLink) -> LiveAttempt<'s> {
        let number = link.random();
        lock(&link.attempts).insert(number);
        LiveAttempt { link, number }
    }
}

impl Drop for LiveAttempt<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            lock(&self.link.attempts).remove(&self.number);
        }
    }
}

impl Sharing<'_> {
    /// Executes one add with a token; returns the number of adds.
    pub async fn claim(self) -> usize {
        let Some(job) = self.core.loads.take_claim() else { return 0 };
        let Some(token_add) = job.once().cloned() else { return 0 };
        // Dropped half-way, its outcome is unknown.
        let mut notifier = ClaimNotifier { job, loaded: LoadOutcome::Unknown };
        notifier.loaded = self.execute_token_add(&token_add).await;
        1
    }

    async fn execute_token_add(&self, token_add: &TokenAdd) -> LoadOutcome {
        let store_down = LoadOutcome::Refused(Refusal::StoreDown);
        let Some(identity) = Identity::from_token_key(token_add.token.bytes()) else {
            return LoadOutcome::Refused(Refusal::NotOnce);
        };
        if let Some(found) = self.find_applied(token_add, &identity).await {
            return found;
        }
        if self.learn_history().await.is_err() {
            return store_down;
        }
        let Ok(at) = self.link.store.clock().await else { return store_down };
        let times = (at, self.core.now());
        if let Err(refusal) = self.core.tokens.check_store_time(&identity, times, token_add.window) {
            return LoadOutcome::Refused(refusal);
        }
        if !self.may_claim(&identity) {
            return LoadOutcome::Refused(Refusal::TokensRestoring);
        }
        let live = LiveAttempt::begin(self.link);
        let owner = Writer { node: self.link.node, incarnation: self.link.incarnation() };
        let claim = Claim {
            token: token_add.token.clone(),
            owner,
            attempt: live.number,
            payload: token_add.payload(),
            forget_at: forget_at(at, token_add.window),
            reply: None,
        };
        let mut verdict = self.try_claim(&claim).await;
        if let Ok(ClaimVerdict::InFlight { owner, attempt }) = verdict
            && self.is_attempt_over(owner, attempt)
        {
            // It may have been applied since the look-up.
            if let Some(found) = self.find_applied(token_add, &identity).await {
                self.queue_claim(&identity);
                return found;
            }
            // No record has it, so it was not applied, and its attempt has ended.
            let _ = self.link.store.end_claim(&claim.token, owner, attempt, &ClaimEnd::Released).await;
            verdict = self.try_claim(&claim).await;
        }
        match verdict {
            Ok(ClaimVerdict::Claimed) => {}
            Ok(ClaimVerdict::Done { reply }) => {
                let value = std::str::from_utf8(&reply).ok().and_then(|text| text.parse().ok());
                return value.map_or(LoadOutcome::Refused(Refusal::TokenSpent), |value| {
                    LoadOutcome::reply(Reply::Integer(value))
                });
            }
            Ok(ClaimVerdict::InFlight { owner, .. }) => return LoadOutcome::Refused(Refusal::TokenInUse { owner }),
            Ok(ClaimVerdict::Mismatch) => return LoadOutcome::Refused(Refusal::TokenMismatch),
            Ok(ClaimVerdict::TooLate) => return LoadOutcome::Refused(Refusal::TokenSpent),
            // The claim may still arrive. Then its attempt has ended, and a retry on this node ends
            // the claim.
            Err(_) => return store_down,
        }
        let (end, loaded) = match self.apply_add(token_add, &identity, &ClaimRecord::from_claim(&claim)).await {
            Ok(value) => {
                (ClaimEnd::Done(value.to_string().into_bytes().into()), LoadOutcome::reply(Reply::Integer(value)))
            }
            Err(Some(refusal)) => (ClaimEnd::Released, LoadOutcome::Refused(refusal)),
            Err(None) => return LoadOutcome::Unknown,
        };
        let ended = self.end_claim(&claim, &end).await;
        if matches!(end, ClaimEnd::Done(_)) && !ended {
            self.queue_claim(&identity);
        }
        loaded
    }

    /// The reply of an add that this node has applied, once it is as durable as its namespace
    /// demands.
    async fn find_applied(&self, token_add: &TokenAdd, identity: &Identity<'_>) -> Option<LoadOutcome> {
        let mut turn = Turn::new(self.core);
        let found = turn.find_applied(identity, &token_add.command());
        let wait = turn.finish();
        let reply = found?;
        Some(match (self.core.commit_until(wait).await, reply) {
            (Err(_), _) => LoadOutcome::Unknown,
            (Ok(()), Reply::Refused(refusal)) => LoadOutcome::Refused(refusal),
            (Ok(()), reply) => LoadOutcome::reply(reply),
        })
    }

    /// Returns true if an attempt has ended, so that its claim will never be applied. That holds
    /// for an attempt of the present incarnation that is not in progress.
    ///
    /// For an earlier incarnation it is unknown. The whole machine, with the directory, may have
    /// gone back to a state before the attempt. Then the journal has no record of an applied add.
    fn is_attempt_over(&self, owner: Writer, attempt: u64) -> bool {
        let present = Writer { node: self.link.node, incarnation: self.link.incarnation() };
        owner == present && self.link.may_put(self.elapsed()) && !lock(&self.link.attempts).contains(&attempt)
    }

    async fn try_claim(&self, claim: &Claim) -> Result<ClaimVerdict, StoreError> {
        let mut verdict = self.link.store.claim(claim).await;
        for _ in 1..CALL_TRIES {
            if verdict.is_ok() {
                break;
            }
            verdict = self.link.store.claim(claim).await;
        }
        verdict.inspect_err(|error| self.link.record_history_change(error))
    }

    /// Reports an attempt's end to the store; returns true if the store has recorded it.
    async fn end_claim(&self, claim: &Claim, end: &ClaimEnd) -> bool {
        for _ in 0..CALL_TRIES {
            match self.link.store.end_claim(&claim.token, claim.owner, claim.attempt, end).await {
                Ok(verdict) => return verdict == ClaimEndVerdict::Ended,
                Err(error) => self.link.record_history_change(&error),
            }
        }
        false
    }

    /// Adds, and waits until the add is as durable as its namespace demands. `Err(None)`: the
    /// outcome is unknown.
    async fn apply_add(
        &self,
        token_add: &TokenAdd,
        identity: &Identity<'_>,
        record: &ClaimRecord,
    ) -> Result<i64, Option<Refusal>> {
        for _ in 0..CALL_TRIES {
            let mut turn = Turn::new(self.core);
            let ran = turn.run_claimed(identity, &token_add.command(), record);
            let wait = turn.finish();
            match ran {
                Ok(Reply::Integer(value)) => {
                    return self.core.commit_until(wait).await.map(|()| value).map_err(|_| None);
                }
                Ok(Reply::Refused(refusal)) => return Err(Some(refusal)),
                Ok(_) => return Err(None),
                Err(load) => self.load_requirements(load).await,
            }
        }
        Err(Some(Refusal::StoreDown))
    }

    /// Loads the rows or cells that a command needs.
    async fn load_requirements(&self, load: Load) {
        match load {
            Load::Rows(names) => {
                for name in &names {
                    self.fetch_one(name).await;
                }
            }
            Load::Names(names) => {
                for name in &names {
                    // A later read of the counter reports the error.
                    let _ = self.core.load_counter(name);
                }
            }
            _ => {}
        }
    }
}

/// Reports the outcome to the waiting command, on every path out of the round.
struct ClaimNotifier {
    job: Arc<LoadJob>,
    loaded: LoadOutcome,
}

impl Drop for ClaimNotifier {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.job.finish(std::mem::replace(&mut self.loaded, LoadOutcome::Unknown));
        }
    }
}

impl TokenAdd {
    fn command(&self) -> Command<'_> {
        Command::Add { name: as_name(&self.name), delta: self.delta, shard_key: None }
    }

    /// Hash of the add that the token stands for.
    fn payload(&self) -> u64 {
        let mut bytes = self.delta.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.name);
        xxh3_64(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quipu_model::shared::ClaimToken;

    use super::*;

    #[test]
    fn a_claim_has_the_payload_that_other_versions_know_it_by() {
        let payload = |name: &[u8], delta| {
            let token = ClaimToken::new(b"\x01porder-1").unwrap();
            TokenAdd { token, name: name.into(), delta, window: Duration::from_secs(60) }.payload()
        };
        // Every node computes it, in every version. With another hash, a retry on a node of the
        // other version is refused as `TokenMismatch` although it is the same add.
        let payloads = [payload(b"likes:42", 1), payload(b"likes:42", -3), payload(b"", 1)];
        assert_eq!(
            payloads.map(|payload| format!("{payload:016x}")),
            ["da72016305ced65e", "087d3229458c3748", "2fbc593564db792e"]
        );
    }
}

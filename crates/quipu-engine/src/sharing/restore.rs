//! Puts back claims of tokens that the store may have lost.
//!
//! In: this node's tokens with their claims. Out: the same claims at the store, with their replies;
//! conflicting claims of others.
//!
//! The node puts claims back in three cases:
//! - after each start, since a crash may have come before the store recorded the end of a claim;
//! - after a loss of data in the store;
//! - singly, if the store did not record the end of a claim.
//!
//! The newest come first, since these are retried most.
//!
//! After a loss, and for a lease at least, the node refuses a token without a later time. So each
//! node that applied a token has the time to notice the loss.
//!
//! Invariant: a claim is put back only if it is synced in the journal.

use std::time::Duration;

use quipu_model::shared::{Claim, RestoreVerdict};
use quipu_model::{History, Identity, Millis, RESTORED_CLAIMS_MAX, StoreError, StoredReply, TOKEN_AHEAD_MAX};

use super::{Sharing, StoreLink};
use crate::base::sync::{Ordering, lock};
use crate::journal::Wait;
use crate::tokens::TokenKey;

/// State of the restoration of claims.
#[derive(Default)]
pub(crate) struct ClaimRestoration {
    /// Tokens to put back, the newest last.
    queue: Vec<TokenKey>,
    /// Tokens of the call in progress; they return to the queue if its round is dropped.
    under_way: Vec<TokenKey>,
    /// True if all tokens were queued since the start.
    has_begun: bool,
    /// A loss of the store that is not fully repaired.
    loss: Option<StoreLoss>,
    /// True if a conflict was logged since.
    has_logged_conflict: bool,
}

/// A detected loss.
#[derive(Clone, Copy)]
struct StoreLoss {
    /// Time of the detection by the store's clock; `None` until that was read.
    noticed_at: Option<Millis>,
    /// End of the refusal of tokens, by the monotonic clock.
    until: Duration,
}

/// The store's history, as far as this node knows it.
#[derive(Default)]
pub(crate) struct KnownHistory {
    /// The last history read.
    last: Option<History>,
    /// True if a call was refused since because the history changed.
    has_changed: bool,
}

impl StoreLink {
    /// Requests a read of the history if it was the reason for a refused call.
    pub(crate) fn record_history_change(&self, error: &StoreError) {
        if matches!(error, StoreError::HistoryChanged { .. }) {
            lock(&self.history).has_changed = true;
        }
    }

    /// Returns true if a call was refused because the store's history has changed.
    pub(super) fn has_changed_history(&self) -> bool {
        lock(&self.history).has_changed
    }
}

impl Sharing<'_> {
    /// Reads the store's history if this node does not know it yet.
    pub(super) async fn learn_history(&self) -> Result<(), StoreError> {
        let is_known = lock(&self.link.history).last.is_some();
        // Another round may have read it meanwhile, and it may have changed since.
        if !is_known && self.refresh_history().await? {
            self.handle_loss();
        }
        Ok(())
    }

    /// Reads the store's history. Returns true if a server known from the last read has another
    /// identity, or is gone. A new server has lost nothing.
    pub(super) async fn refresh_history(&self) -> Result<bool, StoreError> {
        let now = self.link.store.history().await?;
        let mut history = lock(&self.link.history);
        history.has_changed = false;
        let is_other = |before: &History| before.0.iter().any(|(server, identity)| now.0.get(server) != Some(identity));
        let has_changed = history.last.as_ref().is_some_and(is_other);
        history.last = Some(now);
        Ok(has_changed)
    }

    /// Queues all claims after a loss in the store; until they are back, tokens are refused.
    pub(super) fn restore_all_claims(&self) {
        let until = self.elapsed() + self.link.options.lease;
        let mut restoration = lock(&self.link.restoration);
        // Under the lock: a claim queued earlier is among these, and one queued later stays.
        let all = self.claimed_tokens();
        restoration.loss = Some(StoreLoss { noticed_at: None, until });
        (restoration.queue, restoration.has_begun, restoration.has_logged_conflict) = (all, true, false);
    }

    /// Sets the store time by which a loss was detected.
    pub(super) fn set_loss_time(&self, at: Millis) {
        if let Some(loss) = &mut lock(&self.link.restoration).loss {
            loss.noticed_at.get_or_insert(at);
        }
    }

    /// Returns true if a token may be claimed: not while its claim may be lost.
    pub(super) fn may_claim(&self, identity: &Identity<'_>) -> bool {
        let Some(loss) = lock(&self.link.restoration).loss else { return true };
        // A token that carries a time this far ahead of the loss cannot have been applied before
        // it.
        let ahead = u64::try_from(TOKEN_AHEAD_MAX.as_millis()).unwrap_or(u64::MAX);
        let is_later =
            |noticed_at: Millis| identity.time().is_some_and(|carried| carried.0 > noticed_at.0.saturating_add(ahead));
        loss.noticed_at.is_some_and(is_later)
    }

    /// Queues a claim after the store did not record its end.
    pub(super) fn queue_claim(&self, identity: &Identity<'_>) {
        lock(&self.link.restoration).queue.push(self.core.tokens.key(identity));
    }

    /// Puts back one batch of claims; returns their number.
    pub async fn restore_claims(self) -> usize {
        let now = self.elapsed();
        if !self.link.may_put(now) || !self.link.may_call("restore", now) {
            return 0;
        }
        if !lock(&self.link.restoration).has_begun {
            let all = self.claimed_tokens();
            let mut restoration = lock(&self.link.restoration);
            if !std::mem::replace(&mut restoration.has_begun, true) {
                // Claims queued meanwhile are newer.
                let newer = std::mem::replace(&mut restoration.queue, all);
                restoration.queue.extend(newer);
            }
        }
        let tokens = {
            let mut restoration = lock(&self.link.restoration);
            let restoration = &mut *restoration;
            restoration.queue.append(&mut restoration.under_way);
            if restoration.queue.is_empty() {
                if restoration.loss.is_some_and(|loss| loss.until <= now) {
                    restoration.loss = None;
                    tracing::info!("the claims of all tokens that this node has applied are at the shared store again");
                }
                return 0;
            }
            let first = restoration.queue.len().saturating_sub(RESTORED_CLAIMS_MAX);
            restoration.under_way = restoration.queue.split_off(first);
            restoration.under_way.clone()
        };
        let claims: Vec<Claim> = tokens.iter().rev().filter_map(|key| self.claim_for(*key)).collect();
        let restored = self.restore_batch(&claims).await;
        self.link.record_result("restore", self.elapsed(), &restored);
        match restored {
            Ok(()) => {
                lock(&self.link.restoration).under_way.clear();
                tokens.len()
            }
            Err(_) => 0,
        }
    }

    async fn restore_batch(&self, claims: &[Claim]) -> Result<(), StoreError> {
        if claims.is_empty() {
            return Ok(());
        }
        let not_applied = |source| StoreError::NotApplied { call: quipu_model::StoreCall::RestoreClaims, source };
        let end = self.core.journal.reserved();
        if self.core.commit_until(Wait { written: end, synced: end }).await.is_err() {
            return Err(not_applied("the journal has failed".into()));
        }
        if !self.link.may_put(self.elapsed()) {
            return Err(not_applied("the lease has run out".into()));
        }
        let verdicts = self.link.store.restore_claims(claims).await?;
        for (claim, verdict) in claims.iter().zip(verdicts) {
            match verdict {
                RestoreVerdict::Restored => drop(self.link.metrics.claims_restored.fetch_add(1, Ordering::Relaxed)),
                RestoreVerdict::Known => {}
                RestoreVerdict::Conflict => self.record_conflict(claim),
            }
        }
        Ok(())
    }

    /// Records that two nodes may have applied a token.
    fn record_conflict(&self, claim: &Claim) {
        self.link.metrics.claim_conflicts.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(&mut lock(&self.link.restoration).has_logged_conflict, true) {
            let token = claim.token.bytes().escape_ascii();
            tracing::warn!(%token, "a token that this node has applied has another claim at the shared store: it may have been applied twice");
        }
    }

    /// The claim of a token that this node has applied.
    fn claim_for(&self, key: TokenKey) -> Option<Claim> {
        let table = &self.core.table;
        let shard = table.lock(table.shard_of(key.hash()));
        let applied = shard.tokens().token(key)?;
        let StoredReply::Integer(value) = applied.outcome else { return None };
        Some(applied.claim.as_ref()?.to_claim(self.link.node, value.to_string().into_bytes().into()))
    }

    /// All tokens that this node has applied under a claim, the newest last.
    fn claimed_tokens(&self) -> Vec<TokenKey> {
        let table = &self.core.table;
        let mut claimed = Vec::new();
        for index in 0..table.shard_count() {
            claimed.extend(table.lock(index).tokens().claimed_tokens());
        }
        claimed.sort_unstable();
        claimed.into_iter().map(|(_, key)| key).collect()
    }
}

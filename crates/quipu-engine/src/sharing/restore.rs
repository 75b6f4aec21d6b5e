//! Puts claims of tokens back that the store may have lost.
//!
//! In: this node's tokens with their claims. Out: the same claims at the store, with their replies; claims of others that contradict them.
//!
//! Claims are put back after each start, because a crash may have come before the store heard the end of a claim; after the store has lost data; and
//! one by one where the end of a claim was not heard. The newest come first, since these are retried most.
//!
//! After a loss, and for a lease at least, a token that carries no later time is refused: each node that applied one has the time to notice the loss.
//!
//! Invariant: only what is synced in the journal is put back.

use std::time::Duration;

use quipu_model::shared::{Claim, RestoreVerdict};
use quipu_model::{History, Identity, Millis, RESTORED_CLAIMS_MAX, StoreError, StoredReply, TOKEN_AHEAD_MAX};

use super::{Sharing, StoreLink};
use crate::journal::Wait;
use crate::sync::{Ordering, lock};
use crate::tokens::TokenKey;

/// Which claims are to be put back.
#[derive(Default)]
pub(super) struct ClaimRestoration {
    /// Tokens, the newest last.
    queue: Vec<TokenKey>,
    /// The tokens of the call under way: in the queue again if its round is dropped.
    under_way: Vec<TokenKey>,
    /// Whether all tokens were queued since the start.
    has_begun: bool,
    /// The store has lost data, and not everything was put back.
    loss: Option<StoreLoss>,
    /// Whether a conflict was logged since.
    has_logged_conflict: bool,
}

/// A loss that was noticed.
#[derive(Clone, Copy)]
struct StoreLoss {
    /// When, by the store's clock; none before that was asked.
    noticed_at: Option<Millis>,
    /// Until then tokens are refused, by the clock that only runs forward.
    until: Duration,
}

/// The history of the store, as far as this node knows it.
#[derive(Default)]
pub(super) struct KnownHistory {
    /// As it was told last.
    last: Option<History>,
    /// A call was refused since, because it has changed.
    has_changed: bool,
}

impl StoreLink {
    /// Has the history asked for if it is why a call was refused.
    pub(super) fn record_history_change(&self, error: &StoreError) {
        if matches!(error, StoreError::HistoryChanged { .. }) {
            lock(&self.history).has_changed = true;
        }
    }

    /// Whether a call was refused because the store's history has changed.
    pub(super) fn has_changed_history(&self) -> bool {
        lock(&self.history).has_changed
    }
}

impl Sharing<'_> {
    /// Asks for the store's history if this node has never heard it.
    pub(super) async fn learn_history(&self) -> Result<(), StoreError> {
        let is_known = lock(&self.link.history).last.is_some();
        // Another round may have heard it meanwhile, and it may have changed since.
        if !is_known && self.refresh_history().await? {
            self.handle_loss();
        }
        Ok(())
    }

    /// Asks for the store's history; whether a server that was there when it was told last has another one, or is gone. A server that is new has lost nothing.
    pub(super) async fn refresh_history(&self) -> Result<bool, StoreError> {
        let now = self.link.store.history().await?;
        let mut history = lock(&self.link.history);
        history.has_changed = false;
        let is_other = |before: &History| before.0.iter().any(|(server, identity)| now.0.get(server) != Some(identity));
        let has_changed = history.last.as_ref().is_some_and(is_other);
        history.last = Some(now);
        Ok(has_changed)
    }

    /// The store has lost data: all claims go back, and until then tokens are refused.
    pub(super) fn restore_all_claims(&self) {
        let until = self.elapsed() + self.link.options.lease;
        let mut restoration = lock(&self.link.restoration);
        // Under the lock: a claim that is queued before is among these, and one that is queued after stays.
        let all = self.claimed_tokens();
        restoration.loss = Some(StoreLoss { noticed_at: None, until });
        (restoration.queue, restoration.has_begun, restoration.has_logged_conflict) = (all, true, false);
    }

    /// By this time of the store's clock a loss was noticed.
    pub(super) fn set_loss_time(&self, at: Millis) {
        if let Some(loss) = &mut lock(&self.link.restoration).loss {
            loss.noticed_at.get_or_insert(at);
        }
    }

    /// Whether a token may be claimed: not while a claim of it may be lost.
    pub(super) fn may_claim(&self, identity: &Identity<'_>) -> bool {
        let Some(loss) = lock(&self.link.restoration).loss else { return true };
        // Nobody can have applied a token before the loss whose time is further ahead than any may be.
        let ahead = u64::try_from(TOKEN_AHEAD_MAX.as_millis()).unwrap_or(u64::MAX);
        let is_later =
            |noticed_at: Millis| identity.time().is_some_and(|carried| carried.0 > noticed_at.0.saturating_add(ahead));
        loss.noticed_at.is_some_and(is_later)
    }

    /// The store has not heard the end of a claim.
    pub(super) fn queue_claim(&self, identity: &Identity<'_>) {
        lock(&self.link.restoration).queue.push(self.inner.tokens.key(identity));
    }

    /// Puts claims back, one batch; how many.
    pub async fn restore_claims(self) -> usize {
        let now = self.elapsed();
        if !self.link.may_put(now) || !self.link.may_call("restore", now) {
            return 0;
        }
        if !lock(&self.link.restoration).has_begun {
            let all = self.claimed_tokens();
            let mut restoration = lock(&self.link.restoration);
            if !std::mem::replace(&mut restoration.has_begun, true) {
                // What was queued meanwhile is newer.
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
        let end = self.inner.journal.reserved();
        if self.inner.commit_until(Wait { written: end, synced: end }).await.is_err() {
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

    /// Two nodes may have applied a token.
    fn record_conflict(&self, claim: &Claim) {
        self.link.metrics.claim_conflicts.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(&mut lock(&self.link.restoration).has_logged_conflict, true) {
            let token = claim.token.bytes().escape_ascii();
            tracing::warn!(%token, "a token that this node has applied has another claim at the shared store: it may have been applied twice");
        }
    }

    /// The claim of a token that this node has applied.
    fn claim_for(&self, key: TokenKey) -> Option<Claim> {
        let table = &self.inner.table;
        let shard = table.lock(table.shard_of(key.hash()));
        let applied = shard.tokens().token(key)?;
        let StoredReply::Integer(value) = applied.outcome else { return None };
        Some(applied.claim.as_ref()?.to_claim(self.link.node, value.to_string().into_bytes().into()))
    }

    /// All tokens that this node has applied under a claim, the newest last.
    fn claimed_tokens(&self) -> Vec<TokenKey> {
        let table = &self.inner.table;
        let mut claimed = Vec::new();
        for index in 0..table.shard_count() {
            claimed.extend(table.lock(index).tokens().claimed_tokens());
        }
        claimed.sort_unstable();
        claimed.into_iter().map(|(_, key)| key).collect()
    }
}

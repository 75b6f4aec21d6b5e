//! Registers the node's incarnation with the store and renews its lease.
//!
//! In: the registry. Out: a lease on the present incarnation, and on older ones that still owe
//! something; a new incarnation when the present one was retired.
//!
//! ```text
//! start ──► joining: a new incarnation, drawn and synced, adds; nothing of it leaves the node
//!             │ it has added nothing yet, the last one was stopped cleanly, and its
//!             │   registration is unchanged since: the node continues as the last one
//!             │ else: the new one is registered
//!             ▼
//!           live ── retired meanwhile ──► the next incarnation; the old one is settled late
//!             │
//!             └── another process wrote under its id ──► fenced
//! ```
//!
//! Invariants:
//! - an incarnation is in the journal, synced, before it adds; the intent to register it is synced
//!   before its registration;
//! - this node may act for an older incarnation's cells only while it holds that registration, or
//!   once the incarnation is retiring;
//! - nothing is put after the lease has run out by this node's clock, counted from before the call.

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_model::shared::{NODE_INCARNATION, RegisterVerdict, Registration, RenewError, WriterStage, registry};
use quipu_model::{Incarnation, Millis, StoreError, Writer, WriterList};

use super::{Sharing, StoreLink};
use crate::base::sync::{Arc, Ordering, lock};
use crate::execute::turn::Turn;
use crate::journal::Wait;
use crate::journal::format::Entry;

/// Renewals per lease length, so that one lost reply does not end the lease.
const RENEWALS: u32 = 3;

/// State of a node's membership in its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// Not registered yet; adds go on.
    Joining,
    /// Registered.
    Live,
    /// The node counts nothing any more.
    Fenced {
        /// Reason and remedy.
        reason: String,
    },
}

/// State of an older incarnation of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Succession {
    /// Its cells were found; the registry was not read yet.
    Unknown,
    /// It was the present one, until another process was found to continue it. It is to be retired,
    /// so that both processes continue under new incarnations. The adds of both to it are settled
    /// late.
    TakenOver,
    /// Another process holds it, perhaps one that is gone, with a lease about to run out. `alive`:
    /// its registration was seen to be renewed.
    Elsewhere { version: u64, alive: bool },
    /// This node holds its registration until `until`, since audit pass number `since`.
    Held { until: Duration, since: u64 },
    /// All of it is settled; it is to be retired.
    Settled,
    /// It is retiring, known to this node since audit pass number `since`. Its unsettled rest is
    /// settled late. Rows remember its kept values while the registry knows it, which is certain
    /// until `until`.
    Late { until: Duration, since: u64 },
    /// Retiring with nothing left to settle. Its cells are kept until its registration is removed:
    /// the store may lose them.
    Finished,
    /// The store has forgotten it, since audit pass number `since`. The next pass drops its cells.
    Forgotten { since: u64 },
}

impl Succession {
    /// Audit pass number since which this node acts for it.
    fn pass_since(self) -> Option<u64> {
        match self {
            Succession::Held { since, .. } | Succession::Late { since, .. } => Some(since),
            _ => None,
        }
    }

    /// Returns true if this node is to settle it, even if not at this moment.
    pub fn is_ours(self) -> bool {
        matches!(self, Succession::Held { .. } | Succession::Settled | Succession::Late { .. })
    }

    /// Returns true if the registry must be read for it ahead of time: the known state is
    /// incomplete, or must be published.
    fn needs_registry(self, now: Duration) -> bool {
        match self {
            Succession::Unknown | Succession::TakenOver | Succession::Settled => true,
            Succession::Late { until, .. } => until <= now,
            Succession::Elsewhere { .. }
            | Succession::Held { .. }
            | Succession::Finished
            | Succession::Forgotten { .. } => false,
        }
    }

    /// Returns true if this node may act for it now.
    pub fn may_act(self, now: Duration) -> bool {
        match self {
            Succession::Held { until, .. } | Succession::Late { until, .. } => until > now,
            Succession::Settled => true,
            Succession::Unknown
            | Succession::TakenOver
            | Succession::Elsewhere { .. }
            | Succession::Finished
            | Succession::Forgotten { .. } => false,
        }
    }
}

/// A clean stop of an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanStop {
    /// The stopped incarnation.
    pub incarnation: Incarnation,
    /// Version that the stop was to give its registration.
    pub released_version: u32,
}

impl CleanStop {
    /// Returns true if the store has recorded the stop, and no process has continued since. A
    /// stopped machine may have been copied. The copy may have added as this incarnation and
    /// stopped cleanly itself, unknown to this node.
    fn is_untouched(&self, known: &Registration) -> bool {
        known.holder.is_none() && known.version as u32 == self.released_version
    }
}

/// State of the lease.
pub struct Lease {
    pub membership: Membership,
    /// End of the right to put, by the monotonic clock.
    pub may_put_until: Duration,
    pub successions: BTreeMap<Incarnation, Succession>,
    /// The present incarnation was retired, or another process continues it.
    pub is_retired: bool,
    is_taken_over: bool,
    /// The last clean stop; the node continues its incarnation if the store confirms it.
    clean_stop: Option<CleanStop>,
    /// The newest confirmed version of the present registration; then the newest one tried.
    confirmed_version: Option<u64>,
    tried_version: u64,
    renew_at: Duration,
    /// Time of the last successful read of the registry.
    registry_read_at: Duration,
    /// Time of the present incarnation's last renewal, by the store's clock; `None` before its
    /// registration.
    renewed_at: Option<Millis>,
}

impl Lease {
    pub fn new(clean_stop: Option<CleanStop>) -> Lease {
        Lease {
            membership: Membership::Joining,
            may_put_until: Duration::ZERO,
            successions: BTreeMap::new(),
            is_retired: false,
            is_taken_over: false,
            clean_stop,
            confirmed_version: None,
            tried_version: 0,
            renew_at: Duration::ZERO,
            registry_read_at: Duration::ZERO,
            renewed_at: None,
        }
    }
}

impl StoreLink {
    /// Returns the state of an older incarnation; an unknown one is added.
    pub(crate) fn succession(&self, incarnation: Incarnation) -> Succession {
        if incarnation == NODE_INCARNATION {
            // A node's own sketch cells belong to the node, in every incarnation.
            return Succession::Held { until: Duration::MAX, since: 0 };
        }
        *lock(&self.lease).successions.entry(incarnation).or_insert(Succession::Unknown)
    }

    /// Returns true if this node may put now.
    pub(crate) fn may_put(&self, now: Duration) -> bool {
        let lease = lock(&self.lease);
        lease.membership == Membership::Live && !lease.is_retired && lease.may_put_until > now
    }

    /// Marks the present incarnation as retired.
    pub(crate) fn mark_retired(&self) {
        lock(&self.lease).is_retired = true;
    }

    /// Fences the node: it counts nothing from here on.
    pub(crate) fn fence(&self, reason: String) {
        let mut lease = lock(&self.lease);
        if !matches!(lease.membership, Membership::Fenced { .. }) {
            tracing::warn!(reason, "this node is fenced: it refuses every command");
        }
        lease.membership = Membership::Fenced { reason };
        drop(lease);
        self.fenced.store(true, Ordering::Release);
    }
}

impl Sharing<'_> {
    /// Returns the state of the node's membership.
    pub fn membership(self) -> Membership {
        lock(&self.link.lease).membership.clone()
    }

    /// Returns true if a registered node may not put because its lease has run out.
    pub(crate) fn has_lost_lease(self) -> bool {
        let lease = lock(&self.link.lease);
        lease.membership == Membership::Live && lease.may_put_until <= self.elapsed()
    }

    /// Returns true if this node is still to settle or retire older incarnations.
    pub fn has_pending_successions(self) -> bool {
        lock(&self.link.lease)
            .successions
            .values()
            .any(|succession| matches!(succession, Succession::Unknown | Succession::TakenOver) || succession.is_ours())
    }

    /// Registers, or renews the registration, if it is due. Returns true if this node may put.
    pub async fn renew(self) -> bool {
        let now = self.elapsed();
        let due = {
            let lease = lock(&self.link.lease);
            let fenced = matches!(lease.membership, Membership::Fenced { .. });
            let asked = lease.successions.values().any(|succession| succession.needs_registry(now));
            !fenced && (lease.is_retired || asked || lease.renew_at <= now || self.link.has_changed_history())
        };
        if due && self.link.may_call("renew", now) {
            let renewed = self.try_renew(now).await;
            self.link.record_result("renew", self.elapsed(), &renewed);
        }
        self.link.may_put(self.elapsed())
    }

    async fn try_renew(&self, asked_at: Duration) -> Result<(), StoreError> {
        let has_changed = self.refresh_history().await?;
        if has_changed {
            // Before the next call: a claim made after a loss must not pass for one made before it.
            self.handle_loss();
        }
        let WriterList { registrations, at } = self.link.store.writers().await?;
        let registered = registrations.iter().map(|registration| registration.writer).collect();
        *lock(&self.link.registered) = Arc::new(registered);
        if self.has_regressed(&registrations) {
            self.handle_loss();
        }
        self.set_loss_time(at);
        self.refresh_joined(&registrations, at).await;
        let joining = {
            let lease = lock(&self.link.lease);
            lease.membership == Membership::Joining || lease.is_retired
        };
        if !joining {
            self.extend_lease(&registrations, at, asked_at).await?;
        }
        if joining || lock(&self.link.lease).is_retired {
            self.join(&registrations, at, asked_at).await?;
        }
        self.take_over(&registrations, at, asked_at).await?;
        let mut lease = lock(&self.link.lease);
        (lease.renew_at, lease.registry_read_at) = (asked_at + self.link.options.lease / RENEWALS, asked_at);
        Ok(())
    }

    /// Returns true if the store shows an older registration of the present incarnation than it had
    /// confirmed.
    fn has_regressed(&self, registrations: &[Registration]) -> bool {
        let known = find_registration(registrations, self.writer(self.link.incarnation()));
        let lease = lock(&self.link.lease);
        let Some(confirmed) = lease.confirmed_version.filter(|_| !lease.is_retired) else { return false };
        known.is_none_or(|known| known.version < confirmed)
    }

    /// Handles a loss of data in the store. Everything is put again, older incarnations included,
    /// and nothing is folded until then. Tokens are refused until their claims are back.
    pub(super) fn handle_loss(&self) {
        {
            let mut lease = lock(&self.link.lease);
            lease.confirmed_version = None;
            for succession in lease
                .successions
                .values_mut()
                .filter(|succession| matches!(succession, Succession::Settled | Succession::Finished))
            {
                // A confirmed incarnation may be a lost one.
                *succession = Succession::Unknown;
            }
        }
        self.link.metrics.losses.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            "the shared store has lost data that it had confirmed: this node puts all of its counters again"
        );
        self.restore_all_claims();
        self.request_audit(true);
    }

    /// Begins to put. The node continues the cleanly stopped incarnation if the store confirms it
    /// and nothing was added since. Otherwise it registers the present one, or a new one.
    async fn join(&self, registrations: &[Registration], at: Millis, asked_at: Duration) -> Result<(), StoreError> {
        let clean_stop = lock(&self.link.lease).clean_stop.filter(|_| !self.link.has_added.load(Ordering::Acquire));
        if let Some(clean_stop) = clean_stop {
            let incarnation = clean_stop.incarnation;
            let known = find_registration(registrations, self.writer(incarnation))
                .filter(|known| known.stage == WriterStage::Live && clean_stop.is_untouched(known));
            // The node does not continue an unregistered incarnation, nor one that another process
            // holds or held.
            if let Some(next) = known.and_then(|known| self.next_registration(Some(known), incarnation, false, at).ok())
            {
                if self.register(known, &next).await? && self.core.journal.record_incarnation(incarnation).is_ok() {
                    self.begin_incarnation(incarnation, &next, asked_at);
                }
                return Ok(());
            }
        }
        lock(&self.link.lease).clean_stop = None;
        let is_retired = lock(&self.link.lease).is_retired;
        if is_retired && !self.draw_incarnation().await {
            return Ok(());
        }
        let present = self.link.incarnation();
        let known = find_registration(registrations, self.writer(present));
        match self.next_registration(known, present, true, at) {
            Ok(next) => {
                if self.journal_join(present, at).await && self.register(known, &next).await? {
                    self.begin_incarnation(present, &next, asked_at);
                }
            }
            // A successor was faster: a copy of the data directory. The adds so far are settled
            // late.
            Err(_) => lock(&self.link.lease).is_retired = true,
        }
        Ok(())
    }

    /// Renews the present incarnation's registration.
    async fn extend_lease(
        &self,
        registrations: &[Registration],
        at: Millis,
        asked_at: Duration,
    ) -> Result<(), StoreError> {
        let (present, known) = {
            let present = self.link.incarnation();
            (present, find_registration(registrations, self.writer(present)))
        };
        let (tried, renewed) = {
            let lease = lock(&self.link.lease);
            (lease.tried_version, lease.renewed_at)
        };
        let taken = known.filter(|known| known.stage == WriterStage::Live && known.version > tried);
        if taken.is_some_and(|known| known.holder != Some(self.link.holder)) {
            // The node was away longer than its lease, and a successor with a copy of its data
            // directory acts for it. Or the store lost the succession, and a copy of the machine
            // continues the incarnation, too.
            let mut lease = lock(&self.link.lease);
            (lease.is_retired, lease.is_taken_over) = (true, true);
            return Ok(());
        }
        // Others retire a registration; only a process with the same identity renews it.
        if taken.is_some() {
            self.link.fence(format!(
                "another process writes as {}: a copy of this machine or of its data directory is running; stop one of them, and start it on a restored directory",
                self.writer(present)
            ));
            return Ok(());
        }
        // A store that lost the registration gets it again, unless it may have been forgotten in
        // good order.
        let grace = millis(self.link.options.grace);
        let forgotten = renewed.is_some_and(|renewed| renewed.0.saturating_add(grace) <= at.0);
        match self.next_registration(known, present, !forgotten, at) {
            Ok(next) => {
                if self.register(known, &next).await? {
                    self.confirm_lease(&next, asked_at);
                }
            }
            Err(error) => {
                let mut lease = lock(&self.link.lease);
                (lease.is_retired, lease.is_taken_over) = (true, matches!(error, RenewError::Held { .. }));
            }
        }
        Ok(())
    }

    /// Takes over older incarnations that still owe something, and retires the others.
    async fn take_over(
        &self,
        registrations: &[Registration],
        at: Millis,
        asked_at: Duration,
    ) -> Result<(), StoreError> {
        let successions: Vec<(Incarnation, Succession)> = lock(&self.link.lease)
            .successions
            .iter()
            .map(|(incarnation, succession)| (*incarnation, *succession))
            .collect();
        for (incarnation, succession) in successions {
            if matches!(succession, Succession::Forgotten { .. }) || incarnation == self.link.incarnation() {
                continue;
            }
            let known = find_registration(registrations, self.writer(incarnation));
            let next = match known.map(|known| known.stage) {
                // Removed in good order. Half of `grace` makes up for a store clock that was set
                // back: nothing of this incarnation is left to settle.
                None if succession == Succession::Finished && self.may_have_removed(incarnation, at) => {
                    Succession::Forgotten { since: self.audit_passes() }
                }
                None if self.may_have_forgotten(incarnation, at) => {
                    Succession::Forgotten { since: self.audit_passes() }
                }
                Some(
                    stage @ (WriterStage::Retiring { .. } | WriterStage::Closed { .. } | WriterStage::Folded { .. }),
                ) => match succession {
                    Succession::Settled | Succession::Finished => Succession::Finished,
                    succession if self.journal_join(incarnation, self.live_until(stage, at)).await => {
                        self.late_succession(succession, stage, at, asked_at)
                    }
                    succession => succession,
                },
                Some(WriterStage::Live) if succession == Succession::TakenOver => {
                    let retiring = known.map(|known| known.retiring(at));
                    match retiring {
                        Some(retiring) if self.register(known, &retiring).await? => {
                            log_retirement(retiring.writer);
                            self.late_succession(succession, retiring.stage, at, asked_at)
                        }
                        _ => succession,
                    }
                }
                None | Some(WriterStage::Live) => {
                    match (self.next_registration(known, incarnation, true, at), succession) {
                        (Ok(next), Succession::Settled) => {
                            let retiring = Registration { stage: WriterStage::Retiring { since: at }, ..next };
                            match self.register(known, &retiring).await? {
                                true => {
                                    log_retirement(retiring.writer);
                                    Succession::Finished
                                }
                                false => succession,
                            }
                        }
                        (Ok(next), succession) => {
                            match self.journal_join(incarnation, at).await && self.register(known, &next).await? {
                                true => {
                                    let (until, now) = (asked_at + self.link.options.lease, self.elapsed());
                                    // Cells not visited before, or not while the lease had run out,
                                    // are visited from this pass on.
                                    match succession {
                                        Succession::Held { since, .. } if succession.may_act(now) => {
                                            Succession::Held { until, since }
                                        }
                                        _ => Succession::Held { until, since: self.audit_passes() },
                                    }
                                }
                                false => succession,
                            }
                        }
                        // The journal records that the registry knows it: that matters once the
                        // registry does not any more.
                        (Err(_), _) if !self.journal_join(incarnation, at).await => succession,
                        (Err(_), _) => {
                            let version = known.map_or(0, |known| known.version);
                            let alive = matches!(succession, Succession::Elsewhere { version: last_version, alive } if alive || last_version < version);
                            Succession::Elsewhere { version, alive }
                        }
                    }
                }
            };
            {
                let mut lease = lock(&self.link.lease);
                // A state that the audit has found meanwhile takes precedence.
                if lease.successions.get(&incarnation) != Some(&succession) {
                    continue;
                }
                lease.successions.insert(incarnation, next);
            }
            // Its cells are visited again as soon as this node may act for them.
            if next.pass_since().is_some() && next.pass_since() != succession.pass_since() {
                self.request_audit(false);
            }
        }
        Ok(())
    }

    /// State of an older incarnation that is retiring. The store removes it once it was folded for
    /// `grace`, by the store's clock. Half of the remaining time is certain by this node's clock.
    fn late_succession(
        &self,
        succession: Succession,
        stage: WriterStage,
        at: Millis,
        asked_at: Duration,
    ) -> Succession {
        let grace = self.link.options.grace;
        let left = match stage {
            WriterStage::Folded { since } => grace.saturating_sub(Duration::from_millis(at.0.saturating_sub(since.0))),
            _ => grace,
        };
        let until = asked_at + left / 2;
        match succession {
            Succession::Late { since, .. } if succession.may_act(self.elapsed()) => Succession::Late { until, since },
            _ => Succession::Late { until, since: self.audit_passes() },
        }
    }

    /// Returns true if the store may have forgotten an incarnation, in good order, by the time of a
    /// row. A recent read of the registry excludes that. If true, it is unknown whether the row
    /// counts this node's cell. Otherwise a row without the incarnation has lost it, or never had
    /// it.
    pub(super) fn may_be_forgotten(&self, incarnation: Incarnation, at: Millis, now: Duration) -> bool {
        if incarnation == NODE_INCARNATION {
            return false;
        }
        if incarnation == self.link.incarnation() {
            let renewed = lock(&self.link.lease).renewed_at;
            return self.is_long_ago(renewed, at);
        }
        let succession = self.link.succession(incarnation);
        self.may_have_forgotten(incarnation, at)
            && match succession {
                Succession::Unknown | Succession::TakenOver => true,
                Succession::Late { until, .. } => until <= now,
                // A live incarnation is not removed within `grace`: half of that is certain by this
                // node's clock.
                Succession::Elsewhere { .. } | Succession::Held { .. } | Succession::Settled => {
                    let asked_at = lock(&self.link.lease).registry_read_at;
                    now.saturating_sub(asked_at) >= self.link.options.grace / 2
                }
                // That is known.
                Succession::Finished | Succession::Forgotten { .. } => false,
            }
    }

    /// Returns true if the store may have forgotten an incarnation in good order, rather than never
    /// known it.
    fn may_have_forgotten(&self, incarnation: Incarnation, at: Millis) -> bool {
        let joined = lock(&self.core.joined).get(&incarnation).copied();
        self.is_long_ago(joined, at)
    }

    /// Returns true if the store may have removed the registration of a retiring incarnation in
    /// good order.
    pub(super) fn may_have_removed(&self, incarnation: Incarnation, at: Millis) -> bool {
        let joined = lock(&self.core.joined).get(&incarnation).copied();
        let grace = millis(self.link.options.grace);
        joined.is_none_or(|joined| joined.0.saturating_add(grace + grace / 2) <= at.0)
    }

    /// Journals anew, with each audit pass, the time until which this node's incarnations were
    /// live. An incarnation that was live lately is not forgotten in good order: a registry without
    /// it has lost it.
    async fn refresh_joined(&self, registrations: &[Registration], at: Millis) {
        let every = millis(self.link.options.audit_every);
        let ours = registrations.iter().filter(|registration| registration.writer.node == self.link.node);
        for &Registration { writer, stage, .. } in ours {
            let live_until = self.live_until(stage, at);
            let joined = lock(&self.core.joined).get(&writer.incarnation).copied();
            if joined.is_some_and(|joined| joined.0.saturating_add(every) <= live_until.0)
                && self.write_entry(&Entry::Joined { writer, at: live_until }).await
            {
                lock(&self.core.joined).insert(writer.incarnation, live_until);
            }
        }
    }

    /// The latest time at which an incarnation in this stage may have been live.
    fn live_until(&self, stage: WriterStage, at: Millis) -> Millis {
        match stage {
            // An incarnation that is not closed yet has all of its `grace` ahead.
            WriterStage::Live | WriterStage::Retiring { .. } => at,
            WriterStage::Closed { since } => since,
            WriterStage::Folded { since } => Millis(since.0.saturating_sub(millis(self.link.options.grace))),
        }
    }

    /// Returns true if an incarnation live at that time may have been removed since. The store
    /// removes it after it was closed for `grace`, and folded for as long again.
    fn is_long_ago(&self, live: Option<Millis>, at: Millis) -> bool {
        live.is_some_and(|live| live.0.saturating_add(millis(2 * self.link.options.grace)) <= at.0)
    }

    /// Releases the present registration before a clean stop, so that a restart may continue it at
    /// once.
    pub async fn release(self) {
        let present = self.link.incarnation();
        let live = lock(&self.link.lease).membership == Membership::Live;
        if !live {
            return;
        }
        // A failure here costs the restart a new incarnation.
        let Ok(WriterList { registrations, .. }) = self.link.store.writers().await else { return };
        let known = find_registration(&registrations, self.writer(present));
        if let Some(known) = known.filter(|known| known.holder == Some(self.link.holder)) {
            let released = known.released();
            // Journaled first: a restart must recognise the registration.
            if self.core.journal.record_released(released.version as u32).is_ok() {
                let _ = self.register(Some(known), &released).await;
            }
        }
        lock(&self.link.lease).may_put_until = Duration::ZERO;
    }

    /// Draws the next incarnation and makes it durable; false if the journal has no room now.
    async fn draw_incarnation(&self) -> bool {
        let drawn = Incarnation(self.link.random());
        let noted = self.core.journal.record_incarnation(drawn).is_ok();
        if !noted || !self.write_entry(&Entry::Start { writer: self.writer(drawn) }).await {
            return false;
        }
        let before = self.link.incarnation();
        let mut lease = lock(&self.link.lease);
        (lease.is_retired, lease.membership, lease.confirmed_version, lease.tried_version) =
            (false, Membership::Joining, None, 0);
        lease.renewed_at = None;
        let succession =
            if std::mem::take(&mut lease.is_taken_over) { Succession::TakenOver } else { Succession::Unknown };
        lease.successions.insert(before, succession);
        tracing::warn!(
            writer = %self.writer(before),
            next = %self.writer(drawn),
            "this writer was retired or taken over while the node was away: the node goes on as a new writer"
        );
        self.link.incarnation.store(drawn.0, Ordering::Release);
        true
    }

    /// Journals that an incarnation is about to be registered, or that the registry knows it.
    /// Returns false if the journal has no room now. The entry stays as long as this node has a
    /// cell of the incarnation. Without it, a start after the store has forgotten the incarnation
    /// would take it for an unregistered one.
    async fn journal_join(&self, incarnation: Incarnation, at: Millis) -> bool {
        if lock(&self.core.joined).contains_key(&incarnation) {
            return true;
        }
        // In memory before it is in the journal: a seal in between must not miss it.
        lock(&self.core.joined).insert(incarnation, at);
        let written = self.write_entry(&Entry::Joined { writer: self.writer(incarnation), at }).await;
        if !written {
            lock(&self.core.joined).remove(&incarnation);
        }
        written
    }

    async fn write_entry(&self, entry: &Entry<'_>) -> bool {
        let mut turn = Turn::new(self.core);
        let noted = turn.journal_entry(entry).is_ok();
        turn.finish();
        let end = self.core.journal.reserved();
        noted && self.core.commit_until(Wait { written: end, synced: end }).await.is_ok()
    }

    /// Continues as this incarnation.
    fn begin_incarnation(&self, incarnation: Incarnation, next: &Registration, asked_at: Duration) {
        // The audit finds adds that another process made at the last moment.
        self.link.incarnation.store(incarnation.0, Ordering::Release);
        {
            let mut lease = lock(&self.link.lease);
            (lease.is_retired, lease.clean_stop) = (false, None);
            lease.successions.remove(&incarnation);
            if lease.membership == Membership::Joining {
                lease.membership = Membership::Live;
            }
        }
        self.confirm_lease(next, asked_at);
        self.request_audit(false);
    }

    fn confirm_lease(&self, next: &Registration, asked_at: Duration) {
        let lease_for = self.link.options.lease;
        let mut lease = lock(&self.link.lease);
        (lease.may_put_until, lease.confirmed_version) = (asked_at + lease_for, Some(next.version));
        lease.tried_version = next.version;
        lease.renewed_at = Some(Millis(next.lease_until.0.saturating_sub(millis(lease_for))));
    }

    fn next_registration(
        &self,
        known: Option<&Registration>,
        incarnation: Incarnation,
        first: bool,
        at: Millis,
    ) -> Result<Registration, RenewError> {
        registry::renew(known, (self.writer(incarnation), self.link.holder), first, at, self.link.options.lease)
    }

    /// Replaces one registration by another; returns true if the store has accepted it.
    async fn register(&self, known: Option<&Registration>, next: &Registration) -> Result<bool, StoreError> {
        if next.writer.incarnation == self.link.incarnation() {
            let mut lease = lock(&self.link.lease);
            lease.tried_version = lease.tried_version.max(next.version);
        }
        let version = known.map_or(0, |known| known.version);
        let verdict = self.link.store.register(version, next).await?;
        self.record_registration(verdict, known.is_none());
        Ok(verdict == RegisterVerdict::Registered)
    }

    fn writer(&self, incarnation: Incarnation) -> Writer {
        Writer { node: self.link.node, incarnation }
    }
}

/// Logs that a writer is retiring.
pub(super) fn log_retirement(writer: Writer) {
    tracing::info!(%writer, "a writer is retired: its cells are closed, and folded after `grace`");
}

fn find_registration(registrations: &[Registration], writer: Writer) -> Option<&Registration> {
    registrations.iter().find(|registration| registration.writer == writer)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use quipu_model::NodeId;
    use quipu_model::shared::Holder;

    use super::*;

    #[test]
    fn a_life_is_gone_on_with_only_if_its_registration_is_as_the_stop_left_it() {
        let writer = Writer { node: NodeId(1), incarnation: Incarnation(2) };
        let known = |version, holder: Option<u64>| Registration {
            writer,
            holder: holder.map(Holder),
            lease_until: Millis(9),
            stage: WriterStage::Live,
            version,
        };
        let clean_stop = CleanStop { incarnation: writer.incarnation, released_version: 7 };
        assert!(clean_stop.is_untouched(&known(7, None)));
        assert!(!clean_stop.is_untouched(&known(6, Some(3))), "the store did not hear of the stop");
        assert!(!clean_stop.is_untouched(&known(7, Some(4))), "nor did it, and somebody has renewed it since");
        assert!(!clean_stop.is_untouched(&known(9, None)), "a copy has gone on with it, and has stopped");
        assert!(!clean_stop.is_untouched(&known(2, None)), "the store has gone back");
        assert!(clean_stop.is_untouched(&known((1 << 32) + 7, None)), "so many renewals nobody sees");
    }
}

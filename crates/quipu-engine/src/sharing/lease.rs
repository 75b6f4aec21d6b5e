//! Who this node is to the store, and that it is still there.
//!
//! In: the registry. Out: a lease on the present life and on older ones that still owe something; a new life when the present one was retired.
//!
//! ```text
//! start ──► joining: a new life, drawn and synced, adds; nothing of it leaves the node
//!              │ it has added nothing yet, the last one was stopped cleanly, and nobody has touched its registration since: goes on as that
//!              │ else: is registered
//!              ▼
//!            live ── retired meanwhile ──► the next life; the old one is settled late
//!              │
//!              └── its id written to by someone else ──► fenced
//! ```
//!
//! Invariants:
//! - a life is in the journal, synced, before it adds; that it is about to be registered is, too, before it is;
//! - the cells of an older life are this node's to act for while it holds that life's registration, or once that life is on its way out;
//! - nothing is put after the lease has run out by this node's clock, counted from before the asking.

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_model::shared::{NODE_INCARNATION, RegisterVerdict, Registration, RenewError, WriterStage, registry};
use quipu_model::{Incarnation, Millis, StoreError, Writer, WriterList};

use super::{Sharing, StoreLink};
use crate::journal::Wait;
use crate::journal::format::Entry;
use crate::sync::{Arc, Ordering, lock};
use crate::turn::Turn;

/// A lease is renewed this often over its length, so that one lost answer does not end it.
const RENEWALS: u32 = 3;

/// Where a node stands with its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// Not registered yet; adds go on.
    Joining,
    /// Registered.
    Live,
    /// Nothing is counted any more.
    Fenced {
        /// Why, and what to do about it.
        reason: String,
    },
}

/// What is known of an older life of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Succession {
    /// Its cells were met; the registry has not been asked.
    Unknown,
    /// It was the present one, until someone else was found to go on with it: it is to be retired, so that both go on as others, and what either has
    /// added to it is settled late.
    TakenOver,
    /// Someone else holds it: perhaps a process that is gone, whose lease runs out; `alive` once its registration was seen to be renewed.
    Elsewhere { version: u64, alive: bool },
    /// Its registration is held, until then; since so many passes of the audit had begun.
    Held { until: Duration, since: u64 },
    /// All of it is settled; it is to be retired.
    Settled,
    /// It is being retired, and this node has known that since so many passes of the audit had begun: what it still owes is settled late. Rows
    /// remember what they kept of it while the registry knows it, which is certain until then.
    Late { until: Duration, since: u64 },
    /// On its way out with nothing left to say. Its cells are kept until its registration is removed: the store may lose them.
    Finished,
    /// The store has forgotten what it knew of it, since so many passes of the audit had begun: the next one drops its cells.
    Forgotten { since: u64 },
}

impl Succession {
    /// Since how many passes of the audit had begun it is acted for.
    fn pass_since(self) -> Option<u64> {
        match self {
            Succession::Held { since, .. } | Succession::Late { since, .. } => Some(since),
            _ => None,
        }
    }

    /// Whether it is for this node to settle, if not at this very moment.
    pub fn is_ours(self) -> bool {
        matches!(self, Succession::Held { .. } | Succession::Settled | Succession::Late { .. })
    }

    /// Whether the registry is to be asked for it before its time: what is known of it is not enough, or is to be made known.
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

    /// Whether this node may act for it now.
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

/// A life that was stopped cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanStop {
    /// Which.
    pub incarnation: Incarnation,
    /// What the stop was to make of the version of its registration.
    pub released_version: u32,
}

impl CleanStop {
    /// Whether the store has heard of the stop, and nobody has gone on with it since. A machine may have been copied when it was down, and what the
    /// other one has said as this life, before it stopped cleanly itself, is not known here.
    fn is_untouched(&self, known: &Registration) -> bool {
        known.holder.is_none() && known.version as u32 == self.released_version
    }
}

/// See the module.
pub struct Lease {
    pub membership: Membership,
    /// Until when it may put, by the clock that only runs forward.
    pub may_put_until: Duration,
    pub successions: BTreeMap<Incarnation, Succession>,
    /// The present life was retired, or someone else goes on with it.
    pub is_retired: bool,
    is_taken_over: bool,
    /// The life of the last clean stop, to be gone on with if the store confirms it.
    clean_stop: Option<CleanStop>,
    /// The newest version of the present registration that was confirmed, and that was tried.
    confirmed_version: Option<u64>,
    tried_version: u64,
    renew_at: Duration,
    /// When the registry was last asked for, and has answered.
    registry_read_at: Duration,
    /// When the present life was last renewed, by the store's clock; never, if it was not registered yet.
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
    /// What is known of an older life; one that was not known is asked for.
    pub(crate) fn succession(&self, incarnation: Incarnation) -> Succession {
        if incarnation == NODE_INCARNATION {
            // What the node says of sketches is its own to say, in every life.
            return Succession::Held { until: Duration::MAX, since: 0 };
        }
        *lock(&self.lease).successions.entry(incarnation).or_insert(Succession::Unknown)
    }

    /// Whether this node may put now.
    pub(crate) fn may_put(&self, now: Duration) -> bool {
        let lease = lock(&self.lease);
        lease.membership == Membership::Live && !lease.is_retired && lease.may_put_until > now
    }

    /// The present life was retired.
    pub(crate) fn mark_retired(&self) {
        lock(&self.lease).is_retired = true;
    }

    /// Nothing is counted from here on.
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
    /// Where this node stands.
    pub fn membership(self) -> Membership {
        lock(&self.link.lease).membership.clone()
    }

    /// Whether a registered node may not put because its lease has run out.
    pub(crate) fn has_lost_lease(self) -> bool {
        let lease = lock(&self.link.lease);
        lease.membership == Membership::Live && lease.may_put_until <= self.elapsed()
    }

    /// Whether older lives of this node are still to be settled or retired by it.
    pub fn has_pending_successions(self) -> bool {
        lock(&self.link.lease)
            .successions
            .values()
            .any(|succession| matches!(succession, Succession::Unknown | Succession::TakenOver) || succession.is_ours())
    }

    /// Registers, or renews what is registered, if it is time; whether this node may put.
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
            // Before the next call: nothing that is claimed after a loss may pass for claimed before it.
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

    /// Whether the store shows an older registration of the present life than it has confirmed.
    fn has_regressed(&self, registrations: &[Registration]) -> bool {
        let known = find_registration(registrations, self.writer(self.link.incarnation()));
        let lease = lock(&self.link.lease);
        let Some(confirmed) = lease.confirmed_version.filter(|_| !lease.is_retired) else { return false };
        known.is_none_or(|known| known.version < confirmed)
    }

    /// The store has lost data: everything is put again, of former lives, too, and nothing is folded until that is done. Tokens are refused until their claims are back.
    pub(super) fn handle_loss(&self) {
        {
            let mut lease = lock(&self.link.lease);
            lease.confirmed_version = None;
            for succession in lease
                .successions
                .values_mut()
                .filter(|succession| matches!(succession, Succession::Settled | Succession::Finished))
            {
                // What was confirmed may be what was lost.
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

    /// Begins to put: as the life that was stopped cleanly, if the store confirms it and nothing was added since, or as the present one, or as a new one.
    async fn join(&self, registrations: &[Registration], at: Millis, asked_at: Duration) -> Result<(), StoreError> {
        let clean_stop = lock(&self.link.lease).clean_stop.filter(|_| !self.link.has_added.load(Ordering::Acquire));
        if let Some(clean_stop) = clean_stop {
            let incarnation = clean_stop.incarnation;
            let known = find_registration(registrations, self.writer(incarnation))
                .filter(|known| known.stage == WriterStage::Live && clean_stop.is_untouched(known));
            // One that nobody has heard of, or that someone else holds or has held, is not gone on with.
            if let Some(next) = known.and_then(|known| self.next_registration(Some(known), incarnation, false, at).ok())
            {
                if self.register(known, &next).await? && self.inner.journal.record_incarnation(incarnation).is_ok() {
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
            // An heir of it was faster: a copy of the data directory. What it has added so far is settled late.
            Err(_) => lock(&self.link.lease).is_retired = true,
        }
        Ok(())
    }

    /// Says that the present life goes on.
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
            // Away for longer than its lease, and an heir with a copy of its data directory acts for it since. Or, of a store that has lost who went on
            // with it, a copy of its machine goes on with it, too.
            let mut lease = lock(&self.link.lease);
            (lease.is_retired, lease.is_taken_over) = (true, true);
            return Ok(());
        }
        // Others retire; only someone who takes itself for this process renews.
        if taken.is_some() {
            self.link.fence(format!(
                "another process writes as {}: a copy of this machine or of its data directory is running; stop one of them, and start it on a restored directory",
                self.writer(present)
            ));
            return Ok(());
        }
        // A store that lost the registration gets it again, unless it is so long ago that it may have been forgotten in good order.
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

    /// Takes over older lives that still owe something, and retires those that do not.
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
                // Removed in good order. Half of `grace` makes up for a clock of the store that was set back: nothing of this life is left to be settled.
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
                                    // What was not looked at before, or while it had run out, is looked at from here on.
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
                        // That the registry knows it is worth knowing when it does not any more.
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
                // What the audit has found out meanwhile goes before.
                if lease.successions.get(&incarnation) != Some(&succession) {
                    continue;
                }
                lease.successions.insert(incarnation, next);
            }
            // Its cells are looked at again as soon as they may be acted for.
            if next.pass_since().is_some() && next.pass_since() != succession.pass_since() {
                self.request_audit(false);
            }
        }
        Ok(())
    }

    /// An older life is on its way out. It is removed when it was folded for `grace`, by the store's clock; half of what is left of that is certain by
    /// this node's.
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

    /// Whether the store may have folded and forgotten a life in good order by the time of a row, and has not been asked lately enough to know: then
    /// nobody can tell whether that row counts what this node has of it. Else a row that knows nothing of the life has lost it, or never heard of it.
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
                // Nobody who was live is removed within `grace`: half of that is certain by this node's clock.
                Succession::Elsewhere { .. } | Succession::Held { .. } | Succession::Settled => {
                    let asked_at = lock(&self.link.lease).registry_read_at;
                    now.saturating_sub(asked_at) >= self.link.options.grace / 2
                }
                // That is known.
                Succession::Finished | Succession::Forgotten { .. } => false,
            }
    }

    /// Whether the store may have forgotten a life in good order, rather than never have heard of it.
    fn may_have_forgotten(&self, incarnation: Incarnation, at: Millis) -> bool {
        let joined = lock(&self.inner.joined).get(&incarnation).copied();
        self.is_long_ago(joined, at)
    }

    /// Whether the store may have removed the registration of a life on its way out in good order.
    pub(super) fn may_have_removed(&self, incarnation: Incarnation, at: Millis) -> bool {
        let joined = lock(&self.inner.joined).get(&incarnation).copied();
        let grace = millis(self.link.options.grace);
        joined.is_none_or(|joined| joined.0.saturating_add(grace + grace / 2) <= at.0)
    }

    /// Notes anew, with each pass of the audit, until when the lives of this node were live. A life that was live lately is not forgotten in good order:
    /// a registry that does not know it has lost it.
    async fn refresh_joined(&self, registrations: &[Registration], at: Millis) {
        let every = millis(self.link.options.audit_every);
        let ours = registrations.iter().filter(|registration| registration.writer.node == self.link.node);
        for &Registration { writer, stage, .. } in ours {
            let live_until = self.live_until(stage, at);
            let joined = lock(&self.inner.joined).get(&writer.incarnation).copied();
            if joined.is_some_and(|joined| joined.0.saturating_add(every) <= live_until.0)
                && self.write_entry(&Entry::Joined { writer, at: live_until }).await
            {
                lock(&self.inner.joined).insert(writer.incarnation, live_until);
            }
        }
    }

    /// How long ago, at the latest, a life in this stage may have been live, for all that can follow.
    fn live_until(&self, stage: WriterStage, at: Millis) -> Millis {
        match stage {
            // One that is not closed yet has all of its `grace` before it.
            WriterStage::Live | WriterStage::Retiring { .. } => at,
            WriterStage::Closed { since } => since,
            WriterStage::Folded { since } => Millis(since.0.saturating_sub(millis(self.link.options.grace))),
        }
    }

    /// Whether a life that was live then may have gone all the way out: it is removed when it was closed for `grace`, and folded for as long again.
    fn is_long_ago(&self, live: Option<Millis>, at: Millis) -> bool {
        live.is_some_and(|live| live.0.saturating_add(millis(2 * self.link.options.grace)) <= at.0)
    }

    /// Before a clean stop: nobody holds the present life any more, so that a restart may go on with it at once.
    pub async fn release(self) {
        let present = self.link.incarnation();
        let live = lock(&self.link.lease).membership == Membership::Live;
        if !live {
            return;
        }
        // What fails here costs a restart a new life.
        let Ok(WriterList { registrations, .. }) = self.link.store.writers().await else { return };
        let known = find_registration(&registrations, self.writer(present));
        if let Some(known) = known.filter(|known| known.holder == Some(self.link.holder)) {
            let released = known.released();
            // Written down first: a restart must know the registration again.
            if self.inner.journal.record_released(released.version as u32).is_ok() {
                let _ = self.register(Some(known), &released).await;
            }
        }
        lock(&self.link.lease).may_put_until = Duration::ZERO;
    }

    /// Draws the next life and makes it durable; false if the journal has no room for it now.
    async fn draw_incarnation(&self) -> bool {
        let drawn = Incarnation(self.link.random());
        let noted = self.inner.journal.record_incarnation(drawn).is_ok();
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

    /// Writes down that a life is about to be registered, or that the registry was found to know it; false if the journal has no room for it now. While
    /// this node has a cell of it that stays written: else a start after the store has forgotten the life would take it for one that nobody has heard of.
    async fn journal_join(&self, incarnation: Incarnation, at: Millis) -> bool {
        if lock(&self.inner.joined).contains_key(&incarnation) {
            return true;
        }
        // Here before it is there: a seal in between must not miss it.
        lock(&self.inner.joined).insert(incarnation, at);
        let written = self.write_entry(&Entry::Joined { writer: self.writer(incarnation), at }).await;
        if !written {
            lock(&self.inner.joined).remove(&incarnation);
        }
        written
    }

    async fn write_entry(&self, entry: &Entry<'_>) -> bool {
        let mut turn = Turn::new(self.inner);
        let noted = turn.journal_entry(entry).is_ok();
        turn.finish();
        let end = self.inner.journal.reserved();
        noted && self.inner.commit_until(Wait { written: end, synced: end }).await.is_ok()
    }

    /// Goes on as this life.
    fn begin_incarnation(&self, incarnation: Incarnation, next: &Registration, asked_at: Duration) {
        // What another one has added at the last moment is found by the audit.
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

    /// Puts a registration in the place of another; whether it is in.
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

/// Says that a writer is on its way out.
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

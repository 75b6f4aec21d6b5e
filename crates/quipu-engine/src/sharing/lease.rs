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

use quipu_model::shared::{NODE, RegisterVerdict, Registration, RenewError, Stage, registry};
use quipu_model::{Incarnation, Millis, StoreError, Writer, Writers};

use super::{Shared, Sharing};
use crate::journal::Wait;
use crate::journal::format::Entry;
use crate::sync::{Arc, Ordering, lock};
use crate::turn::Turn;

/// A lease is renewed this often over its length, so that one lost answer does not end it.
const RENEWALS: u32 = 3;

/// Where a node stands with its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
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
pub enum Heir {
    /// Its cells were met; the registry has not been asked.
    Wanted,
    /// It was the present one, until someone else was found to go on with it: it is to be retired, so that both go on as others, and what either has
    /// added to it is settled late.
    Taken,
    /// Someone else holds it: perhaps a process that is gone, whose lease runs out; `alive` once its registration was seen to be renewed.
    Elsewhere { version: u64, alive: bool },
    /// Its registration is held, until then; since so many passes of the audit had begun.
    Held { until: Duration, since: u64 },
    /// All of it is settled; it is to be retired.
    Done,
    /// It is being retired, and this node has known that since so many passes of the audit had begun: what it still owes is settled late. Rows
    /// remember what they kept of it while the registry knows it, which is certain until then.
    Late { until: Duration, since: u64 },
    /// On its way out with nothing left to say. Its cells are kept until its registration is removed: the store may lose them.
    Over,
    /// The store has forgotten what it knew of it, since so many passes of the audit had begun: the next one drops its cells.
    Lost { since: u64 },
}

impl Heir {
    /// Since how many passes of the audit had begun it is acted for.
    fn since(self) -> Option<u64> {
        match self {
            Heir::Held { since, .. } | Heir::Late { since, .. } => Some(since),
            _ => None,
        }
    }

    /// Whether it is for this node to settle, if not at this very moment.
    pub fn is_ours(self) -> bool {
        matches!(self, Heir::Held { .. } | Heir::Done | Heir::Late { .. })
    }

    /// Whether the registry is to be asked for it before its time: what is known of it is not enough, or is to be made known.
    fn is_asked_for(self, now: Duration) -> bool {
        match self {
            Heir::Wanted | Heir::Taken | Heir::Done => true,
            Heir::Late { until, .. } => until <= now,
            Heir::Elsewhere { .. } | Heir::Held { .. } | Heir::Over | Heir::Lost { .. } => false,
        }
    }

    /// Whether this node may act for it now.
    pub fn acts(self, now: Duration) -> bool {
        match self {
            Heir::Held { until, .. } | Heir::Late { until, .. } => until > now,
            Heir::Done => true,
            Heir::Wanted | Heir::Taken | Heir::Elsewhere { .. } | Heir::Over | Heir::Lost { .. } => false,
        }
    }
}

/// A life that was stopped cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Which.
    pub incarnation: Incarnation,
    /// What the stop was to make of the version of its registration.
    pub released: u32,
}

impl Kept {
    /// Whether the store has heard of the stop, and nobody has gone on with it since. A machine may have been copied when it was down, and what the
    /// other one has said as this life, before it stopped cleanly itself, is not known here.
    fn is_untouched(&self, known: &Registration) -> bool {
        known.holder.is_none() && known.version as u32 == self.released
    }
}

/// See the module.
pub struct Lease {
    pub standing: Standing,
    /// Until when it may put, by the clock that only runs forward.
    pub until: Duration,
    pub heirs: BTreeMap<Incarnation, Heir>,
    /// The present life was retired, or someone else goes on with it.
    pub over: bool,
    taken: bool,
    /// The life of the last clean stop, to be gone on with if the store confirms it.
    kept: Option<Kept>,
    /// The newest version of the present registration that was confirmed, and that was tried.
    confirmed: Option<u64>,
    tried: u64,
    renew_at: Duration,
    /// When the registry was last asked for, and has answered.
    asked_at: Duration,
    /// When the present life was last renewed, by the store's clock; never, if it was not registered yet.
    renewed: Option<Millis>,
}

impl Lease {
    pub fn new(kept: Option<Kept>) -> Lease {
        Lease {
            standing: Standing::Joining,
            until: Duration::ZERO,
            heirs: BTreeMap::new(),
            over: false,
            taken: false,
            kept,
            confirmed: None,
            tried: 0,
            renew_at: Duration::ZERO,
            asked_at: Duration::ZERO,
            renewed: None,
        }
    }
}

impl Shared {
    /// What is known of an older life; one that was not known is asked for.
    pub(crate) fn heir(&self, incarnation: Incarnation) -> Heir {
        if incarnation == NODE {
            // What the node says of sketches is its own to say, in every life.
            return Heir::Held { until: Duration::MAX, since: 0 };
        }
        *lock(&self.lease).heirs.entry(incarnation).or_insert(Heir::Wanted)
    }

    /// Whether this node may put now.
    pub(crate) fn may_put(&self, now: Duration) -> bool {
        let lease = lock(&self.lease);
        lease.standing == Standing::Live && !lease.over && lease.until > now
    }

    /// The present life was retired.
    pub(crate) fn note_over(&self) {
        lock(&self.lease).over = true;
    }

    /// Nothing is counted from here on.
    pub(crate) fn fence(&self, reason: String) {
        let mut lease = lock(&self.lease);
        if !matches!(lease.standing, Standing::Fenced { .. }) {
            tracing::warn!(reason, "this node is fenced: it refuses every command");
        }
        lease.standing = Standing::Fenced { reason };
        drop(lease);
        self.fenced.store(true, Ordering::Release);
    }
}

impl Sharing<'_> {
    /// Where this node stands.
    pub fn standing(self) -> Standing {
        lock(&self.shared.lease).standing.clone()
    }

    /// Whether a registered node may not put because its lease has run out.
    pub(crate) fn has_lost_lease(self) -> bool {
        let lease = lock(&self.shared.lease);
        lease.standing == Standing::Live && lease.until <= self.elapsed()
    }

    /// Whether older lives of this node are still to be settled or retired by it.
    pub fn has_heirs(self) -> bool {
        lock(&self.shared.lease).heirs.values().any(|heir| matches!(heir, Heir::Wanted | Heir::Taken) || heir.is_ours())
    }

    /// Registers, or renews what is registered, if it is time; whether this node may put.
    pub async fn renew(self) -> bool {
        let now = self.elapsed();
        let due = {
            let lease = lock(&self.shared.lease);
            let fenced = matches!(lease.standing, Standing::Fenced { .. });
            let asked = lease.heirs.values().any(|heir| heir.is_asked_for(now));
            !fenced && (lease.over || asked || lease.renew_at <= now || self.shared.has_changed_history())
        };
        if due && self.shared.may_call("renew", now) {
            let renewed = self.try_renew(now).await;
            self.shared.called("renew", self.elapsed(), &renewed);
        }
        self.shared.may_put(self.elapsed())
    }

    async fn try_renew(&self, asked_at: Duration) -> Result<(), StoreError> {
        let has_changed = self.ask_history().await?;
        if has_changed {
            // Before the next call: nothing that is claimed after a loss may pass for claimed before it.
            self.note_loss();
        }
        let Writers { registrations, at } = self.shared.store.writers().await?;
        let registered = registrations.iter().map(|registration| registration.writer).collect();
        *lock(&self.shared.registered) = Arc::new(registered);
        if self.has_gone_back(&registrations) {
            self.note_loss();
        }
        self.date_loss(at);
        self.refresh_joined(&registrations, at).await;
        let joining = {
            let lease = lock(&self.shared.lease);
            lease.standing == Standing::Joining || lease.over
        };
        if !joining {
            self.extend(&registrations, at, asked_at).await?;
        }
        if joining || lock(&self.shared.lease).over {
            self.join(&registrations, at, asked_at).await?;
        }
        self.inherit(&registrations, at, asked_at).await?;
        let mut lease = lock(&self.shared.lease);
        (lease.renew_at, lease.asked_at) = (asked_at + self.shared.options.lease / RENEWALS, asked_at);
        Ok(())
    }

    /// Whether the store shows an older registration of the present life than it has confirmed.
    fn has_gone_back(&self, registrations: &[Registration]) -> bool {
        let known = find(registrations, self.writer(self.shared.present()));
        let lease = lock(&self.shared.lease);
        let Some(confirmed) = lease.confirmed.filter(|_| !lease.over) else { return false };
        known.is_none_or(|known| known.version < confirmed)
    }

    /// The store has lost data: everything is put again, of former lives, too, and nothing is folded until that is done. Tokens are refused until their claims are back.
    pub(super) fn note_loss(&self) {
        {
            let mut lease = lock(&self.shared.lease);
            lease.confirmed = None;
            for heir in lease.heirs.values_mut().filter(|heir| matches!(heir, Heir::Done | Heir::Over)) {
                // What was confirmed may be what was lost.
                *heir = Heir::Wanted;
            }
        }
        self.shared.figures.losses.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            "the shared store has lost data that it had confirmed: this node puts all of its counters again"
        );
        self.restore_all_claims();
        self.audit_again(true);
    }

    /// Begins to put: as the life that was stopped cleanly, if the store confirms it and nothing was added since, or as the present one, or as a new one.
    async fn join(&self, registrations: &[Registration], at: Millis, asked_at: Duration) -> Result<(), StoreError> {
        let kept = lock(&self.shared.lease).kept.filter(|_| !self.shared.has_added.load(Ordering::Acquire));
        if let Some(kept) = kept {
            let incarnation = kept.incarnation;
            let known = find(registrations, self.writer(incarnation))
                .filter(|known| known.stage == Stage::Live && kept.is_untouched(known));
            // One that nobody has heard of, or that someone else holds or has held, is not gone on with.
            if let Some(next) = known.and_then(|known| self.renewed(Some(known), incarnation, false, at).ok()) {
                if self.register(known, &next).await? && self.inner.journal.note_incarnation(incarnation).is_ok() {
                    self.begin(incarnation, &next, asked_at);
                }
                return Ok(());
            }
        }
        lock(&self.shared.lease).kept = None;
        let over = lock(&self.shared.lease).over;
        if over && !self.draw().await {
            return Ok(());
        }
        let present = self.shared.present();
        let known = find(registrations, self.writer(present));
        match self.renewed(known, present, true, at) {
            Ok(next) => {
                if self.announce(present, at).await && self.register(known, &next).await? {
                    self.begin(present, &next, asked_at);
                }
            }
            // An heir of it was faster: a copy of the data directory. What it has added so far is settled late.
            Err(_) => lock(&self.shared.lease).over = true,
        }
        Ok(())
    }

    /// Says that the present life goes on.
    async fn extend(&self, registrations: &[Registration], at: Millis, asked_at: Duration) -> Result<(), StoreError> {
        let (present, known) = {
            let present = self.shared.present();
            (present, find(registrations, self.writer(present)))
        };
        let (tried, renewed) = {
            let lease = lock(&self.shared.lease);
            (lease.tried, lease.renewed)
        };
        let taken = known.filter(|known| known.stage == Stage::Live && known.version > tried);
        if taken.is_some_and(|known| known.holder != Some(self.shared.holder)) {
            // Away for longer than its lease, and an heir with a copy of its data directory acts for it since. Or, of a store that has lost who went on
            // with it, a copy of its machine goes on with it, too.
            let mut lease = lock(&self.shared.lease);
            (lease.over, lease.taken) = (true, true);
            return Ok(());
        }
        // Others retire; only someone who takes itself for this process renews.
        if taken.is_some() {
            self.shared.fence(format!(
                "another process writes as {}: a copy of this machine or of its data directory is running; stop one of them, and start it on a restored directory",
                self.writer(present)
            ));
            return Ok(());
        }
        // A store that lost the registration gets it again, unless it is so long ago that it may have been forgotten in good order.
        let grace = millis(self.shared.options.grace);
        let forgotten = renewed.is_some_and(|renewed| renewed.0.saturating_add(grace) <= at.0);
        match self.renewed(known, present, !forgotten, at) {
            Ok(next) => {
                if self.register(known, &next).await? {
                    self.confirm(&next, asked_at);
                }
            }
            Err(error) => {
                let mut lease = lock(&self.shared.lease);
                (lease.over, lease.taken) = (true, matches!(error, RenewError::Held { .. }));
            }
        }
        Ok(())
    }

    /// Takes over older lives that still owe something, and retires those that do not.
    async fn inherit(&self, registrations: &[Registration], at: Millis, asked_at: Duration) -> Result<(), StoreError> {
        let heirs: Vec<(Incarnation, Heir)> =
            lock(&self.shared.lease).heirs.iter().map(|(incarnation, heir)| (*incarnation, *heir)).collect();
        for (incarnation, heir) in heirs {
            if matches!(heir, Heir::Lost { .. }) || incarnation == self.shared.present() {
                continue;
            }
            let known = find(registrations, self.writer(incarnation));
            let next = match known.map(|known| known.stage) {
                // Removed in good order. Half of `grace` makes up for a clock of the store that was set back: nothing of this life is left to be settled.
                None if heir == Heir::Over && self.is_removed(incarnation, at) => Heir::Lost { since: self.passes() },
                None if self.is_forgotten(incarnation, at) => Heir::Lost { since: self.passes() },
                Some(stage @ (Stage::Retiring { .. } | Stage::Closed { .. } | Stage::Folded { .. })) => match heir {
                    Heir::Done | Heir::Over => Heir::Over,
                    heir if self.announce(incarnation, self.live_until(stage, at)).await => {
                        self.late(heir, stage, at, asked_at)
                    }
                    heir => heir,
                },
                Some(Stage::Live) if heir == Heir::Taken => {
                    let retiring = known.map(|known| known.retiring(at));
                    match retiring {
                        Some(retiring) if self.register(known, &retiring).await? => {
                            log_retirement(retiring.writer);
                            self.late(heir, retiring.stage, at, asked_at)
                        }
                        _ => heir,
                    }
                }
                None | Some(Stage::Live) => match (self.renewed(known, incarnation, true, at), heir) {
                    (Ok(next), Heir::Done) => {
                        let retiring = Registration { stage: Stage::Retiring { since: at }, ..next };
                        match self.register(known, &retiring).await? {
                            true => {
                                log_retirement(retiring.writer);
                                Heir::Over
                            }
                            false => heir,
                        }
                    }
                    (Ok(next), heir) => {
                        match self.announce(incarnation, at).await && self.register(known, &next).await? {
                            true => {
                                let (until, now) = (asked_at + self.shared.options.lease, self.elapsed());
                                // What was not looked at before, or while it had run out, is looked at from here on.
                                match heir {
                                    Heir::Held { since, .. } if heir.acts(now) => Heir::Held { until, since },
                                    _ => Heir::Held { until, since: self.passes() },
                                }
                            }
                            false => heir,
                        }
                    }
                    // That the registry knows it is worth knowing when it does not any more.
                    (Err(_), _) if !self.announce(incarnation, at).await => heir,
                    (Err(_), _) => {
                        let version = known.map_or(0, |known| known.version);
                        let alive = matches!(heir, Heir::Elsewhere { version: seen, alive } if alive || seen < version);
                        Heir::Elsewhere { version, alive }
                    }
                },
            };
            {
                let mut lease = lock(&self.shared.lease);
                // What the audit has found out meanwhile goes before.
                if lease.heirs.get(&incarnation) != Some(&heir) {
                    continue;
                }
                lease.heirs.insert(incarnation, next);
            }
            // Its cells are looked at again as soon as they may be acted for.
            if next.since().is_some() && next.since() != heir.since() {
                self.audit_again(false);
            }
        }
        Ok(())
    }

    /// An older life is on its way out. It is removed when it was folded for `grace`, by the store's clock; half of what is left of that is certain by
    /// this node's.
    fn late(&self, heir: Heir, stage: Stage, at: Millis, asked_at: Duration) -> Heir {
        let grace = self.shared.options.grace;
        let left = match stage {
            Stage::Folded { since } => grace.saturating_sub(Duration::from_millis(at.0.saturating_sub(since.0))),
            _ => grace,
        };
        let until = asked_at + left / 2;
        match heir {
            Heir::Late { since, .. } if heir.acts(self.elapsed()) => Heir::Late { until, since },
            _ => Heir::Late { until, since: self.passes() },
        }
    }

    /// Whether the store may have folded and forgotten a life in good order by the time of a row, and has not been asked lately enough to know: then
    /// nobody can tell whether that row counts what this node has of it. Else a row that knows nothing of the life has lost it, or never heard of it.
    pub(super) fn may_be_forgotten(&self, incarnation: Incarnation, at: Millis, now: Duration) -> bool {
        if incarnation == NODE {
            return false;
        }
        if incarnation == self.shared.present() {
            let renewed = lock(&self.shared.lease).renewed;
            return self.is_long_ago(renewed, at);
        }
        let heir = self.shared.heir(incarnation);
        self.is_forgotten(incarnation, at)
            && match heir {
                Heir::Wanted | Heir::Taken => true,
                Heir::Late { until, .. } => until <= now,
                // Nobody who was live is removed within `grace`: half of that is certain by this node's clock.
                Heir::Elsewhere { .. } | Heir::Held { .. } | Heir::Done => {
                    let asked_at = lock(&self.shared.lease).asked_at;
                    now.saturating_sub(asked_at) >= self.shared.options.grace / 2
                }
                // That is known.
                Heir::Over | Heir::Lost { .. } => false,
            }
    }

    /// Whether the store may have forgotten a life in good order, rather than never have heard of it.
    fn is_forgotten(&self, incarnation: Incarnation, at: Millis) -> bool {
        let joined = lock(&self.inner.joined).get(&incarnation).copied();
        self.is_long_ago(joined, at)
    }

    /// Whether the store may have removed the registration of a life on its way out in good order.
    pub(super) fn is_removed(&self, incarnation: Incarnation, at: Millis) -> bool {
        let joined = lock(&self.inner.joined).get(&incarnation).copied();
        let grace = millis(self.shared.options.grace);
        joined.is_none_or(|joined| joined.0.saturating_add(grace + grace / 2) <= at.0)
    }

    /// Notes anew, with each pass of the audit, until when the lives of this node were live. A life that was live lately is not forgotten in good order:
    /// a registry that does not know it has lost it.
    async fn refresh_joined(&self, registrations: &[Registration], at: Millis) {
        let every = millis(self.shared.options.audit_every);
        let ours = registrations.iter().filter(|registration| registration.writer.node == self.shared.node);
        for &Registration { writer, stage, .. } in ours {
            let live_until = self.live_until(stage, at);
            let joined = lock(&self.inner.joined).get(&writer.incarnation).copied();
            if joined.is_some_and(|joined| joined.0.saturating_add(every) <= live_until.0)
                && self.write(&Entry::Joined { writer, at: live_until }).await
            {
                lock(&self.inner.joined).insert(writer.incarnation, live_until);
            }
        }
    }

    /// How long ago, at the latest, a life in this stage may have been live, for all that can follow.
    fn live_until(&self, stage: Stage, at: Millis) -> Millis {
        match stage {
            // One that is not closed yet has all of its `grace` before it.
            Stage::Live | Stage::Retiring { .. } => at,
            Stage::Closed { since } => since,
            Stage::Folded { since } => Millis(since.0.saturating_sub(millis(self.shared.options.grace))),
        }
    }

    /// Whether a life that was live then may have gone all the way out: it is removed when it was closed for `grace`, and folded for as long again.
    fn is_long_ago(&self, live: Option<Millis>, at: Millis) -> bool {
        live.is_some_and(|live| live.0.saturating_add(millis(2 * self.shared.options.grace)) <= at.0)
    }

    /// Before a clean stop: nobody holds the present life any more, so that a restart may go on with it at once.
    pub async fn release(self) {
        let present = self.shared.present();
        let live = lock(&self.shared.lease).standing == Standing::Live;
        if !live {
            return;
        }
        // What fails here costs a restart a new life.
        let Ok(Writers { registrations, .. }) = self.shared.store.writers().await else { return };
        let known = find(&registrations, self.writer(present));
        if let Some(known) = known.filter(|known| known.holder == Some(self.shared.holder)) {
            let released = known.released();
            // Written down first: a restart must know the registration again.
            if self.inner.journal.note_released(released.version as u32).is_ok() {
                let _ = self.register(Some(known), &released).await;
            }
        }
        lock(&self.shared.lease).until = Duration::ZERO;
    }

    /// Draws the next life and makes it durable; false if the journal has no room for it now.
    async fn draw(&self) -> bool {
        let drawn = Incarnation(self.shared.random());
        let noted = self.inner.journal.note_incarnation(drawn).is_ok();
        if !noted || !self.write(&Entry::Start { writer: self.writer(drawn) }).await {
            return false;
        }
        let before = self.shared.present();
        let mut lease = lock(&self.shared.lease);
        (lease.over, lease.standing, lease.confirmed, lease.tried) = (false, Standing::Joining, None, 0);
        lease.renewed = None;
        let heir = if std::mem::take(&mut lease.taken) { Heir::Taken } else { Heir::Wanted };
        lease.heirs.insert(before, heir);
        tracing::warn!(
            writer = %self.writer(before),
            next = %self.writer(drawn),
            "this writer was retired or taken over while the node was away: the node goes on as a new writer"
        );
        self.shared.present.store(drawn.0, Ordering::Release);
        true
    }

    /// Writes down that a life is about to be registered, or that the registry was found to know it; false if the journal has no room for it now. While
    /// this node has a cell of it that stays written: else a start after the store has forgotten the life would take it for one that nobody has heard of.
    async fn announce(&self, incarnation: Incarnation, at: Millis) -> bool {
        if lock(&self.inner.joined).contains_key(&incarnation) {
            return true;
        }
        // Here before it is there: a seal in between must not miss it.
        lock(&self.inner.joined).insert(incarnation, at);
        let written = self.write(&Entry::Joined { writer: self.writer(incarnation), at }).await;
        if !written {
            lock(&self.inner.joined).remove(&incarnation);
        }
        written
    }

    async fn write(&self, entry: &Entry<'_>) -> bool {
        let mut turn = Turn::new(self.inner);
        let noted = turn.note(entry).is_ok();
        turn.finish();
        let end = self.inner.journal.reserved();
        noted && self.inner.committed(Wait { written: end, synced: end }).await.is_ok()
    }

    /// Goes on as this life.
    fn begin(&self, incarnation: Incarnation, next: &Registration, asked_at: Duration) {
        // What another one has added at the last moment is found by the audit.
        self.shared.present.store(incarnation.0, Ordering::Release);
        {
            let mut lease = lock(&self.shared.lease);
            (lease.over, lease.kept) = (false, None);
            lease.heirs.remove(&incarnation);
            if lease.standing == Standing::Joining {
                lease.standing = Standing::Live;
            }
        }
        self.confirm(next, asked_at);
        self.audit_again(false);
    }

    fn confirm(&self, next: &Registration, asked_at: Duration) {
        let lease_for = self.shared.options.lease;
        let mut lease = lock(&self.shared.lease);
        (lease.until, lease.confirmed) = (asked_at + lease_for, Some(next.version));
        lease.tried = next.version;
        lease.renewed = Some(Millis(next.lease_until.0.saturating_sub(millis(lease_for))));
    }

    fn renewed(
        &self,
        known: Option<&Registration>,
        incarnation: Incarnation,
        first: bool,
        at: Millis,
    ) -> Result<Registration, RenewError> {
        registry::renew(known, (self.writer(incarnation), self.shared.holder), first, at, self.shared.options.lease)
    }

    /// Puts a registration in the place of another; whether it is in.
    async fn register(&self, known: Option<&Registration>, next: &Registration) -> Result<bool, StoreError> {
        if next.writer.incarnation == self.shared.present() {
            let mut lease = lock(&self.shared.lease);
            lease.tried = lease.tried.max(next.version);
        }
        let version = known.map_or(0, |known| known.version);
        let verdict = self.shared.store.register(version, next).await?;
        self.note_registry(verdict, known.is_none());
        Ok(verdict == RegisterVerdict::Registered)
    }

    fn writer(&self, incarnation: Incarnation) -> Writer {
        Writer { node: self.shared.node, incarnation }
    }
}

/// Says that a writer is on its way out.
pub(super) fn log_retirement(writer: Writer) {
    tracing::info!(%writer, "a writer is retired: its cells are closed, and folded after `grace`");
}

fn find(registrations: &[Registration], writer: Writer) -> Option<&Registration> {
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
            stage: Stage::Live,
            version,
        };
        let kept = Kept { incarnation: writer.incarnation, released: 7 };
        assert!(kept.is_untouched(&known(7, None)));
        assert!(!kept.is_untouched(&known(6, Some(3))), "the store did not hear of the stop");
        assert!(!kept.is_untouched(&known(7, Some(4))), "nor did it, and somebody has renewed it since");
        assert!(!kept.is_untouched(&known(9, None)), "a copy has gone on with it, and has stopped");
        assert!(!kept.is_untouched(&known(2, None)), "the store has gone back");
        assert!(kept.is_untouched(&known((1 << 32) + 7, None)), "so many renewals nobody sees");
    }
}

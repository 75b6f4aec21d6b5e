//! Applies commands to the resident table and drafts the record of their results.
//!
//! In: admitted commands and the locks of their shards. Out: replies, and the entries of one
//! record.
//!
//! Invariants:
//! - a change of a count's value that is not an add raises the epoch;
//! - a refused command leaves table and record as they were;
//! - the command that finds a counter expired removes it, in the same record: so no later reader
//!   sees it again, even if the clock goes back;
//! - on a shared store an add changes this node's own cell and the shown cell alike; no other
//!   change comes here from a command;
//! - every access to a counter with lanes joins them first (`join`);
//! - sketches refuse the commands of counts, and counts those of sketches;
//! - an add to a sampled count adds p for each event taken; if none is taken, nothing changes and
//!   no entry is written, except that an absent counter is created.
//!
//! Not here: sketches (`sketches`), admission and journal room (`execute`), release of the reply
//! (`turn`).

pub(crate) mod bodies;
pub(crate) mod counter_reservation;
mod join;
pub(crate) mod shard_picker;
pub(crate) mod shared_counter;
pub(crate) mod targets;

use quipu_model::count::{self, BoundedAdd};
use quipu_model::shared::nearest;
use quipu_model::{
    AddWithin, Cell, Command, Durability, Epoch, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, Kind, Millis, Name,
    NodeId, Refusal, Reply, Set, SetCondition, SetExpiry,
};
use quipu_sketch::Key;

pub use self::join::{LaneUse, RoomBudget};
use self::shard_picker::ShardPicker;
use self::shared_counter::SharedCounter;
use crate::bodies::own_cells::OwnCell;
use crate::bodies::unsettled_changes::UnsettledChanges;
use crate::journal::format::{Entry, PriorExistence};
use crate::journal::{AddResult, RecordBuilder};
use crate::namespaces::{Policies, SamplingPolicy};
use crate::table::lanes::{fits_lanes, is_lane_sized};
use crate::table::locks::ShardLocks;
use crate::table::sampler::{SampledAdd, sample_add};
use crate::table::{Residency, Table};

/// One run: the locked shards, and the record of their changes.
pub struct Run<'r, 't> {
    /// All shards.
    pub table: &'t Table,
    /// The locked shards.
    pub locks: &'r mut ShardLocks<'t>,
    /// Draft of the record.
    pub builder: &'r mut RecordBuilder,
    /// Durability, expiry and other settings per namespace.
    pub policies: &'r Policies,
    /// For a transaction: the strictest durability of its namespaces, applied to all its commands.
    pub joint_durability: Option<Durability>,
    /// There is room to journal the removal of an expired counter, also in a read-only command.
    pub may_expire: bool,
    /// The engine's time.
    pub now: Millis,
    /// This node, the author of raised epochs.
    pub node: NodeId,
    /// Set by a flush.
    pub flushed: &'r mut bool,
    /// With a shared store: picks the own cell that an add changes.
    pub picker: Option<ShardPicker<'r>>,
    /// Journal room reserved by the turn.
    pub room_budget: RoomBudget<'r>,
    /// Hash key of native sketches.
    pub key: &'r Key,
    /// Most bytes of all counters in memory, and the configured limit that it comes from.
    pub memory: Option<(u64, u64)>,
}

impl Run<'_, '_> {
    /// Applies one command.
    pub fn apply(&mut self, command: &Command<'_>) -> Reply {
        self.try_apply(command).unwrap_or_else(Reply::Refused)
    }

    fn try_apply(&mut self, command: &Command<'_>) -> Result<Reply, Refusal> {
        Ok(match command {
            Command::Add { name, delta, shard_key } => Reply::Integer(self.add(*name, *delta, *shard_key)?),
            Command::AddSampled { name, amount, p } => Reply::Integer(self.add_sampled(*name, *amount, *p)?),
            Command::AddWithin(add) => self.add_within(add)?,
            Command::Read { name } => {
                let cell = self.cell(*name);
                self.shown(*name, cell)?
            }
            Command::ReadMany { names } => Reply::Values(names.iter().map(|name| self.count(*name)).collect()),
            Command::Set(set) => self.set(set)?,
            Command::Take { name } => {
                let cell = self.cell_without_lanes(*name);
                let shown = self.shown(*name, cell)?;
                self.delete(*name);
                shown
            }
            Command::ReadAndExpire { name, expiry } => self.read_and_expire(*name, *expiry)?,
            Command::Reset { name } => self.reset(*name)?,
            Command::Delete { names } => {
                Reply::Integer(names.iter().map(|name| i64::from(self.delete(*name))).sum::<i64>())
            }
            Command::Exists { names } => {
                Reply::Integer(names.iter().map(|name| i64::from(self.cell(*name).is_some())).sum::<i64>())
            }
            Command::KindOf { name } => Reply::Kind(self.cell(*name).map(|_| self.kind_of(*name))),
            Command::Expire { name, when, condition } => {
                Reply::Integer(i64::from(self.expire(*name, *when, *condition)?))
            }
            Command::Persist { name } => Reply::Integer(i64::from(self.persist(*name))),
            Command::ExpiryOf { name, form } => Reply::Integer(self.expiry_of(*name, *form)),
            Command::Scan(_) | Command::ListNames(_) => return Err(Refusal::WalkTogether),
            Command::CountNames => Reply::Integer(self.locks.shards_mut().map(|shard| shard.counters as i64).sum()),
            Command::Flush => {
                self.flush();
                Reply::Ok
            }
            Command::Sketch(command) => self.sketch(command)?,
        })
    }

    /// Removes a counter if it has expired, for the background thread.
    pub fn expire_overdue(&mut self, name: Name<'_>) {
        self.cell(name);
    }

    fn add(&mut self, name: Name<'_>, delta: i64, shard_key: Option<&[u8]>) -> Result<i64, Refusal> {
        let before = if is_lane_sized(delta) { self.cell(name) } else { self.cell_without_lanes(name) };
        let value = match self.policies.policy(name).sampling {
            None => self.add_to(name, before, delta, shard_key)?,
            Some(sampling) => match self.sample_add(name, before, delta, sampling)? {
                Some(delta) => self.add_to(name, before, delta, shard_key)?,
                None => match before {
                    Some(cell) => return Ok(cell.value),
                    // The counter is created now, so that its epoch still marks it as sampled after
                    // sampling ends.
                    None => self.add_to(name, before, 0, shard_key)?,
                },
            },
        };
        if !fits_lanes(value) {
            self.close_lanes(name);
        }
        Ok(value)
    }

    /// Samples an add's events; returns the delta to add. `None`: no event was taken. Refusals come
    /// before the random draw, so they do not depend on it.
    fn sample_add(
        &mut self,
        name: Name<'_>,
        before: Option<Cell>,
        delta: i64,
        sampling: SamplingPolicy,
    ) -> Result<Option<i64>, Refusal> {
        let before = self.count_of(name, before)?;
        if before.is_none() {
            self.check_kind_allowed(name, Kind::Count)?;
        }
        if delta < 0 && sampling.refuses_exactness(before.map(|cell| cell.epoch)) {
            return Err(Refusal::Sampled { what: "a decrement" });
        }
        let value = before.map_or(0, |cell| cell.value);
        let hash = self.table.hash(name.bytes());
        match sampling.p_at(value) {
            1 => Ok(Some(delta)),
            p => match sample_add(self.locks.shard(self.table.shard_of(hash)).sampler(), p, value, delta) {
                SampledAdd::Delta(delta) => Ok(Some(delta)),
                SampledAdd::NoEvent => Ok(None),
                SampledAdd::Overflow => Err(Refusal::Overflow),
            },
        }
    }

    /// Adds an amount that the client has sampled already.
    fn add_sampled(&mut self, name: Name<'_>, amount: i64, p: u32) -> Result<i64, Refusal> {
        let sampling = self.policies.policy(name).sampling;
        if amount < 0 {
            return Err(Refusal::Sampled { what: "a decrement" });
        }
        if p > 1 && !sampling.is_some_and(|sampling| sampling.accepts_sampled_at(p)) {
            return Err(Refusal::NotSampled { p });
        }
        let before = self.cell_without_lanes(name);
        let before = self.count_of(name, before)?;
        if p > 1 && before.is_some_and(|cell| cell.value < 0) {
            return Err(Refusal::Sampled { what: "a count below 0" });
        }
        self.add_to(name, before, amount, None)
    }

    fn add_to(
        &mut self,
        name: Name<'_>,
        before: Option<Cell>,
        delta: i64,
        shard_key: Option<&[u8]>,
    ) -> Result<i64, Refusal> {
        let before = self.count_of(name, before)?;
        if before.is_none() {
            self.check_kind_allowed(name, Kind::Count)?;
        }
        let shown = before.map_or(0, |cell| cell.value);
        let (value, wide_sum) = match self.wide_sum(name, shown) {
            Some(sum) => add_to_wide(sum, delta)?,
            None => (count::add(shown, delta)?, None),
        };
        if self.picker.is_some() {
            self.add_own(name, before, delta, shard_key)?;
            self.set_wide_sum(name, shown, wide_sum);
        }
        let cell = self.with_value(name, before, value);
        self.write_add(name, cell, delta);
        Ok(value)
    }

    /// The sum over all writers, if it is known to exceed 64 bits. The shown value is then the
    /// nearest i64, so a check of that value usually suffices.
    fn wide_sum(&mut self, name: Name<'_>, shown: i64) -> Option<i128> {
        if self.picker.is_none() || !matches!(shown, i64::MIN | i64::MAX) {
            return None;
        }
        let hash = self.table.hash(name.bytes());
        let own_cells = self.locks.shard(self.table.shard_of(hash)).own_cells(hash, name.bytes())?;
        own_cells.wide_sum.as_deref().copied()
    }

    fn set_wide_sum(&mut self, name: Name<'_>, shown: i64, sum: Option<i128>) {
        if matches!(shown, i64::MIN | i64::MAX) {
            let hash = self.table.hash(name.bytes());
            if let Some(own_cells) = self.locks.shard(self.table.shard_of(hash)).own_cells(hash, name.bytes()) {
                own_cells.wide_sum = sum.map(Box::new);
            }
        }
    }

    /// Adds to this node's own cell of a shared counter.
    fn add_own(
        &mut self,
        name: Name<'_>,
        shown: Option<Cell>,
        delta: i64,
        shard_key: Option<&[u8]>,
    ) -> Result<(), Refusal> {
        let Some(picker) = &self.picker else { return Ok(()) };
        let picked = picker.pick(name, shard_key)?;
        let hash = self.table.hash(name.bytes());
        let shard = self.locks.shard(self.table.shard_of(hash));
        let (own, cell) = shard.take_own_cells(hash, name.bytes());
        let mut own = own.unwrap_or_else(|| Box::new(picker.own_from_unshared(cell)));
        let expires_at = shown.and_then(|cell| cell.expires_at);
        let added = picker.add(&mut own, picked, expires_at, delta);
        shard.put_back_own_cells(hash, name.bytes(), own);
        if added {
            shard.mark_unsettled(name.bytes(), || picker.due_at(name));
        }
        if added { Ok(()) } else { Err(Refusal::Overflow) }
    }

    /// Works on a shared counter: this node's own cells and bodies, and the shown state.
    pub fn with_shared_counter<T>(&mut self, name: Name<'_>, work: impl FnOnce(&mut SharedCounter<'_>) -> T) -> T {
        let hash = self.table.hash(name.bytes());
        // The own cell includes the lanes' sum. If the join is refused, the lanes keep it.
        let _ = self.join_lanes(hash, name, LaneUse::KeepOpen);
        let key = self.key;
        let picker = self.picker.as_ref().expect("only with a shared store");
        let shard = self.locks.shard(self.table.shard_of(hash));
        let (own, before) = shard.take_own_cells(hash, name.bytes());
        let is_plain = own.is_none() && before.is_some();
        let mut own = own.unwrap_or_else(|| Box::new(picker.own_from_unshared(before)));
        let mut counter = picker.shared_counter(&mut own, before, key);
        counter.changed = is_plain;
        counter.bodies.extend(shard.own_bodies_mut().take_all(name.bytes()));
        counter.shows_sketch = shard.body(name.bytes()).is_some();
        let result = work(&mut counter);
        let SharedCounter { shown, changed, confirmed, bodies, dropped_bodies, rewritten_bodies, shown_body, .. } =
            counter;
        let epoch = own.epoch;
        shard.put_back_own_cells(hash, name.bytes(), own);
        for (number, body) in dropped_bodies {
            shard.own_bodies_mut().drop_taken(name.bytes(), number, body);
        }
        for (number, body) in bodies {
            shard.own_bodies_mut().put_back(name.bytes(), number, body);
        }
        match shown {
            Some(cell) if changed => self.write_cell(name, cell),
            None if changed => self.remove(name, before.map_or(epoch, |cell| cell.epoch)),
            _ => {
                if shown != before {
                    shard.set_shown_cell(hash, name.bytes(), shown);
                }
                if confirmed {
                    shard.mark_changed(hash, name.bytes());
                }
            }
        }
        self.show_body(name, shown, shown_body);
        for number in rewritten_bodies {
            self.write_own_body(name, number);
        }
        self.close_lanes_if_unfit(name, shown);
        result
    }

    fn add_within(&mut self, add: &AddWithin<'_>) -> Result<Reply, Refusal> {
        let before = self.cell_without_lanes(add.name);
        let before = self.count_of(add.name, before)?;
        if before.is_none() {
            self.check_kind_allowed(add.name, Kind::Count)?;
        }
        let sampling = self.policies.policy(add.name).sampling;
        if sampling.is_some_and(|sampling| sampling.refuses_exactness(before.map(|cell| cell.epoch))) {
            return Err(Refusal::Sampled { what: "an add with bounds" });
        }
        let value = before.map_or(0, |cell| cell.value);
        let bounds = (add.lower, add.upper);
        let Some(BoundedAdd { after, delta }) = count::add_within(value, add.delta, bounds, add.saturate)? else {
            return Ok(Reply::Pair(value, 0));
        };
        let mut cell = self.with_value(add.name, before, after);
        let kept_expiry = add.expiry_if_none && before.is_some_and(|before| before.expires_at.is_some());
        match add.expiry {
            Expiry::At(when) if !kept_expiry => cell.expires_at = Some(self.resolve_time(when)?),
            Expiry::Remove if !kept_expiry => cell.expires_at = None,
            _ => {}
        }
        self.write_add(add.name, cell, delta);
        Ok(Reply::Pair(after, delta))
    }

    fn set(&mut self, set: &Set<'_>) -> Result<Reply, Refusal> {
        let Set { name, value, condition, expiry, reply_old } = *set;
        self.check_kind_allowed(name, Kind::Count)?;
        if value < 0 && self.policies.policy(name).sampling.is_some_and(|sampling| sampling.is_declared()) {
            return Err(Refusal::Sampled { what: "a count below 0" });
        }
        self.replace_counter(name, condition, expiry, reply_old, |run, cell| run.write(name, Cell { value, ..cell }))
    }

    /// Replaces a counter if the condition is met. It enters its next epoch, with the cell that
    /// `write` writes.
    pub(crate) fn replace_counter(
        &mut self,
        name: Name<'_>,
        condition: SetCondition,
        expiry: SetExpiry,
        reply_old: bool,
        write: impl FnOnce(&mut Self, Cell),
    ) -> Result<Reply, Refusal> {
        let expires_at = match expiry {
            SetExpiry::At(when) => Some(self.resolve_time(when)?),
            // A set creates the counter anew, so the namespace's default expiry applies.
            SetExpiry::Remove => self.default_expiry(name),
            SetExpiry::Keep => None,
        };
        let before = self.cell_without_lanes(name);
        let old = if reply_old { Some(self.shown(name, before)?) } else { None };
        let wanted = match condition {
            SetCondition::Always => true,
            SetCondition::IfAbsent => before.is_none(),
            SetCondition::IfPresent => before.is_some(),
        };
        if wanted {
            let kept_expiry = match (expiry, before) {
                (SetExpiry::Keep, Some(before)) => before.expires_at,
                (SetExpiry::Keep, None) => self.default_expiry(name),
                _ => None,
            };
            let epoch = self.epoch(name, before);
            let epoch = self.epoch_after_sampling(name, epoch).raised(self.now, self.node);
            write(self, Cell { epoch, value: 1, expires_at: expires_at.or(kept_expiry) });
        }
        Ok(match (old, wanted) {
            (Some(old), _) => old,
            (None, true) => Reply::Ok,
            (None, false) => Reply::Nil,
        })
    }

    fn reset(&mut self, name: Name<'_>) -> Result<Reply, Refusal> {
        let before = self.cell_without_lanes(name);
        let Some(before) = self.count_of(name, before)? else { return Ok(Reply::Integer(0)) };
        let epoch = self.epoch_after_sampling(name, before.epoch).raised(self.now, self.node);
        self.write(name, Cell { epoch, value: 0, ..before });
        Ok(Reply::Integer(before.value))
    }

    fn delete(&mut self, name: Name<'_>) -> bool {
        match self.cell_without_lanes(name) {
            Some(cell) => {
                self.remove(name, cell.epoch.raised(self.now, self.node));
                true
            }
            None => false,
        }
    }

    fn read_and_expire(&mut self, name: Name<'_>, expiry: Expiry) -> Result<Reply, Refusal> {
        let expires_at = match expiry {
            Expiry::At(when) => Some(self.resolve_time(when)?),
            Expiry::Keep | Expiry::Remove => None,
        };
        let cell = self.cell_without_lanes(name);
        let shown = self.shown(name, cell)?;
        if let Some(cell) = cell.filter(|cell| expiry != Expiry::Keep && expires_at != cell.expires_at) {
            self.write(name, Cell { expires_at, ..cell });
        }
        Ok(shown)
    }

    fn expire(&mut self, name: Name<'_>, when: ExpiryTime, condition: ExpiryCondition) -> Result<bool, Refusal> {
        let at = self.resolve_time(when)?;
        let Some(cell) = self.cell_without_lanes(name) else { return Ok(false) };
        let wanted = match (condition, cell.expires_at) {
            (ExpiryCondition::Always, _) => true,
            (ExpiryCondition::IfNone, present) => present.is_none(),
            (ExpiryCondition::IfSome, present) => present.is_some(),
            // No expiry counts as never: no time is later, every time is earlier.
            (ExpiryCondition::IfLater, present) => present.is_some_and(|present| at > present),
            (ExpiryCondition::IfEarlier, present) => present.is_none_or(|present| at < present),
            (ExpiryCondition::IfSomeEarlier, present) => present.is_some_and(|present| at < present),
        };
        if wanted {
            self.write(name, Cell { expires_at: Some(at), ..cell });
        }
        Ok(wanted)
    }

    fn persist(&mut self, name: Name<'_>) -> bool {
        match self.cell(name) {
            Some(cell) if cell.expires_at.is_some() => {
                self.write(name, Cell { expires_at: None, ..cell });
                true
            }
            _ => false,
        }
    }

    fn expiry_of(&mut self, name: Name<'_>, form: ExpiryForm) -> i64 {
        let Some(cell) = self.cell(name) else { return -2 };
        let Some(at) = cell.expires_at else { return -1 };
        let number = match form {
            ExpiryForm::SecondsLeft => (self.now.until(at) + 500) / 1000,
            ExpiryForm::MillisLeft => self.now.until(at),
            ExpiryForm::AtSeconds => at.0.saturating_add(500) / 1000,
            ExpiryForm::AtMillis => at.0,
        };
        i64::try_from(number).unwrap_or(i64::MAX)
    }

    fn flush(&mut self) {
        // Above every counter's own epoch, too: the deletion raises each of them.
        let newest =
            self.locks.shards_mut().map(|shard| shard.floor.max(shard.epoch_newest)).max().unwrap_or(Epoch::FIRST);
        let epoch = newest.raised(self.now, self.node);
        self.discard_lanes();
        for shard in self.locks.shards_mut() {
            self.policies.censuses().for_each(|(_, census)| census.counters_cleared(shard));
            shard.clear();
            shard.floor = epoch;
        }
        *self.flushed = true;
        self.builder.push(self.now, &Entry::Flush { epoch });
    }

    // ---- cells ---------------------------------------------------------------------------------

    /// The value of a count; `None` if it is absent or a sketch.
    fn count(&mut self, name: Name<'_>) -> Option<i64> {
        let cell = self.cell(name);
        self.count_of(name, cell).ok().flatten().map(|cell| cell.value)
    }

    /// The cell with the sum of its lanes. An expired cell is removed instead.
    pub fn cell(&mut self, name: Name<'_>) -> Option<Cell> {
        let hash = self.table.hash(name.bytes());
        if self.locks.shard(self.table.shard_of(hash)).lanes.has_live() {
            // If refused, the lanes keep their sum: a sum that cannot be journaled is not shown.
            let _ = self.join_lanes(hash, name, LaneUse::KeepOpen);
        }
        self.cell_without_join(hash, name)
    }

    fn cell_without_join(&mut self, hash: u64, name: Name<'_>) -> Option<Cell> {
        let Residency::Present(cell) = self.locks.shard(self.table.shard_of(hash)).find(hash, name.bytes()) else {
            return None;
        };
        match cell.expires_at {
            Some(at) if at <= self.now => {
                if self.may_expire {
                    self.expire_own(name, at);
                    self.remove(name, cell.epoch.expired(at));
                }
                None
            }
            _ => {
                if self.picker.is_some() {
                    self.show_own_bodies(name, cell);
                }
                Some(cell)
            }
        }
    }

    /// Marks own cells as expired by this node's clock; the store decides.
    fn expire_own(&mut self, name: Name<'_>, expires_at: Millis) {
        let Some(picker) = &self.picker else { return };
        let (hash, now) = (self.table.hash(name.bytes()), self.now);
        let shard = self.locks.shard(self.table.shard_of(hash));
        let Some(own_cells) = shard.own_cells(hash, name.bytes()) else { return };
        own_cells.lapse(now, picker.incarnation());
        own_cells.invalidate_row();
        let (unsettled, body_cells): (bool, Vec<OwnCell>) =
            (own_cells.is_unsettled(), own_cells.body_cells().copied().collect());
        if unsettled {
            shard.mark_unsettled(name.bytes(), || std::time::Duration::ZERO);
        }
        for cell in body_cells {
            if let Some(body) = shard.own_bodies_mut().get_mut(name.bytes(), cell.body_number()) {
                let version = body.version;
                body.unsettled_mut(|| UnsettledChanges::from_cell(&cell, version)).mark_expired(expires_at, version);
            }
        }
    }

    /// The present cell with another value, or a cell for a new counter.
    pub(crate) fn with_value(&mut self, name: Name<'_>, before: Option<Cell>, value: i64) -> Cell {
        match before {
            Some(cell) => Cell { value, ..cell },
            None => Cell { epoch: self.epoch(name, None), value, expires_at: self.default_expiry(name) },
        }
    }

    /// Refuses a new counter of a kind that its namespace does not allow; existing counters stay.
    pub(crate) fn check_kind_allowed(&self, name: Name<'_>, kind: Kind) -> Result<(), Refusal> {
        match self.policies.policy(name).kind {
            Some(allowed) if allowed != kind => Err(Refusal::KindNotAllowed { allowed }),
            _ => Ok(()),
        }
    }

    /// The namespace's default expiry for a counter created now.
    fn default_expiry(&self, name: Name<'_>) -> Option<Millis> {
        let ttl = u64::try_from(self.policies.policy(name).ttl?.as_millis()).unwrap_or(u64::MAX);
        Some(Millis(self.now.0.saturating_add(ttl)))
    }

    fn epoch(&mut self, name: Name<'_>, before: Option<Cell>) -> Epoch {
        match before {
            Some(cell) => cell.epoch,
            None => {
                let shard = self.table.shard_of(self.table.hash(name.bytes()));
                let floor = self.locks.shard(shard).floor;
                // A counter created after sampling ended is exact, and its epoch must show that.
                match self.policies.policy(name).sampling.and_then(|sampling| sampling.record?.until) {
                    Some(until) if floor <= until => until.raised(self.now, self.node),
                    _ => floor,
                }
            }
        }
    }

    /// The epoch; if sampling has ended, at least one above all epochs of sampled counters in this
    /// namespace.
    fn epoch_after_sampling(&self, name: Name<'_>, epoch: Epoch) -> Epoch {
        self.policies.policy(name).sampling.map_or(epoch, |sampling| sampling.past_sampling(epoch))
    }

    fn write_add(&mut self, name: Name<'_>, cell: Cell, delta: i64) {
        let (hash, before) = self.put(name, cell);
        if let Some(before) = before {
            let own = self.own_bytes(name);
            let result = AddResult { value: cell.value, expires_at: cell.expires_at, delta, before, own: &own };
            self.builder.push_add(self.now, hash, (name.bytes(), cell.epoch), result);
        }
        self.remove_if_expired(name, cell);
    }

    fn write(&mut self, name: Name<'_>, cell: Cell) {
        self.write_cell(name, cell);
        self.remove_if_expired(name, cell);
    }

    fn write_cell(&mut self, name: Name<'_>, cell: Cell) {
        let (_, before) = self.put(name, cell);
        if let Some(before) = before {
            let Cell { epoch, value, expires_at } = cell;
            let own = self.own_bytes(name);
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 0, before, own: &own };
            self.builder.push(self.now, &entry);
            self.write_unjournaled(name);
        }
    }

    /// This node's own cells of a counter, encoded; empty without a shared store.
    fn own_bytes(&mut self, name: Name<'_>) -> Vec<u8> {
        if self.picker.is_none() {
            return Vec::new();
        }
        let hash = self.table.hash(name.bytes());
        let own_cells = self.locks.shard(self.table.shard_of(hash)).own_cells(hash, name.bytes());
        own_cells.map(|own_cells| own_cells.encode()).unwrap_or_default()
    }

    /// An expiry that is already past deletes at once, as in Redis.
    pub(crate) fn remove_if_expired(&mut self, name: Name<'_>, cell: Cell) {
        // On a shared store the store's clock decides.
        if self.picker.is_some() {
            return;
        }
        if let Some(at) = cell.expires_at.filter(|at| *at <= self.now) {
            self.remove(name, cell.epoch.expired(at));
        }
    }

    /// Returns the hash, and the prior existence if the change is journaled.
    pub(crate) fn put(&mut self, name: Name<'_>, cell: Cell) -> (u64, Option<PriorExistence>) {
        let hash = self.table.hash(name.bytes());
        let shard = self.locks.shard(self.table.shard_of(hash));
        let existed = shard.put(hash, name.bytes(), cell);
        if let (false, Some(limit)) = (existed, &self.policies.policy(name).limit) {
            limit.census.counter_created(shard);
        }
        (hash, self.prior_existence(name, existed))
    }

    fn remove(&mut self, name: Name<'_>, epoch: Epoch) {
        let hash = self.table.hash(name.bytes());
        let shard = self.locks.shard(self.table.shard_of(hash));
        shard.remove(hash, name.bytes());
        shard.floor = shard.floor.max(epoch);
        if let Some(limit) = &self.policies.policy(name).limit {
            limit.census.counter_removed(shard);
        }
        if let Some(before) = self.prior_existence(name, true) {
            let own = self.own_bytes(name);
            self.builder.push(self.now, &Entry::Gone { name: name.bytes(), epoch, before, own: &own });
        }
    }

    /// The record's statement about prior existence; `None` if there is no record.
    pub(crate) fn prior_existence(&self, name: Name<'_>, existed: bool) -> Option<PriorExistence> {
        let policy = self.policies.policy(name);
        let own = policy.durability;
        match (
            self.joint_durability.unwrap_or(own) > Durability::Memory,
            own > Durability::Memory && !policy.existence_unknown,
        ) {
            (false, _) => None,
            // Other changes of a shared counter are not journaled, so only the ledger knows.
            (true, _) if self.picker.is_some() => Some(PriorExistence::Unknown),
            (true, false) => Some(PriorExistence::Unknown),
            (true, true) => Some(if existed { PriorExistence::Present } else { PriorExistence::Absent }),
        }
    }

    fn resolve_time(&self, when: ExpiryTime) -> Result<Millis, Refusal> {
        let millis = match when {
            ExpiryTime::At(millis) => Some(millis),
            ExpiryTime::In(millis) => i64::try_from(self.now.0).ok().and_then(|now| now.checked_add(millis)),
        };
        // A time before 1970 is past, like any other past time.
        millis.map(|millis| Millis(millis.max(0) as u64)).ok_or(Refusal::ExpireTime)
    }
}

/// Adds to a sum that exceeds 64 bits. Returns the nearest i64, and the sum if it still does not
/// fit. An add towards the range is accepted; an add that moves the sum further out is refused.
fn add_to_wide(sum: i128, delta: i64) -> Result<(i64, Option<i128>), Refusal> {
    let after = sum.saturating_add(i128::from(delta));
    if (after > sum) == (sum > 0) && after != sum {
        return Err(Refusal::TooWide { sum: Box::new(sum) });
    }
    Ok((nearest(after), i64::try_from(after).err().map(|_| after)))
}

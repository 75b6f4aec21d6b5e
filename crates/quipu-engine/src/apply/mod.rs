//! Applies commands to the resident table and drafts the record of their results.
//!
//! In: admitted commands and the locks of the shards they touch. Out: replies, and the entries of one record.
//!
//! Invariants:
//! - everything that is not an add raises the epoch;
//! - a command refused leaves table and record as they were;
//! - a counter that expired is removed by the command that notices it, in the same record, so that nobody sees it again
//!   whatever the clock does later;
//! - on a shared store an add changes this node's own cell and what is shown alike; nothing else comes here from a command;
//! - whoever looks at a counter that has lanes joins them first (`join`);
//! - what is asked of counts is refused by sketches, and the other way round;
//! - an add to a count that is sampled adds p for each event that is taken; where none is, nothing changes and nothing is written down, but that the counter is made if it does not exist.
//!
//! Not here: sketches (`sketches`), whether a command may run and has room (`admit`), when its reply may leave (`turn`).

mod held;
mod join;
mod slots;
pub mod table;
mod thin;
pub mod unsettled;
mod walk;

use quipu_model::count::{self, BoundedAdd};
use quipu_model::shared::nearest;
use quipu_model::{
    AddWithin, Cell, Command, Durability, Epoch, Expiry, ExpiryCondition, ExpiryForm, Kind, Millis, Name, NodeId,
    Refusal, Reply, Set, SetCondition, SetExpiry, When,
};
use quipu_sketch::Key;

pub use self::held::Held;
pub use self::join::{Allowance, Lanes};
pub use self::slots::is_same;
use self::table::{Look, Table};
pub use self::thin::thin;
pub use self::walk::{Passing, list_names, scan};
use crate::journal::format::{Before, Entry};
use crate::journal::{AddResult, Draft};
use crate::namespaces::{Policies, Thinning};
use crate::sharing::own::OwnCell;
use crate::sharing::{Picking, Share};
use crate::sketches::Settling;
use crate::split::{fits, is_small};

/// One run: some shards, held, and the record that tells of it.
pub struct Run<'r, 't> {
    /// All shards.
    pub table: &'t Table,
    /// Those that are held.
    pub held: &'r mut Held<'t>,
    /// The record.
    pub draft: &'r mut Draft,
    /// Which namespaces are journaled, and when their counters expire.
    pub policies: &'r Policies,
    /// For a transaction: journaled as its strictest namespace asks, all or none.
    pub together: Option<Durability>,
    /// Whether there is room to journal what an otherwise read-only command may find expired.
    pub may_expire: bool,
    /// The engine's time.
    pub now: Millis,
    /// Who raises epochs.
    pub node: NodeId,
    /// Set by a flush.
    pub flushed: &'r mut bool,
    /// With a shared store: who adds, and to which shard.
    pub picking: Option<Picking<'r>>,
    /// Room that the turn was promised.
    pub allowance: Allowance<'r>,
    /// Under which sketches of our own form hash what they count.
    pub key: &'r Key,
    /// Most bytes that all counters may take in memory, and the limit that this comes from.
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
            Command::AddThinned { name, amount, p } => Reply::Integer(self.add_thinned(*name, *amount, *p)?),
            Command::AddWithin(add) => self.add_within(add)?,
            Command::Read { name } => {
                let cell = self.cell(*name);
                self.shown(*name, cell)?
            }
            Command::ReadMany { names } => Reply::Values(names.iter().map(|name| self.count(*name)).collect()),
            Command::Set(set) => self.set(set)?,
            Command::Take { name } => {
                let cell = self.sole_cell(*name);
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
            Command::CountNames => Reply::Integer(self.held.each().map(|shard| shard.counters as i64).sum()),
            Command::Flush => {
                self.flush();
                Reply::Ok
            }
            Command::Sketch(command) => self.sketch(command)?,
        })
    }

    /// Removes a counter if it has expired; what the driver does in the background.
    pub fn expire_overdue(&mut self, name: Name<'_>) {
        self.cell(name);
    }

    fn add(&mut self, name: Name<'_>, delta: i64, shard_key: Option<&[u8]>) -> Result<i64, Refusal> {
        let before = if is_small(delta) { self.cell(name) } else { self.sole_cell(name) };
        let value = match self.policies.policy(name).thinning {
            None => self.add_to(name, before, delta, shard_key)?,
            Some(thinning) => match self.thin(name, before, delta, thinning)? {
                Some(delta) => self.add_to(name, before, delta, shard_key)?,
                None => match before {
                    Some(cell) => return Ok(cell.value),
                    // It begins here, and is to be known for one that was thinned when that is over.
                    None => self.add_to(name, before, 0, shard_key)?,
                },
            },
        };
        if !fits(value) {
            self.close_lanes(name);
        }
        Ok(value)
    }

    /// What an add to a count that is sampled comes to; `None`: none of its events was taken. Refused before the dice are thrown, so what is refused does not depend on them.
    fn thin(
        &mut self,
        name: Name<'_>,
        before: Option<Cell>,
        delta: i64,
        thinning: Thinning,
    ) -> Result<Option<i64>, Refusal> {
        let before = self.count_of(name, before)?;
        if before.is_none() {
            self.check_pinned(name, Kind::Count)?;
        }
        if delta < 0 && thinning.refuses_exactness(before.map(|cell| cell.epoch)) {
            return Err(Refusal::Sampled { what: "a decrement" });
        }
        let value = before.map_or(0, |cell| cell.value);
        let hash = self.table.hash(name.bytes());
        match thinning.p_at(value) {
            1 => Ok(Some(delta)),
            p => thin(self.held.shard(self.table.shard_of(hash)).thinner(), p, value, delta).ok_or(Refusal::Overflow),
        }
    }

    /// Adds what was sampled before it came.
    fn add_thinned(&mut self, name: Name<'_>, amount: i64, p: u32) -> Result<i64, Refusal> {
        let thinning = self.policies.policy(name).thinning;
        if amount < 0 {
            return Err(Refusal::Sampled { what: "a decrement" });
        }
        if p > 1 && !thinning.is_some_and(|thinning| thinning.takes_thinned(p)) {
            return Err(Refusal::NotSampled { p });
        }
        let before = self.sole_cell(name);
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
            self.check_pinned(name, Kind::Count)?;
        }
        let shown = before.map_or(0, |cell| cell.value);
        let (value, wide_sum) = match self.wide_sum(name, shown) {
            Some(sum) => add_to_wide(sum, delta)?,
            None => (count::add(shown, delta)?, None),
        };
        if self.picking.is_some() {
            self.add_own(name, before, delta, shard_key)?;
            self.set_wide_sum(name, shown, wide_sum);
        }
        let cell = self.with_value(name, before, value);
        self.write_add(name, cell, delta);
        Ok(value)
    }

    /// The sum over all writers, if it is known not to fit 64 bits. What is shown is then the number nearest to it, so that a look at that
    /// tells nearly always.
    fn wide_sum(&mut self, name: Name<'_>, shown: i64) -> Option<i128> {
        if self.picking.is_none() || !matches!(shown, i64::MIN | i64::MAX) {
            return None;
        }
        let hash = self.table.hash(name.bytes());
        let owned = self.held.shard(self.table.shard_of(hash)).own(hash, name.bytes())?;
        owned.wide_sum.as_deref().copied()
    }

    fn set_wide_sum(&mut self, name: Name<'_>, shown: i64, sum: Option<i128>) {
        if matches!(shown, i64::MIN | i64::MAX) {
            let hash = self.table.hash(name.bytes());
            if let Some(owned) = self.held.shard(self.table.shard_of(hash)).own(hash, name.bytes()) {
                owned.wide_sum = sum.map(Box::new);
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
        let Some(picking) = &self.picking else { return Ok(()) };
        let picked = picking.pick(name, shard_key)?;
        let hash = self.table.hash(name.bytes());
        let shard = self.held.shard(self.table.shard_of(hash));
        let (own, cell) = shard.take_own(hash, name.bytes());
        let mut own = own.unwrap_or_else(|| Box::new(picking.plain(cell)));
        let expires_at = shown.and_then(|cell| cell.expires_at);
        let added = picking.add(&mut own, picked, expires_at, delta);
        shard.give_own(hash, name.bytes(), own);
        if added {
            shard.note_unsettled(name.bytes(), || picking.due(name));
        }
        if added { Ok(()) } else { Err(Refusal::Overflow) }
    }

    /// Works on a shared counter: what this node says of it, and what it shows.
    pub fn share<T>(&mut self, name: Name<'_>, work: impl FnOnce(&mut Share<'_>) -> T) -> T {
        let hash = self.table.hash(name.bytes());
        // What this node says includes what was counted in its lanes. Refused, they hold it still.
        let _ = self.join(hash, name, Lanes::Stay);
        let key = self.key;
        let picking = self.picking.as_ref().expect("only with a shared store");
        let shard = self.held.shard(self.table.shard_of(hash));
        let (own, before) = shard.take_own(hash, name.bytes());
        let is_plain = own.is_none() && before.is_some();
        let mut own = own.unwrap_or_else(|| Box::new(picking.plain(before)));
        let mut share = picking.share(&mut own, before, key);
        share.changed = is_plain;
        share.bodies.extend(shard.own_shelves_mut().take_all(name.bytes()));
        share.has_shown_body = shard.body(name.bytes()).is_some();
        let worked = work(&mut share);
        let Share { shown, changed, confirmed, bodies, dropped, says_anew, shows, .. } = share;
        let epoch = own.epoch;
        shard.give_own(hash, name.bytes(), own);
        for (number, body) in dropped {
            shard.own_shelves_mut().drop_taken(name.bytes(), number, body);
        }
        for (number, body) in bodies {
            shard.own_shelves_mut().give(name.bytes(), number, body);
        }
        match shown {
            Some(cell) if changed => self.write_shown(name, cell),
            None if changed => self.remove(name, before.map_or(epoch, |cell| cell.epoch)),
            _ => {
                if shown != before {
                    shard.show(hash, name.bytes(), shown);
                }
                if confirmed {
                    shard.touch(hash, name.bytes());
                }
            }
        }
        self.show_body(name, shown, shows);
        for number in says_anew {
            self.write_own_body(name, number);
        }
        self.close_unfit(name, shown);
        worked
    }

    fn add_within(&mut self, add: &AddWithin<'_>) -> Result<Reply, Refusal> {
        let before = self.sole_cell(add.name);
        let before = self.count_of(add.name, before)?;
        if before.is_none() {
            self.check_pinned(add.name, Kind::Count)?;
        }
        let thinning = self.policies.policy(add.name).thinning;
        if thinning.is_some_and(|thinning| thinning.refuses_exactness(before.map(|cell| cell.epoch))) {
            return Err(Refusal::Sampled { what: "an add with bounds" });
        }
        let value = before.map_or(0, |cell| cell.value);
        let bounds = (add.lower, add.upper);
        let Some(BoundedAdd { after, delta }) = count::add_within(value, add.delta, bounds, add.saturate)? else {
            return Ok(Reply::Pair(value, 0));
        };
        let mut cell = self.with_value(add.name, before, after);
        let kept = add.expiry_if_none && before.is_some_and(|before| before.expires_at.is_some());
        match add.expiry {
            Expiry::At(when) if !kept => cell.expires_at = Some(self.point(when)?),
            Expiry::Remove if !kept => cell.expires_at = None,
            _ => {}
        }
        self.write_add(add.name, cell, delta);
        Ok(Reply::Pair(after, delta))
    }

    fn set(&mut self, set: &Set<'_>) -> Result<Reply, Refusal> {
        let Set { name, value, condition, expiry, reply_old } = *set;
        self.check_pinned(name, Kind::Count)?;
        if value < 0 && self.policies.policy(name).thinning.is_some_and(|thinning| thinning.is_declared()) {
            return Err(Refusal::Sampled { what: "a count below 0" });
        }
        self.set_anew(name, condition, expiry, reply_old, |run, cell| run.write(name, Cell { value, ..cell }))
    }

    /// Begins a counter anew, if the condition is met: in its next epoch, with whatever is written for it then.
    pub(crate) fn set_anew(
        &mut self,
        name: Name<'_>,
        condition: SetCondition,
        expiry: SetExpiry,
        reply_old: bool,
        write: impl FnOnce(&mut Self, Cell),
    ) -> Result<Reply, Refusal> {
        let expires_at = match expiry {
            SetExpiry::At(when) => Some(self.point(when)?),
            // A set begins anew, also for the namespace.
            SetExpiry::Remove => self.first_expiry(name),
            SetExpiry::Keep => None,
        };
        let before = self.sole_cell(name);
        let old = if reply_old { Some(self.shown(name, before)?) } else { None };
        let wanted = match condition {
            SetCondition::Always => true,
            SetCondition::IfAbsent => before.is_none(),
            SetCondition::IfPresent => before.is_some(),
        };
        if wanted {
            let kept = match (expiry, before) {
                (SetExpiry::Keep, Some(before)) => before.expires_at,
                (SetExpiry::Keep, None) => self.first_expiry(name),
                _ => None,
            };
            let epoch = self.epoch(name, before);
            let epoch = self.past_thinned(name, epoch).raised(self.now, self.node);
            write(self, Cell { epoch, value: 1, expires_at: expires_at.or(kept) });
        }
        Ok(match (old, wanted) {
            (Some(old), _) => old,
            (None, true) => Reply::Ok,
            (None, false) => Reply::Nil,
        })
    }

    fn reset(&mut self, name: Name<'_>) -> Result<Reply, Refusal> {
        let before = self.sole_cell(name);
        let Some(before) = self.count_of(name, before)? else { return Ok(Reply::Integer(0)) };
        let epoch = self.past_thinned(name, before.epoch).raised(self.now, self.node);
        self.write(name, Cell { epoch, value: 0, ..before });
        Ok(Reply::Integer(before.value))
    }

    fn delete(&mut self, name: Name<'_>) -> bool {
        match self.sole_cell(name) {
            Some(cell) => {
                self.remove(name, cell.epoch.raised(self.now, self.node));
                true
            }
            None => false,
        }
    }

    fn read_and_expire(&mut self, name: Name<'_>, expiry: Expiry) -> Result<Reply, Refusal> {
        let expires_at = match expiry {
            Expiry::At(when) => Some(self.point(when)?),
            Expiry::Keep | Expiry::Remove => None,
        };
        let cell = self.sole_cell(name);
        let shown = self.shown(name, cell)?;
        if let Some(cell) = cell.filter(|cell| expiry != Expiry::Keep && expires_at != cell.expires_at) {
            self.write(name, Cell { expires_at, ..cell });
        }
        Ok(shown)
    }

    fn expire(&mut self, name: Name<'_>, when: When, condition: ExpiryCondition) -> Result<bool, Refusal> {
        let at = self.point(when)?;
        let Some(cell) = self.sole_cell(name) else { return Ok(false) };
        let wanted = match (condition, cell.expires_at) {
            (ExpiryCondition::Always, _) => true,
            (ExpiryCondition::IfNone, present) => present.is_none(),
            (ExpiryCondition::IfSome, present) => present.is_some(),
            // No expiry counts as never: nothing is later, everything is earlier.
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
        // Past every counter's own epoch too: each of them is raised by being deleted.
        let newest = self.held.each().map(|shard| shard.floor.max(shard.epoch_newest)).max().unwrap_or(Epoch::FIRST);
        let epoch = newest.raised(self.now, self.node);
        self.drop_lanes();
        for shard in self.held.each() {
            self.policies.censuses().for_each(|(_, census)| census.cleared(shard));
            shard.clear();
            shard.floor = epoch;
        }
        *self.flushed = true;
        self.draft.push(self.now, &Entry::Flush { epoch });
    }

    // ---- cells ------------------------------------------------------------------------------------------------------------

    /// The value of a count; `None` if there is none, or it is a sketch.
    fn count(&mut self, name: Name<'_>) -> Option<i64> {
        let cell = self.cell(name);
        self.count_of(name, cell).ok().flatten().map(|cell| cell.value)
    }

    /// The cell, with all that was counted in its lanes, unless it has expired; then it is removed.
    pub fn cell(&mut self, name: Name<'_>) -> Option<Cell> {
        let hash = self.table.hash(name.bytes());
        if self.held.shard(self.table.shard_of(hash)).splits.are_live() {
            // Refused, they hold it still: what cannot be written down is not shown.
            let _ = self.join(hash, name, Lanes::Stay);
        }
        self.cell_as_it_is(hash, name)
    }

    fn cell_as_it_is(&mut self, hash: u64, name: Name<'_>) -> Option<Cell> {
        let Look::Cell(cell) = self.held.shard(self.table.shard_of(hash)).look(hash, name.bytes()) else { return None };
        match cell.expires_at {
            Some(at) if at <= self.now => {
                if self.may_expire {
                    self.lapse_own(name, at);
                    self.remove(name, cell.epoch.expired(at));
                }
                None
            }
            _ => {
                if self.picking.is_some() {
                    self.show_own(name, cell);
                }
                Some(cell)
            }
        }
    }

    /// By this node's clock the counter's time is over; the store has the last word.
    fn lapse_own(&mut self, name: Name<'_>, expires_at: Millis) {
        let Some(picking) = &self.picking else { return };
        let (hash, now) = (self.table.hash(name.bytes()), self.now);
        let shard = self.held.shard(self.table.shard_of(hash));
        let Some(owned) = shard.own(hash, name.bytes()) else { return };
        owned.lapse(now, picking.present());
        owned.outdate();
        let (unsettled, said): (bool, Vec<OwnCell>) = (owned.is_unsettled(), owned.bodies().copied().collect());
        if unsettled {
            shard.note_unsettled(name.bytes(), || std::time::Duration::ZERO);
        }
        for cell in said {
            if let Some(body) = shard.own_shelves_mut().get_mut(name.bytes(), cell.number()) {
                let version = body.version;
                body.settling(|| Settling::of(&cell, version)).lapse(expires_at, version);
            }
        }
    }

    /// The present cell with another value, or a new one in the epoch new counters have.
    pub(crate) fn with_value(&mut self, name: Name<'_>, before: Option<Cell>, value: i64) -> Cell {
        match before {
            Some(cell) => Cell { value, ..cell },
            None => Cell { epoch: self.epoch(name, None), value, expires_at: self.first_expiry(name) },
        }
    }

    /// Refuses a counter of another kind than its namespace is for; those that are there go on.
    pub(crate) fn check_pinned(&self, name: Name<'_>, kind: Kind) -> Result<(), Refusal> {
        match self.policies.policy(name).kind {
            Some(allowed) if allowed != kind => Err(Refusal::KindNotAllowed { allowed }),
            _ => Ok(()),
        }
    }

    /// When a counter expires that is made now and has no expiry of its own.
    fn first_expiry(&self, name: Name<'_>) -> Option<Millis> {
        let ttl = u64::try_from(self.policies.policy(name).ttl?.as_millis()).unwrap_or(u64::MAX);
        Some(Millis(self.now.0.saturating_add(ttl)))
    }

    fn epoch(&mut self, name: Name<'_>, before: Option<Cell>) -> Epoch {
        match before {
            Some(cell) => cell.epoch,
            None => {
                let shard = self.table.shard_of(self.table.hash(name.bytes()));
                let floor = self.held.shard(shard).floor;
                // A counter that is made once sampling is over is exact, and to be seen as such.
                match self.policies.policy(name).thinning.and_then(|thinning| thinning.thinned?.until) {
                    Some(until) if floor <= until => until.raised(self.now, self.node),
                    _ => floor,
                }
            }
        }
    }

    /// This epoch, or one past all of which counters of this namespace were thinned, if that is over.
    fn past_thinned(&self, name: Name<'_>, epoch: Epoch) -> Epoch {
        self.policies.policy(name).thinning.map_or(epoch, |thinning| thinning.past(epoch))
    }

    fn write_add(&mut self, name: Name<'_>, cell: Cell, delta: i64) {
        let (hash, before) = self.put(name, cell);
        if let Some(before) = before {
            let own = self.own_bytes(name);
            let result = AddResult { value: cell.value, expires_at: cell.expires_at, delta, before, own: &own };
            self.draft.push_add(self.now, hash, (name.bytes(), cell.epoch), result);
        }
        self.drop_if_past(name, cell);
    }

    fn write(&mut self, name: Name<'_>, cell: Cell) {
        self.write_shown(name, cell);
        self.drop_if_past(name, cell);
    }

    fn write_shown(&mut self, name: Name<'_>, cell: Cell) {
        let (_, before) = self.put(name, cell);
        if let Some(before) = before {
            let Cell { epoch, value, expires_at } = cell;
            let own = self.own_bytes(name);
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 0, before, own: &own };
            self.draft.push(self.now, &entry);
            self.write_unjournaled(name);
        }
    }

    /// What this node says of a counter on a shared store, as bytes; none without one.
    fn own_bytes(&mut self, name: Name<'_>) -> Vec<u8> {
        if self.picking.is_none() {
            return Vec::new();
        }
        let hash = self.table.hash(name.bytes());
        let owned = self.held.shard(self.table.shard_of(hash)).own(hash, name.bytes());
        owned.map(|owned| owned.encode()).unwrap_or_default()
    }

    /// An expiry that is already past deletes at once, as in Redis.
    pub(crate) fn drop_if_past(&mut self, name: Name<'_>, cell: Cell) {
        // On a shared store the time is the store's.
        if self.picking.is_some() {
            return;
        }
        if let Some(at) = cell.expires_at.filter(|at| *at <= self.now) {
            self.remove(name, cell.epoch.expired(at));
        }
    }

    /// Returns the hash, and what was before if that is to be journaled.
    pub(crate) fn put(&mut self, name: Name<'_>, cell: Cell) -> (u64, Option<Before>) {
        let hash = self.table.hash(name.bytes());
        let shard = self.held.shard(self.table.shard_of(hash));
        let existed = shard.put(hash, name.bytes(), cell);
        if let (false, Some(limit)) = (existed, &self.policies.policy(name).limit) {
            limit.census.made(shard);
        }
        (hash, self.before(name, existed))
    }

    fn remove(&mut self, name: Name<'_>, epoch: Epoch) {
        let hash = self.table.hash(name.bytes());
        let shard = self.held.shard(self.table.shard_of(hash));
        shard.remove(hash, name.bytes());
        shard.floor = shard.floor.max(epoch);
        if let Some(limit) = &self.policies.policy(name).limit {
            limit.census.gone(shard);
        }
        if let Some(before) = self.before(name, true) {
            let own = self.own_bytes(name);
            self.draft.push(self.now, &Entry::Gone { name: name.bytes(), epoch, before, own: &own });
        }
    }

    /// What a record says of whether the counter existed; `None` if there is no record.
    pub(crate) fn before(&self, name: Name<'_>, existed: bool) -> Option<Before> {
        let policy = self.policies.policy(name);
        let own = policy.durability;
        match (self.together.unwrap_or(own) > Durability::Memory, own > Durability::Memory && !policy.unsure) {
            (false, _) => None,
            // What else happens to this counter is not journaled, so only the ledger will tell.
            (true, _) if self.picking.is_some() => Some(Before::Unsure),
            (true, false) => Some(Before::Unsure),
            (true, true) => Some(if existed { Before::Present } else { Before::Absent }),
        }
    }

    fn point(&self, when: When) -> Result<Millis, Refusal> {
        let millis = match when {
            When::At(millis) => Some(millis),
            When::In(millis) => i64::try_from(self.now.0).ok().and_then(|now| now.checked_add(millis)),
        };
        // A point before 1970 is as past as any.
        millis.map(|millis| Millis(millis.max(0) as u64)).ok_or(Refusal::ExpireTime)
    }
}

/// Adds to a sum that does not fit 64 bits: the number nearest to the new sum, and that sum if it does not fit either. An add towards the
/// range is taken, whatever it comes to; one that would move the sum further out is refused.
fn add_to_wide(sum: i128, delta: i64) -> Result<(i64, Option<i128>), Refusal> {
    let after = sum.saturating_add(i128::from(delta));
    if (after > sum) == (sum > 0) && after != sum {
        return Err(Refusal::TooWide { sum: Box::new(sum) });
    }
    Ok((nearest(after), i64::try_from(after).err().map(|_| after)))
}

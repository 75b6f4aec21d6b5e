//! Decides a command's need of the store, and whether a shared counter's known row satisfies it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::{Change, Shard};
use quipu_model::{
    Cell, Command, Expiry, Incarnation, Millis, Name, NameBuf, NodeId, Refusal, SetCondition, SketchCommand,
};
use quipu_sketch::Key;
use xxhash_rust::xxh3::xxh3_64;

use super::bodies::ShownBody;
use super::shared_counter::{self, SharedCounter};
use super::{StoreLink, Swap};
use crate::base::sharing_options::{SHARDS_MAX, ShardPick, SharePolicy};
use crate::base::sync::Ordering;
use crate::bodies::own_cells::{OwnCell, OwnCells, cells_max};
use crate::namespaces::Policies;

/// Refusal for a counter that cannot be shown.
const CONFLICTING_BODIES: &str = "nodes have made this counter in different kinds, sizes or under different secrets, so that they cannot be laid together: delete it, and make it once";

/// A command's need of the store.
pub enum StoreNeed {
    /// None: it adds.
    Add,
    /// A read of other writers' values.
    Read,
    /// A change that only the store can order.
    Swap(Swap),
    /// A decision by a single owner, which a shared counter does not have.
    OneOwner(&'static str),
}

/// Result of a check of a counter's known row.
pub enum RowCheck {
    /// The known row is enough.
    Usable,
    /// The row must be fetched first.
    Fetch,
    /// The row is not enough, and the store does not respond.
    Refuse(Refusal),
}

/// Returns a command's need of the store.
pub fn store_need(command: &Command<'_>) -> StoreNeed {
    let swap_of = |name: &Name<'_>, change| StoreNeed::Swap(Swap { names: vec![name_buf(name)], change });
    match command {
        Command::Add { .. } => StoreNeed::Add,
        Command::AddSampled { .. } => StoreNeed::OneOwner("what was sampled before it came"),
        Command::AddWithin(add) => match (add.lower, add.upper, add.expiry) {
            (i64::MIN, i64::MAX, Expiry::Keep) => StoreNeed::OneOwner("INCREX"),
            _ => StoreNeed::OneOwner("an add with bounds or an expiry"),
        },
        Command::Set(set) if set.condition != SetCondition::Always => StoreNeed::OneOwner("SET with NX or XX"),
        Command::Set(set) => {
            let (value, expiry, reply_old) = (set.value, set.expiry, set.reply_old);
            swap_of(&set.name, Change::Set { value, expiry, reply_old })
        }
        Command::Take { name } => swap_of(name, Change::Take),
        Command::Reset { name } => swap_of(name, Change::Reset),
        Command::Delete { names } => {
            StoreNeed::Swap(Swap { names: names.iter().map(name_buf).collect(), change: Change::Delete })
        }
        Command::Expire { name, when, condition } => {
            swap_of(name, Change::Expire { when: *when, condition: *condition })
        }
        Command::Persist { name } => swap_of(name, Change::Persist),
        Command::ReadAndExpire { expiry: Expiry::Keep, .. } => StoreNeed::Read,
        Command::ReadAndExpire { name, expiry } => swap_of(name, Change::ReadAndExpire(*expiry)),
        Command::Flush => StoreNeed::OneOwner("deleting everything"),
        Command::Sketch(command) => match command {
            SketchCommand::Observe { .. } | SketchCommand::CountItems { .. } | SketchCommand::CountTop { .. } => {
                StoreNeed::Add
            }
            SketchCommand::SetString(_) => StoreNeed::OneOwner("setting a sketch to a string"),
            SketchCommand::MergeFrequency { .. } => StoreNeed::OneOwner("CMS.MERGE, which replaces what was counted,"),
            // The kinds and sizes that others have decide the result.
            _ => StoreNeed::Read,
        },
        Command::Read { .. }
        | Command::ReadMany { .. }
        | Command::Exists { .. }
        | Command::KindOf { .. }
        | Command::ExpiryOf { .. }
        | Command::Scan(_)
        | Command::ListNames(_)
        | Command::CountNames => StoreNeed::Read,
    }
}

/// The counters that a command reads or adds to.
pub fn target_names<'c, 'a>(command: &'c Command<'a>) -> &'c [Name<'a>] {
    match command {
        Command::ReadMany { names } | Command::Exists { names } | Command::Delete { names } => names,
        Command::Add { name, .. }
        | Command::Read { name }
        | Command::ReadAndExpire { name, .. }
        | Command::KindOf { name }
        | Command::ExpiryOf { name, .. } => std::slice::from_ref(name),
        Command::Sketch(command) => command.names(),
        _ => &[],
    }
}

fn name_buf(name: &Name<'_>) -> NameBuf {
    name.bytes().into()
}

impl StoreLink {
    /// Checks whether the known row of a counter is enough for a command. A counter that is read
    /// often is fetched before its row is too old.
    pub(crate) fn check_row(
        &self,
        own_cells: Option<&mut OwnCells>,
        name: Name<'_>,
        adds: bool,
        (now, since): (Duration, Option<Duration>),
        &SharePolicy { freshness, fail_mode, .. }: &SharePolicy,
    ) -> RowCheck {
        let Some(own_cells) = own_cells else { return RowCheck::Fetch };
        // An add that is refused during an outage needs to know whether the store responds.
        let adds_anyway = adds && fail_mode.adds();
        if let Some(sum) = own_cells.wide_sum.as_ref().filter(|_| !adds) {
            // Others may have brought the sum back into range: the row is fetched as for any other
            // reading.
            let is_fresh = own_cells
                .requested_at
                .is_some_and(|at| now.saturating_sub(at) <= freshness || since.is_some_and(|since| at >= since));
            if is_fresh || own_cells.serve_stale_until.is_some_and(|until| until > now) {
                return RowCheck::Refuse(Refusal::TooWide { sum: sum.clone() });
            }
            return RowCheck::Fetch;
        }
        if own_cells.has_body_conflict && own_cells.requested_at.is_some_and(|at| now.saturating_sub(at) <= freshness) {
            return RowCheck::Refuse(Refusal::NotOffered { reason: CONFLICTING_BODIES });
        }
        if let (Some(at), Some(since)) = (own_cells.requested_at, since)
            && at >= since
        {
            return RowCheck::Usable;
        }
        let serves_stale = own_cells.serve_stale_until.is_some_and(|until| until > now);
        match own_cells.requested_at.map(|at| now.saturating_sub(at)) {
            Some(age) if age <= freshness => {
                if age > freshness / 2 {
                    self.queue_refresh(name.bytes());
                }
                RowCheck::Usable
            }
            // An add counts regardless of other writers; its reply is as old as the known row.
            Some(_) if adds_anyway => {
                self.queue_refresh(name.bytes());
                RowCheck::Usable
            }
            _ if adds_anyway && serves_stale => RowCheck::Usable,
            _ if serves_stale && !adds && fail_mode.reads(own_cells.has_known_value()) => RowCheck::Usable,
            _ if serves_stale => RowCheck::Refuse(Refusal::StoreDown),
            _ => RowCheck::Fetch,
        }
    }

    /// Records that the present incarnation has a cell.
    fn mark_added(&self) {
        // Read first: the flag is true almost always, and a cache line without writes stays in
        // every core's cache.
        if !self.has_added.load(Ordering::Acquire) {
            self.has_added.store(true, Ordering::Release);
        }
    }

    /// Returns the picker for adds of the present incarnation.
    pub(crate) fn shard_picker<'s>(&'s self, now: Duration, policies: &'s Policies) -> ShardPicker<'s> {
        self.shard_picker_as(self.incarnation(), now, policies)
    }

    /// Returns the picker for an incarnation that was the present one at an earlier look-up.
    pub(crate) fn shard_picker_as<'s>(
        &'s self,
        incarnation: Incarnation,
        now: Duration,
        policies: &'s Policies,
    ) -> ShardPicker<'s> {
        ShardPicker { link: self, policies, incarnation, now }
    }
}

/// Chooses the cell of an add: incarnation and shard.
pub struct ShardPicker<'s> {
    link: &'s StoreLink,
    policies: &'s Policies,
    incarnation: Incarnation,
    now: Duration,
}

impl ShardPicker<'_> {
    /// The node's present incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        self.link.random()
    }

    /// Own cells of a counter from before the shared store.
    pub fn own_from_unshared(&self, cell: Option<Cell>) -> OwnCells {
        shared_counter::own_from_unshared(cell, self.incarnation)
    }

    /// A counter under its lock.
    pub fn shared_counter<'o>(
        &self,
        own_cells: &'o mut OwnCells,
        shown: Option<Cell>,
        key: &'o Key,
    ) -> SharedCounter<'o> {
        let node: NodeId = self.link.node();
        SharedCounter {
            own_cells,
            shown,
            changed: false,
            confirmed: false,
            node,
            incarnation: self.incarnation,
            bodies: BTreeMap::new(),
            body: None,
            body_number: 0,
            dropped_bodies: Vec::new(),
            inherited: Vec::new(),
            rewritten_bodies: BTreeSet::new(),
            known_expiry: shown.and_then(|cell| cell.expires_at),
            shows_sketch: false,
            shown_body: ShownBody::Unchanged,
            random: self.link.random(),
            key,
        }
    }

    /// Due time for the put of an add.
    pub fn due_at(&self, name: Name<'_>) -> Duration {
        self.now + self.policies.policy(name).share.settle_every
    }

    /// Adds to the cell of a shard; false if the cell cannot hold the sum.
    pub fn add(&self, own_cells: &mut OwnCells, shard: Shard, expires_at: Option<Millis>, delta: i64) -> bool {
        if own_cells.cell_mut(self.incarnation, shard).is_none() && !self.has_room(own_cells) {
            return false;
        }
        self.link.mark_added();
        let cell = own_cells.open_cell(self.incarnation, shard, expires_at);
        match cell.own.added(delta) {
            Some(own) => {
                cell.update(own);
                true
            }
            None => false,
        }
    }

    /// Opens the body cell for an observation. `None`: too many cells of older incarnations are
    /// unsettled.
    pub fn open_observed_cell<'o>(&self, own_cells: &'o mut OwnCells, is_idempotent: bool) -> Option<&'o mut OwnCell> {
        let (incarnation, shard) = own_cells.observed_cell(is_idempotent, self.incarnation)?;
        if !is_idempotent {
            if own_cells.cell_mut(incarnation, shard).is_none() && !self.has_room(own_cells) {
                return None;
            }
            self.link.mark_added();
        }
        Some(own_cells.open_cell(incarnation, shard, None))
    }

    /// Returns true if there is room for one more cell. It may drop a confirmed cell that was kept
    /// only against a loss in the store.
    fn has_room(&self, own_cells: &mut OwnCells) -> bool {
        own_cells.cells.len() < cells_max(self.policies.shards_max())
            || own_cells.drop_oldest_confirmed(self.incarnation)
    }

    /// Picks the shard of an add. Refused if the policy needs a shard key and the command has none.
    pub fn pick(&self, name: Name<'_>, shard_key: Option<&[u8]>) -> Result<Shard, Refusal> {
        let policy = &self.policies.policy(name).share;
        let shards = u64::from(policy.shards.clamp(1, SHARDS_MAX));
        if shards == 1 {
            return Ok(Shard(0));
        }
        let number = match policy.pick {
            ShardPick::Writer => self.link.node().0,
            ShardPick::Random => self.link.random(),
            // Without a seed, so that every node picks the same shard for the same key.
            ShardPick::Hash => xxh3_64(shard_key.ok_or(Refusal::NoShardKey)?),
            ShardPick::Time => self.now.as_secs(),
        };
        Ok(Shard((number % shards) as u16))
    }
}

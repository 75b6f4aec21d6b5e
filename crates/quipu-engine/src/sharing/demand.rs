//! What a command asks of a shared counter, and whether what is known of it is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::{Change, Shard};
use quipu_model::{
    Cell, Command, Expiry, Incarnation, KeptName, Millis, Name, NodeId, Refusal, SetCondition, SketchCommand,
};
use quipu_sketch::Key;
use xxhash_rust::xxh3::xxh3_64;

use super::bodies::Shows;
use super::own::{OwnCell, Owned, cells_max};
use super::share::{self, Share};
use super::{Pick, SHARDS_MAX, SharePolicy, Shared, Swap};
use crate::namespaces::Policies;
use crate::sync::Ordering;

/// What is said of a counter that cannot be shown.
const AT_ODDS: &str = "nodes have made this counter in different kinds, sizes or under different secrets, so that they cannot be laid together: delete it, and make it once";

/// What a command asks of the store.
pub enum Demand {
    /// Nothing: it adds.
    Adds,
    /// To know what others say.
    Reads,
    /// A change that only the store can order.
    Swaps(Swap),
    /// Somebody who decides alone.
    OneOwner(&'static str),
}

/// Whether what is known of a counter is enough.
pub enum Seeing {
    /// It is.
    Known,
    /// Not before its row was fetched.
    Fetch,
    /// It is not, and the store does not answer.
    Refuse(Refusal),
}

/// What a command asks of the store.
pub fn demand(command: &Command<'_>) -> Demand {
    let swaps = |name: &Name<'_>, change| Demand::Swaps(Swap { names: vec![kept(name)], change });
    match command {
        Command::Add { .. } => Demand::Adds,
        Command::AddThinned { .. } => Demand::OneOwner("what was sampled before it came"),
        Command::AddWithin(add) => match (add.lower, add.upper, add.expiry) {
            (i64::MIN, i64::MAX, Expiry::Keep) => Demand::OneOwner("INCREX"),
            _ => Demand::OneOwner("an add with bounds or an expiry"),
        },
        Command::Set(set) if set.condition != SetCondition::Always => Demand::OneOwner("SET with NX or XX"),
        Command::Set(set) => {
            let (value, expiry, reply_old) = (set.value, set.expiry, set.reply_old);
            swaps(&set.name, Change::Set { value, expiry, reply_old })
        }
        Command::Take { name } => swaps(name, Change::Take),
        Command::Reset { name } => swaps(name, Change::Reset),
        Command::Delete { names } => {
            Demand::Swaps(Swap { names: names.iter().map(kept).collect(), change: Change::Delete })
        }
        Command::Expire { name, when, condition } => swaps(name, Change::Expire { when: *when, condition: *condition }),
        Command::Persist { name } => swaps(name, Change::Persist),
        Command::ReadAndExpire { expiry: Expiry::Keep, .. } => Demand::Reads,
        Command::ReadAndExpire { name, expiry } => swaps(name, Change::ReadAndExpire(*expiry)),
        Command::Flush => Demand::OneOwner("deleting everything"),
        Command::Sketch(command) => match command {
            SketchCommand::Observe { .. } | SketchCommand::CountItems { .. } | SketchCommand::CountTop { .. } => {
                Demand::Adds
            }
            SketchCommand::SetString(_) => Demand::OneOwner("setting a sketch to a string"),
            SketchCommand::MergeFrequency { .. } => Demand::OneOwner("CMS.MERGE, which replaces what was counted,"),
            // What is made, and what is merged, depends on what others have.
            _ => Demand::Reads,
        },
        Command::Read { .. }
        | Command::ReadMany { .. }
        | Command::Exists { .. }
        | Command::KindOf { .. }
        | Command::ExpiryOf { .. }
        | Command::Scan(_)
        | Command::ListNames(_)
        | Command::CountNames => Demand::Reads,
    }
}

/// The counters that a command reads or adds to.
pub fn names_of<'c, 'a>(command: &'c Command<'a>) -> &'c [Name<'a>] {
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

fn kept(name: &Name<'_>) -> KeptName {
    name.bytes().into()
}

impl Shared {
    /// Whether what is known of a counter is enough for a command. A counter that is read often is fetched before that is too old.
    pub(crate) fn look(
        &self,
        owned: Option<&mut Owned>,
        name: Name<'_>,
        adds: bool,
        (now, since): (Duration, Option<Duration>),
        &SharePolicy { freshness, fail_mode, .. }: &SharePolicy,
    ) -> Seeing {
        let Some(owned) = owned else { return Seeing::Fetch };
        // An add that is refused while the store does not answer has to know whether it does.
        let adds_anyway = adds && fail_mode.adds();
        if let Some(sum) = owned.wide_sum.as_ref().filter(|_| !adds) {
            // Others may have brought it back: the row is asked for as it is for any other reading.
            let is_fresh = owned
                .fetched_at
                .is_some_and(|at| now.saturating_sub(at) <= freshness || since.is_some_and(|since| at >= since));
            if is_fresh || owned.excused_until.is_some_and(|until| until > now) {
                return Seeing::Refuse(Refusal::TooWide { sum: sum.clone() });
            }
            return Seeing::Fetch;
        }
        if owned.at_odds && owned.fetched_at.is_some_and(|at| now.saturating_sub(at) <= freshness) {
            return Seeing::Refuse(Refusal::NotOffered { reason: AT_ODDS });
        }
        if let (Some(at), Some(since)) = (owned.fetched_at, since)
            && at >= since
        {
            return Seeing::Known;
        }
        let excused = owned.excused_until.is_some_and(|until| until > now);
        match owned.fetched_at.map(|at| now.saturating_sub(at)) {
            Some(age) if age <= freshness => {
                if age > freshness / 2 {
                    self.fetch_ahead(name.bytes());
                }
                Seeing::Known
            }
            // An add counts whatever the others do; what it replies is as old as that.
            Some(_) if adds_anyway => {
                self.fetch_ahead(name.bytes());
                Seeing::Known
            }
            _ if adds_anyway && excused => Seeing::Known,
            _ if excused && !adds && fail_mode.reads(owned.is_something_known()) => Seeing::Known,
            _ if excused => Seeing::Refuse(Refusal::StoreDown),
            _ => Seeing::Fetch,
        }
    }

    /// The present life has a cell.
    fn note_added(&self) {
        // Read first: it is true almost always, and a line that nobody writes is in every core's cache.
        if !self.has_added.load(Ordering::Acquire) {
            self.has_added.store(true, Ordering::Release);
        }
    }

    /// Who adds, and how.
    pub(crate) fn picking<'s>(&'s self, now: Duration, policies: &'s Policies) -> Picking<'s> {
        self.picking_as(self.present(), now, policies)
    }

    /// The same, as the life that was the present one when something was looked at.
    pub(crate) fn picking_as<'s>(&'s self, present: Incarnation, now: Duration, policies: &'s Policies) -> Picking<'s> {
        Picking { shared: self, policies, present, now }
    }
}

/// Who adds, and to which shard.
pub struct Picking<'s> {
    shared: &'s Shared,
    policies: &'s Policies,
    present: Incarnation,
    now: Duration,
}

impl Picking<'_> {
    /// The node's present life.
    pub fn present(&self) -> Incarnation {
        self.present
    }

    /// A number by chance.
    pub fn random(&self) -> u64 {
        self.shared.random()
    }

    /// A counter of the days before the store.
    pub fn plain(&self, cell: Option<Cell>) -> Owned {
        share::plain(cell, self.present)
    }

    /// A counter under its lock.
    pub fn share<'o>(&self, owned: &'o mut Owned, shown: Option<Cell>, key: &'o Key) -> Share<'o> {
        let node: NodeId = self.shared.node();
        Share {
            owned,
            shown,
            changed: false,
            confirmed: false,
            node,
            present: self.present,
            bodies: BTreeMap::new(),
            body: None,
            number: 0,
            dropped: Vec::new(),
            moves: Vec::new(),
            says_anew: BTreeSet::new(),
            known_expiry: shown.and_then(|cell| cell.expires_at),
            has_shown_body: false,
            shows: Shows::AsBefore,
            random: self.shared.random(),
            key,
        }
    }

    /// When an add is to be put.
    pub fn due(&self, name: Name<'_>) -> Duration {
        self.now + self.policies.policy(name).share.settle_every
    }

    /// Adds to the cell of a shard; false if that cannot hold it.
    pub fn add(&self, owned: &mut Owned, shard: Shard, expires_at: Option<Millis>, delta: i64) -> bool {
        if owned.cell(self.present, shard).is_none() && !self.has_room(owned) {
            return false;
        }
        self.shared.note_added();
        let cell = owned.open(self.present, shard, expires_at);
        match cell.own.added(delta) {
            Some(own) => {
                cell.say(own);
                true
            }
            None => false,
        }
    }

    /// The cell of the body that something is observed in, of a sketch that may be taken in twice or not; `None`: too many of older lives are left to be settled.
    pub fn observing<'o>(&self, owned: &'o mut Owned, is_idempotent: bool) -> Option<&'o mut OwnCell> {
        let (incarnation, shard) = owned.observing(is_idempotent, self.present)?;
        if !is_idempotent {
            if owned.cell(incarnation, shard).is_none() && !self.has_room(owned) {
                return None;
            }
            self.shared.note_added();
        }
        Some(owned.open(incarnation, shard, None))
    }

    /// Whether there is room for one more cell, if need be in place of one that is only kept because the store may lose it.
    fn has_room(&self, owned: &mut Owned) -> bool {
        owned.cells.len() < cells_max(self.policies.shards_max()) || owned.drop_oldest_confirmed(self.present)
    }

    /// Which shard an add goes to. Refused if the command has to name a key for that and does not.
    pub fn pick(&self, name: Name<'_>, shard_key: Option<&[u8]>) -> Result<Shard, Refusal> {
        let policy = &self.policies.policy(name).share;
        let shards = u64::from(policy.shards.clamp(1, SHARDS_MAX));
        if shards == 1 {
            return Ok(Shard(0));
        }
        let number = match policy.pick {
            Pick::Writer => self.shared.node().0,
            Pick::Random => self.shared.random(),
            // Without a seed, so that every node takes the same shard for the same key.
            Pick::Hash => xxh3_64(shard_key.ok_or(Refusal::NoShardKey)?),
            Pick::Time => self.now.as_secs(),
        };
        Ok(Shard((number % shards) as u16))
    }
}

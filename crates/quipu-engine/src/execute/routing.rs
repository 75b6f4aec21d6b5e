//! Decides a command's need of the store, and whether a shared counter's known row satisfies it.

use std::time::Duration;

use quipu_model::shared::Change;
use quipu_model::{Command, Expiry, Incarnation, Name, NameBuf, Refusal, SetCondition, SketchCommand};

use crate::apply::shard_picker::ShardPicker;
use crate::base::sharing_options::SharePolicy;
use crate::bodies::own_cells::OwnCells;
use crate::core::load::Swap;
use crate::core::store_link::StoreLink;
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
        ShardPicker { node: self.node, rng: &*self.rng, has_added: &self.has_added, policies, incarnation, now }
    }
}

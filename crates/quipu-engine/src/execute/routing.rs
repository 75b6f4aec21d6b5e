//! Makes the swap of a command that the store orders, and checks whether a shared counter's known
//! row is enough for a command.

use std::time::Duration;

use quipu_model::shared::Change;
use quipu_model::{Command, Incarnation, Name, Refusal};

use crate::apply::shard_picker::ShardPicker;
use crate::base::sharing_options::SharePolicy;
use crate::bodies::own_cells::OwnCells;
use crate::core::load::Swap;
use crate::core::store_link::StoreLink;
use crate::namespaces::Policies;

/// Refusal for a counter that cannot be shown.
const CONFLICTING_BODIES: &str = "nodes have made this counter in different kinds, sizes or under different secrets, so that they cannot be laid together: delete it, and make it once";

/// Result of a check of a counter's known row.
pub enum RowCheck {
    /// The known row is enough.
    Usable,
    /// The row must be fetched first.
    Fetch,
    /// The row is not enough, and the store does not respond.
    Refuse(Refusal),
}

/// The change that only the store can order, of a command with that need.
pub fn store_swap(command: &Command<'_>) -> Swap {
    let (names, change) = match command {
        Command::Set(set) => {
            let (value, expiry, reply_old) = (set.value, set.expiry, set.reply_old);
            (std::slice::from_ref(&set.name), Change::Set { value, expiry, reply_old })
        }
        Command::Take { name } => (std::slice::from_ref(name), Change::Take),
        Command::Reset { name } => (std::slice::from_ref(name), Change::Reset),
        Command::Delete { names } => (&names[..], Change::Delete),
        Command::Expire { name, when, condition } => {
            (std::slice::from_ref(name), Change::Expire { when: *when, condition: *condition })
        }
        Command::Persist { name } => (std::slice::from_ref(name), Change::Persist),
        Command::ReadAndExpire { name, expiry } => (std::slice::from_ref(name), Change::ReadAndExpire(*expiry)),
        _ => unreachable!("no other command has this need of the store"),
    };
    Swap { names: names.iter().map(|name| name.bytes().into()).collect(), change }
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

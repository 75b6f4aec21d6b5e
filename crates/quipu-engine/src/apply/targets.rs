//! Finds the shards that a command touches, its durability, and the journal room that it needs.
//!
//! In: a command. Out: its shards and an upper bound of its record; a refusal comes before anything
//! is applied.

use quipu_model::{Command, Durability, Name};

use crate::journal::format::{ENTRY_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
use crate::namespaces::Policies;
use crate::table::Table;

/// The shards that a command touches.
pub enum CommandTargets<'c, 'a> {
    /// One counter.
    One(Name<'a>),
    /// Several counters, locked together.
    Many(&'c [Name<'a>]),
    /// All shards, locked together.
    All,
    /// All shards, one after another; only reads.
    Walk,
}

/// Returns the targets of a command.
pub fn command_targets<'c, 'a>(command: &'c Command<'a>) -> CommandTargets<'c, 'a> {
    match command {
        Command::Add { name, .. }
        | Command::AddSampled { name, .. }
        | Command::Read { name }
        | Command::Take { name }
        | Command::ReadAndExpire { name, .. }
        | Command::Reset { name }
        | Command::KindOf { name }
        | Command::Expire { name, .. }
        | Command::Persist { name }
        | Command::ExpiryOf { name, .. } => CommandTargets::One(*name),
        Command::AddWithin(add) => CommandTargets::One(add.name),
        Command::Set(set) => CommandTargets::One(set.name),
        Command::ReadMany { names } | Command::Delete { names } | Command::Exists { names } => {
            CommandTargets::Many(names)
        }
        Command::Flush => CommandTargets::All,
        Command::Scan(_) | Command::ListNames(_) | Command::CountNames => CommandTargets::Walk,
        Command::Sketch(command) => match command.names() {
            [name] => CommandTargets::One(*name),
            names => CommandTargets::Many(names),
        },
    }
}

impl CommandTargets<'_, '_> {
    /// Collects the shards to lock.
    pub fn collect_shards(&self, table: &Table, out: &mut Vec<usize>) {
        let shard = |name: &Name<'_>| table.shard_of(table.hash(name.bytes()));
        match self {
            CommandTargets::One(name) => out.push(shard(name)),
            CommandTargets::Many(names) => out.extend(names.iter().map(shard)),
            CommandTargets::All | CommandTargets::Walk => out.extend(0..table.shard_count()),
        }
    }

    /// Strictest durability of the targets, for which the reply waits.
    pub fn durability(&self, policies: &Policies) -> Durability {
        match self {
            CommandTargets::One(name) => policies.durability(*name),
            CommandTargets::Many(names) => {
                names.iter().map(|name| policies.durability(*name)).max().unwrap_or(Durability::Memory)
            }
            CommandTargets::All | CommandTargets::Walk => policies.strictest(),
        }
    }

    /// Most bytes of the command's record. `own_bytes_max`: encoded own cells of one counter on a
    /// shared store.
    pub fn record_bytes_max(&self, own_bytes_max: usize) -> usize {
        // A counter may be found expired, be written again, and vanish at once because its new
        // expiry is past: three entries. Before them comes the sum of its lanes.
        let entries = |name: &Name<'_>| 4 * (ENTRY_BYTES_MAX + name.bytes().len() + own_bytes_max);
        RECORD_OVERHEAD_BYTES_MAX
            + match self {
                CommandTargets::One(name) => entries(name),
                CommandTargets::Many(names) => names.iter().map(entries).sum(),
                CommandTargets::All | CommandTargets::Walk => ENTRY_BYTES_MAX,
            }
    }
}

/// Returns true if a command may change a counter; only such a command is refused for lack of room.
pub fn is_write(command: &Command<'_>) -> bool {
    match command {
        Command::Add { .. }
        | Command::AddSampled { .. }
        | Command::AddWithin(_)
        | Command::Set(_)
        | Command::Take { .. }
        | Command::ReadAndExpire { .. }
        | Command::Reset { .. }
        | Command::Delete { .. }
        | Command::Expire { .. }
        | Command::Persist { .. }
        | Command::Flush => true,
        Command::Read { .. }
        | Command::ReadMany { .. }
        | Command::Exists { .. }
        | Command::KindOf { .. }
        | Command::ExpiryOf { .. }
        | Command::Scan(_)
        | Command::ListNames(_)
        | Command::CountNames => false,
        Command::Sketch(command) => command.writes(),
    }
}

/// Returns true if a command creates this counter when it is absent; only such a command is refused
/// for lack of memory.
pub fn creates_counter(command: &Command<'_>, name: Name<'_>) -> bool {
    match command {
        Command::Add { .. } | Command::AddSampled { .. } | Command::AddWithin(_) | Command::Set(_) => true,
        Command::Sketch(command) => command.creates() == Some(name),
        _ => false,
    }
}

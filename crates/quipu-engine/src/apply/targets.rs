//! Finds the shards that a command touches, its durability, and the journal room that it needs.
//!
//! In: the targets of a command. Out: its shards and an upper bound of its record; a refusal comes
//! before anything is applied.

use quipu_model::{CommandTargets, Durability, Name};

use crate::journal::format::{ENTRY_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
use crate::namespaces::Policies;
use crate::table::Table;

/// Collects the shards to lock.
pub fn collect_target_shards(targets: &CommandTargets<'_, '_>, table: &Table, out: &mut Vec<usize>) {
    match targets {
        CommandTargets::All | CommandTargets::Walk => out.extend(0..table.shard_count()),
        _ => out.extend(targets.names().iter().map(|name| table.shard_of(table.hash(name.bytes())))),
    }
}

/// Strictest durability of the targets, for which the reply waits.
pub fn strictest_durability(targets: &CommandTargets<'_, '_>, policies: &Policies) -> Durability {
    match targets {
        CommandTargets::All | CommandTargets::Walk => policies.strictest(),
        _ => {
            let each = targets.names().iter().map(|name| policies.durability(*name));
            each.max().unwrap_or(Durability::Memory)
        }
    }
}

/// Most bytes of the command's record. `own_bytes_max`: encoded own cells of one counter on a
/// shared store.
pub fn target_record_bytes_max(targets: &CommandTargets<'_, '_>, own_bytes_max: usize) -> usize {
    let bytes = match targets {
        CommandTargets::All | CommandTargets::Walk => ENTRY_BYTES_MAX,
        _ => targets.names().iter().map(|name| entries_bytes_max(*name, own_bytes_max)).sum(),
    };
    RECORD_OVERHEAD_BYTES_MAX + bytes
}

/// Most bytes of the record of a command on one counter.
pub fn counter_record_bytes_max(name: Name<'_>, own_bytes_max: usize) -> usize {
    RECORD_OVERHEAD_BYTES_MAX + entries_bytes_max(name, own_bytes_max)
}

fn entries_bytes_max(name: Name<'_>, own_bytes_max: usize) -> usize {
    // A counter may be found expired, be written again, and vanish at once because its new expiry
    // is past: three entries. Before them comes the sum of its lanes.
    4 * (ENTRY_BYTES_MAX + name.bytes().len() + own_bytes_max)
}

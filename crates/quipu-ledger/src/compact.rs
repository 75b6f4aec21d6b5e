//! Compacts: merges tables, so that a lookup reads few of them and stale cells take no space.
//!
//! In: a generation. Out: the same cells in fewer tables; older versions and, at the last level,
//! tombstones are gone.
//!
//! A piece merges one of two sets of tables. The first is the newest level (the ingestions since
//! the last merge) with the overlapping tables of the next level. The second is one table of a
//! lower level with those below. Its bound is the waiting ingestions plus the size of the first
//! level, independent of the size of the ledger.
//!
//! Not here: when to compact (the engine schedules).

use std::sync::Arc;

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use crate::LedgerError;
use crate::generation::Generation;

/// Most ingestions waiting for a merge: a lookup of an absent name reads the filter of each.
const RUNS_WAITING_MAX: usize = 8;

/// Ingestions after which the next one waits for a merge. The tree counts them in one byte of its
/// version, so 255 is its limit.
pub const RUNS_MAX: usize = 64;

/// The same limit if damage keeps them from being merged.
pub const RUNS_DAMAGED_MAX: usize = 240;

/// Tables of the first level, which a merge of ingestions may rewrite.
const FIRST_LEVEL_TABLES: u8 = 2;

/// Bytes of a table, also of one that the tree makes from an ingestion.
const TABLE_BYTES: u64 = 32 << 20;

/// Result of one piece of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionProgress {
    /// True if the piece did work, so more may remain.
    pub more: bool,
    /// Bytes of the tables that it wrote.
    pub bytes_written: u64,
}

/// Returns true if the waiting ingestions should be merged: they are many, or as large as the level
/// below. A merge then writes at most about twice the ingested bytes, unless ingestions are tiny
/// compared with the ledger.
pub fn is_due(generation: &Generation) -> bool {
    let runs = generation.tree.l0_run_count();
    let waiting = generation.bytes_waiting();
    let beneath = (generation.bytes() - waiting).min(u64::from(FIRST_LEVEL_TABLES) * TABLE_BYTES);
    runs >= RUNS_WAITING_MAX || (runs >= 2 && waiting >= beneath)
}

/// Runs one piece of compaction.
pub fn compact(generation: &Generation) -> Result<CompactionProgress, LedgerError> {
    let tree = &generation.tree;
    let (before, first_new) = (tree.current_version().id(), tree.next_table_id());
    let strategy = Leveled::default().with_l0_threshold(FIRST_LEVEL_TABLES).with_table_target_size(TABLE_BYTES);
    if let Err(error) = tree.compact(Arc::new(strategy), generation.collectable()) {
        generation.remove_unnamed_since(first_new);
        return Err(if crate::error::is_damage(&error) {
            generation.read_error(error, None)
        } else {
            LedgerError::tree("compact", &generation.dir, error)
        });
    }
    Ok(CompactionProgress {
        more: tree.current_version().id() != before,
        bytes_written: generation.bytes_since(first_new),
    })
}

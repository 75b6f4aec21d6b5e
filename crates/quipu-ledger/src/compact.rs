//! Compacts: merges tables, so that a look-up asks few of them and what is no longer true takes no space.
//!
//! In: a generation. Out: the same cells in fewer tables; older versions and, at the last level, tombstones are gone.
//!
//! A piece merges the newest level (the ingestions since the last merge) with what it overlaps in the next, or one table of a lower level with
//! what it overlaps below. Its bound is the ingestions waiting plus the size of the first level, whatever the size of the ledger.
//!
//! Not here: when (the engine schedules).

use std::sync::Arc;

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use crate::LedgerError;
use crate::generation::Generation;

/// Ingestions that wait at most before they are merged: a look-up of a name that is not there asks the filter of each.
const RUNS_WAITING_MAX: usize = 8;

/// Ingestions after which the next one waits for a merge. The tree counts them in one byte of its version, so 255 would be the end of it.
pub const RUNS_MAX: usize = 64;

/// The same, when damage keeps them from being merged.
pub const RUNS_DAMAGED_MAX: usize = 240;

/// Tables of the first level, which a merge of ingestions may have to write anew.
const FIRST_LEVEL_TABLES: u8 = 2;

/// Bytes of a table: what the tree makes of an ingestion, too.
const TABLE_BYTES: u64 = 32 << 20;

/// What a piece of compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionProgress {
    /// Whether to go on: there was something to do, so there may be more.
    pub more: bool,
    /// Bytes of the tables it wrote.
    pub bytes_written: u64,
}

/// Whether the ingestions that wait should be merged: there are many, or they are as large as the level they would be merged into. So that
/// merge writes about twice what was ingested at most, unless ingestions are tiny beside the ledger.
pub fn is_due(generation: &Generation) -> bool {
    let runs = generation.tree.l0_run_count();
    let waiting = generation.bytes_waiting();
    let beneath = (generation.bytes() - waiting).min(u64::from(FIRST_LEVEL_TABLES) * TABLE_BYTES);
    runs >= RUNS_WAITING_MAX || (runs >= 2 && waiting >= beneath)
}

/// Does one piece.
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

//! Lists the writers of a data directory: a node's incarnations and their cells on a shared store.

use std::collections::BTreeMap;
use std::path::Path;

use quipu_model::shared::NODE_INCARNATION;
use quipu_model::{Incarnation, LedgerError, Millis, NodeId, Vfs};

use super::{OfflineView, OpenLedgerReadOnly, ledger_refusal};
use crate::recovery::open::OpenError;

/// The writers found in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryWriters {
    /// The node's id.
    pub node: NodeId,
    /// Its present incarnation, or its last one.
    pub incarnation: Incarnation,
    /// True if that incarnation ended with a clean stop; false while the node runs.
    pub clean: bool,
    /// The incarnations with own cells, including the present one if it has any.
    pub incarnations: BTreeMap<Incarnation, IncarnationTotals>,
}

/// Totals of one incarnation's cells on a shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IncarnationTotals {
    /// Number of counters with cells of this incarnation.
    pub counters: u64,
    /// Number of its cells.
    pub cells: u64,
    /// Number of cells that the store is not known to have in their newest state.
    pub unsettled: u64,
    /// Sum of their values.
    pub sum: i128,
    /// Sum of the adds since the store's last confirmation, as far as this directory knows. It
    /// includes adds that have expired meanwhile.
    pub unconfirmed: i128,
}

/// Reads all own cells of a directory; `None`: there is no journal.
pub fn writers(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: &mut OpenLedgerReadOnly<'_>,
) -> Result<Option<DirectoryWriters>, OpenError> {
    let Some(view) = OfflineView::open(vfs, dir, open_ledger, |_, _| ())? else { return Ok(None) };
    let (mut incarnations, mut damaged) = (BTreeMap::<Incarnation, IncarnationTotals>::new(), None);
    view.visit_own_cells(&mut |_, name, own_cells| {
        let Some(own_cells) = own_cells else {
            damaged.get_or_insert_with(|| name.escape_ascii().to_string());
            return;
        };
        // The cells of uniques belong to the node, not to one of its incarnations.
        for (at, cell) in own_cells.cells.iter().enumerate().filter(|(_, cell)| cell.incarnation != NODE_INCARNATION) {
            let totals = incarnations.entry(cell.incarnation).or_default();
            let is_repeated = own_cells.cells[..at].iter().any(|earlier| earlier.incarnation == cell.incarnation);
            totals.counters += u64::from(!is_repeated);
            totals.cells += 1;
            totals.unsettled += u64::from(!cell.settled);
            // The value of a sketch's cell is its number of changes.
            if cell.is_body() {
                continue;
            }
            // A sum of 64-bit numbers; `audit` reports an overflow.
            totals.sum = totals.sum.saturating_add(cell.own.value);
            if !cell.settled {
                totals.unconfirmed = totals.unconfirmed.saturating_add(cell.unconfirmed_sum(Millis(0)));
            }
        }
    })
    .map_err(|source| ledger_refusal(dir, source))?;
    if let Some(name) = damaged {
        return Err(ledger_refusal(
            dir,
            LedgerError::Damaged(format!("what it says of {name} on a shared store makes no sense")),
        ));
    }
    let OfflineView { control, .. } = view;
    Ok(Some(DirectoryWriters {
        node: control.node,
        incarnation: control.incarnation,
        clean: control.clean,
        incarnations,
    }))
}

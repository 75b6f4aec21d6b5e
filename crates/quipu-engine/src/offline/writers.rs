//! Who has written in a data directory: the lives of a node, and what each of them still says on a shared store.

use std::collections::BTreeMap;
use std::path::Path;

use quipu_model::shared::NODE_INCARNATION;
use quipu_model::{Incarnation, LedgerError, Millis, NodeId, Vfs};

use super::{OfflineView, OpenLedgerReadOnly, ledger_refusal};
use crate::open::OpenError;

/// What a directory says of its writers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryWriters {
    /// Which node it is.
    pub node: NodeId,
    /// Its present life, or its last one.
    pub incarnation: Incarnation,
    /// Whether that one ended with a clean stop. Of a node that runs, it has not ended.
    pub clean: bool,
    /// The lives that have cells, the present one among them if it has.
    pub incarnations: BTreeMap<Incarnation, IncarnationTotals>,
}

/// What one life of a node says on a shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IncarnationTotals {
    /// Counters that it has cells of.
    pub counters: u64,
    /// Its cells.
    pub cells: u64,
    /// Those of which the store is not known to have the newest.
    pub unsettled: u64,
    /// The sum of what they say.
    pub sum: i128,
    /// The sum of what was added to them since the store last confirmed one, as far as this directory knows; what has expired meanwhile is in it.
    pub unconfirmed: i128,
}

/// Reads all own cells of a directory; `None`: there is no journal in it.
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
        // What the node says of uniques belongs to none of its lives.
        for (at, cell) in own_cells.cells.iter().enumerate().filter(|(_, cell)| cell.incarnation != NODE_INCARNATION) {
            let totals = incarnations.entry(cell.incarnation).or_default();
            let is_repeated = own_cells.cells[..at].iter().any(|earlier| earlier.incarnation == cell.incarnation);
            totals.counters += u64::from(!is_repeated);
            totals.cells += 1;
            totals.unsettled += u64::from(!cell.settled);
            // What the cell of a sketch says is how often that has changed.
            if cell.is_body() {
                continue;
            }
            // A sum of 64-bit numbers; what does not fit is for `audit` to tell.
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

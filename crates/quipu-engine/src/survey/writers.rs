//! Who has written in a data directory: the lives of a node, and what each of them still says on a shared store.

use std::collections::BTreeMap;
use std::path::Path;

use quipu_model::shared::NODE;
use quipu_model::{Incarnation, LedgerError, Millis, NodeId, Vfs};

use super::{LookAtLedger, Survey, refused};
use crate::open::OpenError;

/// What a directory says of its writers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writers {
    /// Which node it is.
    pub node: NodeId,
    /// Its present life, or its last one.
    pub incarnation: Incarnation,
    /// Whether that one ended with a clean stop. Of a node that runs, it has not ended.
    pub clean: bool,
    /// The lives that have cells, the present one among them if it has.
    pub lives: BTreeMap<Incarnation, Life>,
}

/// What one life of a node says on a shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Life {
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
pub fn writers(vfs: &dyn Vfs, dir: &Path, open_ledger: &mut LookAtLedger<'_>) -> Result<Option<Writers>, OpenError> {
    let Some(survey) = Survey::open(vfs, dir, open_ledger, |_, _| ())? else { return Ok(None) };
    let (mut lives, mut damaged) = (BTreeMap::<Incarnation, Life>::new(), None);
    survey
        .own(&mut |_, name, owned| {
            let Some(owned) = owned else {
                damaged.get_or_insert_with(|| name.escape_ascii().to_string());
                return;
            };
            // What the node says of uniques belongs to none of its lives.
            for (at, cell) in owned.cells.iter().enumerate().filter(|(_, cell)| cell.incarnation != NODE) {
                let life = lives.entry(cell.incarnation).or_default();
                let seen = owned.cells[..at].iter().any(|earlier| earlier.incarnation == cell.incarnation);
                life.counters += u64::from(!seen);
                life.cells += 1;
                life.unsettled += u64::from(!cell.settled);
                // What the cell of a sketch says is how often that has changed.
                if cell.is_body() {
                    continue;
                }
                // A sum of 64-bit numbers; what does not fit is for `audit` to tell.
                life.sum = life.sum.saturating_add(cell.own.value);
                if !cell.settled {
                    life.unconfirmed = life.unconfirmed.saturating_add(cell.unconfirmed(Millis(0)));
                }
            }
        })
        .map_err(|source| refused(dir, source))?;
    if let Some(name) = damaged {
        return Err(refused(
            dir,
            LedgerError::Damaged(format!("what it says of {name} on a shared store makes no sense")),
        ));
    }
    let Survey { control, .. } = survey;
    Ok(Some(Writers { node: control.node, incarnation: control.incarnation, clean: control.clean, lives }))
}

//! Reads a data directory without changing it: the journal's state over the ledger's.
//!
//! Used by `quipu writers`, `quipu audit`, `quipu clock` and `quipu config check`.
//!
//! In: a directory. Out: every counter with its own cells on a shared store, as a start would find
//! them; or the error that would keep a node from starting.
//!
//! A directory in use may be read, too. The reader gets a state that existed, or an error; after an
//! error the caller reads again.

mod audit;
pub(crate) mod backup;
pub mod inspect;
pub(crate) mod restore;
pub(crate) mod staging;
mod writers;

use std::ops::ControlFlow;
use std::path::Path;

use quipu_model::{Cell, Ledger, LedgerError, Millis, Vfs};

pub use self::audit::{DirectoryAudit, Drift, audit};
pub use self::writers::{DirectoryWriters, IncarnationTotals, writers};
use crate::base::sync::Arc;
use crate::bodies::own_cells::OwnCells;
use crate::core::watermark::Watermark;
use crate::journal::control::ControlState;
use crate::journal::reader::{Record, find_segments, open_control};
use crate::namespaces::RuntimeSettingsMap;
use crate::recovery::open::OpenError;
use crate::recovery::{DataDir, RecoveredState, read_watermark, recover};
use crate::table::{Residency, Table};

/// Opens the ledger of a directory, read-only.
pub type OpenLedgerReadOnly<'l> = dyn FnMut() -> Result<Arc<dyn Ledger>, LedgerError> + 'l;

/// Called for each cell at rest: hash, name, cell, and whether it counts.
type VisitCell<'v> = dyn FnMut(u64, &[u8], Cell, bool) + 'v;

/// Called for each counter with own cells on a shared store: hash, name, and the own cells, if they
/// can be decoded.
type VisitOwnCells<'v> = dyn FnMut(u64, &[u8], Option<&OwnCells>) + 'v;

/// State of ledger and journal of a directory together.
struct OfflineView {
    control: ControlState,
    ledger: Arc<dyn Ledger>,
    /// The ledger's watermark, or a fresh one.
    watermark: Watermark,
    table: Table,
    /// Run-time settings of namespaces.
    namespaces: RuntimeSettingsMap,
    /// The newest time in ledger or journal.
    time: Millis,
}

impl OfflineView {
    /// Reads the journal over the ledger. `visit` gets the ledger's watermark and every whole
    /// record. `None`: there is no journal.
    fn open(
        vfs: &dyn Vfs,
        dir: &Path,
        open_ledger: &mut OpenLedgerReadOnly<'_>,
        mut visit: impl FnMut(&Watermark, &Record<'_>),
    ) -> Result<Option<OfflineView>, OpenError> {
        vfs.list(dir).map_err(|error| crate::journal::io_error(dir, "list", error))?;
        let Some(control) = open_control(vfs, dir)?.map(|control| *control.state()) else { return Ok(None) };
        let segments = find_segments(vfs, dir, &control)?.segments;
        let ledger = open_ledger().map_err(|source| ledger_refusal(dir, source))?;
        let at_rest = read_watermark(&*ledger, dir, &control)?;
        // Any hash seed works if there are no stored hashes to agree with.
        let fresh = || Watermark::new(control.log, 1, 0);
        let known = at_rest.clone().unwrap_or_else(fresh);
        let directory = DataDir { vfs, dir, control: &control, segments: &segments, ledger: &*ledger, threads: None };
        let recovered = recover(directory, at_rest, fresh, |record| {
            visit(&known, record);
            Ok(())
        })?;
        let RecoveredState { table, watermark, namespaces, time, .. } = recovered;
        Ok(Some(OfflineView { control, ledger, watermark, table, namespaces, time }))
    }

    /// Visits every cell at rest. A cell counts if the journal has nothing newer of its counter.
    fn visit_ledger_cells(&self, visit: &mut VisitCell<'_>) -> Result<(), LedgerError> {
        self.ledger.range(0, &mut |hash, name, cell| {
            let shard = self.table.shard_of(hash);
            let counts = self.table.lock(shard).find(hash, name) == Residency::NotResident;
            visit(hash, name, cell, counts);
            ControlFlow::Continue(())
        })
    }

    /// Visits the own cells of each counter on a shared store, from the journal or, if it has none,
    /// at rest.
    fn visit_own_cells(&self, visit: &mut VisitOwnCells<'_>) -> Result<(), LedgerError> {
        self.ledger.range_own_cells(0, &mut |hash, name, bytes| {
            let mut shard = self.table.lock(self.table.shard_of(hash));
            let newer = shard.own_cells(hash, name).is_some();
            // A flush since then removes those at rest.
            let counts = shard.unloaded && !newer;
            drop(shard);
            match OwnCells::decode(bytes) {
                None => visit(hash, name, None),
                Some(own_cells) if counts => visit(hash, name, Some(&own_cells)),
                Some(_) => {}
            }
            ControlFlow::Continue(())
        })?;
        for shard in 0..self.table.shard_count() {
            for (hash, name, own_cells) in self.table.lock(shard).all_own_cells() {
                visit(hash, name, Some(own_cells));
            }
        }
        Ok(())
    }
}

/// Returns the run-time settings of namespaces; `None`: there is no journal.
pub fn runtime_settings(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: &mut OpenLedgerReadOnly<'_>,
) -> Result<Option<RuntimeSettingsMap>, OpenError> {
    let view = OfflineView::open(vfs, dir, open_ledger, |_, _| ())?;
    let declared =
        |view: OfflineView| view.namespaces.into_iter().filter(|(_, put)| !put.settings.is_empty()).collect();
    Ok(view.map(declared))
}

/// Returns the newest time in ledger and journal, which a start never precedes; `None`: there is no
/// journal.
pub fn newest_time(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: &mut OpenLedgerReadOnly<'_>,
) -> Result<Option<Millis>, OpenError> {
    Ok(OfflineView::open(vfs, dir, open_ledger, |_, _| ())?.map(|view| view.time))
}

fn ledger_refusal(dir: &Path, source: LedgerError) -> OpenError {
    OpenError::Ledger { dir: dir.to_owned(), source }
}

//! Looks at a data directory without changing it: for `quipu inspect`, `quipu restore`, and tests.

use std::path::{Path, PathBuf};

use quipu_model::{Ledger, LedgerError, Vfs};

use crate::journal::control::Control;
use crate::journal::recover::{Record, Tail, find_segments, open_control, replay};
use crate::journal::segments::Segment;
use crate::journal::{Damage, JournalError, io_error};
use crate::open::OpenError;
use crate::overlay::{Found, lay_over, read_watermark};
use crate::sync::Arc;
use crate::watermark::Watermark;

/// What was found.
pub struct Inspection {
    /// The directory.
    pub dir: PathBuf,
    /// What the control file says; `None` in a directory that holds no journal.
    pub control: Option<Control>,
    /// The segments, oldest first, and how many records begin in each.
    pub segments: Vec<(Segment, u64)>,
    /// Records in all.
    pub records: u64,
    /// The ledger, if it could be opened.
    pub ledger: Option<Arc<dyn Ledger>>,
    /// What it knows, if it knows anything.
    pub watermark: Option<Watermark>,
    /// How many counters ledger and journal have together, expired ones that nobody has looked at included; known if the directory is whole.
    pub counters: u64,
    /// Where the records end, or what would keep the server from starting, in the same words.
    pub verdict: Result<Tail, OpenError>,
}

/// Reads the whole journal over the ledger and hands each good record to `visit`.
pub fn inspect(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: impl FnOnce() -> Result<Arc<dyn Ledger>, LedgerError>,
    mut visit: impl FnMut(&Segment, &Record<'_>) -> Result<(), Damage>,
) -> Result<Inspection, JournalError> {
    vfs.list(dir).map_err(|e| io_error(dir, "list", e))?;
    let nothing = Tail { position: Default::default(), previous: 0, synced: Default::default(), torn: None };
    let (control, ledger, watermark, segments, verdict) = (None, None, None, Vec::new(), Ok(nothing));
    let mut found =
        Inspection { dir: dir.to_owned(), control, segments, records: 0, ledger, watermark, counters: 0, verdict };
    if let Err(error) = look(vfs, dir, open_ledger, &mut visit, &mut found) {
        found.verdict = Err(error);
    }
    Ok(found)
}

/// Notes what is found, up to the first thing that is not as it should be.
fn look(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: impl FnOnce() -> Result<Arc<dyn Ledger>, LedgerError>,
    visit: &mut impl FnMut(&Segment, &Record<'_>) -> Result<(), Damage>,
    found: &mut Inspection,
) -> Result<(), OpenError> {
    let Some(control) = open_control(vfs, dir)?.map(|control| *control.state()) else { return Ok(()) };
    found.control = Some(control);
    let segments = find_segments(vfs, dir, &control)?.segments;
    found.segments = segments.iter().map(|segment| (segment.clone(), 0)).collect();
    let opened = open_ledger();
    if opened.is_err() {
        // The server would go no further; but how much of the journal is whole is worth knowing all the more.
        let _ = replay(vfs, &control, &segments, |record| {
            let index = segments.partition_point(|segment| segment.end <= record.position);
            found.segments[index].1 += 1;
            found.records += 1;
            visit(&segments[index], record)
        });
    }
    let ledger = opened.map_err(|source| OpenError::Ledger { dir: dir.to_owned(), source })?;
    found.ledger = Some(Arc::clone(&ledger));
    found.watermark = read_watermark(&*ledger, dir, &control)?;
    let (at_rest, counts, records) = (found.watermark.clone(), &mut found.segments, &mut found.records);
    // Any order of hashes does where there are none to agree with.
    let fresh = || Watermark::new(control.log, 1, 0);
    let directory = Found { vfs, dir, control: &control, segments: &segments, ledger: &*ledger, threads: None };
    let overlaid = lay_over(directory, at_rest, fresh, |record| {
        let index = segments.partition_point(|segment| segment.end <= record.position);
        counts[index].1 += 1;
        *records += 1;
        visit(&segments[index], record)
    })?;
    found.counters = overlaid.table.counters();
    found.verdict = Ok(overlaid.tail);
    Ok(())
}

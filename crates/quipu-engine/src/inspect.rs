//! Looks at a data directory without changing it: for `quipu inspect`, and for tests.

use std::path::Path;

use quipu_model::Vfs;

use crate::journal::control::Control;
use crate::journal::recover::{Record, Tail, find_segments, open_control, replay};
use crate::journal::segments::Segment;
use crate::journal::{Damage, JournalError, io_error};

/// What was found.
pub struct Inspection {
    /// What the control file says; `None` in a directory that holds no journal.
    pub control: Option<Control>,
    /// The segments, oldest first, and how many records begin in each.
    pub segments: Vec<(Segment, u64)>,
    /// Records in all.
    pub records: u64,
    /// Where they end, or the damage that would keep the server from starting, in the same words.
    pub verdict: Result<Tail, JournalError>,
}

/// Reads the whole journal and hands each good record to `visit`.
pub fn inspect(
    vfs: &dyn Vfs,
    dir: &Path,
    mut visit: impl FnMut(&Segment, &Record<'_>) -> Result<(), Damage>,
) -> Result<Inspection, JournalError> {
    vfs.list(dir).map_err(|e| io_error(dir, "list", e))?;
    let nothing = Tail { position: Default::default(), previous: 0, synced: Default::default(), torn: None };
    let mut inspection = Inspection { control: None, segments: Vec::new(), records: 0, verdict: Ok(nothing) };
    let control = match open_control(vfs, dir) {
        Ok(Some(control)) => *control.state(),
        Ok(None) => return Ok(inspection),
        Err(damage) => {
            inspection.verdict = Err(damage);
            return Ok(inspection);
        }
    };
    inspection.control = Some(control);
    let segments = match find_segments(vfs, dir, &control) {
        Ok(found) => found.segments,
        Err(damage) => {
            inspection.verdict = Err(damage);
            return Ok(inspection);
        }
    };
    let mut counts = vec![0; segments.len()];
    let mut records = 0;
    inspection.verdict = replay(vfs, &control, &segments, |record| {
        let index = segments.partition_point(|segment| segment.end <= record.position);
        counts[index] += 1;
        records += 1;
        for entry in record.body.entries() {
            let damage = |reason: String| crate::journal::recover::stream_damage(&segments, record.position, reason);
            entry.map_err(|bad| damage(bad.to_string()))?;
        }
        visit(&segments[index], record)
    });
    inspection.records = records;
    inspection.segments = segments.into_iter().zip(counts).collect();
    Ok(inspection)
}

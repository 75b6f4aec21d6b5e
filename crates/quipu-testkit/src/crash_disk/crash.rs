//! Draws the operations that survive a power loss.
//!
//! In: the certain and the open operations at one point. Out: one of the disks that the machine may
//! find.
//!
//! The states worth trying are not evenly spread. Most mistakes show when exactly one write is
//! missing, or exactly one arrived early. So a strategy is drawn first, then the fate of each open
//! operation by that strategy.

use std::collections::BTreeMap;

use super::content::FileContent;
use super::image::Image;
use super::media::{Media, WriteCertainty, apply_entry, apply_write, image_of};
use super::recording::DiskOperation;
use crate::SeededRng;

/// Unit that a disk writes completely or not at all.
const SECTOR_BYTES: usize = 512;

/// Fate of an operation that no sync covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationFate {
    Lost,
    Kept,
    /// A part of a write; an operation on a directory is then kept or lost at random.
    Torn,
}

/// Strategy of drawing fates.
#[derive(Debug, Clone, Copy)]
enum FateStrategy {
    AllLost,
    AllKept,
    OneLost,
    OneKept,
    /// Everything up to a point of the recording, possibly in the middle of a write.
    Prefix,
    /// The same, with a separate point for each file and directory.
    PrefixEach,
    Subset,
    LastTorn,
    /// Each kept, lost or torn.
    Anything,
}

const STRATEGIES: [FateStrategy; 9] = [
    FateStrategy::AllLost,
    FateStrategy::AllKept,
    FateStrategy::OneLost,
    FateStrategy::OneKept,
    FateStrategy::Prefix,
    FateStrategy::PrefixEach,
    FateStrategy::Subset,
    FateStrategy::LastTorn,
    FateStrategy::Anything,
];

/// Draws one of the disks that a power loss may leave. `in_flight` has begun and not returned.
pub(super) fn draw_crash_image(
    mut media: Media,
    all: &[DiskOperation],
    in_flight: Option<usize>,
    rng: &SeededRng,
) -> Image {
    if let Some(index) = in_flight {
        let sync = matches!(
            all[index],
            DiskOperation::SyncDir { .. } | DiskOperation::SyncData { .. } | DiskOperation::SyncDataFailed { .. }
        );
        let dir_absent = matches!(all[index], DiskOperation::CreateDir { .. }) && rng.chance(50);
        // A sync that has not returned promises nothing; the writes before it are open already.
        if !sync && !dir_absent {
            media.step(index, all);
        }
    }
    let fates = draw_fates(&open_operations(&media), rng);
    let fate = |operation: usize| fates.get(&operation).copied().unwrap_or(OperationFate::Kept);

    let dirs = media.dirs.iter().map(|(dir, state)| {
        let mut entries = state.entries.clone();
        for &operation in &state.open {
            let kept = match fate(operation) {
                OperationFate::Lost => false,
                OperationFate::Kept => true,
                OperationFate::Torn => rng.chance(50),
            };
            if kept {
                apply_entry(&mut entries, &all[operation]);
            }
        }
        (dir.clone(), entries)
    });
    image_of(dirs, |file| {
        let state = &media.files[&file];
        let mut content = state.content.clone();
        for write in &state.pending {
            let operation = &all[write.operation];
            match (write.certainty, fate(write.operation)) {
                (WriteCertainty::Certain, _) | (_, OperationFate::Kept) => apply_write(&mut content, operation),
                (_, OperationFate::Lost) => {}
                (_, OperationFate::Torn) => apply_torn(&mut content, operation, rng),
            }
        }
        content
    })
}

/// The disk if only the process ends: everything done is there.
pub(super) fn image_of_all(media: &Media, all: &[DiskOperation]) -> Image {
    let dirs = media.dirs.iter().map(|(dir, state)| {
        let mut entries = state.entries.clone();
        for &operation in &state.open {
            apply_entry(&mut entries, &all[operation]);
        }
        (dir.clone(), entries)
    });
    image_of(dirs, |file| {
        let state = &media.files[&file];
        let mut content = state.content.clone();
        for write in &state.pending {
            apply_write(&mut content, &all[write.operation]);
        }
        content
    })
}

/// Operations that may or may not survive, in one ordered list per directory and per file.
fn open_operations(media: &Media) -> Vec<Vec<usize>> {
    let dirs = media.dirs.values().map(|dir| dir.open.clone());
    let files = media.files.values().map(|file| {
        let open = file.pending.iter().filter(|write| write.certainty != WriteCertainty::Certain);
        open.map(|write| write.operation).collect()
    });
    dirs.chain(files).filter(|open: &Vec<usize>| !open.is_empty()).collect()
}

fn draw_fates(groups: &[Vec<usize>], rng: &SeededRng) -> BTreeMap<usize, OperationFate> {
    let mut open: Vec<usize> = groups.concat();
    open.sort_unstable();
    if open.is_empty() {
        return BTreeMap::new();
    }
    let all = |fate: OperationFate| open.iter().map(|&operation| (operation, fate)).collect::<BTreeMap<_, _>>();
    let last = open[open.len() - 1];
    match rng.pick(&STRATEGIES) {
        FateStrategy::AllLost => all(OperationFate::Lost),
        FateStrategy::AllKept => all(OperationFate::Kept),
        FateStrategy::OneLost => with(all(OperationFate::Kept), *rng.pick(&open), OperationFate::Lost),
        FateStrategy::OneKept => with(all(OperationFate::Lost), *rng.pick(&open), OperationFate::Kept),
        FateStrategy::LastTorn => with(all(OperationFate::Kept), last, OperationFate::Torn),
        FateStrategy::Prefix => prefix(&open, rng),
        FateStrategy::PrefixEach => groups.iter().flat_map(|group| prefix(group, rng)).collect(),
        FateStrategy::Subset => {
            let percent = *rng.pick(&[10, 50, 90]);
            let fates = open.iter().map(|&operation| {
                let fate = if rng.chance(percent) { OperationFate::Kept } else { OperationFate::Lost };
                (operation, fate)
            });
            fates.collect()
        }
        FateStrategy::Anything => open
            .iter()
            .map(|&operation| (operation, *rng.pick(&[OperationFate::Lost, OperationFate::Kept, OperationFate::Torn])))
            .collect(),
    }
}

fn with(
    mut fates: BTreeMap<usize, OperationFate>,
    operation: usize,
    fate: OperationFate,
) -> BTreeMap<usize, OperationFate> {
    fates.insert(operation, fate);
    fates
}

/// Keeps the first operations, and tears the next one half of the time.
fn prefix(open: &[usize], rng: &SeededRng) -> BTreeMap<usize, OperationFate> {
    let kept = rng.below(open.len() + 1);
    let next = if rng.chance(50) { OperationFate::Torn } else { OperationFate::Lost };
    let fate = |index: usize| match index {
        index if index < kept => OperationFate::Kept,
        index if index == kept => next,
        _ => OperationFate::Lost,
    };
    open.iter().enumerate().map(|(index, &operation)| (operation, fate(index))).collect()
}

/// Applies a part of a write: up to a byte, up to a sector, some sectors only, or only the new
/// length.
fn apply_torn(content: &mut FileContent, operation: &DiskOperation, rng: &SeededRng) {
    let DiskOperation::Write { offset, bytes, .. } = operation else { return };
    match rng.below(4) {
        0 => content.write(&bytes[..rng.below(bytes.len() + 1)], *offset),
        1 => {
            let end = (offset + rng.below(bytes.len() + 1)) / SECTOR_BYTES * SECTOR_BYTES;
            content.write(&bytes[..end.saturating_sub(*offset)], *offset);
        }
        2 => {
            for (start, sector) in sectors(*offset, bytes) {
                if rng.chance(50) {
                    content.write(sector, start);
                }
            }
        }
        _ => content.grow(offset + bytes.len()),
    }
}

/// Splits a write at sector ends; each part has its offset in the file.
fn sectors(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let start = offset + done;
        let len = (SECTOR_BYTES - start % SECTOR_BYTES).min(bytes.len() - done);
        let sector = &bytes[done..done + len];
        done += len;
        (len > 0).then_some((start, sector))
    })
}

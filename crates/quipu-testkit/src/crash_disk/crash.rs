//! Chooses what survives a loss of power.
//!
//! In: what is certain and what is open at one moment. Out: one of the disks the machine may come up with.
//!
//! The states worth trying are not evenly spread: most mistakes show when exactly one write is missing, or exactly one
//! arrived early. So a strategy is drawn first, then the fate of each open operation by that strategy.

use std::collections::BTreeMap;

use super::content::Content;
use super::image::Image;
use super::media::{Media, Standing, apply_entry, apply_write, image_of};
use super::recording::Operation;
use crate::Dice;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// What becomes of an operation that no sync covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Kept,
    /// A part of a write; an operation on a directory is then kept or lost by a coin.
    Torn,
}

/// How fates are drawn.
#[derive(Debug, Clone, Copy)]
enum Strategy {
    AllLost,
    AllKept,
    OneLost,
    OneKept,
    /// Everything up to some point of the recording, which may be in the middle of a write.
    Prefix,
    /// The same, but at a point of its own for each file and directory.
    PrefixEach,
    Subset,
    LastTorn,
    /// Each kept, lost or torn.
    Anything,
}

const STRATEGIES: [Strategy; 9] = [
    Strategy::AllLost,
    Strategy::AllKept,
    Strategy::OneLost,
    Strategy::OneKept,
    Strategy::Prefix,
    Strategy::PrefixEach,
    Strategy::Subset,
    Strategy::LastTorn,
    Strategy::Anything,
];

/// One of the disks that a loss of power may leave behind. `in_flight` was begun and has not returned.
pub(super) fn crash(mut media: Media, all: &[Operation], in_flight: Option<usize>, dice: &Dice) -> Image {
    if let Some(index) = in_flight {
        let sync = matches!(
            all[index],
            Operation::SyncDir { .. } | Operation::SyncData { .. } | Operation::SyncDataFailed { .. }
        );
        let dir_absent = matches!(all[index], Operation::CreateDir { .. }) && dice.chance(50);
        // A sync that has not returned promises nothing; what it may have written is open already.
        if !sync && !dir_absent {
            media.step(index, all);
        }
    }
    let fates = draw_fates(&open_operations(&media), dice);
    let fate = |operation: usize| fates.get(&operation).copied().unwrap_or(Fate::Kept);

    let dirs = media.dirs.iter().map(|(dir, state)| {
        let mut entries = state.entries.clone();
        for &operation in &state.open {
            let kept = match fate(operation) {
                Fate::Lost => false,
                Fate::Kept => true,
                Fate::Torn => dice.chance(50),
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
        for written in &state.written {
            let operation = &all[written.operation];
            match (written.standing, fate(written.operation)) {
                (Standing::Certain, _) | (_, Fate::Kept) => apply_write(&mut content, operation),
                (_, Fate::Lost) => {}
                (_, Fate::Torn) => apply_torn(&mut content, operation, dice),
            }
        }
        content
    })
}

/// The disk if only the process ends: everything done is there.
pub(super) fn keep_all(media: &Media, all: &[Operation]) -> Image {
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
        for written in &state.written {
            apply_write(&mut content, &all[written.operation]);
        }
        content
    })
}

/// The operations that may or may not survive, each list in order: one per directory, one per file.
fn open_operations(media: &Media) -> Vec<Vec<usize>> {
    let dirs = media.dirs.values().map(|dir| dir.open.clone());
    let files = media.files.values().map(|file| {
        let open = file.written.iter().filter(|written| written.standing != Standing::Certain);
        open.map(|written| written.operation).collect()
    });
    dirs.chain(files).filter(|open: &Vec<usize>| !open.is_empty()).collect()
}

fn draw_fates(groups: &[Vec<usize>], dice: &Dice) -> BTreeMap<usize, Fate> {
    let mut open: Vec<usize> = groups.concat();
    open.sort_unstable();
    if open.is_empty() {
        return BTreeMap::new();
    }
    let all = |fate: Fate| open.iter().map(|&operation| (operation, fate)).collect::<BTreeMap<_, _>>();
    let last = open[open.len() - 1];
    match dice.pick(&STRATEGIES) {
        Strategy::AllLost => all(Fate::Lost),
        Strategy::AllKept => all(Fate::Kept),
        Strategy::OneLost => with(all(Fate::Kept), *dice.pick(&open), Fate::Lost),
        Strategy::OneKept => with(all(Fate::Lost), *dice.pick(&open), Fate::Kept),
        Strategy::LastTorn => with(all(Fate::Kept), last, Fate::Torn),
        Strategy::Prefix => prefix(&open, dice),
        Strategy::PrefixEach => groups.iter().flat_map(|group| prefix(group, dice)).collect(),
        Strategy::Subset => {
            let percent = *dice.pick(&[10, 50, 90]);
            let fates = open.iter().map(|&operation| {
                let fate = if dice.chance(percent) { Fate::Kept } else { Fate::Lost };
                (operation, fate)
            });
            fates.collect()
        }
        Strategy::Anything => {
            open.iter().map(|&operation| (operation, *dice.pick(&[Fate::Lost, Fate::Kept, Fate::Torn]))).collect()
        }
    }
}

fn with(mut fates: BTreeMap<usize, Fate>, operation: usize, fate: Fate) -> BTreeMap<usize, Fate> {
    fates.insert(operation, fate);
    fates
}

/// Keeps the first ones, and tears the next one half of the time.
fn prefix(open: &[usize], dice: &Dice) -> BTreeMap<usize, Fate> {
    let kept = dice.below(open.len() + 1);
    let next = if dice.chance(50) { Fate::Torn } else { Fate::Lost };
    let fate = |place: usize| match place {
        place if place < kept => Fate::Kept,
        place if place == kept => next,
        _ => Fate::Lost,
    };
    open.iter().enumerate().map(|(place, &operation)| (operation, fate(place))).collect()
}

/// Carries out a part of a write: up to a byte, up to a sector, some sectors only, or only the file's new length.
fn apply_torn(content: &mut Content, operation: &Operation, dice: &Dice) {
    let Operation::Write { offset, bytes, .. } = operation else { return };
    match dice.below(4) {
        0 => content.write(&bytes[..dice.below(bytes.len() + 1)], *offset),
        1 => {
            let end = (offset + dice.below(bytes.len() + 1)) / SECTOR_BYTES * SECTOR_BYTES;
            content.write(&bytes[..end.saturating_sub(*offset)], *offset);
        }
        2 => {
            for (start, sector) in sectors(*offset, bytes) {
                if dice.chance(50) {
                    content.write(sector, start);
                }
            }
        }
        _ => content.grow(offset + bytes.len()),
    }
}

/// A write cut where the disk's sectors end, each part with its offset in the file.
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

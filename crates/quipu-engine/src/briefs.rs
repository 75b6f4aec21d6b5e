//! Runs adds and reads of single counters, many at a time: nearly all that a server of counters does.
//!
//! In: commands in the order in which they came. Out: their replies, in that order, for as many of the first as can be run this way; the next one is for [`Turn::run`], which says what it lacks.
//!
//! Commands on the same counter are brought together into one **lot**: it is looked up, changed and journaled once. The shards of all lots are locked at once, in order, so while one lot's memory is on
//! its way the next one's is asked for; and one record tells of all of them.
//!
//! Invariants:
//! - replies, table and journal are those of the same commands run one by one, but that they are in one record;
//! - nothing is applied for a command that is not counted as run.

use arrayvec::ArrayVec;
use quipu_model::{Brief, Cell, Durability, Epoch, Millis, Name};

use crate::apply::table::{Look, Shard, Table};
use crate::apply::{Held, is_same};
use crate::journal::format::{Before, ENTRY_BYTES_MAX, Entry, RECORD_OVERHEAD_BYTES_MAX};
use crate::sync::MutexGuard;
use crate::turn::Turn;

/// Most commands run at once: what is known of each is on the stack, and the shards are held meanwhile.
pub const BRIEFS_MAX: usize = 64;

/// Most counters of one run. Their shards are held at the same time, so more would keep two workers from working at the same time; and a processor waits for about so many lines of
/// memory at once.
const LOTS_MAX: usize = 32;

/// What a brief command is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BriefReply {
    /// The value after an add.
    Added(i64),
    /// The value that was read; `None`: there is no such counter.
    Read(Option<i64>),
    /// Not added: the sum would leave the range of i64.
    Overflow,
}

/// All that happens to one counter.
#[derive(Clone, Copy)]
struct Lot<'a> {
    name: Name<'a>,
    hash: u64,
    /// The shard, and where it is among those that are held.
    shard: usize,
    held: usize,
    /// The first command of it.
    first: usize,
    durability: Durability,
    /// Its slot, if it has one and exists; before it was looked at, the one that it most likely has.
    at: Option<u32>,
    cell: Cell,
    exists: bool,
    /// Adds, and what they come to, since the newest entry.
    count: u64,
    sum: i64,
}

impl<'e> Turn<'e> {
    /// Whether [`Turn::run_briefs`] can run any at the moment.
    pub fn takes_briefs(&self) -> bool {
        self.engine.shared.is_none() && !self.engine.is_closed()
    }

    /// Runs the first of these commands and tells their replies; returns how many. 0: the first one has to be [run](Turn::run) by itself.
    pub fn run_briefs(&mut self, briefs: &[Brief<'_>], tell: impl FnMut(BriefReply)) -> usize {
        self.release();
        if !self.takes_briefs() {
            return 0;
        }
        let (mut lots, mut lot_of) = (ArrayVec::new(), [0; BRIEFS_MAX]);
        let together = self.bring_together(briefs, &mut lots, &mut lot_of);
        if !self.admit_lots(&lots) {
            return 0;
        }
        let ready = self.look_at_lots(&mut lots, together);
        let ran = run_lots(&briefs[..ready], &mut lots, &lot_of, tell);
        for lot in lots.iter().filter(|lot| lot.first < ran) {
            self.run_durability = self.run_durability.max(lot.durability);
            if lot.count > 0 {
                self.write_lot(lot);
            }
        }
        self.release();
        ran
    }

    /// The counters of the first commands; returns how many commands are about them.
    fn bring_together<'a>(&self, briefs: &[Brief<'a>], lots: &mut Lots<'a>, lot_of: &mut [u8; BRIEFS_MAX]) -> usize {
        let table = &self.engine.table;
        let mut last: Option<(Name<'a>, u8)> = None;
        // A bit of each hash: nearly all counters that are not among the lots are known by it not to be.
        let mut seen = [0u64; 8];
        for (index, Brief { name, .. }) in briefs.iter().take(BRIEFS_MAX).enumerate() {
            let lot = match last {
                Some((before, lot)) if is_same(before.bytes(), name.bytes()) => lot,
                _ => {
                    let hash = table.hash(name.bytes());
                    let (word, bit) = (&mut seen[hash as usize % 8], 1 << (hash >> 3 & 63));
                    let known = match *word & bit {
                        0 => None,
                        _ => lots.iter().position(|lot| lot.hash == hash && is_same(lot.name.bytes(), name.bytes())),
                    };
                    *word |= bit;
                    if known.is_none() && lots.is_full() {
                        return index;
                    }
                    known.unwrap_or_else(|| {
                        let shard = table.shard_of(hash);
                        table.prefetch(shard);
                        lots.push(Lot {
                            name: *name,
                            hash,
                            shard,
                            held: 0,
                            first: index,
                            durability: self.engine.policies.durability(*name),
                            at: None,
                            cell: Cell { epoch: Epoch::FIRST, value: 0, expires_at: None },
                            exists: false,
                            count: 0,
                            sum: 0,
                        });
                        lots.len() - 1
                    }) as u8
                }
            };
            lot_of[index] = lot;
            last = Some((*name, lot));
        }
        briefs.len().min(BRIEFS_MAX)
    }

    /// Whether there is room to write down what happens to these counters.
    fn admit_lots(&mut self, lots: &[Lot<'_>]) -> bool {
        let journaled = lots.iter().filter(|lot| lot.durability > Durability::Memory);
        let bytes: usize = journaled.map(|lot| ENTRY_BYTES_MAX + lot.name.bytes().len()).sum();
        bytes == 0 || self.promise_what_is_there(RECORD_OVERHEAD_BYTES_MAX + bytes)
    }

    /// Holds the shards of these counters and looks at each; returns how many of the first commands can run.
    fn look_at_lots(&mut self, lots: &mut Lots<'_>, together: usize) -> usize {
        let engine = self.engine;
        let held = match &mut lots[..] {
            [lot] => Held::one(&engine.table, lot.shard),
            lots => hold(&engine.table, lots),
        };
        let held = self.held.insert(held);
        if engine.is_closed() {
            // Under the locks: what was admitted before the close must not come after its mark.
            return 0;
        }
        let (full, now, mut ready) = (engine.memory_is_full(), self.now, together);
        match held {
            Held::One(_, shard) => lots.iter_mut().for_each(|lot| lot.guess(shard)),
            Held::Many(held) => lots.iter_mut().for_each(|lot| lot.guess(&mut held[lot.held].1)),
        }
        // Only now: until the first guess has been near, all the others have been asked for.
        let mut look = |lot: &mut Lot<'_>, shard: &mut Shard| {
            if !lot.look(shard, now, full) {
                ready = ready.min(lot.first);
            }
        };
        match held {
            Held::One(_, shard) => lots.iter_mut().for_each(|lot| look(lot, shard)),
            Held::Many(held) => lots.iter_mut().for_each(|lot| look(lot, &mut held[lot.held].1)),
        }
        ready
    }

    /// Brings what happened to a counter into the table and the record.
    fn write_lot(&mut self, lot: &Lot<'_>) {
        let shard = self.held.as_mut().expect("the run is open").at(lot.held);
        let name = lot.name.bytes();
        let before = match lot.at {
            Some(at) => {
                shard.set_value(at, lot.cell.value);
                Before::Present
            }
            None => {
                shard.put(lot.hash, name, lot.cell);
                Before::Absent
            }
        };
        if lot.durability > Durability::Memory {
            let Cell { epoch, value, expires_at } = lot.cell;
            let (count, sum, own) = (lot.count, lot.sum, &[][..]);
            self.draft.push(self.now, &Entry::Cell { name, epoch, value, expires_at, count, sum, before, own });
        }
    }
}

type Lots<'a> = ArrayVec<Lot<'a>, LOTS_MAX>;

impl Lot<'_> {
    /// Finds out where it most likely is, which is brought near.
    #[inline]
    fn guess(&mut self, shard: &mut Shard) {
        self.at = shard.guess(self.hash);
    }

    /// Looks at the counter; whether its commands can run.
    fn look(&mut self, shard: &mut Shard, now: Millis, full: bool) -> bool {
        if shard.splits.is_live(self.name.bytes()) {
            // Its lanes are to be joined first.
            return false;
        }
        match shard.look_at_guess(self.at, self.hash, self.name.bytes()) {
            (at, Look::Cell(cell)) => {
                (self.at, self.cell, self.exists) = (at, cell, true);
                cell.expires_at.is_none_or(|at| at > now)
            }
            (_, Look::Absent) => {
                self.at = None;
                self.cell.epoch = shard.floor;
                !full
            }
            (_, Look::Unknown) => false,
        }
    }
}

/// Holds the shards of several counters, in order.
fn hold<'t>(table: &'t Table, lots: &mut [Lot<'_>]) -> Held<'t> {
    // Shard and lot in one number: the quickest to put in order.
    let mut order: ArrayVec<usize, LOTS_MAX> =
        lots.iter().enumerate().map(|(at, lot)| lot.shard * LOTS_MAX + at).collect();
    order.sort_unstable();
    let mut held: Vec<(usize, MutexGuard<'t, Shard>)> = Vec::with_capacity(order.len());
    for number in order {
        let (shard, lot) = (number / LOTS_MAX, number % LOTS_MAX);
        if held.last().is_none_or(|(last, _)| *last != shard) {
            held.push((shard, table.lock(shard)));
        }
        let (at, lot) = (held.len() - 1, &mut lots[lot]);
        lot.held = at;
        held[at].1.prefetch_place(lot.hash);
    }
    Held::Many(held)
}

/// Runs commands on counters that were looked at; returns how many.
fn run_lots(
    briefs: &[Brief<'_>],
    lots: &mut Lots<'_>,
    lot_of: &[u8; BRIEFS_MAX],
    mut tell: impl FnMut(BriefReply),
) -> usize {
    for (index, brief) in briefs.iter().enumerate() {
        let lot = &mut lots[usize::from(lot_of[index])];
        tell(match brief.delta {
            None => BriefReply::Read(lot.exists.then_some(lot.cell.value)),
            Some(delta) => match lot.cell.value.checked_add(delta) {
                None => BriefReply::Overflow,
                Some(value) => {
                    // An entry says what its adds come to; what it cannot say begins another run.
                    let Some(sum) = lot.sum.checked_add(delta) else { return index };
                    (lot.cell.value, lot.exists, lot.count, lot.sum) = (value, true, lot.count + 1, sum);
                    BriefReply::Added(value)
                }
            },
        });
    }
    briefs.len()
}

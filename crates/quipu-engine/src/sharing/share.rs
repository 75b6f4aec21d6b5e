//! One counter under its lock: what this node says of it, what it shows, and what a row or a verdict means for both.
//!
//! In: a row, or a verdict on a put. Out: own cells that carry, are settled or dropped; the value shown; what is left to do by a swap.
//!
//! Invariants:
//! - only the present life carries; a cell of an older one that is told anything but `Newest` is settled late, by a swap;
//! - what is shown comes from one row and the own cells of the same moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::{NODE, Own, Put, Seen, Shard, Told, Verdict, read};
use quipu_model::{Cell, Incarnation, Millis, NodeId};
use quipu_sketch::{Key, Sketch};

use super::bodies::{Foreign, Shows};
use super::lease::Heir;
use super::own::{OwnCell, Owned};
use crate::sketches::Body;

/// A counter under its lock.
pub struct Share<'s> {
    /// What this node says.
    pub owned: &'s mut Owned,
    /// What it shows.
    pub shown: Option<Cell>,
    /// What it says has changed, and is to be written down.
    pub changed: bool,
    /// What the store knows has changed; worth knowing after a restart, and not worth a record.
    pub confirmed: bool,
    /// Which node this is.
    pub node: NodeId,
    /// Its present life.
    pub present: Incarnation,
    /// Of a sketch: what this node says of it, by number.
    pub bodies: BTreeMap<u16, Box<Body>>,
    /// The one of them that is looked at, taken out of these.
    pub body: Option<Box<Body>>,
    /// Its number.
    pub number: u16,
    /// What it no longer says.
    pub dropped: Vec<(u16, Box<Body>)>,
    /// What lives have left that are over, for the present one to go on with.
    pub moves: Vec<Sketch>,
    /// Of these bodies it says something else, and all of it is to be written down.
    pub says_anew: BTreeSet<u16>,
    /// When the counter was to expire, as far as was known before.
    pub known_expiry: Option<Millis>,
    /// Whether a sketch is shown.
    pub has_shown_body: bool,
    /// What is to be shown.
    pub shows: Shows,
    /// A number by chance.
    pub random: u64,
    /// Under which sketches hash what they count.
    pub key: &'s Key,
}

/// What a row or verdict left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// The row has to move, or an older life's cell has to be settled late: by a swap.
    pub swap: bool,
    /// The present life was retired.
    pub over: bool,
    /// Only the bodies beside the row tell what to do.
    pub fetch: bool,
    /// Somebody else writes under this node's identity.
    pub twin: bool,
    /// An older life owes something that nobody can settle any more.
    pub lost: Option<Incarnation>,
    /// The row does not know a cell of this older life any more, which the store had confirmed.
    pub row_lost: Option<Incarnation>,
    /// How many cells went on under another epoch.
    pub carried: u64,
}

impl Left {
    pub(super) fn and(self, other: Left) -> Left {
        Left {
            swap: self.swap || other.swap,
            over: self.over || other.over,
            fetch: self.fetch || other.fetch,
            twin: self.twin || other.twin,
            lost: self.lost.or(other.lost),
            row_lost: self.row_lost.or(other.row_lost),
            carried: self.carried + other.carried,
        }
    }
}

impl Share<'_> {
    /// A row was read, asked for and here at those times: own cells hear what it means for them, and the counter shows it. `heir` says how this
    /// node stands to its older lives; none of those that it may act for, or waits for, may have been forgotten by then. `None`: what is shown is newer.
    pub fn see(
        &mut self,
        seen: &Seen,
        foreign: Option<&Foreign>,
        (asked_at, landed_at): (Duration, Duration),
        heir: &dyn Fn(Incarnation) -> Footing,
    ) -> Option<Left> {
        // What was asked for after another had landed is newer, also if the store has lost something in between. Of two that were under way at once
        // the version tells.
        if asked_at <= self.owned.landed_at && seen.snapshot.version.is_before(&self.owned.row) {
            self.owned.fetched_at = self.owned.fetched_at.map(|at| at.max(asked_at));
            return None;
        }
        (self.owned.row, self.owned.landed_at) = (seen.snapshot.version, landed_at);
        self.find_body(seen);
        let mut left = Left::default();
        let mut cells = std::mem::take(&mut self.owned.cells);
        cells.retain_mut(|cell| {
            let (stays, heard) = match cell.is_body() {
                true => self.with_body(cell.number(), |share| match cell.incarnation {
                    NODE => (true, share.hear_body(cell, seen, foreign)),
                    _ => share.hear_life(cell, seen, heir),
                }),
                false => self.hear(cell, seen, heir),
            };
            left = left.and(heard);
            self.changed |= !stays;
            if !stays && cell.is_body() {
                self.drop_body(cell.number());
            }
            stays
        });
        self.owned.cells = cells;
        self.owned.epoch = seen.snapshot.as_of(seen.at).epoch;
        (self.owned.fetched_at, self.owned.excused_until) = (Some(asked_at), None);
        left.carried += self.take_over();
        // What was added under an epoch that has ended is for whoever goes on with that life to carry, or to let expire. With one that was
        // closed nobody goes on: what this node knows more of it is settled late, and counts.
        let (row, node) = (&seen.snapshot, self.node);
        let counts =
            |cell: &OwnCell| matches!(cell.own.shown(cell.id(node), cell.seq, row, seen.at), Told::Stay | Told::Over);
        // What somebody else, on a copy of its directory, has put as this node is none of its own.
        let silent = |cell: &OwnCell| cell.is_body() && !cell.own.said;
        let kept = |cell: &OwnCell| cell.settled && heir(cell.incarnation) == Footing::Kept;
        let ours = |cell: &OwnCell| {
            if cell.incarnation != self.present && kept(cell) {
                return false;
            }
            let acts = cell.incarnation == self.present || heir(cell.incarnation) != Footing::Theirs || counts(cell);
            acts && !silent(cell)
        };
        let total = read(seen, seen.at, &self.owned.listed(self.node, ours));
        self.owned.wide_sum = total.value().err().map(|wide| Box::new(wide.sum));
        left.swap |= total.behind;
        let (epoch, value, expires_at) = (total.epoch, total.nearest(), total.expires_at);
        self.shown = total.exists.then_some(Cell { epoch, value, expires_at });
        Some(left.and(self.show_bodies(seen, foreign, heir)))
    }

    /// What a row means for one cell; whether it stays.
    fn hear(&mut self, cell: &mut OwnCell, seen: &Seen, heir: &dyn Fn(Incarnation) -> Footing) -> (bool, Left) {
        let (row, at, id) = (&seen.snapshot, seen.at, cell.id(self.node));
        let present = cell.incarnation == self.present;
        if !present {
            match heir(cell.incarnation) {
                Footing::Acts => {}
                Footing::Waits | Footing::Theirs => return (true, Left::default()),
                Footing::Kept if cell.settled => {
                    let is_lost = cell.own.said && row.newest(id).is_none_or(|newest| newest < cell.seq);
                    let row_lost = is_lost.then_some(cell.incarnation);
                    return (true, Left { row_lost, ..Left::default() });
                }
                Footing::Over if cell.settled => return (false, Left::default()),
                Footing::Kept | Footing::Over => {
                    return (true, Left { lost: Some(cell.incarnation), ..Left::default() });
                }
            }
        }
        let informed = cell.own.informed(row);
        if informed != cell.own {
            // Known of the expiry, and nothing that the store would have to hear.
            (cell.own, self.changed) = (informed, true);
        }
        let mut told = cell.own.shown(id, cell.seq, row, at);
        if let (Told::Open(decided), Some(_)) = (told, cell.own.lapsed) {
            match present {
                true => cell.say(decided),
                // It says nothing new by that: another heir with the same seq must not be outdone.
                false => cell.own = decided,
            }
            self.changed = true;
            told = cell.own.shown(id, cell.seq, row, at);
        }
        let confirmed = row.newest(id) == Some(cell.seq);
        match told {
            Told::Stay => {
                let settled = cell.own.lapsed.is_none() && (!cell.own.said || confirmed);
                // A row that was read before a put was confirmed says nothing against that. The present life's cell is then put once more; an older one's
                // may be about to be over.
                let settled = settled || !present && cell.settled;
                self.confirmed |= settled != cell.settled;
                cell.settled = settled;
                cell.doubted &= !settled;
                if confirmed {
                    cell.confirmed = cell.own.total;
                }
                (true, Left::default())
            }
            Told::Open(own) if present => {
                self.carry(cell, own);
                (true, Left { carried: 1, ..Left::default() })
            }
            Told::Over if present => (true, Left { over: true, ..Left::default() }),
            Told::Outdone if present => (true, Left { twin: true, ..Left::default() }),
            Told::Outdone | Told::Open(_) | Told::Over if !cell.own.said => (false, Left::default()),
            // The store knows more of an older life than this node does, and may lose that.
            Told::Outdone => {
                self.confirmed |= cell.settle();
                (true, Left::default())
            }
            // Or as much.
            Told::Open(_) | Told::Over if confirmed => {
                self.confirmed |= cell.settle();
                (true, Left::default())
            }
            // It was confirmed once, and will be doubted if that was lost.
            Told::Open(_) | Told::Over | Told::Move if cell.settled => (true, Left::default()),
            Told::Open(_) | Told::Over | Told::Move => (true, Left { swap: true, ..Left::default() }),
        }
    }

    /// A verdict on a put.
    pub fn told(&mut self, put: &Put, verdict: &Verdict, heir: &dyn Fn(Incarnation) -> Footing) -> Left {
        let (incarnation, shard) = (put.cell.writer.incarnation, put.cell.shard);
        let present = incarnation == self.present;
        let Some(at) = self.owned.cells.iter().position(|c| c.incarnation == incarnation && c.shard == shard) else {
            return Left::default();
        };
        let mut cell = self.owned.cells[at];
        if !present && heir(incarnation) != Footing::Acts {
            return Left::default();
        }
        let newest = put.seq == cell.seq;
        match (cell.own.told(put, verdict, cell.seq), verdict) {
            (_, Verdict::Newest) => {
                self.confirmed |= newest && !cell.settled;
                cell.settled |= newest;
                (cell.doubted, cell.confirmed) = (false, put.total);
            }
            (_, Verdict::Older) if newest && present => return Left { twin: true, ..Left::default() },
            (_, Verdict::Older) if newest => {
                // A life that is over, of which the store knows more than its heir does, and may lose that.
                self.confirmed |= cell.settle();
            }
            (Told::Open(own), _) if present => {
                self.carry(&mut cell, own);
                self.owned.outdate();
                self.owned.cells[at] = cell;
                return Left { carried: 1, ..Left::default() };
            }
            (Told::Over, _) if present => return Left { over: true, ..Left::default() },
            (Told::Open(_) | Told::Over | Told::Move, _) => return Left { swap: true, ..Left::default() },
            (Told::Stay | Told::Outdone, _) => {}
        }
        self.owned.cells[at] = cell;
        Left::default()
    }

    fn carry(&mut self, cell: &mut OwnCell, own: Own) {
        cell.say(own);
        self.changed = true;
    }
}

/// How this node stands to one of its older lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Footing {
    /// It may act for it.
    Acts,
    /// Not yet.
    Waits,
    /// Someone else goes on with it: what it has added is theirs to show.
    Theirs,
    /// Nobody has to: the store has confirmed all of it. Kept, and not shown, in case the store loses it.
    Kept,
    /// Nobody can any more.
    Over,
}

impl Footing {
    /// By what the registry has told.
    pub fn of(heir: Heir, now: Duration) -> Footing {
        match heir {
            _ if heir.acts(now) => Footing::Acts,
            Heir::Over => Footing::Kept,
            Heir::Lost { .. } => Footing::Over,
            Heir::Elsewhere { alive: true, .. } => Footing::Theirs,
            _ => Footing::Waits,
        }
    }
}

/// A counter of the days before the store: all of it is this node's, under an epoch that every store knows. When it would have expired nobody
/// there has been told.
pub fn plain(cell: Option<Cell>, present: Incarnation) -> Owned {
    let mut owned = Owned::default();
    if let Some(Cell { value, .. }) = cell {
        let own = owned.open(present, Shard(0), None);
        let value = i128::from(value);
        own.say(Own { value, total: value, said: true, ..Own::default() });
    }
    owned
}

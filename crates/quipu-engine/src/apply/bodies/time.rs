//! Sketches over time: a ring of panes in place of one sketch.
//!
//! In: what is to be counted, and when it came. Out: the pane of that time, changed and written
//! down, and the ring; or one more that was too late.
//!
//! A namespace says that sketches are to be so when they are made; what a sketch is over is in
//! itself from then on, so what a namespace says later is for others.
//!
//! Invariants:
//! - ring and pane change in one record; of a pane that begins it has all, and the pane whose slot
//!   that was is gone with it;
//! - the version of the ring is the value of the cell, that of a pane its own;
//! - panes that have left the window are dropped when the next one begins, and not looked at before
//!   that.

use std::borrow::Cow;

use quipu_model::{Cell, Frequencies, Frequency, Kind, Millis, Name, Refusal, TopItem, WindowCoverage};
use quipu_sketch::ring::RingMode;
use quipu_sketch::window::Decay;
use quipu_sketch::{Edits, Key, Ring, Sketch, Top};

use crate::apply::Run;
use crate::apply::bodies::change::{
    EditSequence, InitialBytes, PooledEdits, edits_bytes_max, pack_edit, whole_body_edit,
};
use crate::apply::bodies::frequency::check_work;
use crate::bodies::body_map::Body;
use crate::bodies::together::refusal;
use crate::journal::format::{EDIT_OVERHEAD_BYTES_MAX, Entry};

/// Most slots of all panes of a top list together: so many are brought together in some ten
/// milliseconds when it is read, with its shard held.
const LISTED_SLOTS_MAX: u64 = 1 << 17;

/// When something came, and how much of it there is.
#[derive(Clone, Copy)]
pub struct When {
    /// Nothing: now.
    pub at: Option<Millis>,
    /// So many are late if it is too late.
    pub events: u64,
}

impl Body {
    /// What it is made of at a time: itself, or the panes of the window.
    pub fn sketches(&self, now: Millis) -> Vec<&Sketch> {
        match self.sketch() {
            Sketch::Ring(ring) => ring.covered(now.0).filter_map(|slot| self.pane(slot)).map(Body::sketch).collect(),
            sketch => vec![sketch],
        }
    }

    /// Which time it is of, if it is over time.
    pub fn covered(&self, now: Millis) -> Option<WindowCoverage> {
        let Sketch::Ring(ring) = self.sketch() else { return None };
        let panes = ring.covered(now.0).count() as u32;
        let from = match ring.mode() {
            RingMode::Panes(panes) => Millis(panes.times_of(*panes.covered(now.0).start()).start),
            RingMode::Decay(_) => Millis(0),
        };
        Some(WindowCoverage { from, to: Millis(now.0.saturating_add(1)), panes, late: ring.late() })
    }

    /// By what counts are divided, if they decay.
    pub fn decay(&self) -> Option<Decay> {
        match self.sketch() {
            Sketch::Ring(ring) => match ring.mode() {
                RingMode::Decay(decay) => Some(decay),
                RingMode::Panes(_) => None,
            },
            _ => None,
        }
    }

    /// A list of the most frequent of all that it covers.
    pub fn list(&self, key: &Key, now: Millis) -> Result<Cow<'_, Top>, Refusal> {
        let sketches = self.sketches(now);
        let lists: Option<Vec<&Top>> = sketches.into_iter().map(as_top).collect();
        match &lists.ok_or(Refusal::WrongKind)?[..] {
            [one] => Ok(Cow::Borrowed(one)),
            [] => match self.sketch() {
                Sketch::Ring(ring) => match ring.pane().map_err(refusal)? {
                    Sketch::TopK(list) | Sketch::Top(list) => Ok(Cow::Owned(list)),
                    _ => Err(Refusal::WrongKind),
                },
                _ => Err(Refusal::WrongKind),
            },
            [first, others @ ..] => {
                let mut merged = (*first).clone();
                merged.merge(key, others, &mut Edits::new()).map_err(refusal)?;
                Ok(Cow::Owned(merged))
            }
        }
    }

    /// The rows of that list, as they are worth now.
    pub fn ranked(&self, key: &Key, now: Millis) -> Result<Vec<TopItem>, Refusal> {
        let worth = Worth { decay: self.decay(), now };
        let rows = self.list(key, now)?.list().into_iter().map(|row| TopItem {
            item: row.item.into(),
            at_most: worth.at_most(row.at_most),
            at_least: worth.at_least(row.at_least),
            certain: row.certain,
        });
        Ok(rows.collect())
    }

    /// How often items came, in all that it covers.
    pub fn frequencies(&self, key: &Key, items: &[&[u8]], now: Millis) -> Result<Frequencies, Refusal> {
        let mut known =
            Frequencies { rows: vec![Frequency { at_most: 0, typical: 0 }; items.len()], total: 0, error: 0 };
        let (mut error, sketches) = (0.0, self.sketches(now));
        for sketch in &sketches {
            let (Sketch::Cms(counts) | Sketch::Frequency(counts)) = sketch else { return Err(Refusal::WrongKind) };
            check_work(items.len().saturating_mul(sketches.len()), counts)?;
            for (item, row) in items.iter().zip(&mut known.rows) {
                let more = counts.query(key, item);
                row.at_most = row.at_most.saturating_add(more.at_most);
                row.typical = row.typical.saturating_add(more.typical);
            }
            known.total = known.total.saturating_add(counts.n());
            error += counts.epsilon() * counts.n() as f64;
        }
        known.error = error.ceil() as u64;
        Ok(known)
    }
}

/// What counts are worth at a time.
pub struct Worth {
    /// If they decay.
    pub decay: Option<Decay>,
    /// At which time.
    pub now: Millis,
}

impl Worth {
    /// Not less than the truth.
    pub fn at_most(&self, count: u64) -> u64 {
        self.decay.map_or(count, |decay| decay.value(count, self.now.0).ceil() as u64)
    }

    /// Not more than the truth.
    pub fn at_least(&self, count: u64) -> u64 {
        self.decay.map_or(count, |decay| decay.value(count, self.now.0).floor() as u64)
    }

    /// As near as can be.
    pub fn nearest(&self, count: u64) -> u64 {
        self.decay.map_or(count, |decay| decay.value(count, self.now.0).round() as u64)
    }
}

/// A list, if it is one.
pub fn as_top(sketch: &Sketch) -> Option<&Top> {
    if let Sketch::TopK(list) | Sketch::Top(list) = sketch { Some(list) } else { None }
}

impl Run<'_, '_> {
    /// How sketches of this kind forget that are made in the namespace of a name.
    pub(super) fn course(&self, name: Name<'_>, kind: Kind) -> Option<RingMode> {
        let policy = self.policies.policy(name);
        let decay = policy.decay.filter(|_| kind == Kind::Top);
        let decay = decay.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let decay = decay.map(|half_life| RingMode::Decay(Decay::new(half_life, self.now.0)));
        decay.or_else(|| policy.window.map(RingMode::Panes))
    }

    /// A sketch as its namespace wants it to be made: as it is, or a ring of panes like it.
    pub(super) fn over_time(&self, name: Name<'_>, kind: Kind, sketch: Sketch) -> Result<Sketch, Refusal> {
        let Some(course) = self.course(name, kind) else { return Ok(sketch) };
        let ring = Ring::new(course, &sketch).map_err(refusal)?;
        let slots = as_top(&sketch).map_or(0, |list| u64::from(list.info().slots)) * u64::from(ring.slots());
        if slots > LISTED_SLOTS_MAX {
            let reason = format!("a list has at most {LISTED_SLOTS_MAX} slots in all panes, this one has {slots}");
            return Err(Refusal::BadSize { reason });
        }
        Ok(Sketch::Ring(ring))
    }

    /// What cannot be done to a sketch over time, that is there or would be made.
    pub(super) fn refuse_over_time(&self, name: Name<'_>, kind: Kind, body: Option<&Body>) -> Result<(), Refusal> {
        let is_ring = body.is_some_and(|body| matches!(body.sketch(), Sketch::Ring(_)));
        if is_ring || body.is_none() && self.course(name, kind).is_some() {
            return Err(Refusal::NotOffered { reason: "what has no times cannot come into a sketch over time" });
        }
        Ok(())
    }

    /// Changes the pane of a time in this ring, which is that of the counter's body, or is to be
    /// made; what the work says, unless it came too late, and whether anything changed. The work is
    /// told what each event weighs.
    pub(super) fn change_ring<T>(
        &mut self,
        (name, cell): (Name<'_>, Option<Cell>),
        ring: &Ring,
        when: When,
        grows: impl FnOnce(&Sketch, u64) -> u64,
        work: impl FnOnce(&mut Sketch, &mut Edits, u64) -> Result<T, Refusal>,
    ) -> Result<(Option<T>, bool), Refusal> {
        let now = self.now.0;
        let time = when.at.map_or(now, |at| at.0.min(now));
        let begin = cell.is_none().then(|| InitialBytes::from_bytes(ring.bytes()));
        let (mut after, mut edits, mut pane_edits) = (ring.clone(), PooledEdits::take(), PooledEdits::take());
        let halves = after.advance_landmark(now, &mut edits.0);
        let weight = match after.mode() {
            RingMode::Decay(decay) => decay.weight(time),
            RingMode::Panes(_) => 1,
        };
        let Some((slot, begins)) = after.locate(time, now) else {
            let mut after = ring.clone();
            edits.0.clear();
            after.add_late(when.events, &mut edits.0);
            self.write_ring((name, cell), after, (begin, &edits.0), &[], None);
            self.table.add_late_events(when.events);
            return Ok((None, false));
        };
        let expired = if begins { after.expire(now, &mut edits.0) } else { Vec::new() };
        let (pane, worked) = if begins {
            let mut sketch = after.pane().map_err(refusal)?;
            let memory = (after.memory() + sketch.memory()) as u64 + grows(&sketch, weight);
            if cell.is_none() {
                self.check_memory(memory)?
            } else {
                self.check_growth(memory)?
            }
            let begin = InitialBytes::from_sketch(&sketch);
            let worked = work(&mut sketch, &mut pane_edits.0, weight)?;
            after.begin(time, &mut edits.0);
            (Pane::Begun(Box::new(sketch), begin), worked)
        } else {
            let body = self.ring_body(name)?.pane(slot).ok_or(Refusal::WrongKind)?;
            let (length, grows) = (body.bytes().len(), grows(body.sketch(), weight));
            self.check_growth(grows)?;
            let body = self.ring_body(name)?.pane_mut(slot).ok_or(Refusal::WrongKind)?;
            match halves {
                // What refuses the work is to find everything as it was.
                Some(halves) => {
                    let mut sketch = body.sketch().clone();
                    if let Sketch::TopK(list) | Sketch::Top(list) = &mut sketch {
                        list.halve(halves, &mut pane_edits.0);
                    }
                    let worked = work(&mut sketch, &mut pane_edits.0, weight)?;
                    *body.sketch_mut() = sketch;
                    (Pane::Changed(length), worked)
                }
                None => (Pane::Changed(length), work(body.sketch_mut(), &mut pane_edits.0, weight)?),
            }
        };
        let changed = begins || !pane_edits.0.is_empty();
        if changed || !edits.0.is_empty() {
            self.write_ring((name, cell), after, (begin, &edits.0), &expired, Some((slot, pane, &pane_edits.0)));
        }
        Ok((Some(worked), changed))
    }

    fn ring_body(&mut self, name: Name<'_>) -> Result<&mut Body, Refusal> {
        let hash = self.table.hash(name.bytes());
        self.locks.shard(self.table.shard_of(hash)).body_mut(name.bytes()).ok_or(Refusal::WrongKind)
    }

    /// Writes down a ring that has changed, or is made, and the pane that has.
    fn write_ring(
        &mut self,
        (name, cell): (Name<'_>, Option<Cell>),
        ring: Ring,
        (begin, edits): (Option<InitialBytes>, &Edits),
        expired: &[u32],
        pane: Option<(u32, Pane, &Edits)>,
    ) {
        let is_new = cell.is_none();
        let cell = match cell {
            Some(cell) => Cell { value: cell.value + 1, ..cell },
            None => self.with_value(name, None, 1),
        };
        let (hash, before) = self.put(name, cell);
        let Cell { epoch, value, expires_at } = cell;
        let shard = self.locks.shard(self.table.shard_of(hash));
        if is_new {
            shard.put_body(hash, name.bytes(), Body::new(Sketch::Ring(ring), epoch, value as u64));
        } else {
            let body = shard.body_mut(name.bytes()).expect("a cell of the same epoch keeps its body");
            let length = body.bytes().len();
            *body.sketch_mut() = Sketch::Ring(ring);
            body.record_edits(length, edits);
            // The first page says the version.
            body.mark_head_changed();
            body.version = value as u64;
        }
        let body = shard.body_mut(name.bytes()).expect("it was there, or was put there");
        expired.iter().for_each(|slot| body.drop_pane(*slot));
        let unsure = !std::mem::replace(&mut body.journaled, before.is_some());
        let mut told = None;
        if let Some((slot, pane, edits)) = pane {
            let begin = match pane {
                Pane::Begun(sketch, begin) => {
                    body.put_pane(slot, Body::new(*sketch, epoch, 1));
                    Some(begin)
                }
                Pane::Changed(length) => {
                    let pane = body.pane_mut(slot).expect("its slot had one");
                    pane.record_edits(length, edits);
                    pane.mark_head_changed();
                    pane.version += 1;
                    None
                }
            };
            let pane = body.pane_mut(slot).expect("it has one now");
            let unsure = !std::mem::replace(&mut pane.journaled, before.is_some());
            told = Some((slot + 1, begin, unsure, edits));
        }
        if let Some(before) = before {
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 1, before, own: &[] };
            self.builder.push(self.now, &entry);
            Told { now: self.now, name: name.bytes(), draft: self.builder }.push(body, 0, begin, unsure, edits);
            let mut tell = Told { now: self.now, name: name.bytes(), draft: self.builder };
            if let Some((number, begin, unsure, edits)) = told
                && let Some(pane) = body.pane(number - 1)
            {
                tell.push(pane, number, begin, unsure, edits);
            }
            tell.push_unjournaled_panes(body);
        }
        shard.update_body_size(name.bytes());
        self.table.update_byte_totals(shard);
        if is_new {
            self.remove_if_expired(name, cell);
        }
    }
}

/// What became of a pane.
enum Pane {
    /// It is made, and so it began.
    Begun(Box<Sketch>, InitialBytes),
    /// It had so many bytes before.
    Changed(usize),
}

/// Tells the journal of bodies.
pub(super) struct Told<'d> {
    pub now: Millis,
    pub name: &'d [u8],
    pub draft: &'d mut crate::journal::RecordBuilder,
}

impl Told<'_> {
    /// What changed in a body, or how it came to be, or all of it where that is shorter, or nothing
    /// else is known.
    pub fn push(&mut self, body: &Body, number: u32, begin: Option<InitialBytes>, unsure: bool, edits: &Edits) {
        let length = EDIT_OVERHEAD_BYTES_MAX + body.bytes().len();
        let begin_bytes = begin.as_ref().map_or(0, |begin| EDIT_OVERHEAD_BYTES_MAX + begin.bytes().len());
        let all = edits.is_whole() || begin_bytes + edits_bytes_max(edits) > length || unsure && begin.is_none();
        let change = (body.kind(), body.version, all || begin.is_some());
        let whose = (self.name, number);
        match begin {
            _ if all => self.draft.push_sketch(self.now, whose, change, [whole_body_edit(body.bytes())].into_iter()),
            Some(begin) => {
                let way = EditSequence { initial: Some(begin.edit()), edits: edits.iter() };
                self.draft.push_sketch(self.now, whose, change, way);
            }
            None => self.draft.push_sketch(self.now, whose, change, edits.iter().map(pack_edit)),
        }
    }

    /// All of a body that the journal does not have, and of its panes.
    pub fn push_unjournaled(&mut self, body: &mut Body) {
        if !body.journaled {
            body.journaled = true;
            self.push(body, 0, None, true, &Edits::new());
        }
        self.push_unjournaled_panes(body);
    }

    fn push_unjournaled_panes(&mut self, body: &mut Body) {
        for (number, pane) in body.panes_mut().filter(|(_, pane)| !pane.journaled) {
            pane.journaled = true;
            self.push(pane, number, None, true, &Edits::new());
        }
    }
}

/// How much came in all, as it is worth now: of frequencies and lists.
pub fn total(body: &Body, now: Millis) -> u64 {
    let worth = Worth { decay: body.decay(), now };
    let counted = |sketch: &Sketch| match sketch {
        Sketch::Cms(counts) | Sketch::Frequency(counts) => counts.n(),
        Sketch::TopK(list) | Sketch::Top(list) => list.n(),
        _ => 0,
    };
    worth.nearest(body.sketches(now).into_iter().map(counted).fold(0, u64::saturating_add))
}

//! Applies what is asked of sketches.
//!
//! In: an admitted command and the locks of its shards. Out: a reply, and in the run's record the cell and what changed in the body.
//!
//! Invariants:
//! - a command refused leaves cells, bodies and record as they were;
//! - one that changes nothing in a body writes nothing, and asks for no memory.

use std::borrow::Cow;
use std::cell::Cell as Slot;

use quipu_model::{
    Cell, Dialect, Estimate, FrequencyInfo, FrequencySize, Kind, KindAndDialect, Millis, Name, Refusal, Relation,
    Reply, SetString, SketchCommand, TOP_ITEMS_MAX, TopInfo, TopSize,
};
use quipu_sketch::count_min::Update;
use quipu_sketch::window::PANES_MAX;
use quipu_sketch::{CountMin, Edit, Edits, Hll, Sketch, Top, Unique};

use super::answer::{ITEM_BYTES_MAX, estimate, integer, interval, refusal, string_range};
use super::room::{HEADER_BYTES, UNIQUE_BYTES_MAX};
use super::time::{Told, When, Worth, as_top, total};
use super::{Body, bodies_bytes_max};
use crate::apply::Run;
use crate::journal::format::{EDIT_OVERHEAD_BYTES_MAX, Entry, PackedEdit, without_zeros};

/// Edits that take no more than this are kept for the next command.
const EDITS_BYTES_MAX: usize = 64 << 10;

/// Of what all counters may take in memory, this part at most is for bodies when one is made. Those that are there may grow beyond it, up to [`bodies_bytes_max`].
const BODIES_SHARE: u64 = 2;

/// Most names of a union or a merge of uniques: so many dense ones are counted in half a millisecond and merged in some two, with their shards held.
const UNION_NAMES_MAX: usize = 256;

/// Most bytes of frequencies that a merge looks at, in all: that takes some twenty milliseconds, with their shards held.
const MERGE_BYTES_MAX: usize = 16 << 20;

/// Most cells of frequencies that a command looks at, one in each row for each item: as many items as a command can have, of eight rows. They are far apart in memory, and the shard is held meanwhile.
const COMMAND_CELLS_MAX: usize = 1 << 17;

thread_local! {
    static EDITS: Slot<Option<Edits>> = const { Slot::new(None) };
}

/// Edits, of which there are none at first, in memory that is used again.
pub struct Fresh(pub Edits);

impl Fresh {
    pub fn take() -> Fresh {
        let mut edits = EDITS.take().unwrap_or_default();
        edits.clear();
        Fresh(edits)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if self.0.memory() <= EDITS_BYTES_MAX {
            EDITS.set(Some(std::mem::take(&mut self.0)));
        }
    }
}

/// Which sketches a command takes, and what it says to others.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) kind: Kind,
    pub(super) dialect: Dialect,
}

impl Wanted {
    /// Redis's commands take what they know; ours take both forms.
    pub fn takes(self, found: KindAndDialect) -> bool {
        found.kind == self.kind && (self.dialect == Dialect::Native || found.dialect == self.dialect)
    }

    pub fn refusal(self) -> Refusal {
        match (self.kind, self.dialect) {
            (Kind::Unique, Dialect::Redis) => Refusal::NotHll,
            _ => Refusal::WrongKind,
        }
    }
}

impl Run<'_, '_> {
    /// Applies a command of sketches.
    pub(crate) fn sketch(&mut self, command: &SketchCommand<'_>) -> Result<Reply, Refusal> {
        let (command, at) = command.timed();
        if let Some(name) = command.made() {
            self.check_pinned(name, command.kind())?;
        }
        match command {
            SketchCommand::At { .. } => Err(Refusal::NotOffered { reason: "only what is counted has a time" }),
            SketchCommand::Observe { name, items, dialect } => self.observe(*name, items, *dialect, at),
            SketchCommand::CountUnique { names, dialect } => self.count_unique(names, *dialect).map(Reply::Estimate),
            SketchCommand::MergeUnique { names, dialect } => self.merge_unique(names, *dialect),
            SketchCommand::RelateUnique { names, relation } => {
                self.relate_unique(names, *relation).map(Reply::Estimate)
            }
            SketchCommand::ReadRange { name, from, to } => {
                let (from, to) = (*from, *to);
                let range = self.with_string(*name, |string| Box::from(string_range(string, from, to)))?;
                Ok(Reply::Bytes(range.unwrap_or_default()))
            }
            SketchCommand::StringLength { name } => {
                let length = self.with_string(*name, |string| string.len() as i64)?;
                Ok(Reply::Integer(length.unwrap_or(0)))
            }
            SketchCommand::SetString(set) => self.set_string(set),
            SketchCommand::MakeFrequency { name, size, dialect } => {
                let sketch = frequency(*size, *dialect)?;
                self.make(*name, Kind::Frequency, sketch)
            }
            SketchCommand::CountItems { name, items, make, dialect } => {
                self.count_items(*name, items, *make, *dialect, at)
            }
            SketchCommand::ReadItems { name, items, dialect } => self.read_items(*name, items, *dialect),
            SketchCommand::MergeFrequency { names, weights, dialect } => self.merge_frequency(names, weights, *dialect),
            SketchCommand::FrequencyInfo { name, dialect } => {
                let now = self.now;
                let body = self.of_kind(*name, Wanted { kind: Kind::Frequency, dialect: *dialect })?;
                let (width, depth) = match body.sketch() {
                    Sketch::Cms(counts) | Sketch::Frequency(counts) => (counts.width(), counts.depth()),
                    Sketch::Ring(ring) => ring.table(),
                    _ => return Err(Refusal::WrongKind),
                };
                let (width, depth, total) = (width.into(), depth.into(), total(body, now));
                let dialect = known(body.sketch()).dialect;
                Ok(Reply::FrequencyInfo(FrequencyInfo { width, depth, total, dialect }))
            }
            SketchCommand::MakeTop { name, size, dialect } => {
                let sketch = top(*size, *dialect)?;
                self.make(*name, Kind::Top, sketch)
            }
            SketchCommand::CountTop { name, items, make, dialect } => self.count_top(*name, items, *make, *dialect, at),
            SketchCommand::IsTop { name, items, dialect } => {
                let (key, now) = (self.key, self.now);
                self.index_top(*name);
                let list = self.of_kind(*name, Wanted { kind: Kind::Top, dialect: *dialect })?.list(key, now)?;
                Ok(Reply::Integers(items.iter().map(|item| i64::from(list.contains(key, item))).collect()))
            }
            SketchCommand::ReadTop { name, items, dialect } => {
                let (key, now) = (self.key, self.now);
                self.index_top(*name);
                let body = self.of_kind(*name, Wanted { kind: Kind::Top, dialect: *dialect })?;
                let (worth, sketches) = (Worth { decay: body.decay(), now }, body.sketches(now));
                let most = |item: &&[u8]| {
                    let each = sketches.iter().filter_map(|sketch| as_top(sketch));
                    each.map(|list| list.bounds(key, item).at_most).fold(0, u64::saturating_add)
                };
                Ok(Reply::Integers(items.iter().map(|item| integer(worth.at_most(most(item)))).collect()))
            }
            SketchCommand::ListTop { name, dialect } => {
                let (key, now) = (self.key, self.now);
                let body = self.of_kind(*name, Wanted { kind: Kind::Top, dialect: *dialect })?;
                Ok(Reply::Ranked(body.ranked(key, now)?))
            }
            SketchCommand::TopInfo { name, dialect } => {
                let now = self.now;
                let body = self.of_kind(*name, Wanted { kind: Kind::Top, dialect: *dialect })?;
                let (k, (width, depth), decay) = match body.sketch() {
                    Sketch::TopK(list) | Sketch::Top(list) => {
                        let info = list.info();
                        (info.k, (info.width, info.depth), info.decay)
                    }
                    Sketch::Ring(ring) => (ring.places(), ring.table(), ring.list_decay()),
                    _ => return Err(Refusal::WrongKind),
                };
                let decay = quipu_model::Fraction::new(decay).unwrap_or_else(|| TopSize::of(1).decay);
                let dialect = known(body.sketch()).dialect;
                Ok(Reply::TopInfo(TopInfo {
                    size: TopSize { k, width, depth, decay },
                    total: total(body, now),
                    dialect,
                }))
            }
        }
    }

    // ---- unique -----------------------------------------------------------------------------------------------------------------

    fn observe(
        &mut self,
        name: Name<'_>,
        items: &[&[u8]],
        dialect: Dialect,
        at: Option<Millis>,
    ) -> Result<Reply, Refusal> {
        let key = self.key;
        let make = || match dialect {
            Dialect::Redis => Ok(Sketch::Hll(Hll::new())),
            Dialect::Native => Ok(Sketch::Unique(Unique::new())),
        };
        // A list may end with any item.
        let grows = |sketch: &Sketch, _: u64| match sketch {
            Sketch::Hll(hll) if hll.is_dense() => 0,
            Sketch::Unique(unique) if unique.is_dense() => 0,
            list => UNIQUE_BYTES_MAX.saturating_sub(list.bytes().len()) as u64,
        };
        let when = When { at, events: items.len() as u64 };
        let changed =
            self.change(name, Wanted { kind: Kind::Unique, dialect }, when, grows, make, |sketch, edits, _| {
                match sketch {
                    Sketch::Hll(hll) => {
                        items.iter().for_each(|item| {
                            hll.add(item, edits);
                        });
                    }
                    Sketch::Unique(unique) => {
                        items.iter().for_each(|item| {
                            unique.add(key, item, edits);
                        });
                    }
                    _ => return Err(Refusal::WrongKind),
                }
                Ok(())
            })?;
        Ok(Reply::Integer(i64::from(changed.1)))
    }

    fn count_unique(&mut self, names: &[Name<'_>], dialect: Dialect) -> Result<Estimate, Refusal> {
        check_names(names)?;
        self.look_at(names);
        let bodies = self.bodies(names, Wanted { kind: Kind::Unique, dialect })?;
        let (mut hlls, mut uniques) = (Vec::new(), Vec::new());
        let sketches: Vec<&Sketch> = bodies.iter().flat_map(|body| body.sketches(self.now)).collect();
        check_sketches(sketches.len())?;
        for sketch in sketches {
            match sketch {
                Sketch::Hll(hll) => hlls.push(hll),
                Sketch::Unique(unique) => uniques.push(unique),
                _ => return Err(Refusal::WrongKind),
            }
        }
        match (&hlls[..], &uniques[..]) {
            ([], []) => Ok(Estimate::exactly(0)),
            ([one], []) => Ok(interval(one.estimate(), one.rse())),
            (several, []) => {
                let rse = several.iter().map(|hll| hll.rse()).fold(0.0, f64::max);
                Ok(interval(Hll::union_estimate(several), rse))
            }
            ([], [one]) => Ok(interval(one.estimate(), one.rse())),
            ([], several) => Ok(estimate(Unique::union(several))),
            _ => Err(Refusal::WrongKind),
        }
    }

    fn relate_unique(&mut self, names: &[Name<'_>; 2], relation: Relation) -> Result<Estimate, Refusal> {
        self.look_at(names);
        let [one, two] = self.pair(names)?;
        Ok(estimate(match relation {
            Relation::Intersection => Unique::intersection(&one, &two),
            Relation::Difference => Unique::difference(&one, &two),
        }))
    }

    /// Two sketches of our own form; one that does not exist has seen nothing.
    fn pair(&self, names: &[Name<'_>; 2]) -> Result<[Cow<'_, Unique>; 2], Refusal> {
        let mut pair: [Cow<'_, Unique>; 2] = [Cow::Owned(Unique::new()), Cow::Owned(Unique::new())];
        for (name, unique) in names.iter().zip(&mut pair) {
            let Some(body) = self.peek(*name, Wanted { kind: Kind::Unique, dialect: Dialect::Native })? else {
                continue;
            };
            let uniques: Option<Vec<&Unique>> = body.sketches(self.now).into_iter().map(as_unique).collect();
            let foreign = Refusal::NotOffered { reason: "only uniques of our own form are compared" };
            match &uniques.ok_or(foreign)?[..] {
                [one] => *unique = Cow::Borrowed(one),
                several => unique.to_mut().merge(several, &mut Edits::new()),
            }
        }
        Ok(pair)
    }

    fn merge_unique(&mut self, names: &[Name<'_>], dialect: Dialect) -> Result<Reply, Refusal> {
        check_names(names)?;
        let Some((into, from)) = names.split_first() else { return Ok(Reply::Ok) };
        let wanted = Wanted { kind: Kind::Unique, dialect };
        self.close_lanes(*into);
        let from: Vec<Name<'_>> = from.iter().filter(|name| *name != into).copied().collect();
        self.look_at(names);
        if self.picking.is_some() {
            return self.merge_unique_shared(*into, &from, wanted);
        }
        let before = self.cell(*into);
        let others = self.bodies(&from, wanted)?;
        let present = self.peek(*into, wanted)?;
        self.refuse_over_time(*into, Kind::Unique, present)?;
        let present = present.map(|body| body.sketch().clone());
        let others: Vec<&Sketch> = others.iter().flat_map(|body| body.sketches(self.now)).collect();
        check_sketches(others.len())?;
        // Of the form that is there already, if there is one.
        let dialect = match present.as_ref().or(others.first().copied()) {
            Some(sketch) => known(sketch).dialect,
            None => dialect,
        };
        let mut merged = present.unwrap_or_else(|| match dialect {
            Dialect::Redis => Sketch::Hll(Hll::new()),
            Dialect::Native => Sketch::Unique(Unique::new()),
        });
        let mixed = Refusal::NotOffered { reason: "uniques of Redis's form and of ours cannot be merged" };
        let mut edits = Fresh::take();
        match &mut merged {
            Sketch::Hll(into) => {
                let others: Option<Vec<&Hll>> = others.into_iter().map(as_hll).collect();
                into.merge(&others.ok_or(mixed)?, &mut edits.0);
            }
            Sketch::Unique(into) => {
                let others: Option<Vec<&Unique>> = others.into_iter().map(as_unique).collect();
                into.merge(&others.ok_or(mixed)?, &mut edits.0);
            }
            _ => return Err(Refusal::WrongKind),
        }
        self.write_merged(*into, before, merged, &edits.0)?;
        Ok(Reply::Ok)
    }

    /// The same where it is shared: this node says that it has counted what is shown of the others.
    fn merge_unique_shared(&mut self, into: Name<'_>, from: &[Name<'_>], wanted: Wanted) -> Result<Reply, Refusal> {
        let others: Vec<Sketch> = self.bodies(from, wanted)?.into_iter().map(|body| body.sketch().clone()).collect();
        let present = self.peek(into, wanted)?.map(|body| known(body.sketch()).dialect);
        let dialect = present.or(others.first().map(|sketch| known(sketch).dialect)).unwrap_or(wanted.dialect);
        let make = || match dialect {
            Dialect::Redis => Ok(Sketch::Hll(Hll::new())),
            Dialect::Native => Ok(Sketch::Unique(Unique::new())),
        };
        let grows = |sketch: &Sketch| UNIQUE_BYTES_MAX.saturating_sub(sketch.bytes().len()) as u64;
        let mixed = Refusal::NotOffered { reason: "uniques of Redis's form and of ours cannot be merged" };
        self.change_shared(into, wanted, grows, make, |sketch, edits| {
            match sketch {
                Sketch::Hll(into) => {
                    let others: Option<Vec<&Hll>> = others.iter().map(as_hll).collect();
                    into.merge(&others.ok_or(mixed.clone())?, edits);
                }
                Sketch::Unique(into) => {
                    let others: Option<Vec<&Unique>> = others.iter().map(as_unique).collect();
                    into.merge(&others.ok_or(mixed.clone())?, edits);
                }
                _ => return Err(Refusal::WrongKind),
            }
            Ok(())
        })?;
        Ok(Reply::Ok)
    }

    // ---- frequency --------------------------------------------------------------------------------------------------------------

    fn count_items(
        &mut self,
        name: Name<'_>,
        items: &[(&[u8], u64)],
        make: Option<FrequencySize>,
        dialect: Dialect,
        at: Option<Millis>,
    ) -> Result<Reply, Refusal> {
        let key = self.key;
        let make = || frequency(make.ok_or(Refusal::NoSketch { kind: Kind::Frequency })?, dialect);
        let wanted = Wanted { kind: Kind::Frequency, dialect };
        let when = When { at, events: items.iter().fold(0, |all, (_, by)| all.saturating_add(*by)) };
        let asked = Slot::new(0);
        let counted = self.change(
            name,
            wanted,
            when,
            |_, _| 0,
            make,
            |sketch, edits, _| {
                let (Sketch::Cms(sketch) | Sketch::Frequency(sketch)) = sketch else { return Err(Refusal::WrongKind) };
                check_work(items.len(), sketch)?;
                asked.set(sketch.depth() as usize * items.len());
                sketch.add_all(key, items, edits).map_err(refusal)
            },
        )?;
        let body = self.peek(name, wanted)?;
        match (counted.0, body) {
            // Of a window: what all panes say of them, unless that is too much work; then what this one does.
            (pane, Some(body)) if matches!(body.sketch(), Sketch::Ring(_)) => {
                let many = asked.get().saturating_mul(body.sketches(self.now).len()) > COMMAND_CELLS_MAX;
                let names: Vec<&[u8]> = items.iter().map(|(item, _)| *item).collect();
                match pane.filter(|_| many) {
                    Some(pane) => Ok(Reply::Integers(pane.into_iter().map(integer).collect())),
                    None => {
                        let known = body.frequencies(key, &names, self.now)?;
                        Ok(Reply::Integers(known.rows.iter().map(|row| integer(row.at_most)).collect()))
                    }
                }
            }
            (counted, _) => Ok(Reply::Integers(counted.unwrap_or_default().into_iter().map(integer).collect())),
        }
    }

    fn read_items(&mut self, name: Name<'_>, items: &[&[u8]], dialect: Dialect) -> Result<Reply, Refusal> {
        let (key, now) = (self.key, self.now);
        let known = self.of_kind(name, Wanted { kind: Kind::Frequency, dialect })?.frequencies(key, items, now)?;
        Ok(match dialect {
            Dialect::Redis => Reply::Integers(known.rows.iter().map(|row| integer(row.at_most)).collect()),
            Dialect::Native => Reply::Frequencies(known),
        })
    }

    fn merge_frequency(&mut self, names: &[Name<'_>], weights: &[i64], dialect: Dialect) -> Result<Reply, Refusal> {
        let missing = Refusal::NoSketch { kind: Kind::Frequency };
        let Some((into, from)) = names.split_first() else { return Err(missing) };
        let wanted = Wanted { kind: Kind::Frequency, dialect };
        self.close_lanes(*into);
        self.look_at(names);
        let before = self.cell(*into);
        let into_body = self.peek(*into, wanted)?.ok_or(missing.clone())?;
        self.refuse_over_time(*into, Kind::Frequency, Some(into_body))?;
        let too_much = || {
            let reason = format!("a merge looks at {MERGE_BYTES_MAX} bytes at most, the sketch it makes included");
            Refusal::BadSize { reason }
        };
        if into_body.bytes().len().saturating_mul(names.len()) > MERGE_BYTES_MAX {
            return Err(too_much());
        }
        let mut merged = into_body.sketch().clone();
        let mut others = Vec::with_capacity(from.len());
        for (name, weight) in from.iter().zip(weights) {
            for sketch in self.peek(*name, wanted)?.ok_or(missing.clone())?.sketches(self.now) {
                match sketch {
                    Sketch::Cms(sketch) | Sketch::Frequency(sketch) => others.push((sketch, *weight)),
                    _ => return Err(Refusal::WrongKind),
                }
            }
        }
        if into_body.bytes().len().saturating_mul(1 + others.len()) > MERGE_BYTES_MAX {
            return Err(too_much());
        }
        let mut edits = Fresh::take();
        let (Sketch::Cms(sketch) | Sketch::Frequency(sketch)) = &mut merged else { return Err(Refusal::WrongKind) };
        sketch.set_to_sum(&others, &mut edits.0).map_err(refusal)?;
        self.write_merged(*into, before, merged, &edits.0)?;
        Ok(Reply::Ok)
    }

    /// The body of a counter that has to exist, and be of this kind.
    fn of_kind(&mut self, name: Name<'_>, wanted: Wanted) -> Result<&Body, Refusal> {
        self.cell(name);
        self.peek(name, wanted)?.ok_or(Refusal::NoSketch { kind: wanted.kind })
    }

    // ---- top --------------------------------------------------------------------------------------------------------------------

    fn count_top(
        &mut self,
        name: Name<'_>,
        items: &[(&[u8], u64)],
        make: Option<TopSize>,
        dialect: Dialect,
        at: Option<Millis>,
    ) -> Result<Reply, Refusal> {
        if items.iter().any(|(item, _)| item.len() > ITEM_BYTES_MAX) {
            return Err(Refusal::ItemTooLong { bytes_max: ITEM_BYTES_MAX });
        }
        let key = self.key;
        let make = || top(make.ok_or(Refusal::NoSketch { kind: Kind::Top })?, dialect);
        let longest = items.iter().map(|(item, _)| item.len()).max().unwrap_or(0);
        let weight = items.iter().try_fold(0u64, |all, (_, by)| all.checked_add(*by)).ok_or(Refusal::SketchOverflow)?;
        let grows = |sketch: &Sketch, each: u64| match sketch {
            Sketch::TopK(list) | Sketch::Top(list) => {
                list.bytes_after(weight.saturating_mul(each), longest).saturating_sub(list.bytes().len() as u64)
            }
            _ => 0,
        };
        let when = When { at, events: weight };
        let counted =
            self.change(name, Wanted { kind: Kind::Top, dialect }, when, grows, make, |sketch, edits, each| {
                let (Sketch::TopK(sketch) | Sketch::Top(sketch)) = sketch else { return Err(Refusal::WrongKind) };
                let weight = weight.checked_mul(each).ok_or(Refusal::SketchOverflow)?;
                sketch.n().checked_add(weight).ok_or(Refusal::SketchOverflow)?;
                // Only a list that is nearly as large as can be may refuse an item after others were counted.
                let fits = sketch.bytes_after(weight, longest) <= super::SKETCH_BYTES_MAX as u64;
                let before = if fits { None } else { Some(sketch.clone()) };
                let expelled: Result<Vec<_>, _> = items
                    .iter()
                    .map(|(item, by)| {
                        sketch
                            .add_among(key, item, by * each, longest, edits)
                            .map(|item| item.map(Vec::into_boxed_slice))
                    })
                    .collect();
                expelled.map_err(|refused| {
                    before.into_iter().for_each(|before| *sketch = before);
                    refusal(refused)
                })
            })?;
        let panes = self.peek(name, Wanted { kind: Kind::Top, dialect })?;
        let panes = panes.is_some_and(|body| matches!(body.sketch(), Sketch::Ring(ring) if ring.slots() > 1));
        // What left the list of one pane has not left that of the window.
        let expelled = counted.0.filter(|_| !panes).unwrap_or_else(|| vec![None; items.len()]);
        Ok(Reply::Items(expelled))
    }

    /// Sees that items are found in a list without a walk: after a start, whoever comes first makes that so.
    fn index_top(&mut self, name: Name<'_>) {
        let (key, hash) = (self.key, self.table.hash(name.bytes()));
        let Some(body) = self.held.shard(self.table.shard_of(hash)).body_mut(name.bytes()) else { return };
        if let Sketch::TopK(list) | Sketch::Top(list) = body.sketch_mut() {
            list.index(key);
        }
        for (_, pane) in body.panes_mut() {
            if let Sketch::TopK(list) | Sketch::Top(list) = pane.sketch_mut() {
                list.index(key);
            }
        }
    }

    // ---- strings ----------------------------------------------------------------------------------------------------------------

    fn set_string(&mut self, set: &SetString<'_>) -> Result<Reply, Refusal> {
        let hll = Hll::from_redis_string(set.bytes).map_err(|_| Refusal::CorruptHll)?;
        let SetString { name, condition, expiry, reply_old, .. } = *set;
        self.refuse_over_time(name, Kind::Unique, None)?;
        let sketch = Sketch::Hll(hll);
        self.check_memory(sketch.memory() as u64)?;
        self.set_anew(name, condition, expiry, reply_old, |run, cell| run.write_new(name, Some(cell), sketch, None))
    }

    /// Works with what is a string to Redis; `None` without a counter.
    fn with_string<T>(&mut self, name: Name<'_>, work: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Refusal> {
        let Some(cell) = self.cell(name) else { return Ok(None) };
        match self.body(name).map(|body| body.sketch()) {
            None => Ok(Some(work(cell.value.to_string().as_bytes()))),
            Some(Sketch::Hll(hll)) => Ok(Some(work(hll.redis_string()))),
            Some(_) => Err(Refusal::WrongKind),
        }
    }

    /// What a read replies of a counter: a value, or a string.
    pub(crate) fn shown(&mut self, name: Name<'_>, cell: Option<Cell>) -> Result<Reply, Refusal> {
        let Some(cell) = cell else { return Ok(Reply::Value(None)) };
        match self.body(name).map(|body| body.sketch()) {
            None => Ok(Reply::Value(Some(cell.value))),
            Some(Sketch::Hll(hll)) => Ok(Reply::Bytes(hll.redis_string().into())),
            Some(_) => Err(Refusal::WrongKind),
        }
    }

    /// What a counter that exists is.
    pub(crate) fn kind_of(&mut self, name: Name<'_>) -> KindAndDialect {
        self.body(name).map_or(KindAndDialect::COUNT, |body| known(body.sketch()))
    }

    /// The cell of a count; refused if it is a sketch.
    pub(crate) fn count_of(&mut self, name: Name<'_>, cell: Option<Cell>) -> Result<Option<Cell>, Refusal> {
        if cell.is_some() && self.body(name).is_some() { Err(Refusal::WrongKind) } else { Ok(cell) }
    }

    // ---- bodies -----------------------------------------------------------------------------------------------------------------

    /// The body of a counter that was looked at, if it is a sketch.
    fn body(&mut self, name: Name<'_>) -> Option<&Body> {
        let hash = self.table.hash(name.bytes());
        self.held.shard(self.table.shard_of(hash)).body(name.bytes())
    }

    /// The same, of a counter that has to be of this kind if it exists.
    fn peek(&self, name: Name<'_>, wanted: Wanted) -> Result<Option<&Body>, Refusal> {
        let hash = self.table.hash(name.bytes());
        let shard = self.held.peek(self.table.shard_of(hash));
        match shard.body(name.bytes()) {
            Some(body) if wanted.takes(known(body.sketch())) => Ok(Some(body)),
            None if !shard.exists(hash, name.bytes()) => Ok(None),
            _ => Err(wanted.refusal()),
        }
    }

    /// Looks at counters, so that those that have expired are gone.
    fn look_at(&mut self, names: &[Name<'_>]) {
        for name in names {
            self.cell(*name);
        }
    }

    /// The bodies of all these that exist, one after the other; all were looked at.
    fn bodies(&self, names: &[Name<'_>], wanted: Wanted) -> Result<Vec<&Body>, Refusal> {
        let mut bodies = Vec::with_capacity(names.len());
        for name in names {
            bodies.extend(self.peek(*name, wanted)?);
        }
        Ok(bodies)
    }

    /// Changes a sketch, which is made if it does not exist, and grows by so many bytes at most; what the work says, unless it came too late, and whether anything changed. What the work refuses has changed nothing. Of a sketch over time the pane is changed, and the work is told what each event weighs there.
    fn change<T>(
        &mut self,
        name: Name<'_>,
        wanted: Wanted,
        when: When,
        grows: impl FnOnce(&Sketch, u64) -> u64,
        make: impl FnOnce() -> Result<Sketch, Refusal>,
        work: impl Fn(&mut Sketch, &mut Edits, u64) -> Result<T, Refusal>,
    ) -> Result<(Option<T>, bool), Refusal> {
        if self.picking.is_some() {
            // Windows are not offered there, so nothing depends on the time, and a weight is what it is.
            let grows = |sketch: &Sketch| grows(sketch, 1);
            let done = self.change_shared(name, wanted, grows, make, |sketch, edits| work(sketch, edits, 1));
            return done.map(|(worked, changed)| (Some(worked), changed));
        }
        let before = self.sole_cell(name);
        let hash = self.table.hash(name.bytes());
        let Some(cell) = before else {
            let mut sketch = self.over_time(name, wanted.kind, make()?)?;
            if let Sketch::Ring(ring) = &sketch {
                return self.change_ring((name, None), ring, when, grows, work);
            }
            let mut edits = Fresh::take();
            self.check_memory(sketch.memory() as u64 + grows(&sketch, 1))?;
            let begin = Begin::of(&sketch);
            let worked = work(&mut sketch, &mut edits.0, 1)?;
            self.write_new(name, None, sketch, Some((begin, &edits.0)));
            return Ok((Some(worked), true));
        };
        let body = self.held.shard(self.table.shard_of(hash)).body_mut(name.bytes()).ok_or(wanted.refusal())?;
        if !wanted.takes(known(body.sketch())) {
            return Err(wanted.refusal());
        }
        if let Sketch::Ring(ring) = body.sketch() {
            let ring = ring.clone();
            return self.change_ring((name, Some(cell)), &ring, when, grows, work);
        }
        if self.memory.is_some() {
            let grows = grows(body.sketch(), 1);
            self.check_growth(grows)?;
        }
        let body = self.held.shard(self.table.shard_of(hash)).body_mut(name.bytes()).ok_or(wanted.refusal())?;
        let mut edits = Fresh::take();
        let length = body.bytes().len();
        let worked = work(body.sketch_mut(), &mut edits.0, 1)?;
        let changed = !edits.0.is_empty();
        if changed {
            body.note(length, &edits.0);
            self.write_changed(name, cell, None, &edits.0);
        }
        Ok((Some(worked), changed))
    }

    /// Writes down what a merge has made of a sketch that was there, or was not.
    fn write_merged(
        &mut self,
        name: Name<'_>,
        before: Option<Cell>,
        merged: Sketch,
        edits: &Edits,
    ) -> Result<(), Refusal> {
        match before {
            Some(cell) if !edits.is_empty() => {
                let length = self.body(name).map_or(0, |body| body.bytes().len());
                self.check_growth(merged.bytes().len().saturating_sub(length) as u64)?;
                self.write_changed(name, cell, Some(merged), edits);
            }
            Some(_) => {}
            None => {
                self.check_memory(merged.memory() as u64)?;
                self.write_new(name, None, merged, None);
            }
        }
        Ok(())
    }

    /// Makes a sketch where there is no counter.
    fn make(&mut self, name: Name<'_>, kind: Kind, sketch: Sketch) -> Result<Reply, Refusal> {
        if self.sole_cell(name).is_some() {
            return Err(Refusal::SketchExists { kind });
        }
        if self.picking.is_some() {
            let wanted = Wanted { kind, dialect: Dialect::Native };
            return self.change_shared(name, wanted, |_| 0, || Ok(sketch), |_, _| Ok(())).map(|_| Reply::Ok);
        }
        let sketch = self.over_time(name, kind, sketch)?;
        self.check_memory(sketch.memory() as u64)?;
        let begin = Begin::of(&sketch);
        self.write_new(name, None, sketch, Some((begin, &Edits::new())));
        Ok(Reply::Ok)
    }

    /// Whether there is memory for a sketch that is made, and takes so many bytes.
    pub(super) fn check_memory(&self, bytes: u64) -> Result<(), Refusal> {
        let Some((table_bytes_max, bytes_max)) = self.memory else { return Ok(()) };
        let fits = self.table.bytes() + bytes <= table_bytes_max
            && self.table.bodies_bytes() + bytes <= table_bytes_max / BODIES_SHARE;
        if fits { Ok(()) } else { Err(Refusal::NoMemory { bytes_max }) }
    }

    /// Whether there is memory for a sketch that becomes longer by so many bytes; one that does not goes on whatever there is.
    pub(super) fn check_growth(&self, bytes: u64) -> Result<(), Refusal> {
        let Some((table_bytes_max, bytes_max)) = self.memory.filter(|_| bytes > 0) else { return Ok(()) };
        let fits = self.table.bodies_bytes() + bytes <= bodies_bytes_max(table_bytes_max);
        if fits { Ok(()) } else { Err(Refusal::NoMemory { bytes_max }) }
    }

    /// Writes down a body that has changed by these edits: noted already, unless this is another sketch in its place.
    pub(super) fn write_changed(&mut self, name: Name<'_>, cell: Cell, other: Option<Sketch>, edits: &Edits) {
        let cell = Cell { value: cell.value + 1, ..cell };
        let (hash, before) = self.put(name, cell);
        let shard = self.held.shard(self.table.shard_of(hash));
        let body = shard.body_mut(name.bytes()).expect("a cell of the same epoch keeps its body");
        if let Some(other) = other {
            let length = body.bytes().len();
            *body.sketch_mut() = other;
            body.note(length, edits);
        }
        body.version = cell.value as u64;
        let unsure = !std::mem::replace(&mut body.journaled, before.is_some());
        if let Some(before) = before {
            let Cell { epoch, value, expires_at } = cell;
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 1, before, own: &[] };
            self.draft.push(self.now, &entry);
            // Edits that come to more than what they lead to are of no use.
            let whole = unsure || edits.is_whole() || edits_bytes(edits) > EDIT_OVERHEAD_BYTES_MAX + body.bytes().len();
            let change = (body.kind(), body.version, whole);
            let whose = (name.bytes(), 0);
            match whole {
                true => self.draft.push_sketch(self.now, whose, change, [all_of(body.bytes())].into_iter()),
                false => self.draft.push_sketch(self.now, whose, change, edits.iter().map(packed)),
            }
        }
        shard.note_body(name.bytes());
        self.table.note_bytes(shard);
    }

    /// The cell of a counter was written down: if it is a sketch, and the journal does not have all of its body, it gets that, too.
    pub(crate) fn write_unjournaled(&mut self, name: Name<'_>) {
        let hash = self.table.hash(name.bytes());
        if self.picking.is_some() {
            // What is shown is nobody's to write down; of what this node says, `share` sees to that.
            return;
        }
        let shard = self.held.shard(self.table.shard_of(hash));
        if shard.body(name.bytes()).is_none_or(Body::is_journaled) {
            return;
        }
        let Some(body) = shard.body_mut(name.bytes()) else { return };
        Told { now: self.now, name: name.bytes(), draft: self.draft }.push_unjournaled(body);
    }

    /// Writes down a sketch that is made, with this cell or else one that a new counter has; and how it came to be, if that is known.
    fn write_new(&mut self, name: Name<'_>, cell: Option<Cell>, sketch: Sketch, way: Option<(Begin, &Edits)>) {
        let cell = cell.unwrap_or_else(|| self.with_value(name, None, 1));
        let (hash, before) = self.put(name, cell);
        let Cell { epoch, value, expires_at } = cell;
        let mut body = Body::new(sketch, epoch, value as u64);
        body.journaled = before.is_some();
        if let Some(before) = before {
            let entry =
                Entry::Cell { name: name.bytes(), epoch, value, expires_at, count: 1, sum: 1, before, own: &[] };
            self.draft.push(self.now, &entry);
            let change = (body.kind(), body.version, true);
            // A large one that was counted in right away is nothing but zeros in between.
            let shorter = |(begin, edits): &(Begin, &Edits)| {
                let way = EDIT_OVERHEAD_BYTES_MAX + begin.bytes.len() + edits_bytes(edits);
                let all = body.bytes();
                // Of a large one the zeros at the end are not counted: that would be to read it.
                let all = if all.len() <= EDITS_BYTES_MAX { without_zeros(all) } else { all };
                !edits.is_whole() && way < all.len()
            };
            match way.filter(shorter) {
                Some((begin, edits)) => {
                    let way = Way { begin: Some(begin.edit()), edits: edits.iter() };
                    self.draft.push_sketch(self.now, (name.bytes(), 0), change, way);
                }
                None => {
                    let all = [all_of(body.bytes())].into_iter();
                    self.draft.push_sketch(self.now, (name.bytes(), 0), change, all);
                }
            }
        }
        let shard = self.held.shard(self.table.shard_of(hash));
        shard.put_body(hash, name.bytes(), body);
        self.table.note_bytes(shard);
        self.drop_if_past(name, cell);
    }
}

/// What a sketch is.
pub fn known(sketch: &Sketch) -> KindAndDialect {
    use quipu_sketch::Kind as Sort;
    let sort = if let Sketch::Ring(ring) = sketch { ring.kind() } else { sketch.kind() };
    let (kind, dialect) = match sort {
        Sort::Hll => (Kind::Unique, Dialect::Redis),
        Sort::Cms => (Kind::Frequency, Dialect::Redis),
        Sort::Frequency => (Kind::Frequency, Dialect::Native),
        Sort::TopK => (Kind::Top, Dialect::Redis),
        Sort::Top => (Kind::Top, Dialect::Native),
        _ => (Kind::Unique, Dialect::Native),
    };
    KindAndDialect { kind, dialect }
}

fn as_hll(sketch: &Sketch) -> Option<&Hll> {
    if let Sketch::Hll(hll) = sketch { Some(hll) } else { None }
}

fn as_unique(sketch: &Sketch) -> Option<&Unique> {
    if let Sketch::Unique(unique) = sketch { Some(unique) } else { None }
}

/// A sketch of frequencies of this size.
fn frequency(size: FrequencySize, dialect: Dialect) -> Result<Sketch, Refusal> {
    let update = match dialect {
        Dialect::Redis => Update::Linear,
        Dialect::Native => Update::Conservative,
    };
    let made = match size {
        FrequencySize::Dimensions { width, depth } => {
            let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            CountMin::by_size(update, number(width), number(depth))
        }
        FrequencySize::Accuracy { error, probability } => CountMin::by_error(update, error.get(), probability.get()),
    };
    let made = made.map_err(refusal)?;
    Ok(match dialect {
        Dialect::Redis => Sketch::Cms(made),
        Dialect::Native => Sketch::Frequency(made),
    })
}

/// Whether these are too many uniques for one command.
fn check_names(names: &[Name<'_>]) -> Result<(), Refusal> {
    if names.len() <= UNION_NAMES_MAX {
        return Ok(());
    }
    Err(Refusal::BadSize { reason: format!("a command takes {UNION_NAMES_MAX} counters of uniques at most") })
}

/// Whether these are too many sketches of uniques, panes of windows among them, to be brought together: a hundred dense ones take some 200 microseconds.
fn check_sketches(count: usize) -> Result<(), Refusal> {
    const SKETCHES_MAX: usize = PANES_MAX as usize + UNION_NAMES_MAX;
    if count <= SKETCHES_MAX {
        return Ok(());
    }
    Err(Refusal::BadSize {
        reason: format!("a command takes {SKETCHES_MAX} sketches of uniques at most, panes included"),
    })
}

/// Whether a command with so many items is too much work for one.
pub fn check_work(items: usize, sketch: &CountMin) -> Result<(), Refusal> {
    if items.saturating_mul(sketch.depth() as usize) <= COMMAND_CELLS_MAX {
        return Ok(());
    }
    Err(Refusal::BadSize {
        reason: format!("a command looks at {COMMAND_CELLS_MAX} cells at most: fewer items at once"),
    })
}

/// A sketch of the most frequent of this size.
fn top(size: TopSize, dialect: Dialect) -> Result<Sketch, Refusal> {
    let TopSize { k, width, depth, decay } = size;
    if k > TOP_ITEMS_MAX {
        return Err(Refusal::BadSize { reason: format!("a list has at most {TOP_ITEMS_MAX} items") });
    }
    let made = Top::reserve(k, width, depth, decay.get()).map_err(refusal)?;
    Ok(match dialect {
        Dialect::Redis => Sketch::TopK(made),
        Dialect::Native => Sketch::Top(made),
    })
}

/// The most bytes that a list can come to by taking items no longer than this.
pub fn widest(top: &Top, longest: usize) -> usize {
    let info = top.info();
    // Of a slot both numbers may get twice as wide, and its item as much room as it needs; of a cell its number.
    top.bytes().len() + info.slots as usize * (8 + longest.next_multiple_of(8).max(8)) + info.cells as usize * 4
}

/// What a sketch was before anything was counted in it.
pub struct Begin {
    length: u32,
    /// Without the zeros at the end.
    bytes: Vec<u8>,
}

impl Begin {
    pub fn of(sketch: &Sketch) -> Begin {
        Begin::of_bytes(sketch.bytes())
    }

    pub fn of_bytes(bytes: &[u8]) -> Begin {
        // All behind the header is zeros: of megabytes that nobody has touched yet, these are not to be the first to be.
        let header = &bytes[..bytes.len().min(HEADER_BYTES)];
        Begin { length: bytes.len() as u32, bytes: without_zeros(header).to_vec() }
    }

    /// How many bytes it takes in a record.
    pub fn len(&self) -> usize {
        EDIT_OVERHEAD_BYTES_MAX + self.bytes.len()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn edit(&self) -> PackedEdit<'_> {
        PackedEdit { at: 0, removed: 0, length: self.length, bytes: &self.bytes }
    }
}

/// A beginning, and what came after it.
pub struct Way<'b, I> {
    pub begin: Option<PackedEdit<'b>>,
    pub edits: I,
}

impl<'b, I: ExactSizeIterator<Item = Edit<'b>>> Iterator for Way<'b, I> {
    type Item = PackedEdit<'b>;

    fn next(&mut self) -> Option<PackedEdit<'b>> {
        self.begin.take().or_else(|| self.edits.next().map(packed))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let length = self.edits.len() + usize::from(self.begin.is_some());
        (length, Some(length))
    }
}

impl<'b, I: ExactSizeIterator<Item = Edit<'b>>> ExactSizeIterator for Way<'b, I> {}

pub fn packed(edit: Edit<'_>) -> PackedEdit<'_> {
    PackedEdit { at: edit.at, removed: edit.removed, length: edit.bytes.len() as u32, bytes: edit.bytes }
}

/// All of a body, as the only edit of it.
pub fn all_of(bytes: &[u8]) -> PackedEdit<'_> {
    PackedEdit { at: 0, removed: 0, length: bytes.len() as u32, bytes }
}

/// The most bytes that these edits take in a record.
pub fn edits_bytes(edits: &Edits) -> usize {
    edits.len() * EDIT_OVERHEAD_BYTES_MAX + edits.bytes_len()
}

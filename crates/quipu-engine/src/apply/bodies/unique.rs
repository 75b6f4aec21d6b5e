//! Sketches of uniques: what is observed, counted, brought together and compared, and the strings
//! that Redis knows them by.
//!
//! In: parts of a command. Out: a reply, and what changed.

use std::borrow::Cow;

use quipu_model::{Dialect, Estimate, Kind, Millis, Name, Refusal, Relation, Reply, SetString};
use quipu_sketch::window::PANES_MAX;
use quipu_sketch::{Edits, Hll, Sketch, Unique};

use crate::apply::Run;
use crate::apply::bodies::answer::{estimate, interval};
use crate::apply::bodies::apply::{Wanted, known};
use crate::apply::bodies::change::PooledEdits;
use crate::apply::bodies::room::UNIQUE_BYTES_MAX;
use crate::apply::bodies::time::When;

/// Most names of a union or a merge of uniques: so many dense ones are counted in half a
/// millisecond and merged in some two, with their shards held.
const UNION_NAMES_MAX: usize = 256;

impl Run<'_, '_> {
    pub(super) fn observe(
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
            self.change_sketch(name, Wanted { kind: Kind::Unique, dialect }, when, grows, make, |sketch, edits, _| {
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

    pub(super) fn count_unique(&mut self, names: &[Name<'_>], dialect: Dialect) -> Result<Estimate, Refusal> {
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
            ([], []) => Ok(Estimate::exact(0)),
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

    pub(super) fn relate_unique(&mut self, names: &[Name<'_>; 2], relation: Relation) -> Result<Estimate, Refusal> {
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

    pub(super) fn merge_unique(&mut self, names: &[Name<'_>], dialect: Dialect) -> Result<Reply, Refusal> {
        check_names(names)?;
        let Some((into, from)) = names.split_first() else { return Ok(Reply::Ok) };
        let wanted = Wanted { kind: Kind::Unique, dialect };
        self.close_lanes(*into);
        let from: Vec<Name<'_>> = from.iter().filter(|name| *name != into).copied().collect();
        self.look_at(names);
        if self.picker.is_some() {
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
        let mut edits = PooledEdits::take();
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

    pub(super) fn set_string(&mut self, set: &SetString<'_>) -> Result<Reply, Refusal> {
        let hll = Hll::from_redis_string(set.bytes).map_err(|_| Refusal::CorruptHll)?;
        let SetString { name, condition, expiry, reply_old, .. } = *set;
        self.refuse_over_time(name, Kind::Unique, None)?;
        let sketch = Sketch::Hll(hll);
        self.check_memory(sketch.memory() as u64)?;
        self.replace_counter(name, condition, expiry, reply_old, |run, cell| {
            run.write_new(name, Some(cell), sketch, None)
        })
    }

    /// Works with what is a string to Redis; `None` without a counter.
    pub(super) fn with_string<T>(
        &mut self,
        name: Name<'_>,
        work: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Refusal> {
        let Some(cell) = self.cell(name) else { return Ok(None) };
        match self.body(name).map(|body| body.sketch()) {
            None => Ok(Some(work(cell.value.to_string().as_bytes()))),
            Some(Sketch::Hll(hll)) => Ok(Some(work(hll.redis_string()))),
            Some(sketch) => Err(Refusal::OtherKind { found: known(sketch) }),
        }
    }
}

fn as_hll(sketch: &Sketch) -> Option<&Hll> {
    if let Sketch::Hll(hll) = sketch { Some(hll) } else { None }
}

fn as_unique(sketch: &Sketch) -> Option<&Unique> {
    if let Sketch::Unique(unique) = sketch { Some(unique) } else { None }
}

/// Whether these are too many uniques for one command.
fn check_names(names: &[Name<'_>]) -> Result<(), Refusal> {
    if names.len() <= UNION_NAMES_MAX {
        return Ok(());
    }
    Err(Refusal::BadSize { reason: format!("a command takes {UNION_NAMES_MAX} counters of uniques at most") })
}

/// Whether these are too many sketches of uniques, panes of windows among them, to be brought
/// together: a hundred dense ones take some 200 microseconds.
fn check_sketches(count: usize) -> Result<(), Refusal> {
    const SKETCHES_MAX: usize = PANES_MAX as usize + UNION_NAMES_MAX;
    if count <= SKETCHES_MAX {
        return Ok(());
    }
    Err(Refusal::BadSize {
        reason: format!("a command takes {SKETCHES_MAX} sketches of uniques at most, panes included"),
    })
}

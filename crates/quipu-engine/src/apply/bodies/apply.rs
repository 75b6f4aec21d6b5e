//! Applies what is asked of sketches.
//!
//! In: an admitted command and the locks of its shards. Out: a reply.
//!
//! Not here: what each kind does (`unique`, `frequency`, `top`), how a change is written down
//! (`change`).

use quipu_model::{
    Cell, DUMP_BYTES_MAX, Dialect, FrequencyInfo, Kind, KindAndDialect, Name, Refusal, Reply, SketchCommand,
    SketchDump, TopInfo, TopSize,
};
use quipu_sketch::{Dump, Key, Sketch};

use crate::apply::Run;
use crate::apply::bodies::answer::{integer, string_range};
use crate::apply::bodies::frequency::frequency;
use crate::apply::bodies::time::{Worth, as_top, total};
use crate::apply::bodies::top::top;
use crate::bodies::body_map::Body;
use crate::bodies::together::key_print;

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

    /// The refusal of a counter that is something else: of one without a body, a count.
    pub fn refusal(self, found: KindAndDialect) -> Refusal {
        match (self.kind, self.dialect) {
            (Kind::Unique, Dialect::Redis) => Refusal::NotHll { found },
            _ => Refusal::OtherKind { found },
        }
    }
}

impl Run<'_, '_> {
    /// Applies a command of sketches.
    pub(crate) fn sketch(&mut self, command: &SketchCommand<'_>) -> Result<Reply, Refusal> {
        let (command, at) = command.command_and_time();
        if let Some(name) = command.facts().creates {
            self.check_kind_allowed(name, command.kind())?;
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
                self.make_sketch(*name, Kind::Frequency, sketch)
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
                self.make_sketch(*name, Kind::Top, sketch)
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
                Ok(Reply::TopItems(body.ranked(key, now)?))
            }
            SketchCommand::TopInfo { name, dialect } => {
                let now = self.now;
                let body = self.of_kind(*name, Wanted { kind: Kind::Top, dialect: *dialect })?;
                let (k, (width, depth), decay) = match body.sketch() {
                    Sketch::TopK(list) | Sketch::Top(list) => {
                        let info = list.info();
                        (info.k, (info.width, info.depth), info.decay)
                    }
                    Sketch::Ring(ring) => (ring.k(), ring.table(), ring.list_decay()),
                    _ => return Err(Refusal::WrongKind),
                };
                let decay = quipu_model::Fraction::new(decay).unwrap_or_else(|| TopSize::with_k(1).decay);
                let dialect = known(body.sketch()).dialect;
                Ok(Reply::TopInfo(TopInfo {
                    size: TopSize { k, width, depth, decay },
                    total: total(body, now),
                    dialect,
                }))
            }
        }
    }

    /// What a read replies of a counter: a value, or a string.
    pub(crate) fn shown(&mut self, name: Name<'_>, cell: Option<Cell>) -> Result<Reply, Refusal> {
        let Some(cell) = cell else { return Ok(Reply::Value(None)) };
        match self.body(name).map(|body| body.sketch()) {
            None => Ok(Reply::Value(Some(cell.value))),
            Some(Sketch::Hll(hll)) => Ok(Reply::Bytes(hll.redis_string().into())),
            Some(sketch) => Err(Refusal::OtherKind { found: known(sketch) }),
        }
    }

    /// What a counter that exists is.
    pub(crate) fn kind_of(&mut self, name: Name<'_>) -> KindAndDialect {
        self.body(name).map_or(KindAndDialect::COUNT, |body| known(body.sketch()))
    }

    /// The cell of a count; refused if it is a sketch.
    pub(crate) fn count_of(&mut self, name: Name<'_>, cell: Option<Cell>) -> Result<Option<Cell>, Refusal> {
        match cell.and_then(|_| self.body(name)) {
            Some(body) => Err(Refusal::OtherKind { found: known(body.sketch()) }),
            None => Ok(cell),
        }
    }

    /// The body of a counter that has to exist, and be of this kind.
    pub(super) fn of_kind(&mut self, name: Name<'_>, wanted: Wanted) -> Result<&Body, Refusal> {
        self.cell(name);
        self.peek(name, wanted)?.ok_or(Refusal::NoSketch { kind: wanted.kind })
    }

    /// The body of a counter that was looked at, if it is a sketch.
    pub(super) fn body(&mut self, name: Name<'_>) -> Option<&Body> {
        let hash = self.table.hash(name.bytes());
        self.locks.shard(self.table.shard_of(hash)).body(name.bytes())
    }

    /// The same, of a counter that has to be of this kind if it exists.
    pub(super) fn peek(&self, name: Name<'_>, wanted: Wanted) -> Result<Option<&Body>, Refusal> {
        let hash = self.table.hash(name.bytes());
        let shard = self.locks.peek(self.table.shard_of(hash));
        match shard.body(name.bytes()) {
            Some(body) if wanted.takes(known(body.sketch())) => Ok(Some(body)),
            Some(body) => Err(wanted.refusal(known(body.sketch()))),
            None if !shard.exists(hash, name.bytes()) => Ok(None),
            None => Err(wanted.refusal(KindAndDialect::COUNT)),
        }
    }

    /// Looks at counters, so that those that have expired are gone.
    pub(super) fn look_at(&mut self, names: &[Name<'_>]) {
        for name in names {
            self.cell(*name);
        }
    }

    /// The bodies of all these that exist, one after the other; all were looked at.
    pub(super) fn bodies(&self, names: &[Name<'_>], wanted: Wanted) -> Result<Vec<&Body>, Refusal> {
        let mut bodies = Vec::with_capacity(names.len());
        for name in names {
            bodies.extend(self.peek(*name, wanted)?);
        }
        Ok(bodies)
    }
}

impl Body {
    /// All of it, panes included, hashed under this key; none if it is longer than a dump may be.
    pub fn dump(&self, key: &Key) -> Option<SketchDump> {
        let pane_bytes = |(_, pane): (u32, &Body)| 4 + pane.bytes().len();
        if self.bytes().len() + self.panes().map(pane_bytes).sum::<usize>() > DUMP_BYTES_MAX {
            return None;
        }
        let hashed_by = if let Sketch::Ring(ring) = self.sketch() { ring.kind() } else { self.sketch().kind() };
        Some(SketchDump {
            kind: known(self.sketch()).kind,
            form: self.sketch().kind(),
            key: key_print(key, hashed_by),
            body: Dump::encode(self.sketch(), self.panes().map(|(_, pane)| pane.sketch())),
        })
    }
}

/// What a sketch is.
pub fn known(sketch: &Sketch) -> KindAndDialect {
    use quipu_sketch::SketchKind as Sort;
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

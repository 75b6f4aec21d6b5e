//! Lays the journal over the ledger: what a start does with a directory, and what `inspect` finds in one.
//!
//! In: a ledger, a journal, and the control file that says where it begins. Out: the table they describe together; or why they do not fit, in the words
//! with which a start is refused.
//!
//! Invariant: nothing is written.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use arrayvec::ArrayVec;
use quipu_model::{Cell, Epoch, Incarnation, Ledger, LedgerError, Millis, Vfs};
use quipu_sketch::window::PANES_MAX;

use crate::apply::table::{Look, Table};
use crate::engine::Flush;
use crate::journal::control::Control;
use crate::journal::format::{Before, Entry, Position};
use crate::journal::recover::{Record, Tail, replay, stream_damage};
use crate::journal::segments::Segment;
use crate::journal::{Damage, JournalError};
use crate::namespaces::{Put, Puts, Thinned, ThinnedBy, decode_note, is_of_namespace};
use crate::open::OpenError;
use crate::options::LEDGER_DIR;
use crate::sharing::own::Owned;
use crate::sketches::{Paged, is_of_sketch, own_number};
use crate::tokens::{Applied, Last, Noted};
use crate::watermark::Watermark;

/// What ledger and journal describe together.
pub(crate) struct Overlaid {
    pub(crate) table: Table,
    pub(crate) watermark: Watermark,
    /// The ledger may have cells that are not in the table.
    pub(crate) unloaded: bool,
    /// The newest time in either.
    pub(crate) time: Millis,
    /// How many records were read.
    pub(crate) records: u64,
    /// The newest flush that the ledger has not carried out.
    pub(crate) flush: Flush,
    pub(crate) tail: Tail,
    /// Lives that were registered with a shared store, and when.
    pub(crate) joined: BTreeMap<Incarnation, Millis>,
    /// Tokens that were applied up to then may have been forgotten.
    pub(crate) horizon: Millis,
    /// What was said of namespaces at run time.
    pub(crate) namespaces: Puts,
    /// What is remembered of namespaces that are or were sampled.
    pub(crate) thinned: ThinnedBy,
}

/// What the ledger knows, if it knows anything; an error if that does not fit the journal.
pub(crate) fn read_watermark(
    ledger: &dyn Ledger,
    dir: &Path,
    control: &Control,
) -> Result<Option<Watermark>, OpenError> {
    let refused = |source| OpenError::Ledger { dir: dir.to_owned(), source };
    let damaged = |reason: String| refused(LedgerError::Damaged(reason));
    let start = control.start;
    let Some(bytes) = ledger.watermark().map_err(refused)? else {
        return match start {
            Position(0) => Ok(None),
            start => Err(damaged(format!("it is empty, but the journal begins at position {start}"))),
        };
    };
    let watermark = Watermark::decode(&bytes).ok_or_else(|| damaged("its watermark makes no sense".to_owned()))?;
    if watermark.log != control.log {
        return Err(damaged("it belongs to another data directory".to_owned()));
    }
    if start > watermark.position {
        let position = watermark.position;
        let reason =
            format!("it knows the journal up to position {position}, but the journal begins at position {start}");
        return Err(damaged(reason));
    }
    Ok(Some(watermark))
}

/// Reads the journal from its start, over what the ledger has of each shard; `visit` sees every whole record. A ledger that knows nothing yet gets
/// a fresh watermark.
#[expect(clippy::too_many_arguments, reason = "a directory, and what was found in it so far")]
pub(crate) fn lay_over(
    vfs: &dyn Vfs,
    dir: &Path,
    control: &Control,
    segments: &[Segment],
    ledger: &dyn Ledger,
    at_rest: Option<Watermark>,
    fresh: impl FnOnce() -> Watermark,
    mut visit: impl FnMut(&Record<'_>) -> Result<(), Damage>,
) -> Result<Overlaid, OpenError> {
    let unloaded = at_rest.is_some();
    let watermark = at_rest.unwrap_or_else(fresh);
    let table = Table::new(watermark.shards.len(), watermark.seed);
    for (index, mark) in watermark.shards.iter().enumerate() {
        table.with(index, |shard| {
            (shard.newest, shard.floor) = (mark.newest, mark.floor);
            shard.set_counters(mark.counters);
            (shard.epoch_newest, shard.rest_deadline) = (mark.epoch_newest, mark.deadline);
            shard.unloaded = unloaded;
        });
    }
    let (horizon, namespaces, thinned) = load_notes(&table, ledger, dir)?;
    let flush = Flush::default();
    let (time, joined) = (watermark.time, watermark.joined.clone());
    let mut restored = Restored {
        table: &table,
        ledger,
        dir,
        watermark: &watermark,
        time,
        records: 0,
        flush,
        joined,
        namespaces,
        thinned,
        coming: Coming::default(),
    };
    let tail = replay(vfs, control, segments, |record| {
        visit(record)?;
        restored.take(segments, record)
    })?;
    restored.restore_coming().map_err(JournalError::from)?;
    let Restored { time, records, flush, joined, namespaces, thinned, .. } = restored;
    check_bodies(&table, ledger, dir)?;
    if tail.position < watermark.newest() {
        // What the ledger has was synced in the journal first.
        let newest = watermark.newest();
        let reason = format!("the journal ends here, though the ledger has what it said up to position {newest}");
        return Err(JournalError::from(stream_damage(segments, tail.position, reason)).into());
    }
    Ok(Overlaid { table, watermark, unloaded, time, records, flush, tail, joined, horizon, namespaces, thinned })
}

/// Takes the tokens at rest, all of them, since each retry asks for one; and all bodies of sketches. Returns the horizon, what was said of namespaces, and what was sampled in
/// them.
fn load_notes(table: &Table, ledger: &dyn Ledger, dir: &Path) -> Result<(Millis, Puts, ThinnedBy), OpenError> {
    let (mut horizon, mut namespaces, mut thinned, mut damaged) = (Millis(0), Puts::new(), ThinnedBy::new(), None);
    let visited = ledger.notes(&mut |key, value| {
        if Thinned::is_of(key) {
            match Thinned::of_note(key, value) {
                Some((name, known)) => drop(thinned.insert(name, known)),
                None => damaged = Some("what it says of a namespace that was sampled makes no sense"),
            }
            return if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        if is_of_namespace(key) {
            match decode_note(key, value) {
                Some((name, put)) => drop(namespaces.insert(name, put)),
                None => damaged = Some("what it says of a namespace makes no sense"),
            }
            return if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        if is_of_sketch(key) {
            damaged = load_page(table, key, value).err();
            return if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        match Noted::decode(key, value) {
            Some(Noted::Horizon(at)) => horizon = at,
            Some(Noted::Token(key, applied)) => {
                table.with(table.shard_of(key.hash()), |shard| shard.book_mut().load_token(key, applied));
            }
            Some(Noted::Producer(key, last)) => {
                table.with(table.shard_of(key.hash()), |shard| shard.book_mut().load_producer(key, last));
            }
            None => damaged = Some("a token in it makes no sense"),
        }
        if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let refused = |source| OpenError::Ledger { dir: dir.to_owned(), source };
    visited.map_err(refused)?;
    match damaged {
        Some(reason) => Err(refused(LedgerError::Damaged(reason.to_owned()))),
        None => Ok((horizon, namespaces, thinned)),
    }
}

fn load_page(table: &Table, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
    let paged = Paged::decode(key, value).ok_or("a page of a sketch in it makes no sense")?;
    if paged.hash != table.hash(paged.name) {
        return Err("a page of a sketch in it is not where it is looked for");
    }
    table.with(table.shard_of(paged.hash), |shard| shard.load_page(&paged))
}

/// Looks at all bodies as sketches, and whether each is that of its cell.
fn check_bodies(table: &Table, ledger: &dyn Ledger, dir: &Path) -> Result<(), OpenError> {
    let refused = |source| OpenError::Ledger { dir: dir.to_owned(), source };
    let damaged = |name: &[u8], reason: &str| {
        refused(LedgerError::Damaged(format!(
            "the sketch {}, with what the journal says of it: {reason}",
            name.escape_ascii()
        )))
    };
    for index in 0..table.shard_count() {
        table.with(index, |shard| {
            shard.wake_bodies().map_err(|(name, reason)| damaged(&name, &reason))?;
            let bodies: Vec<_> =
                shard.shelf().iter().map(|(name, body)| (Box::<[u8]>::from(name), body.epoch, body.version)).collect();
            for (name, epoch, version) in bodies {
                let hash = table.hash(&name);
                let cell = match shard.look(hash, &name) {
                    Look::Cell(cell) => Some(cell),
                    Look::Absent => None,
                    Look::Unknown => ledger.get(hash, &name).map_err(refused)?,
                };
                if cell.is_none_or(|cell| (cell.epoch, cell.value as u64) != (epoch, version)) {
                    return Err(damaged(&name, "its cell is missing, or of another version"));
                }
            }
            let own: Vec<_> = shard
                .own_shelves()
                .iter()
                .map(|(name, number, body)| (Box::<[u8]>::from(name), number, body.epoch, body.version))
                .collect();
            for (name, number, epoch, version) in own {
                let hash = table.hash(&name);
                let known = shard.own(hash, &name).map(|owned| owned.of_body(number).map(|cell| cell.own));
                let said = match known {
                    Some(said) => said,
                    None if shard.has_slot(hash, &name) => None,
                    None => {
                        let bytes = ledger.own(hash, &name).map_err(refused)?;
                        bytes.and_then(|bytes| Owned::decode(&bytes)?.of_body(number).map(|cell| cell.own))
                    }
                };
                if said.is_none_or(|own| (own.epoch, own.value) != (epoch, i128::from(version))) {
                    return Err(damaged(&name, "this node's cell of it is missing, or of another version"));
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Lays the journal over the ledger: every entry beyond what the ledger has of its shard replaces what was known of its counter.
struct Restored<'t> {
    table: &'t Table,
    ledger: &'t dyn Ledger,
    dir: &'t Path,
    watermark: &'t Watermark,
    time: Millis,
    records: u64,
    /// The newest flush that the ledger has not carried out.
    flush: Flush,
    joined: BTreeMap<Incarnation, Millis>,
    namespaces: Puts,
    thinned: ThinnedBy,
    coming: Coming,
}

/// Entries of counters that have been read and not restored yet. They are restored together, in order, and before anything else is: so the memory of all of them is asked for before any of it is waited for, which
/// is nearly all of the time that a replay takes otherwise.
#[derive(Default)]
struct Coming {
    entries: ArrayVec<Next, COMING_MAX>,
    /// Their names, one behind the other.
    names: Vec<u8>,
}

/// Most of them: about so many lines of memory a processor waits for at once.
const COMING_MAX: usize = 32;

/// What an entry says of a counter.
struct Next {
    end: Position,
    hash: u64,
    name_bytes: usize,
    cell: Option<Cell>,
    before: Before,
    floor: Epoch,
    own: Option<Box<Owned>>,
}

impl Restored<'_> {
    fn take(&mut self, segments: &[Segment], record: &Record<'_>) -> Result<(), Damage> {
        self.time = self.time.max(record.body.time);
        self.records += 1;
        let end = record.position.plus(record.bytes as u64);
        let is_flush = |(_, entry): &(usize, Result<Entry<'_>, _>)| matches!(entry, Ok(Entry::Flush { .. }));
        // The ledger has carried out this record's flush: what was changed before it is not there any more.
        let carried_out = if end <= self.watermark.cleared {
            record.body.entries().enumerate().filter(is_flush).last()
        } else {
            None
        };
        let carried_out = carried_out.map_or(0, |(index, _)| index);
        for (index, entry) in record.body.entries().enumerate() {
            match entry.map_err(|bad| stream_damage(segments, record.position, bad.to_string()))? {
                Entry::Cell { name, epoch, value, expires_at, before, own, .. } => {
                    let cell = Cell { epoch, value, expires_at };
                    let own = owned(own).map_err(|bad| stream_damage(segments, record.position, bad))?;
                    self.restore_soon(end, name, Some(cell), before, Epoch::FIRST, own)?;
                }
                Entry::Gone { name, epoch, before, own } => {
                    let own = owned(own).map_err(|bad| stream_damage(segments, record.position, bad))?;
                    self.restore_soon(end, name, None, before, epoch, own)?;
                }
                Entry::Flush { epoch } => {
                    self.restore_coming()?;
                    self.flush(record.position, end, epoch);
                }
                Entry::Sketch { .. } if index < carried_out => {}
                Entry::Sketch { name, kind, version, whole, edits, pane } => {
                    self.restore_coming()?;
                    let hash = self.table.hash(name);
                    let index = self.table.shard_of(hash);
                    if end > self.watermark.shards[index].newest {
                        let change = (kind, version, whole);
                        let pane = u32::try_from(pane).unwrap_or(u32::MAX);
                        let restored = self.table.with(index, |shard| match own_number(pane) {
                            Some(number) => shard.restore_own_body(hash, (name, number), change, &edits),
                            None if pane <= PANES_MAX => shard.restore_body(hash, (name, pane), change, &edits),
                            None => Err("a pane of a sketch beyond all slots"),
                        });
                        restored.map_err(|bad| stream_damage(segments, record.position, bad.to_owned()))?;
                    }
                }
                Entry::Joined { writer, at } => drop(self.joined.insert(writer.incarnation, at)),
                Entry::Start { .. } => {}
                // Whatever the ledger has: that is what one of these records said, this one or a later one, which comes again.
                Entry::Namespace { name, settings } => {
                    self.namespaces.insert(name.into(), Put { settings: *settings, at: record.body.time });
                }
                Entry::Thinned { name, thinned } => drop(self.thinned.insert(name.into(), thinned)),
                Entry::Token { key, digest, number, outcome } => {
                    self.restore_coming()?;
                    let index = self.table.shard_of(key.hash());
                    if end > self.watermark.shards[index].newest {
                        let at = record.body.time;
                        self.table.with(index, |shard| {
                            match number {
                                None => shard.book_mut().apply(key, Applied { at, digest, outcome }),
                                Some(n) => shard.book_mut().follow(key, Last { n, digest, outcome }),
                            }
                            shard.newest = end;
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Restores a counter, unless the ledger has this entry already: now, or together with those that come.
    fn restore_soon(
        &mut self,
        end: Position,
        name: &[u8],
        cell: Option<Cell>,
        before: Before,
        floor: Epoch,
        own: Option<Box<Owned>>,
    ) -> Result<(), Damage> {
        let hash = self.table.hash(name);
        let index = self.table.shard_of(hash);
        if end <= self.watermark.shards[index].newest {
            return Ok(());
        }
        self.table.prefetch(index);
        let Coming { entries, names } = &mut self.coming;
        names.extend_from_slice(name);
        entries.push(Next { end, hash, name_bytes: name.len(), cell, before, floor, own });
        if entries.is_full() { self.restore_coming() } else { Ok(()) }
    }

    /// Restores the counters whose entries have been read.
    fn restore_coming(&mut self) -> Result<(), Damage> {
        let Restored { table, ledger, dir, coming: Coming { entries, names }, .. } = self;
        // In rounds, as adds are run: what one needs next has come while the others were asked for theirs.
        for Next { hash, .. } in &*entries {
            table.with(table.shard_of(*hash), |shard| shard.prefetch_place(*hash));
        }
        let mut guesses = ArrayVec::<_, COMING_MAX>::new();
        for Next { hash, .. } in &*entries {
            guesses.push(table.with(table.shard_of(*hash), |shard| shard.guess(*hash)));
        }
        for (Next { hash, .. }, guess) in entries.iter().zip(&guesses) {
            if let Some(guess) = *guess {
                table.with(table.shard_of(*hash), |shard| shard.prefetch(guess));
            }
        }
        let mut names_left = &names[..];
        for (next, guess) in entries.drain(..).zip(guesses) {
            let (name, rest) = names_left.split_at(next.name_bytes);
            names_left = rest;
            let Next { end, hash, cell, before, floor, own, .. } = next;
            table.with(table.shard_of(hash), |shard| {
                shard.newest = end;
                // Most often it is a count that was restored before, and nothing but its value is another one. Guesses hold, since nothing is removed here.
                if let (Some(guess), Some(Cell { epoch, value, expires_at: None }), None) = (guess, cell, &own)
                    && shard.look_plain(guess, name).is_some_and(|(_, known)| known == epoch)
                {
                    shard.set_value(guess, value);
                    return Ok(());
                }
                let existed = match (shard.look(hash, name), before) {
                    (Look::Cell(_), _) => true,
                    (Look::Absent, _) => false,
                    (Look::Unknown, Before::Present) => true,
                    (Look::Unknown, Before::Absent) => false,
                    (Look::Unknown, Before::Unsure) => is_at_rest(*ledger, dir, hash, name)?,
                };
                shard.restore(hash, name, cell, existed, own);
                shard.floor = shard.floor.max(floor);
                Ok(())
            })?;
        }
        names.clear();
        Ok(())
    }

    fn flush(&mut self, start: Position, end: Position, epoch: Epoch) {
        for (index, _) in self.watermark.shards.iter().enumerate().filter(|(_, mark)| mark.newest < end) {
            self.table.with(index, |shard| {
                shard.clear();
                shard.floor = shard.floor.max(epoch);
                shard.newest = end;
            });
        }
        if end > self.watermark.cleared {
            self.flush = Flush { count: 0, start, end };
        }
    }
}

/// Whether the ledger has a counter.
fn is_at_rest(ledger: &dyn Ledger, dir: &Path, hash: u64, name: &[u8]) -> Result<bool, Damage> {
    let found = ledger.get(hash, name);
    found.map(|cell| cell.is_some()).map_err(|error| Damage {
        file: dir.join(LEDGER_DIR),
        offset: 0,
        position: None,
        reason: error.to_string(),
    })
}

/// What this node says of a counter on a shared store, from an entry.
fn owned(bytes: &[u8]) -> Result<Option<Box<Owned>>, String> {
    match bytes {
        [] => Ok(None),
        bytes => Owned::decode(bytes)
            .map(|owned| Some(Box::new(owned)))
            .ok_or_else(|| "own cells that make no sense".to_owned()),
    }
}

//! Lays the journal over the ledger: what a start does with a directory, and what `inspect` finds in one.
//!
//! In: a ledger, a journal, and the control file that says where it begins. Out: the table they describe together; or why they do not fit, in the words
//! with which a start is refused.
//!
//! Invariant: nothing is written.

mod piles;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use quipu_model::{Incarnation, Ledger, LedgerError, Millis, Vfs};

use self::piles::{Piles, Restored, pile_up};

use crate::apply::table::{Look, Table};
use crate::engine::Flush;
use crate::journal::control::Control;
use crate::journal::format::{Entry, Position};
use crate::journal::recover::{Record, Tail, replay, stream_damage};
use crate::journal::segments::Segment;
use crate::journal::{Damage, JournalError};
use crate::namespaces::{Put, Puts, Thinned, ThinnedBy, decode_note, is_of_namespace};
use crate::open::OpenError;
use crate::sharing::own::Owned;
use crate::sketches::{Paged, is_of_sketch};
use crate::tokens::Noted;
use crate::watermark::Watermark;

/// A directory, and what was found in it so far.
pub(crate) struct Found<'a> {
    pub(crate) vfs: &'a dyn Vfs,
    pub(crate) dir: &'a Path,
    pub(crate) control: &'a Control,
    pub(crate) segments: &'a [Segment],
    pub(crate) ledger: &'a dyn Ledger,
    /// Threads that restore while the journal is read; `None`: as many as are worth it.
    pub(crate) threads: Option<usize>,
}

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
pub(crate) fn lay_over(
    found: Found<'_>,
    at_rest: Option<Watermark>,
    fresh: impl FnOnce() -> Watermark,
    mut visit: impl FnMut(&Record<'_>) -> Result<(), Damage>,
) -> Result<Overlaid, OpenError> {
    let Found { vfs, dir, control, segments, ledger, threads } = found;
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
    let (time, joined) = (watermark.time, watermark.joined.clone());
    let mut taken = Taken {
        table: &table,
        segments,
        watermark: &watermark,
        newest_at_rest: watermark.newest(),
        time,
        records: 0,
        flush: Flush::default(),
        joined,
        namespaces,
        thinned,
    };
    let restored = Restored::new(&table, ledger, dir, segments, &watermark);
    let (read, restored) = pile_up(&restored, threads, |piles| {
        replay(vfs, control, segments, |record| {
            visit(record)?;
            taken.take(record, piles)
        })
    });
    // What was piled up came before whatever the reading met.
    restored.map_err(JournalError::from)?;
    let tail = read?;
    let Taken { time, records, flush, joined, namespaces, thinned, .. } = taken;
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

/// Takes what the journal says: entries of shards that the ledger does not have are piled up, to be restored; the rest is kept here.
struct Taken<'t> {
    table: &'t Table,
    segments: &'t [Segment],
    watermark: &'t Watermark,
    /// What the ledger has of any shard ends before this.
    newest_at_rest: Position,
    time: Millis,
    records: u64,
    /// The newest flush that the ledger has not carried out.
    flush: Flush,
    joined: BTreeMap<Incarnation, Millis>,
    namespaces: Puts,
    thinned: ThinnedBy,
}

impl Taken<'_> {
    fn take(&mut self, record: &Record<'_>, piles: &mut Piles<'_, '_>) -> Result<(), Damage> {
        self.time = self.time.max(record.body.time);
        self.records += 1;
        let end = record.end();
        let is_flush = |(_, entry): &(usize, Result<Entry<'_>, _>)| matches!(entry, Ok(Entry::Flush { .. }));
        // The ledger has carried out this record's flush: what was changed before it is not there any more.
        let carried_out = if end <= self.watermark.cleared {
            record.body.entries().enumerate().filter(is_flush).last()
        } else {
            None
        };
        let carried_out = carried_out.map_or(0, |(index, _)| index);
        let (mut entries, mut index) = (record.body.take_entries(), 0);
        loop {
            while let Some(count) = entries.next_count() {
                index += 1;
                let hash = self.table.hash(count.name);
                if self.is_new(hash, end) {
                    piles.push_count(hash, record, &count);
                }
            }
            let Some(entry) = entries.next() else { return Ok(()) };
            let (entry, bytes) = entry.map_err(|bad| stream_damage(self.segments, record.position, bad.to_string()))?;
            index += 1;
            self.take_entry(record, entry, bytes, index <= carried_out, piles);
        }
    }

    /// Takes an entry of any kind; whether a flush that the ledger has carried out comes behind it.
    fn take_entry(
        &mut self,
        record: &Record<'_>,
        entry: Entry<'_>,
        bytes: &[u8],
        is_carried_out: bool,
        piles: &mut Piles<'_, '_>,
    ) {
        let hash = match entry {
            Entry::Sketch { .. } if is_carried_out => return,
            Entry::Cell { name, .. } | Entry::Gone { name, .. } | Entry::Sketch { name, .. } => self.table.hash(name),
            Entry::Token { key, .. } => key.hash(),
            Entry::Flush { .. } => return self.flush(record, bytes, piles),
            Entry::Joined { writer, at } => {
                self.joined.insert(writer.incarnation, at);
                return;
            }
            Entry::Start { .. } => return,
            // Whatever the ledger has: that is what one of these records said, this one or a later one, which comes again.
            Entry::Namespace { name, settings } => {
                self.namespaces.insert(name.into(), Put { settings: *settings, at: record.body.time });
                return;
            }
            Entry::Thinned { name, thinned } => {
                self.thinned.insert(name.into(), thinned);
                return;
            }
        };
        if self.is_new(hash, record.end()) {
            piles.push(hash, record, bytes);
        }
    }

    /// Whether the ledger does not have what a record that ends there says of the shard of a hash.
    #[inline]
    fn is_new(&self, hash: u64, end: Position) -> bool {
        // Most records are newer than all that it has, and need not ask for the shard.
        end > self.newest_at_rest || end > self.watermark.shards[self.table.shard_of(hash)].newest
    }

    fn flush(&mut self, record: &Record<'_>, entry: &[u8], piles: &mut Piles<'_, '_>) {
        let end = record.end();
        if self.watermark.shards.iter().any(|mark| mark.newest < end) {
            piles.push_everywhere(record, entry);
        }
        if end > self.watermark.cleared {
            self.flush = Flush { count: 0, start: record.position, end };
        }
    }
}

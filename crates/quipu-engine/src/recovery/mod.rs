//! Recovers a node's state by replaying the journal over the ledger, for a start and for `inspect`.
//!
//! In: a ledger, a journal, and the control file with the journal's start. Out: the table that they
//! describe together. If they do not fit: the error with which a start refuses them.
//!
//! Invariant: recovery writes nothing.

pub(crate) mod open;
mod replay_batches;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use quipu_model::{Incarnation, Ledger, LedgerError, Millis, Vfs};

use self::open::OpenError;
use self::replay_batches::{ReplayBatches, ReplayTarget, replay_parallel};
use crate::bodies::own_cells::OwnCells;
use crate::bodies::stored_page::{StoredPage, is_sketch_key};
use crate::core::FlushMark;
use crate::core::watermark::Watermark;
use crate::journal::control::ControlState;
use crate::journal::format::{Entry, Position};
use crate::journal::reader::{Record, Tail, damage_at, visit_records};
use crate::journal::segments::Segment;
use crate::journal::{Damage, JournalError};
use crate::namespaces::{
    RuntimeSettings, RuntimeSettingsMap, SamplingRecord, SamplingRecords, decode_note, is_namespace_key,
};
use crate::table::{Residency, Table};
use crate::tokens::TokenRecord;

/// A directory and its parts found so far.
pub(crate) struct DataDir<'a> {
    pub(crate) vfs: &'a dyn Vfs,
    pub(crate) dir: &'a Path,
    pub(crate) control: &'a ControlState,
    pub(crate) segments: &'a [Segment],
    pub(crate) ledger: &'a dyn Ledger,
    /// Threads that restore while the journal is read; `None`: a sensible number for this machine.
    pub(crate) threads: Option<usize>,
}

/// The state that ledger and journal describe together.
pub(crate) struct RecoveredState {
    pub(crate) table: Table,
    pub(crate) watermark: Watermark,
    /// True if the ledger may have cells that are not in the table.
    pub(crate) unloaded: bool,
    /// The newest time in ledger or journal.
    pub(crate) time: Millis,
    /// Number of records read.
    pub(crate) records: u64,
    /// The newest flush that the ledger has not carried out.
    pub(crate) flush: FlushMark,
    pub(crate) tail: Tail,
    /// Incarnations registered with a shared store, with their registration times.
    pub(crate) joined: BTreeMap<Incarnation, Millis>,
    /// Tokens applied up to this time may have been forgotten.
    pub(crate) horizon: Millis,
    /// Run-time settings of namespaces.
    pub(crate) namespaces: RuntimeSettingsMap,
    /// Records of namespaces that are or were sampled.
    pub(crate) sampling: SamplingRecords,
}

/// Reads the ledger's watermark, if it has one. Returns an error if the watermark does not fit the
/// journal.
pub(crate) fn read_watermark(
    ledger: &dyn Ledger,
    dir: &Path,
    control: &ControlState,
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

/// Reads the journal from its start, over the ledger's state of each shard. `visit` gets every
/// whole record. A ledger without a watermark gets a fresh one.
pub(crate) fn recover(
    data_dir: DataDir<'_>,
    at_rest: Option<Watermark>,
    fresh: impl FnOnce() -> Watermark,
    mut visit: impl FnMut(&Record<'_>) -> Result<(), Damage>,
) -> Result<RecoveredState, OpenError> {
    let DataDir { vfs, dir, control, segments, ledger, threads } = data_dir;
    let unloaded = at_rest.is_some();
    let watermark = at_rest.unwrap_or_else(fresh);
    let table = Table::new(watermark.shards.len(), watermark.seed);
    for (index, mark) in watermark.shards.iter().enumerate() {
        table.with_shard(index, |shard| {
            (shard.newest, shard.floor) = (mark.newest, mark.floor);
            shard.set_counters(mark.counters);
            (shard.epoch_newest, shard.ledger_deadline) = (mark.epoch_newest, mark.deadline);
            shard.unloaded = unloaded;
        });
    }
    let (horizon, namespaces, sampling) = load_aux_records(&table, ledger, dir)?;
    let (time, joined) = (watermark.time, watermark.joined.clone());
    let mut journal_replay = JournalReplay {
        table: &table,
        segments,
        watermark: &watermark,
        newest_at_rest: watermark.newest(),
        time,
        records: 0,
        flush: FlushMark::default(),
        joined,
        namespaces,
        sampling,
    };
    let restored = ReplayTarget::new(&table, ledger, dir, segments, &watermark);
    let (read, restored) = replay_parallel(&restored, threads, |batches| {
        visit_records(vfs, control, segments, |record| {
            visit(record)?;
            journal_replay.replay_record(record, batches)
        })
    });
    // The batched entries came before any error that the reading met.
    restored.map_err(JournalError::from)?;
    let tail = read?;
    let JournalReplay { time, records, flush, joined, namespaces, sampling, .. } = journal_replay;
    check_bodies(&table, ledger, dir)?;
    if tail.position < watermark.newest() {
        // The ledger holds only data that was synced in the journal first.
        let newest = watermark.newest();
        let reason = format!("the journal ends here, though the ledger has what it said up to position {newest}");
        return Err(JournalError::from(damage_at(segments, tail.position, reason)).into());
    }
    Ok(RecoveredState { table, watermark, unloaded, time, records, flush, tail, joined, horizon, namespaces, sampling })
}

/// Loads all tokens at rest, since each retry looks one up, and all bodies of sketches. Returns the
/// horizon, the run-time settings of namespaces, and their sampling records.
fn load_aux_records(
    table: &Table,
    ledger: &dyn Ledger,
    dir: &Path,
) -> Result<(Millis, RuntimeSettingsMap, SamplingRecords), OpenError> {
    let (mut horizon, mut namespaces, mut sampling, mut damaged) =
        (Millis(0), RuntimeSettingsMap::new(), SamplingRecords::new(), None);
    let visited = ledger.aux_records(&mut |key, value| {
        if SamplingRecord::is_sampling_key(key) {
            match SamplingRecord::from_aux_record(key, value) {
                Some((name, known)) => drop(sampling.insert(name, known)),
                None => damaged = Some("what it says of a namespace that was sampled makes no sense"),
            }
            return if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        if is_namespace_key(key) {
            match decode_note(key, value) {
                Some((name, put)) => drop(namespaces.insert(name, put)),
                None => damaged = Some("what it says of a namespace makes no sense"),
            }
            return if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        if is_sketch_key(key) {
            damaged = load_page(table, key, value).err();
            return if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        match TokenRecord::decode(key, value) {
            Some(TokenRecord::Horizon(at)) => horizon = at,
            Some(TokenRecord::Token(key, applied)) => {
                table.with_shard(table.shard_of(key.hash()), |shard| shard.tokens_mut().load_token(key, applied));
            }
            Some(TokenRecord::Producer(key, last)) => {
                table.with_shard(table.shard_of(key.hash()), |shard| shard.tokens_mut().load_producer(key, last));
            }
            None => damaged = Some("a token in it makes no sense"),
        }
        if damaged.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let refused = |source| OpenError::Ledger { dir: dir.to_owned(), source };
    visited.map_err(refused)?;
    match damaged {
        Some(reason) => Err(refused(LedgerError::Damaged(reason.to_owned()))),
        None => Ok((horizon, namespaces, sampling)),
    }
}

fn load_page(table: &Table, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
    let page = StoredPage::decode(key, value).ok_or("a page of a sketch in it makes no sense")?;
    if page.hash != table.hash(page.name) {
        return Err("a page of a sketch in it is not where it is looked for");
    }
    table.with_shard(table.shard_of(page.hash), |shard| shard.load_page(&page))
}

/// Parses all bodies as sketches and checks each against its cell.
fn check_bodies(table: &Table, ledger: &dyn Ledger, dir: &Path) -> Result<(), OpenError> {
    let refused = |source| OpenError::Ledger { dir: dir.to_owned(), source };
    let damaged = |name: &[u8], reason: &str| {
        refused(LedgerError::Damaged(format!(
            "the sketch {}, with what the journal says of it: {reason}",
            name.escape_ascii()
        )))
    };
    for index in 0..table.shard_count() {
        table.with_shard(index, |shard| {
            shard.parse_bodies().map_err(|(name, reason)| damaged(&name, &reason))?;
            let bodies: Vec<_> =
                shard.bodies().iter().map(|(name, body)| (Box::<[u8]>::from(name), body.epoch, body.version)).collect();
            for (name, epoch, version) in bodies {
                let hash = table.hash(&name);
                let cell = match shard.find(hash, &name) {
                    Residency::Present(cell) => Some(cell),
                    Residency::Absent => None,
                    Residency::NotResident => ledger.get(hash, &name).map_err(refused)?,
                };
                if cell.is_none_or(|cell| (cell.epoch, cell.value as u64) != (epoch, version)) {
                    return Err(damaged(&name, "its cell is missing, or of another version"));
                }
            }
            let own: Vec<_> = shard
                .own_bodies()
                .iter()
                .map(|(name, number, body)| (Box::<[u8]>::from(name), number, body.epoch, body.version))
                .collect();
            for (name, number, epoch, version) in own {
                let hash = table.hash(&name);
                let known =
                    shard.own_cells(hash, &name).map(|own_cells| own_cells.body_cell(number).map(|cell| cell.own));
                let recorded = match known {
                    Some(recorded) => recorded,
                    None if shard.has_slot(hash, &name) => None,
                    None => {
                        let bytes = ledger.own_cells(hash, &name).map_err(refused)?;
                        bytes.and_then(|bytes| OwnCells::decode(&bytes)?.body_cell(number).map(|cell| cell.own))
                    }
                };
                if recorded.is_none_or(|own| (own.epoch, own.value) != (epoch, i128::from(version))) {
                    return Err(damaged(&name, "this node's cell of it is missing, or of another version"));
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Replays journal records. Entries of shards that the ledger does not have go to replay batches;
/// the rest is kept here.
struct JournalReplay<'t> {
    table: &'t Table,
    segments: &'t [Segment],
    watermark: &'t Watermark,
    /// The ledger's state of every shard ends before this.
    newest_at_rest: Position,
    time: Millis,
    records: u64,
    /// The newest flush that the ledger has not carried out.
    flush: FlushMark,
    joined: BTreeMap<Incarnation, Millis>,
    namespaces: RuntimeSettingsMap,
    sampling: SamplingRecords,
}

impl JournalReplay<'_> {
    fn replay_record(&mut self, record: &Record<'_>, batches: &mut ReplayBatches<'_, '_>) -> Result<(), Damage> {
        self.time = self.time.max(record.body.time);
        self.records += 1;
        let end = record.end();
        let is_flush = |(_, entry): &(usize, Result<Entry<'_>, _>)| matches!(entry, Ok(Entry::Flush { .. }));
        // The ledger has carried out this record's flush: changes before it are gone.
        let carried_out = if end <= self.watermark.cleared {
            record.body.entries().enumerate().filter(is_flush).last()
        } else {
            None
        };
        let carried_out = carried_out.map_or(0, |(index, _)| index);
        let (mut entries, mut index) = (record.body.entries_with_bytes(), 0);
        loop {
            while let Some(count) = entries.next_plain_cell() {
                index += 1;
                let hash = self.table.hash(count.name);
                if self.is_newer_than_ledger(hash, end) {
                    batches.push_plain_cell(hash, record, &count);
                }
            }
            let Some(entry) = entries.next() else { return Ok(()) };
            let (entry, bytes) = entry.map_err(|bad| damage_at(self.segments, record.position, bad.to_string()))?;
            index += 1;
            self.replay_entry(record, entry, bytes, index <= carried_out, batches);
        }
    }

    /// Replays an entry of any kind. `is_carried_out`: a flush that the ledger has carried out
    /// follows it.
    fn replay_entry(
        &mut self,
        record: &Record<'_>,
        entry: Entry<'_>,
        bytes: &[u8],
        is_carried_out: bool,
        batches: &mut ReplayBatches<'_, '_>,
    ) {
        let hash = match entry {
            Entry::Sketch { .. } if is_carried_out => return,
            Entry::Cell { name, .. } | Entry::Gone { name, .. } | Entry::Sketch { name, .. } => self.table.hash(name),
            Entry::Token { key, .. } => key.hash(),
            Entry::Flush { .. } => return self.replay_flush(record, bytes, batches),
            Entry::Joined { writer, at } => {
                self.joined.insert(writer.incarnation, at);
                return;
            }
            Entry::Start { .. } => return,
            // Applies regardless of the ledger's state: the ledger has this setting, or that of a
            // later record, which is replayed too.
            Entry::Namespace { name, settings } => {
                self.namespaces
                    .insert(name.into(), RuntimeSettings { settings: *settings, changed_at: record.body.time });
                return;
            }
            Entry::Sampling { name, sampling } => {
                self.sampling.insert(name.into(), sampling);
                return;
            }
        };
        if self.is_newer_than_ledger(hash, record.end()) {
            batches.push(hash, record, bytes);
        }
    }

    /// Returns true if the ledger lacks a record that ends at `end` for the shard of a hash.
    #[inline]
    fn is_newer_than_ledger(&self, hash: u64, end: Position) -> bool {
        // Most records are newer than the whole ledger and need no lookup of the shard.
        end > self.newest_at_rest || end > self.watermark.shards[self.table.shard_of(hash)].newest
    }

    fn replay_flush(&mut self, record: &Record<'_>, entry: &[u8], batches: &mut ReplayBatches<'_, '_>) {
        let end = record.end();
        if self.watermark.shards.iter().any(|mark| mark.newest < end) {
            batches.push_everywhere(record, entry);
        }
        if end > self.watermark.cleared {
            self.flush = FlushMark { count: 0, start: record.position, end };
        }
    }
}

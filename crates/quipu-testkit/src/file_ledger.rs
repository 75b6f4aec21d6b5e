//! Implements a ledger as one small file on any `Vfs`: old or new after every crash, as the real
//! one promises.
//!
//! Each ingestion writes the whole state to a new file and renames it over the old one. On a
//! [`crate::CrashDisk`] its states are enumerated together with those of the journal.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quipu_model::{
    AuxRecord, AuxRecordVisitor, Cell, CellVisitor, CopyProgress, Epoch, Ledger, LedgerError, LedgerStats, Millis,
    NodeId, OwnCellsVisitor, SealedCell, Vfs, VfsFile,
};

const FILE: &str = "ledger.state";
const FILE_NEW: &str = "ledger.state.new";

type KeyedMap<T> = BTreeMap<(u64, Box<[u8]>), T>;

/// Contents of the ledger.
#[derive(Clone, Default)]
struct LedgerState {
    cells: KeyedMap<Cell>,
    own: KeyedMap<Box<[u8]>>,
    notes: BTreeMap<Box<[u8]>, Box<[u8]>>,
    watermark: Option<Vec<u8>>,
}

/// The ledger.
pub struct FileLedger {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    state: Mutex<LedgerState>,
    /// Length of the file.
    bytes: AtomicU64,
}

impl FileLedger {
    /// Opens the ledger in a data directory.
    pub fn open(vfs: Arc<dyn Vfs>, dir: &Path) -> Result<FileLedger, LedgerError> {
        let failed = |error: io::Error| LedgerError::Io(error.to_string());
        let (state, bytes) = match vfs.open(&dir.join(FILE)) {
            Ok(file) => (read(&*file).map_err(failed)?, file.bytes().map_err(failed)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Some(LedgerState::default()), 0),
            Err(error) => return Err(failed(error)),
        };
        let state = state.ok_or_else(|| LedgerError::Damaged("the state cannot be read".to_owned()))?;
        Ok(FileLedger { vfs, dir: dir.to_owned(), state: Mutex::new(state), bytes: AtomicU64::new(bytes) })
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a state and, on success, replaces the current one.
    fn replace(&self, state: LedgerState) -> Result<(), LedgerError> {
        let bytes = encode(&state);
        self.write(&bytes).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => LedgerError::Full(error.to_string()),
            _ => LedgerError::Io(error.to_string()),
        })?;
        self.bytes.store(bytes.len() as u64, Ordering::Relaxed);
        *self.state() = state;
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let new = self.dir.join(FILE_NEW);
        match self.vfs.remove(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.vfs.create(&new)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        self.vfs.rename(&new, &self.dir.join(FILE))?;
        self.vfs.sync_dir(&self.dir)
    }
}

impl Ledger for FileLedger {
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        Ok(self.state().watermark.clone())
    }

    fn ingest(&self, cells: &[SealedCell], notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        let in_order = cells.is_sorted_by(|a, b| (a.hash, &a.name) < (b.hash, &b.name));
        assert!(in_order, "cells come in order, each once");
        assert!(notes.is_sorted_by(|a, b| a.key < b.key), "notes come in order, each once");
        let mut all = self.state().clone();
        for AuxRecord { key, value } in notes {
            match value {
                Some(value) => drop(all.notes.insert(key.clone(), value.clone())),
                None => drop(all.notes.remove(key)),
            }
        }
        for SealedCell { hash, name, cell, own } in cells {
            let key = || (*hash, Box::from(&**name));
            match cell {
                Some(cell) => all.cells.insert(key(), *cell),
                None => all.cells.remove(&key()),
            };
            match own.as_deref() {
                Some([]) => drop(all.own.remove(&key())),
                Some(own) => drop(all.own.insert(key(), own.into())),
                None => {}
            }
        }
        self.replace(LedgerState { watermark: Some(watermark.to_vec()), ..all })
    }

    fn clear(&self, notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        assert!(notes.is_sorted_by(|a, b| a.key < b.key), "notes come in order, each once");
        let notes = notes.iter().filter_map(|note| Some((note.key.clone(), note.value.clone()?))).collect();
        self.replace(LedgerState { notes, watermark: Some(watermark.to_vec()), ..LedgerState::default() })
    }

    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError> {
        let notes = self.state().notes.clone();
        for (key, value) in &notes {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        Ok(self.state().cells.get(&(hash, name.into())).copied())
    }

    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError> {
        let cells = self.state().cells.clone();
        for ((hash, name), cell) in cells.range((from, Box::from([]))..) {
            if visit(*hash, name, *cell).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        Ok(self.state().own.get(&(hash, name.into())).cloned())
    }

    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError> {
        let all = self.state().own.clone();
        for ((hash, name), own) in all.range((from, Box::from([]))..) {
            if visit(*hash, name, own).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn compact(&self) -> Result<bool, LedgerError> {
        Ok(false)
    }

    fn copy_to(&self, data: &Path, copied: &mut CopyProgress<'_>) -> Result<(), LedgerError> {
        let copy = FileLedger::open(self.vfs.clone(), data)?;
        let state = self.state().clone();
        if state.watermark.is_some() {
            copy.replace(state)?;
        }
        match copied(copy.stats().disk_bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LedgerError::Io("the copying was ended".to_owned())),
        }
    }

    fn stats(&self) -> LedgerStats {
        LedgerStats { disk_bytes: self.bytes.load(Ordering::Relaxed), ..LedgerStats::default() }
    }
}

fn encode(LedgerState { cells, own, notes, watermark }: &LedgerState) -> Vec<u8> {
    let mut out = Vec::new();
    let number = |out: &mut Vec<u8>, number: u64| out.extend_from_slice(&number.to_le_bytes());
    let watermark = watermark.as_deref().unwrap_or_default();
    number(&mut out, watermark.len() as u64);
    out.extend_from_slice(watermark);
    number(&mut out, cells.len() as u64);
    for ((hash, name), cell) in cells {
        let expires = cell.expires_at.map_or(u64::MAX, |at| at.0);
        let fields = [*hash, cell.epoch.millis, cell.epoch.node.0, cell.value as u64, expires, name.len() as u64];
        fields.iter().for_each(|field| number(&mut out, *field));
        out.extend_from_slice(name);
    }
    number(&mut out, notes.len() as u64);
    for (key, value) in notes {
        for bytes in [key, value] {
            number(&mut out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
    }
    for ((hash, name), own) in own {
        [*hash, name.len() as u64, own.len() as u64].iter().for_each(|field| number(&mut out, *field));
        out.extend_from_slice(name);
        out.extend_from_slice(own);
    }
    out
}

fn read(file: &dyn VfsFile) -> io::Result<Option<LedgerState>> {
    let mut bytes = vec![0; file.bytes()? as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(decode(&bytes))
}

fn decode(bytes: &[u8]) -> Option<LedgerState> {
    let mut rest = bytes;
    let take = |rest: &mut &[u8], bytes: usize| {
        let (taken, left) = rest.split_at_checked(bytes)?;
        *rest = left;
        Some(taken.to_vec())
    };
    let number = |rest: &mut &[u8]| Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?));
    let watermark_bytes = number(&mut rest)? as usize;
    let watermark = Some(take(&mut rest, watermark_bytes)?);
    let mut state = LedgerState { watermark, ..LedgerState::default() };
    for _ in 0..number(&mut rest)? {
        let [hash, millis, node, value, expires, name_bytes] = [(); 6].map(|()| number(&mut rest));
        let name = take(&mut rest, name_bytes? as usize)?.into_boxed_slice();
        let epoch = Epoch { millis: millis?, node: NodeId(node?) };
        let expires_at = expires.filter(|at| *at != u64::MAX).map(Millis);
        state.cells.insert((hash?, name), Cell { epoch, value: value? as i64, expires_at });
    }
    for _ in 0..number(&mut rest)? {
        let mut bytes = || {
            let length = number(&mut rest)? as usize;
            take(&mut rest, length).map(Vec::into_boxed_slice)
        };
        let (key, value) = (bytes()?, bytes()?);
        state.notes.insert(key, value);
    }
    while !rest.is_empty() {
        let [hash, name_bytes, own_bytes] = [(); 3].map(|()| number(&mut rest));
        let name = take(&mut rest, name_bytes? as usize)?.into_boxed_slice();
        let own = take(&mut rest, own_bytes? as usize)?.into_boxed_slice();
        state.own.insert((hash?, name), own);
    }
    Some(state)
}

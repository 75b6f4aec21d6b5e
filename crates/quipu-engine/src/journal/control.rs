//! Reads and writes the control file: the journal's start, its segments and its synced position.
//!
//! ```text
//! control, 8192 bytes: two slots, at 0 and at 4096, written in turn;
//! the valid slot with the higher generation is in force
//!   0  u64  check       xxh3 over bytes 8..112
//!   8  [8]  magic       "QUIPUCTL"
//!  16  u32  version     1
//!  20  u32  clean       1 after a clean stop, else 0
//!  24  u64  generation  one more with every write
//!  32  u64  node        drawn when the directory was made
//!  40  u64  log         likewise; repeated in every segment
//!  48  u64  incarnation the last incarnation
//!  56  u64  start       position of the first live record
//!  64  u32  previous    the chain at `start`: low half of the check of the record before
//!  68  u32  released    version of the node's registration on the shared store after a clean stop
//!                       released it, modulo 2^32; else 0
//!  72  u64  first       number of the segment that holds `start`
//!  80  u64  end         one more than the newest prepared segment
//!  88  u64  base        position at which segment `end` will begin
//!  96  u64  synced      the journal is known to be synced up to here
//! 104  u64  identity    file id (hash of device and inode) in the last incarnation; a copy has another
//! ```
//!
//! An unfinished directory has `control.unfinished` instead. It becomes `control` when all else is
//! durable.
//!
//! Invariants:
//! - A slot is written only after everything that it refers to is durable. The other slot stays
//!   intact meanwhile, so a torn write falls back to an earlier true state.
//! - No record lies in a segment numbered `end` or above of the newest slot.

use std::path::{Path, PathBuf};

use quipu_model::{Incarnation, NodeId, Vfs, VfsFile};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{Position, VERSION, u32_at, u64_at};
use super::{Damage, JournalError, io_error};
pub(crate) use crate::base::file_names::CONTROL_FILE_NEW;
pub use crate::base::file_names::{CONTROL_FILE, CONTROL_FILE_UNFINISHED};
use crate::base::sync::Arc;

const MAGIC: &[u8; 8] = b"QUIPUCTL";
pub(crate) const SLOT_BYTES: usize = 112;
const SLOT_OFFSETS: [u64; 2] = [0, 4096];
const FILE_BYTES: usize = 8192;

/// The content of a control slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlState {
    /// True if the last incarnation ended with a clean stop.
    pub clean: bool,
    /// Write counter: one more with every write.
    pub generation: u64,
    /// The node's id, drawn when the directory was made.
    pub node: NodeId,
    /// Log id, drawn when the directory was made; binds the segments to this directory.
    pub log: u64,
    /// The last incarnation.
    pub incarnation: Incarnation,
    /// Position of the first live record.
    pub start: Position,
    /// The chain at `start`.
    pub previous: u32,
    /// Version of the registration on the shared store after a clean stop released it, modulo 2^32;
    /// 0: none.
    pub released: u32,
    /// Number of the segment that holds `start`.
    pub first: u64,
    /// One more than the newest prepared segment.
    pub end: u64,
    /// Position at which segment `end` will begin.
    pub base: Position,
    /// Position up to which the journal is known to be synced.
    pub synced: Position,
    /// File id of the control file in the last incarnation; 0: there was no file.
    pub identity: u64,
}

impl ControlState {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        out[8..16].copy_from_slice(MAGIC);
        out[16..20].copy_from_slice(&VERSION.to_le_bytes());
        out[20..24].copy_from_slice(&u32::from(self.clean).to_le_bytes());
        out[64..68].copy_from_slice(&self.previous.to_le_bytes());
        out[68..72].copy_from_slice(&self.released.to_le_bytes());
        for (at, field) in [
            (24, self.generation),
            (32, self.node.0),
            (40, self.log),
            (48, self.incarnation.0),
            (56, self.start.0),
            (72, self.first),
            (80, self.end),
            (88, self.base.0),
            (96, self.synced.0),
            (104, self.identity),
        ] {
            out[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        let check = xxh3_64(&out[8..]);
        out[..8].copy_from_slice(&check.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<ControlState, BadSlot> {
        if &bytes[8..16] != MAGIC {
            return Err(BadSlot { is_intact: false, reason: "it does not begin like a control file".to_owned() });
        }
        if xxh3_64(&bytes[8..]) != u64_at(bytes, 0) {
            return Err(BadSlot { is_intact: false, reason: "its check does not match".to_owned() });
        }
        let version = u32_at(bytes, 16);
        if version != VERSION {
            let reason = format!("it has version {version}, this program knows version {VERSION}");
            return Err(BadSlot { is_intact: true, reason });
        }
        Ok(ControlState {
            clean: u32_at(bytes, 20) == 1,
            generation: u64_at(bytes, 24),
            node: NodeId(u64_at(bytes, 32)),
            log: u64_at(bytes, 40),
            incarnation: Incarnation(u64_at(bytes, 48)),
            start: Position(u64_at(bytes, 56)),
            previous: u32_at(bytes, 64),
            released: u32_at(bytes, 68),
            first: u64_at(bytes, 72),
            end: u64_at(bytes, 80),
            base: Position(u64_at(bytes, 88)),
            synced: Position(u64_at(bytes, 96)),
            identity: u64_at(bytes, 104),
        })
    }
}

/// Writes both slots and renames the file to its final name.
fn write_and_publish(
    vfs: &dyn Vfs,
    dir: &Path,
    file: &dyn VfsFile,
    new: &Path,
    state: ControlState,
) -> Result<(), JournalError> {
    let mut bytes = vec![0; FILE_BYTES];
    for offset in SLOT_OFFSETS {
        bytes[offset as usize..offset as usize + SLOT_BYTES].copy_from_slice(&state.encode());
    }
    file.write_all_at(&bytes, 0).map_err(|e| io_error(new, "write", e))?;
    file.sync_data().map_err(|e| io_error(new, "sync", e))?;
    let path = dir.join(CONTROL_FILE);
    vfs.rename(new, &path).map_err(|e| io_error(new, "rename", e))?;
    vfs.sync_dir(dir).map_err(|e| io_error(dir, "sync", e))
}

/// A slot that cannot be used.
struct BadSlot {
    /// True if the check matches: the slot has another version and is not torn.
    is_intact: bool,
    reason: String,
}

/// The open control file.
pub struct ControlFile {
    file: Arc<dyn VfsFile>,
    path: PathBuf,
    state: ControlState,
    /// Offset of the other slot and the reason, if that slot cannot be read.
    unreadable_slot: Option<(u64, String)>,
}

impl ControlFile {
    /// Creates the file in a directory without one. It appears whole or not at all.
    pub fn create(vfs: &dyn Vfs, dir: &Path, state: ControlState) -> Result<ControlFile, JournalError> {
        let (new, path) = (dir.join(CONTROL_FILE_NEW), dir.join(CONTROL_FILE));
        // A crash may have left a partial file behind; it was never in force.
        match vfs.remove(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&new, "remove", error)),
            _ => {}
        }
        let file = vfs.create(&new).map_err(|e| io_error(&new, "create", e))?;
        write_and_publish(vfs, dir, &*file, &new, state)?;
        Ok(ControlFile { file, path, state, unreadable_slot: None })
    }

    /// Marks a directory as unfinished, durably. Until [`ControlFile::complete_unfinished`], every
    /// open refuses it.
    pub fn mark_unfinished(vfs: &dyn Vfs, dir: &Path) -> Result<(), JournalError> {
        let path = dir.join(CONTROL_FILE_UNFINISHED);
        vfs.create(&path).map_err(|e| io_error(&path, "create", e))?;
        vfs.sync_dir(dir).map_err(|e| io_error(dir, "sync", e))
    }

    /// Turns an unfinished directory into a data directory, atomically and durably.
    pub fn complete_unfinished(vfs: &dyn Vfs, dir: &Path, state: ControlState) -> Result<(), JournalError> {
        let path = dir.join(CONTROL_FILE_UNFINISHED);
        let file = vfs.open(&path).map_err(|e| io_error(&path, "open", e))?;
        write_and_publish(vfs, dir, &*file, &path, state)
    }

    /// Opens the file; `None` if there is none. Refuses if neither slot can be read.
    pub fn open(vfs: &dyn Vfs, dir: &Path) -> Result<Option<ControlFile>, JournalError> {
        let path = dir.join(CONTROL_FILE);
        let file = match vfs.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&path, "open", error)),
        };
        let mut slots = Vec::new();
        for offset in SLOT_OFFSETS {
            let mut bytes = [0; SLOT_BYTES];
            let read = super::read_full(&*file, &mut bytes, offset).map_err(|e| io_error(&path, "read", e))?;
            slots.push(if read < SLOT_BYTES {
                Err(BadSlot { is_intact: false, reason: format!("it ends after {} bytes", offset + read as u64) })
            } else {
                ControlState::decode(&bytes)
            });
        }
        let newest = slots.iter().filter_map(|slot| slot.as_ref().ok()).max_by_key(|state| state.generation).copied();
        let unreadable =
            SLOT_OFFSETS.iter().zip(&slots).find_map(|(at, slot)| Some((*at, slot.as_ref().err()?.reason.clone())));
        // An intact slot of another version means that another program wrote here since: the older
        // slot is stale.
        let refused = slots.into_iter().filter_map(Result::err).find(|slot| newest.is_none() || slot.is_intact);
        match (newest, refused) {
            (Some(state), None) => Ok(Some(ControlFile { file, path, state, unreadable_slot: unreadable })),
            (_, refused) => {
                let reason = refused.map(|slot| slot.reason).unwrap_or_default();
                Err(Damage { file: path, offset: 0, position: None, reason }.into())
            }
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Offset of the inactive slot and the reason, if that slot cannot be read. A crash during its
    /// write leaves it so.
    pub fn unreadable_slot(&self) -> Option<&(u64, String)> {
        self.unreadable_slot.as_ref()
    }

    /// Byte ranges of the file that hold nothing.
    pub(crate) fn unused_parts() -> [(u64, u64); 2] {
        let [first, second] = SLOT_OFFSETS;
        [(first + SLOT_BYTES as u64, second), (second + SLOT_BYTES as u64, FILE_BYTES as u64)]
    }

    /// The state in force.
    pub fn state(&self) -> &ControlState {
        &self.state
    }

    /// Changes the state, durably. The slot in force stays intact until the new one is durable.
    pub fn update(&mut self, change: impl FnOnce(&mut ControlState)) -> Result<(), JournalError> {
        let mut state = self.state;
        change(&mut state);
        state.generation += 1;
        let offset = SLOT_OFFSETS[(state.generation % 2) as usize];
        self.file.write_all_at(&state.encode(), offset).map_err(|e| io_error(&self.path, "write", e))?;
        self.file.sync_data().map_err(|e| io_error(&self.path, "sync", e))?;
        self.state = state;
        Ok(())
    }
}

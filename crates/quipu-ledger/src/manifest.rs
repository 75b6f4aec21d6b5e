//! Reads the list of a generation's tables: `current`, and the version that it names.
//!
//! ```text
//! current   version u64 | xxh3-128 of the file of that version | 0
//! vN        sections (see `archive`); among them
//! tables    levels u8 { runs u8 { tables u32 { id u64 | 0 | xxh3-128 of the table's file | seqno u64 } … } … } …
//! ```
//! All numbers are little-endian.
//!
//! The tree writes the checksum of a version but does not verify it when it opens. A flipped bit in
//! a seqno would make an old cell the newest. So this module verifies it before the tree opens.

use std::fs;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use crate::LedgerError;
use crate::archive::{self, take_array};

/// Folder of the tables inside a generation.
pub const TABLES: &str = "tables";

const CURRENT: &str = "current";

/// A checked version of a generation.
pub struct Manifest {
    pub version: u64,
    pub tables: Vec<TableEntry>,
    /// Runs of the newest level: ingestions not yet merged.
    pub runs: u64,
    /// The bytes of `current`.
    pub current: Vec<u8>,
    /// The bytes of the version's file.
    pub bytes: Vec<u8>,
}

/// A table's entry in a version.
pub struct TableEntry {
    pub id: u64,
    pub checksum: u128,
    /// Base of its cells' sequence numbers.
    pub seqno: u64,
}

impl Manifest {
    /// Reads the current version.
    pub fn read(dir: &Path) -> Result<Manifest, LedgerError> {
        let current_path = dir.join(CURRENT);
        let current = read(&current_path)?;
        let (version, checksum) =
            parse_current(&current).ok_or_else(|| LedgerError::damaged(&current_path, "it does not name a version"))?;
        let path = version_path(dir, version);
        let bytes = read(&path)?;
        if xxh3_128(&bytes) != checksum {
            return Err(LedgerError::damaged(&path, "it does not have the checksum that `current` names"));
        }
        let file = fs::File::open(&path).map_err(|error| LedgerError::unreadable(&path, error))?;
        let sections = archive::sections(&file, &path)?;
        let (tables, runs) = sections
            .iter()
            .find(|section| section.name == b"tables")
            .and_then(|section| bytes.get(section.start as usize..(section.start + section.bytes) as usize))
            .and_then(parse_tables)
            .ok_or_else(|| LedgerError::damaged(&path, "its list of tables cannot be read"))?;
        Ok(Manifest { version, tables, runs, current, bytes })
    }

    /// Number of the current version on disk.
    pub fn read_version(dir: &Path) -> Result<u64, LedgerError> {
        let path = dir.join(CURRENT);
        let (version, _) =
            parse_current(&read(&path)?).ok_or_else(|| LedgerError::damaged(&path, "it does not name a version"))?;
        Ok(version)
    }
}

/// Path of `current`.
pub fn current_path(dir: &Path) -> PathBuf {
    dir.join(CURRENT)
}

/// Path of a version's file.
pub fn version_path(dir: &Path, version: u64) -> PathBuf {
    dir.join(format!("v{version}"))
}

/// Path of a table.
pub fn table_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(TABLES).join(id.to_string())
}

fn read(path: &Path) -> Result<Vec<u8>, LedgerError> {
    fs::read(path).map_err(|error| LedgerError::unreadable(path, error))
}

fn parse_current(mut bytes: &[u8]) -> Option<(u64, u128)> {
    let version = u64::from_le_bytes(take_array(&mut bytes)?);
    let checksum = u128::from_le_bytes(take_array(&mut bytes)?);
    (bytes == [0]).then_some((version, checksum))
}

fn parse_tables(mut bytes: &[u8]) -> Option<(Vec<TableEntry>, u64)> {
    let (mut tables, mut runs_newest) = (Vec::new(), None);
    let [levels] = take_array(&mut bytes)?;
    for _ in 0..levels {
        let [runs] = take_array(&mut bytes)?;
        runs_newest.get_or_insert(u64::from(runs));
        for _ in 0..runs {
            for _ in 0..u32::from_le_bytes(take_array(&mut bytes)?) {
                let id = u64::from_le_bytes(take_array(&mut bytes)?);
                let [_checksum_type] = take_array(&mut bytes)?;
                let checksum = u128::from_le_bytes(take_array(&mut bytes)?);
                let seqno = u64::from_le_bytes(take_array(&mut bytes)?);
                tables.push(TableEntry { id, checksum, seqno });
            }
        }
    }
    bytes.is_empty().then_some((tables, runs_newest.unwrap_or(0)))
}

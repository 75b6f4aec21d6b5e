//! Reads the frame of the tree's files: sections, a list of them at the end, and checksummed
//! blocks.
//!
//! ```text
//! section … section | list | trailer
//! list     "TOC!" | count u32 | { start u64 | bytes u64 | name length u16 | name } …
//! trailer  "SFA!" | 1 | 0 | xxh3-128 of the list | start of the list u64 | bytes of the list u64
//! block    "LSM\3" | type u8 | xxh3-128 of the data | bytes on disk u32 | bytes unpacked u32
//!          | low 4 bytes of xxh3-128 of the preceding fields | data
//! ```
//! All numbers are little-endian.
//!
//! In: a file of the tree. Out: its sections, or the damaged offset.
//!
//! The tree checks its blocks when it reads them, but its errors name no file. It also trusts the
//! length of the list before it has checked it. One flipped bit there requests gigabytes and ends
//! the process. So this module first reads and checks the parts that the tree reads when it opens.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::LedgerError;

const TRAILER_BYTES: u64 = 38;
const BLOCK_HEADER_BYTES: usize = 33;

/// Longest list of sections. A table has seven of them, a version as many; more is damage.
const LIST_BYTES_MAX: u64 = 4096;

/// Longest block. The tree makes blocks of 4 KiB; its largest, a table's filter or index, stays far
/// smaller.
const BLOCK_BYTES_MAX: usize = 64 << 20;

/// Sections of a table that the tree reads when it opens it. It reads and checks the others on
/// demand.
const SECTIONS_AT_OPEN: [&[u8]; 3] = [b"meta", b"tli", b"filter_tli"];

/// The section of a table without blocks: one byte, the format.
const SECTION_FORMAT: &[u8] = b"table_version";

/// Format of tables that the tree writes and this module reads.
const TABLE_FORMAT: u8 = 3;

/// A section of a file.
#[derive(Debug)]
pub struct Section {
    pub name: Vec<u8>,
    pub start: u64,
    pub bytes: u64,
}

/// Reads and checks the list of sections at the end of a file.
pub fn sections(file: &File, path: &Path) -> Result<Vec<Section>, LedgerError> {
    let length = file.metadata().map_err(|error| LedgerError::unreadable(path, error))?.len();
    let start = length.checked_sub(TRAILER_BYTES).ok_or_else(|| LedgerError::damaged(path, "it has no trailer"))?;
    let trailer = read_at(file, path, start, TRAILER_BYTES as usize)?;
    let damaged = |reason: &str| LedgerError::damaged_at(path, start, reason);
    let mut rest = &trailer[..];
    if take_array(&mut rest) != Some(*b"SFA!\x01\x00") {
        return Err(damaged("its trailer is not one"));
    }
    let numbers = (take_array(&mut rest), take_array(&mut rest), take_array(&mut rest));
    let (Some(checksum), Some(list_start), Some(list_bytes)) = numbers else {
        return Err(damaged("its trailer is too short"));
    };
    let (list_start, list_bytes) = (u64::from_le_bytes(list_start), u64::from_le_bytes(list_bytes));
    if list_bytes > LIST_BYTES_MAX || list_start.checked_add(list_bytes) != Some(start) {
        return Err(damaged("its list of sections does not lie before the trailer"));
    }
    let list = read_at(file, path, list_start, list_bytes as usize)?;
    if xxh3_128(&list) != u128::from_le_bytes(checksum) {
        return Err(LedgerError::damaged_at(path, list_start, "its list of sections does not have its checksum"));
    }
    parse_list(&list, list_start)
        .ok_or_else(|| LedgerError::damaged_at(path, list_start, "its list of sections cannot be read"))
}

/// Checks the parts of a table that the tree reads when it opens it.
pub fn check_at_open(path: &Path) -> Result<(), LedgerError> {
    let file = File::open(path).map_err(|error| LedgerError::unreadable(path, error))?;
    for section in sections(&file, path)? {
        if SECTIONS_AT_OPEN.contains(&&section.name[..]) {
            check_blocks(&file, path, &section)?;
        }
    }
    Ok(())
}

/// Checks a table block by block; the error names the damaged offset.
pub fn check_all(path: &Path) -> Result<(), LedgerError> {
    let file = File::open(path).map_err(|error| LedgerError::unreadable(path, error))?;
    for section in sections(&file, path)? {
        if section.name != SECTION_FORMAT {
            check_blocks(&file, path, &section)?;
        } else if read_at(&file, path, section.start, section.bytes as usize)? != [TABLE_FORMAT] {
            return Err(LedgerError::damaged_at(path, section.start, "its format is not one we know"));
        }
    }
    Ok(())
}

/// Reads `bytes` bytes from `start`.
pub fn read_at(file: &File, path: &Path, start: u64, bytes: usize) -> Result<Vec<u8>, LedgerError> {
    let mut buffer = vec![0; bytes];
    file.read_exact_at(&mut buffer, start).map_err(|error| LedgerError::unreadable(path, error))?;
    Ok(buffer)
}

/// Takes the next `N` bytes off the front.
pub fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

fn parse_list(mut list: &[u8], sections_end: u64) -> Option<Vec<Section>> {
    if take_array(&mut list)? != *b"TOC!" {
        return None;
    }
    let count = u32::from_le_bytes(take_array(&mut list)?);
    let mut sections = Vec::new();
    for _ in 0..count {
        let (start, bytes) = (u64::from_le_bytes(take_array(&mut list)?), u64::from_le_bytes(take_array(&mut list)?));
        let name_bytes = u16::from_le_bytes(take_array(&mut list)?);
        let (name, rest) = list.split_at_checked(usize::from(name_bytes))?;
        list = rest;
        if start.checked_add(bytes)? > sections_end {
            return None;
        }
        sections.push(Section { name: name.to_vec(), start, bytes });
    }
    list.is_empty().then_some(sections)
}

fn check_blocks(file: &File, path: &Path, section: &Section) -> Result<(), LedgerError> {
    let end = section.start + section.bytes;
    let mut at = section.start;
    while at < end {
        let damaged = |reason: &str| LedgerError::damaged_at(path, at, reason);
        let header = read_at(file, path, at, BLOCK_HEADER_BYTES)?;
        let Some((data_checksum, data_bytes)) = parse_block_header(&header) else {
            return Err(damaged("a block's header does not have its checksum"));
        };
        let block_end = at + (BLOCK_HEADER_BYTES + data_bytes) as u64;
        if block_end > end || data_bytes > BLOCK_BYTES_MAX {
            return Err(damaged("a block does not fit its section"));
        }
        let data = read_at(file, path, at + BLOCK_HEADER_BYTES as u64, data_bytes)?;
        if xxh3_128(&data) != data_checksum {
            return Err(damaged("a block does not have its checksum"));
        }
        at = block_end;
    }
    Ok(())
}

fn parse_block_header(header: &[u8]) -> Option<(u128, usize)> {
    let mut rest = header;
    if take_array(&mut rest)? != *b"LSM\x03" {
        return None;
    }
    let [_block_type] = take_array(&mut rest)?;
    let data_checksum = u128::from_le_bytes(take_array(&mut rest)?);
    let data_bytes = u32::from_le_bytes(take_array(&mut rest)?);
    let _unpacked_bytes = u32::from_le_bytes(take_array(&mut rest)?);
    let checked = &header[..header.len() - rest.len()];
    (u32::from_le_bytes(take_array(&mut rest)?) == xxh3_128(checked) as u32)
        .then_some((data_checksum, data_bytes as usize))
}

/// Returns true if a file or directory does not exist.
pub fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

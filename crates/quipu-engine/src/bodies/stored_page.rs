//! Encodes the pages of bodies as auxiliary records of the ledger.
//!
//! ```text
//! a page    key    5, hash of the name u64, length of the name u16, name, pane u32, page u32;
//!                  all big-endian, so that pages lie in order
//!           value  of page 0: kind u8, epoch (u64 milliseconds, u64 node), version u64,
//!                  length of the body u32, little-endian, and the page's bytes
//!                  of others: the page's bytes
//!
//! pane      0         none, or the ring of the panes
//!           slot + 1  the pane in this slot of the ring
//!           2³¹ + n   this node's own body n on a shared store
//! ```
//!
//! A page has 1,024 bytes of the body, the last one fewer. Trailing zeros are left out; a page of
//! zeros alone has no record, except page 0.

use quipu_model::shared::body::INCARNATION_BODIES_MAX;
use quipu_model::{AuxRecord, Epoch, NAME_BYTES_MAX, NodeId};
use quipu_sketch::window::PANES_MAX;

use crate::journal::format::SKETCH_BYTES_MAX;
use crate::journal::format::trim_trailing_zeros;

/// Bytes of a page: small enough that a change of a few registers seals few bytes, large enough to
/// outweigh its key.
pub const PAGE_BYTES: usize = 1 << 10;

/// Pane number of the bodies of an unshared directory. With a shared store, own bodies have the
/// numbers of [`own_pane`] instead.
pub const SHOWN_PANE: u32 = 0;
const OWN_PANE: u32 = 1 << 31;

/// Pane number of this node's own body in journal and ledger.
pub fn own_pane(number: u16) -> u32 {
    OWN_PANE + u32::from(number)
}

/// Number of an own body; `None`: the pane is no own body.
pub fn own_body_number(pane: u32) -> Option<u16> {
    let number = u16::try_from(pane.checked_sub(OWN_PANE)?).ok()?;
    (number < INCARNATION_BODIES_MAX).then_some(number)
}

/// First byte of the key; `tokens` and `namespaces` use the lower ones.
const SKETCH_TAG: u8 = 5;

const BODY_HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4;

/// Header of the whole body, in page 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyHead {
    /// Code of the sketch's kind.
    pub kind: u8,
    /// Epoch of its cell.
    pub epoch: Epoch,
    /// Number of its changes.
    pub version: u64,
    /// Length of the body in bytes.
    pub length: usize,
}

/// A page as stored in the ledger.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredPage<'a> {
    /// Hash of the name.
    pub hash: u64,
    /// The name.
    pub name: &'a [u8],
    /// Number of the pane; 0: none, or the ring of the panes.
    pub pane: u32,
    /// Index of the page.
    pub page: usize,
    /// Header of the body, in page 0 only.
    pub head: Option<BodyHead>,
    /// The page's bytes, without trailing zeros.
    pub bytes: &'a [u8],
}

/// Owner of a page: hash of the name, name, and pane.
pub type PageOwner<'a> = (u64, &'a [u8], u32);

/// Returns true for the key of a page.
pub fn is_sketch_key(key: &[u8]) -> bool {
    key.first() == Some(&SKETCH_TAG)
}

/// Number of pages of a body of this length.
pub fn page_count(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES)
}

/// The auxiliary record of a page, from its whole bytes.
pub fn page_note((hash, name, pane): PageOwner<'_>, page: usize, head: Option<&BodyHead>, bytes: &[u8]) -> AuxRecord {
    let bytes = trim_trailing_zeros(bytes);
    let mut value = Vec::with_capacity(BODY_HEAD_BYTES + bytes.len());
    if let Some(BodyHead { kind, epoch, version, length }) = head {
        value.push(*kind);
        for number in [epoch.millis, epoch.node.0, *version] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(&(*length as u32).to_le_bytes());
    }
    value.extend_from_slice(bytes);
    AuxRecord {
        key: page_key((hash, name, pane), page),
        value: if value.is_empty() { None } else { Some(value.into()) },
    }
}

/// The record that deletes a page.
pub fn page_removal(owner: PageOwner<'_>, page: usize) -> AuxRecord {
    AuxRecord { key: page_key(owner, page), value: None }
}

fn page_key((hash, name, pane): PageOwner<'_>, page: usize) -> Box<[u8]> {
    let mut key = Vec::with_capacity(1 + 8 + 2 + name.len() + 4 + 4);
    key.push(SKETCH_TAG);
    key.extend_from_slice(&hash.to_be_bytes());
    key.extend_from_slice(&(name.len() as u16).to_be_bytes());
    key.extend_from_slice(name);
    key.extend_from_slice(&pane.to_be_bytes());
    key.extend_from_slice(&(page as u32).to_be_bytes());
    key.into()
}

impl<'a> StoredPage<'a> {
    /// Decodes key and value; `None` if they are invalid.
    pub fn decode(key: &'a [u8], value: &'a [u8]) -> Option<StoredPage<'a>> {
        let rest = key.strip_prefix(&[SKETCH_TAG])?;
        let (hash, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let (pane, page) = rest.split_first_chunk::<4>()?;
        let (pane, page) = (u32::from_be_bytes(*pane), u32::from_be_bytes(page.try_into().ok()?) as usize);
        let (head, bytes) = match page {
            0 => {
                let (head, bytes) = value.split_first_chunk::<BODY_HEAD_BYTES>()?;
                let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
                let length = u32::from_le_bytes(*head.last_chunk().expect("four of them")) as usize;
                let epoch = Epoch { millis: number(1), node: NodeId(number(9)) };
                (Some(BodyHead { kind: head[0], epoch, version: number(17), length }), bytes)
            }
            _ => (None, value),
        };
        let makes_sense = name.len() <= NAME_BYTES_MAX
            && (pane <= PANES_MAX || own_body_number(pane).is_some())
            && bytes.len() <= PAGE_BYTES
            && (page == 0 || !bytes.is_empty())
            && page < page_count(SKETCH_BYTES_MAX)
            && head.is_none_or(|head| head.length <= SKETCH_BYTES_MAX);
        makes_sense.then_some(StoredPage { hash: u64::from_be_bytes(*hash), name, pane, page, head, bytes })
    }
}

/// Approximate ledger bytes of a page's record beside its key and value.
pub const NOTE_OVERHEAD_BYTES: u64 = 32;

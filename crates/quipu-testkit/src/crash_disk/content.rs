//! Stores the bytes of one file in shared pages.
//!
//! A copy of a file costs a pointer per page, and a write to a copy costs the pages it touches. A
//! suite builds tens of thousands of disks that differ in a few hundred bytes.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Size of a page: small enough that a torn record copies little, large enough that 64 KB are 16
/// pointers.
const PAGE_BYTES: usize = 4096;

type PageBytes = [u8; PAGE_BYTES];

/// Page of all bytes not yet written.
static ZEROS: LazyLock<Arc<PageBytes>> = LazyLock::new(|| Arc::new([0; PAGE_BYTES]));

/// The bytes of one file.
#[derive(Debug, Clone, Default)]
pub(super) struct FileContent {
    pages: Vec<Arc<PageBytes>>, // exactly enough to cover `len`
    len: usize,                 // bytes of the last page beyond it are zero
}

impl FileContent {
    pub(super) fn from_bytes(bytes: &[u8]) -> FileContent {
        let mut content = FileContent::default();
        content.write(bytes, 0);
        content
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Writes, growing the file if necessary; a gap reads as zeros.
    pub(super) fn write(&mut self, bytes: &[u8], offset: usize) {
        if bytes.is_empty() {
            return;
        }
        self.grow(offset + bytes.len());
        let mut done = 0;
        while done < bytes.len() {
            let (page, within) = locate(offset + done, bytes.len() - done);
            let step = within.len();
            Arc::make_mut(&mut self.pages[page])[within].copy_from_slice(&bytes[done..done + step]);
            done += step;
        }
    }

    /// Extends the file to at least this length, with zeros.
    pub(super) fn grow(&mut self, len: usize) {
        if len > self.len {
            self.len = len;
            self.pages.resize_with(len.div_ceil(PAGE_BYTES), || Arc::clone(&ZEROS));
        }
    }

    /// Cuts the file to at most this length.
    pub(super) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.len = len;
        self.pages.truncate(len.div_ceil(PAGE_BYTES));
        if let Some(last) = self.pages.last_mut()
            && !len.is_multiple_of(PAGE_BYTES)
        {
            Arc::make_mut(last)[len % PAGE_BYTES..].fill(0);
        }
    }

    /// Reads up to `buf.len()` bytes; 0 at the end.
    pub(super) fn read(&self, buf: &mut [u8], offset: usize) -> usize {
        let wanted = buf.len().min(self.len.saturating_sub(offset));
        let mut done = 0;
        while done < wanted {
            let (page, within) = locate(offset + done, wanted - done);
            let step = within.len();
            buf[done..done + step].copy_from_slice(&self.pages[page][within]);
            done += step;
        }
        done
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(&mut bytes, 0);
        bytes
    }

    pub(super) fn flip_bit(&mut self, bit: usize) {
        let byte = bit / 8;
        assert!(byte < self.len, "bit {bit} is past the end of a file of {} bytes", self.len);
        Arc::make_mut(&mut self.pages[byte / PAGE_BYTES])[byte % PAGE_BYTES] ^= 1 << (bit % 8);
    }

    /// The file's pages; the last one is padded with zeros.
    pub(super) fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.pages.iter().map(|page| page.as_slice())
    }
}

/// The page that holds a byte, and the part of it that up to `wanted` bytes cover.
fn locate(offset: usize, wanted: usize) -> (usize, Range<usize>) {
    let start = offset % PAGE_BYTES;
    (offset / PAGE_BYTES, start..PAGE_BYTES.min(start + wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRng;

    #[test]
    fn a_content_is_what_a_plain_vector_would_be() {
        let rng = SeededRng::new(11);
        for _ in 0..50 {
            let (mut content, mut plain) = (FileContent::default(), Vec::new());
            for _ in 0..40 {
                let (at, len) = (rng.below(3 * PAGE_BYTES), rng.below(2 * PAGE_BYTES));
                if rng.chance(15) {
                    content.truncate(at);
                    plain.truncate(at);
                } else if len > 0 {
                    let bytes = vec![rng.next_u64() as u8; len];
                    content.write(&bytes, at);
                    plain.resize(plain.len().max(at + len), 0);
                    plain[at..at + len].copy_from_slice(&bytes);
                }
                assert_eq!(content.to_vec(), plain);
                let mut buf = vec![0; len];
                let read = content.read(&mut buf, at);
                assert_eq!(buf[..read], plain[at.min(plain.len())..(at + len).min(plain.len())]);
            }
        }
    }

    #[test]
    fn a_copy_is_not_changed_by_what_is_written_to_the_other() {
        let mut content = FileContent::from_bytes(&[1; 10_000]);
        let copy = content.clone();
        content.write(&[2; 3], 4095);
        content.flip_bit(0);
        assert_eq!(copy.to_vec(), vec![1; 10_000]);
    }
}

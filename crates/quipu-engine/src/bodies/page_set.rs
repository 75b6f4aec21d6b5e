//! A set of a body's pages, one bit per page.

/// A set of pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageSet(Vec<u64>); // the last word is not 0

impl PageSet {
    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the set contains a page.
    pub fn contains(&self, page: usize) -> bool {
        self.0.get(page / 64).is_some_and(|bits| bits & 1 << (page % 64) != 0)
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Inserts a page.
    pub fn insert(&mut self, page: usize) {
        if self.0.len() <= page / 64 {
            self.0.resize(page / 64 + 1, 0);
        }
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// Inserts all pages of a range.
    pub fn insert_range(&mut self, pages: std::ops::Range<usize>) {
        pages.for_each(|page| self.insert(page));
    }

    /// Inserts all pages of another set.
    pub fn insert_set(&mut self, other: &PageSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits |= other);
    }

    /// Removes all pages of another set.
    pub fn remove_set(&mut self, other: &PageSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits &= !other);
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// The pages, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(index * 64 + bit)
            })
        })
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.0.capacity() * 8
    }
}

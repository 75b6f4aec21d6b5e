//! Count-Min sketch: the number of occurrences of each item, never below the truth.
//!
//! ```text
//! 0  1                              2 .. 4  4 .. 8  8 .. 16    16 ..
//! 1  0 = linear, 1 = conservative   depth   width   N, u64 LE  cells, u32 LE, row by row
//! ```
//!
//! An item has one cell in each of `depth` rows. There are two updates:
//! - *linear* adds to all of them, as RedisBloom does: such sketches can be added and subtracted;
//! - *conservative* raises a cell only to the item's new count, if it is below. Subtraction is
//!   impossible. Frequent items are nearly exact, because rare items in their cells no longer add
//!   to them.
//!
//! A cell never saturates: an add that does not fit is refused, and nothing changes.
//!
//! Items are hashed under a secret [`Key`].

use crate::edit::{put, replace};
use crate::key::{bucket_of, rehash};
use crate::{BYTES_MAX, CorruptSketch, Edits, Key, SketchError};

/// Most rows of a new sketch. At this depth an answer beyond its error bound is less likely than
/// memory damage. Each row costs an item one access to distant memory.
pub const DEPTH_MAX: u32 = 64;

const HEADER: usize = 16;
const N: usize = 8;

/// Update rule of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Adds the weight to every cell of the item.
    Linear = 0,
    /// Raises the cells below the item's new count to that count.
    Conservative = 1,
}

/// Estimated frequency of an item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frequency {
    /// Upper bound of its count.
    pub at_most: u64,
    /// Most likely count, if the load of its cells by other items is average: count-mean-min. It
    /// may be below the truth.
    pub typical: u64,
    /// Sum of all weights.
    pub n: u64,
    /// Error bound ε·N: `at_most` exceeds the truth by no more, except with the sketch's error
    /// probability.
    pub excess: u64,
}

/// A sketch of item frequencies.
#[derive(Debug, Clone)]
pub struct CountMin {
    /// Bytes as drawn above, with all cells.
    bytes: Vec<u8>,
    update: Update,
    width: u32,
    depth: u32,
    /// Sum of each row.
    sums: Vec<u64>,
}

impl CountMin {
    /// Creates a sketch of the given size.
    pub fn by_size(update: Update, width: u32, depth: u32) -> Result<CountMin, SketchError> {
        if width == 0 {
            return Err(SketchError::Parameter("invalid width"));
        }
        if depth == 0 || depth > DEPTH_MAX {
            return Err(SketchError::Parameter("invalid depth"));
        }
        let bytes = HEADER as u64 + 4 * u64::from(width) * u64::from(depth);
        if bytes > BYTES_MAX as u64 {
            return Err(SketchError::TooLarge { bytes });
        }
        let mut sketch = vec![0; bytes as usize];
        sketch[..2].copy_from_slice(&[1, update as u8]);
        sketch[2..4].copy_from_slice(&(depth as u16).to_le_bytes());
        sketch[4..8].copy_from_slice(&width.to_le_bytes());
        Ok(CountMin { bytes: sketch, update, width, depth, sums: vec![0; depth as usize] })
    }

    /// Creates a sketch with an excess above `error`·N with at most this probability.
    ///
    /// Linear sketches get the size of RedisBloom, ⌈2/ε⌉ × ⌈log₂ 1/δ⌉ with logarithms in single
    /// precision. Conservative ones get ⌈e/ε⌉ × ⌈ln 1/δ⌉.
    pub fn by_error(update: Update, error: f64, probability: f64) -> Result<CountMin, SketchError> {
        let inside = |value: f64| value > 0.0 && value < 1.0;
        if !inside(error) {
            return Err(SketchError::Parameter("invalid overestimation value"));
        }
        if !inside(probability) {
            return Err(SketchError::Parameter("invalid prob value"));
        }
        let (width, depth) = match update {
            Update::Linear => ((2.0 / error).ceil(), f64::from(((probability as f32).log10() / 0.5f32.log10()).ceil())),
            Update::Conservative => ((std::f64::consts::E / error).ceil(), (1.0 / probability).ln().ceil()),
        };
        if depth > f64::from(DEPTH_MAX) {
            return Err(SketchError::Parameter("invalid prob value"));
        }
        let bytes = HEADER as f64 + 4.0 * width * depth;
        if bytes > BYTES_MAX as f64 {
            return Err(SketchError::TooLarge { bytes: bytes as u64 });
        }
        CountMin::by_size(update, width as u32, (depth as u32).max(1))
    }

    /// Decodes the output of [`bytes`](CountMin::bytes).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<CountMin, CorruptSketch> {
        let Some((header, cells)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(CorruptSketch("frequencies are too short"));
        };
        let update = match header[..2] {
            [1, 0] => Update::Linear,
            [1, 1] => Update::Conservative,
            _ => return Err(CorruptSketch("frequencies of an unknown form")),
        };
        let depth = u32::from(u16::from_le_bytes([header[2], header[3]]));
        let width = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let n = u64::from_le_bytes(*header.last_chunk().expect("16 bytes have 8"));
        if width == 0
            || depth == 0
            || cells.len() as u64 != 4 * u64::from(width) * u64::from(depth)
            || cells.len() > BYTES_MAX
        {
            return Err(CorruptSketch("the size of frequencies"));
        }
        let sums = sums(cells, width);
        let plausible = |sum: &u64| if update == Update::Linear { *sum == n } else { *sum <= n };
        if !sums.iter().all(plausible) {
            return Err(CorruptSketch("a row of frequencies does not add up"));
        }
        Ok(CountMin { bytes, update, width, depth, sums })
    }

    /// Returns the whole state, as drawn above.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`bytes`](CountMin::bytes), but consumes the sketch.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        size_of::<CountMin>() + self.bytes.capacity() + 8 * self.sums.capacity()
    }

    /// Returns the update rule.
    pub fn update(&self) -> Update {
        self.update
    }

    /// Returns the number of cells in a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the number of rows.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the sum of all weights, N.
    pub fn n(&self) -> u64 {
        u64::from_le_bytes(self.bytes[N..HEADER].try_into().expect("it is 8 bytes"))
    }

    /// Returns ε: an answer exceeds the truth by at most ε·N, except with probability
    /// [`delta`](CountMin::delta).
    pub fn epsilon(&self) -> f64 {
        let cells = f64::from(self.width);
        if self.update == Update::Linear { 2.0 / cells } else { std::f64::consts::E / cells }
    }

    /// Returns δ, the probability of a larger excess.
    pub fn delta(&self) -> f64 {
        let rows = f64::from(self.depth);
        if self.update == Update::Linear { (-rows).exp2() } else { (-rows).exp() }
    }

    /// Counts an item; returns its upper bound. Refused if a cell would overflow.
    #[inline]
    pub fn add(&mut self, key: &Key, item: &[u8], weight: u64, edits: &mut Edits) -> Result<u64, SketchError> {
        self.add_hash(key.hash(item), weight, edits)
    }

    /// Counts several items, all or none; returns their upper bounds.
    pub fn add_all(&mut self, key: &Key, items: &[(&[u8], u64)], edits: &mut Edits) -> Result<Vec<u64>, SketchError> {
        let total = items.iter().try_fold(self.n(), |total, (_, weight)| total.checked_add(*weight));
        let total = total.ok_or(SketchError::Overflow)?;
        // No cell exceeds the sum of all weights.
        if total <= u64::from(u32::MAX) {
            return items.iter().map(|(item, weight)| self.add(key, item, *weight, edits)).collect();
        }
        let n = self.n();
        let mut before: Vec<(u32, u32, u32)> = Vec::new();
        let mut counted = Vec::with_capacity(items.len());
        for (item, weight) in items {
            let hash = key.hash(item);
            before.extend((0..self.depth).map(|row| {
                let at = self.position(hash, row);
                (row, at as u32, self.cell(at))
            }));
            match self.add_hash(hash, *weight, edits) {
                Ok(count) => counted.push(count),
                Err(refused) => {
                    // Backwards, so the oldest value of a cell is restored last.
                    for (row, at, cell) in before.into_iter().rev() {
                        let at = at as usize;
                        self.sums[row as usize] -= u64::from(self.cell(at) - cell);
                        self.bytes[at..at + 4].copy_from_slice(&cell.to_le_bytes());
                    }
                    self.bytes[N..HEADER].copy_from_slice(&n.to_le_bytes());
                    edits.clear();
                    return Err(refused);
                }
            }
        }
        Ok(counted)
    }

    /// Counts an item by its hash.
    pub fn add_hash(&mut self, hash: u64, weight: u64, edits: &mut Edits) -> Result<u64, SketchError> {
        let (mut least, mut most) = (u32::MAX, 0);
        for row in 0..self.depth {
            let cell = self.cell(self.position(hash, row));
            least = least.min(cell);
            most = most.max(cell);
        }
        if weight == 0 {
            return Ok(u64::from(least));
        }
        let weight32 = u32::try_from(weight).map_err(|_| SketchError::Overflow)?;
        let highest = if self.update == Update::Linear { most } else { least };
        highest.checked_add(weight32).ok_or(SketchError::Overflow)?;
        let n = self.n().checked_add(weight).ok_or(SketchError::Overflow)?;
        for row in 0..self.depth {
            let at = self.position(hash, row);
            let before = self.cell(at);
            let after = match self.update {
                Update::Linear => before + weight32,
                Update::Conservative => before.max(least + weight32),
            };
            if after != before {
                put(&mut self.bytes, edits, at, 4, &after.to_le_bytes());
                self.sums[row as usize] += u64::from(after - before);
            }
        }
        put(&mut self.bytes, edits, N, 8, &n.to_le_bytes());
        Ok(u64::from(least + weight32))
    }

    /// Returns the frequency of an item.
    pub fn query(&self, key: &Key, item: &[u8]) -> Frequency {
        self.query_hash(key.hash(item))
    }

    /// Returns the frequency of an item, by its hash.
    pub fn query_hash(&self, hash: u64) -> Frequency {
        let n = self.n();
        let at_most = (0..self.depth).map(|row| self.cell(self.position(hash, row))).min().unwrap_or(0);
        Frequency {
            at_most: u64::from(at_most),
            typical: self.typical(hash, at_most),
            n,
            excess: (self.epsilon() * n as f64).ceil() as u64,
        }
    }

    /// Replaces the content by the weighted sum of others, as `CMS.MERGE` does. Earlier counts are
    /// lost unless they are among them. Refused if a cell would overflow or fall below zero. A
    /// conservative sketch refuses negative weights.
    pub fn set_to_sum(&mut self, others: &[(&CountMin, i64)], edits: &mut Edits) -> Result<(), SketchError> {
        let merged = self.sum(others)?;
        *self = CountMin { bytes: std::mem::take(&mut self.bytes), ..merged.0 };
        replace(&mut self.bytes, edits, merged.1);
        Ok(())
    }

    /// Adds the counts of others.
    pub fn merge(&mut self, others: &[&CountMin], edits: &mut Edits) -> Result<(), SketchError> {
        let mine = self.clone();
        let all: Vec<_> = others.iter().copied().chain([&mine]).map(|other| (other, 1)).collect();
        self.set_to_sum(&all, edits)
    }

    fn sum(&self, others: &[(&CountMin, i64)]) -> Result<(CountMin, Vec<u8>), SketchError> {
        let alike =
            |other: &CountMin| (other.update, other.width, other.depth) == (self.update, self.width, self.depth);
        if !others.iter().all(|(other, _)| alike(other)) {
            return Err(SketchError::Mismatch);
        }
        if self.update == Update::Conservative && others.iter().any(|(_, weight)| *weight < 0) {
            return Err(SketchError::Parameter("conservative frequencies cannot be subtracted"));
        }
        let n: i128 = others.iter().map(|(other, weight)| i128::from(other.n()) * i128::from(*weight)).sum();
        let n = u64::try_from(n).map_err(|_| SketchError::Overflow)?;
        let mut bytes = self.bytes[..HEADER].to_vec();
        bytes[N..].copy_from_slice(&n.to_le_bytes());
        bytes.reserve_exact(self.bytes.len() - HEADER);
        for at in (HEADER..self.bytes.len()).step_by(4) {
            let cell: i128 =
                others.iter().map(|(other, weight)| i128::from(other.cell(at)) * i128::from(*weight)).sum();
            bytes.extend_from_slice(&u32::try_from(cell).map_err(|_| SketchError::Overflow)?.to_le_bytes());
        }
        let sums = sums(&bytes[HEADER..], self.width);
        Ok((CountMin { bytes: Vec::new(), sums, ..*self }, bytes))
    }

    /// Returns the median of the rows' counts, each less the average load of other items.
    ///
    /// A conservative count above the mean of all cells comes from its item almost alone, so
    /// nothing is subtracted from it.
    fn typical(&self, hash: u64, at_most: u32) -> u64 {
        let row = |row: u32| {
            let cell = f64::from(self.cell(self.position(hash, row)));
            (cell, (self.sums[row as usize] as f64 - cell) / f64::from(self.width - 1))
        };
        let stands_out = || (0..self.depth).all(|index| f64::from(at_most) > row(index).1);
        if self.width == 1 || (self.update == Update::Conservative && stands_out()) {
            return u64::from(at_most);
        }
        let mut rows: Vec<f64> = (0..self.depth).map(row).map(|(cell, others)| cell - others).collect();
        rows.sort_unstable_by(f64::total_cmp);
        let (low, high) = (rows[(rows.len() - 1) / 2], rows[rows.len() / 2]);
        ((low + high) / 2.0).round().clamp(0.0, f64::from(at_most)) as u64
    }

    #[inline]
    fn position(&self, hash: u64, row: u32) -> usize {
        HEADER + 4 * (row as usize * self.width as usize + bucket_of(rehash(hash, u64::from(row)), self.width))
    }

    #[inline]
    fn cell(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("it is 4 bytes"))
    }
}

fn sums(cells: &[u8], width: u32) -> Vec<u64> {
    let row = |row: &[u8]| row.as_chunks::<4>().0.iter().map(|cell| u64::from(u32::from_le_bytes(*cell))).sum();
    cells.chunks_exact(4 * width as usize).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key(*b"a key of a test.");

    fn linear(width: u32, depth: u32) -> CountMin {
        CountMin::by_size(Update::Linear, width, depth).unwrap()
    }

    #[test]
    fn sizes_are_those_of_redisbloom() {
        let table = include_str!("../testdata/cms-sizes.txt");
        for line in table.lines().skip(1) {
            let words: Vec<f64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let sketch = CountMin::by_error(Update::Linear, words[0], words[1]).unwrap();
            assert_eq!((f64::from(sketch.width()), f64::from(sketch.depth())), (words[2], words[3]), "{line}");
        }
        assert_eq!(table.lines().count(), 181);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_before_memory_is_asked_for() {
        for bad in [0.0, 1.0, -0.5, 2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for update in [Update::Linear, Update::Conservative] {
                assert!(matches!(CountMin::by_error(update, bad, 0.1), Err(SketchError::Parameter(_))), "{bad}");
                assert!(matches!(CountMin::by_error(update, 0.1, bad), Err(SketchError::Parameter(_))), "{bad}");
            }
        }
        assert!(matches!(CountMin::by_error(Update::Linear, 1e-300, 0.1), Err(SketchError::TooLarge { .. })));
        assert!(matches!(CountMin::by_error(Update::Conservative, 0.1, 1e-300), Err(SketchError::Parameter(_))));
        assert!(matches!(CountMin::by_size(Update::Linear, u32::MAX, DEPTH_MAX), Err(SketchError::TooLarge { .. })));
        assert!(matches!(CountMin::by_size(Update::Linear, 1, DEPTH_MAX + 1), Err(SketchError::Parameter(_))));
        assert!(matches!(CountMin::by_size(Update::Linear, 0, 1), Err(SketchError::Parameter(_))));
        assert!(matches!(CountMin::by_size(Update::Linear, 1, 0), Err(SketchError::Parameter(_))));
        let largest = (BYTES_MAX - HEADER) as u32 / 4;
        assert!(CountMin::by_size(Update::Linear, largest, 1).is_ok());
        assert!(CountMin::by_size(Update::Linear, largest + 1, 1).is_err());
    }

    #[test]
    fn a_cell_never_saturates() {
        for update in [Update::Linear, Update::Conservative] {
            let mut sketch = CountMin::by_size(update, 10, 2).unwrap();
            let mut edits = Edits::new();
            let most = u64::from(u32::MAX);
            assert_eq!(sketch.add(&KEY, b"x", most, &mut edits), Ok(most));
            edits.clear();
            assert_eq!(sketch.add(&KEY, b"x", 1, &mut edits), Err(SketchError::Overflow));
            assert_eq!(sketch.add(&KEY, b"y", most + 1, &mut edits), Err(SketchError::Overflow));
            assert_eq!(sketch.add(&KEY, b"x", 0, &mut edits), Ok(most));
            assert!(edits.is_empty());
            assert_eq!((sketch.query(&KEY, b"x").at_most, sketch.n()), (most, most));
        }
    }

    #[test]
    fn several_items_are_counted_or_none_is() {
        let most = u64::from(u32::MAX);
        for update in [Update::Linear, Update::Conservative] {
            let mut sketch = CountMin::by_size(update, 1000, 3).unwrap();
            let mut edits = Edits::new();
            assert_eq!(sketch.add_all(&KEY, &[(b"x", most - 1), (b"y", 5)], &mut edits).map(|all| all.len()), Ok(2));
            let (bytes, sums) = (sketch.bytes.clone(), sketch.sums.clone());
            edits.clear();
            let refused = sketch.add_all(&KEY, &[(b"z", 7), (b"z", 7), (b"y", 1), (b"x", 2), (b"z", 1)], &mut edits);
            assert_eq!((refused, edits.is_empty()), (Err(SketchError::Overflow), true));
            assert!(sketch.bytes == bytes && sketch.sums == sums);
            assert_eq!(sketch.add_all(&KEY, &[(b"x", 1), (b"x", u64::MAX)], &mut edits), Err(SketchError::Overflow));
            assert!(sketch.bytes == bytes && sketch.sums == sums);
            assert!(sketch.add_all(&KEY, &[(b"z", 1), (b"z", 1)], &mut edits).is_ok() && !edits.is_empty());
            CountMin::from_bytes(sketch.into_bytes()).unwrap();
        }
    }

    #[test]
    fn merges_add_and_subtract() {
        let (mut a, mut b, mut to) = (linear(100, 3), linear(100, 3), linear(100, 3));
        let mut edits = Edits::new();
        a.add(&KEY, b"x", 5, &mut edits).unwrap();
        a.add(&KEY, b"y", 3, &mut edits).unwrap();
        b.add(&KEY, b"x", 2, &mut edits).unwrap();
        to.set_to_sum(&[(&a, 2), (&b, -3)], &mut edits).unwrap();
        assert_eq!((to.query(&KEY, b"x").at_most, to.query(&KEY, b"y").at_most, to.n()), (4, 6, 10));
        let before = to.bytes().to_vec();
        assert_eq!(to.set_to_sum(&[(&a, 1), (&b, -3)], &mut edits), Err(SketchError::Overflow));
        assert_eq!(to.set_to_sum(&[(&a, i64::MAX), (&b, i64::MAX)], &mut edits), Err(SketchError::Overflow));
        assert_eq!(to.set_to_sum(&[(&linear(50, 3), 1)], &mut edits), Err(SketchError::Mismatch));
        assert_eq!(to.bytes(), before);
        to.merge(&[&a], &mut edits).unwrap();
        assert_eq!(to.query(&KEY, b"x").at_most, 9);
        let mut careful = CountMin::by_size(Update::Conservative, 100, 3).unwrap();
        let other = careful.clone();
        assert!(careful.set_to_sum(&[(&other, -1)], &mut edits).is_err());
        assert_eq!(careful.merge(&[&a], &mut edits), Err(SketchError::Mismatch));
    }

    #[test]
    fn answers_are_never_too_low_and_rarely_too_high() {
        for update in [Update::Linear, Update::Conservative] {
            let mut sketch = CountMin::by_error(update, 0.01, 0.01).unwrap();
            let mut truth = std::collections::HashMap::new();
            for n in 0..20_000u64 {
                let item = rehash(n, 7) % (1 + rehash(n, 8) % 1000);
                *truth.entry(item).or_insert(0) += 1 + n % 3;
                sketch.add(&KEY, &item.to_le_bytes(), 1 + n % 3, &mut Edits::new()).unwrap();
            }
            let mut beyond = 0;
            for (item, count) in &truth {
                let known = sketch.query(&KEY, &item.to_le_bytes());
                assert!(known.at_most >= *count && known.typical <= known.at_most);
                beyond += usize::from(known.at_most > count + known.excess);
            }
            assert!(beyond as f64 <= 0.01 * truth.len() as f64, "{beyond} of {}", truth.len());
            assert_eq!(sketch.n(), truth.values().sum::<u64>());
        }
    }
}

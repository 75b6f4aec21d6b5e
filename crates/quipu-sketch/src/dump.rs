//! Encodes a whole sketch as one byte string, panes included, for export from a server.
//!
//! ```text
//! a plain sketch    its bytes, as drawn with its kind
//! a ring            its bytes, then for each slot with a pane, in order: length u32 LE, bytes of the pane
//! ```
//!
//! The kind is stored beside the string. Every kind begins with the version of its layout. A ring
//! contains the kind and the number of its panes.
//!
//! Not here: the key that items were hashed under. A dump names it by its fingerprint
//! (`quipu_model::Dump`).

use crate::{BYTES_MAX, CorruptSketch, Ring, Sketch, SketchKind};

/// A sketch and its panes.
#[derive(Debug, Clone)]
pub struct Dump {
    /// The sketch, or the ring of panes.
    pub sketch: Sketch,
    /// For a ring: each occupied slot, in order, with its pane.
    pub panes: Vec<(u32, Sketch)>,
}

impl Dump {
    /// Encodes a sketch and its panes, which are in the order of their slots.
    pub fn encode<'p>(sketch: &Sketch, panes: impl Iterator<Item = &'p Sketch>) -> Vec<u8> {
        let mut out = sketch.bytes().to_vec();
        for pane in panes {
            let bytes = pane.bytes();
            // A sketch has at most `BYTES_MAX` bytes.
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        out
    }

    /// Decodes the output of [`encode`](Dump::encode), and checks it in full.
    pub fn decode(kind: SketchKind, bytes: &[u8]) -> Result<Dump, CorruptSketch> {
        if kind != SketchKind::Ring {
            if bytes.len() > BYTES_MAX {
                return Err(CorruptSketch("a sketch longer than any"));
            }
            return Ok(Dump { sketch: Sketch::from_bytes(kind, bytes.to_vec())?, panes: Vec::new() });
        }
        let cut = CorruptSketch("a dump of a sketch over time that ends early");
        let (ring, mut rest) = bytes.split_at_checked(Ring::bytes_of(bytes).ok_or(cut)?).ok_or(cut)?;
        let ring = Ring::from_bytes(ring.to_vec())?;
        let mut panes = Vec::new();
        for slot in (0..ring.slots()).filter(|slot| ring.pane_in(*slot).is_some()) {
            let (length, after) = rest.split_first_chunk::<4>().ok_or(cut)?;
            let (pane, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(cut)?;
            let pane = Sketch::from_bytes(ring.kind(), pane.to_vec())?;
            if !ring.is_pane(&pane) {
                return Err(CorruptSketch("a pane of another size than its ring says"));
            }
            panes.push((slot, pane));
            rest = after;
        }
        if !rest.is_empty() {
            return Err(CorruptSketch("bytes behind the last pane of a sketch over time"));
        }
        Ok(Dump { sketch: Sketch::Ring(ring), panes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count_min::Update;
    use crate::ring::RingMode;
    use crate::window::Panes;
    use crate::{CountMin, Edits, Hll, Key, Top, Unique};

    const KEY: Key = Key([7; 16]);

    #[test]
    fn every_kind_comes_back_from_its_dump() {
        let mut unique = Unique::new();
        unique.add(&KEY, b"a", &mut Edits::new());
        for sketch in [
            Sketch::Hll(Hll::new()),
            Sketch::Unique(unique),
            Sketch::Cms(CountMin::by_size(Update::Linear, 50, 3).unwrap()),
            Sketch::Frequency(CountMin::by_size(Update::Conservative, 50, 3).unwrap()),
            Sketch::TopK(Top::reserve(7, 9, 5, 0.5).unwrap()),
            Sketch::Top(Top::reserve(100, 8, 7, 0.9).unwrap()),
        ] {
            let bytes = Dump::encode(&sketch, std::iter::empty());
            assert_eq!(bytes, sketch.bytes(), "a plain sketch is its bytes at rest");
            let again = Dump::decode(sketch.kind(), &bytes).unwrap();
            assert_eq!((again.sketch.bytes(), again.panes.len()), (sketch.bytes(), 0));
            assert_eq!(SketchKind::from_name(sketch.kind().name()), Some(sketch.kind()));
        }
    }

    #[test]
    fn a_ring_comes_back_with_its_panes_and_damage_is_noticed() {
        let (mut edits, mut first) = (Edits::new(), Unique::new());
        first.add(&KEY, b"a", &mut edits);
        let first = Sketch::Unique(first);
        let mut ring = Ring::new(RingMode::Panes(Panes::new(1_000, 3).unwrap()), &first).unwrap();
        ring.begin(8_000, &mut edits);
        ring.begin(10_000, &mut edits);
        let second = ring.pane().unwrap();
        let sketch = Sketch::Ring(ring);
        let bytes = Dump::encode(&sketch, [&second, &first].into_iter());
        let again = Dump::decode(SketchKind::Ring, &bytes).unwrap();
        assert_eq!(again.sketch.bytes(), sketch.bytes());
        let panes: Vec<(u32, &[u8])> = again.panes.iter().map(|(slot, pane)| (*slot, pane.bytes())).collect();
        assert_eq!(panes, [(1, second.bytes()), (2, first.bytes())]);
        for cut in 0..bytes.len() {
            assert!(Dump::decode(SketchKind::Ring, &bytes[..cut]).is_err(), "{cut}");
        }
        assert!(Dump::decode(SketchKind::Ring, &[&bytes[..], &[0]].concat()).is_err(), "one byte more");
        assert!(Dump::decode(SketchKind::Unique, &bytes).is_err(), "another kind");
        let other = Sketch::Cms(CountMin::by_size(Update::Linear, 50, 3).unwrap());
        let mut ring = Ring::new(RingMode::Panes(Panes::new(1_000, 1).unwrap()), &other).unwrap();
        ring.begin(8_000, &mut edits);
        let smaller = Sketch::Cms(CountMin::by_size(Update::Linear, 40, 3).unwrap());
        let wrong = Dump::encode(&Sketch::Ring(ring), std::iter::once(&smaller));
        assert!(Dump::decode(SketchKind::Ring, &wrong).is_err(), "a pane of another size");
    }
}

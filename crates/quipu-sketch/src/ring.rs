//! Ring of panes: a sketch over time.
//!
//! A windowed counter is this ring, and one sketch per pane beside it. The storage code finds a
//! pane's sketch by its slot in the ring. A list that decays is a ring of one pane that never
//! leaves.
//!
//! ```text
//! 0  1                    2                  3 .. 8  8 .. 16                       16 .. 20
//! 1  kind of every pane   0 panes, 1 decay   0       ms of a pane, or a half-life  slots
//!
//! 20 .. 24  24 .. 28  28 .. 32  32 .. 40                   40 .. 48     48 .. 56
//! width     depth     k         decay, f64, of the sketch  late events  landmark of a decay, or 0
//!
//! 56 ..  of each slot the number of its pane plus one, u64; 0: it is empty
//! ```
//!
//! All little-endian.
//!
//! Invariants:
//! - an occupied slot holds a pane with a number that maps to it;
//! - the sizes are valid for a sketch of the kind.

use crate::count_min::Update;
use crate::edit::put;
use crate::top::Top;
use crate::unique::Unique;
use crate::window::{Decay, PANES_MAX, PanePosition, Panes};
use crate::{CorruptSketch, CountMin, Edits, Hll, Sketch, SketchError, SketchKind};

const HEADER: usize = 56;
const LATE: usize = 40;
const LANDMARK: usize = 48;

/// Expiry mode of a sketch over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingMode {
    /// One pane at a time.
    Panes(Panes),
    /// Continuously, by a half-life.
    Decay(Decay),
}

/// Kind and sizes of every pane.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PaneSpec {
    kind: SketchKind,
    width: u32,
    depth: u32,
    k: u32,
    decay: f64,
}

impl PaneSpec {
    fn from_sketch(like: &Sketch) -> Result<PaneSpec, SketchError> {
        let none = PaneSpec { kind: like.kind(), width: 0, depth: 0, k: 0, decay: 0.0 };
        Ok(match like {
            Sketch::Hll(_) | Sketch::Unique(_) => none,
            Sketch::Cms(counts) | Sketch::Frequency(counts) => {
                PaneSpec { width: counts.width(), depth: counts.depth(), ..none }
            }
            Sketch::TopK(list) | Sketch::Top(list) => {
                let info = list.info();
                PaneSpec { width: info.width, depth: info.depth, k: info.k, decay: info.decay, ..none }
            }
            Sketch::Ring(_) | Sketch::Replayed(..) => return Err(SketchError::Parameter("a pane is a plain sketch")),
        })
    }
}

/// A sketch over time, without its panes.
#[derive(Debug, Clone)]
pub struct Ring {
    /// Bytes as drawn above.
    bytes: Vec<u8>,
    mode: RingMode,
    pane_spec: PaneSpec,
}

impl Ring {
    /// Length of the header, by which edits of the header are recognised.
    pub const HEADER_BYTES: usize = HEADER;

    /// Creates a ring with panes of this sketch's kind and sizes; its content does not matter.
    pub fn new(mode: RingMode, like: &Sketch) -> Result<Ring, SketchError> {
        let pane_spec = PaneSpec::from_sketch(like)?;
        let (form, length, slots, landmark) = match mode {
            RingMode::Panes(panes) => (0, panes.pane(), panes.count(), 0),
            RingMode::Decay(decay) => (1, decay.half_life(), 1, decay.landmark()),
        };
        let mut bytes = vec![0; HEADER + 8 * slots as usize];
        bytes[..3].copy_from_slice(&[1, pane_spec.kind.code(), form]);
        bytes[8..16].copy_from_slice(&length.to_le_bytes());
        for (at, number) in [(16, slots), (20, pane_spec.width), (24, pane_spec.depth), (28, pane_spec.k)] {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&pane_spec.decay.to_le_bytes());
        bytes[LANDMARK..LANDMARK + 8].copy_from_slice(&landmark.to_le_bytes());
        let ring = Ring { bytes, mode, pane_spec };
        ring.pane().map(|_| ring)
    }

    /// Decodes the output of [`bytes`](Ring::bytes).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Ring, CorruptSketch> {
        let wrong = CorruptSketch("the header of a sketch over time");
        if bytes.len() < HEADER || bytes[0] != 1 || bytes[3..8] != [0; 5] {
            return Err(wrong);
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("it is 4 bytes"));
        let (length, slots, landmark) = (long(&bytes, 8), word(16), long(&bytes, LANDMARK));
        let mode = match bytes[2] {
            0 if landmark == 0 => RingMode::Panes(Panes::new(length, slots).ok_or(wrong)?),
            1 if slots == 1 && length > 0 => RingMode::Decay(Decay::new(length, landmark)),
            _ => return Err(wrong),
        };
        if slots > PANES_MAX || bytes.len() != HEADER + 8 * slots as usize {
            return Err(CorruptSketch("the length of a sketch over time"));
        }
        let kind = SketchKind::from_code(bytes[1]).ok_or(wrong)?;
        let decay = f64::from_bits(long(&bytes, 32));
        let pane_spec = PaneSpec { kind, width: word(20), depth: word(24), k: word(28), decay };
        let ring = Ring { bytes, mode, pane_spec };
        ring.pane().map_err(|_| CorruptSketch("the sizes of a sketch over time"))?;
        for slot in 0..slots {
            if ring.pane_in(slot).is_some_and(|pane| ring.slot_of(pane) != slot) {
                return Err(CorruptSketch("a pane of a sketch over time is in another's slot"));
            }
        }
        Ok(ring)
    }

    /// Returns the length of the ring at the start of these bytes; `None` if they are too short.
    pub(crate) fn bytes_of(bytes: &[u8]) -> Option<usize> {
        let slots = bytes.get(16..20)?.try_into().ok().map(u32::from_le_bytes)?;
        (slots <= PANES_MAX).then_some(HEADER + 8 * slots as usize)
    }

    /// Returns the whole state, without the panes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`bytes`](Ring::bytes), but consumes the ring.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Ring>() + self.bytes.capacity()
    }

    /// Returns the kind of every pane.
    pub fn kind(&self) -> SketchKind {
        self.pane_spec.kind
    }

    /// Returns the expiry mode.
    pub fn mode(&self) -> RingMode {
        self.mode
    }

    /// Creates an empty pane.
    pub fn pane(&self) -> Result<Sketch, SketchError> {
        let PaneSpec { kind, width, depth, k, decay } = self.pane_spec;
        let list = || Top::reserve(k, width, depth, decay);
        Ok(match kind {
            SketchKind::Hll => Sketch::Hll(Hll::new()),
            SketchKind::Unique => Sketch::Unique(Unique::new()),
            SketchKind::Cms => Sketch::Cms(CountMin::by_size(Update::Linear, width, depth)?),
            SketchKind::Frequency => Sketch::Frequency(CountMin::by_size(Update::Conservative, width, depth)?),
            SketchKind::TopK => Sketch::TopK(list()?),
            SketchKind::Top => Sketch::Top(list()?),
            SketchKind::Ring => return Err(SketchError::Parameter("a pane is a plain sketch")),
        })
    }

    /// Returns true if a sketch has the kind and sizes of every pane.
    pub fn is_pane(&self, sketch: &Sketch) -> bool {
        PaneSpec::from_sketch(sketch).is_ok_and(|pane_spec| pane_spec == self.pane_spec)
    }

    /// Returns width and depth of every pane; 0 if its kind has none.
    pub fn table(&self) -> (u32, u32) {
        (self.pane_spec.width, self.pane_spec.depth)
    }

    /// Returns the length of every list.
    pub fn k(&self) -> u32 {
        self.pane_spec.k
    }

    /// Returns the decay that a client of RedisBloom requested for every list.
    pub fn list_decay(&self) -> f64 {
        self.pane_spec.decay
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        match self.mode {
            RingMode::Panes(panes) => panes.count(),
            RingMode::Decay(_) => 1,
        }
    }

    /// Returns the number of the pane in a slot.
    pub fn pane_in(&self, slot: u32) -> Option<u64> {
        long(&self.bytes, HEADER + 8 * slot as usize).checked_sub(1)
    }

    /// Returns the slots with a pane of the window at this time.
    pub fn covered(&self, now: u64) -> impl Iterator<Item = u32> + '_ {
        let covered = match self.mode {
            RingMode::Panes(panes) => panes.covered(now),
            RingMode::Decay(_) => 0..=0,
        };
        (0..self.slots()).filter(move |slot| self.pane_in(*slot).is_some_and(|pane| covered.contains(&pane)))
    }

    /// Returns the slot of an event, and true if its pane must be begun. `None` if the event is too
    /// late. An event from the future counts as one of now.
    pub fn locate(&self, time: u64, now: u64) -> Option<(u32, bool)> {
        let time = time.min(now);
        let pane = match self.mode {
            RingMode::Panes(panes) => match panes.locate(time, now) {
                PanePosition::Pane(pane) => pane,
                PanePosition::Late | PanePosition::Ahead => return None,
            },
            RingMode::Decay(decay) if decay.weight(time) == 0 => return None,
            RingMode::Decay(_) => 0,
        };
        let slot = self.slot_of(pane);
        match self.pane_in(slot) {
            // This happens only after a clock was put back.
            Some(newer) if newer > pane => None,
            held => Some((slot, held != Some(pane))),
        }
    }

    /// Begins the pane of this time.
    pub fn begin(&mut self, time: u64, edits: &mut Edits) {
        let pane = match self.mode {
            RingMode::Panes(panes) => panes.pane_of(time),
            RingMode::Decay(_) => 0,
        };
        self.put_slot(self.slot_of(pane), pane + 1, edits);
    }

    /// Empties the slots of panes that have left the window, and returns these slots.
    pub fn expire(&mut self, now: u64, edits: &mut Edits) -> Vec<u32> {
        let RingMode::Panes(panes) = self.mode else { return Vec::new() };
        let expired = |slot: &u32| self.pane_in(*slot).is_some_and(|pane| panes.is_expired(pane, now));
        let slots: Vec<u32> = (0..self.slots()).filter(expired).collect();
        slots.iter().for_each(|slot| self.put_slot(*slot, 0, edits));
        slots
    }

    /// Returns the number of events that came too late to be counted.
    pub fn late(&self) -> u64 {
        long(&self.bytes, LATE)
    }

    /// Adds late events.
    pub fn add_late(&mut self, events: u64, edits: &mut Edits) {
        let late = self.late().saturating_add(events);
        put(&mut self.bytes, edits, LATE, 8, &late.to_le_bytes());
    }

    /// Advances the landmark if weights have become large; returns the number of times that all
    /// counts must be halved.
    pub fn advance_landmark(&mut self, now: u64, edits: &mut Edits) -> Option<u32> {
        let RingMode::Decay(decay) = self.mode else { return None };
        let (decay, halves) = decay.advance_landmark(now)?;
        self.mode = RingMode::Decay(decay);
        put(&mut self.bytes, edits, LANDMARK, 8, &decay.landmark().to_le_bytes());
        Some(halves)
    }

    fn slot_of(&self, pane: u64) -> u32 {
        match self.mode {
            RingMode::Panes(panes) => panes.slot_of(pane) as u32,
            RingMode::Decay(_) => u32::from(pane != 0),
        }
    }

    fn put_slot(&mut self, slot: u32, number: u64, edits: &mut Edits) {
        put(&mut self.bytes, edits, HEADER + 8 * slot as usize, 8, &number.to_le_bytes());
    }
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("it is 8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(like: &Sketch) -> Ring {
        Ring::new(RingMode::Panes(Panes::new(1_000, 3).unwrap()), like).unwrap()
    }

    #[test]
    fn panes_come_and_go_a_slot_at_a_time() {
        let (mut ring, mut edits) = (ring(&Sketch::Unique(Unique::new())), Edits::new());
        assert_eq!(ring.locate(10_500, 10_600), Some((1, true)));
        ring.begin(10_500, &mut edits);
        assert_eq!(ring.locate(10_999, 10_999), Some((1, false)));
        assert_eq!(ring.locate(99_999, 10_600), Some((1, false)), "one from the future is one of now");
        assert_eq!(ring.locate(7_999, 10_600), None, "too late");
        assert_eq!(ring.locate(8_000, 10_600), Some((2, true)));
        ring.begin(8_000, &mut edits);
        assert_eq!(ring.covered(10_600).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(ring.covered(11_000).collect::<Vec<_>>(), [1]);
        assert_eq!(ring.expire(11_000, &mut edits), [2]);
        assert_eq!((ring.pane_in(1), ring.pane_in(2)), (Some(10), None));
        assert_eq!(ring.locate(13_000, 13_000), Some((1, true)), "the slot of another");
        // A clock that was put back.
        ring.begin(13_000, &mut edits);
        assert_eq!(ring.locate(10_500, 10_600), None);
        ring.add_late(7, &mut edits);
        let again = Ring::from_bytes(ring.bytes().to_vec()).unwrap();
        assert_eq!((again.late(), again.pane_in(1), again.mode()), (7, Some(13), ring.mode()));
    }

    #[test]
    fn panes_are_like_what_they_were_made_of() {
        let sketches = [
            Sketch::Hll(Hll::new()),
            Sketch::Cms(CountMin::by_size(Update::Linear, 50, 3).unwrap()),
            Sketch::Frequency(CountMin::by_error(Update::Conservative, 0.001, 0.01).unwrap()),
            Sketch::TopK(Top::reserve(7, 9, 5, 0.5).unwrap()),
            Sketch::Top(Top::reserve(100, 8, 7, 0.9).unwrap()),
        ];
        for sketch in sketches {
            let ring = Ring::from_bytes(ring(&sketch).into_bytes()).unwrap();
            assert_eq!(ring.pane().unwrap().bytes(), sketch.bytes());
            assert_eq!(ring.kind(), sketch.kind());
        }
    }

    #[test]
    fn a_decay_has_one_pane_that_stays() {
        let like = Sketch::Top(Top::reserve(3, 8, 7, 0.9).unwrap());
        let (mut ring, mut edits) =
            (Ring::new(RingMode::Decay(Decay::new(1_000, 5_000)), &like).unwrap(), Edits::new());
        assert_eq!(ring.locate(5_000, 5_000), Some((0, true)));
        ring.begin(5_000, &mut edits);
        assert_eq!(ring.locate(5_000, 5_000), Some((0, false)));
        assert_eq!(ring.covered(u64::MAX).collect::<Vec<_>>(), [0]);
        assert_eq!(ring.expire(u64::MAX, &mut edits), []);
        assert_eq!(
            (ring.advance_landmark(6_000, &mut edits), ring.advance_landmark(13_000, &mut edits)),
            (None, Some(8))
        );
        assert_eq!(Ring::from_bytes(ring.bytes().to_vec()).unwrap().mode(), RingMode::Decay(Decay::new(1_000, 13_000)));
    }

    #[test]
    fn damage_is_noticed() {
        let good = ring(&Sketch::Unique(Unique::new())).into_bytes();
        for (at, byte) in [(0, 2), (1, 0), (1, 7), (1, 99), (2, 1), (2, 2), (3, 1), (16, 2), (16, 4), (48, 1), (56, 2)]
        {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert!(Ring::from_bytes(bytes).is_err(), "{at} {byte}");
        }
        assert!(Ring::from_bytes(good[..good.len() - 1].to_vec()).is_err());
        assert!(Ring::from_bytes(Vec::new()).is_err());
    }
}

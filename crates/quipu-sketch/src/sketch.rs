//! A sketch of any kind, as the storage code handles it: a kind and bytes.

use crate::count_min::Update;
use crate::{CorruptSketch, CountMin, Edit, Hll, Ring, Top, Unique, apply};

/// Kind of a sketch. The codes are stored beside the bytes and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SketchKind {
    /// Distinct items, as Redis counts them.
    Hll = 1,
    /// Distinct items, under a secret key.
    Unique = 2,
    /// Frequencies that can be added and subtracted, as in RedisBloom.
    Cms = 3,
    /// Frequencies by conservative update.
    Frequency = 4,
    /// The most frequent items, for RedisBloom's commands.
    TopK = 5,
    /// The most frequent items.
    Top = 6,
    /// A sketch over time, without its panes, which are of one of the other kinds.
    Ring = 7,
}

impl SketchKind {
    /// All kinds.
    pub const ALL: [SketchKind; 7] = [
        SketchKind::Hll,
        SketchKind::Unique,
        SketchKind::Cms,
        SketchKind::Frequency,
        SketchKind::TopK,
        SketchKind::Top,
        SketchKind::Ring,
    ];

    /// Returns the code of the kind.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the kind of a code.
    pub fn from_code(code: u8) -> Option<SketchKind> {
        SketchKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the name used in dumps and exports.
    pub fn name(self) -> &'static str {
        match self {
            SketchKind::Hll => "hll",
            SketchKind::Unique => "unique",
            SketchKind::Cms => "cms",
            SketchKind::Frequency => "frequency",
            SketchKind::TopK => "topk",
            SketchKind::Top => "top",
            SketchKind::Ring => "ring",
        }
    }

    /// Returns the kind of a name.
    pub fn from_name(word: &str) -> Option<SketchKind> {
        SketchKind::ALL.into_iter().find(|kind| kind.name() == word)
    }
}

/// A sketch of any kind.
#[derive(Debug, Clone)]
pub enum Sketch {
    /// See [`SketchKind::Hll`].
    Hll(Hll),
    /// See [`SketchKind::Unique`].
    Unique(Unique),
    /// See [`SketchKind::Cms`]; linear.
    Cms(CountMin),
    /// See [`SketchKind::Frequency`]; conservative.
    Frequency(CountMin),
    /// See [`SketchKind::TopK`].
    TopK(Top),
    /// See [`SketchKind::Top`].
    Top(Top),
    /// See [`SketchKind::Ring`].
    Ring(Ring),
    /// Replayed bytes that have not been decoded since; [`ready`](Sketch::ready) decodes them into
    /// one of the above.
    Replayed(SketchKind, Vec<u8>),
}

impl Sketch {
    /// Decodes the output of [`bytes`](Sketch::bytes) of this kind, and checks it in full.
    pub fn from_bytes(kind: SketchKind, bytes: Vec<u8>) -> Result<Sketch, CorruptSketch> {
        let with = |update: Update, bytes: Vec<u8>| {
            let counts = CountMin::from_bytes(bytes)?;
            if counts.update() == update { Ok(counts) } else { Err(CorruptSketch("frequencies of the other kind")) }
        };
        Ok(match kind {
            SketchKind::Hll => Sketch::Hll(Hll::from_bytes(bytes)?),
            SketchKind::Unique => Sketch::Unique(Unique::from_bytes(bytes)?),
            SketchKind::Cms => Sketch::Cms(with(Update::Linear, bytes)?),
            SketchKind::Frequency => Sketch::Frequency(with(Update::Conservative, bytes)?),
            SketchKind::TopK => Sketch::TopK(Top::from_bytes(bytes)?),
            SketchKind::Top => Sketch::Top(Top::from_bytes(bytes)?),
            SketchKind::Ring => Sketch::Ring(Ring::from_bytes(bytes)?),
        })
    }

    /// Returns its kind.
    pub fn kind(&self) -> SketchKind {
        match self {
            Sketch::Hll(_) => SketchKind::Hll,
            Sketch::Unique(_) => SketchKind::Unique,
            Sketch::Cms(_) => SketchKind::Cms,
            Sketch::Frequency(_) => SketchKind::Frequency,
            Sketch::TopK(_) => SketchKind::TopK,
            Sketch::Top(_) => SketchKind::Top,
            Sketch::Ring(_) => SketchKind::Ring,
            Sketch::Replayed(kind, _) => *kind,
        }
    }

    /// Returns the whole state.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Sketch::Hll(sketch) => sketch.bytes(),
            Sketch::Unique(sketch) => sketch.bytes(),
            Sketch::Cms(sketch) | Sketch::Frequency(sketch) => sketch.bytes(),
            Sketch::TopK(sketch) | Sketch::Top(sketch) => sketch.bytes(),
            Sketch::Ring(ring) => ring.bytes(),
            Sketch::Replayed(_, bytes) => bytes,
        }
    }

    /// As [`bytes`](Sketch::bytes), but consumes the sketch.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Sketch::Hll(sketch) => sketch.into_bytes(),
            Sketch::Unique(sketch) => sketch.into_bytes(),
            Sketch::Cms(sketch) | Sketch::Frequency(sketch) => sketch.into_bytes(),
            Sketch::TopK(sketch) | Sketch::Top(sketch) => sketch.into_bytes(),
            Sketch::Ring(ring) => ring.into_bytes(),
            Sketch::Replayed(_, bytes) => bytes,
        }
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        match self {
            Sketch::Hll(sketch) => sketch.memory(),
            Sketch::Unique(sketch) => sketch.memory(),
            Sketch::Cms(sketch) | Sketch::Frequency(sketch) => sketch.memory(),
            Sketch::TopK(sketch) | Sketch::Top(sketch) => sketch.memory(),
            Sketch::Ring(ring) => ring.memory(),
            Sketch::Replayed(_, bytes) => size_of::<Sketch>() + bytes.capacity(),
        }
    }

    /// Applies an edit from the journal to the bytes alone. After the last edit
    /// [`ready`](Sketch::ready) rebuilds the derived state once.
    pub fn replay(&mut self, at: u32, removed: u32, with: &[u8]) -> Result<(), CorruptSketch> {
        if let Sketch::Replayed(_, bytes) = self {
            return apply(bytes, at, removed, with);
        }
        let kind = self.kind();
        let sketch = std::mem::replace(self, Sketch::Replayed(kind, Vec::new()));
        *self = Sketch::Replayed(kind, sketch.into_bytes());
        self.replay(at, removed, with)
    }

    /// As [`replay`](Sketch::replay), with an [`Edit`].
    pub fn replay_edit(&mut self, edit: Edit<'_>) -> Result<(), CorruptSketch> {
        self.replay(edit.at, edit.removed, edit.bytes)
    }

    /// Decodes replayed bytes into a usable sketch, or returns the reason why they are not valid.
    pub fn ready(&mut self) -> Result<&mut Sketch, CorruptSketch> {
        if let Sketch::Replayed(kind, bytes) = self {
            *self = Sketch::from_bytes(*kind, std::mem::take(bytes))?;
        }
        Ok(self)
    }
}

//! All of a counter, to be kept or decoded elsewhere.

use quipu_sketch::SketchKind as SketchForm;

use crate::{Kind, Millis};

/// Most bytes of a dump's body: as many as the largest plain sketch has. A sketch over time may have more, and is refused then.
pub const DUMP_BYTES_MAX: usize = quipu_sketch::BYTES_MAX;

/// A counter's content and expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// What it has counted.
    pub content: DumpContent,
    /// When it will expire, if ever.
    pub expires_at: Option<Millis>,
}

/// What a counter has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpContent {
    /// The value of a count.
    Count(i64),
    /// The body of a sketch.
    Sketch(SketchDump),
}

/// The body of a sketch, outside the server that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SketchDump {
    /// What it counts.
    pub kind: Kind,
    /// The layout of its bytes: what [`quipu_sketch::Dump::decode`] is told.
    pub form: SketchForm,
    /// Fingerprint of the secret that its items are hashed under; 0 if that is none. Sketches of two secrets cannot be merged.
    pub key: u64,
    /// As [`quipu_sketch::Dump::encode`] gives them.
    pub body: Vec<u8>,
}

impl Dump {
    /// The kind of the counter.
    pub fn kind(&self) -> Kind {
        match &self.content {
            DumpContent::Count(_) => Kind::Count,
            DumpContent::Sketch(sketch) => sketch.kind,
        }
    }
}

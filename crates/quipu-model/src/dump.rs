//! Dump of a counter, for storage or decoding elsewhere.

use quipu_sketch::SketchKind as SketchForm;

use crate::{Kind, Millis};

/// Most bytes of a dump's body: the size of the largest plain sketch. A sketch over time can be
/// larger; its dump is then refused.
pub const DUMP_BYTES_MAX: usize = quipu_sketch::BYTES_MAX;

/// A counter's content and expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// Counted content.
    pub content: DumpContent,
    /// Expiry time, if any.
    pub expires_at: Option<Millis>,
}

/// Content of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpContent {
    /// The value of a count.
    Count(i64),
    /// The body of a sketch.
    Sketch(SketchDump),
}

/// The body of a sketch outside its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SketchDump {
    /// Kind of the sketch.
    pub kind: Kind,
    /// Layout of the bytes, an argument of [`quipu_sketch::Dump::decode`].
    pub form: SketchForm,
    /// Fingerprint of the secret that the items are hashed with; 0 without a secret. Sketches of
    /// two secrets cannot be merged.
    pub key: u64,
    /// Bytes from [`quipu_sketch::Dump::encode`].
    pub body: Vec<u8>,
}

impl Dump {
    /// Returns the kind of the counter.
    pub fn kind(&self) -> Kind {
        match &self.content {
            DumpContent::Count(_) => Kind::Count,
            DumpContent::Sketch(sketch) => sketch.kind,
        }
    }
}

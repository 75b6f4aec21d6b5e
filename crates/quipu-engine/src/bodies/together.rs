//! Sketches of one counter, laid together: as nodes that share it have them.
//!
//! In: sketches of one kind and size. Out: one that has counted what all of them have.
//!
//! Uniques are the union, which is the same however often one of them is taken in; frequencies the
//! sum; lists the merge of lists.

use quipu_sketch::count_min::Update;
use quipu_sketch::{CountMin, Edits, Hll, Key, Sketch, SketchError, SketchKind, Top, Unique};

use quipu_model::Refusal;

/// Longest item of a top-K list.
pub const ITEM_BYTES_MAX: usize = quipu_sketch::top::ITEM_BYTES_MAX;

/// Converts a sketch's error to a refusal.
pub fn refusal(refused: SketchError) -> Refusal {
    match refused {
        SketchError::Overflow => Refusal::SketchOverflow,
        SketchError::Mismatch => Refusal::SizesDiffer,
        SketchError::ItemTooLong { .. } => Refusal::ItemTooLong { bytes_max: ITEM_BYTES_MAX },
        refused => Refusal::BadSize { reason: refused.to_string() },
    }
}

/// What stands for a key where others are to see whether theirs is the same; what Redis's form
/// hashes by is no secret.
pub fn key_print(key: &Key, kind: SketchKind) -> u64 {
    if kind == SketchKind::Hll { 0 } else { key.hash(b"which key is this") }
}

/// A sketch of the same kind and size that has counted nothing.
pub fn empty_like(sketch: &Sketch) -> Result<Sketch, Refusal> {
    let frequencies = |counts: &CountMin, update| CountMin::by_size(update, counts.width(), counts.depth());
    let list = |list: &Top| {
        let info = list.info();
        Top::reserve(info.k, info.width, info.depth, info.decay)
    };
    Ok(match sketch {
        Sketch::Hll(_) => Sketch::Hll(Hll::new()),
        Sketch::Unique(_) => Sketch::Unique(Unique::new()),
        Sketch::Cms(counts) => Sketch::Cms(frequencies(counts, Update::Linear).map_err(refusal)?),
        Sketch::Frequency(counts) => Sketch::Frequency(frequencies(counts, Update::Conservative).map_err(refusal)?),
        Sketch::TopK(top) => Sketch::TopK(list(top).map_err(refusal)?),
        Sketch::Top(top) => Sketch::Top(list(top).map_err(refusal)?),
        Sketch::Ring(_) | Sketch::Replayed(..) => return Err(Refusal::WrongKind),
    })
}

/// Takes in what another has counted. Refused, it is as it was.
pub fn take_in(into: &mut Sketch, other: &Sketch, key: &Key) -> Result<(), Refusal> {
    if !is_alike(into, other) {
        return Err(Refusal::SizesDiffer);
    }
    let mut edits = Edits::new();
    match (into, other) {
        (Sketch::Hll(into), Sketch::Hll(other)) => into.merge(&[other], &mut edits),
        (Sketch::Unique(into), Sketch::Unique(other)) => into.merge(&[other], &mut edits),
        (Sketch::Cms(into), Sketch::Cms(other)) | (Sketch::Frequency(into), Sketch::Frequency(other)) => {
            into.merge(&[other], &mut edits).map_err(refusal)?;
        }
        (Sketch::TopK(into), Sketch::TopK(other)) | (Sketch::Top(into), Sketch::Top(other)) => {
            into.merge(key, &[other], &mut edits).map_err(refusal)?;
        }
        _ => return Err(Refusal::SizesDiffer),
    }
    Ok(())
}

/// Whether two are of one kind and size, so that they can be laid together.
pub fn is_alike(one: &Sketch, other: &Sketch) -> bool {
    match (one, other) {
        (Sketch::Hll(_), Sketch::Hll(_)) | (Sketch::Unique(_), Sketch::Unique(_)) => true,
        (Sketch::Cms(one), Sketch::Cms(other)) | (Sketch::Frequency(one), Sketch::Frequency(other)) => {
            (one.width(), one.depth()) == (other.width(), other.depth())
        }
        (Sketch::TopK(one), Sketch::TopK(other)) | (Sketch::Top(one), Sketch::Top(other)) => {
            let (one, other) = (one.info(), other.info());
            (one.k, one.slots, one.cells) == (other.k, other.slots, other.cells)
        }
        _ => false,
    }
}

/// Whether it does no harm to take in the same twice.
pub fn is_idempotent(sketch: &Sketch) -> bool {
    matches!(sketch, Sketch::Hll(_) | Sketch::Unique(_))
}

//! Merges the bodies beside a row into one dump, the exported form of a shared sketch.
//!
//! In: bodies of one moment, and the nodes' secret. Out: one body with the content of all.

use quipu_model::SketchDump;
use quipu_model::shared::body::Bodies;
use quipu_sketch::{Dump, Sketch, SketchKind};

use crate::apply::bodies::{key_print, known, shared_key, take_in};

/// Reason why bodies cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// A body from a later program version, or a damaged one.
    #[error("the store has a body that is no sketch known to this program")]
    Unknown,
    /// The row has no body.
    #[error("the store has no body beside the row")]
    Missing,
    /// The nodes have different secrets.
    #[error("nodes hash its items by different secrets")]
    SecretsDiffer,
    /// Several nodes created it at the same time, in different kinds or sizes.
    #[error("nodes have made it in different kinds or sizes")]
    SizesDiffer,
    /// A merge of lists needs the nodes' secret, and the given one differs.
    #[error("a list of several nodes is merged by their store_secret, which was not given")]
    NoSecret,
}

/// Merges the bodies beside a row. Lists of several nodes need the nodes' secret; other sketches do
/// not.
pub fn dump_bodies(bodies: &Bodies, secret: &str) -> Result<SketchDump, MergeError> {
    let shape = bodies.values().next().ok_or(MergeError::Missing)?.shape;
    let form = SketchKind::from_code(shape.kind).ok_or(MergeError::Unknown)?;
    let key = shared_key(secret);
    let is_list = matches!(form, SketchKind::Top | SketchKind::TopK);
    if bodies.len() > 1 && is_list && key_print(&key, form) != shape.key {
        return Err(MergeError::NoSecret);
    }
    let mut merged: Option<Sketch> = None;
    for body in bodies.values() {
        if body.shape.kind != shape.kind {
            return Err(MergeError::SizesDiffer);
        }
        if body.shape.key != shape.key {
            return Err(MergeError::SecretsDiffer);
        }
        let sketch = Sketch::from_bytes(form, body.bytes.clone()).map_err(|_| MergeError::Unknown)?;
        match &mut merged {
            None => merged = Some(sketch),
            Some(merged) => take_in(merged, &sketch, &key).map_err(|_| MergeError::SizesDiffer)?,
        }
    }
    let merged = merged.ok_or(MergeError::Missing)?;
    let body = Dump::encode(&merged, std::iter::empty());
    Ok(SketchDump { kind: known(&merged).kind, form, key: shape.key, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quipu_model::shared::body::{BodyShape, StoredBody};
    use quipu_model::{Incarnation, NodeId, Writer};
    use quipu_sketch::{Edits, Key, Top, Unique};

    fn bodies(sketches: &[Sketch], key: &Key) -> Bodies {
        let one = |(node, sketch): (usize, &Sketch)| {
            let writer = Writer { node: NodeId(node as u64 + 1), incarnation: Incarnation(0) };
            let kind = sketch.kind();
            let length = sketch.bytes().len() as u32;
            let shape = BodyShape { kind: kind.code(), key: key_print(key, kind), length };
            (writer, StoredBody { shape, bytes: sketch.bytes().to_vec() })
        };
        sketches.iter().enumerate().map(one).collect()
    }

    fn unique(key: &Key, items: std::ops::Range<u32>) -> Sketch {
        let mut unique = Unique::new();
        for item in items {
            unique.add(key, &item.to_le_bytes(), &mut Edits::new());
        }
        Sketch::Unique(unique)
    }

    #[test]
    fn bodies_of_several_nodes_are_merged_into_one() {
        let key = shared_key("of the nodes");
        let dump = dump_bodies(&bodies(&[unique(&key, 0..60), unique(&key, 40..100)], &key), "").unwrap();
        let Ok(Sketch::Unique(merged)) = Sketch::from_bytes(dump.form, dump.body) else { panic!("a unique") };
        assert_eq!((merged.estimate().round(), dump.key), (100.0, key_print(&key, SketchKind::Unique)));
    }

    #[test]
    fn an_impossible_merge_is_refused_with_its_reason() {
        let (key, other) = (shared_key("of the nodes"), shared_key(""));
        let list = || Sketch::Top(Top::reserve(3, 8, 7, 0.9).unwrap());
        let larger = Sketch::Top(Top::reserve(9, 8, 7, 0.9).unwrap());
        assert_eq!(dump_bodies(&Bodies::new(), ""), Err(MergeError::Missing));
        assert!(dump_bodies(&bodies(&[list()], &key), "").is_ok(), "one list needs no secret");
        let lists = bodies(&[list(), list()], &key);
        assert_eq!(dump_bodies(&lists, ""), Err(MergeError::NoSecret));
        assert!(dump_bodies(&lists, "of the nodes").is_ok());
        let sizes = bodies(&[list(), larger], &key);
        assert_eq!(dump_bodies(&sizes, "of the nodes"), Err(MergeError::SizesDiffer));
        let mut secrets = bodies(&[unique(&key, 0..1), unique(&key, 0..1)], &key);
        secrets.values_mut().last().unwrap().shape.key = key_print(&other, SketchKind::Unique);
        assert_eq!(dump_bodies(&secrets, ""), Err(MergeError::SecretsDiffer));
        let mut damaged = bodies(&[list()], &key);
        damaged.values_mut().for_each(|body| body.bytes.truncate(9));
        assert_eq!(dump_bodies(&damaged, ""), Err(MergeError::Unknown));
    }
}

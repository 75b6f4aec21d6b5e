//! Tests foreign bytes: they decode to a sketch or an error, and never cause a panic.

use proptest::prelude::*;
use quipu_sketch::{Dump, Edits, Hll, Sketch, SketchKind};

use crate::edits::{Step, ask, empty, run, step};

fn use_it(kind: SketchKind, bytes: Vec<u8>, steps: &[Step]) {
    let _ = Hll::from_redis_string(&bytes);
    let _ = Dump::decode(kind, &bytes);
    if let Ok(mut sketch) = Sketch::from_bytes(kind, bytes) {
        ask(&sketch);
        for step in steps {
            run(&mut sketch, step, &mut Edits::new());
            ask(&sketch);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn any_bytes_are_a_sketch_or_an_error(kind in 0usize..7, bytes in prop::collection::vec(any::<u8>(), 0..300), steps in prop::collection::vec(step(), 0..2)) {
        use_it(SketchKind::ALL[kind], bytes.clone(), &steps);
        // Past the first checks of a header.
        let mut started = bytes;
        for (at, byte) in empty(SketchKind::ALL[kind]).bytes().iter().take(6).enumerate() {
            if let Some(place) = started.get_mut(at) {
                *place = *byte;
            }
        }
        use_it(SketchKind::ALL[kind], started, &steps);
    }

    #[test]
    fn damaged_sketches_are_sketches_or_errors(
        kind in 0usize..7,
        steps in prop::collection::vec(step(), 0..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8, prop::collection::vec(any::<u8>(), 0..8), any::<bool>()), 1..6),
        after in prop::collection::vec(step(), 0..2),
    ) {
        let kind = SketchKind::ALL[kind];
        let mut sketch = empty(kind);
        for step in &steps {
            run(&mut sketch, step, &mut Edits::new());
        }
        for (at, removed, with, head) in damage {
            let len = sketch.bytes().len();
            let at = at.index(if head { len.min(64) } else { len } + 1) as u32;
            let same = with.len() as u32;
            // Half of them keep the length, and so come further.
            let _ = sketch.replay(at, if removed % 2 == 0 { same } else { removed }, &with);
        }
        use_it(kind, sketch.into_bytes(), &after);
    }
}

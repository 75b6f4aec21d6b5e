//! Compares any sequence of calls with a map.

use proptest::prelude::*;
use quipu_testkit::SeededRng;

use crate::{Model, apply, batch, compact_all, ingest, open, read_all};

#[derive(Debug, Clone)]
enum Step {
    Ingest { seed: u64, size: usize },
    Clear,
    CompactOnce,
    CompactAll,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<u64>(), 0..300usize).prop_map(|(seed, size)| Step::Ingest { seed, size }),
        1 => Just(Step::Clear),
        2 => Just(Step::CompactOnce),
        2 => Just(Step::CompactAll),
        2 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_ledger_holds_what_a_map_would(steps in proptest::collection::vec(step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = open(dir.path()).unwrap();
        let mut model = Model::new();
        let mut watermark = None;
        for (number, step) in steps.into_iter().enumerate() {
            let next = number.to_le_bytes();
            match step {
                Step::Ingest { seed, size } => {
                    let batch = batch(&SeededRng::new(seed), size, 400);
                    ingest(&ledger, &batch, &next).unwrap();
                    apply(&mut model, &batch);
                    watermark = Some(next.to_vec());
                }
                Step::Clear => {
                    ledger.clear(&next).unwrap();
                    model.clear();
                    watermark = Some(next.to_vec());
                }
                Step::CompactOnce => {
                    ledger.compact().unwrap();
                }
                Step::CompactAll => compact_all(&ledger).unwrap(),
                Step::Reopen => {
                    drop(ledger);
                    ledger = open(dir.path()).unwrap();
                }
            }
            prop_assert_eq!(ledger.watermark().unwrap(), watermark.clone());
            prop_assert_eq!(&read_all(&ledger).unwrap(), &model);
            for number in 0..400 {
                let key = crate::key(number);
                prop_assert_eq!(ledger.get(key.0, &key.1).unwrap(), model.get(&key).copied());
            }
        }
    }
}

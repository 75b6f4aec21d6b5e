//! Tests auxiliary records, which the engine keeps beside cells.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use quipu_ledger::{Ledger, ReadOnlyLedger};
use quipu_testkit::SeededRng;

use crate::{compact_all, open};

type Notes = BTreeMap<Vec<u8>, Vec<u8>>;

fn notes_of(ledger: &Ledger) -> Notes {
    let mut notes = Notes::new();
    let visited = ledger.aux_records(|key, value| {
        notes.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    visited.unwrap();
    notes
}

#[test]
fn notes_are_kept_forgotten_and_outlive_a_clear_that_takes_them_along() {
    for seed in 0..8 {
        let (rng, root) = (SeededRng::new(seed), tempfile::tempdir().unwrap());
        let dir = root.path().join("ledger");
        let (mut ledger, mut model) = (open(&dir).unwrap(), Notes::new());
        for round in 0..40u64 {
            let mut change = BTreeMap::new();
            for _ in 0..rng.below(50) {
                let key = vec![1, rng.below(60) as u8];
                change.insert(key, (!rng.chance(30)).then(|| vec![round as u8; rng.below(30)]));
            }
            let watermark = round.to_le_bytes();
            if rng.chance(10) {
                model.retain(|_, _| rng.chance(70));
                let kept = model.iter().map(|(key, value)| (&key[..], Some(&value[..])));
                ledger.clear_with(kept, &watermark).unwrap();
            } else {
                let cells = [(7, "a", None)];
                let notes = change.iter().map(|(key, value)| (&key[..], value.as_deref()));
                ledger.ingest_with(cells, [], notes, &watermark).unwrap();
                for (key, value) in change {
                    match value {
                        Some(value) => drop(model.insert(key, value)),
                        None => drop(model.remove(&key)),
                    }
                }
            }
            match rng.below(5) {
                0 => compact_all(&ledger).unwrap(),
                1 => {
                    drop(ledger);
                    ledger = open(&dir).unwrap();
                }
                _ => {}
            }
            assert_eq!(notes_of(&ledger), model, "seed {seed}, round {round}");
            assert_eq!(ledger.watermark().unwrap().unwrap(), watermark);
            assert_eq!(ledger.range(0).count(), 0, "a note is no cell");
            let mut looked = Notes::new();
            let looking = ReadOnlyLedger::open(&dir).unwrap().aux_records(|key, value| {
                looked.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            });
            looking.unwrap();
            assert_eq!(looked, model, "seed {seed}, round {round}");
        }
    }
}

//! Tests copies of a ledger in use: each equals the ledger at one watermark.

use std::ops::ControlFlow;

use quipu_ledger::{Ledger, LedgerError};
use quipu_testkit::SeededRng;

use crate::{Model, apply, batch, compact_all, ingest, open, read_all};

#[test]
fn a_copy_made_in_use_is_whole_and_lives_on_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir.path().join("ledger")).unwrap();
    let rng = SeededRng::new(1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..=120u64 {
                match number % 40 {
                    0 => ledger.clear(&number.to_le_bytes()).unwrap(),
                    _ => ingest(&ledger, &batch(&SeededRng::new(number), 200, 500), &number.to_le_bytes()).unwrap(),
                }
                compact_all(&ledger).unwrap();
            }
        });
        let mut copies = 0;
        while !writer.is_finished() {
            copies += 1;
            let to = dir.path().join(format!("copy{copies}"));
            ledger.copy_to(&to, |_| ControlFlow::Continue(())).unwrap();
            Ledger::verify(&to, |_, _| ()).unwrap();
            Ledger::verify(&dir.path().join("ledger"), |_, _| ()).unwrap();
            let copy = open(&to).unwrap();
            let watermark = copy.watermark().unwrap().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
            let mut model = Model::new();
            for number in 1..=watermark {
                match number % 40 {
                    0 => model.clear(),
                    _ => apply(&mut model, &batch(&SeededRng::new(number), 200, 500)),
                }
            }
            assert_eq!(read_all(&copy).unwrap(), model);
            // What happens to the copy does not happen to the original.
            let more = batch(&rng, 200, 500);
            for _ in 0..3 {
                ingest(&copy, &more, b"copy").unwrap();
                compact_all(&copy).unwrap();
            }
            apply(&mut model, &more);
            assert_eq!(read_all(&copy).unwrap(), model);
        }
        assert!(copies > 2);
    });
    Ledger::verify(&dir.path().join("ledger"), |_, _| ()).unwrap();
}

#[test]
fn a_copy_is_not_made_over_something() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir.path().join("ledger")).unwrap();
    let error = ledger.copy_to(&dir.path().join("ledger"), |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, LedgerError::Io { .. }), "{error}");
}

//! Tests a ledger's operations from its creation on.

use std::fs;

use quipu_ledger::LedgerError;
use quipu_testkit::SeededRng;

use crate::{Batch, Model, apply, batch, cell, compact_all, ingest, key, open, read_all};

#[test]
fn a_new_ledger_is_empty_and_stays_so_when_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let ledger = open(&dir.path().join("a/b")).unwrap();
        assert_eq!(ledger.watermark().unwrap(), None);
        assert!(read_all(&ledger).unwrap().is_empty());
        assert!(!ledger.compact().unwrap().more);
    }
}

#[test]
fn a_batch_without_cells_moves_the_watermark() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    ingest(&ledger, &Batch::new(), b"one").unwrap();
    ingest(&ledger, &Batch::new(), b"two").unwrap();
    assert_eq!(open(dir.path()).unwrap().watermark().unwrap().unwrap(), b"two");
}

#[test]
fn a_name_deleted_after_several_versions_stays_deleted_through_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    let rng = SeededRng::new(1);
    for _ in 0..3 {
        ingest(&ledger, &[(key(1), Some(cell(&rng)))].into(), b"put").unwrap();
    }
    ingest(&ledger, &[(key(1), None), (key(2), None)].into(), b"gone").unwrap();
    for _ in 0..20 {
        assert!(read_all(&ledger).unwrap().is_empty());
        ingest(&ledger, &[(key(3), None)].into(), b"gone").unwrap();
        compact_all(&ledger).unwrap();
    }
    ingest(&ledger, &[(key(4), None)].into(), b"gone").unwrap();
    compact_all(&ledger).unwrap();
    assert!(ledger.stats().tombstones <= 8, "{:?}", ledger.stats());
}

#[test]
fn old_versions_take_no_space_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    let rng = SeededRng::new(1);
    let mut once = 0;
    for round in 0..30 {
        let all: Batch = (0..2000).map(|number| (key(number), Some(cell(&rng)))).collect();
        ingest(&ledger, &all, b"all").unwrap();
        once = once.max(if round == 0 { ledger.stats().disk_bytes } else { 0 });
        assert!(ledger.stats().disk_bytes <= 4 * once, "{:?}", ledger.stats());
        compact_all(&ledger).unwrap();
    }
    let files = fs::read_dir(dir.path().join("g000001/tables")).unwrap().count() as u64;
    assert_eq!(files, ledger.stats().tables);
}

#[test]
fn ingestions_nobody_compacts_stay_within_what_the_tree_can_count() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    let rng = SeededRng::new(2);
    let mut model = Model::new();
    for _ in 0..300 {
        let batch = batch(&rng, 5, 100);
        ingest(&ledger, &batch, b"w").unwrap();
        apply(&mut model, &batch);
        assert!(ledger.stats().runs <= 64);
    }
    drop(ledger);
    assert_eq!(read_all(&open(dir.path()).unwrap()).unwrap(), model);
}

#[test]
fn a_range_shows_what_was_there_when_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    let rng = SeededRng::new(3);
    let all: Batch = (0..3000).map(|number| (key(number), Some(cell(&rng)))).collect();
    ingest(&ledger, &all, b"all").unwrap();
    for disturb in [&|| ledger.clear(b"clear").unwrap(), &|| {
        for _ in 0..10 {
            ingest(&ledger, &batch(&rng, 1000, 3000), b"later").unwrap();
            compact_all(&ledger).unwrap();
        }
    }] as [&dyn Fn(); 2]
    {
        let before = read_all(&ledger).unwrap();
        let mut range = ledger.range(0);
        let mut seen: Vec<_> = range.by_ref().take(10).collect();
        disturb();
        seen.extend(range);
        let seen: Model = seen.into_iter().map(|item| item.map(|(h, n, c)| ((h, n.into_vec()), c)).unwrap()).collect();
        assert_eq!(seen, before);
    }
}

#[test]
fn a_range_begins_at_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    let rng = SeededRng::new(4);
    let all: Batch = (0..200).map(|number| (key(number), Some(cell(&rng)))).collect();
    ingest(&ledger, &all, b"all").unwrap();
    for from in [0, 1, 5 << 60, (5 << 60) + 1, u64::MAX] {
        let expected = all.keys().filter(|(hash, _)| *hash >= from).count();
        assert_eq!(ledger.range(from).count(), expected, "{from}");
    }
}

#[test]
fn a_clear_takes_the_old_files_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    let rng = SeededRng::new(5);
    for round in 1..=3u8 {
        ingest(&ledger, &batch(&rng, 100, 100), b"w").unwrap();
        ledger.clear(&[round]).unwrap();
        assert!(read_all(&ledger).unwrap().is_empty());
        assert_eq!(ledger.watermark().unwrap().unwrap(), [round]);
    }
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["FORMAT", "g000004"]);
    drop(ledger);
    assert_eq!(open(dir.path()).unwrap().watermark().unwrap().unwrap(), [3]);
}

#[test]
fn readers_and_writers_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path()).unwrap();
    let numbered = |value: i64| -> Batch {
        let cell = quipu_model::Cell { epoch: quipu_model::Epoch::FIRST, value, expires_at: None };
        (0..500).map(|number| (key(number), Some(cell))).collect()
    };
    ingest(&ledger, &numbered(0), b"w").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..60 {
                ingest(&ledger, &numbered(round), b"w").unwrap();
                compact_all(&ledger).unwrap();
            }
        });
        let mut newest = 0;
        while !writer.is_finished() {
            let values: Vec<i64> = ledger.range(0).map(|item| item.unwrap().2.value).collect();
            assert_eq!(values.len(), 500);
            assert!(values.iter().all(|&value| value == values[0]), "a range saw parts of two batches");
            assert!(values[0] >= newest);
            newest = values[0];
            let (hash, name) = key(7);
            assert!(ledger.get(hash, &name).unwrap().unwrap().value >= newest);
        }
    });
}

#[test]
fn a_ledger_whose_disk_went_on_without_it_goes_on_with_the_disk() {
    // The state after a rename that took effect although it was reported as failed: produced here
    // by a second ledger on the same directory.
    let dir = tempfile::tempdir().unwrap();
    let rng = SeededRng::new(6);
    let (ledger, other) = (open(dir.path()).unwrap(), open(dir.path()).unwrap());
    let mut model = Model::new();
    for step in 0..6 {
        let (ahead, behind) = if step % 2 == 0 { (&other, &ledger) } else { (&ledger, &other) };
        if step == 3 {
            ahead.clear(b"clear").unwrap();
            model.clear();
        }
        for ledger in [ahead, behind] {
            let batch = batch(&rng, 50, 60);
            ingest(ledger, &batch, b"w").unwrap();
            apply(&mut model, &batch);
        }
        assert_eq!(read_all(behind).unwrap(), model);
    }
    drop((ledger, other));
    assert_eq!(read_all(&open(dir.path()).unwrap()).unwrap(), model);
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let leftovers = ["g000001/tables/77", "g000001/v99", "g000001/.tmpAbc", "FORMAT.new", "g000002.new/current"];
    for leftover in leftovers {
        fs::create_dir_all(dir.path().join(leftover).parent().unwrap()).unwrap();
        fs::write(dir.path().join(leftover), b"half").unwrap();
    }
    let ledger = open(dir.path()).unwrap();
    assert!(read_all(&ledger).unwrap().is_empty());
    for leftover in leftovers {
        assert!(!dir.path().join(leftover).exists(), "{leftover}");
    }
}

#[test]
#[should_panic(expected = "cells are sealed in order")]
fn cells_out_of_order_are_our_own_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let _ = open(dir.path()).unwrap().ingest([(2, "a", None), (1, "b", None)], b"w");
}

#[test]
fn a_newer_layout_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    fs::write(dir.path().join("FORMAT"), "quipu-ledger 2\n").unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(matches!(error, LedgerError::Newer { format: 2, known: 1, .. }), "{error}");
}

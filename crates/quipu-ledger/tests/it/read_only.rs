//! Tests read-only access: it shows the same state as opening the ledger, and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quipu_ledger::{Ledger, ReadOnlyLedger};
use quipu_model::Cell;
use quipu_testkit::SeededRng;

use crate::{Model, apply, batch, compact_all, ingest, key, open, read_all};

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

#[test]
fn what_is_looked_at_is_what_would_be_opened_and_stays_as_it_is() {
    let rng = SeededRng::new(4);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("ledger");
    assert_eq!(ReadOnlyLedger::open(&dir).unwrap().watermark().unwrap(), None);
    assert!(!dir.exists(), "looking makes nothing");
    let mut model = Model::new();
    let mut ledger = open(&dir).unwrap();
    for round in 1..=60u64 {
        match rng.below(12) {
            0 => {
                ledger.clear(&round.to_le_bytes()).unwrap();
                model.clear();
            }
            _ => {
                let batch = batch(&rng, 40, 200);
                ingest(&ledger, &batch, &round.to_le_bytes()).unwrap();
                apply(&mut model, &batch);
            }
        }
        if rng.chance(20) {
            compact_all(&ledger).unwrap();
        }
        drop(ledger);
        // What a crash may have left: a table and a version that nobody names, a generation in the
        // making.
        let generation =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).max().unwrap();
        fs::write(generation.join("tables/9999"), b"left behind").unwrap();
        fs::write(generation.join("v9999"), b"left behind").unwrap();
        fs::create_dir_all(dir.join("g000099.new")).unwrap();
        let before = contents(&dir);
        let looked = ReadOnlyLedger::open(&dir).unwrap();
        assert_eq!(looked.watermark().unwrap(), Some(round.to_le_bytes().to_vec()));
        for number in 0..200 {
            let (hash, name) = key(number);
            assert_eq!(looked.get(hash, &name).unwrap(), model.get(&(hash, name)).copied(), "round {round}, {number}");
        }
        assert_eq!(walked(&looked, 0), model.clone().into_iter().collect::<Vec<_>>(), "round {round}");
        let copy = root.path().join(format!("copy-{round}"));
        let mut bytes = 0;
        looked
            .copy_to(&copy, |piece| {
                bytes += piece;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(bytes, looked.stats().disk_bytes);
        assert!(contents(&dir) == before, "looking and copying change nothing");
        Ledger::verify(&copy, |_, _| ()).unwrap();
        assert_eq!(read_all(&open(&copy).unwrap()).unwrap(), model);
        ledger = open(&dir).unwrap();
        let (tables, runs) = (ledger.stats().tables, ledger.stats().runs);
        assert_eq!((looked.stats().tables, looked.stats().runs), (tables, runs));
    }
}

#[test]
fn a_ledger_without_its_format_or_generation_is_refused_as_it_would_be_when_opened() {
    let root = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let dir = root.path().join(name);
        ingest(&open(&dir).unwrap(), &batch(&SeededRng::new(1), 10, 10), b"w").unwrap();
        dir
    };
    let refused = |dir: &Path| {
        let looked = ReadOnlyLedger::open(dir).err().unwrap().to_string();
        assert_eq!(looked, open(dir).err().unwrap().to_string());
        looked
    };
    let dir = made("no-format");
    fs::remove_file(dir.join("FORMAT")).unwrap();
    assert!(refused(&dir).contains("FORMAT"));
    let dir = made("no-generation");
    fs::remove_dir_all(dir.join("g000001")).unwrap();
    assert!(refused(&dir).contains("g000001"));
    let dir = made("no-table");
    fs::remove_file(fs::read_dir(dir.join("g000001/tables")).unwrap().next().unwrap().unwrap().path()).unwrap();
    assert!(refused(&dir).contains("tables"));
}

/// Every cell from a hash on, in the order in which it was shown.
fn walked(looked: &ReadOnlyLedger, from_hash: u64) -> Vec<((u64, Vec<u8>), Cell)> {
    let mut cells = Vec::new();
    looked
        .range(from_hash, |hash, name, cell| {
            cells.push(((hash, name.to_vec()), cell));
            ControlFlow::Continue(())
        })
        .unwrap();
    cells
}

/// Every counter from a hash on of which this node says something, with that.
type Own = Vec<((u64, Vec<u8>), Vec<u8>)>;

#[test]
fn a_walk_shows_what_the_real_ledger_shows_after_overwrites_tombstones_and_compaction() {
    for seed in 0..8 {
        let (rng, root) = (SeededRng::new(seed), tempfile::tempdir().unwrap());
        let dir = root.path().join("ledger");
        let ledger = open(&dir).unwrap();
        for round in 0..24u64 {
            let cells = batch(&rng, 300, 400);
            let own: BTreeMap<(u64, Vec<u8>), Vec<u8>> = (0..100)
                .map(|_| (key(rng.below(400)), vec![round as u8; if rng.chance(25) { 0 } else { 1 + rng.below(40) }]))
                .collect();
            let cells = cells.iter().map(|((hash, name), cell)| (*hash, &name[..], *cell));
            let own = own.iter().map(|((hash, name), own)| (*hash, &name[..], &own[..]));
            ledger.ingest_with(cells, own, [], &round.to_le_bytes()).unwrap();
            match rng.below(4) {
                0 => compact_all(&ledger).unwrap(),
                1 => drop(ledger.compact().unwrap()),
                _ => {}
            }
            // Nobody writes meanwhile, so it may be looked at while it is open.
            let looked = ReadOnlyLedger::open(&dir).unwrap();
            for from in [0, rng.next_u64(), key(rng.below(400)).0, u64::MAX] {
                let real: Vec<_> = ledger.range(from).map(|item| item.unwrap()).collect();
                let real: Vec<_> = real.into_iter().map(|(hash, name, cell)| ((hash, name.into_vec()), cell)).collect();
                assert_eq!(walked(&looked, from), real, "seed {seed}, round {round}, from {from:x}");
                let (mut real, mut seen) = (Own::new(), Own::new());
                let note = |into: &mut Own, hash, name: &[u8], own: &[u8]| {
                    into.push(((hash, name.to_vec()), own.to_vec()));
                    ControlFlow::Continue(())
                };
                ledger.range_own_cells(from, |hash, name, own| note(&mut real, hash, name, own)).unwrap();
                looked.range_own_cells(from, |hash, name, own| note(&mut seen, hash, name, own)).unwrap();
                assert_eq!(seen, real, "seed {seed}, round {round}, from {from:x}");
            }
        }
        let mut some = 0;
        let looked = ReadOnlyLedger::open(&dir).unwrap();
        looked
            .range(0, |_, _, _| {
                some += 1;
                if some == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(some, 3, "it ends when it is told to");
    }
}

#[test]
fn damage_is_met_by_a_walk_and_told_with_its_file() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("ledger");
    ingest(&open(&dir).unwrap(), &batch(&SeededRng::new(1), 2_000, 2_000), b"w").unwrap();
    let table = fs::read_dir(dir.join("g000001/tables")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&table).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&table, bytes).unwrap();
    let looked = ReadOnlyLedger::open(&dir).unwrap();
    let error = looked.range(0, |_, _, _| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains(table.to_str().unwrap()), "{error}");
}

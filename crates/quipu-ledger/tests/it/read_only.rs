//! Looking at a ledger shows what opening it would, and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quipu_ledger::{Ledger, ReadOnlyLedger};
use quipu_testkit::Dice;

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
    let dice = Dice::new(4);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("ledger");
    assert_eq!(ReadOnlyLedger::open(&dir).unwrap().watermark().unwrap(), None);
    assert!(!dir.exists(), "looking makes nothing");
    let mut model = Model::new();
    let mut ledger = open(&dir).unwrap();
    for round in 1..=60u64 {
        match dice.below(12) {
            0 => {
                ledger.clear(&round.to_le_bytes()).unwrap();
                model.clear();
            }
            _ => {
                let batch = batch(&dice, 40, 200);
                ingest(&ledger, &batch, &round.to_le_bytes()).unwrap();
                apply(&mut model, &batch);
            }
        }
        if dice.chance(20) {
            compact_all(&ledger).unwrap();
        }
        drop(ledger);
        // What a crash may have left: a table and a version that nobody names, a generation in the making.
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
        ingest(&open(&dir).unwrap(), &batch(&Dice::new(1), 10, 10), b"w").unwrap();
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

//! Tests changed bytes: an error that names the file, never a wrong cell.

use std::fs;
use std::path::{Path, PathBuf};

use quipu_ledger::{Ledger, LedgerError};
use quipu_testkit::SeededRng;

use crate::{Batch, Model, apply, batch, cell, compact_all, ingest, key, open, read_all};

/// A small ledger with several tables in several levels; returns its files and what it holds.
fn make(dir: &Path) -> (Vec<PathBuf>, Model, Vec<u8>) {
    let rng = SeededRng::new(1);
    let ledger = open(dir).unwrap();
    let mut model = Model::new();
    let all: Batch = (0..40).map(|number| (key(number), Some(cell(&rng)))).collect();
    for batch in [all, batch(&rng, 10, 40)] {
        ingest(&ledger, &batch, b"old").unwrap();
        apply(&mut model, &batch);
    }
    compact_all(&ledger).unwrap();
    for mark in [b"nextlast", b"the last"] {
        let batch = batch(&rng, 6, 60);
        ingest(&ledger, &batch, mark).unwrap();
        apply(&mut model, &batch);
    }
    assert!(ledger.stats().tables >= 2, "{:?}", ledger.stats());
    drop(ledger);
    drop(open(dir).unwrap());
    let mut files = vec![dir.join("FORMAT")];
    for sub in ["g000001", "g000001/tables"] {
        let entries = fs::read_dir(dir.join(sub)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.is_file()));
    }
    (files, model, b"the last".to_vec())
}

/// Opens and reads everything there is.
fn read(dir: &Path) -> Result<(Model, Option<Vec<u8>>), LedgerError> {
    let ledger = open(dir)?;
    let (model, watermark) = (read_all(&ledger)?, ledger.watermark()?);
    for number in 0..60 {
        let key = key(number);
        assert_eq!(ledger.get(key.0, &key.1)?, model.get(&key).copied());
    }
    Ok((model, watermark))
}

fn named(error: &LedgerError) -> &Path {
    match error {
        LedgerError::Damaged { file, .. } | LedgerError::Newer { file, .. } => file,
        error => panic!("not told as damage: {error:?}"),
    }
}

#[test]
fn one_flipped_bit_anywhere_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (files, model, watermark) = make(dir.path());
    let whole = (model, Some(watermark));
    let (mut found, mut harmless) = (0, 0);
    for path in &files {
        let bytes = fs::read(path).unwrap();
        let is_table = path.parent().unwrap().ends_with("tables");
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(path, &flipped).unwrap();
            match read(dir.path()) {
                Ok(read) => {
                    assert_eq!(read, whole, "byte {at} of {}", path.display());
                    harmless += 1;
                }
                Err(error) => {
                    // A flipped `current` may name a version that is not there.
                    let current = path.ends_with("current") && named(&error).starts_with(dir.path().join("g000001"));
                    assert!(named(&error) == path || current, "byte {at} of {}: {error}", path.display());
                    found += 1;
                }
            }
            // Reading may pass over bytes it does not need; verifying must not.
            let error = Ledger::verify(dir.path(), |_, _| ()).expect_err("a flipped bit was verified");
            if is_table {
                assert_eq!(named(&error), path, "byte {at}: {error}");
            }
        }
        fs::write(path, &bytes).unwrap();
    }
    println!("proof: flipped bits in the ledger: {}, {found} found on reading, all on verifying", found + harmless);
    assert!(found > 10 * harmless, "{found} found, {harmless} harmless");
    Ledger::verify(dir.path(), |_, _| ()).unwrap();
    assert_eq!(read(dir.path()).unwrap(), whole);
}

#[test]
fn a_shortened_missing_or_longer_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (files, model, watermark) = make(dir.path());
    for path in &files {
        let bytes = fs::read(path).unwrap();
        let lengths = (0..bytes.len()).step_by(7).map(Some);
        for length in lengths.chain([None, Some(bytes.len() - 1), Some(bytes.len() + 1)]) {
            match length {
                None => fs::remove_file(path).unwrap(),
                Some(length) => {
                    let mut changed = bytes.clone();
                    changed.resize(length, b'x');
                    fs::write(path, changed).unwrap();
                }
            }
            for error in [read(dir.path()).unwrap_err(), Ledger::verify(dir.path(), |_, _| ()).unwrap_err()] {
                assert_eq!(named(&error), path, "{length:?} bytes: {error}");
            }
        }
        fs::write(path, &bytes).unwrap();
    }
    assert_eq!(read(dir.path()).unwrap(), (model, Some(watermark)));
}

#[test]
fn two_tables_swapped_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (files, ..) = make(dir.path());
    let tables: Vec<_> = files.iter().filter(|path| path.parent().unwrap().ends_with("tables")).collect();
    let (a, b) = (fs::read(tables[0]).unwrap(), fs::read(tables[1]).unwrap());
    fs::write(tables[0], b).unwrap();
    fs::write(tables[1], a).unwrap();
    let error = read(dir.path()).unwrap_err();
    assert!(tables.iter().any(|path| *path == named(&error)), "{error}");
}

#[test]
fn a_missing_generation_is_not_an_empty_ledger() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    fs::remove_dir_all(dir.path().join("g000001")).unwrap();
    assert!(named(&read(dir.path()).unwrap_err()).ends_with("g000001"));
}

#[test]
fn damage_found_while_open_names_the_block() {
    let dir = tempfile::tempdir().unwrap();
    let rng = SeededRng::new(2);
    let ledger = open(dir.path()).unwrap();
    let all: Batch = (0..5000).map(|number| (key(number), Some(cell(&rng)))).collect();
    ingest(&ledger, &all, b"w").unwrap();
    let path = fs::read_dir(dir.path().join("g000001/tables")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    bytes[20_000] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let errors = [
        read_all(&ledger).unwrap_err(),
        all.keys().find_map(|(hash, name)| ledger.get(*hash, name).err()).unwrap(),
        Ledger::verify(dir.path(), |_, _| ()).unwrap_err(),
    ];
    for error in errors {
        let LedgerError::Damaged { file, offset: Some(offset), .. } = &error else { panic!("{error:?}") };
        assert_eq!(file, &path);
        assert!((15_000..=20_000).contains(offset), "{error}");
    }
    // Most of it can still be read, and a merge refuses rather than to write what it cannot read.
    ingest(&ledger, &all, b"w").unwrap();
    assert!(matches!(compact_all(&ledger).unwrap_err(), LedgerError::Damaged { .. }));
    assert_eq!(read_all(&ledger).map(|cells| cells.len()).unwrap_or(all.len()), all.len());
}

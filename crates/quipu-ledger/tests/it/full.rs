//! Tests a full disk: writes are refused, the cells at rest stay readable, and freed space ends it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quipu_ledger::LedgerError;
use quipu_testkit::SeededRng;

use crate::{Batch, Model, apply, cell, compact_all, ingest, key, open, read_all};

/// A small file system of its own. Tests run as root; where they may not mount, this test fails.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf, kilobytes: usize) -> SmallDisk {
        fs::create_dir_all(&path).unwrap();
        let size = format!("size={kilobytes}k");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).status().unwrap();
        assert!(status.success(), "could not mount a tmpfs at {}", path.display());
        SmallDisk(path)
    }

    /// Leaves so many bytes free.
    fn fill(&self, free: usize) {
        let path = self.0.join("fill");
        let _ = fs::remove_file(&path);
        let page = [1; 4096];
        let mut file = fs::File::create(&path).unwrap();
        while std::io::Write::write_all(&mut file, &page).is_ok() {}
        let length = file.metadata().unwrap().len();
        file.set_len(length.saturating_sub(free as u64)).unwrap();
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}

#[derive(Clone, Copy, PartialEq)]
enum Write {
    Ingest,
    Compact,
    Clear,
}

#[test]
fn a_full_disk_refuses_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path().join("disk"), 4096);
    let path = disk.0.join("ledger");
    let rng = SeededRng::new(1);
    let all = || -> Batch { (0..3000).map(|number| (key(number), Some(cell(&rng)))).collect() };
    let mut ledger = open(&path).unwrap();
    let mut model = Model::new();
    let (mut refused, mut done) = ([0; 3], [0; 3]);
    // From no space at all to more than enough, so that the disk fills up at every step of a write.
    for free in (0..600 * 1024usize).step_by(12 * 1024) {
        let batch = all();
        for write in [Write::Ingest, Write::Compact, Write::Clear] {
            if write == Write::Clear && !free.is_multiple_of(60 * 1024) {
                continue;
            }
            let (watermark, before) = (ledger.watermark().unwrap(), files(&path).len());
            disk.fill(free);
            let written = match write {
                Write::Ingest => ingest(&ledger, &batch, &free.to_le_bytes()),
                Write::Compact => compact_all(&ledger),
                Write::Clear => ledger.clear(b"clear"),
            };
            match (written, write) {
                (Ok(()), Write::Ingest) => apply(&mut model, &batch),
                (Ok(()), Write::Compact) => {}
                (Ok(()), Write::Clear) => model.clear(),
                (Err(error), _) => {
                    assert!(matches!(error, LedgerError::Full { .. }), "{error:?}");
                    assert_eq!(ledger.watermark().unwrap(), watermark);
                    // A version that could not be written may stay, empty, until the next one;
                    // tables do not.
                    assert!(files(&path).len() <= before + 1, "leftovers: {:?}", files(&path));
                    refused[write as usize] += 1;
                    done[write as usize] -= 1;
                }
            }
            done[write as usize] += 1;
            assert_eq!(read_all(&ledger).unwrap(), model);
            if rng.chance(30) {
                drop(ledger);
                ledger = open(&path).unwrap();
                assert_eq!(read_all(&ledger).unwrap(), model);
            }
            disk.empty();
        }
        // There is space again: no restart is needed.
        ingest(&ledger, &batch, b"healed").unwrap();
        apply(&mut model, &batch);
    }
    println!("proof: full disk: {refused:?} ingestions, compactions and clears refused, {done:?} done");
    assert!(refused.iter().chain(&done).all(|&count| count > 0), "refused {refused:?}, done {done:?}");
    drop(ledger);
    assert_eq!(read_all(&open(&path).unwrap()).unwrap(), model);
}

//! The bytes on disk, pinned: a directory written by these commands looks like the one under `testdata/`, and that one still opens.
//!
//! `QUIPU_BLESS=1` writes the files anew; a change to them is a change of the format and needs a new version.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quipu_engine::Engine;
use quipu_model::{Command, Name, SetExpiry, When};
use quipu_model::{Set, SetCondition};
use quipu_testkit::CrashDisk;

use crate::world::{World, data, small};

const FILES: [&str; 2] = ["control", "journal-0000000000000000.seg"];

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/journal-v1").join(file)
}

/// One of every kind of entry: cells with and without epoch and expiry, gone, flush, floor, start; a record across two segments.
fn write(engine: &Engine, world: &World) {
    engine.execute(&Command::Flush).unwrap();
    engine.add("likes:42", 1).unwrap();
    engine.add("likes:42", -3).unwrap();
    engine.add([0xff, 0x00, b'\n'], i64::MAX).unwrap();
    let (name, condition) = (Name::new(b"stock:7").unwrap(), SetCondition::Always);
    let expiry = SetExpiry::At(When::In(60_000));
    engine.execute(&Command::Set(Set { name, value: 500, condition, expiry, reply_old: false })).unwrap();
    engine.add("gone", 1).unwrap();
    engine.delete("gone").unwrap();
    world.clock.advance(Duration::from_millis(5));
    let adds = [(b"a:1", 1), (b"b:1", 2)].map(|(name, delta)| Command::Add {
        name: Name::new(name).unwrap(),
        delta,
        shard_key: None,
    });
    let mut turn = engine.turn();
    turn.run_all(&adds, &[]).unwrap().unwrap();
    turn.finish();
    engine.read("a:1").unwrap();
    engine.add("likes:42", 0).unwrap();
}

fn check(engine: &Engine) {
    for (name, value) in
        [(&b"likes:42"[..], -2), (b"\xff\x00\n", i64::MAX), (b"stock:7", 500), (b"a:1", 1), (b"b:1", 2)]
    {
        assert_eq!(engine.read(name).unwrap().value, value, "{}", name.escape_ascii());
    }
    assert!(!engine.read("gone").unwrap().exists);
    assert!(engine.read("stock:7").unwrap().expires_at.is_some());
}

#[test]
fn the_bytes_on_disk_are_those_of_the_golden_files() {
    let world = World::new(CrashDisk::new(), 2026);
    let engine = world.open(small(4096)).unwrap();
    write(&engine, &world);
    check(&engine);
    let image = world.disk.kill(world.disk.operations());
    for file in FILES {
        let bytes = image.bytes_of(data(file)).unwrap();
        if std::env::var_os("QUIPU_BLESS").is_some() {
            std::fs::create_dir_all(golden(file).parent().unwrap()).unwrap();
            std::fs::write(golden(file), &bytes).unwrap();
        }
        let pinned = std::fs::read(golden(file)).unwrap();
        let differ = bytes.iter().zip(&pinned).position(|(a, b)| a != b);
        assert!(
            bytes.len() == pinned.len() && differ.is_none(),
            "{file} differs from the golden one at byte {differ:?}"
        );
    }
}

#[test]
fn a_directory_of_this_version_still_opens() {
    let world = World::new(CrashDisk::new(), 2026);
    write(&world.open(small(4096)).unwrap(), &world);
    let mut image = world.disk.kill(world.disk.operations());
    for file in FILES {
        image.insert(data(file), &std::fs::read(golden(file)).unwrap());
    }
    let world = World::new(image.into_disk(), 1);
    check(&world.open(small(4096)).unwrap());
}

//! Tests that each promise of `Vfs` holds in every image, and each other property is broken in
//! some.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const SEEDS: u64 = 400;

fn dir() -> &'static Path {
    Path::new("data")
}

fn path(name: &str) -> PathBuf {
    dir().join(name)
}

/// A disk with one empty file and a durable entry for it.
fn disk_with(name: &str) -> (CrashDisk, Arc<dyn VfsFile>) {
    let disk = CrashDisk::new();
    disk.create_dir(dir()).unwrap();
    let file = disk.create(&path(name)).unwrap();
    disk.sync_dir(dir()).unwrap();
    (disk, file)
}

/// Contents of the file after power losses at this point, one per seed.
fn crashes(disk: &CrashDisk, at: usize, name: &str) -> Vec<Option<Vec<u8>>> {
    (0..SEEDS).map(|seed| disk.crash(at, &SeededRng::new(seed)).bytes_of(path(name))).collect()
}

#[test]
fn synced_bytes_are_there_in_every_image() {
    let (disk, file) = disk_with("a");
    file.write_all_at(&[7; 5000], 0).unwrap();
    file.sync_data().unwrap();
    let synced = disk.operations();
    file.write_all_at(&[8; 5000], 5000).unwrap();
    disk.create(&path("b")).unwrap();
    for at in synced..=disk.operations() {
        for bytes in crashes(&disk, at, "a") {
            assert_eq!(bytes.unwrap()[..5000], [7; 5000]);
        }
    }
}

#[test]
fn bytes_are_not_promised_before_their_sync_has_returned() {
    let (disk, file) = disk_with("a");
    file.write_all_at(&[7; 5000], 0).unwrap();
    let written = disk.operations();
    file.sync_data().unwrap();
    let lost = crashes(&disk, written, "a").into_iter().filter(|bytes| bytes.as_deref() == Some(&[]));
    assert!(lost.count() > 20, "with the sync in flight, the write may be lost");
}

#[test]
fn a_write_in_flight_may_be_there_or_not() {
    let (disk, file) = disk_with("a");
    let before = disk.operations();
    file.write_all_at(b"x", 0).unwrap();
    let contents: HashSet<_> = crashes(&disk, before, "a").into_iter().flatten().collect();
    assert!(contents.contains(&b"x"[..]) && contents.contains(&b""[..]), "{contents:?}");
    disk.crash(before, &SeededRng::new(0)).into_disk().open(&path("a")).unwrap();
}

#[test]
fn unsynced_writes_are_lost_torn_and_reordered() {
    let (disk, file) = disk_with("a");
    file.write_all_at(&[0; 4096], 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(&[1; 2048], 0).unwrap();
    file.write_all_at(&[2; 2048], 2048).unwrap();
    let images: Vec<Vec<u8>> = crashes(&disk, disk.operations(), "a").into_iter().map(Option::unwrap).collect();
    let count = |bytes: &[u8], wanted: u8| bytes.iter().filter(|&&byte| byte == wanted).count();

    assert!(images.iter().any(|bytes| count(bytes, 0) == 4096), "both lost");
    assert!(images.iter().any(|bytes| count(bytes, 0) == 0), "both kept");
    assert!(images.iter().any(|bytes| count(bytes, 1) == 0 && count(bytes, 2) == 2048), "reordered");
    assert!(images.iter().any(|bytes| count(bytes, 1) % 512 != 0), "torn inside a sector");
    let gap = |bytes: &Vec<u8>| bytes[..512].iter().all(|&byte| byte == 0) && count(&bytes[..2048], 1) % 512 == 0;
    assert!(images.iter().any(|bytes| gap(bytes) && count(bytes, 1) > 0), "the first sector lost, a later one kept");
    assert!(images.iter().all(|bytes| bytes.len() == 4096));
}

#[test]
fn a_lost_write_that_grew_the_file_may_leave_its_length_behind() {
    let (disk, file) = disk_with("a");
    file.write_all_at(&[9; 1000], 0).unwrap();
    let contents: HashSet<Vec<u8>> = crashes(&disk, disk.operations(), "a").into_iter().flatten().collect();
    assert!(contents.contains(&vec![0; 1000]), "long, and zeros");
    assert!(contents.contains(&Vec::new()), "not grown at all");
    assert!(contents.iter().any(|bytes| bytes.len() == 512 && bytes[0] == 9), "one sector long");
}

#[test]
fn an_overwrite_that_is_lost_leaves_the_old_bytes() {
    let (disk, file) = disk_with("a");
    file.write_all_at(b"old", 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b"new", 0).unwrap();
    let contents: HashSet<Vec<u8>> = crashes(&disk, disk.operations(), "a").into_iter().flatten().collect();
    assert!(contents.contains(&b"old"[..]) && contents.contains(&b"new"[..]), "{contents:?}");
    assert!(
        contents.iter().all(|bytes| bytes.iter().zip(b"old").zip(b"new").all(|((b, old), new)| b == old || b == new))
    );
}

#[test]
fn a_sync_covers_only_what_was_written_before_it_began() {
    let (disk, file) = disk_with("a");
    file.write_all_at(&[1; 100], 0).unwrap();
    let late = Arc::clone(&file);
    disk.on_sync(Some(Arc::new(move || late.write_all_at(&[2; 100], 100).unwrap())));
    file.sync_data().unwrap();
    disk.on_sync(None);
    let images = crashes(&disk, disk.operations(), "a");
    assert!(images.iter().flatten().all(|bytes| bytes[..100] == [1; 100]));
    assert!(images.iter().flatten().any(|bytes| bytes.len() == 100), "the write during the sync was lost in some");
}

#[test]
fn a_file_without_a_synced_entry_may_be_gone_with_all_its_synced_bytes() {
    let disk = CrashDisk::new();
    disk.create_dir(dir()).unwrap();
    let file = disk.create(&path("a")).unwrap();
    file.write_all_at(b"bytes", 0).unwrap();
    file.sync_data().unwrap();
    let unsynced = disk.operations();
    disk.sync_dir(dir()).unwrap();
    let images = crashes(&disk, unsynced, "a");
    assert!(images.contains(&None), "its entry was lost");
    assert!(images.iter().flatten().all(|bytes| bytes == b"bytes"), "or it is there, whole");
    assert!(crashes(&disk, disk.operations(), "a").iter().all(Option::is_some), "once the directory is synced");
}

#[test]
fn a_synced_entry_does_not_make_bytes_durable() {
    let disk = CrashDisk::new();
    disk.create_dir(dir()).unwrap();
    disk.create(&path("a")).unwrap().write_all_at(b"bytes", 0).unwrap();
    disk.sync_dir(dir()).unwrap();
    assert!(crashes(&disk, disk.operations(), "a").contains(&Some(Vec::new())));
}

#[test]
fn a_rename_is_old_or_new_and_final_once_the_directory_is_synced() {
    let (disk, old) = disk_with("a");
    old.write_all_at(b"old", 0).unwrap();
    old.sync_data().unwrap();
    let new = disk.create(&path("a.new")).unwrap();
    new.write_all_at(b"new", 0).unwrap();
    new.sync_data().unwrap();
    disk.rename(&path("a.new"), &path("a")).unwrap();
    let renamed = disk.operations();
    disk.sync_dir(dir()).unwrap();

    let contents: HashSet<_> = crashes(&disk, renamed, "a").into_iter().collect();
    assert_eq!(contents, HashSet::from([Some(b"old".to_vec()), Some(b"new".to_vec())]), "never none, never both");
    let contents: HashSet<_> = crashes(&disk, disk.operations(), "a").into_iter().collect();
    assert_eq!(contents, HashSet::from([Some(b"new".to_vec())]));
    assert_eq!(disk.list(dir()).unwrap(), ["a"]);
}

#[test]
fn a_removed_file_may_come_back_until_the_directory_is_synced() {
    let (disk, file) = disk_with("a");
    file.write_all_at(b"x", 0).unwrap();
    file.sync_data().unwrap();
    disk.remove(&path("a")).unwrap();
    let removed = disk.operations();
    disk.sync_dir(dir()).unwrap();
    assert!(crashes(&disk, removed, "a").contains(&Some(b"x".to_vec())));
    assert!(crashes(&disk, disk.operations(), "a").iter().all(Option::is_none));
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1, "an open handle still reads");
}

#[test]
fn entries_of_one_directory_are_lost_independently() {
    let (disk, _file) = disk_with("a");
    for name in ["b", "c"] {
        disk.create(&path(name)).unwrap();
    }
    let images: Vec<Image> = (0..SEEDS).map(|seed| disk.crash(disk.operations(), &SeededRng::new(seed))).collect();
    for (b, c) in [(false, false), (true, false), (false, true), (true, true)] {
        let has = |image: &Image, name: &str| image.bytes_of(path(name)).is_some();
        assert!(images.iter().any(|image| has(image, "b") == b && has(image, "c") == c), "b {b}, c {c}");
    }
}

#[test]
fn a_kill_keeps_everything_that_was_done() {
    let (disk, file) = disk_with("a");
    file.write_all_at(&[1; 10], 0).unwrap();
    let first = disk.operations();
    file.write_all_at(&[2; 10], 10).unwrap();
    disk.rename(&path("a"), &path("b")).unwrap();
    assert_eq!(disk.kill(first).bytes_of(path("a")).unwrap(), [1; 10]);
    let image = disk.kill(disk.operations());
    assert_eq!(image.files().collect::<Vec<_>>(), [path("b")]);
    assert_eq!(image.bytes_of(path("b")).unwrap().len(), 20);
}

#[test]
fn after_a_failed_sync_the_bytes_stay_in_doubt_whatever_later_syncs_say() {
    let (disk, file) = disk_with("a");
    disk.fail_nth(OpKind::SyncData, 0, DiskFault::FsyncFails);
    file.write_all_at(&[1; 10], 0).unwrap();
    file.sync_data().unwrap_err();
    file.write_all_at(&[2; 5], 5).unwrap();
    file.sync_data().unwrap();
    let images: HashSet<Vec<u8>> = crashes(&disk, disk.operations(), "a").into_iter().flatten().collect();
    assert!(images.iter().all(|bytes| bytes[5..] == [2; 5]), "what the second sync covered is there");
    assert!(images.iter().any(|bytes| bytes[..5] == [0; 5]) && images.iter().any(|bytes| bytes[..5] == [1; 5]));
    assert_eq!(disk.kill(disk.operations()).bytes_of(path("a")).unwrap(), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
}

#[test]
fn planned_faults_hit_the_operation_they_name_and_no_other() {
    let (disk, file) = disk_with("a");
    disk.fail_nth(OpKind::Write, 1, DiskFault::ShortWrite(3));
    disk.fail_nth(OpKind::Write, 2, DiskFault::NoSpace);
    disk.fail_nth(OpKind::Rename, 0, DiskFault::Eio);
    file.write_all_at(b"aaaa", 0).unwrap();
    let error = file.write_all_at(b"bbbb", 4).unwrap_err();
    assert_ne!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.bytes().unwrap(), 7, "the first three bytes were written");
    assert_eq!(file.write_all_at(b"cccc", 4).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.write_all_at(b"dddd", 4).unwrap();
    disk.rename(&path("a"), &path("b")).unwrap_err();
    disk.rename(&path("a"), &path("b")).unwrap();
    assert_eq!(disk.kill(disk.operations()).bytes_of(path("b")).unwrap(), b"aaaadddd");
}

#[test]
fn a_full_disk_refuses_growth_until_there_is_room_again() {
    let (disk, file) = disk_with("a");
    disk.capacity(Some(10));
    file.write_all_at(&[1; 8], 0).unwrap();
    assert_eq!(file.write_all_at(&[2; 8], 8).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.bytes_used(), 10, "what fitted was written, as a real disk does");
    file.write_all_at(&[3; 10], 0).unwrap();
    disk.create(&path("b")).unwrap().write_all_at(&[4], 0).unwrap_err();
    disk.capacity(Some(20));
    file.write_all_at(&[2; 8], 8).unwrap();
    disk.remove(&path("a")).unwrap();
    assert_eq!(disk.bytes_used(), 0);
}

#[test]
fn a_lock_is_held_once_until_dropped_and_never_survives_a_crash() {
    let (disk, _file) = disk_with("a");
    let guard = disk.lock(&path("LOCK")).unwrap();
    assert!(matches!(disk.lock(&path("LOCK")), Err(LockError::Held { .. })));
    assert!(disk.kill(disk.operations()).into_disk().lock(&path("LOCK")).is_ok());
    drop(guard);
    assert!(disk.lock(&path("LOCK")).is_ok());
}

#[test]
fn the_running_disk_behaves_as_a_file_system() {
    let (disk, file) = disk_with("a");
    assert_eq!(disk.create(&path("a")).err().map(|e| e.kind()), Some(io::ErrorKind::AlreadyExists));
    assert_eq!(disk.open(&path("b")).err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
    assert_eq!(disk.list(Path::new("other")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.remove(&path("b")).unwrap_err().kind(), io::ErrorKind::NotFound);
    disk.create_dir(dir()).unwrap();
    file.write_all_at(b"xyz", 2).unwrap();
    let mut buf = [9; 8];
    assert_eq!(disk.open(&path("a")).unwrap().read_at(&mut buf, 1).unwrap(), 4);
    assert_eq!(buf[..4], *b"\0xyz");
    assert_eq!(file.read_at(&mut buf, 5).unwrap(), 0);
}

#[test]
fn an_image_runs_on_as_a_disk_on_which_everything_is_durable() {
    let (disk, file) = disk_with("a");
    file.write_all_at(b"first", 0).unwrap();
    let disk = disk.kill(disk.operations()).into_disk();
    assert_eq!(disk.operations(), 0);
    disk.open(&path("a")).unwrap().write_all_at(b"second", 5).unwrap();
    for bytes in crashes(&disk, disk.operations(), "a") {
        assert_eq!(bytes.unwrap()[..5], *b"first");
    }
}

#[test]
fn damage_to_an_image_leaves_its_copies_alone() {
    let (disk, file) = disk_with("a");
    file.write_all_at(&[0xff; 600], 0).unwrap();
    let image = disk.kill(disk.operations());
    let mut damaged = image.clone();
    damaged.flip_bit(path("a"), 8 * 512 + 3);
    assert_eq!(damaged.bytes_of(path("a")).unwrap()[512], 0b1111_0111);
    damaged.truncate(path("a"), 513);
    damaged.rename(path("a"), path("b"));
    damaged.insert(path("c"), b"new");
    damaged.overwrite(path("c"), 1, b"EW!");
    assert_eq!(damaged.bytes_of(path("c")).unwrap(), b"nEW!");
    damaged.remove(path("c"));
    assert_eq!(damaged.len_of(path("b")), Some(513));
    assert_eq!(image.bytes_of(path("a")).unwrap(), vec![0xff; 600]);
    assert_ne!(image.digest(), damaged.digest());
    assert_eq!(image.digest(), disk.kill(disk.operations()).digest());
}

/// Draws many images at every point of a journal-like run on several files. The snapshots must give
/// the result of a replay from the start, and equal generators the same image.
#[test]
fn the_same_seed_draws_the_same_image_in_any_order_of_visits() {
    let run = || {
        let (disk, file) = disk_with("a");
        let other = disk.create(&path("b")).unwrap();
        for turn in 0..60 {
            file.write_all_at(&[turn; 700], u64::from(turn) * 700).unwrap();
            other.write_all_at(&[turn; 3], 0).unwrap();
            if turn % 3 == 0 {
                file.sync_data().unwrap();
            }
            if turn % 20 == 0 {
                disk.sync_dir(dir()).unwrap();
            }
        }
        disk
    };
    let (forwards, backwards) = (run(), run());
    let moments = forwards.operations();
    let draw = |disk: &CrashDisk, at: usize| disk.crash(at, &SeededRng::new(at as u64)).digest();
    let drawn: Vec<u64> = (0..=moments).map(|at| draw(&forwards, at)).collect();
    let again: Vec<u64> = (0..=moments).rev().map(|at| draw(&backwards, at)).collect();
    assert_eq!(drawn, again.into_iter().rev().collect::<Vec<_>>());
    assert!(drawn.iter().collect::<HashSet<_>>().len() > moments / 2, "most moments differ");
    assert_eq!(forwards.kind_of(0), Some(OpKind::CreateDir));
    assert!(forwards.describe(4).contains("write"), "{}", forwards.describe(4));
}

#[test]
fn the_hook_runs_in_every_sync() {
    let (disk, file) = disk_with("a");
    let syncs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&syncs);
    disk.on_sync(Some(Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })));
    file.sync_data().unwrap();
    disk.sync_dir(dir()).unwrap();
    assert_eq!(syncs.load(Ordering::SeqCst), 2);
}

/// Size of a run of the journal's suite: six segments of 64 KB, two thousand records.
#[test]
fn a_run_the_size_of_a_journals_has_mostly_distinct_crash_states() {
    let disk = CrashDisk::new();
    disk.create_dir(dir()).unwrap();
    let mut files = Vec::new();
    for segment in 0..6 {
        let file = disk.create(&path(&format!("segment-{segment}"))).unwrap();
        file.write_all_at(&[0; 65_536], 0).unwrap();
        file.sync_data().unwrap();
        files.push(file);
    }
    disk.sync_dir(dir()).unwrap();
    for turn in 0..2_000_u64 {
        let file = &files[usize::try_from(turn % 6).unwrap()];
        file.write_all_at(&[1; 120], turn * 30).unwrap();
        if turn % 4 == 0 {
            file.sync_data().unwrap();
        }
    }
    let rng = SeededRng::new(4);
    let digests: HashSet<u64> =
        (0..1_000).map(|_| disk.crash(rng.below(disk.operations() + 1), &rng).digest()).collect();
    assert!(digests.len() > 500, "{} distinct states", digests.len());
}

//! Tests damaged bytes: every cut, every flipped bit, every missing or swapped file.

use std::collections::BTreeMap;

use quipu_engine::Position;
use quipu_engine::offline::inspect::inspect;
use quipu_model::{Command, Name};
use quipu_testkit::{CrashDisk, Image};

use crate::world::{DATA, World, data_path, ledger_opener, refusal, seal_without_cut, small_options};

const SEGMENT_BYTES: u64 = 4096;

/// A record of the undamaged journal, and what the counters were after it.
struct KnownRecord {
    position: Position,
    end: Position,
    file: String,
    offset: u64,
    synced: Position,
    after: BTreeMap<String, i64>,
}

/// A directory with some records, all of them synced, and what is known of it. `noted`: in the
/// control file, too.
fn directory(records: usize, noted: bool) -> (Image, Vec<KnownRecord>, Position) {
    let world = World::new(CrashDisk::new(), 11);
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    let mut states = BTreeMap::new();
    let mut now = BTreeMap::new();
    states.insert(engine.steps().reserved(), now.clone());
    for index in 0..records {
        let name = format!("d:{}", index % 5);
        *now.entry(name.clone()).or_insert(0) += index as i64 + 1;
        engine.add(&name, index as i64 + 1).unwrap();
        states.insert(engine.steps().reserved(), now.clone());
        if index % 7 == 3 {
            engine.steps().prepare_segments().unwrap();
        }
    }
    if noted {
        engine.steps().record_synced().unwrap();
    }
    let image = world.disk.kill(world.disk.operations());
    let mut known = Vec::new();
    let inspection =
        inspect(&world.disk, DATA.as_ref(), ledger_opener(&world.disk, DATA.as_ref()), |segment, record| {
            let end = record.position.plus(record.bytes as u64);
            known.push(KnownRecord {
                position: record.position,
                end,
                file: segment.path.display().to_string(),
                offset: segment.offset(record.position),
                synced: record.header.synced,
                after: states[&end].clone(),
            });
            Ok(())
        })
        .unwrap();
    let control = inspection.control.unwrap();
    (image, known, control.synced)
}

/// What a directory opens to: the counters, or the refusal.
fn open(image: Image) -> Result<BTreeMap<String, i64>, String> {
    let world = World::new(image.into_disk(), 12);
    match world.open(small_options(SEGMENT_BYTES)) {
        Err(error) => Err(error.to_string()),
        Ok(engine) => {
            let names = (0..5).map(|index| format!("d:{index}"));
            let readings = names.map(|name| (name.clone(), engine.read(&name).unwrap()));
            Ok(readings.filter(|(_, reading)| reading.exists).map(|(name, reading)| (name, reading.value)).collect())
        }
    }
}

#[test]
fn a_journal_cut_at_any_byte_of_its_last_records_recovers_to_the_last_whole_one() {
    let (image, known, _) = directory(9, false);
    let last = known.last().unwrap();
    let mut cuts = 0;
    for (index, record) in known.iter().enumerate().skip(known.len() - 3) {
        let whole = &known[index - 1].after;
        // The records stand in one segment here; cutting a preallocated file leaves zeros, or
        // whatever was there before.
        for byte in 0..record.end.0 - record.position.0 {
            let at = (record.offset + byte) as usize;
            let left = (last.offset + (last.end.0 - last.position.0)) as usize - at;
            for (filler, what) in [(0x00, "zeros"), (0xff, "ones"), (0xa5, "garbage")] {
                let mut cut = image.clone();
                cut.overwrite(&record.file, at, &vec![filler; left]);
                // Behind a byte that already was what the filler is, a record may still be whole.
                if cut.bytes_of(&record.file) == image.bytes_of(&record.file) {
                    continue;
                }
                cuts += 1;
                // A record behind the cut says how far the journal was synced; with all of them
                // gone it is a torn tail.
                assert_eq!(open(cut).as_ref(), Ok(whole), "record {index} cut at byte {byte}, {what} behind");
            }
        }
    }
    println!("proof: journal cut at every byte of its last 3 records: {cuts} cuts");
}

#[test]
fn one_flipped_bit_is_refused_below_a_synced_position_and_a_torn_tail_above_it() {
    let (mut flips, mut refused, mut torn) = (0, 0, 0);
    for noted in [true, false] {
        let (image, known, control_synced) = directory(12, noted);
        let whole = Ok(known.last().unwrap().after.clone());
        let journal_files: Vec<String> =
            image.files().map(|file| file.display().to_string()).filter(|file| file.ends_with(".seg")).collect();
        for file in &journal_files {
            let bits = image.len_of(file).unwrap() * 8;
            for bit in 0..bits {
                let byte = (bit / 8) as u64;
                let mut flipped = image.clone();
                flipped.flip_bit(file, bit);
                flips += 1;
                let result = open(flipped);
                let holds = |record: &&KnownRecord| {
                    let bytes = record.end.0 - record.position.0;
                    record.file == *file && (record.offset..record.offset + bytes).contains(&byte)
                };
                let context = format!("bit {bit} of {file}, noted {noted}");
                if byte < 64 {
                    // The header of the segment.
                    let text = result.expect_err(&context);
                    assert!(text.contains(file), "{context}: {text}");
                    refused += 1;
                } else if let Some(index) = known.iter().position(|record| holds(&record)) {
                    let record = &known[index];
                    let others = known.iter().enumerate().filter(|(other, _)| *other != index);
                    let synced = others.map(|(_, other)| other.synced).max().unwrap().max(control_synced);
                    if record.position < synced {
                        let text = result.expect_err(&context);
                        assert!(
                            text.contains(file) && text.contains(&format!("byte {}", record.offset)),
                            "{context}: {text}"
                        );
                        refused += 1;
                    } else {
                        assert_eq!(result.as_ref(), Ok(&known[index - 1].after), "{context}");
                        torn += 1;
                    }
                } else {
                    assert_eq!(result, whole, "{context}: behind the tail");
                }
            }
        }
        // The control file: the other slot says the same or less, and then the journal itself is
        // whole.
        let control = data_path("control");
        for bit in 0..image.len_of(&control).unwrap() * 8 {
            let mut flipped = image.clone();
            flipped.flip_bit(&control, bit);
            flips += 1;
            match open(flipped) {
                Ok(found) => assert_eq!(Ok(found), whole, "bit {bit} of the control file"),
                Err(text) => assert!(text.contains("control"), "{text}"),
            }
        }
    }
    println!(
        "proof: flipped bits: {flips}, of which {refused} refused with file and byte, {torn} taken for a torn tail"
    );
}

#[test]
fn what_stands_behind_the_tail_is_not_taken_for_a_record() {
    let (image, known, _) = directory(8, false);
    let (first, last) = (&known[1], known.last().unwrap());
    let tail = (last.offset + (last.end.0 - last.position.0)) as usize;
    let bytes = image.bytes_of(&last.file).unwrap();
    let old = &bytes[first.offset as usize..(first.offset + (first.end.0 - first.position.0)) as usize];
    let newest = &bytes[last.offset as usize..tail];
    for (what, behind) in [
        ("an old record, whole", old),
        ("the last record once more", newest),
        ("ones", &[0xff; 300][..]),
        ("a length and nothing", &[0, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0][..]),
    ] {
        let mut image = image.clone();
        image.overwrite(&last.file, tail, behind);
        assert_eq!(open(image).as_ref(), Ok(&last.after), "{what}");
    }
}

#[test]
fn records_that_a_torn_tail_left_do_not_follow_those_of_a_later_life() {
    // Of three records, unsynced, the first is lost and the others are whole. It was as long as the
    // record with which a life begins, so the later life's first record ends just where the second
    // of them stands.
    let name = "d:0123456789";
    let world = World::new(CrashDisk::new(), 5);
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    let first = engine.steps().reserved();
    for _ in 0..3 {
        let mut turn = engine.turn();
        turn.run(&Command::Add { name: Name::new(name.as_bytes()).unwrap(), delta: 1, shard_key: None }).unwrap();
        turn.finish();
    }
    engine.steps().write_filled();
    let mut image = world.disk.kill(world.disk.operations());
    image.overwrite(data_path("journal-0000000000000000.seg"), 64 + first.0 as usize, &[0; 20]);
    let world = World::new(image.into_disk(), 5);
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    assert_eq!((engine.recovery().tail.position, engine.read(name).unwrap().value), (first, 0));
    let start_bytes = engine.steps().reserved().0 - first.0;
    assert_eq!(start_bytes, 47, "the name's length makes both records as long: adjust it with the format");
    for acknowledged in 0..3 {
        let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 6);
        let found = again.open(small_options(SEGMENT_BYTES)).unwrap().read(name).unwrap().value;
        assert_eq!(found, acknowledged, "only what the later life acknowledged");
        engine.add(name, 1).unwrap();
    }
}

#[test]
fn files_that_are_missing_truncated_newer_or_swapped_are_refused_by_name() {
    let (image, known, _) = directory(320, true);
    let segment = |number: u64| data_path(&format!("journal-{number:016x}.seg"));
    assert!(known.iter().any(|record| record.file.contains("02.seg")), "several segments are in use");
    let spoil = |what: &str, file: &str, change: &dyn Fn(&mut Image)| {
        let mut image = image.clone();
        change(&mut image);
        let world = World::new(image.into_disk(), 3);
        let text = refusal(world.open(small_options(SEGMENT_BYTES)));
        assert!(text.contains(file), "{what}: {text}");
        // `inspect` says the same, word for word.
        let verdict = inspect(&world.disk, DATA.as_ref(), ledger_opener(&world.disk, DATA.as_ref()), |_, _| Ok(()))
            .unwrap()
            .verdict;
        assert_eq!(verdict.unwrap_err().to_string(), text, "{what}");
    };
    let second = "journal-0000000000000001.seg";
    spoil("missing", second, &|image| image.remove(segment(1)));
    spoil("the newest in use missing", "journal-0000000000000002.seg", &|image| image.remove(segment(2)));
    spoil("truncated", second, &|image| image.truncate(segment(1), 1000));
    spoil("cut within its header", second, &|image| image.truncate(segment(1), 10));
    spoil("empty", second, &|image| image.truncate(segment(1), 0));
    spoil("control missing", "control", &|image| image.remove(data_path("control")));
    spoil("control truncated", "control", &|image| image.truncate(data_path("control"), 50));
    spoil("swapped", second, &|image| {
        image.rename(segment(1), data_path("aside"));
        image.rename(segment(2), segment(1));
        image.rename(data_path("aside"), segment(2));
    });
    spoil("of another directory", second, &|image| {
        image.insert(segment(1), &other_directory().bytes_of(segment(1)).unwrap());
    });
    spoil("of a newer version", second, &|image| image.overwrite(segment(1), 16, &2u32.to_le_bytes()));
}

#[test]
fn a_control_file_of_a_newer_version_is_refused_though_the_other_slot_is_old_enough() {
    let (mut image, _, _) = directory(3, true);
    let control = data_path("control");
    let bytes = image.bytes_of(&control).unwrap();
    let generation = |slot: usize| u64::from_le_bytes(bytes[slot + 24..slot + 32].try_into().unwrap());
    let newest = if generation(0) > generation(4096) { 0 } else { 4096 };
    let mut slot = bytes[newest..newest + 112].to_vec();
    slot[16] = 2;
    let check = xxhash_rust::xxh3::xxh3_64(&slot[8..]);
    slot[..8].copy_from_slice(&check.to_le_bytes());
    image.overwrite(&control, newest, &slot);
    assert!(open(image).unwrap_err().contains("version 2"));
}

#[test]
fn a_directory_in_use_is_refused() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    assert!(refusal(world.open(small_options(SEGMENT_BYTES))).contains("in use"));
    drop(engine);
    world.open(small_options(SEGMENT_BYTES)).unwrap();
}

#[test]
fn a_ledger_that_does_not_fit_the_journal_is_refused_by_name() {
    let world = World::new(CrashDisk::new(), 4);
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    let (ledger, control) = (data_path("ledger.state"), data_path("control"));
    let write = |count: usize| {
        for index in 0..count {
            engine.add(format!("d:{}", index % 5), 1).unwrap();
        }
    };
    write(50);
    engine.steps().seal_all().unwrap();
    let older = world.disk.kill(world.disk.operations());
    write(50);
    let (uncut, sealed) = (world.disk.kill(world.disk.operations()), seal_without_cut(&engine));
    let whole = world.disk.kill(world.disk.operations());
    engine.steps().finish_seal(sealed).unwrap();
    let cut = world.disk.kill(world.disk.operations());
    let opened = |image: Image| match World::new(image.into_disk(), 3).open(small_options(SEGMENT_BYTES)) {
        Ok(engine) => Ok(engine.read("d:0").unwrap().value),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(opened(whole.clone()), Ok(20), "sealed, but not cut");
    assert_eq!(opened(cut.clone()), Ok(20));
    let refused = |what: &str, image: Image, words: &str| {
        let text = opened(image).expect_err(what);
        assert!(text.contains("/data/ledger") && text.contains(words), "{what}: {text}");
    };
    let mut image = cut.clone();
    image.remove(&ledger);
    refused("missing", image, "it is empty, but the journal begins at position");
    let mut image = cut.clone();
    image.insert(&ledger, &older.bytes_of(&ledger).unwrap());
    refused("older than the journal", image, "but the journal begins at position");
    let other = other_directory();
    let mut image = cut.clone();
    image.insert(&ledger, &other.bytes_of(&ledger).unwrap());
    refused("of another directory", image, "another data directory");
    // An older journal under a newer ledger: what the ledger has is not in it.
    let mut image = whole.clone();
    for file in [data_path("journal-0000000000000000.seg"), data_path("journal-0000000000000001.seg"), control] {
        image.insert(&file, &older.bytes_of(&file).unwrap());
    }
    let text = opened(image).expect_err("an older journal");
    assert!(text.contains("journal-") && text.contains("though the ledger has"), "{text}");
    assert_eq!(opened(uncut), Ok(20));
}

fn other_directory() -> Image {
    let world = World::new(CrashDisk::new(), 99);
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    for _ in 0..200 {
        engine.add("d:other", 1).unwrap();
        engine.steps().prepare_segments().unwrap();
    }
    // The journal stays whole beside the ledger.
    seal_without_cut(&engine);
    world.disk.kill(world.disk.operations())
}

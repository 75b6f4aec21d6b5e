//! Kills the process at any moment: the ledger matches its watermark.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use quipu_testkit::SeededRng;

use crate::{Model, apply, batch, compact_all, ingest, open, read_all};

const DIR: &str = "QUIPU_LEDGER_KILL_DIR";
const KILLS: usize = 120;
const NAMES: usize = 300;

#[test]
fn a_killed_ledger_is_as_its_watermark_says() {
    if let Some(dir) = std::env::var_os(DIR) {
        write_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let rng = SeededRng::new(1);
    let mut model = Model::new();
    let mut replayed = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::a_killed_ledger_is_as_its_watermark_says", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut acknowledged = lines.filter_map(|line| line.strip_prefix("at rest ")?.parse::<u64>().ok());
        // Some are killed while they open, the others after a batch or more; the pause puts the
        // kill at any point of a step.
        let before = acknowledged.by_ref().take(rng.below(4)).last();
        std::thread::sleep(Duration::from_micros(rng.below(8000) as u64));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let acknowledged = acknowledged.last().or(before);

        let ledger = open(dir.path()).unwrap();
        let watermark = position(ledger.watermark().unwrap());
        assert!(watermark >= acknowledged.unwrap_or(replayed), "kill {kill}: {watermark} after {acknowledged:?}");
        for number in replayed + 1..=watermark {
            replay(&mut model, number);
        }
        replayed = watermark;
        assert_eq!(read_all(&ledger).unwrap(), model, "kill {kill} at {watermark}");
    }
    println!("proof: ledger killed {KILLS} times among {replayed} batches, clears and compactions");
    assert!(replayed > KILLS as u64 / 2, "only {replayed} batches");
}

fn write_until_killed(dir: &Path) -> ! {
    let ledger = open(dir).unwrap();
    let mut number = position(ledger.watermark().unwrap());
    loop {
        number += 1;
        match clears(number) {
            true => ledger.clear(&number.to_le_bytes()).unwrap(),
            false => ingest(&ledger, &batch(&SeededRng::new(number), 100, NAMES), &number.to_le_bytes()).unwrap(),
        }
        println!("at rest {number}");
        compact_all(&ledger).unwrap();
    }
}

fn replay(model: &mut Model, number: u64) {
    if clears(number) {
        model.clear();
    } else {
        apply(model, &batch(&SeededRng::new(number), 100, NAMES));
    }
}

fn clears(number: u64) -> bool {
    number.is_multiple_of(13)
}

fn position(watermark: Option<Vec<u8>>) -> u64 {
    watermark.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

//! Tests of backup, restore and copies, through the built program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value};
use quipu_testkit::program::{Launch, LaunchError, Program};
use tempfile::TempDir;

use crate::life::launch;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients that count, each in names of its own.
const CLIENTS: usize = 4;

/// Number of names of a client, which it adds to in turn. Their values give the number of its adds,
/// and prove that none in between is missing.
const NAMES: u64 = 500;

/// Adds in one pipeline.
const PIPELINE: u64 = 50;

/// Backups under load.
const BACKUPS: usize = 4;

fn quipu(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quipu")).env_clear().args(arguments).output().expect("the program runs")
}

fn run_and_print(arguments: &[&str]) -> String {
    let output = quipu(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the program writes text")
}

/// What a command says when it fails.
fn run_and_fail(arguments: &[&str]) -> String {
    let output = quipu(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8([output.stdout, output.stderr].concat()).expect("the program writes text")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

/// Seals often, cuts often.
fn busy(data: &Path) -> Launch {
    let arguments = ["--seal-every", "100ms", "--journal-bytes-max", "262144"].map(Into::into).to_vec();
    Launch { arguments, ..launch(data, Durability::Durable) }
}

fn client(program: &Program) -> RespConnection {
    RespConnection::connect(program.address(), ANSWER_TIMEOUT).expect("a program that serves accepts")
}

fn name(client: usize, add: u64) -> String {
    format!("c{client}:{}", add % NAMES)
}

/// How many adds of a client are there; fails unless they are its first ones, each once.
fn adds_of(client: usize, resp: &mut RespConnection) -> u64 {
    let names: Vec<String> = (0..NAMES).map(|index| name(client, index)).collect();
    let request: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
    let reply = resp.call(&request).expect("a program that serves answers");
    let values: Vec<u64> = reply.elements().iter().map(|value| value.number().unwrap_or(0) as u64).collect();
    let adds: u64 = values.iter().sum();
    for (index, value) in values.iter().enumerate() {
        let expected = adds / NAMES + u64::from((index as u64) < adds % NAMES);
        assert_eq!(*value, expected, "client {client}: {adds} adds are there, but not its first ones");
    }
    adds
}

/// A directory with something in journal and ledger, cleanly stopped; and what `n` counts.
fn stopped(data: &Path) -> i64 {
    let program = busy(data).start().expect("the program starts");
    let mut resp = client(&program);
    for index in 0..400 {
        resp.call(&["INCR", &format!("k:{}", index % 100)]).expect("an answer");
        resp.call(&["INCR", "n"]).expect("an answer");
    }
    let (status, stderr) = program.terminate().expect("it stops");
    assert!(status.success(), "{stderr}");
    400
}

/// Every file below a directory, and its bytes.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), std::fs::read(&path).expect("a file"));
        }
    }
    files
}

fn copy(from: &Path, to: &Path) {
    for (path, bytes) in contents(from) {
        let target = to.join(path.strip_prefix(from).expect("it is below"));
        std::fs::create_dir_all(target.parent().expect("it is below")).expect("a directory can be made");
        std::fs::write(target, bytes).expect("a file can be written");
    }
}

fn incarnation(data: &Path) -> String {
    let inspected = run_and_print(&["inspect", text(data)]);
    inspected.lines().find(|line| line.starts_with("incarnation")).expect("it is shown").to_owned()
}

#[test]
fn a_backup_under_load_has_every_add_acknowledged_before_it_and_none_twice() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let data = root.path().join("data");
    let program = busy(&data).start().expect("the program starts");
    let server = program.address().to_string();
    let (sent, acked): (Vec<_>, Vec<_>) = (0..CLIENTS).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).unzip();
    let stop = AtomicBool::new(false);
    let backups: Vec<(PathBuf, Vec<u64>, Vec<u64>)> = std::thread::scope(|scope| {
        for index in 0..CLIENTS {
            let (mut resp, sent, acked, stop) = (client(&program), &sent[index], &acked[index], &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let first = acked.load(Ordering::Acquire);
                    let adds = (first..first + PIPELINE).map(|add| vec!["INCR".to_owned(), name(index, add)]);
                    sent.fetch_add(PIPELINE, Ordering::AcqRel);
                    resp.send(&adds.collect::<Vec<_>>()).expect("the server reads");
                    for _ in 0..PIPELINE {
                        assert!(matches!(resp.receive().expect("the server answers"), Value::Integer(_)));
                        acked.fetch_add(1, Ordering::AcqRel);
                    }
                }
            });
        }
        let read = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Ordering::Acquire)).collect::<Vec<_>>();
        let made = (0..BACKUPS).map(|number| {
            // Some seals and cuts further on.
            let from = read(&acked).iter().sum::<u64>();
            while read(&acked).iter().sum::<u64>() < from + 20_000 {
                std::thread::yield_now();
            }
            let dir = root.path().join(format!("backup-{number}"));
            let before = read(&acked);
            let message = run_and_print(&["backup", text(&dir), "--server", &server]);
            assert!(message.contains("next: quipu inspect"), "{message}");
            (dir, before, read(&sent))
        });
        let made = made.collect();
        stop.store(true, Ordering::Release);
        made
    });
    // The one that was copied goes on with everything, also after a kill.
    program.kill9();
    let program = busy(&data).start().expect("the program starts again");
    let mut resp = client(&program);
    for (index, acked) in acked.iter().enumerate() {
        assert_eq!(adds_of(index, &mut resp), acked.load(Ordering::Acquire));
    }
    let (mut least, mut most) = (0, 0);
    for (dir, before, after) in &backups {
        assert!(run_and_print(&["inspect", text(dir)]).ends_with("whole\n"));
        let untouched = contents(dir);
        let restored = dir.with_extension("restored");
        let message = run_and_print(&["restore", text(dir), "--data", text(&restored)]);
        assert!(message.starts_with(&format!("restored {} counters", CLIENTS as u64 * NAMES)), "{message}");
        assert!(message.contains(&format!("next: quipu serve --data {}", restored.display())), "{message}");
        let copy = busy(&restored).start().expect("what was restored starts");
        let mut resp = client(&copy);
        assert_eq!(resp.call(&["DBSIZE"]).expect("an answer"), Value::Integer((CLIENTS as u64 * NAMES) as i64));
        for index in 0..CLIENTS {
            let adds = adds_of(index, &mut resp);
            assert!(before[index] <= adds, "{} of {} adds acknowledged before are there", adds, before[index]);
            assert!(adds <= after[index], "{adds} adds are there, and only {} were sent", after[index]);
            (least, most) = (least + before[index], most + after[index]);
        }
        resp.call(&["INCR", "only:here"]).expect("an answer");
        copy.kill9();
        assert!(contents(dir) == untouched, "restoring and what came after it left the backup as it was");
    }
    eprintln!(
        "proof: backups under load: {BACKUPS}, restored and judged, {least} adds acknowledged before them, {most} sent before they were done, violations 0"
    );
    assert!(client(&program).call(&["GET", "only:here"]).expect("an answer").is_nil());
}

#[test]
fn a_stopped_directory_is_backed_up_and_one_in_use_is_refused_by_its_holder() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let (data, backup) = (root.path().join("data"), root.path().join("backup"));
    let counted = stopped(&data);
    let message = run_and_print(&["backup", text(&backup), "--data", text(&data)]);
    assert!(message.starts_with(&format!("{} holds the journal up to position", backup.display())), "{message}");
    let again = run_and_fail(&["backup", text(&backup), "--data", text(&data)]);
    assert!(again.contains("is not empty"), "{again}");
    let inside = run_and_fail(&["backup", text(&data.join("backup")), "--data", text(&data)]);
    assert!(inside.contains("is inside"), "{inside}");
    let nothing = run_and_fail(&["backup", text(&root.path().join("b")), "--data", text(&root.path().join("nowhere"))]);
    assert!(nothing.contains("holds no journal") && !root.path().join("nowhere").exists(), "{nothing}");

    let program = busy(&data).start().expect("the program starts");
    let contents_before = run_and_fail(&["backup", text(&root.path().join("b")), "--data", text(&data)]);
    assert!(contents_before.contains(&format!("held by process {}", program.pid())), "{contents_before}");
    let contents_before = run_and_fail(&["restore", text(&data), "--data", text(&root.path().join("r"))]);
    assert!(contents_before.contains(&format!("held by process {}", program.pid())), "{contents_before}");
    assert_eq!(client(&program).call(&["GET", "n"]).expect("an answer").number(), Some(counted));
    drop(program);

    let restored = root.path().join("restored");
    run_and_print(&["restore", text(&backup), "--data", text(&restored)]);
    let again = run_and_fail(&["restore", text(&backup), "--data", text(&restored)]);
    assert!(again.contains("is not empty"), "{again}");
    let copy = busy(&restored).start().expect("what was restored starts");
    assert_eq!(client(&copy).call(&["GET", "n"]).expect("an answer").number(), Some(counted));
}

#[test]
fn a_directory_copied_after_a_clean_stop_begins_a_new_incarnation_and_says_so() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let (data, copied) = (root.path().join("data"), root.path().join("copied"));
    stopped(&data);
    let before = incarnation(&data);
    copy(&data, &copied);
    assert_eq!(incarnation(&copied), before);
    let serve = |dir: &Path| {
        let program = busy(dir).start().expect("the program starts");
        assert_eq!(client(&program).call(&["GET", "n"]).expect("an answer").number(), Some(400));
        program.terminate().expect("it stops");
    };
    serve(&data);
    assert_eq!(incarnation(&data), before, "the original goes on as it was");
    serve(&copied);
    let other = incarnation(&copied);
    assert_ne!(other, before);
    serve(&copied);
    assert_eq!(incarnation(&copied), other, "once");

    let third = root.path().join("third");
    copy(&data, &third);
    assert!(banner(&third).contains("a copy of another directory"));
    assert!(!banner(&third).contains("a copy of another directory"));
}

/// What a server says when it starts.
fn banner(data: &Path) -> String {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(env!("CARGO_BIN_EXE_quipu"))
        .env_clear()
        .args(["serve", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", text(data)])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program runs");
    let lines = BufReader::new(child.stdout.take().expect("stdout was piped")).lines().map_while(Result::ok);
    let mut message = String::new();
    for line in lines {
        message.push_str(&line);
        message.push('\n');
        if line.contains("resp://") {
            break;
        }
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    assert!(child.wait().expect("it ends").success());
    message
}

fn tables(data: &Path) -> Vec<PathBuf> {
    contents(&data.join("ledger"))
        .into_keys()
        .filter(|path| path.parent().is_some_and(|dir| dir.ends_with("tables")))
        .collect()
}

#[test]
fn inspect_shows_the_ledger_and_names_the_table_with_a_flipped_bit() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let data = root.path().join("data");
    stopped(&data);
    let before = contents(&data);
    let whole = run_and_print(&["inspect", text(&data)]);
    for words in [
        "ledger      ",
        "tables, ",
        "ingestions waiting",
        "checksums right",
        "sealed to   ",
        "101 counters, at 20",
        "counters    101\n",
    ] {
        assert!(whole.contains(words), "{words:?} is not in\n{whole}");
    }
    assert!(whole.ends_with("whole\n"), "{whole}");
    assert!(contents(&data) == before, "inspecting changes nothing");
    let tables = tables(&data);
    assert!(!tables.is_empty());
    for table in &tables {
        let mut bytes = before[table].clone();
        let middle = bytes.len() / 3;
        bytes[middle] ^= 0x10;
        std::fs::write(table, &bytes).expect("a file can be written");
        let message = run_and_fail(&["inspect", text(&data)]);
        assert!(message.contains(&format!("damaged: {}", data.join("ledger").display())), "{message}");
        assert!(message.contains(text(table)) && message.contains("at byte"), "{message}");
        let restored = root.path().join("restored");
        let message = run_and_fail(&["restore", text(&data), "--data", text(&restored)]);
        assert!(message.contains(text(table)) && message.contains("nothing was restored"), "{message}");
        assert!(!restored.exists());
        std::fs::write(table, &before[table]).expect("a file can be written");
    }
    assert!(contents(&data) == before, "inspecting changes nothing");
}

#[test]
fn inspect_says_what_the_server_says_of_a_ledger_that_does_not_fit() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let (data, other) = (root.path().join("data"), root.path().join("other"));
    stopped(&data);
    stopped(&other);
    std::fs::remove_dir_all(data.join("ledger")).expect("it is there");
    let check = |words: &str| {
        let message = run_and_fail(&["inspect", text(&data)]);
        assert!(message.contains(words), "{message}");
        let verdict = message.lines().find_map(|line| line.strip_prefix("damaged: ")).expect("a verdict").to_owned();
        let Err(LaunchError::Ended { stderr, .. }) = busy(&data).start() else { panic!("it serves") };
        assert!(stderr.contains(&verdict), "{stderr}\n{verdict}");
    };
    check("it is empty, but the journal begins at position");
    std::fs::remove_dir_all(data.join("ledger")).expect("the server has made one");
    copy(&other.join("ledger"), &data.join("ledger"));
    check("it belongs to another data directory");
}

#[test]
fn what_a_backup_or_restore_left_unfinished_is_refused() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let (data, backup) = (root.path().join("data"), root.path().join("backup"));
    stopped(&data);
    run_and_print(&["backup", text(&backup), "--data", text(&data)]);
    std::fs::rename(backup.join("control"), backup.join("control.unfinished")).expect("it is there");
    let message = run_and_fail(&["inspect", text(&backup)]);
    assert!(message.contains("did not finish"), "{message}");
    let message = run_and_fail(&["restore", text(&backup), "--data", text(&root.path().join("restored"))]);
    assert!(message.contains("did not finish"), "{message}");
    let Err(LaunchError::Ended { stderr, .. }) = busy(&backup).start() else { panic!("it serves") };
    assert!(stderr.contains("did not finish"), "{stderr}");
    let message = run_and_fail(&["restore", text(root.path()), "--data", text(&root.path().join("restored"))]);
    assert!(message.contains("holds no backup"), "{message}");
}

/// Flips of a test: each is an inspection of its own.
const FLIPS_A_FILE: usize = 60;

#[test]
fn inspect_finds_each_flipped_byte_of_a_backup_or_says_that_it_was_not_checked() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let (data, backup) = (root.path().join("data"), root.path().join("backup"));
    stopped(&data);
    // Its journal begins within a segment, and goes on from there.
    let arguments = ["--seal-every", "1h"].map(Into::into).to_vec();
    let program = Launch { arguments, ..launch(&data, Durability::Durable) }.start().expect("the program starts");
    for _ in 0..20 {
        client(&program).call(&["INCR", "n"]).expect("an answer");
    }
    run_and_print(&["backup", text(&backup), "--server", &program.address().to_string()]);
    assert!(run_and_print(&["inspect", text(&backup)]).ends_with("whole\n"));
    let (mut found, mut unchecked) = (0, BTreeMap::<String, usize>::new());
    for (path, bytes) in contents(&backup) {
        // Where files are dense, and all over.
        let dense = (0..bytes.len().min(FLIPS_A_FILE * 4)).step_by(4);
        let places = dense.chain((0..bytes.len()).step_by((bytes.len() / FLIPS_A_FILE).max(1)));
        for at in places {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(&path, flipped).expect("a file can be written");
            let output = quipu(&["inspect", text(&backup)]);
            let printed = String::from_utf8(output.stdout).expect("the program writes text");
            if output.status.success() {
                let reason = reason_unchecked(&printed, &path, at);
                let reason = reason.unwrap_or_else(|| panic!("byte {at} of {}: {printed}", path.display()));
                *unchecked.entry(reason).or_default() += 1;
            } else {
                found += 1;
            }
        }
        std::fs::write(&path, &bytes).expect("a file can be written");
    }
    assert!(found > 100, "{found} flips were found, and not checked: {unchecked:?}");
    assert!(unchecked.contains_key("the ledger has it") && unchecked.len() > 2, "{unchecked:?}");
    println!("proof: flipped bytes of a backup: {found} found by inspect, told as not checked: {unchecked:?}");
}

/// Why an inspection did not check a byte, if it says so: `journal-….seg from byte 64 to 3040: the
/// ledger has it`.
fn reason_unchecked(printed: &str, path: &Path, at: usize) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    printed.lines().find_map(|line| {
        let (location, reason) = line.split_once(": ")?;
        let (named, range) = location.split_once(" from byte ")?;
        let (from, to) = range.split_once(" to ")?;
        let is_within = (from.parse::<usize>().ok()?..to.parse().ok()?).contains(&at);
        (named.split_whitespace().next_back() == Some(file) && is_within).then(|| reason.to_owned())
    })
}

//! The command line, through the built program.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own files has failed")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::program::{Launch, LaunchError, Program};
use quipu_testkit::resp::Client;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_quipu");

/// Header of a segment file: the first record begins behind it.
const SEGMENT_HEADER_BYTES: usize = 64;

/// Runs a command without the variables of whoever runs the test.
fn quipu(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).env_clear().args(arguments).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the program writes text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("the program writes text")
}

/// What a command prints when it succeeds.
fn told(arguments: &[&str]) -> String {
    let output = quipu(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

fn launch(data: &Path) -> Launch {
    Launch::new(PROGRAM, data, Durability::Durable)
}

fn directory() -> (TempDir, PathBuf) {
    let root = TempDir::new().expect("a temporary directory can be made");
    let data = root.path().join("data");
    (root, data)
}

/// A directory whose server was killed after 20 durable adds.
fn crashed() -> (TempDir, PathBuf) {
    let (root, data) = directory();
    let program = launch(&data).start().expect("the program starts");
    let server = program.address().to_string();
    for _ in 0..20 {
        told(&["add", "likes:42", "--server", &server]);
    }
    program.kill9();
    (root, data)
}

/// Every file below a directory, its bytes and when they were last changed.
fn contents(data: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for path in std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.append(&mut contents(&path));
        } else {
            let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
            found.insert(path.clone(), (std::fs::read(&path).unwrap(), modified));
        }
    }
    found
}

fn first_segment(data: &Path) -> PathBuf {
    let mut segments: Vec<PathBuf> = std::fs::read_dir(data)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .collect();
    segments.sort();
    segments.swap_remove(0)
}

fn flip_bit(path: &Path, byte: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[byte] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn counters_are_added_to_read_reset_listed_and_deleted() {
    let (_root, data) = directory();
    let program = launch(&data).start().expect("the program starts");
    let server = program.address().to_string();
    let told = |arguments: &[&str]| told(&[arguments, &["--server", &server]].concat());

    assert_eq!(told(&["add", "likes:42"]), "1\n");
    assert_eq!(told(&["add", "likes:42", "41"]), "42\n");
    assert_eq!(told(&["add", "stock:7", "-3"]), "-3\n");
    assert_eq!(told(&["add", "odd name\n", "5"]), "5\n");
    assert_eq!(told(&["get", "likes:42"]), "42\n");
    assert_eq!(told(&["get", "likes:42", "nobody", "stock:7"]), "42\n0\n-3\n");
    assert_eq!(told(&["list"]), "likes:42\t42\n\"odd name\\n\"\t5\nstock:7\t-3\n");
    assert_eq!(told(&["list", "likes:"]), "likes:42\t42\n");
    assert_eq!(told(&["list", "nothing"]), "");
    assert_eq!(told(&["list", "--limit", "1"]), "likes:42\t42\n");
    assert_eq!(told(&["reset", "likes:42"]), "42\n");
    assert_eq!(told(&["get", "likes:42"]), "0\n");
    assert_eq!(told(&["del", "likes:42", "nobody", "stock:7"]), "2\n");
    assert_eq!(told(&["list"]), "\"odd name\\n\"\t5\n");

    let refused = quipu(&["add", "likes:42", "9223372036854775807", "--server", &server]);
    assert!(refused.status.success());
    let refused = quipu(&["add", "likes:42", "1", "--server", &server]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(stderr(&refused), "quipu: the server refused: ERR increment or decrement would overflow\n");
}

#[test]
fn any_number_of_names_and_any_prefix_may_be_asked_for() {
    let (_root, data) = directory();
    let program = launch(&data).start().expect("the program starts");
    let server = program.address().to_string();
    // Longer than a pattern may be, alike in all that a pattern takes of them, and full of its letters.
    let long = "*".repeat(300);
    let (one, other) = (format!("{long}1"), format!("{}-", "*".repeat(299)));
    for name in [&one, &other] {
        assert_eq!(told(&["add", name, "--server", &server]), "1\n");
    }
    assert_eq!(told(&["list", &long, "--server", &server]), format!("{one}\t1\n"));
    let names: Vec<String> = (0..40_000).map(|index| index.to_string()).chain([one]).collect();
    let asked = |task: &'static str| -> Vec<&str> {
        [task].into_iter().chain(names.iter().map(String::as_str)).chain(["--server", &server]).collect()
    };
    let values = told(&asked("get"));
    assert_eq!((values.lines().count(), values.lines().last()), (40_001, Some("1")));
    assert_eq!(told(&asked("del")), "1\n");
    assert_eq!(told(&["add", "a", "--server", &server, "--password", "nobody asked"]), "1\n");
}

#[test]
fn a_clean_stop_exits_0_and_the_next_start_has_everything() {
    let (_root, data) = directory();
    let program = launch(&data).start().expect("the program starts");
    told(&["add", "a", "7", "--server", &program.address().to_string()]);
    let (status, stderr) = program.terminate().expect("the program can be signalled");
    assert_eq!(status.code(), Some(0), "{stderr}");

    let inspected = told(&["inspect", data.to_str().unwrap()]);
    assert!(inspected.contains("a clean stop") && inspected.ends_with("whole\n"), "{inspected}");
    let program = launch(&data).start().expect("the program starts again");
    assert_eq!(told(&["get", "a", "--server", &program.address().to_string()]), "7\n");
}

#[test]
fn a_password_is_asked_for_and_accepted() {
    let (_root, data) = directory();
    let mut launch = launch(&data);
    launch.arguments = vec!["--password".into(), "secret".into()];
    let program: Program = launch.start().expect("the program starts");
    let server = program.address().to_string();
    let refused = quipu(&["add", "a", "--server", &server]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("give it with --password or QUIPU_PASSWORD"), "{}", stderr(&refused));
    let refused = quipu(&["add", "a", "--server", &server, "--password", "guess"]);
    assert!(stderr(&refused).contains("does not accept this password"), "{}", stderr(&refused));
    assert_eq!(told(&["add", "a", "--server", &server, "--password", "secret"]), "1\n");
}

#[test]
fn a_server_that_is_not_there_is_told_with_what_to_do() {
    // A port that was free a moment ago and that nobody was told of.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = quipu(&["get", "a", "--server", &free]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("Start one with `quipu serve`"), "{}", stderr(&output));
}

#[test]
fn a_crashed_directory_is_inspected_and_not_changed() {
    let (_root, data) = crashed();
    let before = contents(&data);
    let inspected = told(&["inspect", data.to_str().unwrap()]);
    assert!(inspected.contains("journal-0000000000000000.seg"), "{inspected}");
    assert!(inspected.contains("records     21"), "20 adds and the record that began the life: {inspected}");
    assert!(inspected.contains("a crash") && inspected.ends_with("whole\n"), "{inspected}");
    let dumped = told(&["inspect", "--dump", data.to_str().unwrap()]);
    assert!(dumped.contains("  cell likes:42 = 20 epoch first count 1 sum 1\n"), "{dumped}");
    assert!(dumped.ends_with(&inspected), "{dumped}");
    assert_eq!(contents(&data), before);
}

#[test]
fn a_torn_tail_is_told_and_then_cut() {
    let (_root, data) = crashed();
    let whole = told(&["inspect", data.to_str().unwrap()]);
    let end: usize =
        whole.lines().find_map(|line| line.strip_prefix("ends at     ")).expect("it is told").parse().unwrap();
    let segment = first_segment(&data);
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[SEGMENT_HEADER_BYTES + end] = 0xff;
    std::fs::write(&segment, bytes).unwrap();

    let inspected = told(&["inspect", data.to_str().unwrap()]);
    let place = format!("torn tail at {} byte {} (will be cut)", segment.display(), SEGMENT_HEADER_BYTES + end);
    assert!(inspected.contains(&place), "{inspected}");
    let program = launch(&data).start().expect("a torn tail keeps nobody from starting");
    assert_eq!(told(&["get", "likes:42", "--server", &program.address().to_string()]), "20\n");
}

#[test]
fn one_flipped_bit_is_found_by_inspect_and_refused_by_serve_in_the_same_words() {
    let (_root, data) = crashed();
    let segment = first_segment(&data);
    // In the body of the first record.
    flip_bit(&segment, SEGMENT_HEADER_BYTES + 30);

    let inspected = quipu(&["inspect", data.to_str().unwrap()]);
    assert_eq!(inspected.status.code(), Some(1));
    let text = stdout(&inspected);
    let verdict =
        text.lines().last().and_then(|line| line.strip_prefix("damaged: ")).expect("the last line is a verdict");
    let place = format!("{} is damaged at byte {SEGMENT_HEADER_BYTES} ", segment.display());
    assert!(verdict.starts_with(&place), "{verdict}");

    let before = contents(&data);
    match launch(&data).start() {
        Err(LaunchError::Ended { status, stderr }) => {
            assert_eq!(status.code(), Some(1));
            assert_eq!(stderr, format!("quipu: cannot open {}: {verdict}\n", data.display()));
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the program serves a damaged directory"),
    }
    let journal = |files: BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)>| {
        files.into_iter().filter(|(path, _)| !path.ends_with("lock")).collect::<Vec<_>>()
    };
    assert_eq!(journal(contents(&data)), journal(before), "a refused directory is left as it was");
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let (_root, data) = directory();
    let program = launch(&data).start().expect("the program starts");
    let output = quipu(&["inspect", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("is in use: held by process {}", program.pid());
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
}

#[test]
fn a_directory_without_a_journal_and_one_that_is_not_there_are_told_apart() {
    let (root, data) = directory();
    assert!(told(&["inspect", root.path().to_str().unwrap()]).contains("no journal"));
    let output = quipu(&["inspect", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!data.exists());
}

#[test]
fn a_bad_configuration_is_told_whole_and_starts_nothing() {
    let (root, data) = directory();
    let file = root.path().join("quipu.toml");
    let text = "[server]\nworkers = 0\nlimits.connectoins = 1\n\n[namespace.views]\ndurability = \"never\"\n";
    std::fs::write(&file, text).unwrap();
    let (file, data_text) = (file.to_str().unwrap(), data.to_str().unwrap());
    for command in [&["config", "check"][..], &["serve"]] {
        let output = quipu(&[command, &["--config", file, "--data", data_text, "--resp", "nowhere"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let told = stderr(&output);
        for place in [format!("{file}:2: "), format!("{file}:3: "), format!("{file}:6: "), "--resp: ".to_owned()] {
            assert_eq!(told.matches(&place).count(), 1, "{place} in {told}");
        }
        assert!(told.ends_with("quipu: 4 mistakes in the configuration\n"), "{told}");
        assert!(!data.exists());
    }
}

#[test]
fn the_effective_configuration_is_shown_with_where_it_came_from_and_without_secrets() {
    let (root, _data) = directory();
    let file = root.path().join("quipu.toml");
    std::fs::write(
        &file,
        "[server]\nworkers = 3\npassword = \"hunter2\"\n[namespace.views]\ndurability = \"relaxed\"\n",
    )
    .unwrap();
    let output = Command::new(PROGRAM)
        .env_clear()
        .env("QUIPU_RELAXED_WINDOW", "20ms")
        .args(["config", "check", "--segment-bytes", "64KiB", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = stdout(&output);
    let row = |key: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(key)).expect("every key has a row");
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let from_file = |line: usize| format!("{}:{line}", file.display());
    assert_eq!(row("server.workers"), ["3".to_owned(), from_file(2)]);
    assert_eq!(row("server.password"), ["***".to_owned(), from_file(3)]);
    assert_eq!(row("namespace.views.durability"), ["relaxed".to_owned(), from_file(5)]);
    assert_eq!(row("server.relaxed_window"), ["20ms", "QUIPU_RELAXED_WINDOW"]);
    assert_eq!(row("server.segment_bytes"), ["64KiB", "--segment-bytes"]);
    assert_eq!(row("server.durability"), ["durable", "default"]);
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_configuration_file_without_an_end_is_refused() {
    let refused = quipu(&["config", "check", "--config", "/dev/zero"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("/dev/zero is too long"), "{}", stderr(&refused));
}

#[test]
fn an_address_that_others_reach_is_refused_without_a_password() {
    let (_root, data) = directory();
    let output = quipu(&["serve", "--data", data.to_str().unwrap(), "--resp", "0.0.0.0:0", "--http", "off"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.starts_with("--resp: ") && told.contains("--insecure") && told.contains("--password"), "{told}");
    assert!(!data.exists());
}

#[test]
fn an_address_that_is_taken_is_told_and_the_directory_is_closed_cleanly() {
    let (_root, data) = directory();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = quipu(&["serve", "--data", data.to_str().unwrap(), "--resp", &address, "--http", "off"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with(&format!("quipu: cannot listen on {address}: ")), "{}", stderr(&output));
    assert!(told(&["inspect", data.to_str().unwrap()]).contains("a clean stop"));
}

#[test]
fn a_stop_is_clean_though_nobody_reads_what_is_said_on_the_way() {
    let data = TempDir::new().expect("a temporary directory");
    let mut child = Command::new(env!("CARGO_BIN_EXE_quipu"))
        .args([
            "serve",
            "--resp",
            "127.0.0.1:0",
            "--http",
            "off",
            "--durability",
            "memory",
            "--seal-every",
            "1h",
            "--data",
        ])
        .arg(data.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stderr.take());
    let mut lines = BufReader::new(child.stdout.take().expect("it was piped")).lines();
    let ready = lines.find_map(|line| line.ok().filter(|line| line.contains("resp://"))).expect("it serves");
    let address = ready.split("resp://").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("an address");
    let mut client = Client::connect(address.parse().expect("an address"), Duration::from_secs(10)).expect("it serves");
    client.call(&["INCRBY", "x", "41"]).expect("it counts");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    let again = launch(data.path()).start().expect("it starts again");
    let mut client = Client::connect(again.address(), Duration::from_secs(10)).expect("it serves");
    assert_eq!(client.call(&["GET", "x"]).expect("it answers").number(), Some(41));
}

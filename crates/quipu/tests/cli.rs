//! Tests of the command line, through the built program.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own files has failed")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use quipu_engine::{Engine, Environment, LEDGER_DIR, Membership, Options, SystemClock, SystemLedger, Watermark};
use quipu_model::{Cell, Durability, Epoch, Ledger, MemoryStore, NodeId, SealedCell, Store};
use quipu_protocol::resp::RespConnection;
use quipu_testkit::program::{Launch, LaunchError, Program};
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
fn run_and_print(arguments: &[&str]) -> String {
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
        run_and_print(&["add", "likes:42", "--server", &server]);
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
    let printed = |arguments: &[&str]| run_and_print(&[arguments, &["--server", &server]].concat());

    assert_eq!(printed(&["add", "likes:42"]), "1\n");
    assert_eq!(printed(&["add", "likes:42", "41"]), "42\n");
    assert_eq!(printed(&["add", "stock:7", "-3"]), "-3\n");
    assert_eq!(printed(&["add", "odd name\n", "5"]), "5\n");
    assert_eq!(printed(&["get", "likes:42"]), "42\n");
    assert_eq!(printed(&["get", "likes:42", "nobody", "stock:7"]), "42\n-\n-3\n");
    assert_eq!(printed(&["list"]), "likes:42\t42\tcount\n\"odd name\\n\"\t5\tcount\nstock:7\t-3\tcount\n");
    assert_eq!(printed(&["list", "likes:"]), "likes:42\t42\tcount\n");
    assert_eq!(printed(&["list", "nothing"]), "");
    assert_eq!(printed(&["list", "--limit", "1"]), "likes:42\t42\tcount\n");
    assert_eq!(printed(&["reset", "likes:42"]), "42\n");
    assert_eq!(printed(&["get", "likes:42"]), "0\n");
    assert_eq!(printed(&["del", "likes:42", "nobody", "stock:7"]), "2\n");
    assert_eq!(printed(&["list"]), "\"odd name\\n\"\t5\tcount\n");

    let refused = quipu(&["add", "likes:42", "9223372036854775807", "--server", &server]);
    assert!(refused.status.success());
    let refused = quipu(&["add", "likes:42", "1", "--server", &server]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(stderr(&refused), "quipu: the server refused: ERR increment or decrement would overflow\n");
}

#[test]
fn a_server_is_named_by_host_and_port_or_by_a_url() {
    let (_root, data) = directory();
    let mut launch = launch(&data);
    launch.arguments = vec!["--password".into(), "p@ss".into()];
    let program: Program = launch.start().expect("the program starts");
    let server = program.address();
    for scheme in ["redis", "quipu"] {
        let url = format!("{scheme}://default:p%40ss@{server}/0");
        assert_eq!(run_and_print(&["add", scheme, "--server", &url]), "1\n");
        let url = format!("{scheme}://{server}");
        assert_eq!(run_and_print(&["get", scheme, "--server", &url, "--password", "p@ss"]), "1\n");
    }
    let refused = quipu(&["get", "a", "--server", "http://127.0.0.1:7380"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("for the RESP port, not for HTTP: write host:port"), "{}", stderr(&refused));
}

#[test]
fn a_cause_is_said_once() {
    // Nobody listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = stderr(&quipu(&["writers", "--store", &format!("redis://{free}")]));
    assert_eq!(refused.matches("Connection refused").count(), 1, "{refused}");
}

#[test]
fn any_number_of_names_and_any_prefix_may_be_asked_for() {
    let (_root, data) = directory();
    let program = launch(&data).start().expect("the program starts");
    let server = program.address().to_string();
    // Longer than a pattern may be, alike in all that a pattern takes of them, and full of its
    // letters.
    let long = "*".repeat(300);
    let (one, other) = (format!("{long}1"), format!("{}-", "*".repeat(299)));
    for name in [&one, &other] {
        assert_eq!(run_and_print(&["add", name, "--server", &server]), "1\n");
    }
    assert_eq!(run_and_print(&["list", &long, "--server", &server]), format!("{one}\t1\tcount\n"));
    let names: Vec<String> = (0..40_000).map(|index| index.to_string()).chain([one]).collect();
    let asked = |task: &'static str| -> Vec<&str> {
        [task].into_iter().chain(names.iter().map(String::as_str)).chain(["--server", &server]).collect()
    };
    let values = run_and_print(&asked("get"));
    assert_eq!((values.lines().count(), values.lines().last()), (40_001, Some("1")));
    assert_eq!(run_and_print(&asked("del")), "1\n");
    assert_eq!(run_and_print(&["add", "a", "--server", &server, "--password", "nobody asked"]), "1\n");
}

#[test]
fn a_clean_stop_exits_0_and_the_next_start_has_everything() {
    let (_root, data) = directory();
    let program = launch(&data).start().expect("the program starts");
    run_and_print(&["add", "a", "7", "--server", &program.address().to_string()]);
    let (status, stderr) = program.terminate().expect("the program can be signalled");
    assert_eq!(status.code(), Some(0), "{stderr}");

    let inspected = run_and_print(&["inspect", data.to_str().unwrap()]);
    assert!(inspected.contains("a clean stop") && inspected.ends_with("whole\n"), "{inspected}");
    let program = launch(&data).start().expect("the program starts again");
    assert_eq!(run_and_print(&["get", "a", "--server", &program.address().to_string()]), "7\n");
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
    assert_eq!(run_and_print(&["add", "a", "--server", &server, "--password", "secret"]), "1\n");
}

#[test]
fn a_server_is_asked_whether_it_answers() {
    let data = TempDir::new().unwrap();
    let program = launch(data.path()).start().unwrap();
    let address = program.address().to_string();
    let output = quipu(&["health", "--server", &address]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "ok\n"));
    program.kill9();
    assert_eq!(quipu(&["health", "--server", &address]).status.code(), Some(1));
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
    let inspected = run_and_print(&["inspect", data.to_str().unwrap()]);
    assert!(inspected.contains("journal-0000000000000000.seg"), "{inspected}");
    assert!(inspected.contains("records     21"), "20 adds and the record that began the life: {inspected}");
    assert!(inspected.contains("a crash") && inspected.ends_with("whole\n"), "{inspected}");
    let dumped = run_and_print(&["inspect", "--dump", data.to_str().unwrap()]);
    assert!(dumped.contains("  cell likes:42 = 20 epoch first count 1 sum 1\n"), "{dumped}");
    assert!(dumped.ends_with(&inspected), "{dumped}");
    assert_eq!(contents(&data), before);
}

#[test]
fn a_torn_tail_is_told_and_then_cut() {
    let (_root, data) = crashed();
    let whole = run_and_print(&["inspect", data.to_str().unwrap()]);
    let end: usize =
        whole.lines().find_map(|line| line.strip_prefix("ends at     ")).expect("it is told").parse().unwrap();
    let segment = first_segment(&data);
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[SEGMENT_HEADER_BYTES + end] = 0xff;
    std::fs::write(&segment, bytes).unwrap();

    let inspected = run_and_print(&["inspect", data.to_str().unwrap()]);
    let location = format!("torn tail at {} byte {} (will be cut)", segment.display(), SEGMENT_HEADER_BYTES + end);
    assert!(inspected.contains(&location), "{inspected}");
    let program = launch(&data).start().expect("a torn tail keeps nobody from starting");
    assert_eq!(run_and_print(&["get", "likes:42", "--server", &program.address().to_string()]), "20\n");
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
    let location = format!("{} is damaged at byte {SEGMENT_HEADER_BYTES} ", segment.display());
    assert!(verdict.starts_with(&location), "{verdict}");

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
    let empty = quipu(&["inspect", root.path().to_str().unwrap()]);
    assert!(empty.status.code() == Some(1) && stdout(&empty).contains("no journal"), "{}", stdout(&empty));
    let output = quipu(&["inspect", data.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!data.exists());
}

/// A directory of a node that was on a shared store: two counters of its own, with 7 and 5 in them.
fn shared() -> (TempDir, PathBuf) {
    let (root, data) = directory();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
    let environment = Environment { store: Some(store), ..Environment::system() };
    let engine = Engine::open_with_threads(Options::new(&data), environment).unwrap();
    let sharing = || engine.sharing().expect("there is a store");
    while sharing().membership() != Membership::Live {
        std::thread::yield_now();
    }
    engine.add("likes:1", 7).unwrap();
    engine.add("likes:2", 5).unwrap();
    while sharing().unsettled() > 0 {
        std::thread::yield_now();
    }
    engine.close().unwrap();
    (root, data)
}

/// Changes what is at rest in a directory, and lets its ledger say that nothing has happened.
fn tamper(data: &Path, name: &[u8], change: impl FnOnce(&mut SealedCell)) {
    let ledger = SystemLedger::open(&data.join(LEDGER_DIR), 1 << 20).unwrap();
    let bytes = ledger.watermark().unwrap().expect("something was sealed");
    let seed = Watermark::decode(&bytes).expect("it makes sense").seed;
    let hash = xxhash_rust::xxh3::xxh3_64_with_seed(name, seed);
    let cell = ledger.get(hash, name).unwrap();
    let mut sealed = SealedCell { hash, name: name.into(), cell, own: None };
    change(&mut sealed);
    ledger.ingest(&[sealed], &[], &bytes).unwrap();
}

#[test]
fn the_writers_of_a_directory_are_told_with_what_they_say() {
    let (_root, data) = shared();
    let (before, text) = (contents(&data), data.to_str().unwrap());
    let writers_table = run_and_print(&["writers", "--data", text]);
    assert!(
        writers_table.contains("last stop    a clean stop\n") && writers_table.ends_with("everything is settled\n"),
        "{writers_table}"
    );
    let row: Vec<&str> = writers_table.lines().nth(5).expect("one life has cells").split_whitespace().collect();
    assert_eq!(row[1..], ["present", "2", "2", "0", "12", "0"], "{writers_table}");
    let json = run_and_print(&["writers", "--data", text, "--json"]);
    let row_json = format!(
        "{{\"incarnation\":\"{}\",\"life\":\"present\",\"counters\":2,\"cells\":2,\"unsettled\":0,\"sum\":12,\"unconfirmed\":0}}",
        row[0]
    );
    assert!(json.ends_with(&format!("\"clean\":true,\"process\":null,\"writers\":[{row_json}]}}\n")), "{json}");
    assert_eq!(contents(&data), before, "looking changes nothing");

    let (_root, data) = crashed();
    let alone = run_and_print(&["writers", "--data", data.to_str().unwrap()]);
    assert!(alone.contains("last stop    a crash\n"), "{alone}");
    assert!(alone.ends_with("nothing was said on a shared store\n"), "{alone}");
}

#[test]
fn an_audit_is_clean_or_names_each_drift_and_exits_1() {
    let (_root, data) = shared();
    let (before, text) = (contents(&data), data.to_str().unwrap());
    let clean = run_and_print(&["audit", "--data", text]);
    assert_eq!(clean, format!("{text}\ncounters  2\nsum       12\nown       2\nclean\n"));
    let json = run_and_print(&["audit", "--data", text, "--json"]);
    assert!(
        json.ends_with("\"clean\":true,\"counters\":2,\"sum\":12,\"own\":2,\"drifts\":[],\"drifts_more\":0}\n"),
        "{json}"
    );
    assert_eq!(contents(&data), before, "an audit changes nothing");

    tamper(&data, b"likes:1", |sealed| sealed.own = Some([0xff].into()));
    tamper(&data, b"likes:odd one", |sealed| {
        sealed.cell = Some(Cell { epoch: Epoch { millis: 9, node: NodeId(1) }, value: 1, expires_at: None });
    });
    let drifted = quipu(&["audit", "--data", text]);
    assert_eq!(drifted.status.code(), Some(1));
    let shown = stdout(&drifted);
    for (counter, what) in
        [("likes:1", "own cells"), ("\"likes:odd one\"", "epoch"), ("-", "counters at rest in shard")]
    {
        let is_row = |line: &str| line.strip_prefix(counter).is_some_and(|rest| rest.trim_start().starts_with(what));
        assert!(shown.lines().any(is_row), "{counter}: {shown}");
    }
    assert!(shown.contains("a record that can be read") && shown.ends_with("4 drifts\n"), "{shown}");
    let json = quipu(&["audit", "--data", text, "--json"]);
    assert_eq!(json.status.code(), Some(1));
    let printed = stdout(&json);
    assert!(printed.contains("{\"counter\":\"likes:1\",\"what\":\"own cells\",\"expected\":"), "{printed}");
    assert!(
        printed.contains("{\"counter\":\"likes:odd one\",\"what\":\"epoch\",\"expected\":\"the first or older\""),
        "{printed}"
    );
    assert!(printed.contains("{\"counter\":null,\"what\":\"counters at rest in shard "), "{printed}");
    let writers = quipu(&["writers", "--data", text]);
    assert_eq!(writers.status.code(), Some(1));
    assert!(
        stderr(&writers).contains("what it says of likes:1 on a shared store makes no sense"),
        "{}",
        stderr(&writers)
    );
}

#[test]
fn damage_keeps_a_directory_from_being_audited_in_the_words_of_inspect() {
    let (_root, data) = crashed();
    flip_bit(&first_segment(&data), SEGMENT_HEADER_BYTES + 30);
    let text = data.to_str().unwrap();
    let inspected = stdout(&quipu(&["inspect", text]));
    let verdict = inspected.lines().last().and_then(|line| line.strip_prefix("damaged: ")).expect("a verdict");
    let before = contents(&data);
    for (task, doing) in [("audit", "audit"), ("writers", "look at the writers of")] {
        let refused = quipu(&[task, "--data", text]);
        assert_eq!(refused.status.code(), Some(1));
        assert_eq!(stderr(&refused), format!("quipu: cannot {doing} {text}: {verdict}\n"));
        assert_eq!(stdout(&refused), "");
    }
    assert_eq!(contents(&data), before);

    // At rest: the block that holds the cells.
    let (_root, data) = shared();
    let table = std::fs::read_dir(data.join("ledger/g000001/tables")).unwrap().next().unwrap().unwrap().path();
    flip_bit(&table, 40);
    let refused = quipu(&["audit", "--data", data.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains(table.to_str().unwrap()), "{}", stderr(&refused));
}

#[test]
fn a_directory_in_use_is_audited_while_its_server_counts() {
    let (_root, data) = directory();
    let mut launch = Launch::new(PROGRAM, &data, Durability::Relaxed);
    // It seals and cuts its journal all the time.
    launch.arguments = ["--journal-bytes-max", "256KiB"].map(Into::into).to_vec();
    let program = launch.start().expect("the program starts");
    let (address, text) = (program.address(), data.to_str().unwrap());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = RespConnection::connect(address, Duration::from_secs(10)).expect("it serves");
            for number in (0..).take_while(|_| !done.load(std::sync::atomic::Ordering::Relaxed)) {
                client.call(&["INCR", &format!("likes:{}", number % 500)]).expect("it counts");
            }
        });
        let audits: Vec<Output> = (0..20).map(|_| quipu(&["audit", "--data", text])).collect();
        let writers = quipu(&["writers", "--data", text]);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for audit in &audits {
            assert!(audit.status.success() && stdout(audit).ends_with("clean\n"), "{}{}", stdout(audit), stderr(audit));
        }
        let expected = format!("last stop    none, process {} is running\n", program.pid());
        assert!(stdout(&writers).contains(&expected), "{}{}", stdout(&writers), stderr(&writers));
    });
}

#[test]
fn a_directory_without_a_journal_is_neither_clean_nor_drifted() {
    let (root, _data) = directory();
    for task in ["audit", "writers"] {
        let refused = quipu(&[task, "--data", root.path().to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).ends_with("there is no journal\n"), "{}", stderr(&refused));
    }
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
        let printed = stderr(&output);
        for location in [format!("{file}:2: "), format!("{file}:3: "), format!("{file}:6: "), "--resp: ".to_owned()] {
            assert_eq!(printed.matches(&location).count(), 1, "{location} in {printed}");
        }
        assert!(printed.ends_with("quipu: 4 mistakes in the configuration\n"), "{printed}");
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
    let printed = stderr(&output);
    assert!(
        printed.starts_with("--resp: ") && printed.contains("--insecure") && printed.contains("--password"),
        "{printed}"
    );
    assert!(!data.exists());
}

#[test]
fn a_stop_is_clean_though_nobody_reads_what_is_said_on_the_way() {
    let data = TempDir::new().expect("a temporary directory");
    let mut child = Command::new(env!("CARGO_BIN_EXE_quipu"))
        .env_clear()
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
    let mut client =
        RespConnection::connect(address.parse().expect("an address"), Duration::from_secs(10)).expect("it serves");
    client.call(&["INCRBY", "x", "41"]).expect("it counts");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    let again = launch(data.path()).start().expect("it starts again");
    let mut client = RespConnection::connect(again.address(), Duration::from_secs(10)).expect("it serves");
    assert_eq!(client.call(&["GET", "x"]).expect("it answers").number(), Some(41));
}

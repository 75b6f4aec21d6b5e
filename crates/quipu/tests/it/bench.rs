//! `quipu bench`, short: its counts and comparisons are right, and it leaves nothing behind. Speed
//! is not tested.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::program::Launch;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::life::{connect, launch};

/// As short as a measurement can be.
const SHORT: [&str; 6] = ["--seconds", "0.05", "--repetitions", "2", "--connections", "5"];

/// How often the tests look whether something has happened, and how often before they give up: half
/// a minute.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS: usize = 1500;

/// The program under test, without the variables of whoever runs the test; it finds redis-server as
/// he does.
fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(launch(Path::new("unused"), Durability::Durable).binary);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.arg("bench").args(arguments);
    command
}

fn document(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the document is JSON")
}

fn list<'a>(document: &'a Value, key: &str) -> &'a [Value] {
    document[key].as_array().unwrap_or_else(|| panic!("{key} is a list: {document}"))
}

fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

/// Whether some process has this text in its command line.
fn is_running(text: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("the processes are listed").flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(text))
}

fn await_that(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if happened() {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
    panic!("{what} did not happen");
}

#[test]
fn a_bench_measures_every_setting_in_every_mode_and_finds_all_it_has_added() {
    let home = directory();
    let dir = home.path().to_str().expect("a path is text");
    let settings = ["--keys", "1,2000", "--pipelines", "1,16", "--json", "--dir", dir];
    let output = bench(&[&SHORT[..], &settings].concat()).output().expect("the program runs");
    let document = document(&output);
    assert_eq!((&document["command"], &document["connections"]), (&"INCR".into(), &5.into()));
    let measured = list(&document, "measurements");
    assert_eq!(measured.len(), 3 * 2 * 2, "{document}");
    for one in measured {
        assert_eq!(one["server"], "quipu");
        assert!(one["operations"].as_u64() > Some(0) && one["operations_per_second"].as_f64() > Some(0.0), "{one}");
        assert!(one["cpu_us_per_operation"].as_f64() > Some(0.0), "{one}");
        assert!(one["p50_us"].as_f64() > Some(0.0) && one["p50_us"].as_f64() <= one["p999_us"].as_f64(), "{one}");
        assert_eq!(list(one, "samples").len(), 2);
    }
    let accounts = list(&document, "accounts");
    assert_eq!(accounts.len(), 3 * 2);
    for account in accounts {
        let (keys, acknowledged) = (account["keys"].as_u64(), account["acknowledged"].as_u64());
        assert!(acknowledged > keys && account["found"].as_u64() == acknowledged, "{account}");
    }
    assert!(list(&document, "ratios").is_empty());
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "the temporary directory is gone");
    assert!(!is_running(dir), "a server was left behind");
}

#[test]
fn beside_redis_every_setting_has_its_ratios_and_no_bars() {
    let home = directory();
    let plot = home.path().join("bench.svg");
    let options = ["--with-redis", "--keys", "500", "--pipelines", "16,17", "--json", "--plot", plot.to_str().unwrap()];
    let output = bench(&[&SHORT[..], &options].concat()).output().expect("the program runs");
    let document = document(&output);
    assert!(document["redis"].is_string());
    assert_eq!(list(&document, "measurements").len(), 3 * 2 * 2);
    let ratios = list(&document, "ratios");
    assert_eq!(ratios.len(), 3 * 2);
    for ratio in ratios {
        assert!(ratio["cpu_per_operation"].as_f64() > Some(0.0) && ratio["throughput"].as_f64() > Some(0.0), "{ratio}");
        let keys: Vec<&str> = ratio.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, ["cpu_per_operation", "floor", "keys", "mode", "pipeline", "throughput"]);
    }
    for account in list(&document, "accounts") {
        assert_eq!(account["acknowledged"], account["found"], "{account}");
    }
    let drawn = std::fs::read_to_string(&plot).expect("the plot was written");
    assert_eq!((drawn.matches("<polyline").count(), drawn.matches("<circle").count()), (6, 12));
}

#[test]
fn sketches_of_frequencies_and_top_lists_are_measured_and_redis_without_their_module_is_told_of() {
    for command in ["pfadd", "cms.incrby", "topk.add"] {
        let options = ["--command", command, "--modes", "memory", "--keys", "300", "--pipelines", "16", "--json"];
        let output = bench(&[&SHORT[..], &options].concat()).output().expect("the program runs");
        let printed_json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(printed_json["command"], command.to_uppercase(), "{printed_json}");
        assert!(
            printed_json["measurements"][0]["operations"].as_u64().is_some_and(|operations| operations > 0),
            "{printed_json}"
        );
    }
    let options = ["--with-redis", "--command", "topk.add", "--modes", "memory", "--keys", "1", "--pipelines", "16"];
    let output = bench(&[&SHORT[..], &options].concat()).output().expect("the program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--redis-module"), "{error}");
}

#[test]
fn the_floor_is_measured_in_turn_and_says_what_no_server_can_go_below() {
    let options = ["--with-redis", "--with-floor", "--modes", "memory", "--keys", "1", "--pipelines", "1,64", "--json"];
    let printed_json = document(&bench(&[&SHORT[..], &options].concat()).output().expect("the program runs"));
    let servers: Vec<&str> =
        list(&printed_json, "measurements").iter().filter_map(|one| one["server"].as_str()).collect();
    assert_eq!(servers, ["redis", "floor", "quipu", "redis", "floor", "quipu"]);
    for ratio in list(&printed_json, "ratios") {
        assert!(ratio["floor"].as_f64().is_some_and(|floor| floor > 0.0), "{ratio}");
    }
    assert_eq!(list(&printed_json, "accounts").len(), 2, "what counts nothing has nothing to account for");
}

#[test]
fn people_get_tables_without_colours_where_there_is_no_terminal() {
    let options = ["--with-redis", "--modes", "memory", "--keys", "1", "--pipelines", "16"];
    let output = bench(&[&SHORT[..], &options].concat()).output().expect("the program runs");
    let text = String::from_utf8(output.stdout).expect("the program writes text");
    assert!(output.status.success() && !text.contains('\x1b'), "{text}");
    let rows = |first: &str| text.lines().filter(|line| line.starts_with(first)).count();
    assert_eq!((rows("mode "), rows("memory ")), (2, 3), "{text}");
    assert!(["must", "goal", "stands"].iter().all(|word| !text.contains(word)), "{text}");
}

#[test]
fn a_server_that_runs_already_has_counted_what_the_bench_says() {
    let home = directory();
    let program = launch(home.path(), Durability::Relaxed).start().expect("the program starts");
    let (server, pid) = (program.address().to_string(), program.pid().to_string());
    let options = ["--keys", "1", "--pipelines", "1,32", "--json", "--server", &server, "--pid", &pid];
    let output = bench(&[&SHORT[..], &options].concat()).output().expect("the program runs");
    let document = document(&output);
    let [account] = list(&document, "accounts") else { panic!("{document}") };
    let counted = connect(&program).call(&["INCRBY", "bench:00000000000000", "0"]).expect("a counter is read").number();
    assert_eq!(counted.map(Value::from).as_ref(), Some(&account["acknowledged"]));
    for one in list(&document, "measurements") {
        assert!(one["mode"].is_null() && one["cpu_us_per_operation"].as_f64() > Some(0.0), "{one}");
    }
    // Reading adds nothing but the one add that made sure that there is a counter.
    let options = ["--keys", "1", "--pipelines", "8", "--json", "--server", &server, "--command", "get"];
    let output = bench(&[&SHORT[..], &options].concat()).output().expect("the program runs");
    let read = self::document(&output);
    let [measured] = list(&read, "measurements") else { panic!("{read}") };
    assert!(measured["operations"].as_u64() > Some(0) && measured["cpu_us_per_operation"].is_null(), "{measured}");
    assert_eq!(list(&read, "accounts")[0]["acknowledged"], 1);
}

#[test]
fn a_refusal_ends_the_bench_with_its_text() {
    let home = directory();
    let mut locked = launch(home.path(), Durability::Memory);
    locked.variables.push(("QUIPU_PASSWORD".into(), "secret".into()));
    let program = Launch::start(&locked).expect("the program starts");
    let server = program.address().to_string();
    let options = ["--keys", "1", "--pipelines", "1", "--server", &server];
    let refused = bench(&[&SHORT[..], &options].concat()).output().expect("the program runs");
    let printed_json = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && printed_json.contains("NOAUTH"), "{printed_json}");
    let output = bench(&[&SHORT[..], &options, &["--password", "secret"]].concat()).output();
    assert!(output.expect("the program runs").status.success());
}

#[test]
fn without_redis_server_the_bench_says_how_to_get_one() {
    let nothing = directory();
    let output = bench(&["--with-redis"]).env("PATH", nothing.path()).output().expect("the program runs");
    let printed_json = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && printed_json.contains("apt-get install redis-server"), "{printed_json}");
}

#[test]
fn an_interrupted_bench_leaves_no_server_and_no_directory_behind() {
    let home = directory();
    let dir = home.path().to_str().expect("a path is text");
    let options = ["--with-redis", "--modes", "memory", "--keys", "1", "--seconds", "600", "--dir", dir];
    let mut running = bench(&options);
    running.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = running.spawn().expect("the program runs");
    await_that("the start of a server", || serves(home.path()));
    kill_process(Pid::from_child(&child), Signal::INT).expect("the bench can be interrupted");
    let output = child.wait_with_output().expect("the bench ends");
    let printed_json = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && printed_json.contains("interrupted"), "{printed_json}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "the temporary directory is gone");
    assert!(!is_running(dir), "a server was left behind");
}

/// Whether a private server below this directory has a data directory, so that the load is about to
/// begin.
fn serves(home: &Path) -> bool {
    let below = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    below(home).any(|bench| below(&bench).any(|round| round.join("quipu/data").exists()))
}

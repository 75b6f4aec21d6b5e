//! Jumps of the wall clock under a running program, made by Debian's libfaketime.
//!
//! Expiry, tokens that carry their time, windows and limits go on. The log and the metric report
//! the jump.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value};
use quipu_testkit::load::read_info;
use quipu_testkit::program::{Launch, Program};
use tempfile::TempDir;

use crate::life::{connect, launch, now};

/// What is waited for takes a second or two.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where Debian has the library: a directory for each architecture.
const LIBRARIES: &str = "/usr/lib";

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// A program whose wall clock is in a file, and its directory.
struct Scene {
    root: TempDir,
    launch: Launch,
}

impl Scene {
    fn new() -> Scene {
        let root = TempDir::new().expect("a temporary directory can be made");
        let config = root.path().join("quipu.toml");
        std::fs::write(&config, "[namespace.w]\nwindow = \"2s/4\"\n").expect("a file can be written");
        let mut launch = launch(&root.path().join("data"), Durability::Durable);
        launch.arguments = vec!["--config".into(), config.into()];
        let hands = root.path().join("hands");
        let variables: [(&str, OsString); 4] = [
            ("LD_PRELOAD", library().into()),
            ("FAKETIME_TIMESTAMP_FILE", hands.into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ];
        launch.variables = variables.map(|(name, value)| (name.into(), value)).to_vec();
        let scene = Scene { root, launch };
        scene.set_clock(0);
        scene
    }

    /// Moves the program's wall clock so far from the true one.
    fn set_clock(&self, offset_seconds: i64) {
        let (hands, new) = (self.root.path().join("hands"), self.root.path().join("hands.new"));
        std::fs::write(&new, format!("{offset_seconds:+}")).expect("a file can be written");
        std::fs::rename(new, hands).expect("and take the place of another");
    }

    fn start(&self) -> Program {
        self.launch.start().expect("it starts")
    }
}

fn library() -> PathBuf {
    let architectures = std::fs::read_dir(LIBRARIES).expect("there are libraries").flatten();
    let found = architectures.map(|architecture| architecture.path().join("faketime/libfaketimeMT.so.1"));
    found.into_iter().find(|path| path.is_file()).expect("libfaketime is installed by `cargo xtask test`")
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "it takes too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ask(client: &mut RespConnection, words: &str) -> Value {
    client.call(&words.split(' ').collect::<Vec<_>>()).expect("it answers")
}

/// How far the program says its wall clock is ahead, by INFO.
fn ahead(client: &mut RespConnection) -> i64 {
    read_info(client, "quipu").expect("it tells of itself")["clock_ahead_seconds"].parse().expect("a number")
}

/// The same, by its metrics.
fn ahead_metric(program: &Program) -> f64 {
    let http = program.http().expect("it serves HTTP");
    let output = Command::new("curl").args(["--silent", &format!("http://{http}/metrics")]).output();
    let text =
        String::from_utf8(output.expect("curl is installed by `cargo xtask test`").stdout).expect("metrics are text");
    let line = text.lines().find_map(|line| line.strip_prefix("quipu_clock_ahead_seconds "));
    line.expect("the metric is there").parse().expect("a number")
}

/// A token that carries the true time, used now for the first time.
fn token(nonce: &str) -> String {
    let since = SystemTime::UNIX_EPOCH.elapsed().expect("it is later than 1970");
    format!("{}-{nonce}", since.as_millis())
}

/// Tokens, expiry, limits and windows do what they do, whatever the wall clock shows.
fn check_that_time_goes_on(client: &mut RespConnection, round: &str) {
    let token = token(round);
    let add = format!("INCREX tokens:{round} BYINT 5 IDMP test {token}");
    for attempt in ["first", "again"] {
        assert_eq!(ask(client, &add), Value::Array(vec![Value::Integer(5), Value::Integer(5)]), "{round}: {attempt}");
    }
    check_expiry(client, round);
}

fn check_expiry(client: &mut RespConnection, round: &str) {
    assert_eq!(ask(client, &format!("SET ttl:{round} 1 PX 700")), Value::Simple("OK".into()), "{round}");
    let limited = format!("INCREX limit:{round} UBOUND 1 PX 700 ENX");
    let reply = |added| Value::Array(vec![Value::Integer(1), Value::Integer(added)]);
    assert_eq!((ask(client, &limited), ask(client, &limited)), (reply(1), reply(0)), "{round}");
    ask(client, &format!("QUIPU.OBSERVE w:{round} alice bob"));
    assert_eq!(uniques(client, round), 2, "{round}");
    until(&format!("{round}: it has expired"), || ask(client, &format!("EXISTS ttl:{round}")) == Value::Integer(0));
    until(&format!("{round}: the limit is over"), || ask(client, &limited) == reply(1));
    until(&format!("{round}: the window has passed"), || uniques(client, round) == 0);
}

fn uniques(client: &mut RespConnection, round: &str) -> i64 {
    match ask(client, &format!("QUIPU.UNIQUES w:{round}")) {
        Value::Array(pairs) => pairs[1].number().expect("an estimate is a number"),
        other => panic!("pairs, not {other:?}"),
    }
}

#[test]
fn thirty_days_forward_and_back_stop_nothing() {
    let scene = Scene::new();
    let program = scene.start();
    let mut client = connect(&program);
    check_that_time_goes_on(&mut client, "before");
    assert_eq!(ahead(&mut client), 0);
    scene.set_clock(30 * DAY_SECONDS);
    until("it says that the clock is ahead", || (ahead(&mut client) - 30 * DAY_SECONDS).abs() <= 1);
    assert!((ahead_metric(&program) - (30 * DAY_SECONDS) as f64).abs() < 2.0, "{}", ahead_metric(&program));
    check_that_time_goes_on(&mut client, "ahead");
    scene.set_clock(0);
    until("it says that the clock is right", || ahead(&mut client) == 0);
    check_that_time_goes_on(&mut client, "back");
    let (status, stderr) = program.terminate().expect("it ends");
    assert!(status.success(), "{stderr}");
    let log = stderr.lines().filter(|line| line.contains("the wall clock has jumped")).collect::<Vec<_>>();
    let ahead =
        log.first().and_then(|line| line.split("ahead_seconds=").nth(1)?.split(' ').next()?.parse::<i64>().ok());
    let is_right = ahead.is_some_and(|ahead| (ahead - 30 * DAY_SECONDS).abs() <= 1);
    assert!(is_right && log.len() == 1 && log[0].contains("WARN"), "{stderr}");
    // And over a restart.
    let program = scene.start();
    check_that_time_goes_on(&mut connect(&program), "later");
}

#[test]
fn a_year_back_stops_nothing() {
    let scene = Scene::new();
    let program = scene.start();
    let mut client = connect(&program);
    check_that_time_goes_on(&mut client, "before");
    scene.set_clock(-365 * DAY_SECONDS);
    until("it says that the clock is behind", || (ahead(&mut client) + 365 * DAY_SECONDS).abs() <= 1);
    check_that_time_goes_on(&mut client, "behind");
    drop(client);
    let (status, stderr) = program.terminate().expect("it ends");
    assert!(status.success(), "{stderr}");
    assert!(stderr.contains("the wall clock has jumped"), "{stderr}");
    // A start goes on from the newest time in the journal.
    let program = scene.start();
    check_that_time_goes_on(&mut connect(&program), "later");
}

#[test]
fn a_clock_that_is_stepped_every_second_stops_nothing() {
    let scene = Scene::new();
    let program = scene.start();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|threads| {
        let scene = &scene;
        threads.spawn(move || {
            let offset = [3_600, -3_600, 30 * DAY_SECONDS, -365 * DAY_SECONDS, 90, -90, 45, 0];
            for offset in offset.into_iter().cycle() {
                scene.set_clock(offset);
                if stopped.recv_timeout(Duration::from_secs(1)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return scene.set_clock(0);
                }
            }
        });
        let mut client = connect(&program);
        for round in ["one", "two", "three"] {
            check_that_time_goes_on(&mut client, round);
        }
        drop(stop);
    });
    let mut client = connect(&program);
    until("it says that the clock is right, or nearly", || ahead(&mut client).abs() <= 60);
    check_that_time_goes_on(&mut client, "after");
}

/// The words of a command on a stopped directory.
fn clock_command(data: &Path, words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(launch(data, Durability::Durable).binary);
    let output =
        command.env_clear().arg("clock").args(words).arg("--data").arg(data).output().expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("it is text");
    (output.status.code().expect("a status"), text(output.stdout), text(output.stderr))
}

#[test]
fn a_clock_that_was_wrong_at_a_start_is_put_right_by_an_operator() {
    let scene = Scene::new();
    let data = scene.launch.data.clone();
    let program = scene.start();
    let before = format!("INCREX a BYINT 5 IDMP test {}", token("before"));
    ask(&mut connect(&program), &before);
    drop(program.terminate().expect("it ends"));
    // Nobody knows how long the server was down, so a start believes this.
    scene.set_clock(30 * DAY_SECONDS);
    let program = scene.start();
    ask(&mut connect(&program), "INCRBY a 10");
    drop(program.terminate().expect("it ends"));
    scene.set_clock(0);
    let program = scene.start();
    let (status, _, log) = clock_command(&data, &["lower"]);
    assert!(status == 1 && log.contains("stop the server first"), "{log}");
    let late = format!("INCREX a BYINT 5 IDMP test {}", token("late"));
    let refused = ask(&mut connect(&program), &late);
    assert!(matches!(&refused, Value::Error(text) if text.starts_with("TOKENTIME")), "{refused:?}");
    drop(program.terminate().expect("it ends"));

    let (status, log, _) = clock_command(&data, &[]);
    assert!(status == 1 && log.contains("ahead"), "{log}");
    let (status, log, error) = clock_command(&data, &["lower"]);
    assert_eq!(status, 0, "{log}{error}");
    let (status, log, _) = clock_command(&data, &[]);
    assert_eq!(status, 0, "{log}");
    let (status, _, log) = clock_command(&data, &["lower"]);
    assert!(status == 1 && log.contains("nothing to lower"), "{log}");

    let program = scene.start();
    let mut client = connect(&program);
    assert_eq!(ask(&mut client, "GET a"), Value::Bulk(b"15".to_vec()), "no count is lost");
    // What may have been forgotten is refused, not applied again.
    let refused = ask(&mut client, &before);
    assert!(matches!(&refused, Value::Error(text) if text.starts_with("TOKENTIME")), "{refused:?}");
    assert_eq!(ask(&mut client, "GET a"), Value::Bulk(b"15".to_vec()));
    // Tokens go on a minute later; until then some may have been applied by a client whose clock
    // was ahead.
    check_expiry(&mut client, "after");
}

//! The server's log on stderr, as text and as JSON.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

fn serve(data: &Path, log: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quipu"));
    command.env_clear().args([
        "serve",
        "--resp",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--workers",
        "1",
        "--log",
        log,
    ]);
    command.arg("--data").arg(data).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn stop(mut child: Child) -> (ExitStatus, String) {
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let status = child.wait().expect("it ends");
    let mut stdout = String::new();
    child.stdout.take().map(|mut out| out.read_to_string(&mut stdout));
    (status, stdout)
}

/// Lines of stderr until one has these words.
fn until(lines: &mut impl Iterator<Item = std::io::Result<String>>, words: &str) -> Vec<String> {
    let mut stderr_text = Vec::new();
    for line in lines {
        stderr_text.push(line.expect("text"));
        if stderr_text.last().is_some_and(|line| line.contains(words)) {
            return stderr_text;
        }
    }
    panic!("it never said {words:?}: {stderr_text:#?}");
}

#[test]
fn json_is_one_object_a_line_with_the_facts_of_start_and_stop() {
    let data = TempDir::new().expect("a directory");
    for start in 0..2 {
        let mut child = serve(data.path(), "json").spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let stderr_text = until(&mut lines, "ready");
        let (status, stdout) = stop(child);
        assert!(status.success(), "{status}");
        assert_eq!(stdout, "", "everything is on stderr");
        let stderr_text: Vec<String> = stderr_text.into_iter().chain(lines.map(|line| line.expect("text"))).collect();
        let stderr_text: Vec<Value> = stderr_text
            .iter()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
            .collect();
        for event in &stderr_text {
            for key in ["timestamp", "level", "message"] {
                assert!(event[key].is_string(), "{key} in {event}");
            }
        }
        let find = |message: &str| stderr_text.iter().find(|event| event["message"].as_str() == Some(message));
        let found = stderr_text.iter().find(|event| event["records"].is_u64()).expect("figures of recovery");
        assert_eq!((found["clean"].as_bool(), found["counters"].as_u64()), (Some(start == 1), Some(0)), "{found}");
        let ready = find("ready").expect("it was ready");
        assert!(ready["resp"].as_str().is_some_and(|resp| resp.starts_with("resp://127.0.0.1:")), "{ready}");
        assert!(ready["http"].as_str().is_some_and(|http| http.starts_with("http://127.0.0.1:")), "{ready}");
        assert_eq!(find("stopping").expect("it was told to stop")["signal"], "SIGTERM");
        assert!(find("stopped; everything acknowledged is durable").is_some());
    }
}

#[test]
fn a_start_that_fails_is_an_object_too() {
    let data = TempDir::new().expect("a directory");
    std::fs::write(data.path().join("file"), "").expect("a file");
    let output = serve(&data.path().join("file"), "json").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let event: Value = serde_json::from_slice(&output.stderr).expect("one object");
    assert_eq!(event["level"], "ERROR");
    assert!(event["reason"].as_str().is_some_and(|reason| reason.starts_with("cannot open")), "{event}");
}

#[test]
fn text_is_for_people_and_keeps_the_start_on_stdout() {
    let data = TempDir::new().expect("a directory");
    let mut child = serve(data.path(), "text").spawn().expect("it starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
    until(&mut stdout, "ready  resp://");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let (status, _) = stop(child);
    assert!(status.success());
    let stderr_text = until(&mut lines, "stopping");
    let line = stderr_text.last().expect("a line");
    assert!(line.contains(" INFO ") && line.contains("signal=\"SIGTERM\""), "{line}");
    until(&mut stdout, "stopped; everything acknowledged is durable");
}

#[test]
fn a_stop_is_clean_also_when_nobody_listens() {
    for log in ["text", "json"] {
        let data = TempDir::new().expect("a directory");
        let mut child = serve(data.path(), log).spawn().expect("it starts");
        if log == "json" {
            until(&mut BufReader::new(child.stderr.take().expect("piped")).lines(), "ready");
        } else {
            until(&mut BufReader::new(child.stdout.take().expect("piped")).lines(), "ready");
        }
        drop((child.stdout.take(), child.stderr.take()));
        let (status, _) = stop(child);
        assert!(status.success(), "{log}: {status}");
    }
}

#[test]
fn a_store_that_cannot_be_reached_is_said_at_the_start() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let url = format!("redis://:s3cret@{free}");
    for log in ["text", "json"] {
        let data = TempDir::new().expect("a directory");
        let mut child = serve(data.path(), log).args(["--store", &url]).spawn().expect("it starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut stderr_text = until(&mut stderr, "the shared store cannot be reached");
        if log == "text" {
            let mut stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
            let banner = until(&mut stdout, "ready  resp://");
            assert!(banner.iter().any(|line| line.contains(&format!("@{free} not reachable yet"))), "{banner:?}");
            stderr_text.extend(banner);
        } else {
            stderr_text.extend(until(&mut stderr, "\"store_reachable\":false"));
        }
        assert!(stderr_text.iter().all(|line| !line.contains("s3cret")), "{stderr_text:?}");
        assert!(stop(child).0.success());
    }
}

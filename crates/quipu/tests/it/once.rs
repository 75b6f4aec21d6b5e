//! A mutation with an `Idempotency-Key`, sent by the README's recipe, repeatedly and through
//! failures.

use std::process::Command;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::load::read_info;
use quipu_testkit::program::Program;
use serde_json::Value;
use tempfile::TempDir;

use crate::life::{connect, launch, now};

/// What the server does in between is done long before.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn an_add_with_one_idempotency_key_is_counted_once_through_a_seal_a_cut_and_a_kill() {
    for mode in [Durability::Durable, Durability::Relaxed] {
        let data = TempDir::new().expect("a temporary directory can be made");
        let mut launch = launch(data.path(), mode);
        let mut start = |arguments: &[&str]| {
            launch.arguments = arguments.iter().map(Into::into).collect();
            launch.start().expect("it starts")
        };
        // Nothing is sealed before it is asked for.
        let program = start(&["--seal-every", "1h", "--journal-bytes-max", "1GB"]);
        let first = add(&program, 5);
        assert_eq!(first.0, 200, "{}", first.1);
        let value: Value = serde_json::from_str(&first.1).expect("a reply is JSON");
        assert_eq!(value["value"], 5);
        assert_eq!(add(&program, 5), first, "at once");
        // Relaxed survives a kill of the process, as durable does.
        program.kill9();

        let program = start(&["--seal-every", "50ms"]);
        assert_eq!(add(&program, 5), first, "after a kill, from the journal");
        let seals = figure(&program, "seals_total");
        until("it is sealed and the journal is cut", || {
            figure(&program, "seals_total") > seals + 1 && figure(&program, "journal_bytes") < 4096
        });
        assert_eq!(add(&program, 5), first, "after a seal and a cut");
        program.kill9();

        let program = start(&["--seal-every", "1h"]);
        assert_eq!(add(&program, 5), first, "after a kill, from the ledger");
        let (status, body) = add(&program, 6);
        assert_eq!(status, 422, "another body: {body}");
        let counted = connect(&program).call(&["GET", "likes:42"]).expect("it answers").number();
        assert_eq!(counted, Some(5), "counted once");
    }
}

/// The status and the body of `curl -d '{"delta": …}' …/add` with the same key every time.
fn add(program: &Program, delta: i64) -> (u16, String) {
    let http = program.http().expect("it serves HTTP");
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--write-out", "\n%{http_code}", "-H", "Idempotency-Key: order-1017", "-d"])
        .arg(format!("{{\"delta\": {delta}}}"))
        .arg(format!("http://{http}/v1/counters/likes:42/add"))
        .output()
        .expect("curl is installed by `cargo xtask test`");
    let text = String::from_utf8(output.stdout).expect("a reply is text");
    let (body, status) =
        text.rsplit_once('\n').unwrap_or_else(|| panic!("curl: {:?}", output.stderr.escape_ascii().to_string()));
    (status.parse().expect("a status is a number"), body.to_owned())
}

fn figure(program: &Program, name: &str) -> u64 {
    read_info(&mut connect(program), "quipu").expect("it tells of itself")[name].parse().expect("a number")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

//! Ends the process at each named step of a backup and of a restore. The result opens whole or is
//! refused, and the original has lost nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own files has failed")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::RespConnection;
use quipu_testkit::program::{Launch, LaunchError};
use tempfile::TempDir;

/// Steps of a backup, in order; what is left after the last is whole.
const BACKUP: [&str; 7] =
    ["backup_held", "backup_begun", "backup_synced", "backup_ledger", "backup_segment", "backup_copied", "backup_done"];

/// Steps of a restore.
const RESTORE: [&str; 4] = ["restore_begun", "restore_ledger", "restore_segment", "restore_done"];

/// What `n` counts.
const COUNTED: i64 = 300;

fn launch(data: &Path) -> Launch {
    let arguments = ["--seal-every", "100ms"].map(Into::into).to_vec();
    Launch { arguments, ..Launch::new(env!("CARGO_BIN_EXE_quipu"), data, Durability::Durable) }
}

fn quipu(arguments: &[&str], failpoints: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quipu"))
        .env_clear()
        .env("FAILPOINTS", failpoints)
        .args(arguments)
        .output()
        .expect("the program runs")
}

fn ends_at(step: &str, arguments: &[&str]) {
    let output = quipu(arguments, &format!("{step}=panic"));
    assert!(output.status.code().is_none(), "{step} was not met: {}", String::from_utf8_lossy(&output.stderr));
}

fn counts(data: &Path) -> Result<i64, LaunchError> {
    let program = launch(data).start()?;
    let mut client = RespConnection::connect(program.address(), Duration::from_secs(30)).unwrap();
    Ok(client.call(&["GET", "n"]).unwrap().number().unwrap_or(0))
}

/// What a process left that ended at a step.
fn judge(step: &str, dir: &Path, last: bool) {
    if !dir.exists() || std::fs::read_dir(dir).unwrap().next().is_none() {
        assert!(!last, "{step}: it was done, and nothing is there");
        return;
    }
    match counts(dir) {
        Ok(counted) => assert_eq!((counted, last), (COUNTED, true), "{step}: what was not finished opens"),
        Err(LaunchError::Ended { stderr, .. }) => {
            assert!(!last && stderr.contains("did not finish"), "{step}: {stderr}")
        }
        Err(error) => panic!("{step}: {error}"),
    }
}

#[test]
fn a_process_that_ends_within_a_backup_or_restore_leaves_it_whole_or_refused() {
    let root = TempDir::new().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let data = path("data");
    {
        let program = launch(data.as_ref()).start().unwrap();
        let mut client = RespConnection::connect(program.address(), Duration::from_secs(30)).unwrap();
        for _ in 0..COUNTED {
            client.call(&["INCR", "n"]).unwrap();
        }
    }
    for step in BACKUP {
        let backup = path(step);
        ends_at(step, &["backup", &backup, "--data", &data]);
        judge(step, backup.as_ref(), step == "backup_done");
        assert_eq!(counts(data.as_ref()).unwrap(), COUNTED, "{step}: the original");
        // Of a running server the same: it ends with the step, and comes back with everything.
        let (backup, variables) =
            (path(&format!("{step}-online")), vec![("FAILPOINTS".into(), format!("{step}=panic").into())]);
        let program = Launch { variables, ..launch(data.as_ref()) }.start().unwrap();
        let output = quipu(&["backup", &backup, "--server", &program.address().to_string()], "");
        assert_eq!(output.status.code(), Some(1), "{step}");
        drop(program);
        judge(step, backup.as_ref(), step == "backup_done");
        assert_eq!(counts(data.as_ref()).unwrap(), COUNTED, "{step}: the original");
    }
    let backup = path("backup");
    assert!(quipu(&["backup", &backup, "--data", &data], "").status.success());
    for step in RESTORE {
        let restored = path(step);
        ends_at(step, &["restore", &backup, "--data", &restored]);
        judge(step, restored.as_ref(), step == "restore_done");
    }
    let restored = path("restored");
    assert!(quipu(&["restore", &backup, "--data", &restored], "").status.success());
    assert_eq!(counts(restored.as_ref()).unwrap(), COUNTED);
    eprintln!(
        "proof: ends within a backup: {} (stopped and running), within a restore: {}, violations 0",
        2 * BACKUP.len(),
        RESTORE.len()
    );
}

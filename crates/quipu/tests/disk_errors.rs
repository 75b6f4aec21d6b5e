//! Errors of a real disk, injected by strace into the system calls of the built program.
//!
//! Changes covered by the failed call are never acknowledged. The process ends and logs the reason.
//! The next start finds every acknowledged change.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::RespConnection;
use quipu_testkit::program::{Launch, LaunchError};

/// The status of a process whose journal failed.
const EXIT_JOURNAL_FAILED: i32 = 74;

/// Runs one test at a time. A child that is just starting has the script of another test open. The
/// system refuses to run a file that is open for writing.
fn wait_for_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that runs ours with errors injected; what follows it on the command line is ours.
fn with_errors(dir: &Path, inject: &str) -> std::path::PathBuf {
    let script = dir.join("with-errors");
    let call = inject.split(':').next().expect("a call");
    let (program, log) = (env!("CARGO_BIN_EXE_quipu"), dir.join("strace.log"));
    // -D: the program is our child and gets our signals, strace a grandchild.
    let text = format!(
        "#!/bin/sh\nexec strace -D -f -qq -o {} -e trace={call} -e signal=none -e inject={inject} {program} \"$@\"\n",
        log.display()
    );
    std::fs::write(&script, text).expect("a script can be written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("and made executable");
    script
}

fn value(launch: &Launch) -> i64 {
    let program = launch.start().expect("it starts on what is there");
    let mut client = RespConnection::connect(program.address(), Duration::from_secs(20)).expect("it serves");
    client.call(&["GET", "hits"]).expect("it answers").number().unwrap_or(0)
}

#[test]
fn an_error_of_the_disk_ends_the_process_and_costs_nothing_acknowledged() {
    let _turn = wait_for_turn();
    // A start with small segments makes some forty syncs and fifty writes; some of these come
    // before it serves, some after.
    let injections = [
        "fdatasync:error=EIO:when=20",
        "fdatasync:error=EIO:when=60",
        "fdatasync:error=EIO:when=200",
        "pwrite64:error=EIO:when=90",
        "pwrite64:error=ENOSPC:when=150",
        "pwrite64:error=EIO:when=300",
    ];
    let mut served = 0;
    for inject in injections {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        let sound = Launch::new(env!("CARGO_BIN_EXE_quipu"), &data, Durability::Durable);
        let launch = Launch { binary: with_errors(dir.path(), inject), ..sound.clone() };
        let (mut acked, mut unknown) = (0, 0);
        match launch.start() {
            Ok(program) => {
                let mut client =
                    RespConnection::connect(program.address(), Duration::from_secs(20)).expect("it serves");
                while unknown == 0 {
                    match client.call(&["INCR", "hits"]) {
                        Ok(reply) => {
                            assert_eq!(reply.number(), Some(acked + 1), "{inject}");
                            acked += 1;
                        }
                        Err(_) => unknown = 1,
                    }
                    assert!(acked < 5_000, "{inject}: the error never came");
                }
                let (status, stderr) = program.wait().expect("it has ended");
                assert_eq!(status.code(), Some(EXIT_JOURNAL_FAILED), "{inject}: {stderr}");
                assert!(stderr.contains("the journal failed"), "{inject}: {stderr}");
                served += 1;
            }
            Err(LaunchError::Ended { stderr, .. }) => {
                assert!(stderr.contains("cannot") || stderr.contains("the journal failed"), "{inject}: {stderr}");
            }
            Err(error) => panic!("{inject}: {error}"),
        }
        let found = value(&sound);
        assert!((acked..=acked + unknown).contains(&found), "{inject}: {found}, but {acked} were acknowledged");
    }
    assert!(served >= 3, "most of the errors come while it serves");
    println!("proof: disk errors by strace: {} injected, {served} of them while it served", injections.len());
}

#[test]
fn a_slow_disk_is_told_with_the_time_of_the_slow_sync() {
    let _turn = wait_for_turn();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let sound = Launch::new(env!("CARGO_BIN_EXE_quipu"), &dir.path().join("data"), Durability::Durable);
    // Of eight syncs one is slow, so that the disk stays slow and the last sync was a fast one.
    let launch = Launch { binary: with_errors(dir.path(), "fdatasync:delay_exit=60000:when=1+8"), ..sound };
    let program = launch.start().expect("it starts");
    let mut client = RespConnection::connect(program.address(), Duration::from_secs(20)).expect("it serves");
    let began = now();
    while began.elapsed() < Duration::from_secs(1) {
        client.call(&["INCR", "hits"]).expect("it answers");
    }
    drop(client);
    let (status, stderr) = program.terminate().expect("it has ended");
    assert!(status.success(), "{stderr}");
    let slow_lines = stderr.lines().filter(|line| line.contains("the disk is slow")).collect::<Vec<_>>();
    assert!(!slow_lines.is_empty(), "{stderr}");
    for line in slow_lines {
        let millis = line.split("sync_millis=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        assert!(millis.is_some_and(|millis| millis >= 60), "{line}");
    }
}

#[allow(clippy::disallowed_methods, reason = "a real program is waited for")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

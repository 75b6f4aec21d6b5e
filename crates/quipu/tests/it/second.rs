//! Two processes on one directory: the second one refuses, and names the first.
//!
//! And a directory with files removed or replaced under a running program: the program ends.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value};
use quipu_testkit::program::{Launch, LaunchError, Program};
use tempfile::TempDir;

use crate::life::{connect, launch};

/// The status of a process whose journal failed.
const EXIT_JOURNAL_FAILED: i32 = 74;

/// What a start on a directory in use says.
fn refusal(launch: &Launch) -> String {
    match launch.start() {
        Err(LaunchError::Ended { status, stderr }) => {
            assert_eq!(status.code(), Some(1), "{stderr}");
            assert!(stderr.contains("is in use"), "{stderr}");
            stderr
        }
        Err(other) => panic!("{other}"),
        Ok(second) => panic!("process {} serves a directory in use", second.pid()),
    }
}

fn quipu(words: &[&str]) -> Output {
    let mut command = Command::new(launch(Path::new("unused"), Durability::Durable).binary);
    command.env_clear().args(words).output().expect("the program runs")
}

fn incr(program: &Program) -> i64 {
    connect(program).call(&["INCR", "a"]).expect("it answers").number().expect("a number")
}

#[test]
fn a_second_process_on_the_same_directory_is_refused_and_told_who_has_it() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let launch = launch(data.path(), Durability::Durable);
    let first = launch.start().expect("the first one starts");
    let mut client = RespConnection::connect(first.address(), Duration::from_secs(20)).expect("the first one accepts");
    assert_eq!(client.call(&["INCR", "a"]).expect("the first one answers"), Value::Integer(1));

    let message = refusal(&launch);
    assert!(message.contains(&first.pid().to_string()), "the message names process {}: {message}", first.pid());

    assert_eq!(client.call(&["INCR", "a"]).expect("the first one still answers"), Value::Integer(2));
    first.kill9();
    let third = launch.start().expect("the directory of a killed process is free again");
    let mut client = RespConnection::connect(third.address(), Duration::from_secs(20)).expect("the third one accepts");
    assert_eq!(client.call(&["GET", "a"]).expect("the third one answers"), Value::Bulk(b"2".to_vec()));
}

#[test]
fn a_removed_or_replaced_lock_file_lets_no_second_process_in() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let launch = launch(data.path(), Durability::Durable);
    let first = launch.start().expect("it starts");
    assert_eq!(incr(&first), 1);
    let lock = data.path().join("lock");
    let dir = data.path().to_str().expect("a path of a test is text");
    let backup = data.path().with_extension("backup");
    let backup = backup.to_str().expect("a path of a test is text");
    for replace in [false, true] {
        std::fs::remove_file(&lock).expect("it is there");
        if replace {
            std::fs::write(&lock, "1").expect("a file can be written");
        }
        refusal(&launch);
        // A command for stopped directories is refused, too.
        for words in [
            &["inspect", dir][..],
            &["backup", backup, "--data", dir],
            &["restore", dir, "--data", backup],
            &["clock", "lower", "--data", dir],
        ] {
            let output = quipu(words);
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {message}");
            assert!(message.contains("is in use"), "{words:?}: {message}");
        }
    }
    assert_eq!(incr(&first), 2, "the first one goes on");
    let (status, stderr) = first.terminate().expect("it ends");
    assert!(status.success(), "{stderr}");
    let again = launch.start().expect("the directory is free, and whole");
    assert_eq!(incr(&again), 3);
}

#[test]
fn each_of_the_locks_alone_keeps_a_second_process_out() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let launch = launch(data.path(), Durability::Durable);
    drop(launch.start().expect("it starts").terminate());
    // The directory's own; `control`, where a file system does not lock directories; `lock`, of
    // earlier versions.
    for path in [data.path().to_owned(), data.path().join("control"), data.path().join("lock")] {
        let held = File::open(&path).expect("it is there");
        held.lock().expect("nobody else has it");
        refusal(&launch);
        drop(held);
    }
    launch.start().expect("it starts when nobody has it");
}

/// What happens to a file.
type Change = fn(&Path);

#[test]
fn a_program_whose_files_are_removed_or_replaced_ends_and_says_which() {
    let replacements: [(&str, Change); 5] = [
        ("control", replace),
        ("control", |path| std::fs::remove_file(path).expect("it is there")),
        ("journal-0000000000000000.seg", replace),
        ("ledger", |path| {
            std::fs::rename(path, path.with_extension("old")).expect("a directory can be renamed");
            std::fs::create_dir(path).expect("and another take its place");
        }),
        ("", |path| std::fs::rename(path, path.with_extension("old")).expect("a directory can be renamed")),
    ];
    for (file, replace) in replacements {
        let root = TempDir::new().expect("a temporary directory can be made");
        let data = root.path().join("data");
        let program = launch(&data, Durability::Durable).start().expect("it starts");
        assert_eq!(incr(&program), 1);
        let path = if file.is_empty() { data } else { data.join(file) };
        replace(&path);
        let (status, stderr) = program.wait().expect("it ends by itself");
        assert_eq!(status.code(), Some(EXIT_JOURNAL_FAILED), "{file}: {stderr}");
        let message = format!("{} was removed or replaced while this process used it", path.display());
        assert!(stderr.contains(&message), "{file}: {stderr}");
    }
}

/// Puts a copy in the place of a file.
fn replace(path: &Path) {
    let new = path.with_extension("new");
    std::fs::copy(path, &new).expect("a file can be copied");
    std::fs::rename(new, path).expect("and take the place of another");
}

//! Invalid data directories are refused, and failed starts leave no directory behind.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use quipu_model::Durability;
use quipu_testkit::program::{Launch, LaunchError};
use tempfile::TempDir;

use crate::life::launch;

fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("it can be listed");
    entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned()).collect()
}

/// What a start that is refused says.
fn refusal(launch: &Launch) -> String {
    match launch.start() {
        Err(LaunchError::Ended { status, stderr }) => {
            assert_eq!(status.code(), Some(1), "{stderr}");
            stderr
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the program serves"),
    }
}

fn inspect(dir: &Path) -> Output {
    let mut command = Command::new(launch(dir, Durability::Durable).binary);
    command.env_clear().arg("inspect").arg(dir).output().expect("the program runs")
}

#[test]
fn a_directory_that_cannot_be_written_is_told_as_such() {
    let data = directory();
    std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o555)).expect("it is ours");
    let mut launch = launch(data.path(), Durability::Durable);
    if rustix::process::geteuid().is_root() {
        // Root may write anywhere, but for this.
        launch.wrapper = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"].map(Into::into).to_vec();
    }
    let dir = data.path().display();
    let reason = "Permission denied (os error 13); check its owner and permissions, or name another directory";
    assert_eq!(refusal(&launch), format!("quipu: cannot open {dir}: cannot write to data directory {dir}: {reason}\n"));
}

#[test]
fn a_directory_with_files_of_others_is_refused_and_left_as_it_was() {
    let data = directory();
    for name in ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"] {
        std::fs::write(data.path().join(name), "mine").expect("a file can be written");
    }
    let message = refusal(&launch(data.path(), Durability::Durable));
    let dir = data.path().display();
    let found = "it has a.txt, b.txt, c.txt and 2 more; name an empty or a new directory";
    assert_eq!(message, format!("quipu: cannot open {dir}: {dir} is not a data directory, and not empty: {found}\n"));
    assert_eq!(names(data.path()).len(), 5);
}

#[test]
fn a_mounted_disk_that_is_empty_but_for_lost_and_found_is_served() {
    let data = directory();
    std::fs::create_dir(data.path().join("lost+found")).expect("a directory can be made");
    launch(data.path(), Durability::Durable).start().expect("the program starts");
}

#[test]
fn a_killed_first_start_does_not_make_a_directory_foreign() {
    let data = directory();
    std::fs::write(data.path().join("lock"), "4711").expect("a file can be written");
    std::fs::write(data.path().join("quipu.toml"), "").expect("a file can be written");
    launch(data.path(), Durability::Durable).start().expect("the program starts");
}

#[test]
fn a_start_whose_address_is_taken_leaves_no_directory() {
    let root = directory();
    let data = root.path().join("new/data");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
    for (resp, http) in [(address.as_str(), "off"), ("127.0.0.1:0", &address)] {
        let mut command = Command::new(launch(&data, Durability::Durable).binary);
        command.env_clear().args(["serve", "--resp", resp, "--http", http, "--data"]).arg(&data);
        let output = command.output().expect("the program runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.starts_with(&format!("quipu: cannot listen on {address}: ")), "{message}");
        assert_eq!(names(root.path()), Vec::<String>::new());
    }
}

#[test]
fn a_directory_without_a_journal_does_not_pass_an_inspection() {
    for name in [None, Some("lost+found"), Some("letter.txt")] {
        let data = directory();
        if let Some(name) = name {
            std::fs::write(data.path().join(name), "").expect("a file can be written");
        }
        let output = inspect(data.path());
        let message = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.ends_with("no journal: this is neither a data directory nor a backup\n"), "{message}");
    }
}

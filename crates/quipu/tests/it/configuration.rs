//! Mistakes in a configuration: `config check` and `serve` report the same ones, and nothing
//! starts.
//!
//! Each file of `tests/bad_configs` names its mistakes at the ends of their lines, behind
//! `# mistake: `.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use quipu_model::Durability;
use tempfile::TempDir;

use crate::life::launch;

/// Stands before a mistake in a file.
const MARK: &str = "# mistake: ";

/// Files that there are at least.
const FILES_MIN: usize = 30;

/// Runs the program without the variables of the test.
fn quipu(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(launch(Path::new("unused"), Durability::Durable).binary);
    command.env_clear().envs(variables.iter().copied()).args(arguments).output().expect("the program runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What stderr must be: the mistakes that the file names, each with its line, and their number.
fn expected(path: &Path) -> String {
    let file = std::fs::read_to_string(path).expect("the file can be read");
    let (mut text, mut count) = (String::new(), 0);
    for (index, line) in file.lines().enumerate() {
        for mistake in line.split(MARK).skip(1) {
            writeln!(text, "{}:{}: {}", path.display(), index + 1, mistake.trim_end()).expect("a string takes it");
            count += 1;
        }
    }
    let s = if count == 1 { "" } else { "s" };
    writeln!(text, "quipu: {count} mistake{s} in the configuration").expect("a string takes it");
    text
}

#[test]
fn check_and_serve_tell_the_same_mistakes_of_every_bad_file() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let data = root.path().join("data");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_configs");
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    files.sort();
    assert!(files.len() >= FILES_MIN, "{} files", files.len());
    for file in &files {
        let expected = expected(file);
        for command in [&["config", "check"][..], &["serve"]] {
            let words = ["--config", file.to_str().expect("text"), "--data", data.to_str().expect("text")];
            let output = quipu(&[command, &words].concat(), &[]);
            assert_eq!(stderr(&output), expected, "{command:?}");
            assert_eq!(output.status.code(), Some(1), "{command:?} {}", file.display());
            assert!(!data.exists(), "{command:?} {}", file.display());
        }
    }
}

#[test]
fn an_unknown_variable_is_a_mistake_with_the_nearest_known_one() {
    let variables = [("QUIPU_WORKRS", "2"), ("QUIPU_COLOUR", "red")];
    let wanted = "\
QUIPU_COLOUR: unknown variable: remove it, or see `quipu serve --help` for the names of all settings
QUIPU_WORKRS: unknown variable, did you mean 'QUIPU_WORKERS'?
quipu: 2 mistakes in the configuration
";
    let root = TempDir::new().expect("a temporary directory can be made");
    let data = root.path().join("data");
    for command in [&["config", "check"][..], &["serve"]] {
        let output = quipu(&[command, &["--data", data.to_str().expect("text")]].concat(), &variables);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), wanted), "{command:?}");
        assert!(!data.exists());
    }
}

#[test]
fn variables_that_describe_a_service_of_this_name_keep_nothing_from_starting() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(data.path(), Durability::Memory);
    let variables = [
        ("QUIPU_SERVICE_HOST", "10.0.0.1"),
        ("QUIPU_SERVICE_PORT", "7379"),
        ("QUIPU_SERVICE_PORT_RESP", "7379"),
        ("QUIPU_PORT", "tcp://10.0.0.1:7379"),
        ("QUIPU_PORT_7379_TCP", "tcp://10.0.0.1:7379"),
        ("QUIPU_PORT_7379_TCP_ADDR", "10.0.0.1"),
    ];
    launch.variables = variables.map(|(name, value)| (name.into(), value.into())).to_vec();
    launch.start().expect("the program starts");
}

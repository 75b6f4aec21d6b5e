//! Two processes on one directory: the second one refuses, and names the first.

use quipu_model::Durability;
use quipu_testkit::program::LaunchError;
use quipu_testkit::resp::{Client, Value};
use std::time::Duration;
use tempfile::TempDir;

use crate::life::launch;

#[test]
fn a_second_process_on_the_same_directory_is_refused_and_told_who_has_it() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let launch = launch(data.path(), Durability::Durable);
    let first = launch.start().expect("the first one starts");
    let mut client = Client::connect(first.address(), Duration::from_secs(20)).expect("the first one accepts");
    assert_eq!(client.call(&["INCR", "a"]).expect("the first one answers"), Value::Integer(1));

    match launch.start() {
        Err(LaunchError::Ended { status, stderr }) => {
            assert!(!status.success());
            assert!(stderr.contains(&first.pid().to_string()), "the message names process {}: {stderr}", first.pid());
        }
        Err(other) => panic!("{other}"),
        Ok(second) => panic!("process {} serves the directory of process {}", second.pid(), first.pid()),
    }

    assert_eq!(client.call(&["INCR", "a"]).expect("the first one still answers"), Value::Integer(2));
    first.kill9();
    let third = launch.start().expect("the directory of a killed process is free again");
    let mut client = Client::connect(third.address(), Duration::from_secs(20)).expect("the third one accepts");
    assert_eq!(client.call(&["GET", "a"]).expect("the third one answers"), Value::Bulk(b"2".to_vec()));
}

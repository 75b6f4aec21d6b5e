//! Stores copied into each other, there and back, by the built program.
//!
//! The judge: every counter has, in both stores, the adds of its nodes less the amounts taken; and
//! both audits are clean.

use std::path::Path;

use quipu_model::Durability;
use quipu_testkit::program::Program;
use tempfile::TempDir;

use crate::life::{connect, launch};
use crate::moving::{Values, eventually, number, parsed, postgres, quipu, redis, run_and_print, text, values};

/// A node that counts in a store, and retires and folds what is gone at once.
fn node(directory: &Path, store: &str) -> Program {
    let mut launch = launch(&directory.join("data"), Durability::Durable);
    let words = ["--store", store, "--settle-every", "50ms", "--freshness", "50ms", "--lease", "1s"];
    launch.arguments = words
        .iter()
        .chain(&["--retire-after", "1s", "--audit-every", "1s", "--grace", "6s"])
        .map(|word| (*word).into())
        .collect();
    launch.start().expect("it starts")
}

fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

/// Runs commands on a node, waits until the store has this of a counter, and stops the node.
fn count(program: Program, commands: &[&[&str]], store: &str, expected: (&str, i128)) {
    let mut client = connect(&program);
    for command in commands {
        assert_eq!(client.call(command).expect("it answers").error(), None, "{command:?}");
    }
    settled(store, expected);
    assert!(program.terminate().expect("it ends").0.success());
}

fn settled(store: &str, (name, value): (&str, i128)) {
    eventually("the node settles", || values(store), |values| values.get(name) == Some(&value));
}

/// Copies; how many rows changed.
fn copy(from: &str, to: &str) -> i128 {
    number(&parsed(&run_and_print(&["copy", "--from", from, "--to", to, "--json"]))["changed"])
}

fn audited(store: &str) {
    let output = quipu(&["audit", "--store", store]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn copied_there_and_back_every_counter_is_as_it_was() {
    let (a, b) = (redis(), postgres());
    let (a, b) = (a.url(), b.url());
    let directories = [directory(), directory(), directory()];
    let first: &[&[&str]] = &[
        &["INCRBY", "likes:2", "5"],
        &["INCRBY", "likes:3", "6"],
        &["INCRBY", "likes:4", "4"],
        &["INCRBY", "likes:1", "10"],
    ];
    count(node(directories[0].path(), &a), first, &a, ("likes:1", 10));
    let second = node(directories[1].path(), &a);
    let mut client = connect(&second);
    // The node that has stopped is retired, and its cells are folded.
    let base = || parsed(&run_and_print(&["shards", "likes:1", "--store", &a, "--json"]))["base"].to_string();
    eventually("it is folded", base, |base| base == "10");
    for command in [["SET", "likes:2", "77"], ["PEXPIREAT", "likes:3", "4102444800000"], ["INCRBY", "likes:2", "1"]] {
        assert_eq!(client.call(&command).expect("it answers").error(), None);
    }
    assert_eq!(client.call(&["DEL", "likes:4"]).expect("it answers").number(), Some(1));
    assert_eq!(client.call(&["GETSET", "likes:5", "0"]).expect("it answers").error(), None);
    client.call(&["PEXPIRE", "likes:5", "1"]).expect("it answers");
    client.call(&["INCRBY", "likes:1", "11"]).expect("it answers");
    settled(&a, ("likes:1", 21));
    assert!(second.terminate().expect("it ends").0.success());

    let expected: Values = [("likes:1".to_owned(), 21), ("likes:2".to_owned(), 78), ("likes:3".to_owned(), 6)].into();
    assert_eq!(copy(&a, &b), 3);
    assert_eq!((values(&a), values(&b)), (expected.clone(), expected.clone()));
    assert_eq!((copy(&b, &a), copy(&a, &b), copy(&b, &a)), (0, 0, 0), "nothing is added, there or back");
    assert_eq!((values(&a), values(&b)), (expected.clone(), expected));
    let third = parsed(&run_and_print(&["export", "--store", &b, "--match", "likes:3"]));
    assert_eq!(number(&third["expires_at"]), 4_102_444_800_000, "{third}");
    audited(&a);
    audited(&b);

    // What a node counts, sets and deletes in the copy comes back, once.
    let in_b: &[&[&str]] = &[&["SET", "likes:2", "3"], &["DEL", "likes:3"], &["INCRBY", "likes:1", "5"]];
    count(node(directories[2].path(), &b), in_b, &b, ("likes:1", 26));
    let expected: Values = [("likes:1".to_owned(), 26), ("likes:2".to_owned(), 3)].into();
    copy(&b, &a);
    assert_eq!((values(&a), values(&b)), (expected.clone(), expected.clone()));
    assert_eq!(copy(&a, &b), 0);
    audited(&a);
    audited(&b);
    println!("proof: copied there and back, with a fold, a set, a delete and an expiry: exact");
}

#[test]
fn what_a_copy_would_add_is_refused_and_listed() {
    let (a, b) = (redis(), redis());
    let (a, b) = (a.url(), b.url());
    let directories = [directory(), directory()];
    count(
        node(directories[0].path(), &a),
        &[&["INCRBY", "likes:2", "1"], &["INCRBY", "likes:1", "10"]],
        &a,
        ("likes:1", 10),
    );
    count(node(directories[1].path(), &b), &[&["INCRBY", "likes:1", "11"]], &b, ("likes:1", 11));
    let output = quipu(&["copy", "--from", &a, "--to", &b]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err.contains("refused likes:1: the target has counted it by itself") && out.contains("refused   1"),
        "{out}{err}"
    );
    assert_eq!(values(&b), [("likes:1".to_owned(), 11), ("likes:2".to_owned(), 1)].into(), "the others are copied");
    audited(&b);
}

#[test]
fn a_node_that_moves_to_the_copy_counts_once_and_the_others_are_retired() {
    let (a, b) = (redis(), redis());
    let (a, b) = (a.url(), b.url());
    let directories = [directory(), directory()];
    count(node(directories[0].path(), &a), &[&["INCRBY", "likes:1", "10"]], &a, ("likes:1", 10));
    count(node(directories[1].path(), &a), &[&["INCRBY", "likes:1", "11"]], &a, ("likes:1", 21));
    assert_eq!(copy(&a, &b), 1);
    let listed = run_and_print(&["writers", "--store", &b]);
    assert!(listed.contains("a node of another store, copied") && listed.contains("without end"), "{listed}");
    let moved = node(directories[0].path(), &b);
    connect(&moved).call(&["INCRBY", "likes:1", "5"]).expect("it answers");
    settled(&b, ("likes:1", 26));
    assert_eq!(values(&b), [("likes:1".to_owned(), 26)].into());
    let again = quipu(&["copy", "--from", &a, "--to", &b, "--done", "--json"]);
    let report = parsed(&text(&again.stdout));
    assert_eq!((number(&report["changed"]), report["refused"].as_array().map(Vec::len)), (0, Some(0)), "{report}");
    let copied = || {
        run_and_print(&["writers", "--store", &b])
            .lines()
            .filter(|line| line.contains("copied") && line.contains("live"))
            .count()
    };
    eventually("the node that did not move is retired", copied, |copied| *copied == 0);
    let left = || {
        let shown = run_and_print(&["shards", "likes:1", "--store", &b, "--json"]);
        (parsed(&shown)["base"].to_string(), shown)
    };
    eventually("its cell is folded", left, |(base, _)| base == "11");
    assert_eq!(values(&b), [("likes:1".to_owned(), 26)].into());
    assert!(moved.terminate().expect("it ends").0.success());
    audited(&b);
}

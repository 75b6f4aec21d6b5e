use std::error::Error;

use quipu_model::shared::{CellId, Put, Seq, Shard};
use quipu_model::{Epoch, Incarnation, Name, NodeId, Store, StoreError, Writer};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;
use tokio_postgres::NoTls;

use super::*;
use crate::{Options, PostgresStore, open};

const PATIENCE: Duration = Duration::from_secs(10);

/// A step that a later version might have.
const LATER: &str = "ALTER TABLE \"{p}_counters\" ADD COLUMN kind text NOT NULL DEFAULT 'count'";

/// Takes these steps on a connection of its own.
fn take(server: &PostgresServer, steps: &[&str]) -> Result<(), SchemaError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
        let connection = runtime.spawn(connection);
        let taken = bring_up(&client, "quipu", steps, PATIENCE).await;
        drop(client);
        let _ = connection.await;
        taken
    })
}

fn store(server: &PostgresServer) -> PostgresStore {
    open(&server.url(), Options::default()).unwrap()
}

fn put(store: &PostgresStore, seq: u64) -> Result<(), StoreError> {
    let cell = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };
    let put = Put { cell, epoch: Epoch::FIRST, seq: Seq(seq), value: 7, total: 7 };
    block_on(store.put(&[(Name::new(b"a").unwrap(), put)])).map(drop)
}

fn version_of(server: &PostgresServer) -> String {
    server.ask("SELECT version FROM quipu_schema").unwrap()
}

#[test]
fn older_tables_are_brought_up_and_keep_what_they_hold() {
    let server = PostgresServer::start().unwrap();
    let before = store(&server);
    put(&before, 1).unwrap();
    assert_eq!(version_of(&server), STEPS.len().to_string());
    let steps: Vec<&str> = STEPS.iter().copied().chain([LATER]).collect();
    take(&server, &steps).unwrap();
    assert_eq!(version_of(&server), steps.len().to_string());
    assert_eq!(server.ask("SELECT kind FROM quipu_counters").unwrap(), "count");
    assert_eq!(server.ask("SELECT total FROM quipu_totals").unwrap(), "7");
    put(&before, 2).unwrap(); // one that was connected goes on
    take(&server, &steps).unwrap();
    assert_eq!(version_of(&server), steps.len().to_string(), "a step is taken once");
}

#[test]
fn tables_that_were_begun_and_not_made_are_made() {
    let server = PostgresServer::start().unwrap();
    server.ask("CREATE TABLE quipu_schema (version integer NOT NULL); INSERT INTO quipu_schema VALUES (0)").unwrap();
    put(&store(&server), 1).unwrap();
    assert_eq!(version_of(&server), STEPS.len().to_string());
}

#[test]
fn newer_tables_are_refused_by_name_and_left_alone() {
    let server = PostgresServer::start().unwrap();
    put(&store(&server), 1).unwrap();
    server.ask("UPDATE quipu_schema SET version = 99").unwrap();
    let Err(error @ StoreError::NotApplied { .. }) = put(&store(&server), 2) else { panic!("it was put") };
    let why = error.source().unwrap().to_string();
    assert!(why.contains("quipu_…") && why.contains("version 99"), "{why}");
    assert!(matches!(take(&server, STEPS), Err(SchemaError::Newer { found: 99, .. })));
    for odd in ["UPDATE quipu_schema SET version = -1", "DELETE FROM quipu_schema"] {
        server.ask(odd).unwrap();
        assert!(matches!(put(&store(&server), 2), Err(StoreError::NotApplied { .. })), "{odd}");
    }
    server.ask(&format!("INSERT INTO quipu_schema VALUES ({})", STEPS.len())).unwrap();
    assert_eq!(server.ask("SELECT seq FROM quipu_cells").unwrap(), "1");
    put(&store(&server), 2).unwrap();
}

#[test]
fn a_step_that_fails_leaves_everything_as_it_was() {
    let server = PostgresServer::start().unwrap();
    put(&store(&server), 1).unwrap();
    let steps: Vec<&str> = STEPS.iter().copied().chain([LATER, "SELECT 1 / 0"]).collect();
    assert!(matches!(take(&server, &steps), Err(SchemaError::Server(_))));
    assert_eq!(version_of(&server), STEPS.len().to_string());
    assert!(server.ask("SELECT kind FROM quipu_counters").is_err());
    put(&store(&server), 2).unwrap();
}

#[test]
fn many_that_come_at_once_make_the_tables_once() {
    let server = PostgresServer::start().unwrap();
    std::thread::scope(|scope| {
        for seq in 1..=6 {
            let server = &server;
            scope.spawn(move || put(&store(server), seq).unwrap());
        }
    });
    assert_eq!(version_of(&server), STEPS.len().to_string());
    assert_eq!(server.ask("SELECT seq FROM quipu_cells").unwrap(), "6");
}

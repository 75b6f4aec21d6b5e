use std::error::Error;

use quipu_model::shared::body::{BodyShape, StoredBody};
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, Put, Seq, Shard, Snapshot, SwapVerdict, Verdict, incarnation_cell, node_cell,
};
use quipu_model::{Epoch, Incarnation, Name, NodeId, Store, StoreError, Writer};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;
use tokio_postgres::NoTls;

use super::*;
use crate::{Options, PostgresStore, open};

const PATIENCE: Duration = Duration::from_secs(10);

/// A possible step of a later version.
const LATER: &str = "ALTER TABLE \"{p}_counters\" ADD COLUMN kind text NOT NULL DEFAULT 'count'";

/// Runs the steps on a separate connection.
fn take(server: &PostgresServer, steps: &[&str]) -> Result<(), SchemaError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
        let connection = runtime.spawn(connection);
        let taken = upgrade_tables(&client, "quipu", steps, PATIENCE).await;
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
    block_on(store.put_all(&[(Name::new(b"a").unwrap(), put)])).map(drop)
}

fn version_of(server: &PostgresServer) -> String {
    server.query("SELECT version FROM quipu_schema").unwrap()
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
    assert_eq!(server.query("SELECT kind FROM quipu_counters").unwrap(), "count");
    assert_eq!(server.query("SELECT total FROM quipu_totals").unwrap(), "7");
    put(&before, 2).unwrap(); // an open connection continues
    take(&server, &steps).unwrap();
    assert_eq!(version_of(&server), steps.len().to_string(), "a step is taken once");
}

#[test]
fn tables_that_were_begun_and_not_made_are_made() {
    let server = PostgresServer::start().unwrap();
    server.query("CREATE TABLE quipu_schema (version integer NOT NULL); INSERT INTO quipu_schema VALUES (0)").unwrap();
    put(&store(&server), 1).unwrap();
    assert_eq!(version_of(&server), STEPS.len().to_string());
}

#[test]
fn newer_tables_are_refused_by_name_and_left_alone() {
    let server = PostgresServer::start().unwrap();
    put(&store(&server), 1).unwrap();
    server.query("UPDATE quipu_schema SET version = 99").unwrap();
    let Err(error @ StoreError::NotApplied { .. }) = put(&store(&server), 2) else { panic!("it was put") };
    let why = error.source().unwrap().to_string();
    assert!(why.contains("quipu_…") && why.contains("version 99"), "{why}");
    assert!(matches!(take(&server, STEPS), Err(SchemaError::Newer { found: 99, .. })));
    for odd in ["UPDATE quipu_schema SET version = -1", "DELETE FROM quipu_schema"] {
        server.query(odd).unwrap();
        assert!(matches!(put(&store(&server), 2), Err(StoreError::NotApplied { .. })), "{odd}");
    }
    server.query(&format!("INSERT INTO quipu_schema VALUES ({})", STEPS.len())).unwrap();
    assert_eq!(server.query("SELECT seq FROM quipu_cells").unwrap(), "1");
    put(&store(&server), 2).unwrap();
}

#[test]
fn a_step_that_fails_leaves_everything_as_it_was() {
    let server = PostgresServer::start().unwrap();
    put(&store(&server), 1).unwrap();
    let steps: Vec<&str> = STEPS.iter().copied().chain([LATER, "SELECT 1 / 0"]).collect();
    assert!(matches!(take(&server, &steps), Err(SchemaError::Server(_))));
    assert_eq!(version_of(&server), STEPS.len().to_string());
    assert!(server.query("SELECT kind FROM quipu_counters").is_err());
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
    assert_eq!(server.query("SELECT seq FROM quipu_cells").unwrap(), "6");
}

/// The function's signature in version 2, with another body.
const PUT_BODY_OF_VERSION_2: &str = r#"CREATE FUNCTION quipu_put_body(
    bytea, uuid, uuid, numeric, numeric, numeric, numeric, boolean, integer, numeric, integer, integer[], bytea[])
    RETURNS TABLE (put integer) LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'of version 2'; END $$"#;

#[test]
fn tables_that_knew_bodies_of_nodes_alone_take_those_of_lives() {
    let server = PostgresServer::start().unwrap();
    take(&server, &STEPS[..2]).unwrap();
    server.query("DROP FUNCTION quipu_put_body; DROP FUNCTION quipu_replace_bodies").unwrap();
    server.query(PUT_BODY_OF_VERSION_2).unwrap();
    let (store, name) = (store(&server), Name::new(b"a").unwrap());
    let life = Writer { node: NodeId(1), incarnation: Incarnation(7) };
    let shape = BodyShape { kind: 1, key: 2, length: 3 };
    for cell in [node_cell(NodeId(1)), incarnation_cell(life, 0)] {
        let put = Put { cell, epoch: Epoch::FIRST, seq: Seq(1), value: 1, total: 1 };
        let put = BodyPut { put, from: None, whole: true, shape, pages: vec![(0, Box::new([5]))] };
        assert_eq!(block_on(store.put_body(name, &put)).unwrap(), BodyVerdict::Cell(Verdict::Newest));
    }
    let seen = block_on(store.read_bodies(name)).unwrap();
    let next = Snapshot { base: Some(1), ..seen.row.snapshot.clone() };
    let body = StoredBody { shape, bytes: vec![6, 0, 7] };
    let bodies = [(life, Some(body.clone())), (node_cell(NodeId(1)).writer, None)];
    let swapped = block_on(store.swap_bodies(name, seen.row.snapshot.version, &next, &bodies)).unwrap();
    assert_eq!(swapped, SwapVerdict::Swapped);
    assert_eq!(block_on(store.read_bodies(name)).unwrap().bodies, [(life, body)].into());
    assert_eq!(version_of(&server), STEPS.len().to_string());
    let of_before = "SELECT count(*) FROM pg_proc WHERE proname = 'quipu_put_body' AND pronargs = 13";
    assert_eq!(server.query(of_before).unwrap(), "1", "what programs that are connected use stays");
}

//! One server: the suite, and what is this store's own.

use quipu_model::shared::{CellId, Put, Seq, Shard};
use quipu_model::{Epoch, Incarnation, Name, NodeId, Writer};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;
use quipu_testkit::{FaultyStore, store_suite};

use crate::fresh;

pub fn writer(node: u64) -> Writer {
    Writer { node: NodeId(node), incarnation: Incarnation(1) }
}

pub fn said(seq: u64, value: i128) -> Put {
    let cell = CellId { writer: writer(1), shard: Shard(0) };
    Put { cell, epoch: Epoch::FIRST, seq: Seq(seq), value, total: value }
}

pub fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("names of these tests are short")
}

#[test]
fn one_server_keeps_every_promise_of_the_port() {
    let server = PostgresServer::start().unwrap();
    block_on(store_suite(async || fresh(&server.url())));
}

#[test]
fn one_server_keeps_them_behind_a_calm_faulty_store() {
    let server = PostgresServer::start().unwrap();
    block_on(store_suite(async || {
        let store = FaultyStore::new(fresh(&server.url()), 1, 100);
        store.calm().await;
        store
    }));
}

//! Tests a shared store that loses confirmed data, step by step: each node applies a token once,
//! and acknowledged adds count once.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_engine::{Engine, LoadOutcome, Membership};
use quipu_model::shared::{Claim, ClaimToken, ClaimVerdict, WriterStage};
use quipu_model::{Clock, Command, Identity, MemoryStore, Millis, Name, Refusal, Reply, Store};
use quipu_testkit::store_suite::block_on;
use quipu_testkit::{CrashDisk, SimClock};

use crate::lives::{commit, open, run, run_background};
use crate::world::{BEGIN, WINDOW, World};

/// A store, its clock, and nodes that are stepped by hand.
struct Cluster {
    memory: Arc<MemoryStore>,
    store: Arc<dyn Store>,
    clock: Arc<SimClock>,
    nodes: Vec<(World, Engine)>,
}

impl Cluster {
    fn new(nodes: u64) -> Cluster {
        let clock = Arc::new(SimClock::new(BEGIN));
        let memory = Arc::new(MemoryStore::new(clock.clone()));
        let mut cluster = Cluster { store: memory.clone(), memory, clock, nodes: Vec::new() };
        for seed in 0..nodes {
            let world = World::new(CrashDisk::new(), seed + 1);
            let engine = open(&world, &cluster.store);
            cluster.nodes.push((world, engine));
        }
        cluster.run_background_rounds(4);
        cluster
    }

    /// The background of every node runs, so many times.
    fn run_background_rounds(&self, times: usize) {
        for _ in 0..times {
            self.clock.advance(Duration::from_millis(500));
            for (world, engine) in &self.nodes {
                run_background(engine, world);
                block_on(engine.sharing().unwrap().restore_claims());
            }
        }
    }

    /// One add with a token, sent to a node.
    fn add_once(&self, node: usize, item: &str, delta: i64) -> Reply {
        let engine = &self.nodes[node].1;
        let identity = Identity::token(b"p", item.as_bytes()).unwrap();
        let command = Command::Add { name: likes(), delta, shard_key: None };
        let ran = engine.turn().run_once(&identity, std::slice::from_ref(&command));
        let load = match ran {
            Ok(reply) => return reply,
            Err(load) => load,
        };
        let mut loading = pin!(engine.steps().enqueue_load(load));
        let mut claim = pin!(engine.sharing().unwrap().claim());
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let _ = claim.as_mut().poll(&mut context);
            commit(engine);
            match loading.as_mut().poll(&mut context) {
                Poll::Ready(LoadOutcome::Reply(reply, _)) => return reply,
                Poll::Ready(LoadOutcome::Refused(refusal)) => return Reply::Refused(refusal),
                Poll::Ready(other) => panic!("{other:?}"),
                Poll::Pending => {}
            }
        }
    }

    fn sum(&self) -> i128 {
        block_on(self.store.read(likes())).unwrap().snapshot.sum()
    }

    fn claim_of(&self, item: &str, node: usize) -> Claim {
        let identity = Identity::token(b"p", item.as_bytes()).unwrap();
        let writers = block_on(self.store.writers()).unwrap().registrations;
        let node = self.nodes[node].1.sharing().unwrap().node();
        let owner =
            writers.iter().find(|known| known.writer.node == node && known.stage == WriterStage::Live).unwrap().writer;
        let forget_at = Millis(self.clock.wall().0 + 1_000_000);
        let token = ClaimToken::new(&identity.key()).unwrap();
        Claim { token, owner, attempt: 999, payload: 0, forget_at, reply: None }
    }
}

fn likes() -> Name<'static> {
    Name::new(b"likes:1").unwrap()
}

#[test]
fn a_token_that_the_store_has_lost_is_not_applied_again_by_the_node_that_applied_it() {
    let cluster = Cluster::new(1);
    let empty = MemoryStore::new(cluster.clock.clone()).backup();
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    // `FLUSHALL`, and nobody has noticed.
    cluster.memory.restore_backup(&empty);
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    assert_eq!(cluster.add_once(0, "order-1", 6), Reply::Refused(Refusal::TokenMismatch));
    cluster.run_background_rounds(40);
    assert_eq!(cluster.sum(), 5);
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
}

#[test]
fn a_token_survives_a_crash_of_its_node_and_the_loss_of_the_store() {
    let mut cluster = Cluster::new(1);
    let empty = MemoryStore::new(cluster.clock.clone()).backup();
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    cluster.run_background_rounds(2);
    assert_eq!(cluster.add_once(0, "order-2", 7), Reply::Integer(12), "this one is in the journal alone");
    let (world, engine) = cluster.nodes.remove(0);
    let disk = world.disk.kill(world.disk.operations()).into_disk();
    drop(engine);
    cluster.memory.restore_backup(&empty);
    let world = World::new(disk, 7);
    world.clock.advance(Duration::from_secs(5));
    let engine = open(&world, &cluster.store);
    cluster.nodes.push((world, engine));
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    assert_eq!(cluster.add_once(0, "order-2", 7), Reply::Integer(12));
    cluster.run_background_rounds(60);
    assert_eq!(cluster.sum(), 12);
}

#[test]
fn a_loss_after_a_restart_is_made_up_for_from_the_journal() {
    let mut cluster = Cluster::new(2);
    let before = cluster.memory.backup();
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    let (world, engine) = cluster.nodes.remove(0);
    let disk = world.disk.kill(world.disk.operations()).into_disk();
    drop(engine);
    let world = World::new(disk, 7);
    world.clock.advance(Duration::from_secs(5));
    let engine = open(&world, &cluster.store);
    cluster.nodes.insert(0, (world, engine));
    cluster.run_background_rounds(20);
    cluster.memory.restore_backup(&before);
    cluster.run_background_rounds(60);
    assert_eq!(cluster.add_once(1, "order-1", 5), Reply::Integer(5));
    assert_eq!(cluster.sum(), 5);
}

#[test]
fn after_a_loss_other_nodes_refuse_a_token_until_its_claim_is_back() {
    let cluster = Cluster::new(2);
    let before = cluster.memory.backup();
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    cluster.run_background_rounds(8);
    cluster.memory.restore_backup(&before);
    // Both notice it when they renew their leases.
    cluster.run_background_rounds(3);
    assert_eq!(cluster.add_once(1, "order-1", 5), Reply::Refused(Refusal::TokensRestoring));
    assert_eq!(cluster.add_once(1, "opaque", 1), Reply::Refused(Refusal::TokensRestoring));
    let now = cluster.clock.wall().0;
    let later = format!("{}-later", now + 59_000);
    assert_eq!(
        cluster.add_once(1, &later, 1),
        Reply::Refused(Refusal::TokensRestoring),
        "it may have been applied early"
    );
    cluster.run_background_rounds(60);
    assert_eq!(cluster.add_once(1, "order-1", 5), Reply::Integer(5));
    assert_eq!(cluster.sum(), 5);
    let figures = cluster.nodes[0].1.sharing().unwrap().stats();
    assert_eq!((figures.claims_restored, figures.claim_conflicts, figures.losses), (1, 0, 1));
}

#[test]
fn a_token_of_a_time_after_the_loss_is_not_refused() {
    let cluster = Cluster::new(1);
    let before = cluster.memory.backup();
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    cluster.run_background_rounds(8);
    cluster.memory.restore_backup(&before);
    cluster.run_background_rounds(3);
    assert_eq!(cluster.add_once(0, "opaque", 1), Reply::Refused(Refusal::TokensRestoring));
    // Nothing is put back meanwhile.
    cluster.clock.advance(Duration::from_secs(70));
    cluster.nodes[0].0.clock.advance(Duration::from_secs(70));
    block_on(cluster.nodes[0].1.sharing().unwrap().renew());
    let later = format!("{}-later", cluster.clock.wall().0);
    assert_eq!(cluster.add_once(0, &later, 1), Reply::Integer(6));
}

#[test]
fn two_nodes_that_have_applied_a_token_are_counted_as_a_conflict() {
    let cluster = Cluster::new(2);
    let before = cluster.memory.backup();
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    cluster.memory.restore_backup(&before);
    // The other node has not noticed: this is what remains.
    let again = cluster.add_once(1, "order-1", 5);
    assert!(matches!(again, Reply::Integer(5 | 10)), "{again:?}");
    cluster.run_background_rounds(60);
    let conflicts = |node: usize| cluster.nodes[node].1.sharing().unwrap().stats().claim_conflicts;
    assert!(conflicts(0) + conflicts(1) > 0 || again == Reply::Integer(5));
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5), "each node answers as it did");
    assert_eq!(cluster.sum(), 10);
}

#[test]
fn a_claim_that_an_attempt_of_the_node_has_left_open_is_ended_by_its_node_alone() {
    let cluster = Cluster::new(2);
    let claim = cluster.claim_of("order-1", 0);
    let payload = {
        let mut bytes = 5_i64.to_le_bytes().to_vec();
        bytes.extend_from_slice(likes().bytes());
        xxhash_rust::xxh3::xxh3_64(&bytes)
    };
    let claim = Claim { payload, ..claim };
    assert_eq!(block_on(cluster.store.claim(&claim)).unwrap(), ClaimVerdict::Claimed);
    let elsewhere = cluster.add_once(1, "order-1", 5);
    assert_eq!(elsewhere, Reply::Refused(Refusal::TokenInUse { owner: claim.owner }));
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
    assert_eq!(cluster.add_once(1, "order-1", 5), Reply::Integer(5));
}

#[test]
fn an_open_claim_of_a_former_life_stays_because_its_directory_may_have_gone_back() {
    let mut cluster = Cluster::new(1);
    let claim = cluster.claim_of("order-1", 0);
    let mut bytes = 5_i64.to_le_bytes().to_vec();
    bytes.extend_from_slice(likes().bytes());
    let claim = Claim { payload: xxhash_rust::xxh3::xxh3_64(&bytes), ..claim };
    assert_eq!(block_on(cluster.store.claim(&claim)).unwrap(), ClaimVerdict::Claimed);
    let (world, engine) = cluster.nodes.remove(0);
    let disk = world.disk.kill(world.disk.operations()).into_disk();
    drop(engine);
    let engine = World::new(disk, 7);
    engine.clock.advance(Duration::from_secs(3));
    let opened = open(&engine, &cluster.store);
    cluster.nodes.push((engine, opened));
    for _ in 0..40 {
        cluster.run_background_rounds(1);
        let reply = cluster.add_once(0, "order-1", 5);
        assert_eq!(reply, Reply::Refused(Refusal::TokenInUse { owner: claim.owner }));
    }
    assert_eq!(cluster.sum(), 0);
    // The time of its token is over at last, and with it the claim.
    cluster.clock.advance(Duration::from_secs(2_000));
    cluster.run_background_rounds(1);
    assert_eq!(cluster.add_once(0, "order-1", 5), Reply::Integer(5));
}

#[test]
fn a_token_ahead_of_the_clock_is_known_for_as_long_as_it_is_fresh() {
    let cluster = Cluster::new(2);
    let carried = cluster.clock.wall().0 + 59_000;
    let item = format!("{carried}-order");
    assert_eq!(cluster.add_once(0, &item, 5), Reply::Integer(5));
    cluster.run_background_rounds(8);
    // The window is over since it was applied, and not since its own time.
    let ahead = WINDOW + Duration::from_secs(20);
    cluster.clock.advance(ahead);
    cluster.nodes.iter().for_each(|(world, _)| world.clock.advance(ahead));
    cluster.run_background_rounds(8);
    assert!(cluster.clock.wall().0 < carried + WINDOW.as_millis() as u64);
    assert_eq!(cluster.add_once(1, &item, 5), Reply::Integer(5));
    assert_eq!(cluster.add_once(0, &item, 5), Reply::Integer(5));
    cluster.run_background_rounds(4);
    assert_eq!(cluster.sum(), 5);
}

#[test]
fn the_age_of_a_token_is_judged_by_the_clock_of_the_store() {
    let cluster = Cluster::new(1);
    // The node's clock is a day ahead.
    let world = &cluster.nodes[0].0;
    world.clock.set_wall(Millis(world.clock_wall() + 86_400_000));
    cluster.run_background_rounds(2);
    let item = format!("{}-order", cluster.clock.wall().0);
    assert_eq!(cluster.add_once(0, &item, 5), Reply::Integer(5));
    let future = format!("{}-order", cluster.nodes[0].0.clock_wall());
    assert_eq!(cluster.add_once(0, &future, 5), Reply::Refused(Refusal::TokenFromFuture));
}

/// A node that was killed after all was settled, and whose former life is over: what it counted is
/// confirmed, and no cell of it is open.
fn with_former_incarnation(sum: i64) -> Cluster {
    let mut cluster = Cluster::new(2);
    let command = Command::Add { name: likes(), delta: sum, shard_key: None };
    assert_eq!(run(&cluster.nodes[0].1, &command), Reply::Integer(sum));
    cluster.run_background_rounds(8);
    let (world, engine) = cluster.nodes.remove(0);
    let disk = world.disk.kill(world.disk.operations()).into_disk();
    drop(engine);
    let world = World::new(disk, 7);
    world.clock.advance(Duration::from_secs(6));
    let engine = open(&world, &cluster.store);
    cluster.nodes.insert(0, (world, engine));
    let registrations = |cluster: &Cluster| block_on(cluster.store.writers()).unwrap().registrations;
    for _ in 0..100 {
        cluster.run_background_rounds(1);
        if registrations(&cluster).iter().any(|known| matches!(known.stage, WriterStage::Closed { .. })) {
            break;
        }
    }
    // Passes of the audit in which its cells would have been dropped.
    cluster.run_background_rounds(8);
    cluster.nodes[0].1.sharing().unwrap().begin_audit();
    cluster.run_background_rounds(40);
    assert_eq!(cluster.sum(), i128::from(sum));
    cluster
}

#[test]
fn what_a_former_life_has_counted_is_put_again_after_the_store_has_lost_it() {
    let cluster = with_former_incarnation(5);
    cluster.memory.restore_backup(&MemoryStore::new(cluster.clock.clone()).backup());
    cluster.run_background_rounds(100);
    assert_eq!(cluster.sum(), 5);
    assert_eq!(cluster.nodes[0].1.sharing().unwrap().membership(), Membership::Live);
}

#[test]
fn what_a_former_life_has_counted_counts_once_when_the_store_has_not_lost_all_of_it() {
    for lost_after in [1, 20, 60, 200] {
        let mut cluster = with_former_incarnation(5);
        let contents = cluster.memory.backup();
        cluster.run_background_rounds(lost_after);
        cluster.memory.restore_backup(&contents);
        cluster.run_background_rounds(100);
        assert_eq!(cluster.sum(), 5, "{lost_after}");
        // Until others have folded and forgotten it.
        cluster.run_background_rounds(700);
        assert_eq!(cluster.sum(), 5, "{lost_after}");
        assert_eq!(cluster.nodes.remove(0).1.sharing().unwrap().membership(), Membership::Live);
    }
}

#[test]
fn what_a_restored_directory_knows_of_its_former_life_is_put_again_after_the_store_has_lost_more() {
    let mut cluster = Cluster::new(2);
    let add = |cluster: &Cluster, delta| {
        run(&cluster.nodes[0].1, &Command::Add { name: likes(), delta, shard_key: None });
        cluster.run_background_rounds(8);
    };
    add(&cluster, 5);
    let (world, _) = &cluster.nodes[0];
    let image = world.disk.kill(world.disk.operations());
    add(&cluster, 2);
    assert_eq!(cluster.sum(), 7);
    // The directory goes back to where it knew of five, and the store knows better.
    drop(cluster.nodes.remove(0));
    let world = World::new(image.into_disk(), 7);
    world.clock.advance(Duration::from_secs(12));
    let engine = open(&world, &cluster.store);
    cluster.nodes.insert(0, (world, engine));
    cluster.run_background_rounds(150);
    assert_eq!(cluster.sum(), 7);
    cluster.memory.restore_backup(&MemoryStore::new(cluster.clock.clone()).backup());
    cluster.run_background_rounds(100);
    assert_eq!(cluster.sum(), 5);
}

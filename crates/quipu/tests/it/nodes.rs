//! Three nodes on one real store, under load, while nodes and the store are killed, stopped and
//! started again.
//!
//! The account of each counter: the values returned by GETSET + the rest = the acknowledged adds +
//! a subset of the unknown ones.

mod sketches;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::RespConnection;
use quipu_testkit::SeededRng;
use quipu_testkit::judge::is_subset_sum;
use quipu_testkit::program::{Launch, Program};
use quipu_testkit::proxy::{NetworkFault, Proxy};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::servers::redis::{RedisCluster, RedisServer};
use tempfile::TempDir;

use crate::life::{connect, launch, now};

const NODES: usize = 3;

/// Clients of each node.
const CLIENTS: usize = 2;

/// Counters that are only added to, and counters that are harvested with GETSET besides.
const PLAIN: [&str; 2] = ["likes:1", "likes:2"];
const HARVESTED: [&str; 2] = ["views:1", "views:2"];

/// How long a client waits for a reply: longer than a node lets a command wait for its store.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Most time from the last fault until all nodes agree: time to settle, to fetch, and to reconnect
/// to a store, many times over.
const AGREED_WITHIN: Duration = Duration::from_secs(60);

/// A store that can be killed and comes back with all that it acknowledged.
pub trait StoreServer {
    fn kill(&mut self);
    fn restart(&mut self);
    fn stop(&self);
    fn cont(&self);
}

macro_rules! store_server {
    ($server:ty) => {
        impl StoreServer for $server {
            fn kill(&mut self) {
                <$server>::kill(self);
            }

            fn restart(&mut self) {
                <$server>::restart(self).expect("it starts again");
            }

            fn stop(&self) {
                <$server>::stop(self).expect("it can be stopped");
            }

            fn cont(&self) {
                <$server>::resume(self).expect("it goes on");
            }
        }
    };
}

store_server!(RedisServer);
store_server!(PostgresServer);

/// What is known of one counter.
#[derive(Debug, Default, Clone)]
struct Account {
    acked: i64,
    unknown: Vec<i64>,
    returned: i64,
    /// Harvests of which nobody knows whether they were carried out, and so what they took.
    lost: usize,
    harvests: usize,
    refused: usize,
}

/// What clients share with whoever kills nodes under them.
#[derive(Default)]
struct NodesShared {
    /// Where each node listens, while it runs.
    addresses: Mutex<[Option<SocketAddr>; NODES]>,
    accounts: Mutex<BTreeMap<&'static str, Account>>,
    /// Whether counters are harvested: what a store that lost a swap has counted since, nobody can
    /// tell.
    harvests: bool,
    over: AtomicBool,
}

/// The nodes.
struct Nodes {
    launches: Vec<Launch>,
    programs: Vec<Option<Program>>,
    shared: Arc<NodesShared>,
    _data: TempDir,
}

impl Nodes {
    fn start(url: &str, harvests: bool) -> Nodes {
        let data = TempDir::new().expect("a temporary directory can be made");
        let launches: Vec<Launch> = (0..NODES)
            .map(|node| {
                let mut launch = launch(&data.path().join(node.to_string()), Durability::Durable);
                let words = ["--store", url, "--settle-every", "100ms", "--freshness", "100ms", "--lease", "2s"];
                launch.arguments = words.map(Into::into).to_vec();
                launch
            })
            .collect();
        let programs = (0..NODES).map(|_| None).collect();
        let shared = Arc::new(NodesShared { harvests, ..NodesShared::default() });
        let mut nodes = Nodes { launches, programs, shared, _data: data };
        (0..NODES).for_each(|node| nodes.run(node));
        nodes
    }

    fn run(&mut self, node: usize) {
        let program = self.launches[node].start().expect("it starts");
        self.shared.addresses.lock().expect("nobody panics holding it")[node] = Some(program.address());
        self.programs[node] = Some(program);
    }

    fn kill(&mut self, node: usize) {
        self.shared.addresses.lock().expect("nobody panics holding it")[node] = None;
        self.programs[node].take().expect("it runs").kill9();
    }
}

/// One client: asks its node until all is over, and connects again whenever the connection breaks.
fn drive(nodes: &NodesShared, node: usize, rng: &SeededRng) {
    let mut client = None;
    while !nodes.over.load(Ordering::Relaxed) {
        let address = nodes.addresses.lock().expect("nobody panics holding it")[node];
        let connected = client.take().or_else(|| RespConnection::connect(address?, REPLY_TIMEOUT).ok());
        let Some(mut connected) = connected else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if ask(nodes, &mut connected, rng) {
            client = Some(connected);
        }
    }
}

/// Asks one thing, and writes down what is known of it; whether the connection is whole.
fn ask(nodes: &NodesShared, client: &mut RespConnection, rng: &SeededRng) -> bool {
    let harvests = nodes.harvests && rng.chance(3);
    let name = if harvests || rng.chance(50) { *rng.pick(&HARVESTED) } else { *rng.pick(&PLAIN) };
    let delta = 1 + rng.below(5) as i64;
    let answer = match harvests {
        true => client.call(&["GETSET", name, "0"]),
        false => client.call(&["INCRBY", name, &delta.to_string()]),
    };
    let mut accounts = nodes.accounts.lock().expect("nobody panics holding it");
    let account = accounts.entry(name).or_default();
    match &answer {
        Ok(reply) if reply.error().is_some() => account.refused += 1,
        Ok(reply) if harvests => {
            account.harvests += 1;
            account.returned += reply.number().unwrap_or(0);
        }
        Ok(_) => account.acked += delta,
        Err(_) if harvests => account.lost += 1,
        Err(_) => account.unknown.push(delta),
    }
    answer.is_ok()
}

fn pause(millis: u64) {
    thread::sleep(Duration::from_millis(millis));
}

/// Loads three nodes while something happens to them and their store, and judges what is left.
fn nothing_is_lost_or_doubled(what: &str, url: &str, harvests: bool, happen: impl FnOnce(&mut Nodes)) {
    let mut nodes = Nodes::start(url, harvests);
    let rng = SeededRng::new(u64::from(std::process::id()));
    let shared = nodes.shared.clone();
    thread::scope(|scope| {
        for client in 0..NODES * CLIENTS {
            let (shared, rng) = (&shared, rng.fork());
            scope.spawn(move || drive(shared, client % NODES, &rng));
        }
        pause(1_000);
        happen(&mut nodes);
        pause(1_500);
        shared.over.store(true, Ordering::Relaxed);
    });
    judge(what, &nodes);
    for program in nodes.programs.into_iter().flatten() {
        assert!(program.terminate().expect("it ends").0.success());
    }
}

/// Kills and stops nodes and their store.
fn kill_all(nodes: &mut Nodes, store: &mut impl StoreServer) {
    nodes.kill(0);
    pause(300);
    nodes.run(0);
    pause(700);
    store.kill();
    pause(1_000);
    store.restart();
    pause(700);
    store.stop();
    pause(1_500);
    store.cont();
    pause(700);
    // A node loses its process while the store is down, and is back before it.
    store.kill();
    pause(200);
    nodes.kill(1);
    nodes.run(1);
    pause(500);
    store.restart();
}

/// Faults of requests on a bad network: some are carried out without a reply, some are not carried
/// out.
fn bad_weather(request: u64) -> NetworkFault {
    match request {
        150 => NetworkFault::LoseReplies,
        250 => NetworkFault::HalfOpen,
        _ if request % 11 == 3 => NetworkFault::CutAfter,
        _ if request % 17 == 5 => NetworkFault::CutBefore,
        _ if request % 13 == 7 => NetworkFault::Delay(Duration::from_millis(30)),
        _ => NetworkFault::PassThrough,
    }
}

fn judge(what: &str, nodes: &Nodes) {
    let mut clients: Vec<RespConnection> = nodes.programs.iter().flatten().map(connect).collect();
    let accounts = nodes.shared.accounts.lock().expect("nobody panics holding it");
    let began = now();
    for (name, account) in accounts.iter() {
        let Account { acked, unknown, returned, lost, .. } = account;
        let judged = |left: i64| match lost {
            0 => is_subset_sum(i128::from(left + returned - acked), unknown.iter().copied()),
            // What a lost one took is not there any more, and nobody was told.
            _ => left + returned <= acked + unknown.iter().sum::<i64>(),
        };
        loop {
            let shown: Vec<i64> = clients.iter_mut().map(|client| value(client, name)).collect();
            let agreed = shown.iter().all(|value| *value == shown[0]) && judged(shown[0]);
            if agreed {
                break;
            }
            assert!(began.elapsed() < AGREED_WITHIN, "{what}: {name}: the nodes show {shown:?} of {account:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
    // And stays so.
    thread::sleep(Duration::from_secs(1));
    for (name, account) in accounts.iter() {
        let shown: Vec<i64> = clients.iter_mut().map(|client| value(client, name)).collect();
        let most = account.acked + account.unknown.iter().sum::<i64>();
        assert!(shown.iter().all(|value| *value == shown[0] && value + account.returned <= most), "{name}: {shown:?}");
    }
    let sum = |of: fn(&Account) -> i64| accounts.values().map(of).sum::<i64>();
    assert_eq!(sum(|account| account.harvests as i64) > 0, nodes.shared.harvests, "nothing was harvested");
    println!(
        "proof: three nodes on {what}: added {}, harvested {} in {} harvests, {} unknown, {} harvests without a reply, {} refused; nodes agreed after {} ms, violations 0",
        sum(|account| account.acked),
        sum(|account| account.returned),
        sum(|account| account.harvests as i64),
        sum(|account| account.unknown.len() as i64),
        sum(|account| account.lost as i64),
        sum(|account| account.refused as i64),
        began.elapsed().as_millis(),
    );
}

fn value(client: &mut RespConnection, name: &str) -> i64 {
    client.call(&["GET", name]).expect("it answers").number().unwrap_or(-1)
}

/// With anything less, Redis itself may forget what it acknowledged.
const DURABLE: [&str; 6] = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

#[test]
fn three_nodes_on_redis_lose_and_double_nothing_whatever_is_killed() {
    let mut store = RedisServer::start_with(&DURABLE).expect("redis-server starts");
    let url = store.url();
    nothing_is_lost_or_doubled("Redis", &url, true, |nodes| kill_all(nodes, &mut store));
}

#[test]
fn three_nodes_on_postgresql_lose_and_double_nothing_whatever_is_killed() {
    let mut store = PostgresServer::start().expect("PostgreSQL starts");
    let url = store.url();
    nothing_is_lost_or_doubled("PostgreSQL", &url, true, |nodes| kill_all(nodes, &mut store));
}

/// A bad network in front of a server, and what clears it up.
fn bad_network(server: SocketAddr) -> (Proxy, Arc<AtomicBool>) {
    let clear = Arc::new(AtomicBool::new(false));
    let cleared = clear.clone();
    let plan =
        move |request| if cleared.load(Ordering::Relaxed) { NetworkFault::PassThrough } else { bad_weather(request) };
    (Proxy::start(server, plan).expect("a proxy starts"), clear)
}

/// Loads three nodes on a bad network. It recovers before they are judged: agreement on a bad
/// network is a matter of luck.
fn nothing_is_lost_or_doubled_behind(what: &str, (proxy, clear): (Proxy, Arc<AtomicBool>), url: &str) {
    nothing_is_lost_or_doubled(what, url, true, |_| {
        pause(4_000);
        clear.store(true, Ordering::Relaxed);
    });
    assert!(proxy.requests() > 100, "only {} requests", proxy.requests());
}

#[test]
fn three_nodes_behind_a_bad_network_lose_and_double_nothing() {
    let redis = RedisServer::start().expect("redis-server starts");
    let network = bad_network(redis.address());
    let url = format!("redis://{}", network.0.address());
    nothing_is_lost_or_doubled_behind("Redis behind a bad network", network, &url);
    let postgres = PostgresServer::start().expect("PostgreSQL starts");
    let network = bad_network(postgres.address());
    let url = postgres.url_at(network.0.address());
    nothing_is_lost_or_doubled_behind("PostgreSQL behind a bad network", network, &url);
}

#[test]
fn a_redis_that_comes_back_empty_is_told_everything_again() {
    let mut store = RedisServer::start().expect("redis-server starts");
    let url = store.url();
    nothing_is_lost_or_doubled("a Redis that came back empty", &url, false, |_| {
        store.restart_empty().expect("it starts again");
        pause(2_000);
        store.restart_empty().expect("it starts again");
    });
}

#[test]
fn three_nodes_on_a_cluster_go_on_when_a_master_is_lost() {
    let mut cluster = RedisCluster::start_with_fast_failover().expect("a Redis Cluster starts");
    let url = cluster.url();
    nothing_is_lost_or_doubled("a Redis Cluster that lost a master", &url, false, |_| {
        cluster.fail_over(0).expect("its replica takes over");
        pause(1_000);
        cluster.fail_over(1).expect("its replica takes over");
    });
}

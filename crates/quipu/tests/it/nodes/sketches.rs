//! Sketches of three nodes on one real store, while nodes and the store are killed.
//!
//! The judge, once all is calm: every node returns the same reading.
//! - Uniques: acknowledged items ⊆ items in the sketch ⊆ requested items.
//! - Frequencies and lists: the total lies between the acknowledged and the requested amount, and
//!   no item has less than its acknowledged amount.

use std::collections::BTreeMap;

use quipu_protocol::resp::Value;
use quipu_sketch::{Edits, Hll};

use super::*;

/// What clients did: whether each was answered.
#[derive(Default)]
struct NodeLoadLog {
    observed: Vec<(String, bool)>,
    counted: Vec<(String, u64, bool)>,
    refused: u64,
}

/// What was done in all.
struct Sums {
    acked: Hll,
    asked: Hll,
    /// Of each item, what was acknowledged and what was asked for.
    counts: BTreeMap<String, (u64, u64)>,
}

/// One client: observes and counts until all is over, and connects again whenever the connection
/// breaks.
fn count(nodes: &NodesShared, node: usize, rng: &SeededRng) -> NodeLoadLog {
    let (mut client, mut load_log) = (None, NodeLoadLog::default());
    while !nodes.over.load(Ordering::Relaxed) {
        let address = nodes.addresses.lock().expect("nobody panics holding it")[node];
        let connected = client.take().or_else(|| RespConnection::connect(address?, REPLY_TIMEOUT).ok());
        let Some(mut connected) = connected else {
            pause(10);
            continue;
        };
        if count_once(&mut connected, rng, &mut load_log) {
            client = Some(connected);
        }
    }
    load_log
}

/// Observes an item and counts another; whether the connection is whole.
fn count_once(client: &mut RespConnection, rng: &SeededRng, load_log: &mut NodeLoadLog) -> bool {
    let item = format!("item-{}", rng.below(30_000));
    let (hot, by) = (format!("hot-{}", rng.below(40)), 1 + rng.below(9) as u64);
    let amount = by.to_string();
    let requests: [&[&str]; 4] = [
        &["PFADD", "hll", &item],
        &["QUIPU.OBSERVE", "unique", &item],
        &["CMS.INCRBY", "cms", &hot, &amount],
        &["TOPK.INCRBY", "top", &hot, &amount],
    ];
    let (mut observed, mut counted) = (0, 0);
    let mut whole = true;
    for (index, request) in requests.into_iter().enumerate() {
        match client.call(request) {
            Ok(reply) if reply.error().is_some() => load_log.refused += 1,
            Ok(_) if index < 2 => observed += 1,
            Ok(_) => counted += 1,
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    load_log.observed.push((item, observed == 2));
    load_log.counted.push((hot, by, counted == 2));
    whole
}

fn sum(all: Vec<NodeLoadLog>) -> Sums {
    let (mut sums, mut edits) =
        (Sums { acked: Hll::new(), asked: Hll::new(), counts: BTreeMap::new() }, Edits::default());
    for load_log in all {
        for (item, was_acked) in load_log.observed {
            sums.asked.add(item.as_bytes(), &mut edits);
            if was_acked {
                sums.acked.add(item.as_bytes(), &mut edits);
            }
            edits.clear();
        }
        for (item, by, was_acked) in load_log.counted {
            let (low, high) = sums.counts.entry(item).or_default();
            *low += if was_acked { by } else { 0 };
            *high += by;
        }
    }
    sums
}

/// Loads the sketches of three nodes while something happens to them and their store, and judges
/// what is there.
fn nothing_counted_is_lost(what: &str, url: &str, happen: impl FnOnce(&mut Nodes)) {
    let mut nodes = Nodes::start(url, false);
    let mut first = connect(nodes.programs[0].as_ref().expect("it runs"));
    let began = now();
    for request in [&["CMS.INITBYDIM", "cms", "2000", "5"][..], &["TOPK.RESERVE", "top", "10"]] {
        // What is made depends on what others have: the store must answer.
        while first.call(request).expect("it answers") != Value::Simple("OK".into()) {
            assert!(began.elapsed() < AGREED_WITHIN, "{request:?} is refused");
            pause(100);
        }
    }
    for program in nodes.programs.iter().flatten() {
        while connect(program).call(&["CMS.INFO", "cms"]).expect("it answers").error().is_some() {
            assert!(began.elapsed() < AGREED_WITHIN, "the others hear of what was made");
            pause(20);
        }
    }
    let rng = SeededRng::new(u64::from(std::process::id()));
    let shared = nodes.shared.clone();
    let load_log: Vec<NodeLoadLog> = thread::scope(|scope| {
        let clients: Vec<_> = (0..NODES * CLIENTS)
            .map(|client| {
                let (shared, rng) = (&shared, rng.fork());
                scope.spawn(move || count(shared, client % NODES, &rng))
            })
            .collect();
        pause(1_000);
        happen(&mut nodes);
        pause(1_500);
        shared.over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("a client ends")).collect()
    });
    let refused: u64 = load_log.iter().map(|load_log| load_log.refused).sum();
    let sums = sum(load_log);
    let mut clients: Vec<RespConnection> = nodes.programs.iter().flatten().map(connect).collect();
    let began = now();
    let agreed = loop {
        let views: Vec<_> = clients.iter_mut().map(show).collect();
        let verdict = judge(&views, &sums);
        match verdict {
            Ok(total) => break total,
            Err(wrong) => assert!(began.elapsed() < AGREED_WITHIN, "{what}: {wrong}"),
        }
        pause(100);
    };
    let acked: u64 = sums.counts.values().map(|(low, _)| low).sum();
    println!(
        "proof: sketches of three nodes on {what}: {} uniques, counted {agreed} of {acked} acknowledged, {refused} refused; nodes agreed after {} ms, violations 0",
        sums.acked.count(),
        began.elapsed().as_millis(),
    );
    assert!(acked > 500, "too little was counted to prove anything: {acked}");
    for program in nodes.programs.into_iter().flatten() {
        assert!(program.terminate().expect("it ends").0.success());
    }
}

/// The reading of one node: the string of the uniques, the count in our form, the frequencies in
/// all and of each item, and the list.
type NodeView = (Vec<u8>, i64, i64, Vec<i64>, Value);

fn show(client: &mut RespConnection) -> Option<NodeView> {
    let string = client.call(&["GET", "hll"]).ok()?.bytes()?.to_vec();
    let uniques = client.call(&["QUIPU.UNIQUES", "unique"]).ok()?.pairs().first()?.1.number()?;
    let Ok(Value::Array(info)) = client.call(&["CMS.INFO", "cms"]) else { return None };
    let items: Vec<String> = (0..40).map(|item| format!("hot-{item}")).collect();
    let words: Vec<&str> = ["CMS.QUERY", "cms"].into_iter().chain(items.iter().map(String::as_str)).collect();
    let Ok(Value::Array(counts)) = client.call(&words) else { return None };
    let list = client.call(&["TOPK.LIST", "top", "WITHCOUNT"]).ok()?;
    Some((string, uniques, info[5].number()?, counts.iter().map(|count| count.number().unwrap_or(-1)).collect(), list))
}

/// What all frequencies come to, if all is as it must be.
fn judge(views: &[Option<NodeView>], sums: &Sums) -> Result<i64, String> {
    let Some(Some((string, uniques, total, counts, list))) = views.first() else {
        return Err("it does not answer".into());
    };
    if views.iter().any(|other| other != &views[0]) {
        return Err(format!(
            "nodes differ: {:?}",
            views.iter().flatten().map(|views| (views.1, views.2)).collect::<Vec<_>>()
        ));
    }
    let there = Hll::from_redis_string(string).map_err(|damaged| damaged.to_string())?;
    // A register that the smaller one has higher would change what the larger one comes to.
    let within = |small: &Hll, large: &Hll| Hll::union_estimate(&[small, large]) == Hll::union_estimate(&[large]);
    if !within(&sums.acked, &there) {
        return Err("something acknowledged is gone".into());
    }
    if !within(&there, &sums.asked) {
        return Err("something is there that nobody asked for".into());
    }
    let (low, high) = (sums.acked.count() as f64, sums.asked.count() as f64);
    if !(low * 0.94..=high * 1.06).contains(&(*uniques as f64)) {
        return Err(format!("{uniques} uniques of {low} to {high}"));
    }
    let (low, high) = sums.counts.values().fold((0, 0), |(low, high), of| (low + of.0, high + of.1));
    if !(low..=high).contains(&(*total as u64)) {
        return Err(format!("{total} was counted in all, of {low} to {high}"));
    }
    for (item, (low, _)) in &sums.counts {
        let number: usize = item.strip_prefix("hot-").and_then(|n| n.parse().ok()).expect("it is one of ours");
        if (counts[number] as u64) < *low {
            return Err(format!("{} of {item}, and {low} acknowledged", counts[number]));
        }
    }
    let Value::Array(rows) = list else { return Err("no list".into()) };
    for row in rows.chunks(2) {
        let item = String::from_utf8_lossy(row[0].bytes().unwrap_or_default()).into_owned();
        let low = sums.counts.get(&item).map_or(u64::MAX, |of| of.0);
        if (row[1].number().unwrap_or(0) as u64) < low {
            return Err(format!("{row:?} in the list, and {low} acknowledged"));
        }
    }
    Ok(*total)
}

#[test]
fn sketches_of_three_nodes_on_redis_lose_nothing_whatever_is_killed() {
    let mut store = RedisServer::start_with(&DURABLE).expect("redis-server starts");
    let url = store.url();
    nothing_counted_is_lost("Redis", &url, |nodes| kill_all(nodes, &mut store));
}

#[test]
fn sketches_of_three_nodes_on_postgresql_lose_nothing_whatever_is_killed() {
    let mut store = PostgresServer::start().expect("PostgreSQL starts");
    let url = store.url();
    nothing_counted_is_lost("PostgreSQL", &url, |nodes| kill_all(nodes, &mut store));
}

#[test]
fn sketches_of_three_nodes_behind_a_bad_network_lose_nothing() {
    let redis = RedisServer::start().expect("redis-server starts");
    let (proxy, clear) = bad_network(redis.address());
    let url = format!("redis://{}", proxy.address());
    nothing_counted_is_lost("Redis behind a bad network", &url, |_| {
        pause(4_000);
        clear.store(true, Ordering::Relaxed);
    });
    assert!(proxy.requests() > 100, "only {} requests", proxy.requests());
}

#[test]
fn a_redis_that_comes_back_empty_is_told_all_sketches_again() {
    let mut store = RedisServer::start().expect("redis-server starts");
    let url = store.url();
    nothing_counted_is_lost("a Redis that came back empty", &url, |_| {
        store.restart_empty().expect("it starts again");
        pause(2_000);
        store.restart_empty().expect("it starts again");
    });
}

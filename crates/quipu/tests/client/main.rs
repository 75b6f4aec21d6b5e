//! `quipu-client` on the real program: each add counts once, through kills, restarts and cut
//! connections.
//!
//! The judge is the sum. Calls wait long enough to be answered in the end. So no outcome is
//! unknown, and the total must be exact.

mod proxy;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quipu_client::{AdderOptions, Client, Error, Freshness, Options};
use quipu_model::Durability;
use quipu_testkit::SeededRng;
use quipu_testkit::program::{Launch, Program};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::proxy::Proxy;

/// Kills in one test.
const KILLS: u32 = 6;

/// Connections cut in one test.
const CUTS: u64 = 40;

/// Long enough for any restart on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

fn launch(data: &Path) -> Launch {
    let mut launch = Launch::new(env!("CARGO_BIN_EXE_quipu"), data, Durability::Durable);
    // Seals and cuts in between, so that tokens rest and come back, too.
    launch.arguments = ["--seal-every", "50ms"].map(Into::into).to_vec();
    launch
}

fn start(launch: &Launch) -> Program {
    launch.start().unwrap_or_else(|error| panic!("{error}"))
}

async fn connect(proxy: &Proxy) -> Client {
    let options = Options { timeout: TIMEOUT, pause_max: Duration::from_millis(50), ..Options::default() };
    Client::connect(&proxy.address(), options).await.expect("the proxy is calm at first")
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

fn seed() -> u64 {
    std::env::var("QUIPU_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7)
}

#[test]
fn every_call_says_what_it_did() {
    run(async {
        let data = TempDir::new().expect("a directory");
        let mut launch = launch(data.path());
        launch.variables = vec![("QUIPU_PASSWORD".into(), "open:sesame".into())];
        let program = start(&launch);
        let at = program.address();
        let client =
            Client::connect(&format!("quipu://:open%3Asesame@{at}"), Options::default()).await.expect("let in");
        assert_eq!(client.add("likes:42", 5).await.unwrap(), 5);
        assert_eq!(client.add("likes:42", -7).await.unwrap(), -2);
        let reading = client.read("likes:42").await.unwrap();
        assert_eq!((reading.value, reading.exists, reading.exact), (-2, true, true));
        assert_eq!((reading.bound, reading.lag), (Some((-2, -2)), Some(Duration::ZERO)));
        client.set("likes:42", 1_234_567).await.unwrap();
        assert_eq!(client.read_with("likes:42", Freshness::Fresh).await.unwrap().display, "1.2M");
        assert_eq!(client.reset("likes:42").await.unwrap(), 1_234_567);
        assert!(client.delete("likes:42").await.unwrap());
        assert!(!client.delete("likes:42").await.unwrap());
        assert!(!client.read("likes:42").await.unwrap().exists);
        client.set("full", i64::MAX).await.unwrap();
        assert!(matches!(client.add("full", 1).await, Err(Error::Refused { .. })));
        let options = Options { password: Some("wrong".into()), ..Options::default() };
        assert!(matches!(Client::connect(&at.to_string(), options).await, Err(Error::Connect { .. })));
    });
}

#[test]
fn each_add_counts_once_through_cut_connections() {
    run(async {
        let (data, seed) = (TempDir::new().expect("a directory"), seed());
        let program = start(&launch(data.path()));
        let proxy = Proxy::start(seed);
        proxy.lead_to(Some(program.address()));
        let client = connect(&proxy).await;
        proxy.cut(true);
        // One connection is never cut, the others are.
        let cut = connect_cut(&proxy).await;
        let seen = proxy.clone();
        let (adds, values) = load(&[client, cut], 16, move |_| seen.cuts() < CUTS).await;
        assert_eq!(values.len() as i64, adds, "seed {seed}: no two replies of one counter are equal");
        let direct = Client::connect(&program.address().to_string(), Options::default()).await.expect("it serves");
        assert_eq!(direct.read("likes:42").await.unwrap().value, adds, "seed {seed}, {} cuts", proxy.cuts());
        println!("proof: client, cut connections: {adds} adds, {} cuts, sum exact, seed {seed}", proxy.cuts());
    });
}

#[test]
fn each_add_counts_once_through_kills_and_restarts() {
    run(async {
        let (data, seed) = (TempDir::new().expect("a directory"), seed());
        let (launch, rng) = (launch(data.path()), SeededRng::new(seed));
        let mut program = start(&launch);
        let proxy = Proxy::start(seed);
        proxy.lead_to(Some(program.address()));
        let client = connect(&proxy).await;
        proxy.cut(true);
        let left = Arc::new(AtomicU32::new(KILLS));
        let mut counting = JoinSet::new();
        counting.spawn({
            let (client, left) = (client.clone(), left.clone());
            async move { load(&[client], 16, move |_| left.load(Ordering::Relaxed) > 0).await }
        });
        for _ in 0..KILLS {
            // Not to wait for anything: how long the program is left alone is what the dice decide.
            tokio::time::sleep(Duration::from_millis(rng.between(20..=200).unsigned_abs())).await;
            program = restart(program, &launch, &proxy).await;
            left.fetch_sub(1, Ordering::Relaxed);
        }
        let (adds, values) = counting.join_next().await.expect("it was started").expect("no panic");
        assert_eq!(values.len() as i64, adds, "seed {seed}: no two replies of one counter are equal");
        let direct = Client::connect(&program.address().to_string(), Options::default()).await.expect("it serves");
        assert_eq!(direct.read("likes:42").await.unwrap().value, adds, "seed {seed}, {KILLS} kills");
        assert!(adds > 100, "seed {seed}: only {adds} adds");
        println!("proof: client, kill -9: {adds} adds, {KILLS} kills, {} cuts, sum exact, seed {seed}", proxy.cuts());
    });
}

#[test]
fn sums_of_an_adder_count_once_through_kills_and_cuts() {
    run(async {
        let (data, seed) = (TempDir::new().expect("a directory"), seed());
        let launch = launch(data.path());
        let mut program = start(&launch);
        let proxy = Proxy::start(seed);
        proxy.lead_to(Some(program.address()));
        let client = connect(&proxy).await;
        proxy.cut(true);
        let options = AdderOptions { interval: Duration::from_millis(2), counters_max: 64, ..AdderOptions::default() };
        let (adder, rng) = (client.adder(options), SeededRng::new(seed));
        let mut expected = vec![0i64; 100];
        for round in 0..40 {
            for _ in 0..500 {
                let (at, delta) = (rng.between(0..=99) as usize, rng.between(-5..=20));
                adder.add(format!("views:{at}"), delta).await.unwrap();
                expected[at] += delta;
            }
            if round % 8 == 7 {
                program = restart(program, &launch, &proxy).await;
            }
            if round % 4 == 0 {
                adder.flush().await.unwrap();
                let pending = adder.stats().adds_pending;
                assert_eq!(pending, 0, "seed {seed}: acknowledged means all of it");
            }
        }
        adder.flush().await.unwrap();
        let stats = adder.stats();
        assert_eq!((stats.adds_acknowledged, stats.adds_unknown, stats.adds_refused), (20_000, 0, 0));
        let direct = Client::connect(&program.address().to_string(), Options::default()).await.expect("it serves");
        for (at, expected) in expected.into_iter().enumerate() {
            assert_eq!(direct.read(format!("views:{at}")).await.unwrap().value, expected, "seed {seed}, views:{at}");
        }
        println!(
            "proof: client, adder: {} adds in {} requests, 5 kills, {} cuts, sums exact, seed {seed}",
            stats.adds_acknowledged,
            stats.requests,
            proxy.cuts()
        );
    });
}

#[test]
fn an_adder_that_samples_is_unbiased_through_kills_and_cuts_and_its_counter_says_so() {
    const EVENTS: i64 = 40_000;
    run(async {
        let (data, seed) = (TempDir::new().expect("a directory"), seed());
        let mut launch = launch(data.path());
        let file = data.path().join("quipu.toml");
        std::fs::write(&file, "[namespace.views]\nsample = 50\n").expect("it can be written");
        launch.arguments.extend(["--config".into(), file.into()]);
        launch.data = data.path().join("data");
        let mut program = start(&launch);
        let proxy = Proxy::start(seed);
        proxy.lead_to(Some(program.address()));
        let client = connect(&proxy).await;
        proxy.cut(true);
        let options = AdderOptions { interval: Duration::from_millis(2), ..AdderOptions::default() };
        let adder = client.adder(options.clone().sample(50));
        for round in 0..20 {
            for _ in 0..EVENTS / 20 {
                adder.add("views:42", 1).await.unwrap();
            }
            if round % 5 == 4 {
                program = restart(program, &launch, &proxy).await;
            }
        }
        adder.flush().await.unwrap();
        let stats = adder.stats();
        assert_eq!(stats.adds_acknowledged + stats.adds_skipped, EVENTS as u64);
        let reading = client.read("views:42").await.unwrap();
        assert_eq!(reading.value, 50 * stats.adds_acknowledged as i64, "nothing is sampled again, and nothing twice");
        assert_eq!((reading.exact, reading.sampled.map(|sampled| sampled.rate)), (false, Some(50)));
        // Six deviations of √(49 · 40,000).
        assert!((reading.value - EVENTS).abs() < 8_400, "{}", reading.value);
        // Where nothing of that is declared it is refused, and told.
        let elsewhere = client.adder(options.sample(50));
        while elsewhere.stats().adds_pending == 0 {
            elsewhere.add("likes:42", 1).await.unwrap();
        }
        let error = elsewhere.flush().await.unwrap_err();
        assert!(matches!(&error, Error::Refused { text } if text.contains("WRONGTYPE what was sampled")), "{error:?}");
        println!(
            "proof: client, sampling: {EVENTS} events, {} taken, read as {}, 4 kills, {} cuts, seed {seed}",
            stats.adds_acknowledged,
            reading.value,
            proxy.cuts()
        );
    });
}

/// Kills the program and starts it again, while clients go on trying to reach it.
async fn restart(program: Program, launch: &Launch, proxy: &Proxy) -> Program {
    proxy.lead_to(None);
    let launch = launch.clone();
    let restarted = tokio::task::spawn_blocking(move || {
        program.kill9();
        start(&launch)
    });
    let program = restarted.await.expect("it starts again");
    proxy.lead_to(Some(program.address()));
    program
}

/// A client of a proxy that cuts also connections in the making.
async fn connect_cut(proxy: &Proxy) -> Client {
    let options = Options { timeout: TIMEOUT, pause_max: Duration::from_millis(50), ..Options::default() };
    loop {
        if let Ok(client) = Client::connect(&proxy.address(), options.clone()).await {
            return client;
        }
    }
}

/// Adds 1 from several tasks at once; each task asks `goes_on` after each add of its own. Returns
/// the number of acknowledged adds, and their replies.
async fn load(
    clients: &[Client],
    tasks: usize,
    goes_on: impl Fn(usize) -> bool + Clone + Send + 'static,
) -> (i64, HashSet<i64>) {
    let mut counting = JoinSet::new();
    for task in 0..tasks {
        let (client, goes_on) = (clients[task % clients.len()].clone(), goes_on.clone());
        counting.spawn(async move {
            let mut values = Vec::new();
            while goes_on(values.len()) {
                values.push(client.add("likes:42", 1).await.unwrap_or_else(|error| panic!("{error:?}")));
            }
            values
        });
    }
    let values: Vec<i64> = counting.join_all().await.into_iter().flatten().collect();
    (values.len() as i64, values.into_iter().collect())
}

//! Runs real engines to try things on, until it is told to end: a Redis, a Redis Cluster and a
//! PostgreSQL on free ports, in temporary directories.
//!
//! `cargo xtask engines up` installs the packages they need and runs this.

use std::error::Error;

use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::servers::redis::{RedisCluster, RedisServer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> Result<(), Box<dyn Error>> {
    // First: from here on no signal ends this program without its servers.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    println!("starting …");
    let (redis, cluster, postgres) = (RedisServer::start()?, RedisCluster::start()?, PostgresServer::start()?);
    println!("Redis          {}", redis.url());
    println!("Redis Cluster  {}", cluster.url());
    println!("PostgreSQL     {}", postgres.url());
    println!("\nTwo nodes on one of them, each in a terminal of its own:");
    for (node, resp, http) in [("a", 7379, 7380), ("b", 7389, 7390)] {
        let store = redis.url();
        println!("  quipu serve --data node-{node} --resp 127.0.0.1:{resp} --http 127.0.0.1:{http} --store '{store}'");
    }
    println!("\nCtrl-C ends all of them and removes what they have.");
    signals.forever().next();
    println!("ending …");
    Ok(())
}

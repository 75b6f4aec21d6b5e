//! Measures the puts of changing sketches: the changed pages are put, not whole sketches.
//!
//! A node on a Redis has a thousand dense sketches of uniques. It counts a number of new items in
//! each of them, then waits until all changes are put. The number of pages is the node's own; the
//! bytes are those that Redis reports as received.

use std::fmt::Write as _;
use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use comfy_table::Table;

use super::super::server::free_port;
use super::super::table_text;
use super::{LocalServer, StoreBench, connect, read_until};
use crate::run::now;

/// Number of sketches.
const SKETCHES: usize = 1_000;

/// First items of each: more than a sparse sketch can hold.
const FIRST_ITEMS: usize = 3_000;

/// New items of each between two readings.
const NEW_ITEMS: [usize; 6] = [1, 2, 4, 8, 64, 1_000];

/// Bytes of a dense sketch in Redis's form, with its header.
const BODY_BYTES: f64 = 12_304.0;

/// Totals of the puts.
struct PutTotals {
    pages: u64,
    received: u64,
}

impl StoreBench {
    /// Measures the puts after a number of changes in each of many sketches.
    pub(super) fn pages(&self) -> anyhow::Result<()> {
        let redis = self.redis("pages-redis")?;
        let url = format!("redis://127.0.0.1:{}", redis.port);
        let http = free_port().context("find a free port")?;
        let http_address = format!("127.0.0.1:{http}");
        let node = self.node("pages", false, Some(&url), &["--http", &http_address])?;
        let mut items_sent = 0;
        observe(&node, FIRST_ITEMS, &mut items_sent)?;
        let mut before = wait_until_settled(http, &redis)?;
        let mut table = Table::new();
        let wide = format!("{SKETCHES} sketches, new items in each");
        table.set_header([&wide[..], "pages put of each", "bytes of each, by Redis", "of a whole one, %"]);
        for items in NEW_ITEMS {
            self.stop.check()?;
            observe(&node, items, &mut items_sent)?;
            let after = wait_until_settled(http, &redis)?;
            let each = |count: u64| count as f64 / SKETCHES as f64;
            let (pages, bytes) = (each(after.pages - before.pages), each(after.received - before.received));
            let cells = [items.to_string(), format!("{pages:.2}"), format!("{bytes:.0}")];
            table.add_row(cells.into_iter().chain([format!("{:.0}", bytes / BODY_BYTES * 100.0)]));
            before = after;
        }
        println!("{}\n", table_text(table, 1));
        Ok(())
    }
}

/// Observes `items` new items in each sketch.
fn observe(node: &LocalServer, items: usize, items_sent: &mut usize) -> anyhow::Result<()> {
    let mut stream = node.connect()?;
    for sketch in 0..SKETCHES {
        let mut line = format!("PFADD visitors:{sketch}");
        for item in 0..items {
            write!(line, " {}", *items_sent + item)?;
        }
        stream.write_all(format!("{line}\r\n").as_bytes()).context("observe")?;
        let reply = read_until(&mut stream, |reply| reply.ends_with(b"\r\n"))?;
        ensure!(reply.starts_with(b":"), "an observation got {:?}", String::from_utf8_lossy(&reply));
    }
    *items_sent += items;
    Ok(())
}

/// The totals so far, once no more puts come.
fn wait_until_settled(http: u16, redis: &LocalServer) -> anyhow::Result<PutTotals> {
    let (began, mut last) = (now(), None);
    loop {
        thread::sleep(Duration::from_millis(2_500));
        let pages = metric(http, "quipu_store_pages_total")?;
        // Leases are renewed all the time; their bytes are some hundreds a second, of megabytes.
        if last == Some(pages) {
            return Ok(PutTotals { pages, received: redis.figure("stats", "total_net_input_bytes")? });
        }
        ensure!(began.elapsed() < Duration::from_secs(60), "it does not come to an end");
        last = Some(pages);
    }
}

fn metric(http: u16, name: &str) -> anyhow::Result<u64> {
    let mut stream = connect(http)?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .context("ask for metrics")?;
    let reply = std::io::read_to_string(stream).context("read metrics")?;
    let value = reply.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    Ok(value.with_context(|| format!("there is no {name}"))? as u64)
}

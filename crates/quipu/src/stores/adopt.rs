//! `quipu writers adopt`: counts or drops the unsettled adds of an incarnation that its store has
//! forgotten.
//!
//! A node may be away until its cells are folded and forgotten. It then refuses to count while one
//! of its cells may have adds that no other node knows of. The operator decides about these adds.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use quipu_engine::{AdoptionReport, Environment, UnconfirmedAdds};

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::offline_engine;
use crate::stores::args;
use crate::stores::registry::parse_writer;
use crate::stores::retry::block_on;

/// Counts or drops the unsettled adds, and prints their sum.
pub fn adopt(flags: &args::AdoptArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(&flags.store.store).context("--store")?;
    let (writer, data) = (parse_writer(&flags.writer)?, &flags.directory.data);
    let shown = data.display();
    offline_engine::check(data)?;
    let store = url.open()?;
    let known = block_on(store.writers()).with_context(|| format!("look at the writers of {url}"))?;
    if known.registrations.iter().any(|known| known.writer == writer) {
        bail!("{url} knows {writer}: start the node, and it settles what it has, exactly");
    }
    let environment = Environment { store: Some(store), ..Environment::system() };
    let engine = offline_engine::open_engine(data, environment)?;
    let how = if flags.drop { UnconfirmedAdds::Drop } else { UnconfirmedAdds::Count };
    let done = match engine.sharing() {
        Some(sharing) if sharing.node() == writer.node => {
            sharing.adopt(writer.incarnation, how).with_context(|| format!("adopt {writer}"))
        }
        sharing => {
            let node = sharing.map_or_else(String::new, |sharing| sharing.node().to_string());
            Err(anyhow::anyhow!("{writer} is no life of {shown}, which is node {node}"))
        }
    };
    engine.close().with_context(|| format!("close {shown}"))?;
    let AdoptionReport { counters, unconfirmed, sum, sketches } = done?;
    let became = if flags.drop { "dropped" } else { "counted" };
    if flags.directory.json {
        let document = Json::Object(vec![
            ("writer", Json::text(writer)),
            ("counters", Json::count(counters)),
            ("unconfirmed", Json::count(unconfirmed)),
            ("sum", Json::Number(sum)),
            ("sketches", Json::count(sketches)),
            ("became", Json::text(became)),
        ]);
        writeln!(out, "{document}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{writer} had cells of {counters} counters; {unconfirmed} of them had adds that the store is not known to have, in sum {sum}: {became}"
    )?;
    if sketches > 0 {
        writeln!(
            out,
            "of {sketches} sketches the store may lack something, and nobody can tell what: all of each is {became}"
        )?;
    }
    writeln!(out, "next: start the node, which goes on under a new life")?;
    Ok(ExitCode::SUCCESS)
}

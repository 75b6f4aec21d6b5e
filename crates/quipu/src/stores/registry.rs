//! `quipu writers --store` lists the writers of a store; `quipu writers retire` retires one.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use quipu_model::shared::snapshot::EPOCH_MILLIS_MAX;
use quipu_model::shared::{Registration, WriterStage};
use quipu_model::{Incarnation, Millis, NodeId, Writer, WriterList};

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::stores::args::RetireArgs;
use crate::stores::importer::{self, IMPORT, IMPORTED};
use crate::stores::mirror::is_copied;
use crate::stores::names::WriterNames;
use crate::stores::retry::block_on;
use crate::terminal;

/// Prints all registrations.
pub fn writers(url: &str, as_json: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(url).context("--store")?;
    let store = url.open()?;
    let mut known = block_on(store.writers()).with_context(|| format!("look at the writers of {url}"))?;
    known.registrations.sort_by_key(|registration| registration.writer);
    let names = WriterNames::read(&*store);
    match as_json {
        true => writeln!(out, "{}", json(&url, &known, &names))?,
        false => print(&url, &known, &names, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Retires a writer.
pub fn retire(flags: &RetireArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(&flags.store.store).context("--store")?;
    let writer = parse_writer(&flags.writer)?;
    let store = url.open()?;
    let known = block_on(store.writers()).with_context(|| format!("look at the writers of {url}"))?;
    let Some(own) = known.registrations.iter().find(|known| known.writer == writer) else {
        bail!("{url} has no writer {writer}: `quipu writers --store` lists those that it has");
    };
    if writer.incarnation == IMPORTED {
        bail!(
            "{writer} is the mark of an import that is done: without it, the import could be begun anew and count twice"
        );
    }
    if own.stage != WriterStage::Live {
        writeln!(out, "{writer} is already {}", stage_text(own).0)?;
        return Ok(ExitCode::SUCCESS);
    }
    if own.lease_until > known.at && !flags.force {
        if writer.incarnation == IMPORT {
            bail!("{writer} is an import, which may be run again; end it with its --done, or with --force here");
        }
        if is_copied(own) {
            bail!(
                "{writer} was copied from another store and may live there; end it with `quipu copy --done`, or with --force here"
            );
        }
        bail!(
            "{writer} has a lease until {}: it runs, or was stopped just now. Stop it and wait, or say --force",
            terminal::format_time(own.lease_until)
        );
    }
    importer::retire(&*store, writer)?;
    writeln!(out, "{writer} is retiring: a node that runs closes its cells, and folds them after its `grace`")?;
    Ok(ExitCode::SUCCESS)
}

fn print(url: &StoreUrl, known: &WriterList, names: &WriterNames, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{}", terminal::bold(&url.to_string()))?;
    if known.registrations.is_empty() {
        writeln!(out, "nobody writes to it")?;
        return Ok(());
    }
    let mut table = terminal::table(["writer", "name", "who", "stage", "since", "lease"]);
    for registration in &known.registrations {
        let (stage, since) = stage_text(registration);
        let since = since.map_or_else(|| "-".to_owned(), terminal::format_time);
        table.add_row([
            registration.writer.to_string(),
            names.text(registration.writer),
            holder_text(registration),
            stage.to_owned(),
            since,
            lease(registration, known.at),
        ]);
    }
    writeln!(out, "{}", terminal::render_table(table))?;
    Ok(())
}

fn json(url: &StoreUrl, known: &WriterList, names: &WriterNames) -> Json {
    let writers = known.registrations.iter().map(|registration| {
        let (stage, since) = stage_text(registration);
        Json::Object(vec![
            ("writer", Json::text(registration.writer)),
            ("name", names.json(registration.writer)),
            ("who", Json::text(holder_text(registration))),
            ("stage", Json::text(stage)),
            ("since", since.map_or(Json::Null, |since| Json::count(since.0))),
            ("lease_until", Json::count(registration.lease_until.0)),
            ("lease_current", Json::Bool(registration.lease_until > known.at)),
            ("version", Json::count(registration.version)),
        ])
    });
    Json::Object(vec![
        ("store", Json::text(url)),
        ("at", Json::count(known.at.0)),
        ("writers", Json::List(writers.collect())),
    ])
}

fn stage_text(registration: &Registration) -> (&'static str, Option<Millis>) {
    match registration.stage {
        WriterStage::Live => ("live", None),
        WriterStage::Retiring { since } => ("retiring", Some(since)),
        WriterStage::Closed { since } => ("closed", Some(since)),
        WriterStage::Folded { since } => ("folded", Some(since)),
    }
}

fn holder_text(registration: &Registration) -> String {
    match (registration.writer.incarnation, registration.holder) {
        (IMPORT, _) => "an import".to_owned(),
        (IMPORTED, _) => "the mark of an import that is done".to_owned(),
        (_, Some(holder)) => format!("a node, process {:016x}", holder.0),
        (_, None) if is_copied(registration) => "a node of another store, copied".to_owned(),
        (_, None) => "a node, stopped".to_owned(),
    }
}

fn lease(registration: &Registration, at: Millis) -> String {
    match registration.lease_until {
        until if until.0 == EPOCH_MILLIS_MAX => "without end".to_owned(),
        until if until > at => format!("until {}", terminal::format_time(until)),
        until => format!("over since {}", terminal::format_time(until)),
    }
}

/// Parses a writer from its printed form.
pub fn parse_writer(text: &str) -> anyhow::Result<Writer> {
    let word = |word: &str| (word.len() == 16).then(|| u64::from_str_radix(word, 16).ok()).flatten();
    let parsed = text.split_once('.').and_then(|(node, incarnation)| {
        Some(Writer { node: NodeId(word(node)?), incarnation: Incarnation(word(incarnation)?) })
    });
    parsed.ok_or_else(|| {
        anyhow!("a writer is two times 16 hexadecimal digits with a `.` between, as `quipu writers --store` shows it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_read_as_it_is_shown() {
        let writer = Writer { node: NodeId(7), incarnation: IMPORT };
        assert_eq!(parse_writer(&writer.to_string()).unwrap(), writer);
        for text in ["", "7", "7.8", "000000000000000g.0000000000000001", "+00000000000007.0000000000000001x"] {
            assert!(parse_writer(text).is_err(), "{text}");
        }
    }
}

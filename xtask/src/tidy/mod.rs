//! `cargo xtask tidy`: names, the engine's ranks, and prose, against the rules of STYLE.md.
//!
//! In: the tracked files. Out: findings, each an amount at a place (`Findings`). A rule allows an
//! amount everywhere; `xtask/tidy.toml` lists the places that exceed it, and may only shrink.
//!
//! Not here: formatting and lints, which are rustfmt's and clippy's.

mod allowance;
mod names;
mod prose;
mod ranks;

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use self::allowance::Allowance;
use crate::paths::root;
use crate::rename::Sources;

/// One rule of style.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A type's name is unique in its crate.
    DuplicateType,
    /// A type is a noun, not a bare participle.
    ParticipleType,
    /// A function is more than one vague word.
    VagueFunction,
    /// `let (a, b) = (x, y)` destructures a value, it does not join two statements.
    TupleLet,
    /// A module of the engine uses only modules of lower rank.
    EngineArrow,
    /// Clauses where a noun exists ("what", "whoever"), per 1,000 words.
    Clauses,
    /// Mean length of a sentence, in words.
    SentenceWords,
    /// Lines of prose beyond 120 columns.
    LongLine,
}

/// All rules, in the order in which they are shown.
pub const RULES: [Rule; 8] = [
    Rule::DuplicateType,
    Rule::ParticipleType,
    Rule::VagueFunction,
    Rule::TupleLet,
    Rule::EngineArrow,
    Rule::Clauses,
    Rule::SentenceWords,
    Rule::LongLine,
];

impl Rule {
    /// The rule's name in `xtask/tidy.toml`.
    pub fn name(self) -> &'static str {
        match self {
            Rule::DuplicateType => "duplicate_types",
            Rule::ParticipleType => "participle_types",
            Rule::VagueFunction => "vague_functions",
            Rule::TupleLet => "tuple_lets",
            Rule::EngineArrow => "engine_arrows",
            Rule::Clauses => "clauses",
            Rule::SentenceWords => "sentence_words",
            Rule::LongLine => "long_lines",
        }
    }

    /// The amount that needs no entry in `xtask/tidy.toml`.
    pub fn amount_max(self, place: &str) -> usize {
        match self {
            Rule::Clauses if place == prose::ALL_COMMENTS => 20,
            Rule::Clauses => 8,
            Rule::SentenceWords => 25,
            _ => 0,
        }
    }

    /// The advice for a new finding.
    fn advice(self) -> &'static str {
        match self {
            Rule::DuplicateType => "give one of them a name of its own",
            Rule::ParticipleType => "name the type by a noun",
            Rule::VagueFunction => "name the function by a verb and its object",
            Rule::TupleLet => "write one `let` a value",
            Rule::EngineArrow => "move the code up, or the thing it needs down",
            Rule::Clauses => "write the noun instead of \"what\", \"whoever\", \"nobody\"",
            Rule::SentenceWords => "split the sentences",
            Rule::LongLine => "wrap the prose at 100 columns",
        }
    }
}

/// Amounts by rule and place. A place is a crate, a name, a pair of modules or a document.
#[derive(Default)]
pub struct Findings(pub BTreeMap<(Rule, String), usize>);

impl Findings {
    /// Adds to the amount at a place.
    pub fn add(&mut self, rule: Rule, place: impl Into<String>, amount: usize) {
        *self.0.entry((rule, place.into())).or_default() += amount;
    }

    fn measure() -> anyhow::Result<Findings> {
        let sources = Sources::read(&root())?;
        let mut findings = Findings::default();
        names::check(&sources, &mut findings)?;
        ranks::check(&sources, &mut findings)?;
        prose::check(&sources, &mut findings)?;
        Ok(findings)
    }
}

/// Checks the working tree. Returns the number of rules that hold.
pub fn check() -> anyhow::Result<usize> {
    let findings = Findings::measure()?;
    let mistakes = Allowance::read()?.compare(&findings);
    if !mistakes.is_empty() {
        bail!("{}", mistakes.join("\n"));
    }
    Ok(RULES.len())
}

/// Prints every figure beside its bar and checks them.
pub fn show() -> anyhow::Result<()> {
    let findings = Findings::measure()?;
    for rule in RULES {
        let places = findings.0.iter().filter(|((of, place), amount)| *of == rule && **amount > rule.amount_max(place));
        let lines: Vec<String> = places.map(|((_, place), amount)| format!("  {place}: {amount}")).collect();
        println!("{}: {} places beyond the rule", rule.name(), lines.len());
        lines.iter().for_each(|line| println!("{line}"));
    }
    check().map(|_| ())
}

/// Writes `xtask/tidy.toml` anew with smaller amounts. A larger amount is refused.
pub fn shrink() -> anyhow::Result<()> {
    let findings = Findings::measure()?;
    let allowance = Allowance::read()?;
    let larger = allowance.excesses(&findings);
    if allowance.exists && !larger.is_empty() {
        bail!("tidy.toml may only shrink:\n{}", larger.join("\n"));
    }
    Allowance::of_findings(&findings).write().context("write xtask/tidy.toml")
}

//! Keeps `xtask/tidy.toml`: the places that exceed a rule, with their allowed amounts.
//!
//! Invariant: an amount never grows. `compare` also reports an amount that is larger than needed,
//! so that progress is kept.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Context;

use super::{Findings, RULES, Rule};
use crate::paths::root;

/// The allowed amounts, by rule and place.
pub struct Allowance {
    rules: BTreeMap<String, BTreeMap<String, usize>>,
    /// True if the file exists.
    pub exists: bool,
}

impl Allowance {
    /// Reads the file; without one nothing is allowed.
    pub fn read() -> anyhow::Result<Allowance> {
        match std::fs::read_to_string(path()) {
            Ok(text) => {
                let rules = toml::from_str(&text).with_context(|| format!("parse {}", path().display()))?;
                Ok(Allowance { rules, exists: true })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Allowance { rules: BTreeMap::new(), exists: false })
            }
            Err(error) => Err(error).with_context(|| format!("read {}", path().display())),
        }
    }

    /// The smallest allowance under which these findings pass.
    pub fn of_findings(findings: &Findings) -> Allowance {
        let mut rules: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for ((rule, place), amount) in &findings.0 {
            if *amount > rule.amount_max(place) {
                rules.entry(rule.name().to_owned()).or_default().insert(place.clone(), *amount);
            }
        }
        Allowance { rules, exists: true }
    }

    /// Writes the file.
    pub fn write(&self) -> anyhow::Result<()> {
        let head =
            "# Places that exceed a rule of style, written by `cargo xtask tidy --shrink`. It may only shrink.\n";
        let text = toml::to_string(&self.rules).context("write the amounts as TOML")?;
        std::fs::write(path(), format!("{head}{text}")).with_context(|| format!("write {}", path().display()))
    }

    /// Findings beyond their allowance, one per line.
    pub fn excesses(&self, findings: &Findings) -> Vec<String> {
        let beyond = findings.0.iter().filter(|((rule, place), amount)| **amount > self.amount(*rule, place));
        let line = |((rule, place), amount): (&(Rule, String), &usize)| {
            let (allowed, advice) = (self.amount(*rule, place), rule.advice());
            format!("{}: {place}: {amount}, allowed are {allowed}: {advice}", rule.name())
        };
        beyond.map(line).collect()
    }

    /// All reasons why the tree is not tidy, one per line.
    pub fn compare(&self, findings: &Findings) -> Vec<String> {
        let mut lines = self.excesses(findings);
        for (name, places) in &self.rules {
            let Some(rule) = RULES.into_iter().find(|rule| rule.name() == name) else {
                lines.push(format!("tidy.toml: no rule is called {name}"));
                continue;
            };
            // Rates move with every edit of a page; counts move when an occurrence is removed.
            if matches!(rule, Rule::Clauses | Rule::SentenceWords) {
                continue;
            }
            for (place, allowed) in places {
                let amount = findings.0.get(&(rule, place.clone())).copied().unwrap_or(0);
                if amount < *allowed {
                    lines.push(format!(
                        "{name}: {place}: {amount}, but tidy.toml allows {allowed}: run `cargo xtask tidy --shrink`"
                    ));
                }
            }
        }
        lines
    }

    fn amount(&self, rule: Rule, place: &str) -> usize {
        let listed = self.rules.get(rule.name()).and_then(|places| places.get(place)).copied();
        listed.unwrap_or(0).max(rule.amount_max(place))
    }
}

fn path() -> PathBuf {
    root().join("xtask/tidy.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(amounts: &[(Rule, &str, usize)]) -> Findings {
        let mut findings = Findings::default();
        amounts.iter().for_each(|(rule, place, amount)| findings.add(*rule, *place, *amount));
        findings
    }

    #[test]
    fn what_is_beyond_its_allowance_and_what_is_allowed_in_vain_are_reported() {
        let before = findings(&[(Rule::TupleLet, "engine", 3), (Rule::Clauses, "README.md", 9)]);
        let allowance = Allowance::of_findings(&before);
        assert!(allowance.compare(&before).is_empty());

        let more = findings(&[(Rule::TupleLet, "engine", 4), (Rule::DuplicateType, "engine: Entry", 2)]);
        assert_eq!(allowance.compare(&more).len(), 2, "{:?}", allowance.compare(&more));

        let fewer = findings(&[(Rule::TupleLet, "engine", 2), (Rule::Clauses, "README.md", 8)]);
        let lines = allowance.compare(&fewer);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("--shrink"), "{lines:?}");
    }
}

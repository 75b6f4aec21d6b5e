//! Names of types and functions, and tuple `let`s.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use syn::visit::{self, Visit};

use super::{Findings, Rule};
use crate::rename::Sources;

/// Function names that cannot be searched for.
const VAGUE_FUNCTIONS: [&str; 13] =
    ["bring", "go_on", "heed", "is", "let_go", "look", "of", "or", "rest", "say", "says", "see", "tell"];

/// Nouns that end like participles.
const NOUNS: [&str; 20] = [
    "Binding", "Embed", "Encoding", "Feed", "Heading", "Listing", "Mapping", "Need", "Reading", "Ring", "Seed",
    "Setting", "Sibling", "Spacing", "Speed", "String", "Thing", "Thread", "Timing", "Warning",
];

/// Participles that do not end in "ed" or "ing".
const IRREGULAR_PARTICIPLES: [&str; 27] = [
    "Brought",
    "Done",
    "Drawn",
    "Found",
    "Given",
    "Gone",
    "Heard",
    "Held",
    "Kept",
    "Known",
    "Laid",
    "Left",
    "Lost",
    "Made",
    "Meant",
    "Met",
    "Ran",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Sought",
    "Spent",
    "Taken",
    "Told",
    "Understood",
    "Written",
];

/// Checks all sources but tests, benches and examples.
pub fn check(sources: &Sources, findings: &mut Findings) -> anyhow::Result<()> {
    let mut types: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut participles = BTreeSet::new();
    for (file, text) in &sources.files {
        let Some((crate_path, _)) = file.split_once("/src/") else { continue };
        let crate_name = crate_path.strip_prefix("crates/").unwrap_or(crate_path);
        let names = FileNames::parse(text).with_context(|| format!("parse {file}"))?;
        for name in names.types {
            if is_participle(&name) {
                participles.insert(format!("{crate_name}: {name}"));
            }
            *types.entry((crate_name.to_owned(), name)).or_default() += 1;
        }
        for name in names.functions.iter().filter(|name| VAGUE_FUNCTIONS.contains(&name.as_str())) {
            findings.add(Rule::VagueFunction, format!("{crate_name}: {name}"), 1);
        }
        findings.add(Rule::TupleLet, crate_name, names.tuple_lets);
    }
    for place in participles {
        findings.add(Rule::ParticipleType, place, 1);
    }
    for ((crate_name, name), count) in types.into_iter().filter(|(_, count)| *count > 1) {
        findings.add(Rule::DuplicateType, format!("{crate_name}: {name}"), count);
    }
    Ok(())
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().skip(1).all(|letter| letter.is_ascii_lowercase());
    IRREGULAR_PARTICIPLES.contains(&name)
        || (is_one_word && (name.ends_with("ed") || name.ends_with("ing")) && !NOUNS.contains(&name))
}

#[derive(Default)]
struct FileNames {
    types: Vec<String>,
    functions: Vec<String>,
    tuple_lets: usize,
}

impl FileNames {
    fn parse(text: &str) -> anyhow::Result<FileNames> {
        let mut names = FileNames::default();
        names.visit_file(&syn::parse_file(text)?);
        Ok(names)
    }
}

impl<'ast> Visit<'ast> for FileNames {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.types.push(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.types.push(item.ident.to_string());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.types.push(item.ident.to_string());
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.types.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.types.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.functions.push(signature.ident.to_string());
        visit::visit_signature(self, signature);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let is_tuple = matches!(local.pat, syn::Pat::Tuple(_));
        let value = local.init.as_ref().map(|init| &*init.expr);
        if is_tuple && matches!(value, Some(syn::Expr::Tuple(_))) {
            self.tuple_lets += 1;
        }
        visit::visit_local(self, local);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Sources { files, others: BTreeMap::new() }
    }

    #[test]
    fn duplicate_types_participles_vague_functions_and_tuple_lets_are_counted() {
        let one = "struct Held; struct Entry; impl Held { fn of() { let (a, b) = (1, 2); let (c, d) = f(); } }";
        let two = "mod inner { enum Entry {} } trait Reading { fn look(&self); } type Told = u8;";
        let elsewhere = "struct Entry; fn lookup() {}";
        let sources =
            sources(&[("crates/a/src/one.rs", one), ("crates/a/src/two.rs", two), ("crates/b/src/lib.rs", elsewhere)]);
        let mut findings = Findings::default();
        check(&sources, &mut findings).unwrap();
        let found: Vec<(Rule, &str, usize)> = findings
            .0
            .iter()
            .filter(|(_, amount)| **amount > 0)
            .map(|((rule, place), amount)| (*rule, place.as_str(), *amount))
            .collect();
        let wanted = [
            (Rule::DuplicateType, "a: Entry", 2),
            (Rule::ParticipleType, "a: Held", 1),
            (Rule::ParticipleType, "a: Told", 1),
            (Rule::VagueFunction, "a: look", 1),
            (Rule::VagueFunction, "a: of", 1),
            (Rule::TupleLet, "a", 1),
        ];
        assert_eq!(found, wanted);
    }
}

//! Answers COMMAND: describes the table to clients.
//!
//! In: the question. Out: the reply, written. Clients learn from it which arguments are names;
//! redis-cli takes its hints from it.

use super::spec::{Flag, Keys};
use super::{Argument, Introspection, Spec, TABLE};
use crate::resp::RespWriter;

/// Writes the answer to a question on the commands.
pub fn describe(question: &Introspection<'_>, out: &mut RespWriter<'_>) {
    match question {
        Introspection::Count => out.integer(TABLE.len() as i64),
        Introspection::List(pattern) => {
            let matches = |spec: &&Spec| pattern.is_none_or(|pattern| pattern.matches(spec.name.as_bytes()));
            let names: Vec<&str> = TABLE.iter().filter(matches).map(|spec| spec.name).collect();
            out.array(names.len());
            names.iter().for_each(|name| out.bulk(name.as_bytes()));
        }
        Introspection::Info(names) if names.is_empty() => {
            out.array(TABLE.len());
            TABLE.iter().for_each(|spec| info(spec, out));
        }
        Introspection::Info(names) => {
            out.array(names.len());
            for name in names {
                match Spec::by_name(name) {
                    Some(spec) => info(spec, out),
                    None => out.null(),
                }
            }
        }
        Introspection::Docs(names) => {
            let specs: Vec<&Spec> = match names.is_empty() {
                true => TABLE.iter().collect(),
                false => names.iter().filter_map(|name| Spec::by_name(name)).collect(),
            };
            out.map(specs.len());
            specs.iter().for_each(|spec| docs(spec, out));
        }
    }
}

/// The ten fields of Redis 7.
fn info(spec: &Spec, out: &mut RespWriter<'_>) {
    out.array(10);
    out.bulk(spec.name.as_bytes());
    out.integer(spec.public_arity().into());
    let flags: Vec<&str> = spec.flags.iter().filter_map(|flag| flag.name()).collect();
    out.set(flags.len());
    flags.iter().for_each(|flag| out.simple(flag));
    let Keys { first, last, step } = spec.keys;
    [first, last, step].into_iter().for_each(|number| out.integer(number.into()));
    let categories = categories(spec);
    out.set(categories.len());
    categories.iter().for_each(|category| out.simple(category));
    // Tips, then key specifications: the three numbers above already give the positions of names.
    out.set(0);
    out.set(0);
    out.set(spec.parts.len());
    spec.parts.iter().for_each(|part| info(part, out));
}

fn categories(spec: &Spec) -> Vec<String> {
    let mut categories = Vec::new();
    if spec.has(Flag::Write) {
        categories.push("@write".to_owned());
    }
    if spec.has(Flag::ReadOnly) {
        categories.push("@read".to_owned());
    }
    if spec.has(Flag::Admin) {
        categories.push("@admin".to_owned());
    }
    categories.push(format!("@{}", spec.group.name()));
    categories.push(if spec.has(Flag::Fast) { "@fast" } else { "@slow" }.to_owned());
    categories
}

/// The fields of Redis 7; clients build their hints from them.
fn docs(spec: &Spec, out: &mut RespWriter<'_>) {
    let arguments: Vec<&Argument> = spec.all_arguments().collect();
    out.bulk(spec.name.as_bytes());
    out.map(4 + usize::from(!arguments.is_empty()) + usize::from(!spec.parts.is_empty()));
    let texts = [("summary", spec.summary), ("since", spec.since), ("group", spec.group.name())];
    for (key, value) in texts.into_iter().chain([("complexity", spec.complexity)]) {
        out.bulk(key.as_bytes());
        out.bulk(value.as_bytes());
    }
    if !arguments.is_empty() {
        out.bulk(b"arguments");
        out.array(arguments.len());
        arguments.iter().for_each(|argument| self::argument(argument, out));
    }
    if !spec.parts.is_empty() {
        out.bulk(b"subcommands");
        out.map(spec.parts.len());
        spec.parts.iter().for_each(|part| docs(part, out));
    }
}

fn argument(argument: &Argument, out: &mut RespWriter<'_>) {
    let group = argument.kind.group();
    let flags: Vec<&str> = [(argument.optional, "optional"), (argument.multiple, "multiple")]
        .into_iter()
        .filter_map(|(has, flag)| has.then_some(flag))
        .collect();
    let shown = group.is_empty();
    let fields = [shown, argument.token.is_some(), !flags.is_empty(), !group.is_empty()];
    out.map(2 + fields.into_iter().filter(|has| *has).count());
    for (key, value) in [("name", argument.name), ("type", argument.kind.name())] {
        out.bulk(key.as_bytes());
        out.bulk(value.as_bytes());
    }
    if shown {
        out.bulk(b"display_text");
        out.bulk(argument.name.as_bytes());
    }
    if let Some(token) = argument.token {
        out.bulk(b"token");
        out.bulk(token.as_bytes());
    }
    if !flags.is_empty() {
        out.bulk(b"flags");
        out.set(flags.len());
        flags.iter().for_each(|flag| out.simple(flag));
    }
    if !group.is_empty() {
        out.bulk(b"arguments");
        out.array(group.len());
        group.iter().for_each(|member| self::argument(member, out));
    }
}

/// Writes the lines of `CLIENT HELP` and the like.
pub fn help(container: &Spec, out: &mut RespWriter<'_>) {
    out.array(1 + 2 * container.parts.len());
    out.simple(&format!(
        "{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        container.name.to_ascii_uppercase()
    ));
    for part in container.parts {
        out.simple(&part.part_name().to_ascii_uppercase());
        out.simple(&format!("    {}", part.summary));
    }
}

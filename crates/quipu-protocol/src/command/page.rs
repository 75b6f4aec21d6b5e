//! Generates docs/commands.md: every command, printed from the parser's table.

use std::fmt::Write;

use super::spec::{Flag, Group, Keys};
use super::{Argument, ArgumentKind, Spec, TABLE};

const HEAD: &str = "# Commands

This page is printed from the server's table of commands by `cargo xtask docs`.
`COMMAND DOCS` returns the same to clients; redis-cli from 7.2 on completes commands by it.

In a syntax line, words in capitals are literal, and `[…]` is optional. `a | b` is a choice, and
`x [x ...]` is one or more. A counter's name has at most 512 bytes; the part before the first `:` is
its [namespace](configuration.md).

- Options of all commands that change counters: `IDMP producer token` and `SEQ producer number`, at
  the end. All retries of such a command apply it once and get the same reply. A token is any text,
  unique to its producer; numbers go up by 1. Their errors:
  [TOKENSPENT](errors.md#token-mismatch), [TOKENTIME](errors.md#token-too-old),
  [TOKENSFULL](errors.md#tokens-full), [SEQGAP](errors.md#sequence-gap),
  [SEQAPPLIED](errors.md#sequence-applied).
- Option of adds on a shared store: `SHARDKEY key`, where the namespace has `pick = \"hash\"`.
- Any command may fail with the [errors of a command](errors.md#errors-of-a-command-over-resp) and
  the [errors of a connection](errors.md#errors-of-a-connection-over-resp). The line \"Errors\" of a
  command below lists its own.

";

const INCREX: &str = "
## Rate limits and stock: INCREX

`INCREX` adds within bounds and sets an expiry, in one step. It replies the value after, and what was really added.

**Rate limit**: at most 3 requests in 60 seconds from one address. `ENX` sets the expiry only if there is none, so the minute begins with the
first request. The second number is 0 if the limit is reached; `TTL` says when to try again.

```text
> INCREX visits:203.0.113.9 UBOUND 3 EX 60 ENX
1) (integer) 1
2) (integer) 1
> INCREX visits:203.0.113.9 UBOUND 3 EX 60 ENX
1) (integer) 2
2) (integer) 1
> INCREX visits:203.0.113.9 UBOUND 3 EX 60 ENX
1) (integer) 3
2) (integer) 1
> INCREX visits:203.0.113.9 UBOUND 3 EX 60 ENX
1) (integer) 3
2) (integer) 0
```

**Stock**: take 2 of what is left, never below 0. Without `SATURATE` it is all or nothing; with it, as much as there is.

```text
> SET stock:7 3
OK
> INCREX stock:7 BYINT -2 LBOUND 0
1) (integer) 1
2) (integer) -2
> INCREX stock:7 BYINT -2 LBOUND 0
1) (integer) 1
2) (integer) 0
> INCREX stock:7 BYINT -2 LBOUND 0 SATURATE
1) (integer) 0
2) (integer) -1
```

A counter on a [shared store](operating.md) has no single owner, so bounds are refused there.
";

/// Groups in the order of the page, with their titles.
const GROUPS: [(Group, &str); 8] = [
    (Group::String, "Counts"),
    (Group::HyperLogLog, "Uniques"),
    (Group::Module, "Frequencies and top lists"),
    (Group::Generic, "Names and expiry"),
    (Group::Transactions, "Transactions"),
    (Group::Connection, "Connections"),
    (Group::Server, "The server"),
    (Group::Scripting, "Scripting"),
];

/// Generates the page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for (group, title) in GROUPS {
        let links: Vec<String> = specs_in(group).map(|spec| format!("[{}](#{})", name(spec), anchor(spec))).collect();
        let _ = writeln!(page, "**[{title}](#{})**  \n{}\n", title.to_lowercase().replace(' ', "-"), links.join(" · "));
    }
    let _ = writeln!(page, "**[Rate limits and stock: INCREX](#rate-limits-and-stock-increx)**");
    page.push_str(INCREX);
    for (group, title) in GROUPS {
        let _ = write!(page, "\n## {title}\n");
        specs_in(group).for_each(|spec| write_command(&mut page, spec));
    }
    page
}

/// Commands of a group, each followed by its subcommands.
fn specs_in(group: Group) -> impl Iterator<Item = &'static Spec> {
    let of_group = TABLE.iter().filter(move |spec| spec.group == group);
    of_group.flat_map(|spec| std::iter::once(spec).chain(spec.parts))
}

fn name(spec: &Spec) -> String {
    spec.name.replace('|', " ").to_ascii_uppercase()
}

/// Link to a command's heading, as the usual Markdown renderers generate it.
fn anchor(spec: &Spec) -> String {
    spec.name.replace('|', "-").replace('.', "")
}

fn write_command(page: &mut String, spec: &Spec) {
    let _ = write!(page, "\n### {}\n\n{}.\n\n```text\n{}\n```\n\n", name(spec), spec.summary, spec.syntax());
    let mut arguments = Vec::new();
    spec.arguments.iter().for_each(|argument| list(argument, &mut arguments));
    arguments.dedup();
    let mut lines = Vec::new();
    if !arguments.is_empty() {
        lines.push(format!("Arguments: {}", arguments.join(", ")));
    }
    lines.push(format!("Reply: {}", spec.reply));
    if !spec.kinds.is_empty() {
        let kinds: Vec<&str> = spec.kinds.iter().map(|kind| kind.name()).collect();
        lines.push(format!("Kinds: {}", kinds.join(", ")));
    }
    lines.push(format!("Complexity: {}", spec.complexity));
    let errors = errors(spec);
    if !errors.is_empty() {
        lines.push(format!("Errors: {}", errors.join(", ")));
    }
    if !spec.example.is_empty() {
        lines.push(format!("Example: `{}`", spec.example));
    }
    let ours = spec.name.starts_with("quipu.");
    lines.push(format!("Since: {} {}", if ours { "Quipu" } else { "Redis" }, spec.since));
    lines.iter().for_each(|line| {
        let _ = writeln!(page, "- {line}");
    });
}

/// Collects the arguments that have values, with their types.
fn list(argument: &Argument, into: &mut Vec<String>) {
    match argument.kind {
        ArgumentKind::PureToken => {}
        ArgumentKind::OneOf(group) | ArgumentKind::Block(group) => group.iter().for_each(|member| list(member, into)),
        kind => into.push(format!("`{}` {}", argument.name, meaning(kind))),
    }
}

fn meaning(kind: ArgumentKind) -> &'static str {
    match kind {
        ArgumentKind::Key => "(name of a counter)",
        ArgumentKind::Integer => "(whole number)",
        ArgumentKind::Double => "(decimal number)",
        ArgumentKind::Pattern => "(glob)",
        ArgumentKind::UnixTime => "(Unix time)",
        _ => "(text)",
    }
}

/// Links to the refusals that follow from the operation's flags and kinds.
fn errors(spec: &Spec) -> Vec<String> {
    let link = |word: &str, anchor: &str| format!("[{word}](errors.md#{anchor})");
    let about_counters = !spec.kinds.is_empty() && spec.keys != Keys::NONE;
    let mut errors = Vec::new();
    if about_counters && spec.kinds.len() < 4 {
        errors.push(link("WRONGTYPE", "other-kind"));
    }
    if spec.has(Flag::ShardKey) || matches!(spec.name, "increx" | "quipu.thinned") {
        errors.push(link("overflow", "overflow"));
    }
    if spec.has(Flag::DenyOom) {
        errors.extend([link("OOM", "no-memory"), link("QUOTA", "too-many-counters")]);
    }
    if spec.has(Flag::Write) {
        errors.extend([link("NOROOM", "no-room"), link("TRYAGAIN", "behind"), link("FENCED", "fenced")]);
    }
    if about_counters {
        errors.push(link("STOREDOWN", "store-down"));
    }
    if spec.has(Flag::NoMulti) {
        errors.push(link("not in MULTI", "not-in-multi"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_part_stands_on_the_page_once() {
        let page = page();
        for spec in TABLE.iter().flat_map(|spec| std::iter::once(spec).chain(spec.parts)) {
            assert_eq!(page.matches(&format!("\n### {}\n", name(spec))).count(), 1, "{}", spec.name);
            assert!(page.contains(&format!("(#{})", anchor(spec))), "{}", spec.name);
        }
    }
}

//! Tests of the effective configuration and of the reported mistakes.

use std::time::Duration;

use quipu_engine::{ShardPick, SharePolicy};
use quipu_model::{Durability, FailMode, Kind};

use super::*;

fn flags(file: &str, raw: &[(&str, &str, Origin)]) -> (tempfile::TempDir, ServeArgs) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quipu.toml");
    std::fs::write(&path, file).unwrap();
    let raw = raw.iter().map(|(key, text, origin)| {
        let setting = SETTINGS.iter().find(|setting| setting.key == *key).unwrap();
        RawSetting { setting, text: (*text).to_owned(), origin: origin.clone() }
    });
    let flags = ServeArgs { config: Some(path), raw_settings: raw.collect(), ..ServeArgs::default() };
    (dir, flags)
}

fn gather(file: &str, raw: &[(&str, &str, Origin)]) -> EffectiveConfig {
    let (_dir, flags) = flags(file, raw);
    EffectiveConfig::resolve(&flags)
}

/// Line and text of each mistake.
fn mistakes(file: &str) -> Vec<(usize, String)> {
    let messages = |mistake: Mistake| match mistake.origin {
        Origin::File { line, .. } => (line, mistake.text),
        other => panic!("{other}: {}", mistake.text),
    };
    gather(file, &[]).mistakes.into_iter().map(messages).collect()
}

#[test]
fn a_flag_goes_before_a_variable_before_the_file_before_the_default() {
    let file = "[server]\nworkers = 2\nsegment_bytes = 65536\nrelaxed_window = \"20ms\"\n";
    let variable = Origin::Variable("QUIPU_SEGMENT_BYTES".to_owned());
    let flag = Origin::Flag("relaxed-window".to_owned());
    let effective =
        gather(file, &[("segment_bytes", "128KiB", variable.clone()), ("relaxed_window", "5ms", flag.clone())]);
    assert_eq!(effective.mistakes, []);
    let ServerConfig { engine, server, .. } = &effective.configuration;
    assert_eq!(server.workers.get(), 2);
    assert_eq!(engine.segment_bytes, 128 << 10);
    assert_eq!(engine.relaxed_window, std::time::Duration::from_millis(5));
    assert_eq!(engine.data, Path::new(DATA_DEFAULT));
    let lines = effective.lines();
    let from = |key: &str| lines.iter().find(|line| line.0 == key).map(|line| line.2.clone()).unwrap();
    assert!(matches!(from("server.workers"), Origin::File { line: 2, .. }));
    assert_eq!(from("server.segment_bytes"), variable);
    assert_eq!(from("server.relaxed_window"), flag);
    assert_eq!(from("server.data"), Origin::Default);
}

#[test]
fn namespaces_and_limits_are_read() {
    let file = "\
[server.limits]
idle_timeout = \"5m\"
[namespace.views]
kind = \"count\"
durability = \"relaxed\"
[namespace.default]
durability = \"memory\"
";
    let effective = gather(file, &[]);
    assert_eq!(effective.mistakes, []);
    let ServerConfig { engine, server, .. } = &effective.configuration;
    assert_eq!(server.limits.idle_time_max, Some(std::time::Duration::from_secs(300)));
    assert_eq!(
        engine.namespaces,
        [
            (b"default"[..].into(), Namespace::with_durability(Durability::Memory)),
            (
                b"views"[..].into(),
                Namespace { kind: Some(Kind::Count), ..Namespace::with_durability(Durability::Relaxed) }
            ),
        ]
    );
    assert_eq!(gather("[server]\nlimits.connections = 5", &[]).configuration.server.limits.connections_max, 5);
}

#[test]
fn every_mistake_is_reported_with_its_line() {
    let file = "\
[server]
durabilty = \"durable\"
workers = \"two\"
segment_bytes = \"10\"
relaxed_window = 50
limits.conections = 5
limits.connections = -1

[namespace.views]
durability = \"sometimes\"
kind = \"tops\"
shard = 4
shards = 65
freshness = 5
settle_every = \"5ms\"
pick = \"any\"

[surplus]
x = 1
";
    let messages = mistakes(file);
    let lines: Vec<usize> = messages.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 18], "{messages:#?}");
    let text =
        |line: usize| messages.iter().find(|mistake| mistake.0 == line).map(|mistake| mistake.1.as_str()).unwrap();
    assert_eq!(text(2), "unknown key 'durabilty' in [server], did you mean 'durability'?");
    assert_eq!(text(3), "'workers' must be a whole number, not a string");
    assert_eq!(text(5), "'relaxed_window' must be a string such as \"50ms\" or \"10s\", not an integer");
    assert_eq!(text(6), "unknown key 'limits.conections' in [server], did you mean 'limits.connections'?");
    assert_eq!(text(7), "limits.connections: '-1' is not a number from 1 to 4294967295");
    let in_views = |line| text(line).strip_prefix("in [namespace.views]: ").expect("it says where");
    assert_eq!(in_views(10), "durability: unknown durability 'sometimes': it is memory, relaxed or durable");
    assert_eq!(in_views(11), "kind: unknown kind 'tops': it is count, unique, frequency, top");
    assert_eq!(text(12), "unknown key 'shard' in [namespace.views], did you mean 'shards'?");
    assert_eq!(in_views(13), "shards: '65' is not a number from 1 to 64, or auto");
    assert_eq!(in_views(14), "'freshness' must be a string such as \"50ms\" or \"10s\", not an integer");
    assert_eq!(in_views(15), "settle_every: '5ms' is not a time from 10ms to 1h");
    assert_eq!(in_views(16), "pick: unknown pick 'any': it is writer, random, hash or time");
    assert_eq!(text(18), "unknown key 'surplus'");
}

#[test]
fn a_namespace_is_shared_as_the_server_says_where_it_says_nothing() {
    let file = "\
[namespace.votes]
shards = 8
pick = \"hash\"
[namespace.views]
freshness = \"0s\"
[namespace.likes]
durability = \"relaxed\"
[server]
shards = \"auto\"
settle_every = \"2s\"
";
    let flag = Origin::Flag("freshness".to_owned());
    let effective = gather(file, &[("freshness", "500ms", flag.clone())]);
    assert_eq!(effective.mistakes, []);
    let engine = &effective.configuration.engine;
    let quipu_engine::SharingOptions { settle_every, freshness, shards, pick, .. } = &engine.sharing;
    let (two, half) = (Duration::from_secs(2), Duration::from_millis(500));
    assert_eq!((*settle_every, *freshness, *shards, *pick), (two, half, 1, ShardPick::Writer));
    let policies = quipu_engine::Policies::new(engine, Default::default());
    let fail_mode = FailMode::Local;
    let policy = |freshness, shards, pick| SharePolicy { settle_every: two, freshness, shards, pick, fail_mode };
    assert_eq!(policies.of_namespace(b"views").share, policy(Duration::ZERO, 1, ShardPick::Writer));
    assert_eq!(policies.of_namespace(b"votes").share, policy(half, 8, ShardPick::Hash));
    assert_eq!(policies.of_namespace(b"likes").durability, Durability::Relaxed);
    assert_eq!(policies.of_namespace(b"others").share, policy(half, 1, ShardPick::Writer));
    let lines = effective.lines();
    let row = |key: &str| lines.iter().find(|line| line.0 == key).map(|line| (line.1.as_str(), line.2.to_string()));
    let shown = |key: &str| row(key).map(|row| row.0);
    let from = |key: &str| row(key).map(|row| row.1);
    assert_eq!(shown("server.shards"), Some("auto"));
    assert_eq!(shown("namespace.votes.shards"), Some("8"));
    assert!(from("namespace.votes.shards").unwrap().ends_with("quipu.toml:2"));
    assert_eq!(
        (shown("namespace.votes.freshness"), from("namespace.votes.freshness")),
        (Some("500ms"), Some(flag.to_string()))
    );
    assert!(from("namespace.views.settle_every").unwrap().ends_with("quipu.toml:10"));
    assert_eq!(
        (shown("namespace.likes.pick"), from("namespace.likes.pick")),
        (Some("writer"), Some("default".to_owned()))
    );
    assert_eq!(row("namespace.likes.kind"), None, "it may have counters of any");
    assert_eq!(row("namespace.likes.ttl"), None, "it says nothing of that, and nor does the server");
    let origins = &effective.configuration.server.origins;
    assert!(origins.namespaces[&(b"votes"[..].into(), "pick")].ends_with("quipu.toml:3"));
    assert_eq!(origins.server["freshness"], ("500ms".to_owned(), flag.to_string()));
}

#[test]
fn one_namespace_too_many_and_one_letter_too_many_are_mistakes() {
    let file =
        |count: usize| (0..count).map(|number| format!("[namespace.n{number}]\nttl = \"1h\"\n")).collect::<String>();
    assert_eq!(mistakes(&file(quipu_model::NAMESPACES_MAX)), []);
    let messages = mistakes(&file(quipu_model::NAMESPACES_MAX + 1));
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].1.contains("more than 1000 namespaces"), "{messages:?}");
    let named = |bytes: usize| format!("[namespace.{}]\nttl = \"1h\"\n", "x".repeat(bytes));
    assert_eq!(mistakes(&named(quipu_model::NAMESPACE_BYTES_MAX)), []);
    assert_eq!(mistakes(&named(quipu_model::NAMESPACE_BYTES_MAX + 1)).len(), 1);
}

#[test]
fn bad_toml_is_reported_beside_the_other_mistakes() {
    let messages = mistakes("[server]\nworkers = \ndurability = \"maybe\"\n[server\n");
    let lines: Vec<usize> = messages.iter().map(|(line, _)| *line).collect();
    for line in [2, 3, 4] {
        assert!(lines.contains(&line), "{messages:#?}");
    }
}

#[test]
fn a_mistake_in_the_file_is_reported_even_if_a_flag_overrides_it() {
    let effective = gather("[server]\nworkers = 0\n", &[("workers", "3", Origin::Flag("workers".to_owned()))]);
    assert_eq!(effective.configuration.server.workers.get(), 3);
    assert_eq!(effective.mistakes.len(), 1);
}

#[test]
fn mistakes_in_flags_and_variables_are_reported_by_their_names() {
    let effective = gather(
        "",
        &[
            ("resp", "nowhere", Origin::Flag("resp".to_owned())),
            ("workers", "x", Origin::Variable("QUIPU_WORKERS".to_owned())),
        ],
    );
    let messages: Vec<String> = effective.mistakes.iter().map(Mistake::to_string).collect();
    assert!(messages[0].starts_with("QUIPU_WORKERS: workers: 'x' is not a number"), "{messages:?}");
    assert!(messages[1].starts_with("--resp: resp: 'nowhere' is not an address"), "{messages:?}");
}

#[test]
fn an_address_that_others_reach_needs_a_password_or_a_word() {
    let open = "[server]\nworkers = 1\nresp = \"0.0.0.0:7379\"\n";
    let messages = mistakes(open);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].0, 3);
    assert!(messages[0].1.contains("no password is set"), "{messages:?}");
    assert_eq!(mistakes(&format!("{open}password = \"secret\"\n")), []);
    assert_eq!(mistakes(&format!("{open}insecure = true\n")), []);
}

#[test]
fn a_file_that_cannot_be_read_is_a_mistake() {
    let flags = ServeArgs { config: Some("/nonexistent/quipu.toml".into()), ..ServeArgs::default() };
    let messages = EffectiveConfig::resolve(&flags).mistakes;
    assert_eq!(messages.len(), 1);
    assert!(messages[0].to_string().starts_with("--config: cannot read /nonexistent/quipu.toml"), "{}", messages[0]);
}

//! Whole counters leave a server: `QUIPU.DUMP` of every kind.
//!
//! The judge: a body is decoded by `quipu-sketch` alone, and says what the server's own reading says.

use quipu_model::Durability;
use quipu_sketch::{Dump, Kind, Sketch, Unique};
use quipu_testkit::program::Program;
use quipu_testkit::resp::{Client, Value};
use tempfile::TempDir;

use crate::life::{connect, launch};

/// When one of the sketches expires: in the year 2100.
pub const EXPIRES_AT: i64 = 4_102_444_800_000;

/// Every sketch that [`fill`] makes: name, kind, form.
pub const SKETCHES: [(&str, &str, &str); 9] = [
    ("hll", "unique", "hll"),
    ("unique", "unique", "unique"),
    ("cms", "frequency", "cms"),
    ("freq", "frequency", "frequency"),
    ("topk", "top", "topk"),
    ("top", "top", "top"),
    ("recent:u", "unique", "ring"),
    ("recent:f", "frequency", "ring"),
    ("recent:h", "unique", "ring"),
];

pub fn call(client: &mut Client, request: &[&[u8]]) -> Value {
    client.send_encoded(&quipu_protocol::resp::request(request)).expect("it takes a request");
    client.receive().expect("it answers")
}

/// A field of a reply that is a map.
pub fn field(map: &Value, key: &str) -> Value {
    let pairs = map.pairs();
    let found = pairs.iter().find(|(found, _)| found.bytes() == Some(key.as_bytes()));
    found.unwrap_or_else(|| panic!("{key} in {map:?}")).1.clone()
}

/// A program with windows in its file, and counters of every kind.
pub fn fill(data: &TempDir) -> Program {
    let file = data.path().join("quipu.toml");
    let text = "[namespace.recent]\nwindow = \"1h/60\"\n[namespace.trend]\nkind = \"top\"\ndecay = \"1h\"\n";
    std::fs::write(&file, text).expect("the file can be written");
    let mut launch = launch(&data.path().join("data"), Durability::Relaxed);
    launch.arguments = vec!["--config".into(), file.into()];
    let program = launch.start().expect("it starts");
    let mut client = connect(&program);
    let now = field_of_time(&mut client);
    let twenty_minutes_ago = (now - 1_200_000).to_string();
    let items: Vec<String> = (0..5_000).map(|item| format!("item-{item}")).collect();
    for command in [["PFADD", "hll"], ["QUIPU.OBSERVE", "unique"], ["QUIPU.OBSERVE", "recent:u"]] {
        for some in items.chunks(500) {
            let mut request: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
            request.extend(some.iter().map(|item| item.as_bytes()));
            assert_eq!(call(&mut client, &request).error(), None);
        }
    }
    let expires_at = EXPIRES_AT.to_string();
    let requests: [&[&[u8]]; 13] = [
        &[b"SET", b"max", b"9223372036854775807"],
        &[b"SET", b"\xff", b"7"],
        &[b"CMS.INITBYDIM", b"cms", b"100", b"5"],
        &[b"CMS.INCRBY", b"cms", b"a", b"3", b"b", b"4"],
        &[b"QUIPU.FREQ.ADD", b"freq", b"a", b"30", b"b", b"4"],
        &[b"TOPK.RESERVE", b"topk", b"3"],
        &[b"TOPK.INCRBY", b"topk", b"ann", b"5", b"bob", b"2"],
        &[b"QUIPU.TOP.ADD", b"top", b"ann", b"10", b"bob", b"4"],
        &[b"QUIPU.OBSERVE.AT", b"recent:u", twenty_minutes_ago.as_bytes(), b"item-1", b"earlier"],
        &[b"QUIPU.FREQ.ADD", b"recent:f", b"a", b"5"],
        &[b"PFADD", b"recent:h", b"x", b"y"],
        &[b"QUIPU.TOP.ADD", b"trend:t", b"new", b"300"],
        &[b"PEXPIREAT", b"hll", expires_at.as_bytes()],
    ];
    for request in requests {
        assert_eq!(call(&mut client, request).error(), None, "{request:?}");
    }
    program
}

fn field_of_time(client: &mut Client) -> i64 {
    let time = call(client, &[b"TIME"]);
    time.elements()[0].number().expect("seconds") * 1_000
}

/// What a body says without its server: different items, or how much came in all.
pub fn decoded(form: &str, body: &[u8]) -> i64 {
    let dump = Dump::decode(Kind::from_word(form).expect("a known form"), body).expect("a sound body");
    let is_ring = matches!(dump.sketch, Sketch::Ring(_));
    let sketches: Vec<Sketch> =
        if is_ring { dump.panes.into_iter().map(|(_, pane)| pane).collect() } else { vec![dump.sketch] };
    let uniques: Vec<&Unique> =
        sketches.iter().filter_map(|it| if let Sketch::Unique(it) = it { Some(it) } else { None }).collect();
    if uniques.len() > 1 {
        return Unique::union(&uniques).estimate.round() as i64;
    }
    let told = sketches.iter().map(|sketch| match sketch {
        Sketch::Hll(hll) => hll.estimate().round() as i64,
        Sketch::Unique(unique) => unique.estimate().round() as i64,
        Sketch::Cms(counts) | Sketch::Frequency(counts) => counts.n() as i64,
        Sketch::TopK(list) | Sketch::Top(list) => list.n() as i64,
        other => panic!("a plain sketch, not {other:?}"),
    });
    told.sum()
}

#[test]
fn a_dump_has_the_bytes_of_every_kind_and_they_outlive_a_kill() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let program = fill(&data);
    let mut client = connect(&program);
    assert_eq!(call(&mut client, &[b"QUIPU.DUMP", b"absent"]), Value::Null);
    let count = call(&mut client, &[b"QUIPU.DUMP", b"max"]);
    let fields = ["kind", "form", "key", "body", "value", "expires_at"].map(|key| field(&count, key));
    let kind = Value::Bulk(b"count".to_vec());
    assert_eq!(fields, [kind, Value::Null, Value::Null, Value::Null, Value::Integer(i64::MAX), Value::Null]);
    let mut before = Vec::new();
    for (name, kind, form) in SKETCHES {
        let dump = call(&mut client, &[b"QUIPU.DUMP", name.as_bytes()]);
        let said = ["kind", "form", "value"].map(|key| field(&dump, key));
        let expected = [Value::Bulk(kind.into()), Value::Bulk(form.into()), Value::Null];
        assert_eq!(said, expected, "{name}");
        let expires_at = if name == "hll" { Value::Integer(EXPIRES_AT) } else { Value::Null };
        assert_eq!(field(&dump, "expires_at"), expires_at);
        let is_public = field(&dump, "key") == Value::Bulk(b"0000000000000000".to_vec());
        assert_eq!(is_public, name.ends_with('h') || name == "hll", "Redis's hash of uniques is no secret: {name}");
        let reading = call(&mut client, &[b"QUIPU.READ", name.as_bytes()]);
        let body = field(&dump, "body").bytes().expect("bytes").to_vec();
        assert_eq!(Some(decoded(form, &body)), field(&reading, "value").number(), "{name}");
        before.push(body);
    }
    let trend = call(&mut client, &[b"QUIPU.DUMP", b"trend:t"]);
    let dump = Dump::decode(Kind::Ring, field(&trend, "body").bytes().expect("bytes")).expect("a sound body");
    let [(0, Sketch::Top(list))] = &dump.panes[..] else { panic!("a decay has one pane: {dump:?}") };
    assert_eq!(list.list()[0].item, b"new");
    let refused = call(&mut client, &[b"QUIPU.DUMP"]);
    assert_eq!(refused.error(), Some("ERR wrong number of arguments for 'quipu.dump' command"));

    drop(program.kill9());
    let mut launch = launch(&data.path().join("data"), Durability::Relaxed);
    launch.arguments = vec!["--config".into(), data.path().join("quipu.toml").into()];
    let program = launch.start().expect("it starts again");
    let mut client = connect(&program);
    for ((name, ..), body) in SKETCHES.iter().zip(before) {
        let dump = call(&mut client, &[b"QUIPU.DUMP", name.as_bytes()]);
        assert!(field(&dump, "body") == Value::Bulk(body), "{name}: the same bytes after a kill");
    }
    drop(program.kill9());
}

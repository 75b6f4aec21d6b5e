use proptest::prelude::*;
use quipu_model::{Command, ExpiryCondition, ExpiryTime, Identity, Name, Set, SetCondition, SetExpiry};

use super::*;
use crate::command::{CommandError, ConnectionCommand, CounterRequest, OnceRequest, Request, lookup};
use crate::resp::{Decoder, Limits, ReplyShape, RespVersion, RespWriter, request};

/// Result of parsing a line, as text: the error text, or "ok".
fn verdict(line: &str) -> String {
    let line = format!("{line}\n");
    let mut decoder = Decoder::default();
    let frame = decoder.decode(line.as_bytes(), &Limits::default()).unwrap().unwrap();
    match lookup(&frame.args).and_then(|spec| spec.parse(&frame.args).map(|_| ())) {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn parsed<T>(line: &str, inspect: impl FnOnce(Request<'_>) -> T) -> T {
    let line = format!("{line}\n");
    let mut decoder = Decoder::default();
    let frame = decoder.decode(line.as_bytes(), &Limits::default()).unwrap().unwrap();
    inspect(lookup(&frame.args).and_then(|spec| spec.parse(&frame.args)).unwrap())
}

#[test]
fn the_table_is_sorted_and_complete() {
    assert!(TABLE.is_sorted_by(|a, b| a.name < b.name), "lookup halves");
    for spec in TABLE {
        assert!(!spec.summary.is_empty() && !spec.since.is_empty(), "{}", spec.name);
        assert_eq!(Spec::by_name(spec.name.to_ascii_uppercase().as_bytes()), Some(spec));
        for part in spec.parts {
            assert_eq!(Spec::by_name(part.name.as_bytes()), Some(part));
        }
    }
}

/// All operations and their subcommands.
fn all() -> impl Iterator<Item = &'static Spec> {
    TABLE.iter().flat_map(|spec| std::iter::once(spec).chain(spec.parts))
}

#[test]
fn the_arguments_of_a_command_agree_with_its_arity() {
    for spec in all().filter(|spec| spec.parts.is_empty()) {
        let words = spec.name.split('|').count();
        let least = words + spec.arguments.iter().map(Argument::words_min).sum::<usize>();
        assert_eq!(least, usize::from(spec.arity.unsigned_abs()), "{}", spec.syntax());
        let is_fixed = spec.arguments.iter().all(Argument::is_fixed);
        assert!(spec.arity < 0 || is_fixed, "{}", spec.syntax());
    }
}

#[test]
fn every_command_says_what_it_replies_and_how_long_it_takes() {
    for spec in all() {
        assert!(!spec.reply.is_empty() && !spec.complexity.is_empty(), "{}", spec.name);
        assert_eq!(spec.keys != Keys::NONE, spec.arguments.iter().any(names_counters), "{}", spec.name);
    }
}

fn names_counters(argument: &Argument) -> bool {
    argument.kind == crate::command::ArgumentKind::Key || argument.kind.group().iter().any(names_counters)
}

#[test]
fn the_example_of_a_command_is_one() {
    for spec in all().filter(|spec| !spec.example.is_empty()) {
        assert_eq!(verdict(spec.example), "ok", "{}", spec.example);
        let name = spec.name.replace('|', " ").to_ascii_uppercase();
        assert!(spec.example.starts_with(&name), "{}", spec.example);
    }
}

#[test]
fn syntax_is_written_as_in_redis() {
    for (name, syntax) in [
        ("get", "GET key"),
        ("del", "DEL key [key ...] [IDMP producer token | SEQ producer number]"),
        ("mset", "MSET key value [key value ...] [IDMP producer token | SEQ producer number]"),
        ("incrby", "INCRBY key increment [SHARDKEY shard-key] [IDMP producer token | SEQ producer number]"),
        (
            "getex",
            "GETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] [IDMP producer token | SEQ producer number]",
        ),
        (
            "cms.merge",
            "CMS.MERGE destination numkeys source [source ...] [WEIGHTS weight [weight ...]] [IDMP producer token | SEQ producer number]",
        ),
        ("hello", "HELLO [protover [AUTH username password] [SETNAME clientname]]"),
        ("client|reply", "CLIENT REPLY <ON | OFF | SKIP>"),
        ("hotkeys", "HOTKEYS <GET [COUNT count] | RESET | START | STOP>"),
    ] {
        assert_eq!(Spec::by_name(name.as_bytes()).unwrap().syntax(), syntax);
    }
}

/// Every text here was compared with redis-server 7.0.15.
#[test]
fn mistakes_are_reported_in_the_words_of_redis() {
    for (line, text) in [
        ("INCR", "ERR wrong number of arguments for 'incr' command"),
        ("incr a b", "ERR wrong number of arguments for 'incr' command"),
        ("INCRBY a", "ERR wrong number of arguments for 'incrby' command"),
        ("DECR a b c", "ERR wrong number of arguments for 'decr' command"),
        ("DECRBY a 1 b", "ERR wrong number of arguments for 'decrby' command"),
        ("INCRBY a x", "ERR value is not an integer or out of range"),
        ("INCRBY a +1", "ERR value is not an integer or out of range"),
        ("INCRBY a 01", "ERR value is not an integer or out of range"),
        ("INCRBY a -0", "ERR value is not an integer or out of range"),
        ("INCRBY a \" 1\"", "ERR value is not an integer or out of range"),
        ("INCRBY a 9223372036854775808", "ERR value is not an integer or out of range"),
        ("DECRBY a -9223372036854775808", "ERR decrement would overflow"),
        ("DECRBY a x", "ERR value is not an integer or out of range"),
        ("QUIPU.THINNED a 5", "ERR wrong number of arguments for 'quipu.thinned' command"),
        ("QUIPU.THINNED a x 5", "ERR value is not an integer or out of range"),
        ("QUIPU.THINNED a -5 5", "ERR what was sampled cannot be negative"),
        ("QUIPU.THINNED a 5 0", "ERR the rate is a number from 1 to 1000000"),
        ("QUIPU.THINNED a 5 1000001", "ERR the rate is a number from 1 to 1000000"),
        ("SET a", "ERR wrong number of arguments for 'set' command"),
        ("SET a 1 EX", "ERR syntax error"),
        ("SET a 1 EX 0", "ERR invalid expire time in 'set' command"),
        ("SET a 1 EX -1", "ERR invalid expire time in 'set' command"),
        ("SET a 1 EX x", "ERR value is not an integer or out of range"),
        ("SET a 1 PX 0", "ERR invalid expire time in 'set' command"),
        ("SET a 1 EXAT 0", "ERR invalid expire time in 'set' command"),
        ("SET a 1 NX XX", "ERR syntax error"),
        ("SET a 1 EX 1 PX 1", "ERR syntax error"),
        ("SET a 1 EX 1 KEEPTTL", "ERR syntax error"),
        ("SET a 1 FOO", "ERR syntax error"),
        ("SET a 1 EX 9223372036854775807", "ERR invalid expire time in 'set' command"),
        ("SETEX a 0 1", "ERR invalid expire time in 'setex' command"),
        ("SETEX a x 1", "ERR value is not an integer or out of range"),
        ("PSETEX a 0 1", "ERR invalid expire time in 'psetex' command"),
        ("SETNX a", "ERR wrong number of arguments for 'setnx' command"),
        ("GETEX a EX 0", "ERR invalid expire time in 'getex' command"),
        ("GETEX a EX x", "ERR value is not an integer or out of range"),
        ("GETEX a FOO", "ERR syntax error"),
        ("GETEX a PERSIST EX 1", "ERR syntax error"),
        ("GETEX a EX 1 PX 1", "ERR syntax error"),
        ("EXPIRE a", "ERR wrong number of arguments for 'expire' command"),
        ("EXPIRE a x", "ERR value is not an integer or out of range"),
        ("EXPIRE a 1 FOO", "ERR Unsupported option FOO"),
        ("EXPIRE a 1 NX XX", "ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE a 1 NX GT", "ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE a 1 GT LT", "ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE a 9223372036854775807", "ERR invalid expire time in 'expire' command"),
        ("EXPIRE a -9223372036854775808", "ERR invalid expire time in 'expire' command"),
        ("EXPIREAT a 9223372036854775807", "ERR invalid expire time in 'expireat' command"),
        ("SCAN", "ERR wrong number of arguments for 'scan' command"),
        ("SCAN x", "ERR invalid cursor"),
        ("SCAN 18446744073709551616", "ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "ERR syntax error"),
        ("SCAN 0 COUNT x", "ERR value is not an integer or out of range"),
        ("SCAN 0 FOO", "ERR syntax error"),
        ("SCAN 0 MATCH", "ERR syntax error"),
        ("FLUSHALL FOO", "ERR syntax error"),
        ("FLUSHALL ASYNC SYNC", "ERR syntax error"),
        ("MSET a", "ERR wrong number of arguments for 'mset' command"),
        ("MSET a 1 b", "ERR wrong number of arguments for 'mset' command"),
        ("DBSIZE x", "ERR wrong number of arguments for 'dbsize' command"),
        ("SELECT x", "ERR value is not an integer or out of range"),
        ("MULTI x", "ERR wrong number of arguments for 'multi' command"),
        ("AUTH", "ERR wrong number of arguments for 'auth' command"),
        ("AUTH a b c", "ERR syntax error"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO x", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 2 AUTH", "ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 2 SETNAME", "ERR Syntax error in HELLO option 'SETNAME'"),
        ("HELLO 2 FOO", "ERR Syntax error in HELLO option 'FOO'"),
        ("CLIENT", "ERR wrong number of arguments for 'client' command"),
        ("CLIENT FOO", "ERR unknown subcommand 'FOO'. Try CLIENT HELP."),
        ("CLIENT SETNAME", "ERR wrong number of arguments for 'client|setname' command"),
        ("CLIENT SETNAME \"a b\"", "ERR Client names cannot contain spaces, newlines or special characters."),
        ("CLIENT REPLY FOO", "ERR syntax error"),
        ("CLIENT REPLY", "ERR wrong number of arguments for 'client|reply' command"),
        ("CLIENT NO-EVICT x", "ERR syntax error"),
        ("CLIENT LIST TYPE foo", "ERR Unknown client type 'foo'"),
        ("CLIENT LIST FOO", "ERR syntax error"),
        ("CLIENT LIST ID x", "ERR Invalid client ID"),
        ("CLIENT ID x", "ERR wrong number of arguments for 'client|id' command"),
        ("CONFIG", "ERR wrong number of arguments for 'config' command"),
        ("CONFIG FOO", "ERR unknown subcommand 'FOO'. Try CONFIG HELP."),
        ("CONFIG GET", "ERR wrong number of arguments for 'config|get' command"),
        ("CONFIG SET maxclients", "ERR wrong number of arguments for 'config|set' command"),
        ("CONFIG SET maxclients 1 x", "ERR syntax error"),
        ("COMMAND FOO", "ERR unknown subcommand 'FOO'. Try COMMAND HELP."),
        ("COMMAND COUNT x", "ERR wrong number of arguments for 'command|count' command"),
        ("COMMAND LIST FILTERBY x", "ERR syntax error"),
        ("FUNCTION FLUSH X", "ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        ("PING a b", "ERR wrong number of arguments for 'ping' command"),
        ("RESET a", "ERR wrong number of arguments for 'reset' command"),
        ("FOO", "ERR unknown command 'FOO', with args beginning with: "),
        ("FOO a b", "ERR unknown command 'FOO', with args beginning with: 'a' 'b' "),
        ("foo \"\" c", "ERR unknown command 'foo', with args beginning with: '' 'c' "),
    ] {
        assert_eq!(verdict(line), text, "{line}");
    }
    let long = "a".repeat(140);
    let expected = format!("ERR unknown command 'FOO', with args beginning with: '{}' ", "a".repeat(128));
    assert_eq!(verdict(&format!("FOO {long} b")), expected);
}

#[test]
fn what_only_quipu_refuses_says_what_to_do_instead() {
    for (line, beginning) in [
        ("INCRBYFLOAT a 1.5", "ERR INCRBYFLOAT is not offered: counters are whole numbers"),
        ("rename a b", "ERR RENAME is not offered: "),
        ("APPEND a b", "ERR APPEND is not offered: "),
        ("INCREX a BYFLOAT 1.5", "ERR BYFLOAT is not offered: "),
        ("SET a x", "ERR value is not an integer or out of range"),
        ("INCREX a LBOUND 5 UBOUND 4", "ERR LBOUND can't be greater than UBOUND"),
        ("INCREX a ENX", "ERR syntax error"),
        ("INCREX a BYINT 1 BYINT 1", "ERR syntax error"),
        ("INCREX a EX 0", "ERR invalid expire time in 'increx' command"),
        ("INCR a SHARDKEY", "ERR wrong number of arguments for 'incr' command"),
        ("INCR a SHARDKEY b c", "ERR wrong number of arguments for 'incr' command"),
        ("INCRBY a SHARDKEY b", "ERR wrong number of arguments for 'incrby' command"),
        ("INCRBY a 1 SHARDKEY b SHARDKEY c", "ERR wrong number of arguments for 'incrby' command"),
        ("GET a SHARDKEY b", "ERR wrong number of arguments for 'get' command"),
        ("CLIENT SETINFO foo x", "ERR Unrecognized option 'foo'"),
        ("CLIENT SETINFO lib-name \"a b\"", "ERR lib-name cannot contain spaces, newlines or special characters."),
    ] {
        assert!(verdict(line).starts_with(beginning), "{line}: {}", verdict(line));
    }
    assert_eq!(verdict(&format!("INCR {}", "a".repeat(512))), "ok");
    let long = verdict(&format!("INCR {}", "a".repeat(513)));
    assert_eq!(long, "ERR name is too long: 513 bytes, at most 512 are allowed");
    for command in ["KEYS", "SCAN 0 MATCH", "SCAN 0 COUNT 7 MATCH", "CONFIG GET a", "COMMAND LIST FILTERBY PATTERN"] {
        assert_eq!(verdict(&format!("{command} {}", "a".repeat(256))), "ok");
        let long = verdict(&format!("{command} *[{}]", "a".repeat(254)));
        assert_eq!(long, "ERR pattern is too long: 257 bytes, at most 256 are allowed", "{command}");
    }
    for command in ["CONFIG GET", "COMMAND DOCS", "COMMAND INFO"] {
        assert_eq!(verdict(&format!("{command}{}", " get".repeat(256))), "ok");
        let many = verdict(&format!("{command}{}", " get".repeat(257)));
        assert_eq!(many, "ERR too many names: 257, at most 256 are allowed", "{command}");
    }
}

#[test]
fn options_reach_the_model() {
    let a = Name::new(b"a").unwrap();
    let counter = |command| Request::Counter(CounterRequest { command, shape: ReplyShape::Plain });
    parsed("set a 5 nx px 70 get", |request| {
        let set = Set {
            name: a,
            value: 5,
            condition: SetCondition::IfAbsent,
            expiry: SetExpiry::At(ExpiryTime::In(70)),
            reply_old: true,
        };
        assert_eq!(request, counter(Command::Set(set)));
    });
    parsed("EXPIREAT a 12 LT XX", |request| {
        let expire =
            Command::Expire { name: a, when: ExpiryTime::At(12_000), condition: ExpiryCondition::IfSomeEarlier };
        assert_eq!(request, counter(expire));
    });
    parsed("EXPIREAT a 12 XX GT", |request| {
        let expire = Command::Expire { name: a, when: ExpiryTime::At(12_000), condition: ExpiryCondition::IfLater };
        assert_eq!(request, counter(expire));
    });
    parsed("DECRBY a 9223372036854775807", |request| {
        assert_eq!(request, counter(Command::Add { name: a, delta: -i64::MAX, shard_key: None }));
    });
    parsed("QUIPU.THINNED a 700 100", |request| {
        assert_eq!(request, counter(Command::AddSampled { name: a, amount: 700, p: 100 }));
    });
    parsed("INCRBY SHARDKEY 1", |request| {
        let name = Name::new(b"SHARDKEY").unwrap();
        assert_eq!(request, counter(Command::Add { name, delta: 1, shard_key: None }), "a counter may have that name");
    });
    for (line, delta) in [
        ("INCR a shardkey u:1", 1),
        ("DECR a SHARDKEY u:1", -1),
        ("INCRBY a 7 SHARDKEY u:1", 7),
        ("DECRBY a 7 ShardKey u:1", -7),
    ] {
        parsed(line, |request| {
            assert_eq!(request, counter(Command::Add { name: a, delta, shard_key: Some(b"u:1") }), "{line}");
        });
    }
    parsed("SCAN 0 COUNT 1000000 TYPE hash", |request| match request {
        Request::Counter(CounterRequest { command: Command::Scan(scan), shape: ReplyShape::NoNames }) => {
            assert_eq!(scan.count, 2_000, "a page has a bound");
        }
        other => panic!("{other:?}"),
    });
    parsed("MSET a 1 b 2 c 3 d 4 e 5", |request| match request {
        Request::SetMany(sets) => assert_eq!(sets.len(), 5),
        other => panic!("{other:?}"),
    });
    parsed("CLIENT HELP", |request| match request {
        Request::Connection(ConnectionCommand::Help(spec)) => assert_eq!(spec.name, "client"),
        other => panic!("{other:?}"),
    });
}

#[test]
fn any_mutation_may_have_a_name_at_its_end() {
    let a = Name::new(b"a").unwrap();
    let token = Identity::token(b"p", b"i").unwrap();
    let named = |line: &str, expected: Identity<'_>, count: usize| {
        parsed(line, |request| match request {
            Request::Once(OnceRequest { identity, commands, .. }) => {
                assert_eq!((identity, commands.len()), (expected, count), "{line}");
            }
            other => panic!("{line}: {other:?}"),
        });
    };
    for line in [
        "INCR a IDMP p i",
        "incrby a 5 idmp p i",
        "INCR a SHARDKEY u:1 IDMP p i",
        "SET a 5 EX 10 NX IDMP p i",
        "SETNX a 1 IDMP p i",
        "GETSET a 1 IDMP p i",
        "GETDEL a IDMP p i",
        "GETEX a PERSIST IDMP p i",
        "INCREX a BYINT 5 UBOUND 9 SATURATE EX 10 ENX IDMP p i",
        "EXPIRE a 10 NX IDMP p i",
        "PERSIST a IDMP p i",
        "QUIPU.RESET a IDMP p i",
        "QUIPU.THINNED a 700 100 IDMP p i",
        "DEL a b c IDMP p i",
        "UNLINK a IDMP p i",
        "FLUSHALL IDMP p i",
        "FLUSHALL ASYNC IDMP p i",
    ] {
        named(line, token, 1);
    }
    named("MSET a 1 b 2 IDMP p i", token, 2);
    named("INCR a SEQ p 18446744073709551615", Identity::sequence(b"p", u64::MAX).unwrap(), 1);
    parsed("INCR a SHARDKEY IDMP IDMP p i", |request| match request {
        Request::Once(OnceRequest { commands, .. }) => {
            assert_eq!(commands, [Command::Add { name: a, delta: 1, shard_key: Some(b"IDMP") }]);
        }
        other => panic!("{other:?}"),
    });
    // SETNX replies a number, also the second time.
    parsed("SETNX a 1 SEQ p 1", |request| match request {
        Request::Once(OnceRequest { shape, .. }) => assert_eq!(shape, ReplyShape::DoneAsInteger),
        other => panic!("{other:?}"),
    });
}

#[test]
fn names_of_mutations_differ_from_names_of_counters() {
    for line in [
        "DEL IDMP p i",
        "DEL a idmp p i",
        "DEL a seq b c d",
        "MGET a IDMP p i",
        "EXISTS a SEQ p 1",
        "SET IDMP 5 NX",
        "INCR SEQ",
        "INCRBY IDMP 1",
    ] {
        parsed(line, |request| assert!(!matches!(request, Request::Once(_)), "{line}: {request:?}"));
    }
    for (line, text) in [
        ("INCR a IDMP p", "ERR wrong number of arguments for 'incr' command"),
        ("INCR IDMP p i", "ERR wrong number of arguments for 'incr' command"),
        ("INCR a IDMP p i j", "ERR wrong number of arguments for 'incr' command"),
        ("INCR a IDMP p i SEQ p 1", "ERR wrong number of arguments for 'incr' command"),
        ("GET a IDMP p i", "ERR wrong number of arguments for 'get' command"),
        ("MSET a 1 b IDMP p i", "ERR wrong number of arguments for 'mset' command"),
        ("INCR a IDMP p \"\"", "ERR a token must not be empty"),
        ("INCR a SEQ p x", "ERR value is not an integer or out of range"),
        ("INCR a SEQ p -1", "ERR value is not an integer or out of range"),
        ("INCR a SEQ p 18446744073709551616", "ERR value is not an integer or out of range"),
        ("INCR a SEQ p 0", "ERR sequence numbers begin with 1"),
        ("INCRBY a x IDMP p i", "ERR value is not an integer or out of range"),
    ] {
        assert_eq!(verdict(line), text, "{line}");
    }
    let long = verdict(&format!("INCR a IDMP p {}", "i".repeat(127)));
    assert_eq!(long, "ERR producer and item are too long: 128 bytes, at most 127 are allowed");
}

#[test]
fn commands_describe_themselves() {
    let mut out = Vec::new();
    parsed("COMMAND INFO get nosuch", |request| match request {
        Request::Connection(ConnectionCommand::Introspection(question)) => {
            crate::command::describe(&question, &mut RespWriter::new(&mut out, RespVersion::Resp2));
        }
        other => panic!("{other:?}"),
    });
    let expected = "*2\r\n*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@read\r\n+@string\r\n+@fast\r\n*0\r\n*0\r\n*0\r\n$-1\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

proptest! {
    #[test]
    fn no_arguments_make_the_parser_panic(
        name in (0..TABLE.len()).prop_map(|at| &TABLE[at]),
        part: Option<prop::sample::Index>,
        rest in proptest::collection::vec(word(), 0..14),
    ) {
        let part = part.filter(|_| !name.parts.is_empty()).map(|part| part.get(name.parts).part_name());
        let mut args: Vec<&[u8]> = vec![name.name.as_bytes()];
        args.extend(part.map(str::as_bytes));
        args.extend(rest.iter().map(Vec::as_slice));
        let bytes = request(&args);
        let mut decoder = Decoder::default();
        let frame = decoder.decode(&bytes, &Limits::default()).unwrap().unwrap();
        let outcome = lookup(&frame.args).and_then(|spec| spec.parse(&frame.args).map(|_| ()));
        if let Err(error) = outcome {
            let unknown = matches!(error, CommandError::Unknown { .. });
            prop_assert!(!unknown);
            let mut out = Vec::new();
            RespWriter::new(&mut out, RespVersion::Resp2).error(&error.to_string());
            prop_assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 1);
        }
    }

    #[test]
    fn no_frame_makes_the_lookup_panic(args in proptest::collection::vec(any::<Vec<u8>>(), 1..6)) {
        let bytes = request(&args.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut decoder = Decoder::default();
        let frame = decoder.decode(&bytes, &Limits::default()).unwrap().unwrap();
        let _ = lookup(&frame.args).and_then(|spec| spec.parse(&frame.args).map(|_| ()));
    }
}

/// Words of options, numbers at the edges, and noise.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "EX",
        "PX",
        "EXAT",
        "PXAT",
        "NX",
        "XX",
        "GT",
        "LT",
        "GET",
        "KEEPTTL",
        "PERSIST",
        "SHARDKEY",
        "IDMP",
        "SEQ",
        "BYINT",
        "LBOUND",
        "UBOUND",
        "SATURATE",
        "ENX",
        "MATCH",
        "COUNT",
        "TYPE",
        "AUTH",
        "SETNAME",
        "ID",
        "ON",
        "OFF",
        "FILTERBY",
        "PATTERN",
        "0",
        "1",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "2",
        "3",
    ];
    prop_oneof![
        4 => prop::sample::select(known.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..8),
        1 => Just(vec![b'a'; 513]),
    ]
}

/// Every text here was compared with redis-server 7.0.15 and RedisBloom.
#[test]
fn mistakes_with_sketches_are_reported_in_the_words_of_redis_and_its_modules() {
    for (line, text) in [
        ("PFADD", "ERR wrong number of arguments for 'pfadd' command"),
        ("CMS.INITBYDIM d 0 2", "CMS: invalid width"),
        ("CMS.INITBYDIM d x 2", "CMS: invalid width"),
        ("CMS.INITBYDIM d 10 0", "CMS: invalid depth"),
        ("CMS.INITBYDIM d 10", "ERR wrong number of arguments for 'cms.initbydim' command"),
        ("CMS.INITBYPROB p 0 0.01", "CMS: invalid overestimation value"),
        ("CMS.INITBYPROB p 1 0.01", "CMS: invalid overestimation value"),
        ("CMS.INITBYPROB p nan 0.01", "CMS: invalid overestimation value"),
        ("CMS.INITBYPROB p inf 0.01", "CMS: invalid overestimation value"),
        ("CMS.INITBYPROB p 0.01 0", "CMS: invalid prob value"),
        ("CMS.INITBYPROB p 0.01 1.5", "CMS: invalid prob value"),
        ("CMS.INCRBY c a -2", "CMS: Number cannot be negative"),
        ("CMS.INCRBY c a x", "CMS: Cannot parse number"),
        ("CMS.INCRBY c a", "ERR wrong number of arguments for 'cms.incrby' command"),
        ("CMS.INCRBY c a 1 b", "ERR wrong number of arguments for 'cms.incrby' command"),
        ("CMS.MERGE c 2 c c WEIGHTS 1", "CMS: wrong number of keys/weights"),
        ("CMS.MERGE c 2 c", "CMS: wrong number of keys"),
        ("CMS.MERGE c 9223372036854775807 c", "CMS: wrong number of keys"),
        ("CMS.MERGE c -1 c", "CMS: Number of keys must be positive"),
        ("CMS.MERGE c x c", "CMS: invalid numkeys"),
        ("CMS.MERGE c 1 c WEIGHTS x", "CMS: invalid weight value"),
        ("CMS.MERGE c 1 c FOO 1", "CMS: wrong number of keys"),
        ("TOPK.RESERVE t 0", "TopK: invalid k"),
        ("TOPK.RESERVE t x", "TopK: invalid k"),
        ("TOPK.RESERVE t 3 8", "ERR wrong number of arguments for 'topk.reserve' command"),
        ("TOPK.RESERVE t 3 0 7 0.9", "TopK: invalid width"),
        ("TOPK.RESERVE t 3 8 0 0.9", "TopK: invalid depth"),
        ("TOPK.RESERVE t 3 8 7 0", "TopK: invalid decay value. must be '<= 1' & '> 0'"),
        ("TOPK.RESERVE t 3 8 7 1.1", "TopK: invalid decay value. must be '<= 1' & '> 0'"),
        ("TOPK.RESERVE t 3 8 7 1", "ok"),
        ("TOPK.ADD t", "ERR wrong number of arguments for 'topk.add' command"),
        ("TOPK.LIST t FOO", "WITHCOUNT keyword expected"),
        ("TOPK.LIST t withcount", "ok"),
        ("QUIPU.FREQ.MAKE f 0 0.1", "ERR error and probability are numbers between 0 and 1, e.g. 0.001 0.01"),
        ("QUIPU.FREQ.ADD f a -1", "ERR value is not an integer or out of range"),
        ("QUIPU.TOP.MAKE t 10001", "ERR a list has 1 to 10000 items"),
        ("SET h HYLLx NX XX", "ERR syntax error"),
        ("SET h HYLx", "ERR value is not an integer or out of range"),
    ] {
        assert_eq!(verdict(line), text, "{line}");
    }
}

#[test]
fn a_string_of_redis_is_set_as_one_and_a_merge_has_a_weight_each() {
    use quipu_model::SketchCommand;
    let is_string = |request: Request<'_>| {
        let Request::Counter(CounterRequest { command: Command::Sketch(SketchCommand::SetString(set)), .. }) = request
        else {
            return None;
        };
        Some((set.bytes.to_vec(), set.condition))
    };
    assert_eq!(parsed("SET h HYLLabc NX", is_string), Some((b"HYLLabc".to_vec(), SetCondition::IfAbsent)));
    assert_eq!(parsed("SET h 5", is_string), None);
    let weights = |request: Request<'_>| match request {
        Request::Counter(CounterRequest {
            command: Command::Sketch(SketchCommand::MergeFrequency { names, weights, .. }),
            ..
        }) => (names.len(), weights),
        other => panic!("{other:?}"),
    };
    assert_eq!(parsed("CMS.MERGE d 2 a b", weights), (3, vec![1, 1]));
    assert_eq!(parsed("CMS.MERGE d 2 a b WEIGHTS 2 -1", weights), (3, vec![2, -1]));
}

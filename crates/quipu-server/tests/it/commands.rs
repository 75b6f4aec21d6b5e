//! Commands of ordinary clients.

use quipu_protocol::resp::request;

use crate::test_server::TestServer;

#[test]
fn counters_count() {
    let server = TestServer::open();
    server
        .client()
        .ask("INCR likes:42", ":1\r\n")
        .ask("INCRBY likes:42 41", ":42\r\n")
        .ask("DECR likes:42", ":41\r\n")
        .ask("GET likes:42", "$2\r\n41\r\n")
        .ask("GET nobody", "$-1\r\n")
        .ask("MGET likes:42 nobody", "*2\r\n$2\r\n41\r\n$-1\r\n")
        .ask("SETNX likes:42 1", ":0\r\n")
        .ask("SETNX other 1", ":1\r\n")
        .ask("GETSET other 5", "$1\r\n1\r\n")
        .ask("MSET a 1 b 2", "+OK\r\n")
        .ask("EXISTS a b c a", ":3\r\n")
        .ask("TYPE a\nTYPE c", "+string\r\n+none\r\n")
        .ask("DBSIZE", ":4\r\n")
        .ask("INCREX a BYINT 5 UBOUND 3", "*2\r\n:1\r\n:0\r\n")
        .ask("INCREX a BYINT 5 UBOUND 3 SATURATE", "*2\r\n:3\r\n:2\r\n")
        .ask("SET far 5000000000000000000", "+OK\r\n")
        .ask(
            "INCREX far BYINT -1 UBOUND -5000000000000000000 SATURATE",
            "-ERR increment or decrement would overflow\r\n",
        )
        .ask("GET far", "$19\r\n5000000000000000000\r\n")
        .ask("QUIPU.RESET a", ":3\r\n")
        .ask("GET a", "$1\r\n0\r\n")
        .ask("GETDEL b", "$1\r\n2\r\n")
        .ask("DEL a b", ":1\r\n")
        .ask("SET a 9223372036854775807", "+OK\r\n")
        .ask("INCR a", "-ERR increment or decrement would overflow\r\n")
        .ask("GET a", "$19\r\n9223372036854775807\r\n")
        .ask("FLUSHALL", "+OK\r\n")
        .ask("DBSIZE", ":0\r\n");
}

#[test]
fn expiry_is_set_read_and_removed() {
    let server = TestServer::open();
    server
        .client()
        .ask("SET a 1 EX 100", "+OK\r\n")
        .ask("TTL a", ":100\r\n")
        .ask("EXPIRE a 200 LT", ":0\r\n")
        .ask("EXPIRE a 50 LT", ":1\r\n")
        .ask("PERSIST a\nTTL a", ":1\r\n:-1\r\n")
        .ask("PEXPIREAT a 9999999999999\nPEXPIRETIME a", ":1\r\n:9999999999999\r\n")
        .ask("EXPIRE a -1\nGET a\nTTL a", ":1\r\n$-1\r\n:-2\r\n")
        .ask(
            "EXPIRE a 9223372036854775\nSET a 1 PX 9223372036854775807",
            "-ERR invalid expire time in 'expire' command\r\n-ERR invalid expire time in 'set' command\r\n",
        );
}

#[test]
fn names_are_walked_to_the_end() {
    let server = TestServer::open();
    let mut client = server.client();
    for name in 0..300 {
        client.ask(&format!("INCR n:{name}"), ":1\r\n");
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        client.send(format!("SCAN {cursor} MATCH n:* COUNT 50\r\n")).expect("*2\r\n");
        cursor = client.bulk();
        let names: usize = client.line()[1..].parse().unwrap();
        seen.extend((0..names).map(|_| client.bulk()));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 300);
    client.send("SCAN 0 TYPE hash COUNT 1000\r\n").expect("*2\r\n");
    let _ = client.bulk();
    client.expect("*0\r\n").ask("KEYS n:29?", "*10\r\n");
}

#[test]
fn hello_switches_the_dialect_within_a_pipeline() {
    let server = TestServer::open();
    let mut client = server.client();
    client.send("GET a\r\nHELLO 3 SETNAME me\r\nGET a\r\nCLIENT GETNAME\r\nHELLO 2\r\nGET a\r\n");
    client.expect(
        "$-1\r\n%7\r\n$6\r\nserver\r\n$5\r\nquipu\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n",
    );
    client.expect(":1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n");
    client.expect("_\r\n$2\r\nme\r\n*14\r\n");
    for _ in 0..14 {
        let line = client.line();
        if line.starts_with('$') {
            client.line();
        }
    }
    client.expect("$-1\r\n").ask("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
    client.ask("HELLO 3\nRESET\nGET a\nCLIENT GETNAME", "%7\r\n");
    while client.line() != "+RESET" {}
    client.expect("$-1\r\n$-1\r\n");
}

#[test]
fn a_pipeline_is_answered_in_order_and_other_connections_see_it() {
    let server = TestServer::open();
    let pipeline: Vec<u8> = (0..10_000).flat_map(|_| request(&[b"INCR", b"n"])).collect();
    let expected: String = (1..=10_000).map(|value| format!(":{value}\r\n")).collect();
    let mut client = server.client();
    let mut writer = client.0.try_clone().unwrap();
    let sender = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &pipeline).unwrap());
    client.expect(expected);
    sender.join().unwrap();
    server.client().ask("GET n", "$5\r\n10000\r\n");
}

#[test]
fn commands_that_look_alike_are_told_apart() {
    let server = TestServer::open();
    // Alike in length and end, and some the same: by name, by operation, by amount.
    let commands: [&[&[u8]]; 8] = [
        &[b"INCR", b"a:00000001"],
        &[b"INCR", b"a:00000001"],
        &[b"INCR", b"a:00000001"],
        &[b"INCR", b"b:00000001"],
        &[b"DECR", b"b:00000001"],
        &[b"INCRBY", b"a:00000001", b"5"],
        &[b"INCRBY", b"a:00000001", b"6"],
        &[b"INCRBY", b"a:00000001", b"6"],
    ];
    let pipeline: Vec<u8> = (0..3).flat_map(|_| commands.iter().flat_map(|args| request(args))).collect();
    let mut client = server.client();
    std::io::Write::write_all(&mut client.0, &pipeline).unwrap();
    let mut expected = String::new();
    for round in 0..3 {
        let a = 20 * round;
        for value in [a + 1, a + 2, a + 3, 1, 0, a + 8, a + 14, a + 20] {
            expected += &format!(":{value}\r\n");
        }
    }
    client.expect(expected);
}

#[test]
fn several_connections_never_get_the_same_number() {
    let server = TestServer::open();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let mut client = server.client();
            std::thread::spawn(move || {
                let mut values = Vec::new();
                for _ in 0..50 {
                    client.send("INCR n\r\nINCR n\r\n");
                    values.extend([client.line(), client.line()].map(|line| line[1..].parse::<u64>().unwrap()));
                }
                values
            })
        })
        .collect();
    let mut values: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    values.sort_unstable();
    assert_eq!(values, (1..=400).collect::<Vec<u64>>());
}

#[test]
fn one_byte_per_packet_is_a_command_all_the_same() {
    let server = TestServer::open();
    let mut client = server.client();
    for byte in request(&[b"INCRBY", b"a", b"12345"]).chunks(1).chain(b"GET a\r\n".chunks(1)) {
        client.send(byte);
    }
    client.expect(":12345\r\n$5\r\n12345\r\n");
}

#[test]
fn output_beyond_its_bound_is_sent_in_parts() {
    let server = TestServer::open_with(|options| options.limits.output_bytes_max = 1_000);
    let message = "m".repeat(600);
    let pipeline: String = (0..200).map(|_| format!("ECHO {message}\r\n")).collect();
    let expected: String = (0..200).map(|_| format!("$600\r\n{message}\r\n")).collect();
    let mut client = server.client();
    client.send(pipeline).expect(expected).ask("INCR a", ":1\r\n");
    for name in 0..100 {
        client.ask(&format!("INCR name:{name}"), ":1\r\n");
    }
    client.ask("KEYS *", "-ERR the reply would exceed 250 bytes; use SCAN\r\n");
}

#[test]
fn adds_that_nobody_wants_to_hear_of_count_in_lanes_and_whoever_asks_sees_all() {
    let server = TestServer::open();
    let (mut muted, mut other) = (server.client(), server.client());
    let adds = |name: &str, count: usize| format!("INCR {name}\n").repeat(count);
    muted.ask(&format!("CLIENT REPLY OFF\n{}CLIENT REPLY ON", adds("a", 500)), "+OK\r\n");
    other.ask("GET a", "$3\r\n500\r\n").ask("INCR a", ":501\r\n");
    // From counter to counter, with what is not an add in between, and an add that is refused.
    let mixed = format!(
        "{}{}DECRBY a 100\nSET c 7\n{}INCRBY b x\n{}",
        adds("a", 200),
        adds("b", 300),
        adds("c", 3),
        adds("b", 1)
    );
    muted.ask(
        &format!("CLIENT REPLY OFF\n{mixed}CLIENT REPLY ON\nMGET a b c"),
        "+OK\r\n*3\r\n$3\r\n601\r\n$3\r\n301\r\n$2\r\n10\r\n",
    );
    let skipped = "CLIENT REPLY SKIP\nINCR a\n".repeat(200);
    muted.ask(&format!("{skipped}GET a"), "$3\r\n801\r\n");
    other.ask("GETDEL a", "$3\r\n801\r\n");
    muted.ask(&format!("{skipped}EXPIRE a 100\n{skipped}GETSET a 5\nTTL a"), ":1\r\n$3\r\n400\r\n:-1\r\n");
    // What a connection has counted stays when it goes away.
    muted.send(format!("CLIENT REPLY OFF\n{}QUIT\n", adds("a", 100)).replace('\n', "\r\n")).expect_closed_after("");
    other.ask("GET a", "$3\r\n105\r\n");
}

#[test]
fn a_counter_that_most_silent_adds_go_to_gets_lanes_though_others_come_in_between() {
    let server = TestServer::open();
    let mut muted = server.client();
    // Never the same counter twice in a row.
    let round: String = (0..50).map(|cold| format!("INCR hot\nINCR cold:{cold}\n")).collect();
    let rounds = format!("CLIENT REPLY OFF\n{}CLIENT REPLY ON", round.repeat(20));
    let (mut added, mut was_split) = (0, false);
    while added < 1_000_000 && !was_split {
        muted.ask(&rounds, "+OK\r\n");
        added += 1_000;
        was_split = server.engine.stats().counters_split == 1;
    }
    assert!(was_split, "{added} adds to one counter, every second one of all");
    let (hot, cold) = (added.to_string(), (added / 50).to_string());
    let bulk = |number: &str| format!("${}\r\n{number}\r\n", number.len());
    muted.ask("MGET hot cold:0 cold:49", format!("*3\r\n{}{}{}", bulk(&hot), bulk(&cold), bulk(&cold)));
}

#[test]
fn items_counted_in_pipelines_are_told_the_same_as_one_by_one() {
    let server = TestServer::open();
    let mut client = server.client();
    // Bytes of a list may be run many at a time; lines are always run one by one.
    let mut replies_to = |commands: &[String], encode: fn(&str) -> Vec<u8>| {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        client.send(bytes).send("PING\r\n");
        let mut replies = Vec::new();
        while replies.last().is_none_or(|line| line != "+PONG") {
            replies.push(client.line());
        }
        replies
    };
    let list = |command: &str| request(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let line = |command: &str| format!("{command}\r\n").into_bytes();
    for version in [2, 3] {
        let commands = |of: &str| -> Vec<String> {
            let make = ["DEL f{} t{} u{} n{} q{} p{}", "CMS.INITBYDIM f{} 20 3", "TOPK.RESERVE t{} 2", "SET n{} 1"];
            let count = [
                "CMS.INCRBY f{} ITEM OFTEN",
                "TOPK.ADD t{} ITEM",
                "TOPK.INCRBY t{} ITEM OFTEN",
                "QUIPU.FREQ.ADD q{} ITEM OFTEN",
                "QUIPU.TOP.ADD p{} ITEM OFTEN",
                "PFADD u{} ITEM",
                // Refused, each by itself.
                "CMS.INCRBY n{} ITEM OFTEN",
                "TOPK.INCRBY t{} ITEM 100001",
            ];
            let each = |round: usize| ((round * round % 7).to_string(), (round % 5).to_string());
            let counted = count.iter().flat_map(|command| {
                (0..200).map(each).map(|(item, by)| command.replace("ITEM", &item).replace("OFTEN", &by))
            });
            let all = [format!("HELLO {version}")].into_iter().chain(make.map(str::to_owned)).chain(counted);
            all.map(|command| command.replace("{}", of)).collect()
        };
        let (short, long) = (replies_to(&commands("s"), list), replies_to(&commands("l"), line));
        let same: Vec<String> = long.iter().map(|line| line.replace("tl", "ts")).collect();
        assert_eq!(short.len(), same.len());
        short.iter().zip(&same).enumerate().for_each(|(at, (short, long))| assert_eq!(short, long, "line {at}"));
        assert!(short.iter().filter(|line| line.starts_with('-')).count() == 400, "{short:?}");
    }
}

#[test]
fn a_client_chooses_which_replies_it_gets() {
    let server = TestServer::open();
    server
        .client()
        .ask("CLIENT REPLY SKIP\nINCR a\nINCR a", ":2\r\n")
        .ask("CLIENT REPLY OFF\nINCR a\nFOO\nCLIENT REPLY ON\nGET a", "+OK\r\n$1\r\n3\r\n")
        .ask("CLIENT REPLY OFF\nRESET\nCLIENT REPLY ON\nPING", "+RESET\r\n+OK\r\n+PONG\r\n")
        // The rest was compared with redis-server 7.0.15.
        .ask("CLIENT REPLY SKIP\nCLIENT REPLY ON\nPING", "+OK\r\n+PONG\r\n")
        .ask("CLIENT REPLY SKIP\nCLIENT REPLY SKIP\nPING\nPING 2", "$1\r\n2\r\n")
        .ask("CLIENT REPLY SKIP\nCLIENT REPLY FOO\nPING 3", "$1\r\n3\r\n")
        .ask("CLIENT REPLY SKIP\nRESET\nPING 4", "$1\r\n4\r\n")
        .ask("CLIENT REPLY OFF\nCLIENT REPLY SKIP\nPING\nPING\nCLIENT REPLY ON", "+OK\r\n");
    let mut muted = server.client();
    muted.send("CLIENT REPLY OFF\r\n*x\r\n").expect_closed_after("");
}

#[test]
fn the_server_tells_about_itself() {
    let server = TestServer::open();
    let mut client = server.client();
    client.ask(
        "INCR a\nPING hi\nECHO \"\"\nSELECT 0\nSELECT 1",
        ":1\r\n$2\r\nhi\r\n$0\r\n\r\n+OK\r\n-ERR DB index is out of range\r\n",
    );
    client.ask("FUNCTION FLUSH\nCLIENT SETINFO lib-name redis-py\nCLIENT NO-EVICT on", "+OK\r\n+OK\r\n+OK\r\n");
    let info = client.send("INFO\r\n").bulk();
    for line in [
        "# Server\r\n",
        "redis_version:7.2.0\r\n",
        "connected_clients:1\r\n",
        "# Quipu\r\n",
        "durability:durable\r\n",
        "db0:keys=1,",
    ] {
        assert!(info.contains(line), "{line} in {info}");
    }
    assert_eq!(client.send("INFO nosuch\r\n").bulk(), "");
    assert!(client.send("INFO keyspace\r\n").bulk().starts_with("# Keyspace\r\ndb0:"));
    let line = client.send("CLIENT LIST\r\n").bulk();
    assert!(line.starts_with("id=1 addr=127.0.0.1:") && line.contains("cmd=client|list"), "{line}");
    assert!(line.contains("lib-name=redis-py"), "{line}");
    assert_eq!(client.send("CLIENT LIST ID 99\r\n").bulk(), "");
    client.send("TIME\r\n").expect("*2\r\n");
    assert_eq!(client.bulk().len(), 10);
    let _ = client.bulk();
    client.send("COMMAND COUNT\r\n");
    assert_eq!(client.line(), format!(":{}", quipu_protocol::command::TABLE.len()));
    client.ask("COMMAND INFO nosuch", "*1\r\n$-1\r\n");
    // The shape of Redis 7: a map of fields, of which arguments are a list of maps.
    client.send("COMMAND DOCS expire\r\n").expect("*2\r\n$6\r\nexpire\r\n*10\r\n$7\r\nsummary\r\n");
    let fields: Vec<String> = (0..7).map(|_| client.bulk()).collect();
    let complexity = ["since", "1.0.0", "group", "generic", "complexity", "O(1)"];
    assert_eq!(fields[1..], complexity, "behind the summary");
    client.expect("$9\r\narguments\r\n*4\r\n");
    client.expect("*6\r\n$4\r\nname\r\n$3\r\nkey\r\n$4\r\ntype\r\n$3\r\nkey\r\n$12\r\ndisplay_text\r\n$3\r\nkey\r\n");
    client.expect(
        "*6\r\n$4\r\nname\r\n$7\r\nseconds\r\n$4\r\ntype\r\n$7\r\ninteger\r\n$12\r\ndisplay_text\r\n$7\r\nseconds\r\n",
    );
    client.expect("*8\r\n$4\r\nname\r\n$9\r\ncondition\r\n$4\r\ntype\r\n$5\r\noneof\r\n$5\r\nflags\r\n*1\r\n+optional\r\n$9\r\narguments\r\n*4\r\n");
    client.expect("*8\r\n$4\r\nname\r\n$2\r\nNX\r\n$4\r\ntype\r\n$10\r\npure-token\r\n$12\r\ndisplay_text\r\n$2\r\nNX\r\n$5\r\ntoken\r\n$2\r\nNX\r\n");
    let mut client = server.client();
    client.send("QUIT\r\nINCR a\r\n").expect_closed_after("+OK\r\n");
    server.client().ask("GET a", "$1\r\n1\r\n");
}

#[test]
fn settings_are_read_and_changed_as_in_redis() {
    let server = TestServer::open();
    let failed =
        |name: &str, why: &str| format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}\r\n");
    server
        .client()
        .ask("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n")
        .ask(
            "CONFIG GET appendonly databases",
            "*4\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n$9\r\ndatabases\r\n$1\r\n1\r\n",
        )
        .ask("CONFIG GET nosuch", "*0\r\n")
        .ask("CONFIG SET timeout 77\nCONFIG GET TIMEOUT", "+OK\r\n*2\r\n$7\r\ntimeout\r\n$2\r\n77\r\n")
        .ask("CONFIG SET timeout 5 foo 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'foo'\r\n")
        .ask("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$2\r\n77\r\n")
        .ask("CONFIG SET databases 3", failed("databases", "can't set immutable config"))
        .ask("CONFIG SET maxclients x", failed("maxclients", "argument couldn't be parsed into an integer"))
        .ask("CONFIG SET maxclients 0", failed("maxclients", "argument must be between 1 and 4294967295 inclusive"))
        .ask("CONFIG SET timeout -1", failed("timeout", "argument must be between 0 and 2147483647 inclusive"))
        .ask("CONFIG SET maxclients 5 maxclients 6", failed("maxclients", "duplicate parameter"));
}

#[test]
fn no_more_clients_can_be_allowed_than_there_are_files_for() {
    let server = TestServer::open();
    let mut client = server.client();
    client.send("CONFIG SET timeout 77 maxclients 4294967295\r\n");
    let (refusal, most) =
        client.line().rsplit_once(' ').map(|(text, most)| (text.to_owned(), most.to_owned())).unwrap();
    let expected = "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to \
                    handle the specified number of clients, try with";
    assert_eq!(refusal, expected);
    client.ask("CONFIG GET timeout", "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
    let beyond = most.parse::<u64>().unwrap() + 1;
    client.ask(&format!("CONFIG SET maxclients {beyond}"), format!("{expected} {most}\r\n"));
    client.ask(&format!("CONFIG SET maxclients {most}"), "+OK\r\n");
}

#[test]
fn a_long_search_is_refused_by_the_length_of_its_pattern() {
    let server = TestServer::open();
    let (fits, over) = ("?".repeat(256), format!("*[{}]", "a".repeat(1_000)));
    let refused = "-ERR pattern is too long: 1003 bytes, at most 256 are allowed\r\n";
    server
        .client()
        .ask(&format!("INCR {}", "b".repeat(256)), ":1\r\n")
        .ask(&format!("KEYS {fits}"), format!("*1\r\n$256\r\n{}\r\n", "b".repeat(256)))
        .ask(&format!("KEYS {over}\nSCAN 0 MATCH {over}\nCONFIG GET {over}"), refused.repeat(3));
}

#[test]
fn a_reading_says_how_good_it_is() {
    let server = TestServer::open();
    let mut client = server.client();
    client.ask("INCRBY likes:1 1234", ":1234\r\n").send("QUIPU.READ likes:1\r\n");
    assert_eq!(client.line(), "*30", "a map is an array of pairs in the old dialect");
    for (key, value) in [("name", "likes:1"), ("kind", "count")] {
        assert_eq!((client.bulk(), client.bulk()), (key.to_owned(), value.to_owned()));
    }
    for (key, value) in [("value", ":1234"), ("exists", ":1"), ("exact", ":1")] {
        assert_eq!((client.bulk(), client.line()), (key.to_owned(), value.to_owned()));
    }
    assert_eq!(client.bulk(), "as_of");
    client.line();
    for (key, value) in [
        ("lag_ms", ":0"),
        ("bound_low", ":1234"),
        ("bound_high", ":1234"),
        ("shards_seen", ":1"),
        ("shards_total", ":1"),
        ("writers_seen", ":1"),
        ("writers_total", ":1"),
        ("expires_at", "$-1"),
    ] {
        assert_eq!((client.bulk(), client.line()), (key.to_owned(), value.to_owned()));
    }
    assert_eq!((client.bulk(), client.bulk()), ("display".to_owned(), "1.2K".to_owned()));
    for freshness in ["cached", "FRESH", "500ms", "2s"] {
        let mut client = server.client();
        client
            .send(format!("QUIPU.READ nothing FRESHNESS {freshness}\r\n"))
            .expect("*30\r\n$4\r\nname\r\n$7\r\nnothing\r\n");
    }
    let wrong = "-ERR freshness is 'cached', 'fresh', or a time up to an hour such as '500ms'\r\n";
    server
        .client()
        .ask("QUIPU.READ a FRESHNESS soon", wrong)
        .ask("QUIPU.READ a FRESHNESS", "-ERR syntax error\r\n")
        .ask("QUIPU.READ a FRESH 1s", "-ERR syntax error\r\n")
        .ask("QUIPU.READ", "-ERR wrong number of arguments for 'quipu.read' command\r\n")
        .ask("MULTI\nQUIPU.READ a", "+OK\r\n-ERR Command not allowed inside a transaction\r\n");
}

#[test]
fn the_examples_of_increx_reply_what_the_page_says() {
    let page = quipu_protocol::command::page();
    let server = TestServer::open();
    let mut client = server.client();
    let mut asked = 0;
    for example in page.split("\n> ").skip(1) {
        let mut lines = example.lines().take_while(|line| !line.starts_with("```"));
        let command = lines.next().expect("a command");
        let replies: Vec<String> = lines
            .map(|line| match line.split_once("(integer) ") {
                Some((_, number)) => format!(":{number}\r\n"),
                None => format!("+{line}\r\n"),
            })
            .collect();
        let count = if replies.len() > 1 { format!("*{}\r\n", replies.len()) } else { String::new() };
        client.ask(command, format!("{count}{}", replies.concat()));
        asked += 1;
    }
    assert!(asked >= 8, "only {asked} examples were found");
}

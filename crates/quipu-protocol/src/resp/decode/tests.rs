use proptest::prelude::*;

use super::*;
use crate::resp::request;

/// Feeds packets as a connection would; returns all commands, and the error that ended it.
fn feed(packets: &[&[u8]], limits: &Limits) -> (Vec<Vec<Vec<u8>>>, Option<DecodeError>) {
    let (mut decoder, mut input, mut commands) = (Decoder::default(), Vec::new(), Vec::new());
    let mut received = 0;
    for packet in packets {
        input.extend_from_slice(packet);
        received += packet.len();
        loop {
            let bytes = match decoder.decode(&input, limits) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    let args: Vec<Vec<u8>> = frame.args.iter().map(<[u8]>::to_vec).collect();
                    assert_eq!(args.len(), frame.args.len());
                    if !args.is_empty() {
                        commands.push(args);
                    }
                    frame.bytes
                }
                Err(error) => return (commands, Some(error)),
            };
            assert!(decoder.held_bytes() <= received + 4096);
            input.drain(..bytes);
        }
        assert!(decoder.held_bytes() <= received + 4096);
    }
    (commands, None)
}

fn error_of(bytes: &[u8]) -> Option<DecodeError> {
    let whole = feed(&[bytes], &Limits::default()).1;
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(whole, feed(&single, &Limits::default()).1, "the same error one byte per packet");
    whole
}

#[test]
fn malformed_frames_are_reported_in_the_words_of_redis() {
    for (bytes, text) in [
        (&b"*-1\r\n"[..], "invalid multibulk length"),
        (b"*-10\r\n", "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"* 1\r\n", "invalid multibulk length"),
        (b"*1\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1000000\r\n", "invalid multibulk length: a command has at most 32768 arguments"),
        (b"*32769\r\n", "invalid multibulk length: a command has at most 32768 arguments"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n:4\r\n", "expected '$', got ':'"),
        (b"*1\r\n\x01\r\n", "expected '$', got '\\x01'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length: an argument has at most 1048576 bytes, see limits.bulk_bytes"),
        (b"*1\r\n$1048577\r\n", "invalid bulk length: an argument has at most 1048576 bytes, see limits.bulk_bytes"),
        (b"*1\r\n$4\r\nPINGxx", "expected end of line after bulk"),
        (b"*1\r\n$3\r\nPING\r\n", "expected end of line after bulk"),
        (b"\"abc\r\n", "unbalanced quotes in request"),
        (b"'abc\r\n", "unbalanced quotes in request"),
        (b"\"a\"b\r\n", "unbalanced quotes in request"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n*x\r\n", "invalid multibulk length"),
    ] {
        let error = error_of(bytes).unwrap_or_else(|| panic!("{} was accepted", bytes.escape_ascii()));
        assert_eq!(error.to_string(), format!("Protocol error: {text}"), "{}", bytes.escape_ascii());
    }
    let endless = |head: &[u8]| [head, &[b'1'; 70_000]].concat();
    assert_eq!(error_of(&endless(b"*")), Some(DecodeError::ArgsCountLine));
    assert_eq!(error_of(&endless(b"*1\r\n$")), Some(DecodeError::BulkLengthLine));
    assert_eq!(feed(&[&endless(b"a")], &Limits::default()).1, Some(DecodeError::InlineLength(65_536)));
}

#[test]
fn a_browser_is_recognised_by_its_first_line() {
    for bytes in [
        &b"POST / HTTP/1.1\r\n"[..],
        b"post / HTTP/1.1\r\n",
        b"Host: localhost\r\n",
        b"PING\r\nHost: a\r\n",
        b"GET /v1/counters/a HTTP/1.1\r\n",
    ] {
        assert_eq!(error_of(bytes), Some(DecodeError::CrossProtocol));
    }
    assert_eq!(error_of(b"*1\r\n$4\r\nPOST\r\n"), None, "a RESP array is no browser");
}

#[test]
fn bounds_hold_to_the_byte() {
    let limits =
        Limits { bulk_bytes_max: 8, args_max: 3, inline_bytes_max: 8, frame_bytes_max: 36, authenticated: true };
    let ends_as = |bytes: &[u8]| feed(&[bytes], &limits).1;
    assert_eq!(ends_as(b"*1\r\n$8\r\n12345678\r\n"), None);
    assert_eq!(ends_as(b"*1\r\n$9\r\n"), Some(DecodeError::BulkMax(8)));
    assert_eq!(ends_as(b"*3\r\n"), None);
    assert_eq!(ends_as(b"*4\r\n"), Some(DecodeError::ArgsMax(3)));
    assert_eq!(ends_as(b"12345678\n"), None);
    assert_eq!(ends_as(b"123456789\n"), Some(DecodeError::InlineLength(8)));
    assert_eq!(ends_as(b"123456789"), Some(DecodeError::InlineLength(8)));
    assert_eq!(ends_as(b"1 2 3 4\n"), Some(DecodeError::ArgsMax(3)));
    assert_eq!(ends_as(b"*3\r\n$8\r\n12345678\r\n$8\r\n12345678\r\n$0\r\n\r\n"), Some(DecodeError::FrameLength(36)));
    assert_eq!(ends_as(b"*3\r\n$8\r\n12345678\r\n$8\r\n12345678\r\n"), None);
    let wide = Limits { bulk_bytes_max: usize::MAX, ..limits };
    assert_eq!(feed(&[b"*1\r\n$9223372036854775807\r\n"], &wide).1, Some(DecodeError::FrameLength(36)));
}

#[test]
fn a_client_without_the_password_may_send_little() {
    let ends_as = |bytes: &[u8]| feed(&[bytes], &Limits::UNAUTHENTICATED).1.map(|error| error.to_string());
    assert_eq!(
        ends_as(b"*11\r\n").as_deref(),
        Some("Protocol error: unauthenticated multibulk length: send AUTH first")
    );
    assert_eq!(
        ends_as(b"*1\r\n$16385\r\n").as_deref(),
        Some("Protocol error: unauthenticated bulk length: send AUTH first")
    );
    assert_eq!(
        ends_as(&[b'a'; 17_000]).as_deref(),
        Some("Protocol error: too big inline request: a line has at most 16384 bytes")
    );
    let two = [b"*2\r\n$9000\r\n".to_vec(), vec![b'a'; 9000], b"\r\n$9000\r\n".to_vec()].concat();
    assert_eq!(
        ends_as(&two).as_deref(),
        Some("Protocol error: too big request: a command has at most 16384 bytes, see limits.frame_bytes")
    );
}

#[test]
fn inline_commands_are_quoted_as_in_redis() {
    for (line, args) in [
        ("PING\r\n", vec![&b"PING"[..]]),
        ("  SET  a\t1 \n", vec![b"SET", b"a", b"1"]),
        ("ECHO \"\"\r\n", vec![b"ECHO", b""]),
        ("ECHO \"\\x41\\n\\r\\q\\\"\"\r\n", vec![b"ECHO", b"A\n\rq\""]),
        ("ECHO 'a\\'b\\n'\r\n", vec![b"ECHO", b"a'b\\n"]),
        ("ECHO a\"b c\"\r\n", vec![b"ECHO", b"ab c"]),
    ] {
        assert_eq!(
            feed(&[line.as_bytes()], &Limits::default()),
            (vec![args.iter().map(|a| a.to_vec()).collect()], None)
        );
    }
    assert_eq!(feed(&[b"\r\n   \r\n*0\r\nPING\n"], &Limits::default()).0, vec![vec![b"PING".to_vec()]]);
}

#[test]
fn announced_lengths_take_no_memory() {
    let mut decoder = Decoder::default();
    assert!(decoder.decode(b"*32768\r\n$1048576\r\n", &Limits::default()).unwrap().is_none());
    assert_eq!(decoder.held_bytes(), 0);
    // Many tiny arguments are the worst case for code that keeps a list of them.
    let line = [b"a ".repeat(16_000), b"\n".to_vec()].concat();
    assert!(decoder.decode(b"", &Limits::default()).unwrap().is_none());
    let mut decoder = Decoder::default();
    assert_eq!(decoder.decode(&line, &Limits::default()).unwrap().unwrap().args.len(), 16_000);
    assert!(decoder.held_bytes() <= line.len() + 4096);
}

#[test]
fn stored_arguments_are_found_again() {
    let (mut decoder, mut arena) = (Decoder::default(), b"before".to_vec());
    let bulk = request(&[b"MGET", b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i"]);
    let stored = decoder.decode(&bulk, &Limits::default()).unwrap().unwrap().args.store(&mut arena);
    let inline = b"SET a \"1 2\" 3 4 5 6 7 8 9 10 11\n";
    let packed = decoder.decode(inline, &Limits::default()).unwrap().unwrap().args.store(&mut arena);
    assert_eq!(stored.args(&arena).get(9), Some(&b"i"[..]));
    assert_eq!(stored.args(&arena).from(8).count(), 2);
    assert_eq!(packed.args(&arena).get(2), Some(&b"1 2"[..]));
    assert_eq!(packed.args(&arena).iter().last(), Some(&b"11"[..]));
}

/// Commands of every length around `HEAD`, and one long command.
fn pipeline() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let arg = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..12),
        1 => proptest::collection::vec(any::<u8>(), 100..300),
    ];
    proptest::collection::vec(proptest::collection::vec(arg, 1..20), 0..6)
}

proptest! {
    #[test]
    fn any_split_into_packets_yields_the_same_commands(
        commands in pipeline(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| {
            request(&command.iter().map(Vec::as_slice).collect::<Vec<_>>())
        }).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let packets: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(feed(&packets, &Limits::default()), (commands.clone(), None));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(feed(&single, &Limits::default()), (commands, None));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>, size in 1usize..40) {
        let packets: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(feed(&packets, &Limits::default()), feed(&[&bytes], &Limits::default()));
    }

    #[test]
    fn nearly_valid_bytes_do_not_either(
        bytes in proptest::collection::vec(prop::sample::select(b"*$:-019\r\n\"'\\xaP ".to_vec()), 0..200),
        size in 1usize..40,
    ) {
        let packets: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(feed(&packets, &Limits::default()), feed(&[&bytes], &Limits::default()));
    }

    #[test]
    fn garbage_in_a_pipeline_spoils_nothing_before_it(commands in pipeline(), garbage: Vec<u8>) {
        let mut bytes: Vec<u8> = commands.iter().flat_map(|command| {
            request(&command.iter().map(Vec::as_slice).collect::<Vec<_>>())
        }).collect();
        bytes.extend_from_slice(&garbage);
        let (decoded, _) = feed(&[&bytes], &Limits::default());
        prop_assert_eq!(&decoded[..commands.len().min(decoded.len())], &commands[..]);
    }
}

use proptest::prelude::*;

use super::*;

/// Feeds packets as a connection would; returns all values, and the error that ended it.
fn feed(packets: &[&[u8]]) -> (Vec<Value>, Option<ReplyError>) {
    let (mut reader, mut values) = (ReplyReader::default(), Vec::new());
    for packet in packets {
        reader.feed(packet);
        loop {
            match reader.take() {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(error) => return (values, Some(error)),
            }
        }
    }
    (values, None)
}

fn one(bytes: &[u8]) -> Value {
    let (mut values, error) = feed(&[bytes]);
    assert_eq!((values.len(), error), (1, None), "{}", bytes.escape_ascii());
    values.remove(0)
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

#[test]
fn each_kind_of_reply_is_read() {
    for (bytes, value) in [
        (&b"+OK\r\n"[..], Value::Simple("OK".to_owned())),
        (b"-ERR no\r\n", Value::Error("ERR no".to_owned())),
        (b"!6\r\nERR no\r\n", Value::Error("ERR no".to_owned())),
        (b":-5\r\n", Value::Integer(-5)),
        (b":+5\r\n", Value::Integer(5)),
        (b"$2\r\n\r\n\r\n", bulk("\r\n")),
        (b"$0\r\n\r\n", bulk("")),
        (b"=8\r\ntxt:some\r\n", bulk("some")),
        (b"$-1\r\n", Value::Null),
        (b"*-1\r\n", Value::Null),
        (b"_\r\n", Value::Null),
        (b"#t\r\n", Value::Bool(true)),
        (b",1.5e3\r\n", Value::Number("1.5e3".to_owned())),
        (b",inf\r\n", Value::Number("inf".to_owned())),
        (
            b"(-170141183460469231731687303715884105728\r\n",
            Value::Number("-170141183460469231731687303715884105728".to_owned()),
        ),
        (b"*0\r\n", Value::Array(vec![])),
        (b"~1\r\n:1\r\n", Value::Set(vec![Value::Integer(1)])),
        (b">1\r\n+a\r\n", Value::Push(vec![Value::Simple("a".to_owned())])),
        (b"%1\r\n$1\r\na\r\n*1\r\n_\r\n", Value::Map(vec![(bulk("a"), Value::Array(vec![Value::Null]))])),
        (b"|1\r\n+ttl\r\n:3\r\n:7\r\n", Value::Integer(7)),
        (b"*2\r\n|1\r\n+ttl\r\n:3\r\n:7\r\n|0\r\n:8\r\n", Value::Array(vec![Value::Integer(7), Value::Integer(8)])),
    ] {
        assert_eq!(one(bytes), value, "{}", bytes.escape_ascii());
    }
}

#[test]
fn what_two_dialects_say_is_read_alike() {
    let (two, three) =
        (one(b"*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n$-1\r\n"), one(b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n_\r\n"));
    assert_eq!(two.pairs(), three.pairs());
    assert_eq!(two.pairs().len(), 2);
    assert_eq!(bulk("-12").number(), Some(-12));
}

#[test]
fn a_reply_cut_anywhere_is_no_reply() {
    let bytes = b"*3\r\n:12\r\n$3\r\nabc\r\n%1\r\n+a\r\n=5\r\ntxt:b\r\n";
    for end in 0..bytes.len() {
        assert_eq!(feed(&[&bytes[..end]]), (vec![], None), "cut at {end}");
        let error = ReplyReader::default().read_from(&mut &bytes[..end]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {end}");
    }
    let value = one(bytes);
    for cut in 0..bytes.len() {
        assert_eq!(feed(&[&bytes[..cut], &bytes[cut..]]), (vec![value.clone()], None), "cut at {cut}");
    }
}

#[test]
fn bytes_that_are_no_reply_are_reported_as_sent() {
    for bytes in [
        "HTTP/1.1 400 Bad Request\r\n",
        "\r\n",
        "?\r\n",
        "$-2\r\n",
        "*-2\r\n",
        ":x\r\n",
        ":\r\n",
        "_x\r\n",
        "#x\r\n",
        ",x\r\n",
        "(1.5\r\n",
        "(\r\n",
        "*?\r\n",
        "$99999999999999999999\r\n",
        "+OK\n",
        "=3\r\ntxt\r\n",
    ] {
        let error = feed(&[bytes.as_bytes()]).1;
        assert!(matches!(error, Some(ReplyError::Malformed(_))), "{bytes:?}: {error:?}");
    }
    let error = ReplyReader::default().read_from(&mut &b"HTTP/1.1 400 Bad Request\r\n"[..]).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (io::ErrorKind::InvalidData, "it sent \"HTTP/1.1 400 Bad Request\"".to_owned())
    );
    assert_eq!(feed(&[b"$1\r\nabc"]).1, Some(ReplyError::BulkEnd));
}

#[test]
fn bounds_hold_to_the_byte() {
    let ends_as = |bytes: &[u8]| feed(&[bytes]).1;
    assert_eq!(ends_as("*1\r\n".repeat(DEPTH_MAX).as_bytes()), None);
    assert_eq!(ends_as("*1\r\n".repeat(DEPTH_MAX + 1).as_bytes()), Some(ReplyError::TooDeep));
    assert_eq!(ends_as(format!("*{ELEMENTS_MAX}\r\n").as_bytes()), None);
    assert_eq!(ends_as(format!("*{}\r\n", ELEMENTS_MAX + 1).as_bytes()), Some(ReplyError::TooMany));
    assert_eq!(ends_as(format!("%{}\r\n", ELEMENTS_MAX / 2 + 1).as_bytes()), Some(ReplyError::TooMany));
    assert_eq!(ends_as(format!("%{}\r\n", i64::MAX).as_bytes()), Some(ReplyError::TooMany));
    assert_eq!(ends_as(format!("*2\r\n*{}\r\n", ELEMENTS_MAX - 1).as_bytes()), Some(ReplyError::TooMany));
    assert_eq!(ends_as(format!("${REPLY_BYTES_MAX}\r\n").as_bytes()), None);
    assert_eq!(ends_as(format!("${}\r\n", REPLY_BYTES_MAX + 1).as_bytes()), Some(ReplyError::TooLong));
    assert_eq!(ends_as(format!("*2\r\n:1\r\n${REPLY_BYTES_MAX}\r\n").as_bytes()), Some(ReplyError::TooLong));
    assert_eq!(ends_as(&[b'+'; LINE_BYTES_MAX]), None);
    assert_eq!(ends_as(&[b'+'; LINE_BYTES_MAX + 1]), Some(ReplyError::Line));
}

#[test]
fn announced_lengths_take_no_memory() {
    let mut reader = ReplyReader::default();
    reader.feed(format!("*{ELEMENTS_MAX}\r\n").as_bytes());
    assert_eq!(reader.take(), Ok(None));
    assert_eq!(reader.open[0].values.capacity(), 0);
    let mut reader = ReplyReader::default();
    reader.feed(format!("${REPLY_BYTES_MAX}\r\n").as_bytes());
    assert_eq!(reader.take(), Ok(None));
    assert!(reader.input.capacity() < 4096);
}

#[test]
fn a_long_pipeline_does_not_grow_the_buffer() {
    let mut reader = ReplyReader::default();
    let packet = b":1\r\n".repeat(2_048);
    // Half a reply always remains, so that the buffer is never empty.
    reader.feed(b":");
    for _ in 0..1_000 {
        reader.feed(&packet[1..]);
        reader.feed(b":");
        let mut count = 0;
        while reader.take().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 2_048);
    }
    assert!(reader.input.capacity() <= 4 * CONSUMED_BYTES_MAX, "{} bytes held", reader.input.capacity());
    assert!(!reader.is_empty());
}

fn spelled(value: &Value, out: &mut Vec<u8>) {
    let list = |out: &mut Vec<u8>, mark: char, count: usize, values: &mut dyn Iterator<Item = &Value>| {
        out.extend_from_slice(format!("{mark}{count}\r\n").as_bytes());
        values.for_each(|value| spelled(value, out));
    };
    match value {
        Value::Null => out.extend_from_slice(b"_\r\n"),
        Value::Simple(text) => out.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Value::Error(text) => out.extend_from_slice(format!("-{text}\r\n").as_bytes()),
        Value::Integer(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::Bool(is) => out.extend_from_slice(if *is { b"#t\r\n" } else { b"#f\r\n" }),
        Value::Number(text) => out.extend_from_slice(format!("({text}\r\n").as_bytes()),
        Value::Bulk(bytes) => {
            out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        Value::Array(values) => list(out, '*', values.len(), &mut values.iter()),
        Value::Set(values) => list(out, '~', values.len(), &mut values.iter()),
        Value::Push(values) => list(out, '>', values.len(), &mut values.iter()),
        Value::Map(pairs) => list(out, '%', pairs.len(), &mut pairs.iter().flat_map(|(key, value)| [key, value])),
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        "[ -~]{0,20}".prop_map(Value::Simple),
        "[ -~]{0,20}".prop_map(Value::Error),
        any::<i64>().prop_map(Value::Integer),
        any::<bool>().prop_map(Value::Bool),
        any::<i128>().prop_map(|number| Value::Number(number.to_string())),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bulk),
    ];
    leaf.prop_recursive(DEPTH_MAX as u32 - 1, 64, 6, |inner| {
        let values = proptest::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            values.clone().prop_map(Value::Array),
            values.clone().prop_map(Value::Set),
            values.prop_map(Value::Push),
            proptest::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn any_split_into_packets_yields_the_same_values(
        values in proptest::collection::vec(value(), 0..6), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| spelled(value, &mut bytes));
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let packets: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(feed(&packets), (values.clone(), None));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(feed(&single), (values, None));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, size in 1usize..40) {
        let packets: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(feed(&packets), feed(&[&bytes]));
    }

    #[test]
    fn nearly_valid_bytes_do_not_either(
        bytes in proptest::collection::vec(prop::sample::select(b"*$:-+_#,(=!%~>|019tx\r\n\r\n".to_vec()), 0..300),
        size in 1usize..40,
    ) {
        let packets: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(feed(&packets), feed(&[&bytes]));
    }
}

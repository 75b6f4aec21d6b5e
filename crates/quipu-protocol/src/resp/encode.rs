//! Writes replies, in RESP2 or RESP3.
//!
//! In: replies of the engine and the connection. Out: bytes appended to the connection's output.
//!
//! Invariants:
//! - A reply has the same meaning in both versions. RESP2 spells maps and sets as arrays, and null
//!   in two ways.
//! - No text can break its line: line ends become spaces.

use quipu_model::{Dialect, Kind, Refusal, Reply, RespCode};

use crate::number;

/// RESP version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum RespVersion {
    /// Version of a new connection.
    #[default]
    Resp2,
    /// Version after `HELLO 3`.
    Resp3,
}

impl RespVersion {
    /// Number in HELLO.
    pub fn number(self) -> i64 {
        match self {
            RespVersion::Resp2 => 2,
            RespVersion::Resp3 => 3,
        }
    }
}

/// RESP form of an engine reply, where the reply alone does not determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplyShape {
    /// Determined by the reply.
    #[default]
    Plain,
    /// SETNX: 1 if applied, else 0.
    DoneAsInteger,
    /// SCAN with a TYPE that no counter has: the walk continues, but finds nothing.
    NoNames,
    /// TOPK.QUERY: numbers as Booleans.
    Truths,
    /// TOPK.LIST: only the items.
    Items,
    /// TOPK.LIST WITHCOUNT: each item, then the upper bound of its count.
    ItemsWithCount,
    /// QUIPU.UNIQUES and the like: a number with its bounds.
    Bounded,
}

/// Appends replies to a buffer.
pub struct RespWriter<'a> {
    out: &'a mut Vec<u8>,
    version: RespVersion,
}

impl<'a> RespWriter<'a> {
    /// Creates a writer for one RESP version.
    pub fn new(out: &'a mut Vec<u8>, version: RespVersion) -> RespWriter<'a> {
        RespWriter { out, version }
    }

    /// RESP version of the writer.
    pub(super) fn version(&self) -> RespVersion {
        self.version
    }

    /// Writes bytes that are a reply, or a part of one.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Writes the reply to a counter command; `command` is the name that an error mentions.
    pub fn reply(&mut self, reply: &Reply, shape: ReplyShape, command: &str) {
        match (reply, shape) {
            (Reply::Ok, ReplyShape::DoneAsInteger) => self.integer(1),
            (Reply::Nil, ReplyShape::DoneAsInteger) => self.integer(0),
            (Reply::Ok, _) => self.simple("OK"),
            (Reply::Nil, _) => self.null(),
            (Reply::Integer(value), _) => self.integer(*value),
            (Reply::Value(value), _) => self.value(*value),
            (Reply::Values(values), _) => {
                self.array(values.len());
                values.iter().for_each(|value| self.value(*value));
            }
            (Reply::Pair(value, applied), _) => {
                self.array(2);
                self.integer(*value);
                self.integer(*applied);
            }
            // To a Redis client a count is a string that holds a number.
            (Reply::Kind(Some(known)), _) => self.simple(match (known.kind, known.dialect) {
                (Kind::Count, _) | (Kind::Unique, Dialect::Redis) => "string",
                (Kind::Frequency, Dialect::Redis) => "CMSk-TYPE",
                (Kind::Top, Dialect::Redis) => "TopK-TYPE",
                (kind, Dialect::Native) => kind.name(),
            }),
            (Reply::Kind(None), _) => self.simple("none"),
            (Reply::Names(names), _) => self.names(names),
            (Reply::Page(cursor, names), shape) => {
                self.array(2);
                self.bulk(cursor.to_string().as_bytes());
                self.names(if shape == ReplyShape::NoNames { &[] } else { names });
            }
            (Reply::Bytes(bytes), _) => self.bulk(bytes),
            (Reply::Integers(numbers), shape) => {
                self.array(numbers.len());
                for number in numbers {
                    if shape == ReplyShape::Truths { self.truth(*number != 0) } else { self.integer(*number) }
                }
            }
            (Reply::Items(items), _) => {
                self.array(items.len());
                for item in items {
                    match item {
                        Some(item) => self.bulk(item),
                        None => self.null(),
                    }
                }
            }
            (Reply::Estimate(estimate), ReplyShape::Bounded) => self.estimate(*estimate),
            (Reply::Estimate(estimate), _) => self.natural(estimate.value),
            (Reply::Frequencies(frequencies), _) => self.frequencies(frequencies),
            (Reply::FrequencyInfo(info), _) => self.frequency_info(info),
            (Reply::TopItems(rows), shape) => self.top_items(rows, shape),
            (Reply::TopInfo(info), _) => self.top_info(info),
            (Reply::Refused(refusal), _) => self.refusal(refusal, command),
        }
    }

    /// Writes the refusal of an operation that was not applied.
    pub fn refusal(&mut self, refusal: &Refusal, command: &str) {
        self.error(&match refusal.reason().resp {
            Some(RespCode::Word(word)) => format!("{word} {refusal}"),
            Some(RespCode::WordAndCommand(word)) => format!("{word} {refusal} in '{command}' command"),
            Some(RespCode::Module) => format!("{} {refusal}", module(command)),
            Some(RespCode::Own) | None => refusal.to_string(),
        });
    }

    /// Writes `+OK` and the like.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error; clients act on the first word.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text.as_bytes());
    }

    /// Writes an integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// Writes 1 or 0.
    #[inline]
    pub fn bool_as_integer(&mut self, yes: bool) {
        self.out.extend_from_slice(if yes { b":1\r\n" } else { b":0\r\n" });
    }

    /// Writes an integer that may be the successor of the previous one.
    #[inline]
    pub fn integer_after(&mut self, others: &mut number::IntegerLines, value: i64) {
        others.append(self.out, value);
    }

    /// Writes a bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.count(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a text for people. RESP3 marks it as such, so a client shows it unchanged.
    pub fn verbatim(&mut self, text: &str) {
        match self.version {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => {
                self.count(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes null in place of a bulk string.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// Writes null in place of an array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.version {
            RespVersion::Resp2 => b"*-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array of `len` elements.
    pub fn array(&mut self, len: usize) {
        self.count(b'*', len);
    }

    /// Begins a map of `len` pairs.
    pub fn map(&mut self, len: usize) {
        match self.version {
            RespVersion::Resp2 => self.count(b'*', len * 2),
            RespVersion::Resp3 => self.count(b'%', len),
        }
    }

    /// Begins a set of `len` elements.
    pub fn set(&mut self, len: usize) {
        self.count(if self.version == RespVersion::Resp2 { b'*' } else { b'~' }, len);
    }

    /// Writes a counter's value as a bulk string, since to Redis it is a string.
    pub fn value(&mut self, value: Option<i64>) {
        let Some(value) = value else { return self.null() };
        number::append_bulk(self.out, value);
    }

    fn names(&mut self, names: &[Box<[u8]>]) {
        self.array(names.len());
        names.iter().for_each(|name| self.bulk(name));
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend(text.iter().map(|&byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    fn count(&mut self, kind: u8, count: usize) {
        // A buffer's length fits an i64.
        self.header(kind, count as i64);
    }

    #[inline]
    fn header(&mut self, kind: u8, value: i64) {
        number::append_line(self.out, kind, value);
    }
}

/// Prefix of errors of sketch commands.
fn module(command: &str) -> &'static str {
    match command.split_once('.') {
        Some(("cms", _)) => "CMS:",
        Some(("topk", _)) => "TopK:",
        _ => "ERR",
    }
}

/// Encodes a client's request: an array of bulk strings.
pub fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + args.iter().map(|arg| arg.len() + 16).sum::<usize>());
    write_request(args, &mut out);
    out
}

/// Appends a client's request.
pub fn write_request<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    let mut writer = RespWriter::new(out, RespVersion::Resp2);
    writer.array(args.len());
    args.iter().for_each(|arg| writer.bulk(arg.as_ref()));
}

#[cfg(test)]
mod tests {
    use quipu_model::KindAndDialect;

    use super::*;

    fn written(version: RespVersion, write: impl FnOnce(&mut RespWriter<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut RespWriter::new(&mut out, version));
        String::from_utf8(out).unwrap()
    }

    fn both(reply: Reply, shape: ReplyShape) -> [String; 2] {
        [RespVersion::Resp2, RespVersion::Resp3].map(|version| written(version, |w| w.reply(&reply, shape, "set")))
    }

    #[test]
    fn answers_look_as_they_do_from_redis() {
        let same = |text: &str| [text.to_owned(), text.to_owned()];
        for (reply, shape, expected) in [
            (Reply::Ok, ReplyShape::Plain, same("+OK\r\n")),
            (Reply::Ok, ReplyShape::DoneAsInteger, same(":1\r\n")),
            (Reply::Nil, ReplyShape::DoneAsInteger, same(":0\r\n")),
            (Reply::Nil, ReplyShape::Plain, ["$-1\r\n".into(), "_\r\n".into()]),
            (Reply::Integer(-7), ReplyShape::Plain, same(":-7\r\n")),
            (Reply::Value(Some(i64::MIN)), ReplyShape::Plain, same("$20\r\n-9223372036854775808\r\n")),
            (Reply::Value(None), ReplyShape::Plain, ["$-1\r\n".into(), "_\r\n".into()]),
            (
                Reply::Values(vec![Some(1), None]),
                ReplyShape::Plain,
                ["*2\r\n$1\r\n1\r\n$-1\r\n".into(), "*2\r\n$1\r\n1\r\n_\r\n".into()],
            ),
            (Reply::Pair(5, 2), ReplyShape::Plain, same("*2\r\n:5\r\n:2\r\n")),
            (Reply::Kind(Some(KindAndDialect::COUNT)), ReplyShape::Plain, same("+string\r\n")),
            (Reply::Kind(None), ReplyShape::Plain, same("+none\r\n")),
            (Reply::Names(vec![Box::from(*b"a")]), ReplyShape::Plain, same("*1\r\n$1\r\na\r\n")),
            (Reply::Page(17, vec![Box::from(*b"a")]), ReplyShape::Plain, same("*2\r\n$2\r\n17\r\n*1\r\n$1\r\na\r\n")),
            (Reply::Page(17, vec![Box::from(*b"a")]), ReplyShape::NoNames, same("*2\r\n$2\r\n17\r\n*0\r\n")),
            (
                Reply::Refused(Refusal::Overflow),
                ReplyShape::Plain,
                same("-ERR increment or decrement would overflow\r\n"),
            ),
            (
                Reply::Refused(Refusal::ExpireTime),
                ReplyShape::Plain,
                same("-ERR invalid expire time in 'set' command\r\n"),
            ),
            (
                Reply::Refused(Refusal::OtherKind {
                    found: KindAndDialect { kind: Kind::Top, dialect: Dialect::Redis },
                }),
                ReplyShape::Plain,
                same(
                    "-WRONGTYPE Operation against a key holding the wrong kind of value: it is of kind top, which TOPK.LIST reads\r\n",
                ),
            ),
        ] {
            assert_eq!(both(reply.clone(), shape), expected, "{reply:?}");
        }
    }

    #[test]
    fn refusals_begin_with_a_word_that_a_client_can_act_on() {
        let [no_room, _] = both(Reply::Refused(Refusal::NoRoom { reason: "disk full".into() }), ReplyShape::Plain);
        assert!(no_room.starts_with("-NOROOM no room in the journal: disk full"), "{no_room}");
        let [behind, _] = both(Reply::Refused(Refusal::Behind { behind_bytes: 7 }), ReplyShape::Plain);
        assert!(behind.starts_with("-TRYAGAIN the journal is 7 bytes behind"), "{behind}");
    }

    #[test]
    fn maps_sets_and_texts_are_arrays_and_strings_in_the_old_dialect() {
        assert_eq!(written(RespVersion::Resp2, |w| w.map(2)), "*4\r\n");
        assert_eq!(written(RespVersion::Resp3, |w| w.map(2)), "%2\r\n");
        assert_eq!(written(RespVersion::Resp2, |w| w.set(2)), "*2\r\n");
        assert_eq!(written(RespVersion::Resp3, |w| w.set(2)), "~2\r\n");
        assert_eq!(written(RespVersion::Resp2, |w| w.verbatim("a")), "$1\r\na\r\n");
        assert_eq!(written(RespVersion::Resp3, |w| w.verbatim("a")), "=5\r\ntxt:a\r\n");
        assert_eq!(written(RespVersion::Resp2, |w| w.null_array()), "*-1\r\n");
        assert_eq!(written(RespVersion::Resp3, |w| w.null_array()), "_\r\n");
    }

    #[test]
    fn no_text_breaks_its_line() {
        assert_eq!(written(RespVersion::Resp2, |w| w.error("ERR a\r\nb")), "-ERR a  b\r\n");
    }

    #[test]
    fn answers_of_sketches_look_as_those_of_redis_and_its_modules() {
        use quipu_model::{Dialect, Estimate, Fraction, FrequencyInfo, TopInfo, TopItem, TopSize};
        let ranked =
            || Reply::TopItems(vec![TopItem { item: Box::from(*b"a"), at_most: 5, at_least: 4, certain: true }]);
        let size = TopSize { decay: Fraction::new(0.9).unwrap(), ..TopSize::with_k(3) };
        let cases = [
            (Reply::Integers(vec![1, 0]), ReplyShape::Truths, ["*2\r\n:1\r\n:0\r\n", "*2\r\n#t\r\n#f\r\n"]),
            (
                Reply::Items(vec![None, Some(Box::from(*b"x"))]),
                ReplyShape::Plain,
                ["*2\r\n$-1\r\n$1\r\nx\r\n", "*2\r\n_\r\n$1\r\nx\r\n"],
            ),
            (ranked(), ReplyShape::Items, ["*1\r\n$1\r\na\r\n"; 2]),
            (ranked(), ReplyShape::ItemsWithCount, ["*2\r\n$1\r\na\r\n:5\r\n"; 2]),
            (Reply::Estimate(Estimate { value: 9, low: 8, high: 10 }), ReplyShape::Plain, [":9\r\n"; 2]),
            (
                Reply::FrequencyInfo(FrequencyInfo { width: 10, depth: 2, total: 8, dialect: Dialect::Redis }),
                ReplyShape::Plain,
                [
                    "*6\r\n$5\r\nwidth\r\n:10\r\n$5\r\ndepth\r\n:2\r\n$5\r\ncount\r\n:8\r\n",
                    "%3\r\n$5\r\nwidth\r\n:10\r\n$5\r\ndepth\r\n:2\r\n$5\r\ncount\r\n:8\r\n",
                ],
            ),
            (
                Reply::TopInfo(TopInfo { size, total: 0, dialect: Dialect::Redis }),
                ReplyShape::Plain,
                [
                    "*8\r\n$1\r\nk\r\n:3\r\n$5\r\nwidth\r\n:8\r\n$5\r\ndepth\r\n:7\r\n$5\r\ndecay\r\n$3\r\n0.9\r\n",
                    "%4\r\n$1\r\nk\r\n:3\r\n$5\r\nwidth\r\n:8\r\n$5\r\ndepth\r\n:7\r\n$5\r\ndecay\r\n,0.9\r\n",
                ],
            ),
        ];
        for (reply, shape, expected) in cases {
            for (version, expected) in [RespVersion::Resp2, RespVersion::Resp3].into_iter().zip(expected) {
                assert_eq!(written(version, |writer| writer.reply(&reply, shape, "topk.list")), expected, "{reply:?}");
            }
        }
        for (refusal, command, text) in [
            (Refusal::NoSketch { kind: Kind::Frequency }, "cms.query", "-CMS: key does not exist\r\n"),
            (Refusal::SketchExists { kind: Kind::Top }, "topk.reserve", "-TopK: key already exists\r\n"),
            (Refusal::SizesDiffer, "cms.merge", "-CMS: width/depth is not equal\r\n"),
            (
                Refusal::NotHll { found: KindAndDialect::COUNT },
                "pfadd",
                "-WRONGTYPE Key is not a valid HyperLogLog string value. It is of kind count, which GET reads\r\n",
            ),
            (Refusal::CorruptHll, "pfcount", "-INVALIDOBJ Corrupted HLL object detected\r\n"),
            (Refusal::NoSketch { kind: Kind::Top }, "quipu.top.list", "-ERR key does not exist\r\n"),
        ] {
            assert_eq!(written(RespVersion::Resp2, |writer| writer.refusal(&refusal, command)), text);
        }
    }
}

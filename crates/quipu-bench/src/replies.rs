//! Counts replies cheaply, and detects an unexpected one.
//!
//! In: bytes as they come from a socket, cut anywhere. Out: the number of replies that they
//! complete.
//!
//! Invariant: a counted reply has one of two forms.
//! - One mark (`:` or `$`), digits and line ends only.
//! - A list of one number, one text or nil, for the commands that reply so.
//!
//! An error, an unexpected nil, or a server that speaks another protocol never counts.

use anyhow::anyhow;

use crate::commands::Verb;

/// Bytes per inner loop. Sums of ones over a chunk fit a byte, which lets the compiler take sixteen
/// or more bytes at once.
const CHUNK_BYTES: usize = 255;

/// Most bytes of an unexpected reply that are shown.
const SHOWN_BYTES_MAX: usize = 200;

/// The replies to one pipeline.
#[derive(Debug, Clone)]
pub enum ReplyCounter {
    /// Each has one mark and a fixed number of lines.
    Plain(Plain),
    /// Each is a list of one element.
    Lists(Lists),
}

/// See [`ReplyCounter::Plain`].
#[derive(Debug, Clone)]
pub struct Plain {
    mark: u8,
    lines_per_reply: usize,
    lines: usize,
    marks: usize,
}

/// See [`ReplyCounter::Lists`].
#[derive(Debug, Clone, Default)]
pub struct Lists {
    whole: usize,
    next: Next,
    /// Bytes of the incomplete line.
    line: Vec<u8>,
}

/// The expected form of the next line.
#[derive(Debug, Clone, Copy, Default)]
enum Next {
    #[default]
    List,
    Element,
    Text,
}

impl ReplyCounter {
    /// A counter for the replies to a verb.
    pub fn to(verb: Verb) -> ReplyCounter {
        let (mark, lines_per_reply) = match verb {
            Verb::Incr | Verb::Pfadd => (b':', 1),
            Verb::Get => (b'$', 2),
            Verb::CmsIncrby | Verb::TopkAdd => return ReplyCounter::Lists(Lists::default()),
        };
        ReplyCounter::Plain(Plain { mark, lines_per_reply, lines: 0, marks: 0 })
    }

    /// Takes bytes; returns the number of whole replies since the last [`ReplyCounter::clear`].
    pub fn take(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        match self {
            ReplyCounter::Plain(plain) => plain.take(bytes),
            ReplyCounter::Lists(lists) => lists.take(bytes),
        }
    }

    /// Begins again at zero.
    pub fn clear(&mut self) {
        match self {
            ReplyCounter::Plain(plain) => (plain.lines, plain.marks) = (0, 0),
            ReplyCounter::Lists(lists) => *lists = Lists::default(),
        }
    }
}

impl Lists {
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                break;
            }
            let line = self.line.trim_ascii_end();
            self.next = match (self.next, line) {
                (Next::List, b"*1") => Next::Element,
                (Next::Element, [b':', ..] | b"$-1") | (Next::Text, _) => {
                    self.whole += 1;
                    Next::List
                }
                (Next::Element, [b'$', b'0'..=b'9', ..]) => Next::Text,
                _ => return Err(unexpected(line, b'*')),
            };
            self.line.clear();
        }
        Ok(self.whole)
    }
}

impl Plain {
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<usize> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            let (mut lines, mut marks, mut strange) = (0u8, 0u8, 0u8);
            for &byte in chunk {
                lines += u8::from(byte == b'\n');
                marks += u8::from(byte == self.mark);
                strange |= u8::from(!byte.is_ascii_digit() & (byte != b'\n') & (byte != b'\r') & (byte != self.mark));
            }
            self.lines += usize::from(lines);
            self.marks += usize::from(marks);
            if strange != 0 {
                return Err(unexpected(bytes, self.mark));
            }
        }
        let whole = self.lines / self.lines_per_reply;
        // Between two replies there are as many marks as replies; within one there is one more.
        if self.marks < whole || self.marks > whole + 1 {
            return Err(anyhow!("the server sent {} beginnings for {whole} replies", self.marks));
        }
        Ok(whole)
    }
}

/// The line with an unexpected byte, as an error.
fn unexpected(bytes: &[u8], mark: u8) -> anyhow::Error {
    let strange = |line: &&[u8]| line.iter().any(|&byte| !byte.is_ascii_digit() && byte != b'\r' && byte != mark);
    let line = bytes.split(|&byte| byte == b'\n').find(strange).unwrap_or(bytes).trim_ascii_end();
    let text = line[..line.len().min(SHOWN_BYTES_MAX)].escape_ascii().to_string();
    match line.first() {
        Some(b'-') => anyhow!("the server refused a command: {}", &text[1..]),
        _ => anyhow!("the server sent a reply that was not expected: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_counted_however_they_are_cut() {
        let bytes: Vec<u8> = (0..500).flat_map(|value| format!(":{value}\r\n").into_bytes()).collect();
        for step in [1, 2, 7, 254, 255, 256, 5000] {
            let mut replies = ReplyCounter::to(Verb::Incr);
            let mut whole = 0;
            for part in bytes.chunks(step) {
                whole = replies.take(part).unwrap();
            }
            assert_eq!(whole, 500, "{step} bytes at a time");
        }
        let mut replies = ReplyCounter::to(Verb::Get);
        assert_eq!(replies.take(b"$1\r\n5\r\n$2\r\n").unwrap(), 1);
        assert_eq!(replies.take(b"17\r").unwrap(), 1);
        assert_eq!(replies.take(b"\n").unwrap(), 2);
    }

    #[test]
    fn lists_of_one_are_counted_however_they_are_cut() {
        let bytes = b"*1\r\n:7\r\n*1\r\n$-1\r\n*1\r\n$8\r\nbench:\r0\r\n".repeat(20);
        for step in [1, 2, 7, 31, 5000] {
            let mut replies = ReplyCounter::to(Verb::TopkAdd);
            let mut whole = 0;
            for part in bytes.chunks(step) {
                whole = replies.take(part).unwrap();
            }
            assert_eq!(whole, 60, "{step} bytes at a time");
        }
        let error = ReplyCounter::to(Verb::CmsIncrby).take(b"*1\r\n:1\r\n-CMS: key does not exist\r\n").unwrap_err();
        assert_eq!(error.to_string(), "the server refused a command: CMS: key does not exist");
        assert!(ReplyCounter::to(Verb::CmsIncrby).take(b":1\r\n").is_err());
    }

    #[test]
    fn an_error_is_reported_with_its_text_wherever_it_stands() {
        let error = ReplyCounter::to(Verb::Incr).take(b":1\r\n:2\r\n-ERR disk full: no\r\n:3\r\n").unwrap_err();
        assert_eq!(error.to_string(), "the server refused a command: ERR disk full: no");
        let error = ReplyCounter::to(Verb::Get).take(b"$-1\r\n").unwrap_err();
        assert_eq!(error.to_string(), "the server sent a reply that was not expected: $-1");
        assert!(ReplyCounter::to(Verb::Incr).take(b"HTTP/1.1 400\r\n").is_err());
        assert!(ReplyCounter::to(Verb::Incr).take(b"1\r\n2\r\n").is_err(), "numbers without their mark are no replies");
    }
}

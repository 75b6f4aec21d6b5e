//! Reads replies, as a client receives them, in RESP2 and RESP3.
//!
//! In: bytes from a socket, split anywhere. Out: values, one per reply, in order.
//!
//! Invariants:
//! - The values do not depend on the splits, and each byte is examined a fixed number of times.
//! - Memory is allocated for bytes received, never for lengths announced. A reply beyond a bound is
//!   an error before it is stored.
//! - After an error the two sides no longer agree on the beginning of a reply, and the connection
//!   must be closed.
//!
//! One meaning has one value. Null is [`Value::Null`] in all its spellings, an error is
//! [`Value::Error`], also a long one. Attributes of RESP3, which describe a reply, are read and
//! dropped.

use std::io::{self, Read};

use super::value::Value;

/// Longest line: an error text or a number, with room to spare.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Longest reply in total: the largest dump, and room for the fields beside its body.
pub const REPLY_BYTES_MAX: usize = quipu_model::DUMP_BYTES_MAX + LINE_BYTES_MAX;

/// Most values in one reply, at all depths: an element of three bytes takes ten times as much here.
pub const ELEMENTS_MAX: usize = 1 << 20;

/// Deepest nesting: COMMAND's is four.
pub const DEPTH_MAX: usize = 8;

/// Most bytes of a malformed line that an error repeats.
const SHOWN_BYTES_MAX: usize = 60;

/// Bytes requested in one read.
const READ_BYTES: usize = 8 << 10;

/// Number of consumed bytes at which the buffer drops them, so that it moves a byte at most once
/// per read.
const CONSUMED_BYTES_MAX: usize = 16 << 10;

/// Reason why the bytes are not a reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A line that begins no reply: another protocol, or the two sides are out of step.
    #[error("it sent {0:?}")]
    Malformed(String),
    /// A line without an end.
    #[error("it sent a line of more than {LINE_BYTES_MAX} bytes")]
    Line,
    /// More bytes than a reply may have.
    #[error("it sent a reply of more than {REPLY_BYTES_MAX} bytes")]
    TooLong,
    /// More values than a reply may have.
    #[error("it sent a reply of more than {ELEMENTS_MAX} elements")]
    TooMany,
    /// Lists nested too deep.
    #[error("it sent a reply that is nested more than {DEPTH_MAX} deep")]
    TooDeep,
    /// A string that is longer or shorter than announced.
    #[error("it sent a string that does not end where it said")]
    BulkEnd,
}

/// Parser state: received bytes of replies that the client has not taken yet.
#[derive(Debug, Default)]
pub struct ReplyReader {
    input: Vec<u8>,
    /// Everything before this offset is consumed.
    at: usize,
    /// Number of bytes from `at` that contain no line end.
    searched: usize,
    /// A string with a known length whose bytes have not all arrived.
    bulk: Option<(BulkKind, usize)>,
    /// Lists that wait for elements, the innermost last; at most `DEPTH_MAX`.
    open: Vec<OpenList>,
    /// For the current reply: bytes consumed, and elements announced.
    bytes: usize,
    elements: usize,
}

#[derive(Debug, Clone, Copy)]
enum BulkKind {
    Bytes,
    Text,
    Error,
}

#[derive(Debug, Clone, Copy)]
enum ListKind {
    Array,
    Map,
    Set,
    Push,
    Attribute,
}

#[derive(Debug)]
struct OpenList {
    list: ListKind,
    count: usize,
    values: Vec<Value>,
}

enum ReplyStep {
    Value(Value),
    /// A list began, or a value was dropped.
    Nothing,
    /// More bytes are needed.
    Incomplete,
}

impl ReplyReader {
    /// Appends received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
        } else if self.at >= CONSUMED_BYTES_MAX && self.at * 2 >= self.input.len() {
            self.input.drain(..self.at);
            self.at = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// Returns the next reply, or `None` until more bytes arrive.
    pub fn take(&mut self) -> Result<Option<Value>, ReplyError> {
        loop {
            let mut value = match self.step()? {
                ReplyStep::Value(value) => value,
                ReplyStep::Nothing => continue,
                ReplyStep::Incomplete => return Ok(None),
            };
            loop {
                let Some(open) = self.open.last_mut() else {
                    (self.bytes, self.elements) = (0, 0);
                    return Ok(Some(value));
                };
                open.values.push(value);
                if open.values.len() < open.count {
                    break;
                }
                match self.open.pop().and_then(OpenList::close) {
                    Some(whole) => value = whole,
                    None => break,
                }
            }
        }
    }

    /// Returns the next reply, from received bytes or from the stream. At the end of the stream the
    /// error is [`io::ErrorKind::UnexpectedEof`], for a malformed reply
    /// [`io::ErrorKind::InvalidData`].
    pub fn read_from(&mut self, stream: &mut impl Read) -> io::Result<Value> {
        let mut bytes = [0; READ_BYTES];
        loop {
            if let Some(value) = self.take().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                return Ok(value);
            }
            match stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.feed(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if no part of a further reply has arrived.
    pub fn is_empty(&self) -> bool {
        self.at == self.input.len() && self.open.is_empty() && self.bulk.is_none()
    }

    fn step(&mut self) -> Result<ReplyStep, ReplyError> {
        if let Some((bulk, length)) = self.bulk {
            return self.string(bulk, length);
        }
        let Some(line) = self.line()? else { return Ok(ReplyStep::Incomplete) };
        let (&kind, rest) = line.split_first().ok_or_else(|| malformed(line))?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        let bytes = line.len() + 2;
        let step = match kind {
            b'+' => ReplyStep::Value(Value::Simple(text())),
            b'-' => ReplyStep::Value(Value::Error(text())),
            b':' => ReplyStep::Value(Value::Integer(parse(rest).ok_or_else(|| malformed(line))?)),
            b'_' if rest.is_empty() => ReplyStep::Value(Value::Null),
            b'#' if matches!(rest, b"t" | b"f") => ReplyStep::Value(Value::Bool(rest == b"t")),
            b',' if parse::<f64>(rest).is_some() => ReplyStep::Value(Value::Number(text())),
            b'(' if is_whole(rest) => ReplyStep::Value(Value::Number(text())),
            b'$' | b'=' | b'!' => {
                let bulk = match kind {
                    b'$' => BulkKind::Bytes,
                    b'=' => BulkKind::Text,
                    _ => BulkKind::Error,
                };
                match parse_length(rest).ok_or_else(|| malformed(line))? {
                    AnnouncedLength::Null => ReplyStep::Value(Value::Null),
                    AnnouncedLength::Length(length) if length > REPLY_BYTES_MAX - self.bytes.min(REPLY_BYTES_MAX) => {
                        return Err(ReplyError::TooLong);
                    }
                    AnnouncedLength::Length(length) => {
                        self.bulk = Some((bulk, length));
                        ReplyStep::Nothing
                    }
                }
            }
            b'*' | b'%' | b'~' | b'>' | b'|' => {
                let list = match kind {
                    b'*' => ListKind::Array,
                    b'%' => ListKind::Map,
                    b'~' => ListKind::Set,
                    b'>' => ListKind::Push,
                    _ => ListKind::Attribute,
                };
                match parse_length(rest).ok_or_else(|| malformed(line))? {
                    AnnouncedLength::Null => ReplyStep::Value(Value::Null),
                    AnnouncedLength::Length(length) => self.begin(list, length)?,
                }
            }
            _ => return Err(malformed(line)),
        };
        self.consume(bytes)?;
        Ok(step)
    }

    /// The line that begins at `at`, without its end.
    fn line(&mut self) -> Result<Option<&[u8]>, ReplyError> {
        let rest = &self.input[self.at..];
        let end = rest[self.searched..].iter().position(|&byte| byte == b'\n').map(|found| self.searched + found);
        match end {
            None if rest.len() > LINE_BYTES_MAX => Err(ReplyError::Line),
            None => {
                self.searched = rest.len();
                Ok(None)
            }
            Some(end) if end > LINE_BYTES_MAX => Err(ReplyError::Line),
            Some(end) => rest[..end].strip_suffix(b"\r").map(Some).ok_or_else(|| malformed(&rest[..end])),
        }
    }

    fn string(&mut self, bulk: BulkKind, length: usize) -> Result<ReplyStep, ReplyError> {
        let rest = &self.input[self.at..];
        let Some(end) = rest.get(length..length + 2) else { return Ok(ReplyStep::Incomplete) };
        if end != b"\r\n" {
            return Err(ReplyError::BulkEnd);
        }
        let bytes = &rest[..length];
        let value = match bulk {
            BulkKind::Bytes => Value::Bulk(bytes.to_vec()),
            // `txt:` or `mkd:`, and the text.
            BulkKind::Text if bytes.get(3) == Some(&b':') => Value::Bulk(bytes[4..].to_vec()),
            BulkKind::Text => return Err(malformed(bytes)),
            BulkKind::Error => Value::Error(String::from_utf8_lossy(bytes).into_owned()),
        };
        self.bulk = None;
        self.consume(length + 2)?;
        Ok(ReplyStep::Value(value))
    }

    fn begin(&mut self, list: ListKind, length: usize) -> Result<ReplyStep, ReplyError> {
        let each = if matches!(list, ListKind::Map | ListKind::Attribute) { 2 } else { 1 };
        let count = length.checked_mul(each).ok_or(ReplyError::TooMany)?;
        self.elements =
            self.elements.checked_add(count).filter(|&all| all <= ELEMENTS_MAX).ok_or(ReplyError::TooMany)?;
        let open = OpenList { list, count, values: Vec::new() };
        if count == 0 {
            return Ok(open.close().map_or(ReplyStep::Nothing, ReplyStep::Value));
        }
        if self.open.len() == DEPTH_MAX {
            return Err(ReplyError::TooDeep);
        }
        self.open.push(open);
        Ok(ReplyStep::Nothing)
    }

    fn consume(&mut self, bytes: usize) -> Result<(), ReplyError> {
        self.at += bytes;
        self.searched = 0;
        self.bytes += bytes;
        // The line end of a string within the bound may exceed the bound; the check allows this
        // margin.
        if self.bytes > REPLY_BYTES_MAX + LINE_BYTES_MAX { Err(ReplyError::TooLong) } else { Ok(()) }
    }
}

impl OpenList {
    /// The list as a value; `None` if it was an attribute of another value.
    fn close(self) -> Option<Value> {
        Some(match self.list {
            ListKind::Array => Value::Array(self.values),
            ListKind::Set => Value::Set(self.values),
            ListKind::Push => Value::Push(self.values),
            ListKind::Map => {
                let mut values = self.values.into_iter();
                Value::Map(std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect())
            }
            ListKind::Attribute => return None,
        })
    }
}

/// The length that a line announces for a string or a list.
enum AnnouncedLength {
    Null,
    Length(usize),
}

/// Parses a length; `None` if it is malformed.
fn parse_length(digits: &[u8]) -> Option<AnnouncedLength> {
    match parse::<i64>(digits)? {
        -1 => Some(AnnouncedLength::Null),
        length => usize::try_from(length).ok().map(AnnouncedLength::Length),
    }
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn is_whole(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn malformed(line: &[u8]) -> ReplyError {
    ReplyError::Malformed(String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES_MAX)]).into_owned())
}

#[cfg(test)]
mod tests;

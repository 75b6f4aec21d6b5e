//! Reads replies, as a client receives them, in RESP2 and RESP3.
//!
//! In: bytes as they come from a socket, cut anywhere. Out: values, one per reply, in order.
//!
//! Invariants:
//! - however the bytes are cut, the values are the same, and a byte is looked at a fixed number of times;
//! - memory is taken for bytes received, never for lengths announced; a reply beyond a bound is an error before it is held;
//! - after an error the two sides no longer agree where a reply begins, and the connection must be closed.
//!
//! One meaning has one value: null is [`Value::Null`] in all its spellings, an error is [`Value::Error`], also a long one. Attributes of RESP3, which are said *about* a
//! reply, are read and left out.

use std::io::{self, Read};

use super::value::Value;

/// Longest line: an error text or a number, with room to spare.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Longest reply in all: the largest dump, and room for what stands beside its body.
pub const REPLY_BYTES_MAX: usize = quipu_model::DUMP_BYTES_MAX + LINE_BYTES_MAX;

/// Most values in one reply, at all depths: an element of three bytes takes ten times as much here.
pub const ELEMENTS_MAX: usize = 1 << 20;

/// Deepest nesting: COMMAND's is four.
pub const DEPTH_MAX: usize = 8;

/// Most that is shown of a line that makes no sense.
const SHOWN_BYTES_MAX: usize = 60;

/// Bytes asked for in one read.
const READ_BYTES: usize = 8 << 10;

/// Consumed bytes are dropped when they are so many, so that a byte is moved once at most for each time it is read.
const CONSUMED_BYTES_MAX: usize = 16 << 10;

/// Why the bytes are not a reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A line that no reply begins with: another protocol, or the two sides are out of step.
    #[error("it sent {0:?}")]
    Malformed(String),
    /// A line without an end.
    #[error("it sent a line of more than {LINE_BYTES_MAX} bytes")]
    Line,
    /// More than a reply may have.
    #[error("it sent a reply of more than {REPLY_BYTES_MAX} bytes")]
    TooLong,
    /// More values than a reply may have.
    #[error("it sent a reply of more than {ELEMENTS_MAX} elements")]
    TooMany,
    /// Lists of lists of lists.
    #[error("it sent a reply that is nested more than {DEPTH_MAX} deep")]
    TooDeep,
    /// A string that is longer or shorter than announced.
    #[error("it sent a string that does not end where it said")]
    BulkEnd,
}

/// What has come of replies, and is not taken yet.
#[derive(Debug, Default)]
pub struct ReplyReader {
    input: Vec<u8>,
    /// Everything before this is consumed.
    at: usize,
    /// From `at`, so many bytes have no end of line among them.
    searched: usize,
    /// A string whose length is known and whose bytes are not all here.
    bulk: Option<(BulkKind, usize)>,
    /// Lists that wait for elements, the innermost last; at most `DEPTH_MAX`.
    open: Vec<OpenList>,
    /// Of the reply under way: bytes consumed, and elements announced.
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
    /// A list began, or something was left out.
    Nothing,
    /// More bytes are needed.
    Incomplete,
}

impl ReplyReader {
    /// Takes bytes that came.
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

    /// The next reply, or `None` until more bytes have come.
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

    /// The next reply, from what came or from the stream; the end of the stream is [`io::ErrorKind::UnexpectedEof`], what is no reply is
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

    /// Whether nothing of a further reply has come.
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
                match length(rest).ok_or_else(|| malformed(line))? {
                    None => ReplyStep::Value(Value::Null),
                    Some(length) if length > REPLY_BYTES_MAX - self.bytes.min(REPLY_BYTES_MAX) => {
                        return Err(ReplyError::TooLong);
                    }
                    Some(length) => {
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
                match length(rest).ok_or_else(|| malformed(line))? {
                    None => ReplyStep::Value(Value::Null),
                    Some(length) => self.begin(list, length)?,
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
        // A string within the bound may end beyond it by its line end: that much is let through.
        if self.bytes > REPLY_BYTES_MAX + LINE_BYTES_MAX { Err(ReplyError::TooLong) } else { Ok(()) }
    }
}

impl OpenList {
    /// The list as a value; `None` if it was said about another one.
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

/// A length; of a null, `Some(None)`.
fn length(digits: &[u8]) -> Option<Option<usize>> {
    match parse::<i64>(digits)? {
        -1 => Some(None),
        length => usize::try_from(length).ok().map(Some),
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

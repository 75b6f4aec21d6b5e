//! Finds complete commands in the bytes of a connection.
//!
//! In: all bytes received and not yet consumed; the first byte begins a command. Out: one frame and
//! its length; the arguments are slices of those bytes.
//!
//! Invariants:
//! - A call examines only new bytes: one byte per packet costs no more than one packet.
//! - Memory is allocated for bytes received, never for lengths announced. Arrays take none at all,
//!   an inline line at most its own length again.
//! - After an error the connection is out of step and must be closed.
//!
//! Two rules are stricter than in Redis. A negative argument count and a bulk string without its
//! line end are errors, not ignored. Both mean that the two sides no longer agree on the beginning
//! of a command.

use quipu_model::RespCode;

use super::Limits;
use super::args::{ArgEncoding, ArgMap, ArgSpan, Args, HEAD};
use super::inline;
use crate::number;

/// Longest `*…` or `$…` line. A 64-bit number has 20 characters; more without a line end is not a
/// number.
const COUNT_LINE_BYTES_MAX: usize = 32;

/// Reason why the bytes are not RESP. The text is Redis's, for clients that log it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// `*` without a count.
    #[error("Protocol error: invalid multibulk length")]
    ArgsCount,
    /// More arguments than a command may have.
    #[error("Protocol error: invalid multibulk length: a command has at most {0} arguments")]
    ArgsMax(usize),
    /// `*` without a line end.
    #[error("Protocol error: too big mbulk count string")]
    ArgsCountLine,
    /// More arguments than an unauthenticated client may send.
    #[error("Protocol error: unauthenticated multibulk length: send AUTH first")]
    ArgsCountUnauthenticated,
    /// An argument that does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NotBulk(u8),
    /// `$` without a length.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// A longer argument than a command may have.
    #[error("Protocol error: invalid bulk length: an argument has at most {0} bytes, see limits.bulk_bytes")]
    BulkMax(usize),
    /// `$` without a line end.
    #[error("Protocol error: too big bulk count string")]
    BulkLengthLine,
    /// A longer argument than an unauthenticated client may send.
    #[error("Protocol error: unauthenticated bulk length: send AUTH first")]
    BulkLengthUnauthenticated,
    /// An argument longer or shorter than announced.
    #[error("Protocol error: expected end of line after bulk")]
    BulkEnd,
    /// All arguments together are too long.
    #[error("Protocol error: too big request: a command has at most {0} bytes, see limits.frame_bytes")]
    FrameLength(usize),
    /// An inline command without an end, or with too many words.
    #[error("Protocol error: too big inline request: a line has at most {0} bytes")]
    InlineLength(usize),
    /// A quote left open.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// HTTP, perhaps from a browser that a page directed here. Nothing is executed, and the server
    /// closes the connection.
    #[error("possible cross-protocol attack: the connection speaks HTTP")]
    CrossProtocol,
}

const ERR: Option<RespCode> = Some(RespCode::Word("ERR"));

quipu_model::reasons! { DecodeError:
    ArgsCount, ERR, None,
        "What follows `*` is no number of arguments.",
        "Mend the client: it does not speak RESP.";
    ArgsMax(32_768), ERR, None,
        "The command has more than 32,768 arguments.",
        "Send fewer arguments in one command.";
    ArgsCountLine, ERR, None,
        "The line that begins with `*` does not end.",
        "Mend the client: it does not speak RESP.";
    ArgsCountUnauthenticated, ERR, None,
        "The command has more than 10 arguments, before the password was given.",
        "Send AUTH or HELLO … AUTH first.";
    NotBulk(b'+'), ERR, None,
        "An argument does not begin with `$`, as arguments of a RESP command do.",
        "Mend the client: it sends something else than arrays of bulk strings.";
    BulkLength, ERR, None,
        "What follows `$` is no length.",
        "Mend the client: every argument is sent as `$`, its length in bytes, and its bytes.";
    BulkMax(1_048_576), ERR, None,
        "The argument is longer than `limits.bulk_bytes` allows.",
        "Send a shorter argument, or raise `limits.bulk_bytes`. A name has at most 512 bytes in any case.";
    BulkLengthLine, ERR, None,
        "The line that begins with `$` does not end.",
        "Mend the client: it does not speak RESP.";
    BulkLengthUnauthenticated, ERR, None,
        "An argument is over 16 KiB, before the password was given.",
        "Send AUTH or HELLO … AUTH first.";
    BulkEnd, ERR, None,
        "An argument is longer or shorter than the length before it says.",
        "Mend the client: lengths are in bytes, not in characters.";
    FrameLength(4_194_304), ERR, None,
        "The command is longer than `limits.frame_bytes` allows, all arguments together.",
        "Split the command, or raise `limits.frame_bytes`.";
    InlineLength(65_536), ERR, None,
        "A command typed as a line is longer than 64 KiB, or does not end.",
        "Send it as a RESP array.";
    Quotes, ERR, None,
        "A command typed as a line leaves a quote open.",
        "Close the quote; a space or the end of the line follows it.";
    CrossProtocol, None, None,
        "The connection speaks HTTP to the RESP port. It gets an HTTP reply with status 400 and is closed; nothing was executed.",
        "Use the HTTP port: the setting `http`, by default 7380. The reply names it.";
}

/// One command.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Arguments; none for an empty line.
    pub args: Args<'a>,
    /// Input bytes that the frame takes.
    pub bytes: usize,
}

/// State of a command that has arrived in part.
#[derive(Debug, Default)]
pub struct Decoder {
    stage: DecodeStage,
    /// Offset of the first byte not yet examined.
    at: usize,
    count: usize,
    head: [ArgSpan; HEAD],
    tail: u32,
    /// Inline command after unquoting.
    packed: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy)]
enum DecodeStage {
    #[default]
    Start,
    Inline,
    /// The `$` line of the next argument; `left` arguments remain.
    Length {
        left: usize,
    },
    /// The bytes of an argument, the first of `left`.
    Body {
        left: usize,
        len: usize,
    },
}

impl Decoder {
    /// Returns the next command, or `None` until more bytes arrive. After a frame the caller drops
    /// that many bytes from the front. After `None` the next call gets the same bytes and more.
    pub fn decode<'a>(&'a mut self, input: &'a [u8], limits: &Limits) -> Result<Option<Frame<'a>>, DecodeError> {
        loop {
            match self.stage {
                DecodeStage::Start => match input.first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some(count) = self.count_line(input, DecodeError::ArgsCount, DecodeError::ArgsCountLine)?
                        else {
                            return Ok(None);
                        };
                        if count > limits.args_max {
                            return Err(match limits.authenticated {
                                true => DecodeError::ArgsMax(limits.args_max),
                                false => DecodeError::ArgsCountUnauthenticated,
                            });
                        }
                        self.count = count;
                        self.stage = DecodeStage::Length { left: count };
                    }
                    Some(_) => self.stage = DecodeStage::Inline,
                },
                DecodeStage::Inline => return self.inline(input, limits),
                DecodeStage::Length { left: 0 } => return Ok(Some(self.frame(input))),
                DecodeStage::Length { left } => {
                    match input.get(self.at) {
                        None => return Ok(None),
                        Some(b'$') => {}
                        Some(&other) => return Err(DecodeError::NotBulk(other)),
                    }
                    let start = self.at;
                    let Some(len) = self.count_line(input, DecodeError::BulkLength, DecodeError::BulkLengthLine)?
                    else {
                        return Ok(None);
                    };
                    if len > limits.bulk_bytes_max {
                        return Err(match limits.authenticated {
                            true => DecodeError::BulkMax(limits.bulk_bytes_max),
                            false => DecodeError::BulkLengthUnauthenticated,
                        });
                    }
                    // Saturating: the bound of a bulk is a setting, and may be the largest number.
                    if len.saturating_add(self.at + 2) > limits.frame_bytes_max as usize {
                        return Err(DecodeError::FrameLength(limits.frame_bytes_max as usize));
                    }
                    if self.count - left == HEAD {
                        // The frame bound keeps every offset within 32 bits.
                        self.tail = start as u32;
                    }
                    self.stage = DecodeStage::Body { left, len };
                }
                DecodeStage::Body { left, len } => {
                    let (start, end) = (self.at, self.at + len);
                    match input.get(end..end + 2) {
                        None => return Ok(None),
                        Some(b"\r\n") => {}
                        Some(_) => return Err(DecodeError::BulkEnd),
                    }
                    if let Some(span) = self.head.get_mut(self.count - left) {
                        *span = ArgSpan { start: start as u32, end: end as u32 };
                    }
                    self.at = end + 2;
                    self.stage = DecodeStage::Length { left: left - 1 };
                }
            }
        }
    }

    /// Returns true unless part of a command has arrived.
    pub fn is_fresh(&self) -> bool {
        matches!(self.stage, DecodeStage::Start) && self.at == 0
    }

    /// Bytes of memory that it holds beyond itself.
    pub fn held_bytes(&self) -> usize {
        self.packed.capacity()
    }

    /// Reads the number on the line at `self.at`, and advances past it.
    fn count_line(
        &mut self,
        input: &[u8],
        invalid: DecodeError,
        endless: DecodeError,
    ) -> Result<Option<usize>, DecodeError> {
        let digits = self.at + 1;
        let window = &input[digits.min(input.len())..input.len().min(digits + COUNT_LINE_BYTES_MAX)];
        let Some(len) = window.iter().position(|&byte| byte == b'\r') else {
            return if window.len() == COUNT_LINE_BYTES_MAX { Err(endless) } else { Ok(None) };
        };
        match input.get(digits + len + 1) {
            None => return Ok(None),
            Some(b'\n') => {}
            Some(_) => return Err(invalid),
        }
        let count = number::natural(&window[..len]).ok_or(invalid)?;
        self.at = digits + len + 2;
        Ok(Some(usize::try_from(count).map_err(|_| invalid)?))
    }

    /// Releases the memory of the last inline command, between turns.
    pub fn release_buffer(&mut self) {
        self.packed = Vec::new();
    }

    fn inline<'a>(&'a mut self, input: &'a [u8], limits: &Limits) -> Result<Option<Frame<'a>>, DecodeError> {
        let Some(found) = input[self.at..].iter().position(|&byte| byte == b'\n') else {
            self.at = input.len();
            return if self.at > limits.inline_bytes_max {
                Err(DecodeError::InlineLength(limits.inline_bytes_max))
            } else {
                Ok(None)
            };
        };
        let end = self.at + found;
        if end > limits.inline_bytes_max {
            return Err(DecodeError::InlineLength(limits.inline_bytes_max));
        }
        self.at = 0;
        self.stage = DecodeStage::Start;
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let map = inline::split(line, &mut self.packed).map_err(|inline::UnbalancedQuotes| DecodeError::Quotes)?;
        let args = Args { bytes: &self.packed, map };
        if is_http(&args) {
            return Err(DecodeError::CrossProtocol);
        }
        if args.len() > limits.args_max {
            return Err(DecodeError::ArgsMax(limits.args_max));
        }
        Ok(Some(Frame { args, bytes: end + 1 }))
    }

    fn frame<'a>(&mut self, input: &'a [u8]) -> Frame<'a> {
        let bytes = self.at;
        let map = ArgMap { form: ArgEncoding::Bulk, count: self.count, head: self.head, tail: self.tail };
        self.stage = DecodeStage::Start;
        self.at = 0;
        // After a switch to RESP arrays, the connection releases the memory of inline commands.
        if self.packed.capacity() != 0 {
            self.packed = Vec::new();
        }
        Frame { args: Args { bytes: &input[..bytes], map }, bytes }
    }
}

/// Returns true for a line of HTTP: by the first words that Redis knows, or as a request line. No
/// command looks like a request line.
fn is_http(args: &Args<'_>) -> bool {
    let first =
        args.get(0).is_some_and(|word| word.eq_ignore_ascii_case(b"post") || word.eq_ignore_ascii_case(b"host:"));
    first || args.len() == 3 && args.get(2).is_some_and(|word| word.starts_with(b"HTTP/"))
}

#[cfg(test)]
mod tests;

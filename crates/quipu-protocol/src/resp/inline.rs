//! Splits a line typed by a person into arguments, with the quoting rules of Redis.
//!
//! In: a line without its end. Out: the arguments, packed one after the other.
//!
//! Within `"…"` the escapes are `\n \r \t \b \a \xHH`; any other backslash stands for the byte
//! after it. Within `'…'` the only escape is `\'`. A space or the end must follow a closing quote.

use super::args::{ArgEncoding, ArgMap, ArgSpan, HEAD, pack_len};

/// A quote left open, or closed in the middle of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnbalancedQuotes;

/// Splits one line. Clears `packed` first; it grows to at most the line's length plus one byte per
/// 127 bytes.
pub(super) fn split(line: &[u8], packed: &mut Vec<u8>) -> Result<ArgMap, UnbalancedQuotes> {
    packed.clear();
    // One allocation for the bytes received, not more: lengths take the place of the spaces.
    packed.reserve_exact(line.len() + line.len() / 127 + 2);
    let mut map = ArgMap { form: ArgEncoding::Packed, count: 0, head: [ArgSpan::default(); HEAD], tail: 0 };
    let mut at = 0;
    loop {
        while at < line.len() && is_space(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return Ok(map);
        }
        let len = {
            let mut len = 0;
            word(line, at, |_| len += 1)?;
            len
        };
        pack_len(packed, len);
        let start = packed.len();
        at = word(line, at, |byte| packed.push(byte))?;
        if map.count < HEAD {
            // A line is at most the inline bound, far below 4 GiB.
            map.head[map.count] = ArgSpan { start: start as u32, end: packed.len() as u32 };
            map.tail = packed.len() as u32;
        }
        map.count += 1;
    }
}

/// Passes every byte of the word at `at` to `take`; returns the end of the word.
fn word(line: &[u8], mut at: usize, mut take: impl FnMut(u8)) -> Result<usize, UnbalancedQuotes> {
    loop {
        match line.get(at) {
            None => return Ok(at),
            Some(&byte) if is_space(byte) => return Ok(at),
            Some(b'"') => {
                at += 1;
                loop {
                    match &line[at..] {
                        [] => return Err(UnbalancedQuotes),
                        [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                            take(hex(*high) << 4 | hex(*low));
                            at += 4;
                        }
                        [b'\\', letter, ..] => {
                            take(match letter {
                                b'n' => b'\n',
                                b'r' => b'\r',
                                b't' => b'\t',
                                b'b' => 0x08,
                                b'a' => 0x07,
                                other => *other,
                            });
                            at += 2;
                        }
                        [b'"', ..] => break,
                        [byte, ..] => {
                            take(*byte);
                            at += 1;
                        }
                    }
                }
                return closed(line, at + 1);
            }
            Some(b'\'') => {
                at += 1;
                loop {
                    match &line[at..] {
                        [] => return Err(UnbalancedQuotes),
                        [b'\\', b'\'', ..] => {
                            take(b'\'');
                            at += 2;
                        }
                        [b'\'', ..] => break,
                        [byte, ..] => {
                            take(*byte);
                            at += 1;
                        }
                    }
                }
                return closed(line, at + 1);
            }
            Some(&byte) => {
                take(byte);
                at += 1;
            }
        }
    }
}

/// Checks that a closing quote ends its word.
fn closed(line: &[u8], at: usize) -> Result<usize, UnbalancedQuotes> {
    match line.get(at) {
        Some(&byte) if !is_space(byte) => Err(UnbalancedQuotes),
        _ => Ok(at),
    }
}

/// Returns true for the bytes of C's `isspace`, and for NUL, which ends a C string.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0)
}

/// Value of a hexadecimal digit.
fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A') + 10,
    }
}

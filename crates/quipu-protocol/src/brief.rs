//! Adds and reads of one counter, found without a look into the table of operations.
//!
//! In: bytes that begin with a command. Out: the same that decoding, looking up and parsing would make of them, if they are one of these commands in their usual spelling and whole; else
//! nothing, and then it is for them to say what the bytes are. They are nearly all commands that a server of counters gets, and this takes a tenth of the instructions.
//!
//! Invariant: it never says anything else than the long way, which a property test holds it to.

use quipu_model::{Brief, Name};

use crate::number;
use crate::resp::Limits;

/// A whole command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BriefFrame<'a> {
    /// What it asks for.
    pub brief: Brief<'a>,
    /// Which of these commands it is.
    pub word: Word,
    /// How many bytes of the input it took.
    pub bytes: usize,
}

/// Arguments of the longest of these commands, and the bytes of the longest one that is no name, a number: where less is allowed, the long way says so.
const ARGS_MAX: usize = 3;
const ARG_BYTES_MAX: usize = 20;

/// How such commands begin, as words, which are compared at once: how many arguments, and the bytes of the first.
const TWO_FOUR: u64 = u64::from_le_bytes(*b"*2\r\n$4\r\n");
const TWO_THREE: u64 = u64::from_le_bytes(*b"*2\r\n$3\r\n");
const THREE_SIX: u64 = u64::from_le_bytes(*b"*3\r\n$6\r\n");

/// The command at the beginning of the input, if it is one of these.
#[inline]
pub fn brief<'a>(input: &'a [u8], limits: &Limits) -> Option<BriefFrame<'a>> {
    let (head, rest) = input.split_first_chunk::<8>()?;
    // The two lengths in front of the word tell all of these words apart but two.
    let (word, rest) = match u64::from_le_bytes(*head) {
        TWO_FOUR => {
            let (word, rest) = rest.split_first_chunk::<4>()?;
            (Word::of_four(*word)?, rest)
        }
        TWO_THREE => {
            let (word, rest) = rest.split_first_chunk::<3>()?;
            (Word::of_three(*word)?, rest)
        }
        THREE_SIX => {
            let (word, rest) = rest.split_first_chunk::<6>()?;
            (Word::of_six(*word)?, rest)
        }
        _ => return None,
    };
    let (name, rest) = bulk(rest)?;
    let (delta, rest) = match word {
        Word::Get => (None, rest),
        Word::Incr => (Some(1), rest),
        Word::Decr => (Some(-1), rest),
        Word::IncrBy => {
            let (digits, rest) = bulk(rest)?;
            (Some(number::integer(digits)?), rest)
        }
        Word::DecrBy => {
            let (digits, rest) = bulk(rest)?;
            (Some(number::integer(digits)?.checked_neg()?), rest)
        }
    };
    let rest = rest.strip_prefix(b"\r\n")?;
    let bytes = input.len() - rest.len();
    if limits.args_max < ARGS_MAX
        || limits.bulk_bytes_max < name.len().max(ARG_BYTES_MAX)
        || bytes > limits.frame_bytes_max as usize
    {
        return None;
    }
    let name = Name::new(name).ok()?;
    Some(BriefFrame { brief: Brief { name, delta }, word, bytes })
}

/// A command of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// GET.
    Get,
    /// INCR.
    Incr,
    /// DECR.
    Decr,
    /// INCRBY.
    IncrBy,
    /// DECRBY.
    DecrBy,
}

/// The bit that makes a letter small; the only other byte that becomes a small letter with it is the large one.
const SMALL: u8 = 0x20;

impl Word {
    /// As the table of operations names it.
    pub fn command(self) -> &'static str {
        match self {
            Word::Get => "get",
            Word::Incr => "incr",
            Word::Decr => "decr",
            Word::IncrBy => "incrby",
            Word::DecrBy => "decrby",
        }
    }

    #[inline]
    fn of_three(word: [u8; 3]) -> Option<Word> {
        (word.map(|byte| byte | SMALL) == *b"get").then_some(Word::Get)
    }

    #[inline]
    fn of_four(word: [u8; 4]) -> Option<Word> {
        let word = u32::from_le_bytes(word) | u32::from_le_bytes([SMALL; 4]);
        if word == u32::from_le_bytes(*b"incr") {
            Some(Word::Incr)
        } else if word == u32::from_le_bytes(*b"decr") {
            Some(Word::Decr)
        } else {
            None
        }
    }

    #[inline]
    fn of_six(word: [u8; 6]) -> Option<Word> {
        match &word.map(|byte| byte | SMALL) {
            b"incrby" => Some(Word::IncrBy),
            b"decrby" => Some(Word::DecrBy),
            _ => None,
        }
    }
}

/// An argument of up to 999 bytes, with the end of the line before it, and what comes after it: the end of its own line. Empty ones are left to the long way.
#[inline]
pub(crate) fn bulk(input: &[u8]) -> Option<(&[u8], &[u8])> {
    // An argument that is not empty takes at least so much with the ends of its lines, so the longest form of a length can be looked at as a whole; a shorter one has bytes of what
    // follows it.
    let head = u64::from_le_bytes(*input.first_chunk::<8>()?);
    let digit = |at: u32| usize::from(((head >> (8 * at)) as u8).wrapping_sub(b'0'));
    let (one, two, three) = (digit(3), digit(4), digit(5));
    // No two of them can be meant at once: each has the end of a line where another has a digit.
    let (bytes, line) = if is_like(head, b"\r\n$??\r\n?") && two <= 9 {
        (one * 10 + two, 7)
    } else if is_like(head, b"\r\n$?\r\n??") {
        (one, 6)
    } else if is_like(head, b"\r\n$???\r\n") && two <= 9 && three <= 9 {
        (one * 100 + two * 10 + three, 8)
    } else {
        return None;
    };
    if one == 0 || one > 9 {
        return None;
    }
    input[line..].split_at_checked(bytes)
}

/// Whether eight bytes are these, whatever stands at the question marks.
#[inline(always)]
const fn is_like(head: u64, pattern: &[u8; 8]) -> bool {
    let (mut mask, mut at) = ([0xff; 8], 0);
    while at < 8 {
        if pattern[at] == b'?' {
            mask[at] = 0;
        }
        at += 1;
    }
    let mask = u64::from_le_bytes(mask);
    head & mask == u64::from_le_bytes(*pattern) & mask
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use quipu_model::Command;

    use super::*;
    use crate::command::{CounterRequest, Request};
    use crate::resp::{Decoder, Shape, request};
    use crate::{Spec, lookup};

    /// The same, the long way.
    pub(crate) fn long(input: &[u8], limits: &Limits) -> Option<(String, &'static Spec, usize)> {
        let mut decoder = Decoder::default();
        let frame = decoder.decode(input, limits).ok()??;
        let spec = lookup(&frame.args).ok()?;
        match spec.parse(&frame.args).ok()? {
            Request::Counter(CounterRequest { command, shape: Shape::Plain }) => {
                Some((format!("{command:?}"), spec, frame.bytes))
            }
            _ => None,
        }
    }

    fn agree(input: &[u8], limits: &Limits) -> Result<bool, TestCaseError> {
        let Some(BriefFrame { brief, word, bytes }) = brief(input, limits) else { return Ok(false) };
        let found = long(input, limits).map(|(command, spec, bytes)| (command, spec.name, bytes));
        prop_assert_eq!(found, Some((format!("{:?}", Command::from(brief)), word.command(), bytes)));
        Ok(true)
    }

    fn commands() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof!["[iI]ncr", "[dD]eCr", "GET|get", "INCRBY|incrby", "DECRBY", "SET|DEL|MGET|PING|INCREX"];
        let name = proptest::collection::vec(any::<u8>(), 0..600);
        let number = proptest::option::of(prop_oneof![any::<i64>().prop_map(|n| n.to_string()), "[-+0-9 ]{0,21}"]);
        (word, name, number).prop_map(|(word, name, number)| {
            let mut args = vec![word.as_bytes(), &name];
            args.extend(number.as_deref().map(str::as_bytes));
            request(&args)
        })
    }

    proptest! {
        #[test]
        fn what_it_says_is_what_the_long_way_says(
            command in commands(), more in commands(), cut in any::<prop::sample::Index>(),
            flip in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())), bulk_bytes_max in 0usize..700,
        ) {
            let limits = Limits { bulk_bytes_max, frame_bytes_max: 1_000, ..Limits::default() };
            let mut input = [command, more].concat();
            input.truncate(cut.index(input.len() + 1).max(20));
            if let Some((at, byte)) = flip {
                let at = at.index(input.len());
                input[at] = byte;
            }
            agree(&input, &limits)?;
            agree(&input, &Limits::default())?;
        }

        #[test]
        fn it_finds_the_usual_spellings(name in proptest::collection::vec(any::<u8>(), 1..513), delta: i64) {
            let delta = delta.max(-i64::MAX).to_string();
            for args in [vec![&b"INCR"[..]], vec![b"decr"], vec![b"Get"], vec![b"INCRBY", delta.as_bytes()], vec![b"DECRBY", delta.as_bytes()]] {
                let input = request(&[&[args[0], &name], &args[1..]].concat());
                prop_assert!(agree(&input, &Limits::default())?, "{:?}", input.escape_ascii().to_string());
                for end in 0..input.len() {
                    prop_assert_eq!(brief(&input[..end], &Limits::default()), None);
                }
            }
        }
    }
}

//! Decodes adds and reads of one counter without the table of operations.
//!
//! In: bytes that begin with a command. Out: the frame, if it is a complete command of this set in
//! its usual spelling; else `None`. Then the general path (decode, `lookup`, parse) reads the
//! bytes.
//!
//! A counter server receives almost only these commands. This path takes a tenth of the
//! instructions of the general path.
//!
//! Invariant: a frame decoded here equals the result of the general path. A property test checks
//! this.

use quipu_model::{Name, SimpleCommand};

use crate::number;
use crate::resp::Limits;

/// One complete command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimpleFrame<'a> {
    /// The command.
    pub command: SimpleCommand<'a>,
    /// The command's verb.
    pub verb: SimpleVerb,
    /// Input bytes that the frame takes.
    pub bytes: usize,
}

/// Most arguments of these commands, and the longest argument that is not a name: a number. If the
/// limits allow less, the general path refuses the command.
const ARGS_MAX: usize = 3;
const ARG_BYTES_MAX: usize = 20;

/// First eight bytes of such a command, compared as one word: number of arguments and length of the
/// first.
const TWO_FOUR: u64 = u64::from_le_bytes(*b"*2\r\n$4\r\n");
const TWO_THREE: u64 = u64::from_le_bytes(*b"*2\r\n$3\r\n");
const THREE_SIX: u64 = u64::from_le_bytes(*b"*3\r\n$6\r\n");

/// Decodes the command at the beginning of the input, if it is one of this set.
#[inline]
pub fn decode_simple<'a>(input: &'a [u8], limits: &Limits) -> Option<SimpleFrame<'a>> {
    let (head, rest) = input.split_first_chunk::<8>()?;
    // The two lengths before the verb identify all verbs except two.
    let (verb, rest) = match u64::from_le_bytes(*head) {
        TWO_FOUR => {
            let (verb, rest) = rest.split_first_chunk::<4>()?;
            (SimpleVerb::from_four_letters(*verb)?, rest)
        }
        TWO_THREE => {
            let (verb, rest) = rest.split_first_chunk::<3>()?;
            (SimpleVerb::from_three_letters(*verb)?, rest)
        }
        THREE_SIX => {
            let (verb, rest) = rest.split_first_chunk::<6>()?;
            (SimpleVerb::from_six_letters(*verb)?, rest)
        }
        _ => return None,
    };
    let (name, rest) = read_bulk(rest)?;
    let (delta, rest) = match verb {
        SimpleVerb::Get => (None, rest),
        SimpleVerb::Incr => (Some(1), rest),
        SimpleVerb::Decr => (Some(-1), rest),
        SimpleVerb::IncrBy => {
            let (digits, rest) = read_bulk(rest)?;
            (Some(number::integer(digits)?), rest)
        }
        SimpleVerb::DecrBy => {
            let (digits, rest) = read_bulk(rest)?;
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
    Some(SimpleFrame { command: SimpleCommand { name, delta }, verb, bytes })
}

/// Verb of a command of this set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimpleVerb {
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

/// The bit that makes an ASCII letter lower case. Apart from the lower-case letter itself, only its
/// upper-case form maps to it.
const SMALL: u8 = 0x20;

impl SimpleVerb {
    /// Name in the table of operations.
    pub fn name(self) -> &'static str {
        match self {
            SimpleVerb::Get => "get",
            SimpleVerb::Incr => "incr",
            SimpleVerb::Decr => "decr",
            SimpleVerb::IncrBy => "incrby",
            SimpleVerb::DecrBy => "decrby",
        }
    }

    #[inline]
    fn from_three_letters(verb: [u8; 3]) -> Option<SimpleVerb> {
        (verb.map(|byte| byte | SMALL) == *b"get").then_some(SimpleVerb::Get)
    }

    #[inline]
    fn from_four_letters(verb: [u8; 4]) -> Option<SimpleVerb> {
        let verb = u32::from_le_bytes(verb) | u32::from_le_bytes([SMALL; 4]);
        if verb == u32::from_le_bytes(*b"incr") {
            Some(SimpleVerb::Incr)
        } else if verb == u32::from_le_bytes(*b"decr") {
            Some(SimpleVerb::Decr)
        } else {
            None
        }
    }

    #[inline]
    fn from_six_letters(verb: [u8; 6]) -> Option<SimpleVerb> {
        match &verb.map(|byte| byte | SMALL) {
            b"incrby" => Some(SimpleVerb::IncrBy),
            b"decrby" => Some(SimpleVerb::DecrBy),
            _ => None,
        }
    }
}

/// Reads an argument of 1 to 999 bytes, with the line end before it. Returns the argument and the
/// remaining input, which begins with the argument's own line end. The general path reads empty
/// arguments.
#[inline]
pub(crate) fn read_bulk(input: &[u8]) -> Option<(&[u8], &[u8])> {
    // With its line ends an argument of at least one byte takes at least eight bytes. So all eight
    // bytes of the longest length line are present; for a shorter length they include bytes that
    // follow it.
    let head = u64::from_le_bytes(*input.first_chunk::<8>()?);
    let digit = |at: u32| usize::from(((head >> (8 * at)) as u8).wrapping_sub(b'0'));
    let (one, two, three) = (digit(3), digit(4), digit(5));
    // At most one pattern matches: each has a line end where another has a digit.
    let (bytes, line) = if matches_pattern(head, b"\r\n$??\r\n?") && two <= 9 {
        (one * 10 + two, 7)
    } else if matches_pattern(head, b"\r\n$?\r\n??") {
        (one, 6)
    } else if matches_pattern(head, b"\r\n$???\r\n") && two <= 9 && three <= 9 {
        (one * 100 + two * 10 + three, 8)
    } else {
        return None;
    };
    if one == 0 || one > 9 {
        return None;
    }
    input[line..].split_at_checked(bytes)
}

/// Returns true if the eight bytes match the pattern; `?` matches any byte.
#[inline(always)]
const fn matches_pattern(head: u64, pattern: &[u8; 8]) -> bool {
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
    use crate::resp::{Decoder, ReplyShape, request};
    use crate::{Spec, lookup};

    /// Decodes the same input on the general path.
    pub(crate) fn decode_general(input: &[u8], limits: &Limits) -> Option<(String, &'static Spec, usize)> {
        let mut decoder = Decoder::default();
        let frame = decoder.decode(input, limits).ok()??;
        let spec = lookup(&frame.args).ok()?;
        match spec.parse(&frame.args).ok()? {
            Request::Counter(CounterRequest { command, shape: ReplyShape::Plain }) => {
                Some((format!("{command:?}"), spec, frame.bytes))
            }
            _ => None,
        }
    }

    fn check_agreement(input: &[u8], limits: &Limits) -> Result<bool, TestCaseError> {
        let Some(SimpleFrame { command: simple, verb, bytes }) = decode_simple(input, limits) else { return Ok(false) };
        let found = decode_general(input, limits).map(|(command, spec, bytes)| (command, spec.name, bytes));
        prop_assert_eq!(found, Some((format!("{:?}", Command::from(simple)), verb.name(), bytes)));
        Ok(true)
    }

    fn commands() -> impl Strategy<Value = Vec<u8>> {
        let verb = prop_oneof!["[iI]ncr", "[dD]eCr", "GET|get", "INCRBY|incrby", "DECRBY", "SET|DEL|MGET|PING|INCREX"];
        let name = proptest::collection::vec(any::<u8>(), 0..600);
        let number = proptest::option::of(prop_oneof![any::<i64>().prop_map(|n| n.to_string()), "[-+0-9 ]{0,21}"]);
        (verb, name, number).prop_map(|(verb, name, number)| {
            let mut args = vec![verb.as_bytes(), &name];
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
            check_agreement(&input, &limits)?;
            check_agreement(&input, &Limits::default())?;
        }

        #[test]
        fn it_finds_the_usual_spellings(name in proptest::collection::vec(any::<u8>(), 1..513), delta: i64) {
            let delta = delta.max(-i64::MAX).to_string();
            for args in [vec![&b"INCR"[..]], vec![b"decr"], vec![b"Get"], vec![b"INCRBY", delta.as_bytes()], vec![b"DECRBY", delta.as_bytes()]] {
                let input = request(&[&[args[0], &name], &args[1..]].concat());
                prop_assert!(check_agreement(&input, &Limits::default())?, "{:?}", input.escape_ascii().to_string());
                for end in 0..input.len() {
                    prop_assert_eq!(decode_simple(&input[..end], &Limits::default()), None);
                }
            }
        }
    }
}

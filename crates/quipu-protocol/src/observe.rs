//! Observations of one item, found without a look into the table of operations: `PFADD name item` and `QUIPU.OBSERVE name item`.
//!
//! In: bytes that begin with a command. Out: the same that decoding, looking up and parsing would make of them, if they are one of these commands in their usual spelling and whole; else nothing, and then it is for
//! them to say what the bytes are.
//!
//! Whoever observes, observes in a few sketches, again and again: of a command on the sketch of the one before only the item is looked at.
//!
//! Invariant: it never says anything else than the long way, which a property test holds it to.

use quipu_model::{Dialect, Name};

use crate::brief::bulk;
use crate::resp::Limits;

/// A whole command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObserveFrame<'a> {
    /// In which sketch.
    pub name: Name<'a>,
    /// Of which form it is if it is made.
    pub dialect: Dialect,
    /// What is observed.
    pub item: &'a [u8],
    /// All that comes before the item: commands that begin with the same are on the same sketch.
    head: &'a [u8],
    /// How many bytes of the input it took.
    pub bytes: usize,
}

impl<'a> ObserveFrame<'a> {
    /// As the table of operations names it.
    pub fn command(&self) -> &'static str {
        match self.dialect {
            Dialect::Redis => "pfadd",
            Dialect::Native => "quipu.observe",
        }
    }

    /// The next command, if it is one on the same sketch: its item, and how many bytes it took.
    #[inline]
    pub fn next(&self, input: &'a [u8], limits: &Limits) -> Option<(&'a [u8], usize)> {
        let (item, rest) = item(input.strip_prefix(self.head)?)?;
        let bytes = input.len() - rest.len();
        is_within(limits, &[item], bytes).then_some((item, bytes))
    }
}

/// Arguments of these commands, and the bytes of the longest word: where less is allowed, the long way says so.
const ARGS: usize = 3;
const WORD_BYTES_MAX: usize = 13;

/// The command at the beginning of the input, if it is one of these.
pub fn observe<'a>(input: &'a [u8], limits: &Limits) -> Option<ObserveFrame<'a>> {
    let (dialect, rest) = word(input, b"*3\r\n$5\r\n", b"pfadd")
        .map(|rest| (Dialect::Redis, rest))
        .or_else(|| word(input, b"*3\r\n$13\r\n", b"quipu.observe").map(|rest| (Dialect::Native, rest)))?;
    let (name, rest) = bulk(rest)?;
    let head = &input[..input.len() - rest.len()];
    let (item, rest) = item(rest)?;
    let bytes = input.len() - rest.len();
    if limits.args_max < ARGS || limits.bulk_bytes_max < WORD_BYTES_MAX || !is_within(limits, &[name, item], bytes) {
        return None;
    }
    Some(ObserveFrame { name: Name::new(name).ok()?, dialect, item, head, bytes })
}

/// What comes after these lengths and this word, in large letters or small ones.
fn word<'a>(input: &'a [u8], lengths: &[u8], word: &[u8]) -> Option<&'a [u8]> {
    let (spelled, rest) = input.strip_prefix(lengths)?.split_at_checked(word.len())?;
    spelled.eq_ignore_ascii_case(word).then_some(rest)
}

/// The last argument, and what comes after the end of its line.
#[inline]
fn item(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (item, rest) = bulk(input)?;
    Some((item, rest.strip_prefix(b"\r\n")?))
}

#[inline]
fn is_within(limits: &Limits, args: &[&[u8]], bytes: usize) -> bool {
    args.iter().all(|arg| arg.len() <= limits.bulk_bytes_max) && bytes <= limits.frame_bytes_max as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quipu_model::{Command, SketchCommand};

    use super::*;
    use crate::brief::tests::long;
    use crate::resp::request;

    fn said(name: Name<'_>, item: &[u8], dialect: Dialect) -> String {
        format!("{:?}", Command::Sketch(SketchCommand::Observe { name, items: vec![item], dialect }))
    }

    fn agree(input: &[u8], limits: &Limits) -> Result<bool, TestCaseError> {
        let Some(first) = observe(input, limits) else { return Ok(false) };
        let found = long(input, limits).map(|(command, spec, bytes)| (command, spec.name, bytes));
        prop_assert_eq!(found, Some((said(first.name, first.item, first.dialect), first.command(), first.bytes)));
        let rest = &input[first.bytes..];
        if let Some((item, bytes)) = first.next(rest, limits) {
            let found = long(rest, limits).map(|(command, spec, bytes)| (command, spec.name, bytes));
            prop_assert_eq!(found, Some((said(first.name, item, first.dialect), first.command(), bytes)));
        }
        Ok(true)
    }

    fn commands() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof!["[pP]F[aA]dd", "QUIPU\\.observe", "PFCOUNT|INCRBY|TOPK.ADD"];
        let name = prop_oneof![Just(b"visitors".to_vec()), proptest::collection::vec(any::<u8>(), 0..600)];
        let items = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..3);
        (word, name, items).prop_map(|(word, name, items)| {
            let args = [word.as_bytes(), &name].into_iter().chain(items.iter().map(Vec::as_slice));
            request(&args.collect::<Vec<_>>())
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
        fn it_finds_the_usual_spellings(
            name in proptest::collection::vec(any::<u8>(), 1..513), item in proptest::collection::vec(any::<u8>(), 1..999),
        ) {
            for word in [&b"PFADD"[..], b"pfadd", b"QUIPU.OBSERVE"] {
                let input = request(&[word, &name, &item]);
                prop_assert!(agree(&input, &Limits::default())?, "{:?}", input.escape_ascii().to_string());
                let first = observe(&input, &Limits::default()).expect("it is found");
                prop_assert_eq!(first.next(&input, &Limits::default()), Some((&item[..], input.len())));
                for end in 0..input.len() {
                    prop_assert_eq!(observe(&input[..end], &Limits::default()), None);
                    prop_assert_eq!(first.next(&input[..end], &Limits::default()), None);
                }
            }
        }
    }
}

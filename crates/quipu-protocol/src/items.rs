//! Decodes commands that count one item in a sketch, without the table of operations:
//! `PFADD name item`, `TOPK.ADD name item`, `CMS.INCRBY name item by` and the similar ones of
//! Quipu.
//!
//! In: bytes that begin with a command. Out: the frame, if it is a complete command of this set in
//! its usual spelling; else `None`. Then the general path (decode, `lookup`, parse) reads the
//! bytes.
//!
//! A client that counts items uses a few sketches repeatedly. For a command on the previous
//! command's sketch, this module reads only the bytes after the name.
//!
//! Invariant: a frame decoded here equals the result of the general path. A property test checks
//! this.

use quipu_model::{Dialect, FrequencySize, Name, SketchCommand, TopSize};

use crate::number;
use crate::resp::Limits;
use crate::simple::read_bulk;

/// One complete command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemFrame<'a> {
    /// Name of the sketch.
    pub name: Name<'a>,
    /// Item and count.
    pub item: ItemCount<'a>,
    /// Verb.
    verb: &'static ItemVerb,
    /// All bytes before the item: commands with the same head are on the same sketch.
    head: &'a [u8],
    /// Input bytes that the frame takes.
    pub bytes: usize,
}

/// An item and its count.
pub type ItemCount<'a> = (&'a [u8], u64);

/// Kind of the sketch, and its dialect if the command creates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SketchTarget {
    /// Number of unique items.
    Unique(Dialect),
    /// Frequency of each item.
    Frequency(Dialect),
    /// Most frequent items.
    Top(Dialect),
}

/// Spelling of one of these commands.
#[derive(Debug, PartialEq, Eq)]
struct ItemVerb {
    /// Bytes before the name.
    lengths: &'static [u8],
    /// Name in the table of operations.
    name: &'static str,
    target: SketchTarget,
    /// Largest count that the command may give; `None` if it gives none.
    by_max: Option<u64>,
}

const VERBS: [ItemVerb; 7] = [
    ItemVerb { lengths: b"*3\r\n$5\r\n", name: "pfadd", target: SketchTarget::Unique(Dialect::Redis), by_max: None },
    ItemVerb {
        lengths: b"*3\r\n$13\r\n",
        name: "quipu.observe",
        target: SketchTarget::Unique(Dialect::Native),
        by_max: None,
    },
    ItemVerb { lengths: b"*3\r\n$8\r\n", name: "topk.add", target: SketchTarget::Top(Dialect::Redis), by_max: None },
    ItemVerb {
        lengths: b"*4\r\n$11\r\n",
        name: "topk.incrby",
        target: SketchTarget::Top(Dialect::Redis),
        by_max: Some(100_000),
    },
    ItemVerb {
        lengths: b"*4\r\n$13\r\n",
        name: "quipu.top.add",
        target: SketchTarget::Top(Dialect::Native),
        by_max: Some(u64::MAX),
    },
    ItemVerb {
        lengths: b"*4\r\n$10\r\n",
        name: "cms.incrby",
        target: SketchTarget::Frequency(Dialect::Redis),
        by_max: Some(i64::MAX as u64),
    },
    ItemVerb {
        lengths: b"*4\r\n$14\r\n",
        name: "quipu.freq.add",
        target: SketchTarget::Frequency(Dialect::Native),
        by_max: Some(u64::MAX),
    },
];

impl ItemVerb {
    /// Strips it from the beginning of the input, in upper or lower case.
    fn strip<'a>(&self, input: &'a [u8]) -> Option<&'a [u8]> {
        let (spelled, rest) = input.strip_prefix(self.lengths)?.split_at_checked(self.name.len())?;
        spelled.eq_ignore_ascii_case(self.name.as_bytes()).then_some(rest)
    }

    /// Reads the item after the name; returns the remaining input as well.
    #[inline]
    fn read_item<'a>(&self, input: &'a [u8], limits: &Limits) -> Option<(ItemCount<'a>, &'a [u8])> {
        let (item, rest) = read_bulk(input)?;
        let (by, rest) = match self.by_max {
            None => (1, rest),
            Some(by_max) => {
                let (by, rest) = read_bulk(rest)?;
                (number::natural(by).filter(|number| *number <= by_max && by.len() <= limits.bulk_bytes_max)?, rest)
            }
        };
        Some(((item, by), rest.strip_prefix(b"\r\n")?)).filter(|_| item.len() <= limits.bulk_bytes_max)
    }
}

impl<'a> ItemFrame<'a> {
    /// Name in the table of operations.
    pub fn command_name(&self) -> &'static str {
        self.verb.name
    }

    /// Kind of the sketch that counts.
    pub fn target(&self) -> SketchTarget {
        self.verb.target
    }

    /// The command that counts these items as well, if its reply lists each item.
    pub fn command_for(&self, items: &[ItemCount<'a>]) -> Option<SketchCommand<'a>> {
        let (name, items) = (self.name, items.to_vec());
        match self.verb.target {
            SketchTarget::Unique(_) => None,
            SketchTarget::Frequency(dialect) => {
                let make = (dialect == Dialect::Native).then(FrequencySize::default_size);
                Some(SketchCommand::CountItems { name, items, make, dialect })
            }
            SketchTarget::Top(dialect) => {
                let make = (dialect == Dialect::Native).then(TopSize::default_size);
                Some(SketchCommand::CountTop { name, items, make, dialect })
            }
        }
    }

    /// The next command, if it is on the same sketch: its item, and the input bytes it takes.
    #[inline]
    pub fn next(&self, input: &'a [u8], limits: &Limits) -> Option<(ItemCount<'a>, usize)> {
        let (item, rest) = self.verb.read_item(input.strip_prefix(self.head)?, limits)?;
        let bytes = input.len() - rest.len();
        (bytes <= limits.frame_bytes_max as usize).then_some((item, bytes))
    }
}

/// Most arguments of these commands, and the bytes of the longest verb. If the limits allow less,
/// the general path refuses the command.
const ARGS_MAX: usize = 4;
const VERB_BYTES_MAX: usize = 14;

/// Decodes the command at the beginning of the input, if it is one of this set.
pub fn decode_item<'a>(input: &'a [u8], limits: &Limits) -> Option<ItemFrame<'a>> {
    let (verb, rest) = VERBS.iter().find_map(|verb| Some((verb, verb.strip(input)?)))?;
    let (name, rest) = read_bulk(rest)?;
    let head = &input[..input.len() - rest.len()];
    let (item, rest) = verb.read_item(rest, limits)?;
    let bytes = input.len() - rest.len();
    if limits.args_max < ARGS_MAX
        || limits.bulk_bytes_max < name.len().max(VERB_BYTES_MAX)
        || bytes > limits.frame_bytes_max as usize
    {
        return None;
    }
    Some(ItemFrame { name: Name::new(name).ok()?, item, verb, head, bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quipu_model::Command;

    use super::*;
    use crate::resp::request;
    use crate::simple::tests::decode_general;

    fn command_text<'a>(frame: &ItemFrame<'a>, item: ItemCount<'a>) -> String {
        let command = match frame.target() {
            SketchTarget::Unique(dialect) => SketchCommand::Observe { name: frame.name, items: vec![item.0], dialect },
            SketchTarget::Frequency(_) | SketchTarget::Top(_) => {
                frame.command_for(&[item]).expect("it tells of each by itself")
            }
        };
        format!("{:?}", Command::Sketch(command))
    }

    fn check_agreement(input: &[u8], limits: &Limits) -> Result<bool, TestCaseError> {
        let Some(first) = decode_item(input, limits) else { return Ok(false) };
        let found = decode_general(input, limits).map(|(command, spec, bytes)| (command, spec.name, bytes));
        prop_assert_eq!(found, Some((command_text(&first, first.item), first.command_name(), first.bytes)));
        let rest = &input[first.bytes..];
        if let Some((item, bytes)) = first.next(rest, limits) {
            let found = decode_general(rest, limits).map(|(command, spec, bytes)| (command, spec.name, bytes));
            prop_assert_eq!(found, Some((command_text(&first, item), first.command_name(), bytes)));
        }
        Ok(true)
    }

    fn commands() -> impl Strategy<Value = Vec<u8>> {
        let verb = prop_oneof![
            "[pP]F[aA]dd",
            "QUIPU\\.observe",
            "[tT]OPK\\.(ADD|INCRBY)",
            "cms\\.incrby",
            "QUIPU\\.(freq|top)\\.add",
            "PFCOUNT|INCRBY|TOPK.LIST"
        ];
        let name = prop_oneof![Just(b"visitors".to_vec()), proptest::collection::vec(any::<u8>(), 0..600)];
        let by = prop_oneof!["[0-9]{1,20}", "-?[0-9]{1,7}"].prop_map(String::into_bytes);
        let item = prop_oneof![proptest::collection::vec(any::<u8>(), 0..20), by];
        let items = proptest::collection::vec(item, 0..4);
        (verb, name, items).prop_map(|(verb, name, items)| {
            let args = [verb.as_bytes(), &name].into_iter().chain(items.iter().map(Vec::as_slice));
            request(&args.collect::<Vec<_>>())
        })
    }

    proptest! {
        #[test]
        fn what_it_says_is_what_the_long_way_says(
            command in commands(), more in commands(), same in any::<bool>(), cut in any::<prop::sample::Index>(),
            flip in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())), bulk_bytes_max in 0usize..700,
        ) {
            let limits = Limits { bulk_bytes_max, frame_bytes_max: 1_000, ..Limits::default() };
            let more = if same { command.clone() } else { more };
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
        fn it_finds_the_usual_spellings(
            name in proptest::collection::vec(any::<u8>(), 1..513), item in proptest::collection::vec(any::<u8>(), 1..999),
            by in 0u64..=100_000,
        ) {
            let by_text = by.to_string();
            let words = ["PFADD", "pfadd", "QUIPU.OBSERVE", "TOPK.ADD", "TOPK.INCRBY", "cms.incrby", "QUIPU.FREQ.ADD", "quipu.top.add"];
            for (verb, says_by) in words.iter().zip([false, false, false, false, true, true, true, true]) {
                let mut args = vec![verb.as_bytes(), &name, &item];
                args.extend(says_by.then_some(by_text.as_bytes()));
                let input = request(&args);
                prop_assert!(check_agreement(&input, &Limits::default())?, "{:?}", input.escape_ascii().to_string());
                let first = decode_item(&input, &Limits::default()).expect("it is found");
                let counted = (&item[..], if says_by { by } else { 1 });
                prop_assert_eq!(first.next(&input, &Limits::default()), Some((counted, input.len())));
                for end in 0..input.len() {
                    prop_assert_eq!(decode_item(&input[..end], &Limits::default()), None);
                    prop_assert_eq!(first.next(&input[..end], &Limits::default()), None);
                }
            }
        }
    }
}

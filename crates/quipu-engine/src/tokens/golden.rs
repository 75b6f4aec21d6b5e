//! Pins the bytes that recognise a retry after an upgrade, under `testdata/`.
//!
//! For every token a journal keeps its key, the digest of its commands, its outcome and its claim.
//! A program that computes one of them differently does not recognise a retry of a command that the
//! program before it has answered.
//!
//! These tests never write the files: a failing test prints the lines that differ.
//! `tests/it/golden.rs` pins the bytes of whole journals.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use quipu_model::shared::ClaimToken;
use quipu_model::{
    AddWithin, Dialect, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, Fraction, FrequencySize, Incarnation,
    ListNames, Name, Pattern, Relation, Scan, Set, SetCondition, SetExpiry, SetString, SketchCommand, StoredList,
    StoredReply, TopSize,
};

use super::*;
use crate::journal::claim_record::ClaimRecord;
use crate::journal::stored_outcome::{put_outcome, take_outcome};

/// The secret of the directory that the pinned keys and digests belong to.
const SEED: u64 = 0x0123_4567_89ab_cdef;

/// Labels of an enum's variants, and a function from a value to its label. A new variant does not
/// compile without a label, and a label needs a line. Labels are independent of the names in the
/// code, which may change.
macro_rules! labels {
    ($all:ident $of:ident $enum:ident: $($variant:ident $label:literal)+) => {
        const $all: &[&str] = &[$($label),+];

        fn $of(value: &$enum) -> &'static str {
            match value {
                $($enum::$variant { .. } => $label,)+
            }
        }
    };
}

labels!(COMMANDS command_label Command:
    Add "add" AddSampled "add-sampled" AddWithin "add-within" Read "read" ReadMany "read-many" Set "set" Take "take"
    ReadAndExpire "read-and-expire" Reset "reset" Delete "delete" Exists "exists" KindOf "kind-of" Expire "expire"
    Persist "persist" ExpiryOf "expiry-of" Scan "scan" ListNames "list-names" CountNames "count-names" Flush "flush"
    Sketch "sketch"
);
labels!(SKETCH_COMMANDS sketch_command_label SketchCommand:
    At "at" Observe "observe" CountUnique "count-unique" MergeUnique "merge-unique" RelateUnique "relate-unique"
    ReadRange "read-range" StringLength "string-length" SetString "set-string" MakeFrequency "make-frequency"
    CountItems "count-items" ReadItems "read-items" MergeFrequency "merge-frequency" FrequencyInfo "frequency-info"
    MakeTop "make-top" CountTop "count-top" IsTop "is-top" ReadTop "read-top" ListTop "list-top" TopInfo "top-info"
);
labels!(OUTCOMES outcome_label StoredReply:
    Ok "ok" Nil "nil" Integer "integer" Value "value" Absent "absent" Pair "pair" List "listed"
);
labels!(LISTS listed_label StoredList: Bytes "bytes" Integers "integers" Items "items");
labels!(SET_CONDITIONS set_condition_label SetCondition:
    Always "always" IfAbsent "if-absent" IfPresent "if-present"
);
labels!(SET_EXPIRIES set_expiry_label SetExpiry: Remove "remove" Keep "keep" At "at");
labels!(EXPIRIES expiry_label Expiry: Keep "keep" Remove "remove" At "at");
labels!(TIMES when_label ExpiryTime: In "in" At "at");
labels!(EXPIRY_CONDITIONS expiry_condition_label ExpiryCondition:
    Always "always" IfNone "if-none" IfSome "if-some" IfLater "if-later" IfEarlier "if-earlier"
    IfSomeEarlier "if-some-earlier"
);
labels!(DIALECTS dialect_label Dialect: Redis "redis" Native "native");
labels!(FREQUENCY_SIZES frequency_size_label FrequencySize: Dimensions "dimensions" Accuracy "accuracy");

const SET_CONDITION_VALUES: [SetCondition; 3] = [SetCondition::Always, SetCondition::IfAbsent, SetCondition::IfPresent];
const EXPIRY_CONDITION_VALUES: [ExpiryCondition; 6] = [
    ExpiryCondition::Always,
    ExpiryCondition::IfNone,
    ExpiryCondition::IfSome,
    ExpiryCondition::IfLater,
    ExpiryCondition::IfEarlier,
    ExpiryCondition::IfSomeEarlier,
];
const TIME_VALUES: [ExpiryTime; 2] = [ExpiryTime::In(60_000), ExpiryTime::At(1_780_000_000_000)];
const DIALECT_VALUES: [Dialect; 2] = [Dialect::Redis, Dialect::Native];

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn fraction(number: f64) -> Fraction {
    Fraction::new(number).unwrap()
}

fn set_expiries() -> Vec<SetExpiry> {
    [SetExpiry::Remove, SetExpiry::Keep].into_iter().chain(TIME_VALUES.map(SetExpiry::At)).collect()
}

fn expiries() -> Vec<Expiry> {
    [Expiry::Keep, Expiry::Remove].into_iter().chain(TIME_VALUES.map(Expiry::At)).collect()
}

fn frequency_sizes() -> [FrequencySize; 2] {
    let (error, probability) = (fraction(0.001), fraction(0.01));
    [FrequencySize::Dimensions { width: 2_000, depth: 5 }, FrequencySize::Accuracy { error, probability }]
}

/// The label of an expiry; for a time, the label of that time.
fn timed_label(expiry: &Expiry) -> &'static str {
    if let Expiry::At(when) = expiry { when_label(when) } else { expiry_label(expiry) }
}

/// Commands, each with a label that distinguishes it within its variant.
fn commands() -> Vec<(String, Command<'static>)> {
    let mut rows: Vec<(String, Command<'static>)> = Vec::new();
    let mut row = |label: &str, command: Command<'static>| rows.push((label.to_owned(), command));
    let (one, two) = (name("likes:42"), name("b"));
    row("", Command::Add { name: one, delta: 1, shard_key: None });
    row("negative", Command::Add { name: one, delta: -3, shard_key: None });
    row("empty name", Command::Add { name: name(""), delta: 1, shard_key: None });
    row("shard_key", Command::Add { name: one, delta: 1, shard_key: Some(b"user:7") });
    row("empty shard_key", Command::Add { name: one, delta: 1, shard_key: Some(b"") });
    row("", Command::AddSampled { name: one, amount: 300, p: 100 });
    let within = AddWithin {
        name: one,
        delta: 5,
        lower: -10,
        upper: 100,
        saturate: false,
        expiry: Expiry::Keep,
        expiry_if_none: false,
    };
    for expiry in expiries() {
        let label = format!("expiry {}", timed_label(&expiry));
        row(&label, Command::AddWithin(AddWithin { expiry, ..within.clone() }));
    }
    row("saturate", Command::AddWithin(AddWithin { saturate: true, ..within.clone() }));
    row("expiry_if_none", Command::AddWithin(AddWithin { expiry_if_none: true, ..within }));
    row("", Command::Read { name: one });
    row("", Command::ReadMany { names: vec![one, two] });
    let set = Set { name: one, value: 7, condition: SetCondition::Always, expiry: SetExpiry::Remove, reply_old: false };
    for condition in SET_CONDITION_VALUES {
        let label = format!("condition {}", set_condition_label(&condition));
        row(&label, Command::Set(Set { condition, ..set.clone() }));
    }
    for expiry in set_expiries() {
        let label = format!("expiry {}", timed_label(&expiry.into()));
        row(&label, Command::Set(Set { expiry, ..set.clone() }));
    }
    row("reply_old", Command::Set(Set { reply_old: true, ..set }));
    row("", Command::Take { name: one });
    for expiry in expiries() {
        let label = format!("expiry {}", timed_label(&expiry));
        row(&label, Command::ReadAndExpire { name: one, expiry });
    }
    row("", Command::Reset { name: one });
    row("one", Command::Delete { names: vec![one] });
    row("two", Command::Delete { names: vec![one, two] });
    row("", Command::Exists { names: vec![one] });
    row("", Command::KindOf { name: one });
    for condition in EXPIRY_CONDITION_VALUES {
        let label = format!("condition {}", expiry_condition_label(&condition));
        row(&label, Command::Expire { name: one, when: TIME_VALUES[0], condition });
    }
    for when in TIME_VALUES {
        let label = format!("when {}", when_label(&when));
        row(&label, Command::Expire { name: one, when, condition: ExpiryCondition::Always });
    }
    row("", Command::Persist { name: one });
    row("", Command::ExpiryOf { name: one, form: ExpiryForm::MillisLeft });
    row("", Command::Scan(Scan { cursor: 0, pattern: None, count: 10 }));
    row("", Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1_000 }));
    row("", Command::CountNames);
    row("", Command::Flush);
    for (label, command) in sketch_commands() {
        row(&label, Command::Sketch(command));
    }
    rows
}

fn sketch_commands() -> Vec<(String, SketchCommand<'static>)> {
    let mut rows: Vec<(String, SketchCommand<'static>)> = Vec::new();
    let mut row = |label: &str, command: SketchCommand<'static>| rows.push((label.to_owned(), command));
    let (one, two) = (name("pages:1"), name("b"));
    let items = || -> Vec<&'static [u8]> { vec![b"alice", b""] };
    let counted = || -> Vec<(&'static [u8], u64)> { vec![(b"alice", 2), (b"bob", 1)] };
    let top = TopSize { k: 10, width: 8, depth: 7, decay: fraction(0.9) };
    for dialect in DIALECT_VALUES {
        let label = dialect_label(&dialect);
        let timed = [
            SketchCommand::Observe { name: one, items: items(), dialect },
            SketchCommand::CountItems { name: one, items: counted(), make: None, dialect },
            SketchCommand::CountTop { name: one, items: counted(), make: None, dialect },
        ];
        for command in timed {
            row(label, command.clone());
            let core = format!("{} {label}", sketch_command_label(&command));
            row(&core, SketchCommand::At { at: Millis(1_780_000_000_000), command: Box::new(command) });
        }
        row(label, SketchCommand::CountUnique { names: vec![one], dialect });
        row(label, SketchCommand::MergeUnique { names: vec![one, two], dialect });
        for size in frequency_sizes() {
            let label = format!("{label} {}", frequency_size_label(&size));
            row(&label, SketchCommand::MakeFrequency { name: one, size, dialect });
            row(&label, SketchCommand::CountItems { name: one, items: counted(), make: Some(size), dialect });
        }
        row(label, SketchCommand::ReadItems { name: one, items: items(), dialect });
        row(label, SketchCommand::MergeFrequency { names: vec![one, two], weights: vec![3], dialect });
        row(label, SketchCommand::FrequencyInfo { name: one, dialect });
        row(label, SketchCommand::MakeTop { name: one, size: top, dialect });
        row(
            &format!("{label} make"),
            SketchCommand::CountTop { name: one, items: counted(), make: Some(top), dialect },
        );
        row(label, SketchCommand::IsTop { name: one, items: items(), dialect });
        row(label, SketchCommand::ReadTop { name: one, items: items(), dialect });
        row(label, SketchCommand::ListTop { name: one, dialect });
        row(label, SketchCommand::TopInfo { name: one, dialect });
    }
    row(
        "negative weight",
        SketchCommand::MergeFrequency { names: vec![one, two], weights: vec![-3], dialect: Dialect::Redis },
    );
    row("", SketchCommand::RelateUnique { names: [one, two], relation: Relation::Difference });
    row("", SketchCommand::ReadRange { name: one, from: 0, to: -1 });
    row("", SketchCommand::StringLength { name: one });
    let set = SetString {
        name: one,
        bytes: b"HYLL",
        condition: SetCondition::Always,
        expiry: SetExpiry::Remove,
        reply_old: false,
    };
    for condition in SET_CONDITION_VALUES {
        let label = format!("condition {}", set_condition_label(&condition));
        row(&label, SketchCommand::SetString(SetString { condition, ..set.clone() }));
    }
    for expiry in set_expiries() {
        let label = format!("expiry {}", timed_label(&expiry.into()));
        row(&label, SketchCommand::SetString(SetString { expiry, ..set.clone() }));
    }
    row("reply_old", SketchCommand::SetString(SetString { reply_old: true, ..set }));
    rows
}

/// Every form of an outcome, with the values at which an encoding may change.
fn outcomes() -> Vec<(String, StoredReply)> {
    let listed = |listed: StoredList| StoredReply::List(Box::new(listed));
    let items = vec![Some(Box::from(*b"alice")), None, Some(Box::default())];
    let rows = [
        ("", StoredReply::Ok),
        ("", StoredReply::Nil),
        ("0", StoredReply::Integer(0)),
        ("-1", StoredReply::Integer(-1)),
        ("most", StoredReply::Integer(i64::MAX)),
        ("least", StoredReply::Integer(i64::MIN)),
        ("42", StoredReply::Value(42)),
        ("", StoredReply::Absent),
        ("42 -3", StoredReply::Pair(Box::new((42, -3)))),
        ("none", listed(StoredList::Bytes(Box::default()))),
        ("HYLL", listed(StoredList::Bytes(Box::from(*b"HYLL")))),
        ("none", listed(StoredList::Integers(Vec::new()))),
        ("42 -3", listed(StoredList::Integers(vec![42, -3]))),
        ("none", listed(StoredList::Items(Vec::new()))),
        ("item, nil, empty item", listed(StoredList::Items(items))),
    ];
    rows.map(|(label, outcome)| (label.to_owned(), outcome)).into()
}

fn tokens_of_directory() -> Tokens {
    Tokens::new(&Options::new("nowhere"), SEED, Millis(0), (0, 0))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_of_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().as_chunks::<2>().0;
    digits.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A golden file: lines of a label, `=` and values.
struct GoldenFile {
    file: &'static str,
    text: String,
}

impl GoldenFile {
    fn read(file: &'static str) -> GoldenFile {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
        GoldenFile { file, text: std::fs::read_to_string(path).unwrap_or_default() }
    }

    fn lines(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(|line| line.split_once(" = ").expect("a line is a label, `=` and values"))
    }

    /// Fails with every line that differs, and with the meaning of a difference.
    fn compare(&self, lines: &[(String, String)], meaning: &str) {
        let labels: BTreeSet<&str> = lines.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(labels.len(), lines.len(), "every line has a label of its own");
        let (mut changed, mut new, mut gone) = (String::new(), String::new(), String::new());
        for (label, values) in lines {
            match self.lines().find(|(pinned, _)| pinned == label) {
                Some((_, pinned)) if pinned == values => {}
                Some((_, pinned)) => {
                    let _ = writeln!(changed, "- {label} = {pinned}\n+ {label} = {values}");
                }
                None => {
                    let _ = writeln!(new, "{label} = {values}");
                }
            }
        }
        for (label, _) in self.lines().filter(|(label, _)| !labels.contains(label)) {
            let _ = writeln!(gone, "{label}");
        }
        let file = self.file;
        assert!(changed.is_empty(), "testdata/{file} differs:\n{changed}{meaning}");
        assert!(new.is_empty(), "testdata/{file} lacks these lines; what is new has to be added:\n{new}");
        assert!(gone.is_empty(), "testdata/{file} has lines that no test computes any more:\n{gone}{meaning}");
        assert_eq!(self.lines().count(), lines.len(), "testdata/{file} has a line twice");
    }
}

/// Label of a variant, and of a value within it.
fn labelled(variant: &str, label: &str) -> String {
    if label.is_empty() { variant.to_owned() } else { format!("{variant} {label}") }
}

fn assert_all_occur<'a>(all: &[&str], found: impl IntoIterator<Item = &'a str>) {
    let found: BTreeSet<&str> = found.into_iter().collect();
    let lacking: Vec<&&str> = all.iter().filter(|label| !found.contains(**label)).collect();
    assert!(lacking.is_empty(), "these have no line: {lacking:?}");
}

#[test]
fn every_command_has_the_digest_that_journals_know_it_by() {
    let tokens = tokens_of_directory();
    let digest_of = |commands: &[Command<'_>]| match tokens.digest(commands) {
        Some(digest) => {
            let mut bytes = Vec::new();
            assert!(commands.iter().all(|command| append_payload(command, &mut bytes)));
            format!("{digest:016x} {}", hex(&bytes))
        }
        None => "no mutation".to_owned(),
    };
    let commands = commands();
    let mut lines: Vec<(String, String)> = commands
        .iter()
        .map(|(label, command)| {
            let variant = command_label(command);
            let variant = match command {
                Command::Sketch(sketch) => format!("{variant} {}", sketch_command_label(sketch)),
                _ => variant.to_owned(),
            };
            (labelled(&variant, label), digest_of(std::slice::from_ref(command)))
        })
        .collect();
    let set = |text: &'static str, value| {
        let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
        Command::Set(Set { name: name(text), value, condition, expiry, reply_old: false })
    };
    lines.push(("set, set".to_owned(), digest_of(&[set("a", 1), set("b", 2)])));
    GoldenFile::read("token-digests.txt").compare(
        &lines,
        "A journal holds the digest of what was applied under a token. With another digest the retry of a client, over \
         an upgrade, is refused as TokenMismatch although it is the same command.",
    );

    assert_all_occur(COMMANDS, commands.iter().map(|(_, command)| command_label(command)));
    let sketches = commands.iter().filter_map(|(_, command)| match command {
        Command::Sketch(sketch) => Some(sketch_command_label(sketch)),
        _ => None,
    });
    assert_all_occur(SKETCH_COMMANDS, sketches);
    assert_all_occur(SET_CONDITIONS, SET_CONDITION_VALUES.iter().map(set_condition_label));
    assert_all_occur(SET_EXPIRIES, set_expiries().iter().map(set_expiry_label));
    assert_all_occur(EXPIRIES, expiries().iter().map(expiry_label));
    assert_all_occur(TIMES, TIME_VALUES.iter().map(when_label));
    assert_all_occur(EXPIRY_CONDITIONS, EXPIRY_CONDITION_VALUES.iter().map(expiry_condition_label));
    assert_all_occur(DIALECTS, DIALECT_VALUES.iter().map(dialect_label));
    assert_all_occur(FREQUENCY_SIZES, frequency_sizes().iter().map(frequency_size_label));
}

#[test]
fn every_outcome_has_the_bytes_that_journals_have_of_it_and_is_read_back() {
    let golden = GoldenFile::read("token-outcomes.txt");
    let outcomes = outcomes();
    let label_of = |label: &str, outcome: &StoredReply| match outcome {
        StoredReply::List(listed) => labelled(&format!("listed {}", listed_label(listed)), label),
        _ => labelled(outcome_label(outcome), label),
    };
    let lines: Vec<(String, String)> = outcomes
        .iter()
        .map(|(label, outcome)| {
            let mut bytes = Vec::new();
            put_outcome(&mut bytes, outcome);
            (label_of(label, outcome), hex(&bytes))
        })
        .collect();
    golden.compare(
        &lines,
        "A journal and a ledger hold the outcome of what was applied under a token. With other bytes a start over an \
         upgrade finds damage, or answers a retry with another reply.",
    );
    for (label, outcome) in &outcomes {
        let label = label_of(label, outcome);
        let (_, pinned) = golden.lines().find(|(pinned, _)| *pinned == label).unwrap();
        let pinned = bytes_of_hex(pinned);
        let mut rest = &pinned[..];
        assert_eq!(take_outcome(&mut rest).as_ref(), Some(outcome), "{label}");
        assert!(rest.is_empty(), "{label} leaves bytes");
        assert_eq!(StoredReply::from_reply(&outcome.to_reply()).as_ref(), Some(outcome), "{label} is a reply again");
    }

    assert_all_occur(OUTCOMES, outcomes.iter().map(|(_, outcome)| outcome_label(outcome)));
    let lists = outcomes.iter().filter_map(|(_, outcome)| match outcome {
        StoredReply::List(listed) => Some(listed_label(listed)),
        _ => None,
    });
    assert_all_occur(LISTS, lists);
}

#[test]
fn identities_and_claims_have_the_bytes_that_journals_have_of_them() {
    let tokens = tokens_of_directory();
    let key_of = |identity: Result<Identity<'_>, _>| {
        let identity: Identity<'_> = identity.unwrap();
        format!("{} {}", hex(&tokens.key(&identity).bytes()), hex(&identity.key()))
    };
    let claim = ClaimRecord {
        token: ClaimToken::new(b"\x01porder-1").unwrap(),
        incarnation: Incarnation(0x1111_1111_1111_1111),
        attempt: 0x2222_2222_2222_2222,
        payload: 0x3333_3333_3333_3333,
        forget_at: Millis(1_780_000_000_000),
    };
    let mut claim_bytes = Vec::new();
    claim.encode(&mut claim_bytes);
    let note_of = |record: TokenRecord| {
        let aux_record = record.to_aux_record();
        let value = aux_record.value.expect("a note that is not a removal has a value");
        assert_eq!(TokenRecord::decode(&aux_record.key, &value), Some(record), "a note is read back");
        format!("{} {}", hex(&aux_record.key), hex(&value))
    };
    let (key, at, digest) = (TokenKey::from(0x0011_2233), Millis(1_780_000_000_000), 0x4444_4444_4444_4444);
    let applied = AppliedToken { at, digest, outcome: StoredReply::Integer(42), claim: None };
    let claimed = AppliedToken { claim: Some(Box::new(claim.clone())), ..applied.clone() };
    let last = LastSequence { number: 7, digest, outcome: StoredReply::Integer(42) };
    let lines = [
        ("token", key_of(Identity::token(b"", b"order-1"))),
        ("token of a producer", key_of(Identity::token(b"p", b"order-1"))),
        ("token with a time", key_of(Identity::token(b"p", b"1780000000000-x"))),
        ("sequence", key_of(Identity::sequence(b"p", 1))),
        ("sequence, a later number", key_of(Identity::sequence(b"p", 2))),
        ("claim", hex(&claim_bytes)),
        ("note of a token", note_of(TokenRecord::Token(key, applied))),
        ("note of a token with a claim", note_of(TokenRecord::Token(key, claimed))),
        ("note of a producer", note_of(TokenRecord::Producer(key, last))),
        ("note of the horizon", note_of(TokenRecord::Horizon(at))),
    ];
    let golden = GoldenFile::read("token-keys.txt");
    golden.compare(
        &lines.map(|(label, values)| (label.to_owned(), values)),
        "A journal and a ledger hold tokens and producers by their keys, and claims at a shared store. With another key \
         the retry of a client, over an upgrade, is not found and is applied a second time.",
    );
    let (_, pinned) = golden.lines().find(|(label, _)| *label == "claim").unwrap();
    let pinned = bytes_of_hex(pinned);
    let mut rest = &pinned[..];
    assert_eq!(ClaimRecord::decode(&mut rest), Some(claim));
    assert!(rest.is_empty());
}

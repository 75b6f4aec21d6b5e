use proptest::prelude::*;
use quipu_model::{AuxRecord, Name, StoredList, StoredReply};

use super::*;
use crate::journal::claim_record::ClaimRecord;

fn tokens(tokens_max: u64, producers_max: u64) -> Tokens {
    let options = Options { tokens_max, producers_max, ..Options::new("nowhere") };
    Tokens::new(&options, 7, Millis(0), (0, 0))
}

fn token(item: &[u8]) -> Identity<'_> {
    Identity::token(b"p", item).unwrap()
}

const WINDOW: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const NOW: Millis = Millis(1_780_000_000_000);

/// Every second token has a claim.
fn claim(number: u64, other: u64) -> Option<Box<ClaimRecord>> {
    let token = quipu_model::shared::ClaimToken::new(&number.to_le_bytes()[..(other % 9) as usize]).unwrap();
    let (incarnation, forget_at) = (quipu_model::Incarnation(other), Millis(number));
    let record = ClaimRecord { token, incarnation, attempt: number ^ other, payload: other, forget_at };
    other.is_multiple_of(2).then(|| Box::new(record))
}

fn applied(at: u64) -> AppliedToken {
    AppliedToken { at: Millis(at), digest: 1, outcome: StoredReply::Integer(5), claim: None }
}

#[test]
fn a_token_is_new_then_known_and_then_forgotten() {
    let (tokens, mut index, token) = (tokens(10, 10), TokenIndex::default(), token(b"order-1"));
    let key = tokens.key(&token);
    let find =
        |index: &TokenIndex, digest, now| tokens.check_and_find(index, &token, (key, digest), Millis(now), WINDOW);
    assert_eq!(find(&index, 1, NOW.0), Ok(TokenLookup::New));
    index.insert_token(key, applied(NOW.0));
    assert_eq!(find(&index, 1, NOW.0), Ok(TokenLookup::Repeat(StoredReply::Integer(5))));
    assert_eq!(find(&index, 2, NOW.0), Err(Refusal::TokenMismatch));
    let end = forget_at(NOW, WINDOW).0;
    assert_eq!(find(&index, 1, end - 1), Ok(TokenLookup::Repeat(StoredReply::Integer(5))));
    assert_eq!(find(&index, 1, end), Ok(TokenLookup::New), "an opaque one is forgotten after its window");
}

#[test]
fn a_producer_counts_without_gaps() {
    let (tokens, mut index) = (tokens(10, 10), TokenIndex::default());
    let find = |index: &TokenIndex, n, digest| {
        let identity = Identity::sequence(b"p", n).unwrap();
        tokens.check_and_find(index, &identity, (tokens.key(&identity), digest), NOW, WINDOW)
    };
    assert_eq!(find(&index, 2, 1), Err(Refusal::SequenceGap { expected: 1 }));
    assert_eq!(find(&index, 1, 1), Ok(TokenLookup::New));
    let key = tokens.key(&Identity::sequence(b"p", 9).unwrap());
    index.advance_producer(key, LastSequence { number: 1, digest: 1, outcome: StoredReply::Ok });
    assert_eq!(find(&index, 1, 1), Ok(TokenLookup::Repeat(StoredReply::Ok)));
    assert_eq!(find(&index, 1, 2), Err(Refusal::TokenMismatch));
    assert_eq!(find(&index, 2, 1), Ok(TokenLookup::New));
    assert_eq!(find(&index, 3, 1), Err(Refusal::SequenceGap { expected: 2 }));
    index.advance_producer(key, LastSequence { number: u64::MAX, digest: 1, outcome: StoredReply::Ok });
    assert_eq!(find(&index, 1, 1), Err(Refusal::SequenceApplied { last: u64::MAX }));
    assert_eq!(find(&index, u64::MAX, 1), Ok(TokenLookup::Repeat(StoredReply::Ok)), "there is none after the last");
}

#[test]
fn one_token_too_many_is_refused_and_the_others_stay() {
    let (tokens, mut index) = (tokens(2, 1), TokenIndex::default());
    for item in [&b"a"[..], b"b"] {
        let (token, key) = (token(item), tokens.key(&token(item)));
        assert_eq!(tokens.reserve(&index, &token, key), Ok(true));
        index.insert_token(key, applied(NOW.0));
    }
    let third = token(b"c");
    let full = Err(Refusal::TokensFull { tokens_max: 2 });
    assert_eq!(tokens.reserve(&index, &third, tokens.key(&third)), full);
    let again = token(b"a");
    assert_eq!(tokens.reserve(&index, &again, tokens.key(&again)), Ok(false), "it has its place");
    tokens.unreserve(&third);
    assert_eq!(tokens.reserve(&index, &third, tokens.key(&third)), Ok(true));
    let [one, two] = [b"1", b"2"].map(|producer| Identity::sequence(producer, 1).unwrap());
    assert_eq!(tokens.reserve(&index, &one, tokens.key(&one)), Ok(true));
    let full = Err(Refusal::ProducersFull { producers_max: 1 });
    assert_eq!(tokens.reserve(&index, &two, tokens.key(&two)), full);
}

#[test]
fn what_may_have_been_forgotten_is_refused_also_with_a_longer_window() {
    // Another incarnation, with a shorter window, has forgotten tokens applied up to an hour ago.
    let tokens = Tokens::new(&Options::new("nowhere"), 7, Millis(NOW.0 - 3_600_000), (0, 0));
    let carries = |before: u64| format!("{}-x", NOW.0 - before);
    let check = |before| tokens.check_time(&token(carries(before).as_bytes()), NOW, DAY);
    assert_eq!(check(3_600_000 - ahead_max_millis() - 1), Ok(()));
    let refused = Err(Refusal::TokenTooOld { window_millis: 86_400_000 });
    assert_eq!(check(3_600_000 - ahead_max_millis()), refused, "it may have been applied before its time");
    assert_eq!(check(7_200_000), refused);
}

#[test]
fn tokens_leave_when_the_ledger_knows_and_not_if_they_were_applied_anew() {
    let (mut index, mut aux_records) = (TokenIndex::default(), Vec::new());
    let keys: Vec<TokenKey> = (0..4u128).map(|n| TokenKey::from(n << 70 | n)).collect();
    for (key, at) in keys.iter().zip([1, 2, 3, 4]) {
        index.insert_token(*key, applied(at));
    }
    index.collect(Millis(2), &mut aux_records);
    let gone = |aux_records: &[AuxRecord]| aux_records.iter().filter(|aux_record| aux_record.value.is_none()).count();
    assert_eq!((aux_records.len(), gone(&aux_records)), (4, 2));
    index.undo_collect();
    assert_eq!(index.counts().0, 4, "it did not reach the ledger");
    aux_records.clear();
    index.collect(Millis(2), &mut aux_records);
    assert_eq!((aux_records.len(), gone(&aux_records)), (4, 2));
    index.insert_token(keys[0], applied(9));
    assert_eq!((index.finish_seal(), index.counts().0), (1, 3));
    assert_eq!(index.token(keys[0]), Some(&applied(9)));
    aux_records.clear();
    index.collect(Millis(2), &mut aux_records);
    assert_eq!(aux_records, [TokenRecord::Token(keys[0], applied(9)).to_aux_record()]);
}

#[test]
fn digests_differ_where_commands_do() {
    let tokens = tokens(1, 1);
    let add =
        |name: &'static str, delta| Command::Add { name: Name::new(name.as_bytes()).unwrap(), delta, shard_key: None };
    assert_eq!(tokens.digest(&[add("a", 1)]), tokens.digest(&[add("a", 1)]));
    assert_ne!(tokens.digest(&[add("a", 1)]), tokens.digest(&[add("a", 2)]));
    assert_ne!(tokens.digest(&[add("a", 1)]), tokens.digest(&[add("a", 1), add("a", 1)]));
    assert_eq!(tokens.digest(&[Command::CountNames]), None);
    assert_eq!(tokens.digest(&[]), None);
}

proptest! {
    #[test]
    fn notes_come_back_as_they_went_in(key: u128, at: u64, digest: u64, value: i64, other: i64, kind in 0..9usize, bytes: Vec<u8>) {
        let outcome = [
            StoredReply::Ok, StoredReply::Nil, StoredReply::Integer(value), StoredReply::Value(value), StoredReply::Absent, StoredReply::Pair(Box::new((value, other))),
            StoredReply::List(Box::new(StoredList::Bytes(bytes.clone().into()))),
            StoredReply::List(Box::new(StoredList::Integers(vec![value, other]))),
            StoredReply::List(Box::new(StoredList::Items(vec![Some(bytes.into()), None, Some(Box::default())]))),
        ][kind].clone();
        let key = TokenKey::from(key);
        for record in [
            TokenRecord::Token(key, AppliedToken { at: Millis(at), digest, outcome: outcome.clone(), claim: claim(at, digest) }),
            TokenRecord::Producer(key, LastSequence { number: at, digest, outcome }),
            TokenRecord::Horizon(Millis(at)),
        ] {
            let AuxRecord { key, value } = record.to_aux_record();
            prop_assert_eq!(TokenRecord::decode(&key, value.as_deref().unwrap()), Some(record));
        }
    }

    #[test]
    fn any_bytes_are_a_note_or_none(key: Vec<u8>, value: Vec<u8>) {
        let _ = TokenRecord::decode(&key, &value);
    }
}

use proptest::prelude::*;

use quipu_model::{Epoch, Incarnation, Millis, Namespace, NodeId, StoredReply, Writer};

use super::entry::{CELL, IS_UNKNOWN, WAS_ABSENT};
use super::*;
use crate::journal::claim_record::{CLAIM_RECORD_BYTES_MAX, ClaimRecord};
use crate::journal::sampling_record::SamplingRecord;
use crate::journal::token_key::TokenKey;

fn claim_record(number: u64, other: u64) -> Box<ClaimRecord> {
    let token = quipu_model::shared::ClaimToken::new(&number.to_le_bytes()[..(other % 9) as usize]).unwrap();
    let (incarnation, forget_at) = (Incarnation(number), Millis(other));
    Box::new(ClaimRecord { token, incarnation, attempt: other, payload: number ^ other, forget_at })
}

fn epochs() -> impl Strategy<Value = Epoch> {
    prop_oneof![
        Just(Epoch::FIRST),
        (any::<u64>(), any::<u64>()).prop_map(|(millis, node)| Epoch { millis, node: NodeId(node) })
    ]
}

proptest! {
    #[test]
    fn entries_come_back_as_they_went_in(
        name in proptest::collection::vec(any::<u8>(), 0..=512), epoch in epochs(), value: i64,
        expires in proptest::option::of(any::<u64>()), count: u64, sum: i64, node: u64, time: u64,
        own in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (name, own) = (name.as_slice(), own.as_slice());
        let entries = [
            Entry::Cell { name, epoch, value, expires_at: expires.map(Millis), count, sum, before: [PriorExistence::Present, PriorExistence::Absent, PriorExistence::Unknown][(count % 3) as usize], own },
            Entry::Gone { name, epoch, before: PriorExistence::Unknown, own },
            Entry::Flush { epoch },
            Entry::Joined { writer: Writer { node: NodeId(node), incarnation: Incarnation(count) }, at: Millis(time) },
            Entry::Start { writer: Writer { node: NodeId(node), incarnation: Incarnation(count) } },
            Entry::Token { key: TokenKey::from(u128::from(node) << 70 | u128::from(count)), digest: time, number: expires, outcome: StoredReply::Pair(Box::new((value, sum))), claim: None },
            Entry::Token { key: TokenKey::from(u128::from(node)), digest: time, number: None, outcome: StoredReply::Integer(value), claim: Some(claim_record(node, count)) },
        ];
        let mut bytes = Vec::new();
        put_time(&mut bytes, Millis(time));
        for entry in &entries {
            let before = bytes.len();
            entry.encode(&mut bytes);
            let claim = if matches!(entry, Entry::Token { claim: Some(_), .. }) { CLAIM_RECORD_BYTES_MAX } else { 0 };
            prop_assert!(bytes.len() - before <= ENTRY_BYTES_MAX + claim + name.len() + 2 + own.len());
        }
        let body = RecordBody::decode(&bytes).unwrap();
        prop_assert_eq!(body.time, Millis(time));
        let back: Vec<_> = body.entries().map(|entry| entry.unwrap()).collect();
        prop_assert_eq!(back.as_slice(), &entries);
    }

    /// Reads cells, byte strings that begin like a cell, and cut cells. A plain cell decodes to
    /// the same cell both ways; every other entry is left alone.
    #[test]
    fn a_count_is_what_the_entry_says(
        name in proptest::collection::vec(any::<u8>(), 0..40), epoch in epochs(), value: i64, count: u64, sum: i64,
        expires in proptest::option::of(any::<u64>()), own in proptest::collection::vec(any::<u8>(), 0..3),
        garbage in proptest::collection::vec(any::<u8>(), 0..40), which in 0..4, cut in 0..100usize,
    ) {
        let before = [PriorExistence::Present, PriorExistence::Absent, PriorExistence::Unknown][(count % 3) as usize];
        let expires_at = expires.map(Millis).filter(|_| which == 0);
        let mut bytes = Vec::new();
        if which < 3 {
            let (name, own) = (name.as_slice(), if which == 1 { own.as_slice() } else { &[] });
            Entry::Cell { name, epoch, value, expires_at, count, sum, before, own }.encode(&mut bytes);
        } else {
            bytes.push(CELL | count as u8 & (WAS_ABSENT | IS_UNKNOWN));
        }
        bytes.extend_from_slice(&garbage);
        bytes.truncate(cut.max(1));
        let (mut entries, mut same) = (EntryIter { rest: &bytes }, EntryIter { rest: &bytes });
        let entry = same.next().expect("there are bytes");
        match entries.next_plain_cell() {
            Some(PlainCell { name, value, before }) => {
                let is_cell = |cell: &Entry<'_>| matches!(cell, Entry::Cell { name: n, epoch: Epoch::FIRST, value: v, expires_at: None, before: b, own: [], .. } if (*n, *v, *b) == (name, value, before));
                prop_assert!(entry.is_ok_and(|(cell, _)| is_cell(&cell)));
                prop_assert_eq!(entries.rest, same.rest);
            }
            None => {
                let is_count = |cell: &Entry<'_>| matches!(cell, Entry::Cell { epoch: Epoch::FIRST, expires_at: None, own: [], .. });
                prop_assert!(!entry.is_ok_and(|(cell, _)| is_count(&cell)));
                prop_assert_eq!(entries.rest.len(), bytes.len());
            }
        }
    }

    #[test]
    fn a_namespace_comes_back_as_it_went_in(
        name in proptest::collection::vec(any::<u8>(), 0..=NAMESPACE_BYTES_MAX), millis in 1_000..10_000_000u64,
    ) {
        let ttl = Some(std::time::Duration::from_millis(millis));
        let entry = Entry::Namespace { name: &name, settings: Box::new(Namespace { ttl, ..Namespace::default() }) };
        let mut bytes = Vec::new();
        put_time(&mut bytes, Millis(1));
        entry.encode(&mut bytes);
        prop_assert!(bytes.len() <= 10 + NAMESPACE_ENTRY_BYTES_MAX);
        let body = RecordBody::decode(&bytes).unwrap();
        prop_assert_eq!(body.entries().collect::<Vec<_>>(), vec![Ok(entry)]);
    }

    #[test]
    fn what_was_sampled_comes_back_as_it_went_in(
        name in proptest::collection::vec(any::<u8>(), 0..=NAMESPACE_BYTES_MAX), p in 1..=u32::MAX, by_value: bool,
        until in proptest::option::of((any::<u64>(), any::<u64>())),
    ) {
        let until = until.map(|(millis, node)| Epoch { millis, node: NodeId(node) });
        let entries = [Entry::Sampling { name: &name, sampling: SamplingRecord { p, by_value, until } }, Entry::Flush { epoch: Epoch::FIRST }];
        let mut bytes = Vec::new();
        put_time(&mut bytes, Millis(1));
        entries[0].encode(&mut bytes);
        prop_assert!(bytes.len() <= 10 + NAMESPACE_ENTRY_BYTES_MAX);
        entries[1].encode(&mut bytes);
        let body = RecordBody::decode(&bytes).unwrap();
        prop_assert_eq!(body.entries().map(|entry| entry.unwrap()).collect::<Vec<_>>(), entries);
    }

    #[test]
    fn a_sketch_comes_back_as_it_went_in(
        name in proptest::collection::vec(any::<u8>(), 0..=512), kind: u8, pane: u64, version: u64, whole: bool,
        edits in proptest::collection::vec((0..=SKETCH_BYTES_MAX as u32, 0..=SKETCH_BYTES_MAX as u32, proptest::collection::vec(any::<u8>(), 0..40), 0..90usize), 0..9),
    ) {
        let edits: Vec<(u32, u32, Vec<u8>)> = edits.into_iter().map(|(at, removed, mut bytes, zeros)| {
            bytes.resize(bytes.len() + zeros, 0);
            (at, removed, bytes)
        }).collect();
        let mut bytes = Vec::new();
        put_time(&mut bytes, Millis(1));
        let before = bytes.len();
        put_sketch(&mut bytes, &name, (kind, pane), version, whole);
        put_edits(&mut bytes, edits.iter().map(|(at, removed, bytes)| PackedEdit { at: *at, removed: *removed, length: bytes.len() as u32, bytes }));
        let most = edits.iter().map(|(_, _, bytes)| EDIT_OVERHEAD_BYTES_MAX + bytes.len()).sum::<usize>();
        prop_assert!(bytes.len() - before <= SKETCH_ENTRY_BYTES_MAX + name.len() + most);
        let body = RecordBody::decode(&bytes).unwrap();
        let entries: Vec<_> = body.entries().map(|entry| entry.unwrap()).collect();
        let [Entry::Sketch { name: back, kind: kind_back, pane: pane_back, version: version_back, whole: whole_back, edits: edits_back }] = &entries[..] else {
            panic!("{entries:?}")
        };
        prop_assert_eq!((*back, *kind_back, *pane_back, *version_back, *whole_back), (&name[..], kind, pane, version, whole));
        let unpacked: Vec<_> = edits_back.iter().map(|edit| {
            let mut bytes = edit.bytes.to_vec();
            bytes.resize(edit.length as usize, 0);
            (edit.at, edit.removed, bytes)
        }).collect();
        prop_assert_eq!(unpacked, edits);
        let mut again = bytes[..before].to_vec();
        entries[0].encode(&mut again);
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn any_bytes_are_an_answer_or_an_error(bytes: Vec<u8>) {
        if let Ok(body) = RecordBody::decode(&bytes) {
            let _ = body.entries().count();
        }
    }
}

use proptest::prelude::*;

use super::*;
use crate::{AddWithin, Name, Set};

const WINDOW: Duration = Duration::from_secs(3_600);

fn time_of(item: &[u8]) -> Option<u64> {
    Identity::token(b"p", item).unwrap().time().map(|at| at.0)
}

#[test]
fn a_uuid_of_version_7_and_ms_nonce_carry_their_time_and_nothing_else_does() {
    // The example of RFC 9562.
    assert_eq!(time_of(b"017F22E2-79B0-7CC3-98C4-DC0C0C07398F"), Some(0x017F_22E2_79B0));
    assert_eq!(time_of(b"017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), Some(0x017F_22E2_79B0));
    assert_eq!(time_of(b"1780000000000-a"), Some(1_780_000_000_000));
    for opaque in [
        &b"017f22e2-79b0-4cc3-98c4-dc0c0c07398f"[..], // version 4
        b"017f22e2-79b0-7cc3-18c4-dc0c0c07398f",      // another variant
        b"017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
        b"017f22e2x79b0-7cc3-98c4-dc0c0c07398f",
        b"017f22e279b07cc398c4dc0c0c07398f",
        b"1780000000000",
        b"1780000000000-",
        b"178000000000-a", // twelve digits: the number of an order, not a time
        b"17800000000000-a",
        b"178000000000x-a",
        b"order-1",
    ] {
        assert_eq!(time_of(opaque), None, "{}", opaque.escape_ascii());
    }
    assert_eq!(Identity::sequence(b"1780000000000-a", 1).unwrap().time(), None);
}

#[test]
fn a_token_is_fresh_from_a_little_before_its_time_to_the_end_of_the_window() {
    let (at, window, ahead) = (1_000_000, 3_600_000, 60_000);
    for (now, expected) in [
        (at - ahead - 1, TokenAge::FromFuture),
        (at - ahead, TokenAge::Fresh),
        (at, TokenAge::Fresh),
        (at + window - 1, TokenAge::Fresh),
        (at + window, TokenAge::TooOld),
        (u64::MAX, TokenAge::TooOld),
    ] {
        assert_eq!(token_age(Millis(at), Millis(now), WINDOW), expected, "{now}");
    }
}

#[test]
fn an_identity_is_refused_one_byte_past_the_bound_and_without_an_item() {
    let long = [b'a'; IDENTITY_BYTES_MAX];
    assert!(Identity::token(&long[1..], b"i").is_ok());
    assert!(Identity::token(b"", &long).is_ok());
    let too_long = Err(BadIdentity::TooLong { bytes: IDENTITY_BYTES_MAX + 1 });
    assert_eq!(Identity::token(&long, b"i"), too_long);
    assert_eq!(Identity::sequence(&[b'a'; IDENTITY_BYTES_MAX + 1], 1), too_long);
    assert_eq!(Identity::token(b"p", b""), Err(BadIdentity::Empty));
    assert_eq!(Identity::sequence(b"p", 0), Err(BadIdentity::Zero));
    assert!(Identity::token(b"", &long).unwrap().key().len() <= TOKEN_BYTES_MAX);
}

fn commands() -> impl Strategy<Value = Command<'static>> {
    // A small range of each value, so that equal ones are drawn, too.
    let names = prop_oneof![Just("a"), Just("b"), Just("ab"), Just("")];
    let names = names.prop_map(|name| Name::new(name.as_bytes()).expect("it is short"));
    let when = prop_oneof![(-2..3i64).prop_map(ExpiryTime::In), (-2..3i64).prop_map(ExpiryTime::At)];
    let expiry = prop_oneof![Just(Expiry::Keep), Just(Expiry::Remove), when.prop_map(Expiry::At)];
    (0..10, names, prop::collection::vec(0..4usize, 0..3), -2..3i64, expiry, any::<[bool; 2]>()).prop_map(
        |(kind, name, several, value, expiry, [one, two])| match kind {
            0 => Command::Add { name, delta: value, shard_key: one.then_some(&b"a"[..]) },
            1 => Command::AddWithin(AddWithin {
                name,
                delta: value,
                lower: -value,
                upper: 2,
                saturate: one,
                expiry,
                expiry_if_none: two,
            }),
            2 => Command::Set(Set {
                name,
                value,
                condition: if one { SetCondition::IfAbsent } else { SetCondition::Always },
                expiry: match expiry {
                    Expiry::Keep => SetExpiry::Keep,
                    Expiry::Remove => SetExpiry::Remove,
                    Expiry::At(when) => SetExpiry::At(when),
                },
                reply_old: two,
            }),
            3 => Command::Take { name },
            4 => Command::ReadAndExpire { name, expiry },
            5 => Command::Reset { name },
            6 => Command::Delete {
                names: several.iter().map(|at| Name::new(["a", "b", "ab", ""][*at].as_bytes()).unwrap()).collect(),
            },
            7 => Command::Expire {
                name,
                when: ExpiryTime::In(value),
                condition: if one { ExpiryCondition::IfNone } else { ExpiryCondition::IfEarlier },
            },
            8 => Command::Persist { name },
            _ => Command::Flush,
        },
    )
}

fn payload_of(commands: &[Command<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for command in commands {
        assert!(append_payload(command, &mut out));
    }
    out
}

proptest! {
    #[test]
    fn payloads_are_the_same_for_the_same_commands_only(
        a in prop::collection::vec(commands(), 1..3), b in prop::collection::vec(commands(), 1..3),
    ) {
        prop_assert_eq!(payload_of(&a) == payload_of(&b), a == b);
    }

    #[test]
    fn keys_are_the_same_for_the_same_tokens_only(
        a: (Vec<u8>, Vec<u8>), b: (Vec<u8>, Vec<u8>), cut in 0..10usize,
    ) {
        let key = |(producer, item): &(Vec<u8>, Vec<u8>)| Identity::token(producer, item).ok().map(|token| token.key());
        if let (Some(left), Some(right)) = (key(&a), key(&b)) {
            prop_assert_eq!(left == right, a == b);
        }
        // The same bytes with another border between producer and item.
        let whole = [&a.0[..], &a.1].concat();
        let (producer, item) = whole.split_at(cut.min(whole.len()));
        let moved = (producer.to_vec(), item.to_vec());
        if let (Some(left), Some(right)) = (key(&a), key(&moved)) {
            prop_assert_eq!(left == right, a == moved);
        }
    }

    #[test]
    fn whoever_is_fresh_is_remembered(carried: u32, applied: u32, now: u32, window in 0..4_000_000u64) {
        let window = Duration::from_millis(window);
        let [carried, applied, now] = [carried, applied, now].map(|at| Millis(at.into()));
        // Applied while fresh, and retried later while still fresh.
        if applied <= now
            && token_age(carried, applied, window) == TokenAge::Fresh
            && token_age(carried, now, window) == TokenAge::Fresh
        {
            prop_assert!(forget_at(applied, window) > now);
        }
    }

    #[test]
    fn answers_are_replies_again(value: i64, other: i64) {
        for reply in [
            Reply::Ok, Reply::Nil, Reply::Integer(value), Reply::Value(Some(value)), Reply::Value(None), Reply::Pair(value, other),
        ] {
            prop_assert_eq!(StoredReply::from_reply(&reply).map(|stored| stored.to_reply()), Some(reply));
        }
    }

    #[test]
    fn any_bytes_are_a_token_or_an_error(producer: Vec<u8>, item: Vec<u8>) {
        if let Ok(token) = Identity::token(&producer, &item) {
            let _ = token.time();
        }
    }
}

#[test]
fn reads_and_refusals_are_nothing_to_remember() {
    let mut out = Vec::new();
    assert!(!append_payload(&Command::CountNames, &mut out) && out.is_empty());
    assert_eq!(StoredReply::from_reply(&Reply::Refused(crate::Refusal::Overflow)), None);
}

//! Draws the commands of workers, over a few names.

use quipu_model::{
    AddWithin, Command, Durability, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, Name, Set, SetCondition,
    SetExpiry, SimpleCommand,
};
use quipu_testkit::SeededRng;
use quipu_testkit::machine::BEGIN;

/// Names that the workers use. They are few, so that workers meet, and of all three namespaces.
pub(super) const NAMES: [&str; 11] = ["d:a", "d:b", "d:c", "d:d", "plain", "r:a", "r:b", "r:c", "m:a", "m:b", ""];

/// Durability of a name's namespace.
pub(super) fn durability_of(name: &[u8]) -> Durability {
    match name {
        [b'r', b':', ..] => Durability::Relaxed,
        [b'm', b':', ..] => Durability::Memory,
        _ => Durability::Durable,
    }
}

/// All names.
pub(super) fn all_names() -> impl Iterator<Item = &'static [u8]> {
    NAMES.iter().map(|name| name.as_bytes())
}

/// Names that a command touches.
pub(super) fn names_of<'c>(command: &'c Command<'static>) -> Vec<Name<'c>> {
    match command {
        Command::Add { name, .. }
        | Command::Read { name }
        | Command::Take { name }
        | Command::ReadAndExpire { name, .. }
        | Command::Reset { name }
        | Command::Expire { name, .. }
        | Command::Persist { name }
        | Command::ExpiryOf { name, .. } => vec![*name],
        Command::AddWithin(add) => vec![add.name],
        Command::Set(set) => vec![set.name],
        Command::ReadMany { names } | Command::Delete { names } | Command::Exists { names } => names.clone(),
        Command::Flush => all_names().map(short_name).collect(),
        other => panic!("not drawn: {other:?}"),
    }
}

/// A name of this list.
pub(super) fn short_name(name: &[u8]) -> Name<'_> {
    Name::new(name).expect("the names here are short")
}

/// Draws an add or a read.
pub(super) fn draw_simple_command(rng: &SeededRng) -> SimpleCommand<'static> {
    let name = short_name(rng.pick(&NAMES).as_bytes());
    let delta = *rng.pick(&[1, 1, 1, -1, 7, i64::MAX, i64::MIN]);
    SimpleCommand { name, delta: (!rng.chance(25)).then_some(delta) }
}

/// Draws a command.
pub(super) fn draw_command(rng: &SeededRng) -> Command<'static> {
    let name = || short_name(rng.pick(&NAMES).as_bytes());
    let names = || (0..1 + rng.below(3)).map(|_| name()).collect();
    let when = || match rng.below(4) {
        0 => ExpiryTime::In(rng.between(-5..=2000)),
        1 => ExpiryTime::In(1 + rng.below(100) as i64),
        2 => ExpiryTime::In(3_600_000),
        _ => ExpiryTime::At(BEGIN.0 as i64 + rng.between(-1000..=100_000)),
    };
    let expiry = || match rng.below(3) {
        0 => Expiry::Keep,
        1 => Expiry::Remove,
        _ => Expiry::At(when()),
    };
    match rng.below(40) {
        0..14 => Command::Add { name: name(), delta: rng.between(-3..=9), shard_key: None },
        14 => Command::Add { name: name(), delta: i64::MAX - 5, shard_key: None },
        15 => Command::AddWithin(AddWithin {
            name: name(),
            delta: rng.between(-9..=9),
            lower: -3,
            upper: 12,
            saturate: rng.chance(50),
            expiry: expiry(),
            expiry_if_none: rng.chance(50),
        }),
        16..21 => Command::Read { name: name() },
        21 => Command::ReadMany { names: names() },
        22..26 => Command::Set(Set {
            name: name(),
            value: rng.between(-1000..=1000),
            condition: *rng.pick(&[SetCondition::Always, SetCondition::IfAbsent, SetCondition::IfPresent]),
            expiry: match rng.below(4) {
                0 => SetExpiry::Keep,
                1 => SetExpiry::At(when()),
                _ => SetExpiry::Remove,
            },
            reply_old: rng.chance(50),
        }),
        26 => Command::Take { name: name() },
        27 => Command::ReadAndExpire { name: name(), expiry: expiry() },
        28..30 => Command::Reset { name: name() },
        30..32 => Command::Delete { names: names() },
        32 => Command::Exists { names: names() },
        33..36 => Command::Expire {
            name: name(),
            when: when(),
            condition: *rng.pick(&[
                ExpiryCondition::Always,
                ExpiryCondition::IfNone,
                ExpiryCondition::IfSome,
                ExpiryCondition::IfLater,
                ExpiryCondition::IfEarlier,
                ExpiryCondition::IfSomeEarlier,
            ]),
        },
        36 => Command::Persist { name: name() },
        37 | 38 => Command::ExpiryOf { name: name(), form: ExpiryForm::MillisLeft },
        _ if rng.chance(8) => Command::Flush,
        _ => Command::Read { name: name() },
    }
}

//! Models the commands a second time, as plainly as possible, for comparison with the engine.

use std::collections::BTreeMap;

use quipu_model::{
    Command, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, KindAndDialect, Millis, Name, Refusal, Reply,
    SetCondition, SetExpiry,
};

/// Value and expiry per name.
pub type ModelState = BTreeMap<Vec<u8>, (i64, Option<u64>)>;

/// The part of a state that has not expired.
pub fn live_part(state: &ModelState, now: Millis) -> ModelState {
    let alive = |expiry: &Option<u64>| expiry.is_none_or(|at| at > now.0);
    state.iter().filter(|(_, (_, expiry))| alive(expiry)).map(|(name, cell)| (name.clone(), *cell)).collect()
}

/// Applies a command and returns the reply that it must have.
///
/// An expired counter counts as absent, but stays in the state. Until a record ends it, the clock
/// alone decides whether it is seen again.
pub(super) fn apply(state: &mut ModelState, command: &Command<'_>, now: Millis) -> Reply {
    let get = |state: &ModelState, name: Name<'_>| {
        state.get(name.bytes()).copied().filter(|(_, expiry)| expiry.is_none_or(|at| at > now.0))
    };
    let put = |state: &mut ModelState, name: Name<'_>, cell| {
        state.insert(name.bytes().to_vec(), cell);
    };
    let point = |when: ExpiryTime| match when {
        ExpiryTime::In(millis) => (now.0 as i64).saturating_add(millis).max(0) as u64,
        ExpiryTime::At(millis) => millis.max(0) as u64,
    };
    match command {
        Command::Add { name, delta, .. } => {
            let (value, expiry) = get(state, *name).unwrap_or_default();
            let Some(value) = value.checked_add(*delta) else { return Reply::Refused(Refusal::Overflow) };
            put(state, *name, (value, expiry));
            Reply::Integer(value)
        }
        Command::AddWithin(add) => {
            let (value, expiry) = get(state, add.name).unwrap_or_default();
            let wanted = value as i128 + add.delta as i128;
            let inside = wanted.clamp(add.lower as i128, add.upper as i128);
            if wanted != inside && !add.saturate {
                return Reply::Pair(value, 0);
            }
            // A saturating add moves a value towards the bound. A value beyond it stays.
            let after = if wanted == inside {
                wanted as i64
            } else if add.delta >= 0 {
                (inside as i64).max(value)
            } else {
                (inside as i64).min(value)
            };
            let Some(delta) = after.checked_sub(value) else { return Reply::Refused(Refusal::Overflow) };
            let expiry = match add.expiry {
                _ if add.expiry_if_none && expiry.is_some() => expiry,
                Expiry::Keep => expiry,
                Expiry::Remove => None,
                Expiry::At(when) => Some(point(when)),
            };
            put(state, add.name, (after, expiry));
            Reply::Pair(after, delta)
        }
        Command::Read { name } => Reply::Value(get(state, *name).map(|cell| cell.0)),
        Command::ReadMany { names } => {
            Reply::Values(names.iter().map(|name| get(state, *name).map(|cell| cell.0)).collect())
        }
        Command::Set(set) => {
            let before = get(state, set.name);
            let wanted = match set.condition {
                SetCondition::Always => true,
                SetCondition::IfAbsent => before.is_none(),
                SetCondition::IfPresent => before.is_some(),
            };
            if wanted {
                let expiry = match set.expiry {
                    SetExpiry::Remove => None,
                    SetExpiry::Keep => before.and_then(|cell| cell.1),
                    SetExpiry::At(when) => Some(point(when)),
                };
                put(state, set.name, (set.value, expiry));
            }
            match (set.reply_old, wanted) {
                (true, _) => Reply::Value(before.map(|cell| cell.0)),
                (false, true) => Reply::Ok,
                (false, false) => Reply::Nil,
            }
        }
        Command::Take { name } => {
            let value = get(state, *name).map(|cell| cell.0);
            state.remove(name.bytes());
            Reply::Value(value)
        }
        Command::ReadAndExpire { name, expiry } => {
            let Some((value, present)) = get(state, *name) else { return Reply::Value(None) };
            let expiry = match expiry {
                Expiry::Keep => present,
                Expiry::Remove => None,
                Expiry::At(when) => Some(point(*when)),
            };
            put(state, *name, (value, expiry));
            Reply::Value(Some(value))
        }
        Command::Reset { name } => {
            let Some((value, expiry)) = get(state, *name) else { return Reply::Integer(0) };
            put(state, *name, (0, expiry));
            Reply::Integer(value)
        }
        Command::Delete { names } => {
            let mut gone = 0;
            for name in names {
                gone += i64::from(get(state, *name).is_some());
                state.remove(name.bytes());
            }
            Reply::Integer(gone)
        }
        Command::Exists { names } => {
            Reply::Integer(names.iter().filter(|name| get(state, **name).is_some()).count() as i64)
        }
        Command::KindOf { name } => Reply::Kind(get(state, *name).map(|_| KindAndDialect::COUNT)),
        Command::Expire { name, when, condition } => {
            let Some((value, present)) = get(state, *name) else { return Reply::Integer(0) };
            let at = point(*when);
            let wanted = match condition {
                ExpiryCondition::Always => true,
                ExpiryCondition::IfNone => present.is_none(),
                ExpiryCondition::IfSome => present.is_some(),
                ExpiryCondition::IfLater => present.is_some_and(|present| at > present),
                ExpiryCondition::IfEarlier => present.is_none_or(|present| at < present),
                ExpiryCondition::IfSomeEarlier => present.is_some_and(|present| at < present),
            };
            if wanted {
                put(state, *name, (value, Some(at)));
            }
            Reply::Integer(i64::from(wanted))
        }
        Command::Persist { name } => match get(state, *name) {
            Some((value, Some(_))) => {
                put(state, *name, (value, None));
                Reply::Integer(1)
            }
            _ => Reply::Integer(0),
        },
        Command::ExpiryOf { name, form } => Reply::Integer(match (get(state, *name), form) {
            (None, _) => -2,
            (Some((_, None)), _) => -1,
            (Some((_, Some(at))), ExpiryForm::MillisLeft) => (at - now.0) as i64,
            (Some((_, Some(at))), ExpiryForm::SecondsLeft) => ((at - now.0 + 500) / 1000) as i64,
            (Some((_, Some(at))), ExpiryForm::AtMillis) => at as i64,
            (Some((_, Some(at))), ExpiryForm::AtSeconds) => ((at + 500) / 1000) as i64,
        }),
        Command::Flush => {
            state.clear();
            Reply::Ok
        }
        other => panic!("the model does not know {other:?}"),
    }
}

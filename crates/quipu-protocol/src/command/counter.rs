//! Reads the arguments of counter commands.
//!
//! In: arguments, their number already checked. Out: commands of the model, and the shapes of their
//! replies.

use quipu_model::{
    AddWithin, Command, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, ListNames, Name, SAMPLE_MAX, Scan, Set,
    SetCondition, SetExpiry, SetString, SketchCommand,
};

use super::error::{pattern, shown};
use super::expiry::Unit;
use super::{CommandError, CounterRequest, Request, Spec};
use crate::number;
use crate::resp::{Args, ReplyShape};

/// Names that SCAN examines by default. Redis's number.
const SCAN_COUNT_DEFAULT: usize = 10;

/// Most names that one step of SCAN examines: with the longest names a page stays near 1 MiB, the
/// output bound. A client that asks for more gets shorter pages and more of them, which SCAN
/// allows.
const SCAN_COUNT_MAX: usize = 2_000;

/// First bytes of a Redis HyperLogLog: the one string that is not a number and can be set.
const HLL_MAGIC: &[u8] = b"HYLL";

/// Bound of KEYS where no listener sets its own.
const NAMES_BYTES_MAX: usize = 1 << 20;

/// Most bytes of a wrong option that its error repeats.
const OPTION_SHOWN_BYTES_MAX: usize = 128;

type CounterParse<'a> = Result<Request<'a>, CommandError>;

pub(super) fn incr<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    add(spec, args, 1)
}

pub(super) fn decr<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    add(spec, args, -1)
}

pub(super) fn incrby<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    add(spec, args, integer(arg(args, 2))?)
}

pub(super) fn decrby<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    add(spec, args, integer(arg(args, 2))?.checked_neg().ok_or(CommandError::DecrementOverflow)?)
}

pub(super) fn add_sampled<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let (amount, p) = (integer(arg(args, 2))?, integer(arg(args, 3))?);
    if amount < 0 {
        return Err(CommandError::BadArgument("ERR what was sampled cannot be negative"));
    }
    let p = u32::try_from(p).ok().filter(|p| (1..=SAMPLE_MAX).contains(p));
    let p =
        p.ok_or_else(|| CommandError::BadArgumentNamed(format!("ERR the rate is a number from 1 to {SAMPLE_MAX}")))?;
    plain(Command::AddSampled { name: name(args, 1)?, amount, p })
}

pub(super) fn get<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::Read { name: name(args, 1)? })
}

pub(super) fn mget<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::ReadMany { names: names(args)? })
}

pub(super) fn set<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let (mut condition, mut expiry, mut reply_old) = (None, None, false);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        if is_word(option, "NX") || is_word(option, "XX") {
            let asked = if is_word(option, "NX") { SetCondition::IfAbsent } else { SetCondition::IfPresent };
            if condition.replace(asked).is_some_and(|before| before != asked) {
                return Err(CommandError::Syntax);
            }
        } else if is_word(option, "GET") {
            reply_old = true;
        } else if is_word(option, "KEEPTTL") {
            if expiry.replace(SetExpiry::Keep).is_some_and(|before| before != SetExpiry::Keep) {
                return Err(CommandError::Syntax);
            }
        } else if let Some(unit) = Unit::option(option) {
            let number = options.next().ok_or(CommandError::Syntax)?;
            if expiry.is_some() {
                return Err(CommandError::Syntax);
            }
            expiry = Some(SetExpiry::At(unit.when_positive(number, spec.name)?));
        } else {
            return Err(CommandError::Syntax);
        }
    }
    let (name, condition) = (name(args, 1)?, condition.unwrap_or(SetCondition::Always));
    let expiry = expiry.unwrap_or(SetExpiry::Remove);
    let bytes = arg(args, 2);
    if bytes.starts_with(HLL_MAGIC) {
        let set = SetString { name, bytes, condition, expiry, reply_old };
        return plain(Command::Sketch(SketchCommand::SetString(set)));
    }
    plain(Command::Set(Set { name, value: integer(bytes)?, condition, expiry, reply_old }))
}

pub(super) fn setnx<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let set = Set { condition: SetCondition::IfAbsent, ..set_to(name(args, 1)?, arg(args, 2))? };
    Ok(Request::Counter(CounterRequest { command: Command::Set(set), shape: ReplyShape::DoneAsInteger }))
}

pub(super) fn setex<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    set_expiring(Unit::Seconds, spec, args)
}

pub(super) fn psetex<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    set_expiring(Unit::Millis, spec, args)
}

pub(super) fn getset<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::Set(Set { reply_old: true, ..set_to(name(args, 1)?, arg(args, 2))? }))
}

pub(super) fn mset<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    if args.len().is_multiple_of(2) {
        return Err(CommandError::Arity(spec.name));
    }
    let mut rest = args.from(1);
    let mut sets = Vec::with_capacity(args.len() / 2);
    while let (Some(name), Some(value)) = (rest.next(), rest.next()) {
        sets.push(Command::Set(set_to(Name::new(name)?, value)?));
    }
    Ok(Request::SetMany(sets))
}

pub(super) fn getdel<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::Take { name: name(args, 1)? })
}

pub(super) fn getex<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let mut expiry = None;
    let mut options = args.from(2);
    while let Some(option) = options.next() {
        if expiry.is_some() {
            return Err(CommandError::Syntax);
        }
        expiry = Some(if is_word(option, "PERSIST") {
            Expiry::Remove
        } else {
            let unit = Unit::option(option).ok_or(CommandError::Syntax)?;
            Expiry::At(unit.when_positive(options.next().ok_or(CommandError::Syntax)?, spec.name)?)
        });
    }
    match expiry {
        None => plain(Command::Read { name: name(args, 1)? }),
        Some(expiry) => plain(Command::ReadAndExpire { name: name(args, 1)?, expiry }),
    }
}

pub(super) fn increx<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let mut add = AddWithin {
        name: name(args, 1)?,
        delta: 1,
        lower: i64::MIN,
        upper: i64::MAX,
        saturate: false,
        expiry: Expiry::Keep,
        expiry_if_none: false,
    };
    // Every option at most once, as in SET: silently choosing one of two would hide the client's
    // mistake.
    let (mut delta_given, mut lower_given, mut upper_given) = (false, false, false);
    let once = |given: &mut bool| if std::mem::replace(given, true) { Err(CommandError::Syntax) } else { Ok(()) };
    let mut options = args.from(2);
    while let Some(option) = options.next() {
        if is_word(option, "BYINT") {
            once(&mut delta_given)?;
            add.delta = integer(options.next().ok_or(CommandError::Syntax)?)?;
        } else if is_word(option, "BYFLOAT") {
            return Err(CommandError::BadArgument(
                "ERR BYFLOAT is not offered: counters are whole numbers; count in the smallest unit with BYINT",
            ));
        } else if is_word(option, "LBOUND") {
            once(&mut lower_given)?;
            add.lower = integer(options.next().ok_or(CommandError::Syntax)?)?;
        } else if is_word(option, "UBOUND") {
            once(&mut upper_given)?;
            add.upper = integer(options.next().ok_or(CommandError::Syntax)?)?;
        } else if is_word(option, "SATURATE") {
            once(&mut add.saturate)?;
        } else if is_word(option, "ENX") {
            once(&mut add.expiry_if_none)?;
        } else {
            if add.expiry != Expiry::Keep {
                return Err(CommandError::Syntax);
            }
            add.expiry = if is_word(option, "PERSIST") {
                Expiry::Remove
            } else {
                let unit = Unit::option(option).ok_or(CommandError::Syntax)?;
                Expiry::At(unit.when_positive(options.next().ok_or(CommandError::Syntax)?, spec.name)?)
            };
        }
    }
    if add.expiry_if_none && !matches!(add.expiry, Expiry::At(_)) {
        return Err(CommandError::Syntax);
    }
    if add.lower > add.upper {
        return Err(CommandError::BadArgument("ERR LBOUND can't be greater than UBOUND"));
    }
    plain(Command::AddWithin(add))
}

pub(super) fn reset<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::Reset { name: name(args, 1)? })
}

pub(super) fn del<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::Delete { names: names(args)? })
}

pub(super) fn exists<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::Exists { names: names(args)? })
}

pub(super) fn kind<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::KindOf { name: name(args, 1)? })
}

pub(super) fn expire<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    expire_in(Unit::Seconds, spec, args)
}

pub(super) fn pexpire<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    expire_in(Unit::Millis, spec, args)
}

pub(super) fn expireat<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    expire_in(Unit::AtSeconds, spec, args)
}

pub(super) fn pexpireat<'a>(spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    expire_in(Unit::AtMillis, spec, args)
}

pub(super) fn ttl<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::ExpiryOf { name: name(args, 1)?, form: ExpiryForm::SecondsLeft })
}

pub(super) fn pttl<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::ExpiryOf { name: name(args, 1)?, form: ExpiryForm::MillisLeft })
}

pub(super) fn expiretime<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::ExpiryOf { name: name(args, 1)?, form: ExpiryForm::AtSeconds })
}

pub(super) fn pexpiretime<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::ExpiryOf { name: name(args, 1)?, form: ExpiryForm::AtMillis })
}

pub(super) fn persist<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::Persist { name: name(args, 1)? })
}

pub(super) fn scan<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let cursor = number::natural(arg(args, 1)).ok_or(CommandError::Cursor)?;
    let mut scan = Scan { cursor, pattern: None, count: SCAN_COUNT_DEFAULT };
    let mut shape = ReplyShape::Plain;
    let mut options = args.from(2);
    while let Some(option) = options.next() {
        let value = options.next().ok_or(CommandError::Syntax)?;
        if is_word(option, "COUNT") {
            let count = integer(value)?;
            if count < 1 {
                return Err(CommandError::Syntax);
            }
            scan.count = usize::try_from(count).unwrap_or(usize::MAX).min(SCAN_COUNT_MAX);
        } else if is_word(option, "MATCH") {
            scan.pattern = Some(pattern(value)?).filter(|pattern| pattern.0 != b"*");
        } else if is_word(option, "TYPE") {
            shape = if is_word(value, "STRING") { ReplyShape::Plain } else { ReplyShape::NoNames };
        } else {
            return Err(CommandError::Syntax);
        }
    }
    Ok(Request::Counter(CounterRequest { command: Command::Scan(scan), shape }))
}

pub(super) fn keys<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    plain(Command::ListNames(ListNames { pattern: pattern(arg(args, 1))?, bytes_max: NAMES_BYTES_MAX }))
}

pub(super) fn dbsize<'a>(_: &'static Spec, _: &Args<'a>) -> CounterParse<'a> {
    plain(Command::CountNames)
}

pub(super) fn flush<'a>(_: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    match args.get(1) {
        None => plain(Command::Flush),
        Some(how) if args.len() == 2 && (is_word(how, "ASYNC") || is_word(how, "SYNC")) => plain(Command::Flush),
        Some(_) => Err(CommandError::Syntax),
    }
}

pub(super) fn plain(command: Command<'_>) -> CounterParse<'_> {
    shaped(command, ReplyShape::Plain)
}

/// A command with a reply shape other than the plain one.
pub(super) fn shaped(command: Command<'_>, shape: ReplyShape) -> CounterParse<'_> {
    Ok(Request::Counter(CounterRequest { command, shape }))
}

fn add<'a>(spec: &'static Spec, args: &Args<'a>, delta: i64) -> CounterParse<'a> {
    plain(Command::Add { name: name(args, 1)?, delta, shard_key: spec.shard_key(args) })
}

fn set_expiring<'a>(unit: Unit, spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let when = unit.when_positive(arg(args, 2), spec.name)?;
    plain(Command::Set(Set { expiry: SetExpiry::At(when), ..set_to(name(args, 1)?, arg(args, 3))? }))
}

fn expire_in<'a>(unit: Unit, spec: &'static Spec, args: &Args<'a>) -> CounterParse<'a> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in args.from(3) {
        match option {
            option if is_word(option, "NX") => nx = true,
            option if is_word(option, "XX") => xx = true,
            option if is_word(option, "GT") => gt = true,
            option if is_word(option, "LT") => lt = true,
            other => {
                let text = format!("ERR Unsupported option {}", shown(other, OPTION_SHOWN_BYTES_MAX));
                return Err(CommandError::BadArgumentNamed(text));
            }
        }
    }
    let condition = match (nx, xx, gt, lt) {
        (true, false, false, false) => ExpiryCondition::IfNone,
        (true, ..) => {
            return Err(CommandError::BadArgument(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        (_, _, true, true) => {
            return Err(CommandError::BadArgument("ERR GT and LT options at the same time are not compatible"));
        }
        // Without an expiry GT never sets one, so XX adds nothing to it.
        (_, _, true, false) => ExpiryCondition::IfLater,
        (_, true, false, true) => ExpiryCondition::IfSomeEarlier,
        (_, false, false, true) => ExpiryCondition::IfEarlier,
        (_, true, false, false) => ExpiryCondition::IfSome,
        (_, false, false, false) => ExpiryCondition::Always,
    };
    let when: ExpiryTime = unit.when(arg(args, 2), spec.name)?;
    plain(Command::Expire { name: name(args, 1)?, when, condition })
}

/// A plain SET.
fn set_to<'a>(name: Name<'a>, value: &[u8]) -> Result<Set<'a>, CommandError> {
    Ok(Set {
        name,
        value: integer(value)?,
        condition: SetCondition::Always,
        expiry: SetExpiry::Remove,
        reply_old: false,
    })
}

pub(super) fn name<'a>(args: &Args<'a>, index: usize) -> Result<Name<'a>, CommandError> {
    Ok(Name::new(arg(args, index))?)
}

pub(super) fn names<'a>(args: &Args<'a>) -> Result<Vec<Name<'a>>, CommandError> {
    args.from(1).map(|arg| Ok(Name::new(arg)?)).collect()
}

/// An argument that the arity guarantees.
pub(super) fn arg<'a>(args: &Args<'a>, index: usize) -> &'a [u8] {
    args.get(index).unwrap_or_default()
}

pub(super) fn integer(bytes: &[u8]) -> Result<i64, CommandError> {
    number::integer(bytes).ok_or(CommandError::NotInteger)
}

pub(super) fn is_word(bytes: &[u8], word: &str) -> bool {
    bytes.eq_ignore_ascii_case(word.as_bytes())
}

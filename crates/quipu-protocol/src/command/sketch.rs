//! Reads the arguments of commands on the approximate kinds.
//!
//! In: arguments, their number already checked. Out: commands of the model.
//!
//! `PF*`, `CMS.*` and `TOPK.*` take the arguments of Redis and its modules and return their error
//! texts. Every text was compared with redis-server 7.0.15 and RedisBloom. Quipu's own commands
//! begin with `QUIPU.`.

use std::iter;

use quipu_model::{
    Command, Dialect, Fraction, FrequencySize, Millis, Name, Relation, SketchCommand, TOP_ITEMS_MAX, TopSize,
};

use super::counter::{arg, integer, is_word, name, names, plain, shaped};
use super::{CommandError, Request, Spec};
use crate::json::COUNTED_ITEMS_MAX;
use crate::number;
use crate::resp::{Args, ReplyShape};

/// Most sketches that one command merges.
const JOINED_NAMES_MAX: usize = 256;

/// Redis's bound on one increment of a top-list item. Quipu's own commands have no such bound.
const TOPK_BY_MAX: i64 = 100_000;

type SketchParse<'a> = Result<Request<'a>, CommandError>;

// ---- unique ------------------------------------------------------------------------------------

pub(super) fn pfadd<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    observe(args, Dialect::Redis)
}

pub(super) fn quipu_observe<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    observe(args, Dialect::Native)
}

pub(super) fn quipu_observe_at<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let command =
        SketchCommand::Observe { name: name(args, 1)?, items: args.from(3).collect(), dialect: Dialect::Native };
    timed(args, command)
}

fn observe<'a>(args: &Args<'a>, dialect: Dialect) -> SketchParse<'a> {
    sketch(SketchCommand::Observe { name: name(args, 1)?, items: args.from(2).collect(), dialect })
}

pub(super) fn pfcount<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::CountUnique { names: joined(args)?, dialect: Dialect::Redis })
}

pub(super) fn quipu_uniques<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    bounded(SketchCommand::CountUnique { names: joined(args)?, dialect: Dialect::Native })
}

pub(super) fn pfmerge<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::MergeUnique { names: joined(args)?, dialect: Dialect::Redis })
}

pub(super) fn quipu_merge<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::MergeUnique { names: joined(args)?, dialect: Dialect::Native })
}

pub(super) fn quipu_intersect<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    relate(args, Relation::Intersection)
}

pub(super) fn quipu_difference<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    relate(args, Relation::Difference)
}

fn relate<'a>(args: &Args<'a>, relation: Relation) -> SketchParse<'a> {
    bounded(SketchCommand::RelateUnique { names: [name(args, 1)?, name(args, 2)?], relation })
}

pub(super) fn strlen<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::StringLength { name: name(args, 1)? })
}

pub(super) fn getrange<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let (from, to) = (integer(arg(args, 2))?, integer(arg(args, 3))?);
    sketch(SketchCommand::ReadRange { name: name(args, 1)?, from, to })
}

// ---- frequency ---------------------------------------------------------------------------------

pub(super) fn cms_initbydim<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let size = |index, wrong| natural(arg(args, index)).ok_or(CommandError::BadArgument(wrong));
    let (width, depth) = (size(2, "CMS: invalid width")?, size(3, "CMS: invalid depth")?);
    let size = FrequencySize::Dimensions { width, depth };
    sketch(SketchCommand::MakeFrequency { name: name(args, 1)?, size, dialect: Dialect::Redis })
}

pub(super) fn cms_initbyprob<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let error = share(arg(args, 2)).ok_or(CommandError::BadArgument("CMS: invalid overestimation value"))?;
    let probability = share(arg(args, 3)).ok_or(CommandError::BadArgument("CMS: invalid prob value"))?;
    let size = FrequencySize::Accuracy { error, probability };
    sketch(SketchCommand::MakeFrequency { name: name(args, 1)?, size, dialect: Dialect::Redis })
}

pub(super) fn quipu_freq_make<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let wrong = CommandError::BadArgument("ERR error and probability are numbers between 0 and 1, e.g. 0.001 0.01");
    let size = match (share(arg(args, 2)), share(arg(args, 3))) {
        (Some(error), Some(probability)) => FrequencySize::Accuracy { error, probability },
        _ => return Err(wrong),
    };
    sketch(SketchCommand::MakeFrequency { name: name(args, 1)?, size, dialect: Dialect::Native })
}

pub(super) fn cms_incrby<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let items = counted(spec, args, |by| match number::integer(by) {
        Some(by) => u64::try_from(by).map_err(|_| CommandError::BadArgument("CMS: Number cannot be negative")),
        None => Err(CommandError::BadArgument("CMS: Cannot parse number")),
    })?;
    sketch(SketchCommand::CountItems { name: name(args, 1)?, items, make: None, dialect: Dialect::Redis })
}

pub(super) fn quipu_freq_add<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let items = counted(spec, args, amount)?;
    let make = Some(FrequencySize::default_size());
    sketch(SketchCommand::CountItems { name: name(args, 1)?, items, make, dialect: Dialect::Native })
}

pub(super) fn quipu_freq_add_at<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let (items, make) = (counted_from(3, spec, args, amount)?, Some(FrequencySize::default_size()));
    timed(args, SketchCommand::CountItems { name: name(args, 1)?, items, make, dialect: Dialect::Native })
}

pub(super) fn cms_query<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    read_items(args, Dialect::Redis)
}

pub(super) fn quipu_freq_read<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    read_items(args, Dialect::Native)
}

fn read_items<'a>(args: &Args<'a>, dialect: Dialect) -> SketchParse<'a> {
    sketch(SketchCommand::ReadItems { name: name(args, 1)?, items: args.from(2).collect(), dialect })
}

pub(super) fn cms_merge<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let worded = CommandError::BadArgument;
    let count = number::integer(arg(args, 2)).ok_or(worded("CMS: invalid numkeys"))?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or(worded("CMS: Number of keys must be positive"))?;
    if count > JOINED_NAMES_MAX && args.len() > JOINED_NAMES_MAX {
        return Err(CommandError::BadArgumentNamed(format!(
            "CMS: at most {JOINED_NAMES_MAX} keys can be merged at once"
        )));
    }
    let (mut rest, mut names) = (args.from(3), vec![name(args, 1)?]);
    for _ in 0..count.min(args.len()) {
        names.push(Name::new(rest.next().ok_or(worded("CMS: wrong number of keys"))?)?);
    }
    if names.len() <= count {
        return Err(worded("CMS: wrong number of keys"));
    }
    let weights = match rest.next() {
        None => vec![1; count],
        Some(word) if is_word(word, "WEIGHTS") => {
            let weights: Option<Vec<i64>> = rest.map(number::integer).collect();
            let weights = weights.ok_or(worded("CMS: invalid weight value"))?;
            if weights.len() != count {
                return Err(worded("CMS: wrong number of keys/weights"));
            }
            weights
        }
        Some(_) => return Err(worded("CMS: wrong number of keys")),
    };
    sketch(SketchCommand::MergeFrequency { names, weights, dialect: Dialect::Redis })
}

pub(super) fn quipu_freq_merge<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    // The first sketch keeps its content: it is one of the merged sketches.
    let mut names = joined(args)?;
    names.insert(1, names[0]);
    let weights = vec![1; names.len() - 1];
    sketch(SketchCommand::MergeFrequency { names, weights, dialect: Dialect::Native })
}

pub(super) fn cms_info<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::FrequencyInfo { name: name(args, 1)?, dialect: Dialect::Redis })
}

pub(super) fn quipu_freq_info<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::FrequencyInfo { name: name(args, 1)?, dialect: Dialect::Native })
}

// ---- top ---------------------------------------------------------------------------------------

pub(super) fn topk_reserve<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let size = |index, wrong| {
        let size = natural(arg(args, index)).and_then(|size| u32::try_from(size).ok());
        size.ok_or(CommandError::BadArgument(wrong))
    };
    let mut top = TopSize::with_k(size(2, "TopK: invalid k")?);
    match args.len() {
        3 => {}
        6 => {
            (top.width, top.depth) = (size(3, "TopK: invalid width")?, size(4, "TopK: invalid depth")?);
            let decay = fraction(arg(args, 5)).filter(|decay| (0.0..=1.0).contains(&decay.get()) && decay.get() > 0.0);
            top.decay = decay.ok_or(CommandError::BadArgument("TopK: invalid decay value. must be '<= 1' & '> 0'"))?;
        }
        _ => return Err(CommandError::Arity(spec.name)),
    }
    sketch(SketchCommand::MakeTop { name: name(args, 1)?, size: top, dialect: Dialect::Redis })
}

pub(super) fn quipu_top_make<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let k = natural(arg(args, 2)).filter(|k| *k <= TOP_ITEMS_MAX.into()).and_then(|k| u32::try_from(k).ok());
    let wrong = || CommandError::BadArgumentNamed(format!("ERR a list has 1 to {TOP_ITEMS_MAX} items"));
    let size = TopSize::with_k(k.ok_or_else(wrong)?);
    sketch(SketchCommand::MakeTop { name: name(args, 1)?, size, dialect: Dialect::Native })
}

pub(super) fn topk_add<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    few_enough(args.len() - 2)?;
    let items = args.from(2).zip(iter::repeat(1)).collect();
    sketch(SketchCommand::CountTop { name: name(args, 1)?, items, make: None, dialect: Dialect::Redis })
}

pub(super) fn topk_incrby<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let items = counted(spec, args, |by| {
        let by = number::integer(by).filter(|by| (0..=TOPK_BY_MAX).contains(by));
        // Redis counts the command's other items and returns this error for the wrong one. Quipu
        // counts all items or none.
        let wrong = "TopK: increment must be an integer greater or equal to 0 and smaller or equal to 100,000";
        by.map(|by| by as u64).ok_or(CommandError::BadArgument(wrong))
    })?;
    sketch(SketchCommand::CountTop { name: name(args, 1)?, items, make: None, dialect: Dialect::Redis })
}

pub(super) fn quipu_top_add<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let (items, make) = (counted(spec, args, amount)?, Some(TopSize::default_size()));
    sketch(SketchCommand::CountTop { name: name(args, 1)?, items, make, dialect: Dialect::Native })
}

pub(super) fn quipu_top_add_at<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let (items, make) = (counted_from(3, spec, args, amount)?, Some(TopSize::default_size()));
    timed(args, SketchCommand::CountTop { name: name(args, 1)?, items, make, dialect: Dialect::Native })
}

pub(super) fn topk_query<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let items = args.from(2).collect();
    shaped(
        Command::Sketch(SketchCommand::IsTop { name: name(args, 1)?, items, dialect: Dialect::Redis }),
        ReplyShape::Truths,
    )
}

pub(super) fn topk_count<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let items = args.from(2).collect();
    sketch(SketchCommand::ReadTop { name: name(args, 1)?, items, dialect: Dialect::Redis })
}

pub(super) fn topk_list<'a>(spec: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    let shape = match (args.get(2), args.len()) {
        (None, _) => ReplyShape::Items,
        (Some(word), 3) if is_word(word, "WITHCOUNT") => ReplyShape::ItemsWithCount,
        (Some(_), 3) => return Err(CommandError::BadArgument("WITHCOUNT keyword expected")),
        _ => return Err(CommandError::Arity(spec.name)),
    };
    shaped(Command::Sketch(SketchCommand::ListTop { name: name(args, 1)?, dialect: Dialect::Redis }), shape)
}

pub(super) fn quipu_top_list<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::ListTop { name: name(args, 1)?, dialect: Dialect::Native })
}

pub(super) fn topk_info<'a>(_: &'static Spec, args: &Args<'a>) -> SketchParse<'a> {
    sketch(SketchCommand::TopInfo { name: name(args, 1)?, dialect: Dialect::Redis })
}

// ------------------------------------------------------------------------------------------------

fn sketch(command: SketchCommand<'_>) -> SketchParse<'_> {
    plain(Command::Sketch(command))
}

/// A command with bounds in its reply.
fn bounded(command: SketchCommand<'_>) -> SketchParse<'_> {
    shaped(Command::Sketch(command), ReplyShape::Bounded)
}

/// A command at the time that follows the name.
fn timed<'a>(args: &Args<'a>, command: SketchCommand<'a>) -> SketchParse<'a> {
    let at = Millis(number::natural(arg(args, 2)).ok_or(CommandError::NotInteger)?);
    sketch(SketchCommand::At { at, command: Box::new(command) })
}

/// Items with their counts.
fn counted<'a>(
    spec: &'static Spec,
    args: &Args<'a>,
    by: impl Fn(&[u8]) -> Result<u64, CommandError>,
) -> Result<Vec<(&'a [u8], u64)>, CommandError> {
    counted_from(2, spec, args, by)
}

fn counted_from<'a>(
    first: usize,
    spec: &'static Spec,
    args: &Args<'a>,
    by: impl Fn(&[u8]) -> Result<u64, CommandError>,
) -> Result<Vec<(&'a [u8], u64)>, CommandError> {
    if !(args.len() - first).is_multiple_of(2) {
        return Err(CommandError::Arity(spec.name));
    }
    let (mut rest, mut items) = (args.from(first), Vec::with_capacity(args.len() / 2));
    while let (Some(item), Some(amount)) = (rest.next(), rest.next()) {
        items.push((item, by(amount)?));
    }
    few_enough(items.len())?;
    Ok(items)
}

/// Checks the number of counted items: each may have an item in the reply.
fn few_enough(items: usize) -> Result<(), CommandError> {
    match items > COUNTED_ITEMS_MAX {
        true => Err(CommandError::BadArgumentNamed(format!("ERR a command counts at most {COUNTED_ITEMS_MAX} items"))),
        false => Ok(()),
    }
}

/// Sketches to merge, within the bound: the engine holds all of them during the merge.
fn joined<'a>(args: &Args<'a>) -> Result<Vec<Name<'a>>, CommandError> {
    let names = names(args)?;
    match names.len() > JOINED_NAMES_MAX {
        true => Err(CommandError::BadArgumentNamed(format!(
            "ERR a command brings at most {JOINED_NAMES_MAX} sketches together"
        ))),
        false => Ok(names),
    }
}

/// Count of an item.
fn amount(bytes: &[u8]) -> Result<u64, CommandError> {
    number::natural(bytes).ok_or(CommandError::NotInteger)
}

/// A size, at least 1.
fn natural(bytes: &[u8]) -> Option<u64> {
    number::natural(bytes).filter(|number| *number > 0)
}

fn fraction(bytes: &[u8]) -> Option<Fraction> {
    std::str::from_utf8(bytes).ok()?.parse().ok().and_then(Fraction::new)
}

/// A fraction between 0 and 1, both excluded.
fn share(bytes: &[u8]) -> Option<Fraction> {
    fraction(bytes).filter(|share| share.get() > 0.0 && share.get() < 1.0)
}

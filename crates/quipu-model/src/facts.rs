//! States the facts of a command by which other modules decide, in one exhaustive match.
//!
//! In: a command. Out: its counters, and its effects on journal, memory, store and reply.
//!
//! Invariant: no other module matches on commands to learn one of these facts. A new command is a
//! new arm here.

use crate::{Command, Expiry, Name, SetCondition, SketchCommand};

/// The counters of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandTargets<'c, 'a> {
    /// One counter.
    One(Name<'a>),
    /// Several counters, locked together.
    Many(&'c [Name<'a>]),
    /// All shards, locked together.
    All,
    /// All shards, one after another; only reads.
    Walk,
}

impl<'a> CommandTargets<'_, 'a> {
    /// The counters by name; none of a command on all shards.
    pub fn names(&self) -> &[Name<'a>] {
        match self {
            CommandTargets::One(name) => std::slice::from_ref(name),
            CommandTargets::Many(names) => names,
            CommandTargets::All | CommandTargets::Walk => &[],
        }
    }

    /// The counter that the command may change, or the first that it reads.
    pub fn first(&self) -> Option<Name<'a>> {
        self.names().first().copied()
    }
}

/// A command's need of a shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreNeed {
    /// None: it adds.
    Add,
    /// A read of other writers' values.
    Read,
    /// A change that only the store can order.
    Swap,
    /// A decision by a single owner, which a shared counter does not have; the text names the
    /// command.
    OneOwner(&'static str),
}

/// Facts of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandFacts<'c, 'a> {
    /// Its counters. The one that it may change comes first.
    pub targets: CommandTargets<'c, 'a>,
    /// It may change a counter. Only such a command is refused for lack of room on the disk.
    pub writes: bool,
    /// The counter that it may create, for limits on their number.
    pub creates: Option<Name<'a>>,
    /// The counter for which it needs memory if that is absent. Unlike `creates` it includes a SET
    /// with XX.
    pub allocates: Option<Name<'a>>,
    /// It may remove a counter's body.
    pub may_remove: bool,
    /// It may write a counter's cell again as it is, but for its expiry.
    pub rewrites_cell: bool,
    /// Its need of a shared store.
    pub store: StoreNeed,
    /// Its reply may be the string of a sketch.
    pub replies_string: bool,
}

impl<'c, 'a> CommandFacts<'c, 'a> {
    /// A command that reads counters.
    fn read(targets: CommandTargets<'c, 'a>) -> CommandFacts<'c, 'a> {
        CommandFacts {
            targets,
            writes: false,
            creates: None,
            allocates: None,
            may_remove: false,
            rewrites_cell: false,
            store: StoreNeed::Read,
            replies_string: false,
        }
    }

    /// A command that changes counters.
    fn write(targets: CommandTargets<'c, 'a>, store: StoreNeed) -> CommandFacts<'c, 'a> {
        CommandFacts { writes: true, store, ..CommandFacts::read(targets) }
    }

    /// A command that changes one counter, and creates it if it is absent.
    fn make(name: Name<'a>, store: StoreNeed) -> CommandFacts<'c, 'a> {
        let facts = CommandFacts::write(CommandTargets::One(name), store);
        CommandFacts { creates: Some(name), allocates: Some(name), ..facts }
    }
}

impl<'a> Command<'a> {
    /// Returns its facts.
    pub fn facts(&self) -> CommandFacts<'_, 'a> {
        use CommandTargets::{All, Many, One, Walk};
        match self {
            Command::Add { name, .. } => CommandFacts::make(*name, StoreNeed::Add),
            Command::AddSampled { name, .. } => {
                CommandFacts::make(*name, StoreNeed::OneOwner("what was sampled before it came"))
            }
            Command::AddWithin(add) => {
                let what = match (add.lower, add.upper, add.expiry) {
                    (i64::MIN, i64::MAX, Expiry::Keep) => "INCREX",
                    _ => "an add with bounds or an expiry",
                };
                CommandFacts::make(add.name, StoreNeed::OneOwner(what))
            }
            Command::Set(set) => {
                let store = match set.condition {
                    SetCondition::Always => StoreNeed::Swap,
                    SetCondition::IfAbsent | SetCondition::IfPresent => StoreNeed::OneOwner("SET with NX or XX"),
                };
                CommandFacts {
                    creates: Some(set.name).filter(|_| set.condition != SetCondition::IfPresent),
                    may_remove: true,
                    replies_string: set.reply_old,
                    ..CommandFacts::make(set.name, store)
                }
            }
            Command::Read { name } => CommandFacts { replies_string: true, ..CommandFacts::read(One(*name)) },
            Command::ReadMany { names } | Command::Exists { names } => CommandFacts::read(Many(names)),
            Command::KindOf { name } | Command::ExpiryOf { name, .. } => CommandFacts::read(One(*name)),
            Command::Take { name } => CommandFacts {
                may_remove: true,
                replies_string: true,
                ..CommandFacts::write(One(*name), StoreNeed::Swap)
            },
            Command::ReadAndExpire { name, expiry } => {
                let store = if *expiry == Expiry::Keep { StoreNeed::Read } else { StoreNeed::Swap };
                CommandFacts {
                    may_remove: true,
                    rewrites_cell: true,
                    replies_string: true,
                    ..CommandFacts::write(One(*name), store)
                }
            }
            Command::Reset { name } => CommandFacts::write(One(*name), StoreNeed::Swap),
            Command::Delete { names } => {
                CommandFacts { may_remove: true, ..CommandFacts::write(Many(names), StoreNeed::Swap) }
            }
            Command::Expire { name, .. } => CommandFacts {
                may_remove: true,
                rewrites_cell: true,
                ..CommandFacts::write(One(*name), StoreNeed::Swap)
            },
            Command::Persist { name } => {
                CommandFacts { rewrites_cell: true, ..CommandFacts::write(One(*name), StoreNeed::Swap) }
            }
            Command::Flush => CommandFacts {
                may_remove: true,
                ..CommandFacts::write(All, StoreNeed::OneOwner("deleting everything"))
            },
            Command::Scan(_) | Command::ListNames(_) | Command::CountNames => CommandFacts::read(Walk),
            Command::Sketch(command) => command.facts(),
        }
    }
}

impl<'a> SketchCommand<'a> {
    /// Returns its facts.
    pub fn facts(&self) -> CommandFacts<'_, 'a> {
        use CommandTargets::One;
        match self {
            // The panes of other writers decide what is late.
            SketchCommand::At { command, .. } => CommandFacts { store: StoreNeed::Read, ..command.facts() },
            SketchCommand::Observe { name, .. } => CommandFacts::make(*name, StoreNeed::Add),
            SketchCommand::CountItems { name, make, .. } => count(*name, make.is_some()),
            SketchCommand::CountTop { name, make, .. } => count(*name, make.is_some()),
            // The kinds and sizes that other writers have decide the results of all others.
            SketchCommand::MakeFrequency { name, .. } | SketchCommand::MakeTop { name, .. } => {
                CommandFacts::make(*name, StoreNeed::Read)
            }
            SketchCommand::MergeUnique { names, .. } => {
                let first = names.first().copied();
                let facts = CommandFacts::write(several(names), StoreNeed::Read);
                CommandFacts { creates: first, allocates: first, ..facts }
            }
            SketchCommand::MergeFrequency { names, .. } => {
                CommandFacts::write(several(names), StoreNeed::OneOwner("CMS.MERGE, which replaces what was counted,"))
            }
            SketchCommand::SetString(set) => {
                let created = Some(set.name).filter(|_| set.condition != SetCondition::IfPresent);
                let store = StoreNeed::OneOwner("setting a sketch to a string");
                CommandFacts {
                    creates: created,
                    allocates: created,
                    may_remove: true,
                    replies_string: set.reply_old,
                    ..CommandFacts::write(One(set.name), store)
                }
            }
            SketchCommand::CountUnique { names, .. } => CommandFacts::read(several(names)),
            SketchCommand::RelateUnique { names, .. } => CommandFacts::read(several(names)),
            SketchCommand::ReadRange { name, .. } => {
                CommandFacts { replies_string: true, ..CommandFacts::read(One(*name)) }
            }
            SketchCommand::StringLength { name }
            | SketchCommand::ReadItems { name, .. }
            | SketchCommand::FrequencyInfo { name, .. }
            | SketchCommand::IsTop { name, .. }
            | SketchCommand::ReadTop { name, .. }
            | SketchCommand::ListTop { name, .. }
            | SketchCommand::TopInfo { name, .. } => CommandFacts::read(One(*name)),
        }
    }
}

/// A count of items; creates the sketch only if it has a size for it.
fn count<'c, 'a>(name: Name<'a>, makes: bool) -> CommandFacts<'c, 'a> {
    let created = Some(name).filter(|_| makes);
    let facts = CommandFacts::write(CommandTargets::One(name), StoreNeed::Add);
    CommandFacts { creates: created, allocates: created, ..facts }
}

/// Targets of a command on a list of names.
fn several<'c, 'a>(names: &'c [Name<'a>]) -> CommandTargets<'c, 'a> {
    if let [name] = names { CommandTargets::One(*name) } else { CommandTargets::Many(names) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dialect, Millis, Set, SetExpiry};

    fn name(text: &'static str) -> Name<'static> {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_set_of_a_present_counter_creates_none_and_still_may_need_memory() {
        let set = |condition| {
            Command::Set(Set { name: name("a"), value: 1, condition, expiry: SetExpiry::Keep, reply_old: false })
        };
        let facts = |condition| {
            let command = set(condition);
            let facts = command.facts();
            (facts.creates, facts.allocates, facts.store)
        };
        let a = Some(name("a"));
        let one_owner = StoreNeed::OneOwner("SET with NX or XX");
        assert_eq!(facts(SetCondition::Always), (a, a, StoreNeed::Swap));
        assert_eq!(facts(SetCondition::IfAbsent), (a, a, one_owner));
        assert_eq!(facts(SetCondition::IfPresent), (None, a, one_owner));
    }

    #[test]
    fn items_with_a_time_of_their_own_need_the_rows_of_other_writers() {
        let observe = SketchCommand::Observe { name: name("a"), items: vec![b"x"], dialect: Dialect::Native };
        assert_eq!(observe.facts().store, StoreNeed::Add);
        let at = SketchCommand::At { at: Millis(1), command: Box::new(observe.clone()) };
        assert_eq!(at.facts(), CommandFacts { store: StoreNeed::Read, ..observe.facts() });
    }

    #[test]
    fn a_merge_changes_the_first_of_its_counters() {
        let merge = SketchCommand::MergeUnique { names: vec![name("a"), name("b")], dialect: Dialect::Native };
        let facts = merge.facts();
        assert_eq!((facts.targets.first(), facts.creates), (Some(name("a")), Some(name("a"))));
        assert_eq!(facts.targets.names(), [name("a"), name("b")]);
        assert_eq!(Command::Flush.facts().targets.names(), []);
    }
}

//! Specifies a group of counters: adds, reads, sets, deletes, expiry, several of them in one step.

use quipu_model::Reply;

use super::{HistoryOperation, Specification};

/// Number of counters in a group.
pub const CELLS: usize = 2;

/// An action on a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterAction {
    /// INCRBY.
    Add(i64),
    /// GET.
    Read,
    /// No change: the step takes effect only if the value is this one.
    Expect(Option<i64>),
    /// SET: removes the expiry.
    Set(i64),
    /// SET … PX, in nanoseconds from now.
    SetFor(i64, u64),
    /// GETSET: removes the expiry.
    Swap(i64),
    /// QUIPU.RESET: keeps the expiry.
    Reset,
    /// GETDEL.
    Take,
    /// DEL.
    Delete,
    /// PEXPIRE, in nanoseconds from now.
    ExpireIn(u64),
    /// PERSIST.
    Persist,
}

/// An action on one counter of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterStep {
    /// Index of the counter.
    pub cell: usize,
    /// The action.
    pub action: CounterAction,
}

/// Expiry of a counter: the request that set it took effect at an unknown time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deadline {
    /// The counter exists before this time.
    pub earliest: u64,
    /// The counter is gone after this time.
    pub latest: u64,
}

/// State of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CounterState {
    /// Any state.
    Unknown,
    /// The counter does not exist.
    Absent,
    /// The counter has a value.
    Present(i64, Option<Deadline>),
}

/// The specification. An operation has one reply per step.
#[derive(Debug, Clone, Copy)]
pub struct CounterSpec {
    /// Largest difference between the server's time for expiry and the history's, in nanoseconds.
    /// The server reads its clock before it reads requests, and may be interrupted in between.
    pub clock_slack: u64,
}

/// The current step of an operation, and its times.
#[derive(Debug, Clone, Copy)]
struct StepContext<'r> {
    action: CounterAction,
    reply: Option<&'r Reply>,
    invoked: u64,
    returned: u64,
}

impl Deadline {
    /// Any deadline, or none.
    pub const UNKNOWN: Deadline = Deadline { earliest: 0, latest: u64::MAX };
}

impl Specification for CounterSpec {
    type State = [CounterState; CELLS];
    type Action = Vec<CounterStep>;
    type Reply = Vec<Reply>;

    fn step(
        &self,
        state: &Self::State,
        operation: &HistoryOperation<Self::Action, Self::Reply>,
        next: &mut Vec<Self::State>,
    ) {
        let &HistoryOperation { invoked, returned, .. } = operation;
        let mut states = vec![*state];
        for (index, step) in operation.action.iter().enumerate() {
            let reply = operation.reply.as_ref().and_then(|replies| replies.get(index));
            let context = StepContext { action: step.action, reply, invoked, returned };
            let mut after = Vec::with_capacity(states.len());
            for state in states {
                for cell in self.outcomes(state[step.cell], context).into_iter().flatten() {
                    let mut changed = state;
                    changed[step.cell] = cell;
                    if !after.contains(&changed) {
                        after.push(changed);
                    }
                }
            }
            states = after;
        }
        next.extend(states);
    }

    fn is_read(&self, action: &Self::Action) -> bool {
        action.iter().all(|step| matches!(step.action, CounterAction::Read | CounterAction::Expect(_)))
    }

    /// Only expiry depends on time: that of a counter which an operation finds or sets.
    fn is_timeless(&self, state: &Self::State, action: &Self::Action) -> bool {
        let may_expire = |cell: usize| matches!(state[cell], CounterState::Present(_, Some(_)));
        let gives_expiry = |action| matches!(action, CounterAction::SetFor(..) | CounterAction::ExpireIn(_));
        !action.iter().any(|step| may_expire(step.cell) || gives_expiry(step.action))
    }
}

impl CounterSpec {
    /// Possible states after a step; two, if the counter may have expired or not.
    fn outcomes(&self, state: CounterState, context: StepContext<'_>) -> [Option<CounterState>; 2] {
        let (value, deadline) = match state {
            CounterState::Unknown => return self.outcomes_of_unknown(context),
            CounterState::Absent => return [self.outcome_of_absent(context), None],
            CounterState::Present(value, deadline) => (value, deadline),
        };
        let may_exist = deadline.is_none_or(|deadline| context.invoked <= deadline.latest);
        let may_be_gone = deadline.is_some_and(|deadline| deadline.earliest <= context.returned);
        [
            may_exist.then(|| self.outcome_of_present(value, deadline, context)).flatten(),
            may_be_gone.then(|| self.outcome_of_absent(context)).flatten(),
        ]
    }

    fn outcome_of_absent(&self, context: StepContext<'_>) -> Option<CounterState> {
        let (after, reply) = match context.action {
            CounterAction::Add(delta) => (CounterState::Present(delta, None), Reply::Integer(delta)),
            CounterAction::Read => (CounterState::Absent, Reply::Value(None)),
            CounterAction::Expect(value) => return value.is_none().then_some(CounterState::Absent),
            CounterAction::Set(value) => (CounterState::Present(value, None), Reply::Ok),
            CounterAction::SetFor(value, nanos) => {
                (CounterState::Present(value, Some(self.deadline(nanos, context))), Reply::Ok)
            }
            CounterAction::Swap(value) => (CounterState::Present(value, None), Reply::Value(None)),
            CounterAction::Take => (CounterState::Absent, Reply::Value(None)),
            CounterAction::Reset | CounterAction::Delete | CounterAction::ExpireIn(_) | CounterAction::Persist => {
                (CounterState::Absent, Reply::Integer(0))
            }
        };
        context.explains(&reply).then_some(after)
    }

    fn outcome_of_present(
        &self,
        value: i64,
        deadline: Option<Deadline>,
        context: StepContext<'_>,
    ) -> Option<CounterState> {
        let same = CounterState::Present(value, deadline);
        let (after, reply) = match context.action {
            CounterAction::Add(delta) => {
                let sum = value.checked_add(delta)?;
                (CounterState::Present(sum, deadline), Reply::Integer(sum))
            }
            CounterAction::Read => (same, Reply::Value(Some(value))),
            CounterAction::Expect(expected) => return (expected == Some(value)).then_some(same),
            CounterAction::Set(value) => (CounterState::Present(value, None), Reply::Ok),
            CounterAction::SetFor(value, nanos) => {
                (CounterState::Present(value, Some(self.deadline(nanos, context))), Reply::Ok)
            }
            CounterAction::Swap(new) => (CounterState::Present(new, None), Reply::Value(Some(value))),
            CounterAction::Reset => (CounterState::Present(0, deadline), Reply::Integer(value)),
            CounterAction::Take => (CounterState::Absent, Reply::Value(Some(value))),
            CounterAction::Delete => (CounterState::Absent, Reply::Integer(1)),
            CounterAction::ExpireIn(nanos) => {
                (CounterState::Present(value, Some(self.deadline(nanos, context))), Reply::Integer(1))
            }
            CounterAction::Persist => {
                let after = CounterState::Present(value, None);
                let had = context.explains(&Reply::Integer(i64::from(deadline.is_some())));
                // With an unknown expiry either reply is right.
                return (had || deadline == Some(Deadline::UNKNOWN)).then_some(after);
            }
        };
        context.explains(&reply).then_some(after)
    }

    /// States after a step on a counter of unknown state, by the reply.
    fn outcomes_of_unknown(&self, context: StepContext<'_>) -> [Option<CounterState>; 2] {
        let present = |value| CounterState::Present(value, Some(Deadline::UNKNOWN));
        let after = match (context.action, context.reply) {
            (CounterAction::Add(_), Some(Reply::Integer(value))) => present(*value),
            (CounterAction::Expect(Some(value)), _) => present(value),
            (CounterAction::Read, Some(Reply::Value(Some(value)))) => present(*value),
            (CounterAction::Read, Some(Reply::Value(None))) | (CounterAction::Expect(None), _) => CounterState::Absent,
            (CounterAction::Set(value) | CounterAction::Swap(value), _) => CounterState::Present(value, None),
            (CounterAction::SetFor(value, nanos), _) => {
                CounterState::Present(value, Some(self.deadline(nanos, context)))
            }
            (CounterAction::Take | CounterAction::Delete, _) => CounterState::Absent,
            (CounterAction::Reset, _) => return [Some(present(0)), Some(CounterState::Absent)],
            (CounterAction::ExpireIn(_), Some(Reply::Integer(0))) => CounterState::Absent,
            (CounterAction::Add(_) | CounterAction::Read, _)
            | (CounterAction::ExpireIn(_) | CounterAction::Persist, _) => CounterState::Unknown,
        };
        [Some(after), None]
    }

    fn deadline(&self, nanos: u64, context: StepContext<'_>) -> Deadline {
        Deadline {
            earliest: context.invoked.saturating_add(nanos).saturating_sub(self.clock_slack),
            latest: context.returned.saturating_add(nanos).saturating_add(self.clock_slack),
        }
    }
}

impl StepContext<'_> {
    fn explains(&self, reply: &Reply) -> bool {
        self.reply.is_none_or(|shown| shown == reply)
    }
}

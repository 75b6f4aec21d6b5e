//! Searches for an order that explains a history.

use std::collections::HashSet;
use std::fmt;

use super::{HistoryOperation, Specification};

/// Most points of a search, before it ends undecided: some hundred megabytes. Histories of the
/// suites need a few thousand.
const POINTS_MAX: usize = 400_000;

/// An operation of the search; operations are in the order of their requests.
#[derive(Debug)]
pub(super) struct SearchEntry<'h, A, R> {
    pub operation: &'h HistoryOperation<A, R>,
    /// True if it took effect, and within the window.
    pub is_certain: bool,
    /// Index of the operation that comes before it.
    pub after: Option<usize>,
    /// True if it comes before another one.
    pub is_followed: bool,
}

/// Result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SearchOutcome {
    /// An order exists.
    Explained { points: usize },
    /// No order exists.
    Unexplained,
    /// The search exceeded its bound.
    Undecided { points: usize },
}

/// A point of the search: a partial order.
#[derive(Debug, Clone)]
struct SearchPoint<S> {
    /// Operations that have taken effect, and those that no longer can.
    done: Box<[u64]>,
    state: S,
    /// Latest request among operations that have taken effect: operations that ended before it can
    /// no longer take effect.
    latest: u64,
    /// All indexes below are done.
    first: usize,
    /// Number of certain operations that are not done.
    left: usize,
}

/// Searches for an order of the operations that explains every reply.
pub(super) fn search<S: Specification>(
    spec: &S,
    initial: &S::State,
    operations: &[SearchEntry<'_, S::Action, S::Reply>],
) -> SearchOutcome {
    let left = operations.iter().filter(|each| each.is_certain).count();
    let done = vec![0; operations.len().div_ceil(64)].into_boxed_slice();
    let mut stack = vec![SearchPoint { done, state: initial.clone(), latest: 0, first: 0, left }];
    let (mut visited, mut states, mut points) = (HashSet::new(), Vec::new(), 0);
    while let Some(point) = stack.pop() {
        if point.left == 0 {
            return SearchOutcome::Explained { points };
        }
        points += 1;
        if points > POINTS_MAX {
            return SearchOutcome::Undecided { points };
        }
        let candidates = point.candidates(spec, operations);
        if let Some(next) = point.after_read(spec, operations, &candidates) {
            if visited.insert((next.done.clone(), next.state.clone())) {
                stack.push(next);
            }
            continue;
        }
        for index in candidates {
            states.clear();
            spec.step(&point.state, operations[index].operation, &mut states);
            for state in states.drain(..) {
                let next = point.after_operation(index, state, operations);
                if visited.insert((next.done.clone(), next.state.clone())) {
                    stack.push(next);
                }
            }
        }
    }
    SearchOutcome::Unexplained
}

impl<S: Clone + PartialEq> SearchPoint<S> {
    /// Operations that may take effect next; the likeliest is last, since the search tries it
    /// first.
    fn candidates<Spec: Specification<State = S>>(
        &self,
        spec: &Spec,
        operations: &[SearchEntry<'_, Spec::Action, Spec::Reply>],
    ) -> Vec<usize> {
        // Bound of the candidates: an operation sent after the end of a pending one cannot come
        // before it.
        let mut bound = u64::MAX;
        let mut candidates = Vec::new();
        for (index, each) in operations.iter().enumerate().skip(self.first) {
            if self.is_done(index) {
                continue;
            }
            if each.operation.invoked > bound {
                break;
            }
            if each.is_certain {
                bound = bound.min(each.operation.returned);
            }
            if each.after.is_some_and(|before| !self.is_done(before)) {
                continue;
            }
            let is_replaced = candidates.iter().any(|&other: &usize| {
                let other = &operations[other];
                other.stands_for(each)
                    && (other.has_span_of(each) || spec.is_timeless(&self.state, &each.operation.action))
            });
            if !is_replaced {
                candidates.push(index);
            }
        }
        // The operation that ended first usually took effect first; uncertain ones are tried last.
        candidates.sort_by_key(|&index| {
            (operations[index].is_certain, std::cmp::Reverse(operations[index].operation.returned))
        });
        candidates
    }

    /// The point after a read with a right reply, if there is one: taking it now excludes no order.
    fn after_read<Spec: Specification<State = S>>(
        &self,
        spec: &Spec,
        operations: &[SearchEntry<'_, Spec::Action, Spec::Reply>],
        candidates: &[usize],
    ) -> Option<SearchPoint<S>> {
        let mut states = Vec::new();
        let is_certain_read = |index: usize| {
            let SearchEntry { operation, is_certain, .. } = &operations[index];
            *is_certain && spec.is_read(&operation.action)
        };
        let mut reads = candidates.iter().copied().filter(|&index| is_certain_read(index));
        reads.find_map(|index| {
            states.clear();
            spec.step(&self.state, operations[index].operation, &mut states);
            if states[..] != [self.state.clone()] {
                return None;
            }
            let next = self.after_operation(index, self.state.clone(), operations);
            // Not if others could then take effect no longer.
            let done_count = |point: &SearchPoint<S>| point.done.iter().map(|word| word.count_ones()).sum::<u32>();
            (done_count(&next) == done_count(self) + 1).then_some(next)
        })
    }
}

impl<S> SearchPoint<S> {
    fn is_done(&self, index: usize) -> bool {
        self.done[index / 64] & (1 << (index % 64)) != 0
    }

    fn mark_done(&mut self, index: usize) {
        self.done[index / 64] |= 1 << (index % 64);
    }

    /// The point after an operation has taken effect.
    fn after_operation<A, R>(&self, index: usize, state: S, operations: &[SearchEntry<'_, A, R>]) -> SearchPoint<S> {
        let mut next =
            SearchPoint { done: self.done.clone(), state, latest: self.latest, first: self.first, left: self.left };
        next.mark_done(index);
        next.left -= usize::from(operations[index].is_certain);
        let invoked = operations[index].operation.invoked;
        if invoked > next.latest {
            next.latest = invoked;
            // Operations that can no longer take effect count as done: this merges otherwise equal
            // orders.
            for (other, each) in operations.iter().enumerate().skip(next.first) {
                if each.operation.invoked > invoked {
                    break;
                }
                if !each.is_certain && each.operation.returned < invoked {
                    next.mark_done(other);
                }
            }
        }
        while next.first < operations.len() && next.is_done(next.first) {
            next.first += 1;
        }
        next
    }
}

impl<A: PartialEq, R> SearchEntry<'_, A, R> {
    /// Returns true if both have the same times.
    fn has_span_of(&self, other: &SearchEntry<'_, A, R>) -> bool {
        let span = |entry: &SearchEntry<'_, A, R>| (entry.operation.invoked, entry.operation.returned);
        span(self) == span(other)
    }

    /// Returns true if an order with the later request next may take this one instead. Both do the
    /// same and show nothing, and this one must take effect no later.
    fn stands_for(&self, later: &SearchEntry<'_, A, R>) -> bool {
        let (own, others) = (self.operation, later.operation);
        let is_free = |entry: &SearchEntry<'_, A, R>| entry.after.is_none() && !entry.is_followed;
        own.reply.is_none()
            && others.reply.is_none()
            && own.returned <= others.returned
            && (self.is_certain || !later.is_certain)
            && is_free(self)
            && is_free(later)
            && own.action == others.action
    }
}

impl<A: fmt::Debug, R: fmt::Debug> fmt::Display for SearchEntry<'_, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HistoryOperation { client, action, reply, invoked, returned, .. } = self.operation;
        let micros = |nanos: u64| nanos / 1_000;
        write!(f, "{:>9}..{:<9} µs client {client}: {action:?}", micros(*invoked), micros(*returned))?;
        match reply {
            Some(reply) => write!(f, " → {reply:?}")?,
            None => f.write_str(" → ?")?,
        }
        if !self.is_certain {
            f.write_str(" (perhaps)")?;
        }
        Ok(())
    }
}

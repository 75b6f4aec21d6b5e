//! The search for an order that explains a history.

use std::collections::HashSet;
use std::fmt;

use super::{Operation, Specification};

/// A search ends undecided after so many points: some hundred megabytes. Histories of the suites need a few thousand.
const POINTS_MAX: usize = 1_000_000;

/// An operation among those that are searched, which are in the order of their requests.
#[derive(Debug)]
pub(super) struct Placed<'h, A, R> {
    pub operation: &'h Operation<A, R>,
    /// It took effect, and within the window.
    pub is_certain: bool,
    /// The index of the operation that comes before it.
    pub after: Option<usize>,
}

/// What a search found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SearchOutcome {
    /// An order.
    Explained { points: usize },
    /// There is no order.
    Unexplained,
    /// It was too much.
    Undecided { points: usize },
}

/// How far an order has come.
#[derive(Debug, Clone)]
struct Point<S> {
    /// Operations that have taken effect, and those that no longer can.
    done: Box<[u64]>,
    state: S,
    /// The latest request among operations that have taken effect: what must end before it has ended.
    latest: u64,
    /// Indices below are all done.
    first: usize,
    /// Certain operations that are not done.
    left: usize,
}

/// Searches for an order of the operations that explains every reply.
pub(super) fn search<S: Specification>(
    spec: &S,
    initial: &S::State,
    operations: &[Placed<'_, S::Action, S::Reply>],
) -> SearchOutcome {
    let left = operations.iter().filter(|each| each.is_certain).count();
    let done = vec![0; operations.len().div_ceil(64)].into_boxed_slice();
    let mut stack = vec![Point { done, state: initial.clone(), latest: 0, first: 0, left }];
    let (mut met, mut states, mut points) = (HashSet::new(), Vec::new(), 0);
    while let Some(point) = stack.pop() {
        if point.left == 0 {
            return SearchOutcome::Explained { points };
        }
        points += 1;
        if points > POINTS_MAX {
            return SearchOutcome::Undecided { points };
        }
        for index in point.candidates(operations) {
            states.clear();
            spec.step(&point.state, operations[index].operation, &mut states);
            for state in states.drain(..) {
                let next = point.take(index, state, operations);
                if met.insert((next.done.clone(), next.state.clone())) {
                    stack.push(next);
                }
            }
        }
    }
    SearchOutcome::Unexplained
}

impl<S> Point<S> {
    fn is_done(&self, index: usize) -> bool {
        self.done[index / 64] & (1 << (index % 64)) != 0
    }

    fn mark(&mut self, index: usize) {
        self.done[index / 64] |= 1 << (index % 64);
    }

    /// The operations that may take effect next; the likeliest is last, since it is tried first.
    fn candidates<A, R>(&self, operations: &[Placed<'_, A, R>]) -> Vec<usize> {
        // Whatever is asked after this was asked after an operation had ended that has not taken effect yet.
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
            if each.after.is_none_or(|before| self.is_done(before)) {
                candidates.push(index);
            }
        }
        // What ended first most often took effect first; what may never have taken effect is tried last.
        candidates.sort_by_key(|&index| {
            (operations[index].is_certain, std::cmp::Reverse(operations[index].operation.returned))
        });
        candidates
    }

    /// The point after an operation has taken effect.
    fn take<A, R>(&self, index: usize, state: S, operations: &[Placed<'_, A, R>]) -> Point<S> {
        let mut next =
            Point { done: self.done.clone(), state, latest: self.latest, first: self.first, left: self.left };
        next.mark(index);
        next.left -= usize::from(operations[index].is_certain);
        let invoked = operations[index].operation.invoked;
        if invoked > next.latest {
            next.latest = invoked;
            // What may take effect no longer is as good as done: orders that differ in nothing else become one.
            for (other, each) in operations.iter().enumerate().skip(next.first) {
                if each.operation.invoked > invoked {
                    break;
                }
                if !each.is_certain && each.operation.returned < invoked {
                    next.mark(other);
                }
            }
        }
        while next.first < operations.len() && next.is_done(next.first) {
            next.first += 1;
        }
        next
    }
}

impl<A: fmt::Debug, R: fmt::Debug> fmt::Display for Placed<'_, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { client, action, reply, invoked, returned, .. } = self.operation;
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

//! Runs a node's background tasks that talk to the store: bounded rounds, each dropped at its
//! timeout.

use std::time::Duration;

use quipu_engine::Engine;

use crate::plan::Plan;
use crate::task::{Task, WakeSignal};

/// One background task that talks to the store.
pub(super) struct BackgroundTask {
    kind: TaskKind,
    task: Option<Task<usize>>,
    began: Duration,
    next_at: Duration,
}

/// Needs of waiting clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClientNeeds {
    /// Rows and swaps, or cells at rest.
    pub store: bool,
    /// A claim of a token.
    pub token: bool,
}

/// Interval between checks while a client waits.
const RECHECK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskKind {
    Renew,
    Settle,
    Fetch,
    Swap,
    Audit,
    Retire,
    Claim,
    RestoreClaims,
}

const TASK_KINDS: [TaskKind; 8] = [
    TaskKind::Renew,
    TaskKind::Settle,
    TaskKind::Fetch,
    TaskKind::Swap,
    TaskKind::Audit,
    TaskKind::Retire,
    TaskKind::Claim,
    TaskKind::RestoreClaims,
];

impl BackgroundTask {
    /// Creates all tasks, due now.
    pub(super) fn all(now: Duration) -> Vec<BackgroundTask> {
        TASK_KINDS.map(|kind| BackgroundTask { kind, task: None, began: now, next_at: now }).into()
    }

    /// Time of the next check, unless the running round is woken before.
    pub(super) fn next_check(&self, plan: &Plan, needs: ClientNeeds) -> Duration {
        match &self.task {
            Some(_) => self.began + self.kind.timeout(plan),
            None if self.kind.serves(needs) => self.next_at.min(self.began + RECHECK_EVERY),
            None => self.next_at,
        }
    }

    /// Begins a due round or continues a woken one; returns true if it did anything.
    pub(super) fn step(
        &mut self,
        (engine, signal): (&Engine, &WakeSignal),
        plan: &Plan,
        now: Duration,
        needs: ClientNeeds,
    ) -> bool {
        let Some(task) = &mut self.task else {
            let wanted = self.kind.serves(needs) && now >= self.began + RECHECK_EVERY;
            if now < self.next_at && !wanted {
                return false;
            }
            if self.kind == TaskKind::Settle && engine.sharing().is_none_or(|sharing| sharing.unsettled() == 0) {
                self.next_at = now + self.kind.every(plan);
                return false;
            }
            (self.began, self.task) = (now, Some(begin_round(self.kind, engine.clone(), signal)));
            return self.step((engine, signal), plan, now, needs);
        };
        if task.is_woken() {
            if let Some(done) = task.poll() {
                self.task = None;
                // A task that may have more work runs again at once.
                let more = done > 0 && !matches!(self.kind, TaskKind::Renew | TaskKind::Settle | TaskKind::Fetch);
                self.next_at = if more { now } else { now + self.kind.every(plan) };
            }
            return true;
        }
        // Drop a round that takes too long; it starts again later.
        if now.saturating_sub(self.began) < self.kind.timeout(plan) {
            return false;
        }
        (self.task, self.next_at) = (None, now + self.kind.every(plan));
        true
    }
}

/// Each is a future of its own size: most are small, and begun often.
fn begin_round(kind: TaskKind, engine: Engine, signal: &WakeSignal) -> Task<usize> {
    macro_rules! round {
        ($round:ident) => {
            Task::new(
                async move {
                    match engine.sharing() {
                        Some(sharing) => sharing.$round().await as usize,
                        None => 0,
                    }
                },
                signal,
            )
        };
    }
    match kind {
        TaskKind::Renew => round!(renew),
        TaskKind::Settle => round!(settle),
        TaskKind::Fetch => round!(fetch),
        TaskKind::Swap => round!(swap),
        TaskKind::Audit => round!(audit),
        TaskKind::Retire => round!(retire),
        TaskKind::Claim => round!(claim),
        TaskKind::RestoreClaims => round!(restore_claims),
    }
}

impl TaskKind {
    /// Returns true if clients wait for this task.
    fn serves(self, needs: ClientNeeds) -> bool {
        match self {
            TaskKind::Fetch | TaskKind::Swap => needs.store,
            TaskKind::Claim => needs.token,
            _ => false,
        }
    }

    /// Interval between its rounds.
    fn every(self, plan: &Plan) -> Duration {
        let sharing = &plan.sharing;
        match self {
            TaskKind::Renew => sharing.lease / 5,
            TaskKind::Settle => (sharing.settle_every / 2).max(Duration::from_millis(50)),
            // A waiting client does not wait for this interval.
            TaskKind::Fetch | TaskKind::Swap | TaskKind::Audit | TaskKind::RestoreClaims => Duration::from_millis(400),
            TaskKind::Claim => Duration::from_secs(2),
            TaskKind::Retire => (sharing.retire_after / 4).min(Duration::from_secs(3)),
        }
    }

    /// Timeout of a round.
    fn timeout(self, plan: &Plan) -> Duration {
        let sharing = &plan.sharing;
        match self {
            TaskKind::Renew => sharing.lease / 2,
            TaskKind::Fetch => 2 * sharing.fetch_wait,
            _ => sharing.swap_wait,
        }
    }
}

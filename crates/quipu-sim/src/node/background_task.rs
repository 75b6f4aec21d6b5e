//! The background that talks to the store: each chore is one bounded round after another, dropped where it waits when it takes too long.

use std::time::Duration;

use quipu_engine::Engine;

use crate::plan::Plan;
use crate::task::{Task, WakeSignal};

/// A part of the background that talks to the store.
pub(super) struct BackgroundTask {
    kind: TaskKind,
    task: Option<Task<usize>>,
    began: Duration,
    next_at: Duration,
}

/// What clients wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ClientNeeds {
    /// Rows and swaps, or what is at rest.
    pub store: bool,
    /// A token to be claimed.
    pub token: bool,
}

/// While somebody waits, it looks this often.
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
    /// All there are, due now.
    pub(super) fn all(now: Duration) -> Vec<BackgroundTask> {
        TASK_KINDS.map(|kind| BackgroundTask { kind, task: None, began: now, next_at: now }).into()
    }

    /// When there may be something to do, unless its task is woken before.
    pub(super) fn next_check(&self, plan: &Plan, needs: ClientNeeds) -> Duration {
        match &self.task {
            Some(_) => self.began + self.kind.timeout(plan),
            None if self.kind.serves(needs) => self.next_at.min(self.began + RECHECK_EVERY),
            None => self.next_at,
        }
    }

    /// Begins it if it is due, goes on with it if it can; whether anything was done.
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
                // What may have more to do is asked again at once.
                let more = done > 0 && !matches!(self.kind, TaskKind::Renew | TaskKind::Settle | TaskKind::Fetch);
                self.next_at = if more { now } else { now + self.kind.every(plan) };
            }
            return true;
        }
        // A round that takes too long is dropped where it waits, and begun anew.
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
    /// Whether clients wait for it.
    fn serves(self, needs: ClientNeeds) -> bool {
        match self {
            TaskKind::Fetch | TaskKind::Swap => needs.store,
            TaskKind::Claim => needs.token,
            _ => false,
        }
    }

    /// How often it looks for something to do.
    fn every(self, plan: &Plan) -> Duration {
        let sharing = &plan.sharing;
        match self {
            TaskKind::Renew => sharing.lease / 5,
            TaskKind::Settle => (sharing.settle_every / 2).max(Duration::from_millis(50)),
            // Whoever waits for one of these does not wait for its turn.
            TaskKind::Fetch | TaskKind::Swap | TaskKind::Audit | TaskKind::RestoreClaims => Duration::from_millis(400),
            TaskKind::Claim => Duration::from_secs(2),
            TaskKind::Retire => (sharing.retire_after / 4).min(Duration::from_secs(3)),
        }
    }

    /// How long a round may take.
    fn timeout(self, plan: &Plan) -> Duration {
        let sharing = &plan.sharing;
        match self {
            TaskKind::Renew => sharing.lease / 2,
            TaskKind::Fetch => 2 * sharing.fetch_wait,
            _ => sharing.swap_wait,
        }
    }
}

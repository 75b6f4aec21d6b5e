//! The background that talks to the store: each chore is one bounded round after another, dropped where it waits when it takes too long.

use std::time::Duration;

use quipu_engine::Engine;

use crate::plan::Plan;
use crate::task::{Bell, Task};

/// A part of the background that talks to the store.
pub(super) struct Chore {
    kind: Kind,
    task: Option<Task<usize>>,
    began: Duration,
    next_at: Duration,
}

/// What clients wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Waits {
    /// Rows and swaps, or what is at rest.
    pub store: bool,
    /// A token to be claimed.
    pub token: bool,
}

/// While somebody waits, it looks this often.
const AGAIN: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Renew,
    Settle,
    Fetch,
    Swap,
    Audit,
    Retire,
    Claim,
    RestoreClaims,
}

const KINDS: [Kind; 8] =
    [Kind::Renew, Kind::Settle, Kind::Fetch, Kind::Swap, Kind::Audit, Kind::Retire, Kind::Claim, Kind::RestoreClaims];

impl Chore {
    /// All there are, due now.
    pub(super) fn all(now: Duration) -> Vec<Chore> {
        KINDS.map(|kind| Chore { kind, task: None, began: now, next_at: now }).into()
    }

    /// When there may be something to do, unless its task is woken before.
    pub(super) fn next_look(&self, plan: &Plan, waits: Waits) -> Duration {
        match &self.task {
            Some(_) => self.began + self.kind.patience(plan),
            None if self.kind.serves(waits) => self.next_at.min(self.began + AGAIN),
            None => self.next_at,
        }
    }

    /// Begins it if it is due, goes on with it if it can; whether anything was done.
    pub(super) fn step(&mut self, (engine, bell): (&Engine, &Bell), plan: &Plan, now: Duration, waits: Waits) -> bool {
        let Some(task) = &mut self.task else {
            let wanted = self.kind.serves(waits) && now >= self.began + AGAIN;
            if now < self.next_at && !wanted {
                return false;
            }
            if self.kind == Kind::Settle && engine.sharing().is_none_or(|sharing| sharing.unsettled() == 0) {
                self.next_at = now + self.kind.every(plan);
                return false;
            }
            (self.began, self.task) = (now, Some(begin(self.kind, engine.clone(), bell)));
            return self.step((engine, bell), plan, now, waits);
        };
        if task.is_woken() {
            if let Some(done) = task.poll() {
                self.task = None;
                // What may have more to do is asked again at once.
                let more = done > 0 && !matches!(self.kind, Kind::Renew | Kind::Settle | Kind::Fetch);
                self.next_at = if more { now } else { now + self.kind.every(plan) };
            }
            return true;
        }
        // A round that takes too long is dropped where it waits, and begun anew.
        if now.saturating_sub(self.began) < self.kind.patience(plan) {
            return false;
        }
        (self.task, self.next_at) = (None, now + self.kind.every(plan));
        true
    }
}

/// Each is a future of its own size: most are small, and begun often.
fn begin(kind: Kind, engine: Engine, bell: &Bell) -> Task<usize> {
    macro_rules! round {
        ($round:ident) => {
            Task::new(
                async move {
                    match engine.sharing() {
                        Some(sharing) => sharing.$round().await as usize,
                        None => 0,
                    }
                },
                bell,
            )
        };
    }
    match kind {
        Kind::Renew => round!(renew),
        Kind::Settle => round!(settle),
        Kind::Fetch => round!(fetch),
        Kind::Swap => round!(swap),
        Kind::Audit => round!(audit),
        Kind::Retire => round!(retire),
        Kind::Claim => round!(claim),
        Kind::RestoreClaims => round!(restore_claims),
    }
}

impl Kind {
    /// Whether clients wait for it.
    fn serves(self, waits: Waits) -> bool {
        match self {
            Kind::Fetch | Kind::Swap => waits.store,
            Kind::Claim => waits.token,
            _ => false,
        }
    }

    /// How often it looks for something to do.
    fn every(self, plan: &Plan) -> Duration {
        let sharing = &plan.sharing;
        match self {
            Kind::Renew => sharing.lease / 5,
            Kind::Settle => (sharing.settle_every / 2).max(Duration::from_millis(50)),
            // Whoever waits for one of these does not wait for its turn.
            Kind::Fetch | Kind::Swap | Kind::Audit | Kind::RestoreClaims => Duration::from_millis(400),
            Kind::Claim => Duration::from_secs(2),
            Kind::Retire => (sharing.retire_after / 4).min(Duration::from_secs(3)),
        }
    }

    /// How long a round may take.
    fn patience(self, plan: &Plan) -> Duration {
        let sharing = &plan.sharing;
        match self {
            Kind::Renew => sharing.lease / 2,
            Kind::Fetch => 2 * sharing.fetch_wait,
            _ => sharing.swap_wait,
        }
    }
}

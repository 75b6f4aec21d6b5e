//! Runs nodes that share one store behind faults, and checks that each add was counted once.
//!
//! In: a store, a seed. Out: a [`Harvest`] whose sums match, or a panic that names the seed.
//!
//! Three nodes add to two counters, put their changes in one call, compare themselves with the
//! rows, and begin new incarnations. An ended incarnation may have two successors. Any node resets
//! a counter, closes and folds a writer, and applies adds with tokens that were sent to every node.
//! For any answers of the store, in the end
//!
//! > acknowledged adds = values returned by resets + the final values, and each token was applied
//! > once.

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_model::shared::{
    CellId, Change, Claim, ClaimEnd, ClaimToken, ClaimVerdict, FinalCell, NextRow, NextStep, OwnValue, Put, Seq, Shard,
    Snapshot, SwapAttempt, SwapContext, SwapId, SwapOutcome, SwapVerdict, Verdict, plan_swap,
};
use quipu_model::{Incarnation, Millis, Name, NodeId, Reply, Store, StoreError, Writer};

use super::FaultyStore;
use crate::SeededRng;

const COUNTERS: [&[u8]; 2] = [b"harvest:a", b"harvest:b"];
const NODES: usize = 3;

/// Steps of one schedule: some ten swaps and a hundred puts.
const STEPS: usize = 160;

/// Rounds without faults until all nodes must have settled: two answers per cell, and a few for
/// retired ones.
const ROUNDS: usize = 12;

/// Tries of one swap before its client gives up. Faults are a third of the calls at most, so a run
/// of this length does not occur.
const TRIES: usize = 100;

/// Percentage of calls that meet a fault.
const FAULTS_PERCENT: usize = 30;

const GRACE: Duration = Duration::from_secs(3_600);

/// Sums of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Harvest {
    /// Sum of all adds.
    pub added: i128,
    /// Sum of the values that resets returned.
    pub returned: i128,
    /// Sum of the final values.
    pub left: i128,
    /// Number of carries to another epoch.
    pub carried: u64,
    /// Number of cells of ended incarnations that were settled late and new to the store.
    pub late: u64,
}

/// Runs one schedule and judges it. The store must have no counters and tokens named `harvest`.
pub async fn harvest<S: Store>(store: S, seed: u64) -> Harvest {
    let store = FaultyStore::new(store, seed, FAULTS_PERCENT);
    let mut run = HarvestRun::new(&store, seed);
    for _ in 0..STEPS {
        run.step().await;
    }
    store.calm().await;
    run.settle().await;
    run.judge().await
}

struct HarvestRun<'s, S> {
    store: &'s FaultyStore<S>,
    seed: u64,
    rng: SeededRng,
    nodes: Vec<Vec<NodeIncarnation>>, // the last incarnation of each is the present one
    ids: u64,
    tokens: BTreeMap<u64, u64>, // number of times that each was applied
    total: Harvest,
}

/// One incarnation of a node, as in its journal.
#[derive(Clone)]
struct NodeIncarnation {
    writer: Writer,
    cells: BTreeMap<usize, HarvestCell>, // by counter
}

#[derive(Clone, Default)]
struct HarvestCell {
    own: OwnValue,
    seq: Seq,            // the newest seq given out, in any epoch
    newest: Option<Put>, // the put with that seq, unless the cell has changed since
    settled: bool,
}

impl HarvestCell {
    /// The put to send, with a new seq if the value is new: two successors of one incarnation send
    /// the same.
    fn next_put(&mut self, cell: CellId) -> Option<Put> {
        if self.newest.is_none() {
            self.newest = self.own.put(cell, Seq(self.seq.0 + 1));
            self.seq = self.newest.map_or(self.seq, |put| put.seq);
        }
        self.newest
    }
}

impl<'s, S: Store> HarvestRun<'s, S> {
    fn new(store: &'s FaultyStore<S>, seed: u64) -> HarvestRun<'s, S> {
        let rng = SeededRng::new(seed ^ 0x5eed);
        let nodes = (0..NODES).map(|_| Vec::new()).collect();
        let (tokens, total) = (BTreeMap::new(), Harvest::default());
        let mut run = HarvestRun { store, seed, rng, nodes, ids: 0, tokens, total };
        (0..NODES).for_each(|node| run.begin_incarnation(node));
        run
    }

    fn begin_incarnation(&mut self, node: usize) {
        self.ids += 1;
        let writer = Writer { node: NodeId(node as u64 + 1), incarnation: Incarnation(self.ids) };
        self.nodes[node].push(NodeIncarnation { writer, cells: BTreeMap::new() });
    }

    /// Gives an ended incarnation a second successor, like a cloned machine or a restored backup.
    fn inherit(&mut self, node: usize) {
        let successor = (node + 1) % NODES;
        let over = self.nodes[node].len() - 1;
        if over == 0 {
            return;
        }
        let incarnation = self.nodes[node][self.rng.below(over)].clone();
        if self.nodes[successor].iter().all(|known| known.writer != incarnation.writer) {
            self.nodes[successor].insert(0, incarnation);
        }
    }

    async fn step(&mut self) {
        let (node, counter) = (self.rng.below(NODES), self.rng.below(COUNTERS.len()));
        match self.rng.below(100) {
            0..=34 => {
                let delta = self.rng.between(-3..=9);
                self.add(node, counter, delta);
            }
            35..=69 => {
                let incarnation = self.rng.below(self.nodes[node].len());
                self.put(node, incarnation).await;
            }
            70..=77 => self.compare(node, counter).await,
            78 => self.begin_incarnation(node),
            79 => self.inherit(node),
            80..=87 => self.apply_token(counter).await,
            88..=91 => {
                let incarnation = self.rng.below(self.nodes[node].len());
                let writer = self.nodes[node][incarnation].writer;
                let change = if self.rng.chance(50) { Change::Close(writer) } else { Change::Fold(writer) };
                self.swap(node, counter, change).await;
            }
            _ => {
                if let Reply::Integer(value) = self.swap(node, counter, Change::Reset).await {
                    self.total.returned += i128::from(value);
                }
            }
        }
    }

    fn add(&mut self, node: usize, counter: usize, delta: i64) {
        self.total.added += i128::from(delta);
        if let Some(incarnation) = self.nodes[node].last_mut() {
            let own_cell = incarnation.cells.entry(counter).or_default();
            own_cell.own = own_cell.own.added(delta).expect("adds of the suite are small");
            (own_cell.newest, own_cell.settled) = (None, false);
        }
    }

    /// Puts all unsettled cells of an incarnation in one call.
    async fn put(&mut self, node: usize, incarnation: usize) {
        let mut pending = Vec::new();
        let Some(NodeIncarnation { writer, cells }) = self.nodes[node].get_mut(incarnation) else { return };
        for (&counter, own_cell) in cells.iter_mut() {
            pending.extend(own_cell.next_put(cell(*writer)).map(|put| (counter, put)));
        }
        let puts: Vec<_> = pending.iter().map(|(counter, put)| (name(*counter), *put)).collect();
        let Ok(results) = self.store.put(&puts).await else { return };
        for ((counter, put), result) in pending.into_iter().zip(results) {
            if let Ok(verdict) = result {
                self.on_verdict(node, counter, &put, &verdict).await;
            }
        }
    }

    async fn on_verdict(&mut self, node: usize, counter: usize, put: &Put, verdict: &Verdict) {
        let Some(at) = self.nodes[node].iter().position(|incarnation| incarnation.writer == put.cell.writer) else {
            return;
        };
        let Some(own_cell) = self.nodes[node][at].cells.get_mut(&counter) else { return };
        let newest = own_cell.newest == Some(*put);
        own_cell.settled |= newest && *verdict == Verdict::Newest;
        let next_step = match verdict {
            Verdict::Older if newest => NextStep::Superseded,
            verdict => own_cell.own.on_verdict(put, verdict, own_cell.seq),
        };
        self.apply_next_step(node, at, counter, next_step).await;
    }

    /// Compares a counter of all incarnations with its row.
    async fn compare(&mut self, node: usize, counter: usize) {
        for writer in self.nodes[node].iter().map(|incarnation| incarnation.writer).collect::<Vec<_>>() {
            let Ok(current) = self.store.read(name(counter)).await else { continue };
            let Some(at) = self.nodes[node].iter().position(|incarnation| incarnation.writer == writer) else {
                continue;
            };
            let Some(own_cell) = self.nodes[node][at].cells.get(&counter) else { continue };
            let next_step = own_cell.own.on_row(cell(writer), own_cell.seq, &current.snapshot, current.at);
            self.apply_next_step(node, at, counter, next_step).await;
        }
    }

    async fn apply_next_step(&mut self, node: usize, at: usize, counter: usize, next_step: NextStep) {
        let over = at + 1 < self.nodes[node].len();
        match next_step {
            NextStep::Keep => {}
            NextStep::Continue(own) if !over => {
                self.total.carried += 1;
                let own_cell = self.nodes[node][at].cells.entry(counter).or_default();
                *own_cell = HarvestCell { own, seq: own_cell.seq, newest: None, settled: !own.has_value };
            }
            NextStep::Retired if !over => {
                self.begin_incarnation(node);
                self.settle_late(node, at, counter).await;
            }
            NextStep::Continue(_) | NextStep::Retired => self.settle_late(node, at, counter).await,
            NextStep::Superseded if over => drop(self.nodes[node][at].cells.remove(&counter)),
            NextStep::Superseded => panic!("seed {}: a present life has no duplicate here", self.seed),
            // Nothing expires and nothing is lost here, so a row is never behind a writer.
            NextStep::Move => panic!("seed {}: a row is behind its writer", self.seed),
        }
    }

    /// Settles a cell of an ended incarnation on the row, and drops it.
    async fn settle_late(&mut self, node: usize, at: usize, counter: usize) {
        let NodeIncarnation { writer, cells } = &mut self.nodes[node][at];
        let writer = *writer;
        if let Some(put) = cells.get_mut(&counter).and_then(|own_cell| own_cell.next_put(cell(writer))) {
            let late = Change::Late(FinalCell { put, expires_at: None, expired_seq: Seq(0) });
            let reply = Box::pin(self.swap(node, counter, late)).await;
            self.total.late += u64::from(reply == Reply::Integer(1));
        }
        // Other nodes acted meanwhile, perhaps on this cell.
        if let Some(incarnation) = self.nodes[node].iter_mut().find(|incarnation| incarnation.writer == writer) {
            incarnation.cells.remove(&counter);
        }
    }

    /// Reads, plans and swaps until the outcome is known.
    async fn swap(&mut self, node: usize, counter: usize, change: Change) -> Reply {
        let node = NodeId(node as u64 + 1);
        for _ in 0..TRIES {
            let Ok(current) = self.store.read(name(counter)).await else { continue };
            self.ids += 1;
            let by = SwapContext {
                id: SwapId(u128::from(self.ids)),
                node,
                grace: GRACE,
                registered: &quipu_model::shared::NO_WRITERS,
            };
            let computed = plan_swap(&current, &by, &change).expect("values of the suite fit a reply");
            let NextRow::Row(next) = &computed.next else { return computed.reply };
            let attempt = SwapAttempt::new(&current, by.id);
            // Other nodes act between a read and its swap.
            if self.rng.chance(30) {
                let incarnation = self.rng.below(self.nodes[0].len());
                Box::pin(self.put(0, incarnation)).await;
            }
            if self.send_swap_until_known(counter, &attempt, next).await {
                return computed.reply;
            }
        }
        panic!("seed {}: {change:?} was tried {TRIES} times", self.seed)
    }

    /// Sends one swap until it was carried out, or never will be.
    async fn send_swap_until_known(&self, counter: usize, attempt: &SwapAttempt, next: &Snapshot) -> bool {
        for _ in 0..TRIES {
            match self.store.swap(name(counter), attempt.version, Some(next)).await {
                Ok(SwapVerdict::Swapped) => return true,
                Err(StoreError::NotApplied { .. }) => continue,
                // An earlier copy of this swap may have moved the row.
                Ok(SwapVerdict::Moved) | Err(_) => {}
            }
            let Ok(current) = self.store.read(name(counter)).await else { continue };
            match attempt.outcome(&current.snapshot) {
                SwapOutcome::Swapped => return true,
                SwapOutcome::NotApplied => return false,
                SwapOutcome::Pending => {}
                SwapOutcome::Unknown => panic!("seed {}: a swap was forgotten", self.seed),
            }
        }
        panic!("seed {}: one swap was sent {TRIES} times", self.seed)
    }

    /// Sends one add with a token to every node, in any order, as a client does after timeouts.
    async fn apply_token(&mut self, counter: usize) {
        self.ids += 1;
        let number = self.ids;
        let token = ClaimToken::new(format!("harvest:{number}").as_bytes()).expect("it is short");
        self.tokens.insert(number, 0);
        let mut nodes: Vec<usize> = (0..NODES).chain([self.rng.below(NODES)]).collect();
        self.rng.shuffle(&mut nodes);
        for node in nodes {
            self.ids += 1;
            let Some(owner) = self.nodes[node].last().map(|incarnation| incarnation.writer) else { continue };
            let forget_at = Millis(u64::MAX / 4);
            let claim = Claim { token: token.clone(), owner, attempt: self.ids, payload: 1, forget_at, reply: None };
            // A claim of unknown outcome is sent again; after the last try its client gets a
            // refusal.
            let mut verdict = None;
            for _ in 0..3 {
                verdict = self.store.claim(&claim).await.ok();
                if verdict.is_some() {
                    break;
                }
            }
            if verdict == Some(ClaimVerdict::Claimed) {
                self.add(node, counter, 1);
                *self.tokens.entry(number).or_default() += 1;
                let done = ClaimEnd::Done(number.to_string().into_bytes().into());
                for _ in 0..TRIES {
                    if self.store.end_claim(&token, owner, claim.attempt, &done).await.is_ok() {
                        break;
                    }
                }
            }
            if let Some(ClaimVerdict::Done { reply }) = verdict {
                assert_eq!(*reply, *number.to_string().as_bytes(), "seed {}: a token has one reply", self.seed);
            }
        }
    }

    /// Lets all nodes put until everything is settled.
    async fn settle(&mut self) {
        for _ in 0..ROUNDS {
            for node in 0..NODES {
                for incarnation in (0..self.nodes[node].len()).rev() {
                    self.put(node, incarnation).await;
                }
            }
        }
        let incarnations = self.nodes.iter().flatten();
        let unsettled = incarnations
            .flat_map(|incarnation| incarnation.cells.values())
            .filter(|own_cell| own_cell.own.has_value && !own_cell.settled);
        assert_eq!(unsettled.count(), 0, "seed {}: everybody settles once the faults stop", self.seed);
    }

    async fn judge(mut self) -> Harvest {
        for counter in 0..COUNTERS.len() {
            let current = self.store.read(name(counter)).await.expect("faults have stopped");
            self.total.left += current.snapshot.sum();
        }
        let Harvest { added, returned, left, .. } = self.total;
        assert_eq!(returned + left, added, "seed {}: returned {returned}, left {left}, added {added}", self.seed);
        for (token, applied) in self.tokens {
            assert!(applied <= 1, "seed {}: token {token} was applied {applied} times", self.seed);
        }
        self.total
    }
}

fn name(counter: usize) -> Name<'static> {
    Name::new(COUNTERS[counter]).expect("it is short")
}

fn cell(writer: Writer) -> CellId {
    CellId { writer, shard: Shard(0) }
}

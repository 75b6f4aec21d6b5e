//! Retires writers that are gone: closes their cells, folds them after `grace`, forgets them after
//! another.
//!
//! In: the registry and all rows, a page at a time. Out: swaps that change no sum, and the
//! registration's next stage when a walk has visited every row.
//!
//! Any node does it, and several may do it at once: every step may be repeated. Bodies of sketches
//! are not closed; folding merges them into the folded body.
//!
//! Invariant: nothing is folded while a detected loss of the store is not repaired.

use quipu_model::shared::body::{BodyShape, FOLDED_BODY_WRITER, StoredBody};
use quipu_model::shared::{
    Change, FetchedRow, NextRow, RegisterVerdict, Registration, RetireStep, RowWithBodies, SwapAttempt, SwapContext,
    SwapId, SwapOutcome, SwapPlan, SwapVerdict, WriterStage, is_body_cell, plan_swap,
};
use quipu_model::{Cursor, Name, Reply, ScanPage, StoreError, Writer, WriterList};

use super::Sharing;
use super::bodies::{decode_sketch, merge_sketch};
use super::lease::log_retirement;
use crate::base::sync::{Ordering, lock};

/// Names per page: each costs a read, and a swap if the writer has a cell there.
const PAGE_NAMES: usize = 64;

/// Tries of a swap that others keep overtaking, before it is left for the next walk.
const TRIES_MAX: usize = 16;

/// A walk over all rows for one writer.
pub(crate) struct RetirementWalk {
    registration: Registration,
    folds: bool,
    cursor: Option<Cursor>,
    /// True if some cells were still open where all should have been closed.
    closed_some: bool,
}

impl Sharing<'_> {
    /// Does one piece: a page of a walk, or a registration's next stage. Returns the number of
    /// changed rows.
    pub async fn retire(self) -> usize {
        let now = self.elapsed();
        if !self.link.may_put(now) || !self.link.may_call("retire", now) {
            return 0;
        }
        let walk = lock(&self.link.retirement_walk).take();
        let result = match walk {
            Some(mut walk) => {
                let walked = self.walk_page(&mut walk).await;
                // After an error the page is walked again.
                if !matches!(walked, Ok((_, true))) {
                    *lock(&self.link.retirement_walk) = Some(walk);
                }
                walked.map(|(changed, _)| changed)
            }
            None => self.start_retirement().await,
        };
        self.link.record_result("retire", self.elapsed(), &result);
        result.unwrap_or(0)
    }

    /// Looks for a retiring writer.
    async fn start_retirement(&self) -> Result<usize, StoreError> {
        let (store, options) = (&self.link.store, &self.link.options);
        let WriterList { mut registrations, at } = store.writers().await?;
        // Nodes that begin at once should not all do the same.
        let first = self.link.random() as usize % registrations.len().max(1);
        registrations.rotate_left(first);
        for &registration in &registrations {
            if registration.writer.node == self.link.node && registration.writer.incarnation == self.link.incarnation()
            {
                continue;
            }
            match registration.retire_step(at, options.retire_after, options.grace) {
                RetireStep::Wait => continue,
                RetireStep::Register(next) => {
                    if store.register(registration.version, &next).await? == RegisterVerdict::Registered {
                        log_retirement(registration.writer);
                    }
                }
                RetireStep::Remove => {
                    store.unregister(registration.writer, registration.version).await?;
                    let node = registration.writer.node;
                    let stays = |other: &Registration| other.writer != registration.writer && other.writer.node == node;
                    if !registrations.iter().any(stays) {
                        // A leftover name is harmless.
                        let _ = store.name_node(node, None).await;
                    }
                }
                RetireStep::Fold if self.is_repairing_loss() => continue,
                step @ (RetireStep::Close | RetireStep::Fold) => {
                    let folds = step == RetireStep::Fold;
                    let walk = RetirementWalk { registration, folds, cursor: None, closed_some: false };
                    *lock(&self.link.retirement_walk) = Some(walk);
                }
            }
            return Ok(1);
        }
        Ok(0)
    }

    /// Walks a page of rows; returns the number of changed rows, and whether it was the last page.
    async fn walk_page(&self, walk: &mut RetirementWalk) -> Result<(usize, bool), StoreError> {
        let store = &self.link.store;
        let ScanPage { names, next } = store.scan(walk.cursor.as_ref(), PAGE_NAMES).await?;
        let (writer, mut changed) = (walk.registration.writer, 0);
        for name in &names {
            // A name that no Quipu node can have written is not changed.
            let Ok(name) = Name::new(name) else { continue };
            let closed = self.swap_change(name, Change::Close(writer)).await?;
            walk.closed_some |= closed > 0;
            // A cell closed only now has its `grace` ahead.
            let folded = match walk.folds && closed == 0 {
                true => self.swap_change(name, Change::Fold(writer)).await? + self.fold_body(name, writer).await?,
                false => 0,
            };
            self.swap_change(name, Change::Forget).await?;
            self.link.metrics.closed.fetch_add(closed as u64, Ordering::Relaxed);
            self.link.metrics.folded.fetch_add(folded as u64, Ordering::Relaxed);
            changed += usize::from(closed + folded > 0);
        }
        walk.cursor = next;
        let last = walk.cursor.is_none();
        if last {
            self.finish_walk(walk).await?;
        }
        Ok((changed, last))
    }

    /// Ends a walk after every row was visited.
    async fn finish_walk(&self, walk: &RetirementWalk) -> Result<(), StoreError> {
        let at = self.link.store.clock().await?;
        let known = walk.registration;
        let next = match known.stage {
            WriterStage::Retiring { .. } => known.closed(at),
            _ => known.folded(at, walk.closed_some),
        };
        // If the registration has moved meanwhile, another node is further.
        self.link.store.register(known.version, &next).await?;
        Ok(())
    }

    /// Swaps one change that replies with a number.
    async fn swap_change(&self, name: Name<'_>, change: Change) -> Result<i64, StoreError> {
        let store = &self.link.store;
        for _ in 0..TRIES_MAX {
            let asked_at = self.elapsed();
            let fetched = store.read(name).await?;
            if !self.may_send(asked_at) {
                continue;
            }
            let id = SwapId(u128::from(self.link.random()) << 64 | u128::from(self.link.random()));
            let registered = self.link.registered();
            let by = SwapContext { id, node: self.link.node, grace: self.link.options.grace, registered: &registered };
            let Ok(computed) = plan_swap(&fetched, &by, &change) else { return Ok(0) };
            let row = match &computed.next {
                NextRow::Unchanged => return Ok(reply_number(&computed.reply)),
                NextRow::Row(row) => Some(row),
                NextRow::Removed => None,
            };
            match store.swap(name, fetched.snapshot.version, row).await {
                Ok(SwapVerdict::Swapped) => return Ok(reply_number(&computed.reply)),
                Ok(SwapVerdict::Moved) => {}
                // The next walk finds out whether the swap was applied; closed cells must not be
                // missed.
                Err(error) => {
                    return self.resolve_unknown_swap(name, &fetched, id, reply_number(&computed.reply), error).await;
                }
            }
        }
        Err(StoreError::NotApplied {
            call: quipu_model::StoreCall::Swap,
            source: "others keep changing the row".into(),
        })
    }

    /// Merges the body of a writer into the folded body; returns their number. A body that cannot
    /// be merged stays and still counts.
    async fn fold_body(&self, name: Name<'_>, writer: Writer) -> Result<i64, StoreError> {
        let (store, key) = (&self.link.store, &self.core.sketch_key);
        let has_body =
            |fetched: &FetchedRow| fetched.snapshot.cells.keys().any(|id| id.writer == writer && is_body_cell(id));
        for _ in 0..TRIES_MAX {
            let asked_at = self.elapsed();
            if !has_body(&store.read(name).await?) {
                return Ok(0);
            }
            let RowWithBodies { row: fetched, bodies } = store.read_bodies(name).await?;
            if !self.may_send(asked_at) {
                continue;
            }
            if fetched.snapshot.is_due(fetched.at) {
                // It ends with its epoch.
                return Ok(0);
            }
            let Some(gone) = bodies.get(&writer) else { return Ok(0) };
            let before = bodies.get(&FOLDED_BODY_WRITER).map(|body| decode_sketch(body, key)).transpose();
            let folded = before.and_then(|before| merge_sketch(before, decode_sketch(gone, key)?, key));
            let Ok(Some(folded)) = folded else { return Ok(0) };
            let shape = BodyShape { length: folded.bytes().len() as u32, ..gone.shape };
            let changed =
                [(FOLDED_BODY_WRITER, Some(StoredBody { shape, bytes: folded.bytes().to_vec() })), (writer, None)];
            let id = SwapId(u128::from(self.link.random()) << 64 | u128::from(self.link.random()));
            let registered = self.link.registered();
            let by = SwapContext { id, node: self.link.node, grace: self.link.options.grace, registered: &registered };
            let Ok(SwapPlan { next: NextRow::Row(row), reply }) = plan_swap(&fetched, &by, &Change::FoldBody(writer))
            else {
                return Ok(0);
            };
            match store.swap_bodies(name, fetched.snapshot.version, &row, &changed).await {
                Ok(SwapVerdict::Swapped) => return Ok(reply_number(&reply)),
                Ok(SwapVerdict::Moved) => {}
                Err(error) => return self.resolve_unknown_swap(name, &fetched, id, reply_number(&reply), error).await,
            }
        }
        Err(StoreError::NotApplied {
            call: quipu_model::StoreCall::SwapBodies,
            source: "others keep changing the row".into(),
        })
    }

    async fn resolve_unknown_swap(
        &self,
        name: Name<'_>,
        fetched: &FetchedRow,
        id: SwapId,
        count: i64,
        error: StoreError,
    ) -> Result<i64, StoreError> {
        let now = self.link.store.read(name).await?;
        match SwapAttempt::new(fetched, id).outcome(&now.snapshot) {
            SwapOutcome::Swapped => Ok(count),
            _ => Err(error),
        }
    }
}

fn reply_number(reply: &Reply) -> i64 {
    if let Reply::Integer(number) = reply { *number } else { 0 }
}

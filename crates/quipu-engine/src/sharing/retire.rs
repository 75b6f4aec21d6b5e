//! Retires writers that are gone: closes their cells, folds them after `grace`, forgets them after another.
//!
//! In: the registry and all rows, a page at a time. Out: swaps that change no sum, and the registration's next stage when a walk has come to every row.
//!
//! Any node does it, several may at once: every step may be repeated. Bodies of sketches are not closed, and folded by being laid together with those that were before.
//!
//! Invariant: nothing is folded while the store is known to have lost something that was not put again.

use quipu_model::shared::body::{Body, NOBODYS, Shape};
use quipu_model::shared::{
    Attempt, By, Change, Computed, Fate, Next, RegisterVerdict, Registration, Seen, SeenBodies, Stage, Step, SwapId,
    SwapVerdict, compute, is_body_cell,
};
use quipu_model::{Cursor, Name, Page, Reply, StoreError, Writer, Writers};

use super::Sharing;
use super::bodies::{laid, sketch};
use super::lease::log_retirement;
use crate::sync::{Ordering, lock};

/// Names of one page: each costs a read, and a swap if the writer has a cell there.
const PAGE_NAMES: usize = 64;

/// A swap that others keep overtaking is left for the next walk after so many tries.
const TRIES_MAX: usize = 16;

/// A walk over all rows for one writer.
pub(super) struct Walk {
    registration: Registration,
    folds: bool,
    cursor: Option<Cursor>,
    /// Some cells were still open, where all should have been closed.
    closed_some: bool,
}

impl Sharing<'_> {
    /// One piece: a page of a walk, or the next stage of a registration; how many rows were changed.
    pub async fn retire(self) -> usize {
        let now = self.elapsed();
        if !self.shared.may_put(now) || !self.shared.may_call("retire", now) {
            return 0;
        }
        let walk = lock(&self.shared.retiring).take();
        let result = match walk {
            Some(mut walk) => {
                let walked = self.walk(&mut walk).await;
                // After an error the page is walked again.
                if !matches!(walked, Ok((_, true))) {
                    *lock(&self.shared.retiring) = Some(walk);
                }
                walked.map(|(changed, _)| changed)
            }
            None => self.next_step().await,
        };
        self.shared.called("retire", self.elapsed(), &result);
        result.unwrap_or(0)
    }

    /// Looks for a writer on its way out.
    async fn next_step(&self) -> Result<usize, StoreError> {
        let (store, options) = (&self.shared.store, &self.shared.options);
        let Writers { mut registrations, at } = store.writers().await?;
        // Nodes that begin at once should not all do the same.
        let first = self.shared.random() as usize % registrations.len().max(1);
        registrations.rotate_left(first);
        for &registration in &registrations {
            if registration.writer.node == self.shared.node && registration.writer.incarnation == self.shared.present()
            {
                continue;
            }
            match registration.step(at, options.retire_after, options.grace) {
                Step::Wait => continue,
                Step::Register(next) => {
                    if store.register(registration.version, &next).await? == RegisterVerdict::Registered {
                        log_retirement(registration.writer);
                    }
                }
                Step::Remove => {
                    store.unregister(registration.writer, registration.version).await?;
                    let node = registration.writer.node;
                    let stays = |other: &Registration| other.writer != registration.writer && other.writer.node == node;
                    if !registrations.iter().any(stays) {
                        // A name that stays behind harms nobody.
                        let _ = store.name_node(node, None).await;
                    }
                }
                Step::Fold if self.is_mending() => continue,
                step @ (Step::Close | Step::Fold) => {
                    let folds = step == Step::Fold;
                    let walk = Walk { registration, folds, cursor: None, closed_some: false };
                    *lock(&self.shared.retiring) = Some(walk);
                }
            }
            return Ok(1);
        }
        Ok(0)
    }

    /// A page of rows: how many were changed, and whether it was the last.
    async fn walk(&self, walk: &mut Walk) -> Result<(usize, bool), StoreError> {
        let store = &self.shared.store;
        let Page { names, next } = store.scan(walk.cursor.as_ref(), PAGE_NAMES).await?;
        let (writer, mut changed) = (walk.registration.writer, 0);
        for name in &names {
            // What a store of ours has never written is not ours to change.
            let Ok(name) = Name::new(name) else { continue };
            let closed = self.change(name, Change::Close(writer)).await?;
            walk.closed_some |= closed > 0;
            // What was closed only now has its `grace` before it.
            let folded = match walk.folds && closed == 0 {
                true => self.change(name, Change::Fold(writer)).await? + self.fold_body(name, writer).await?,
                false => 0,
            };
            self.change(name, Change::Forget).await?;
            self.shared.figures.closed.fetch_add(closed as u64, Ordering::Relaxed);
            self.shared.figures.folded.fetch_add(folded as u64, Ordering::Relaxed);
            changed += usize::from(closed + folded > 0);
        }
        walk.cursor = next;
        let last = walk.cursor.is_none();
        if last {
            self.end(walk).await?;
        }
        Ok((changed, last))
    }

    /// Every row was come to.
    async fn end(&self, walk: &Walk) -> Result<(), StoreError> {
        let at = self.shared.store.clock().await?;
        let known = walk.registration;
        let next = match known.stage {
            Stage::Retiring { .. } => known.closed(at),
            _ => known.folded(at, walk.closed_some),
        };
        // If it has moved meanwhile, someone else has come further.
        self.shared.store.register(known.version, &next).await?;
        Ok(())
    }

    /// Swaps one change that replies with a number.
    async fn change(&self, name: Name<'_>, change: Change) -> Result<i64, StoreError> {
        let store = &self.shared.store;
        for _ in 0..TRIES_MAX {
            let asked_at = self.elapsed();
            let seen = store.read(name).await?;
            if !self.may_send(asked_at) {
                continue;
            }
            let id = SwapId(u128::from(self.shared.random()) << 64 | u128::from(self.shared.random()));
            let registered = self.shared.registered();
            let by = By { id, node: self.shared.node, grace: self.shared.options.grace, registered: &registered };
            let Ok(computed) = compute(&seen, &by, &change) else { return Ok(0) };
            let row = match &computed.next {
                Next::Same => return Ok(number(&computed.reply)),
                Next::Row(row) => Some(row),
                Next::Gone => None,
            };
            match store.swap(name, seen.snapshot.version, row).await {
                Ok(SwapVerdict::Swapped) => return Ok(number(&computed.reply)),
                Ok(SwapVerdict::Moved) => {}
                // Whether it is in, the next walk finds out; that cells were closed must not be missed.
                Err(error) => return self.find_out(name, &seen, id, number(&computed.reply), error).await,
            }
        }
        Err(StoreError::NotApplied { call: quipu_model::Call::Swap, source: "others keep changing the row".into() })
    }

    /// Lays the body of a writer into the one that is nobody's; how many there were. Where they cannot be laid together it stays, and counts on.
    async fn fold_body(&self, name: Name<'_>, writer: Writer) -> Result<i64, StoreError> {
        let (store, key) = (&self.shared.store, &self.inner.sketch_key);
        let has_body = |seen: &Seen| seen.snapshot.cells.keys().any(|id| id.writer == writer && is_body_cell(id));
        for _ in 0..TRIES_MAX {
            let asked_at = self.elapsed();
            if !has_body(&store.read(name).await?) {
                return Ok(0);
            }
            let SeenBodies { seen, bodies } = store.read_bodies(name).await?;
            if !self.may_send(asked_at) {
                continue;
            }
            if seen.snapshot.due(seen.at) {
                // It goes with its epoch.
                return Ok(0);
            }
            let Some(gone) = bodies.get(&writer) else { return Ok(0) };
            let before = bodies.get(&NOBODYS).map(|body| sketch(body, key)).transpose();
            let folded = before.and_then(|before| laid(before, sketch(gone, key)?, key));
            let Ok(Some(folded)) = folded else { return Ok(0) };
            let shape = Shape { length: folded.bytes().len() as u32, ..gone.shape };
            let changed = [(NOBODYS, Some(Body { shape, bytes: folded.bytes().to_vec() })), (writer, None)];
            let id = SwapId(u128::from(self.shared.random()) << 64 | u128::from(self.shared.random()));
            let registered = self.shared.registered();
            let by = By { id, node: self.shared.node, grace: self.shared.options.grace, registered: &registered };
            let Ok(Computed { next: Next::Row(row), reply }) = compute(&seen, &by, &Change::FoldBody(writer)) else {
                return Ok(0);
            };
            match store.swap_bodies(name, seen.snapshot.version, &row, &changed).await {
                Ok(SwapVerdict::Swapped) => return Ok(number(&reply)),
                Ok(SwapVerdict::Moved) => {}
                Err(error) => return self.find_out(name, &seen, id, number(&reply), error).await,
            }
        }
        Err(StoreError::NotApplied {
            call: quipu_model::Call::SwapBodies,
            source: "others keep changing the row".into(),
        })
    }

    async fn find_out(
        &self,
        name: Name<'_>,
        seen: &Seen,
        id: SwapId,
        count: i64,
        error: StoreError,
    ) -> Result<i64, StoreError> {
        let now = self.shared.store.read(name).await?;
        match Attempt::on(seen, id).fate(&now.snapshot) {
            Fate::Swapped => Ok(count),
            _ => Err(error),
        }
    }
}

fn number(reply: &Reply) -> i64 {
    if let Reply::Integer(number) = reply { *number } else { 0 }
}

//! An add with a token: claimed at the store first, so that a retry on any node finds it.
//!
//! In: adds with tokens. Out: the add, applied by one attempt of one node; its reply for everyone else.
//!
//! Invariants:
//! - it is applied only after the store has said that the token is this attempt's;
//! - its reply is stored after it is durable here; if the node stops in between, retries are refused until the token's time is over, and never applied twice.

use std::time::Duration;

use quipu_model::shared::{Claim, ClaimEnd, ClaimVerdict, Token};
use quipu_model::{Command, KeptName, Millis, Refusal, Reply, StoreError, Writer};
use xxhash_rust::xxh3::xxh3_64;

use super::Sharing;
use super::settle::named;
use crate::load::{Job, Loaded};
use crate::sync::Arc;

/// A call of unknown outcome is repeated so often at once; then its client is told, or the end of the claim is left to the token's time.
const TRIES: usize = 3;

/// An add with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Once {
    /// Its token.
    pub token: Token,
    /// Which counter.
    pub name: KeptName,
    /// By how much.
    pub delta: i64,
    /// How long the token is remembered.
    pub window: Duration,
}

impl Sharing<'_> {
    /// Carries out one add with a token; how many.
    pub async fn claim(self) -> usize {
        let Some(job) = self.inner.loads.take_once() else { return 0 };
        let Some(once) = job.once().cloned() else { return 0 };
        // Dropped half-way, it has been applied or not: nobody can tell its client.
        let mut told = Told { job, loaded: Loaded::Unknown };
        told.loaded = self.carry_out(&once).await;
        1
    }

    async fn carry_out(&self, once: &Once) -> Loaded {
        let down = Loaded::Refused(Refusal::StoreDown);
        let Ok(at) = self.shared.store.clock().await else { return down };
        let window = u64::try_from(once.window.as_millis()).unwrap_or(u64::MAX);
        let owner = Writer { node: self.shared.node, incarnation: self.shared.present() };
        let claim = Claim {
            token: once.token.clone(),
            owner,
            attempt: self.shared.random(),
            payload: once.payload(),
            forget_at: Millis(at.0.saturating_add(window)),
            reply: None,
        };
        match self.claimed(&claim).await {
            Ok(ClaimVerdict::Claimed) => {}
            Ok(ClaimVerdict::Done { reply }) => {
                let value = std::str::from_utf8(&reply).ok().and_then(|text| text.parse().ok());
                return value
                    .map_or(Loaded::Refused(Refusal::TokenSpent), |value| Loaded::reply(Reply::Integer(value)));
            }
            Ok(ClaimVerdict::InFlight { owner, .. }) => return Loaded::Refused(Refusal::TokenInUse { owner }),
            Ok(ClaimVerdict::Mismatch) => return Loaded::Refused(Refusal::TokenMismatch),
            Ok(ClaimVerdict::TooLate) => return Loaded::Refused(Refusal::TokenSpent),
            // The claim may arrive yet and hold the token, with nobody to act on it: refused until its time is over, never applied.
            Err(_) => return down,
        }
        let (end, loaded) = match self.add(once).await {
            Ok(value) => (ClaimEnd::Done(value.to_string().into_bytes().into()), Loaded::reply(Reply::Integer(value))),
            Err(Some(refusal)) => (ClaimEnd::GivenBack, Loaded::Refused(refusal)),
            Err(None) => return Loaded::Unknown,
        };
        for _ in 0..TRIES {
            if self.shared.store.end_claim(&claim.token, owner, claim.attempt, &end).await.is_ok() {
                break;
            }
        }
        loaded
    }

    async fn claimed(&self, claim: &Claim) -> Result<ClaimVerdict, StoreError> {
        let mut claimed = self.shared.store.claim(claim).await;
        for _ in 1..TRIES {
            if claimed.is_ok() {
                break;
            }
            claimed = self.shared.store.claim(claim).await;
        }
        claimed
    }

    /// Adds, and waits until that is as durable as its namespace asks; `None`: nobody can tell.
    async fn add(&self, once: &Once) -> Result<i64, Option<Refusal>> {
        let command = Command::Add { name: named(&once.name), delta: once.delta, shard_key: None };
        for _ in 0..TRIES {
            let mut turn = crate::turn::Turn::new(self.inner);
            let ran = turn.run(&command);
            let wait = turn.finish();
            match ran {
                Ok(Reply::Integer(value)) => {
                    return self.inner.committed(wait).await.map(|()| value).map_err(|_| None);
                }
                Ok(Reply::Refused(refusal)) => return Err(Some(refusal)),
                Ok(_) => return Err(None),
                Err(load) => self.provide(load).await,
            }
        }
        Err(Some(Refusal::StoreDown))
    }

    /// Brings what a command needs before it can run.
    async fn provide(&self, load: crate::load::Load) {
        match load {
            crate::load::Load::Rows(names) => {
                for name in &names {
                    self.fetch_one(name).await;
                }
            }
            crate::load::Load::Names(names) => {
                for name in &names {
                    // What cannot be read is refused by whoever reads it.
                    let _ = self.inner.loads.bring_back(self.inner, name);
                }
            }
            _ => {}
        }
    }
}

/// Tells whoever waits what became of it, however the round ends.
struct Told {
    job: Arc<Job>,
    loaded: Loaded,
}

impl Drop for Told {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.job.finish(std::mem::replace(&mut self.loaded, Loaded::Unknown));
        }
    }
}

impl Once {
    /// What the token stands for.
    fn payload(&self) -> u64 {
        let mut bytes = self.delta.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.name);
        xxh3_64(&bytes)
    }
}

//! Probes the store: checks that it is reachable and that its servers keep confirmed data.
//!
//! In: the outcome of a probe, made twice a second by a thread of its own. Every [`PROBLEMS_EVERY`]
//! also the problems that the store finds in the settings of its servers. Out: the state for INFO,
//! metrics and readiness, and one log line per change.
//!
//! Invariants:
//! - the first probe ends after the first check for problems: a start can refuse a store that does
//!   not keep confirmed data;
//! - an outage is logged once when it begins and once when it ends; outages that follow within
//!   [`WARN_EVERY`] are one in the log;
//! - when a store is back, no call waits out a pause from the time of the outage;
//! - a full registry is logged when it is first met, then every [`FULL_WARN_EVERY`], and once when
//!   it has room again.
//!
//! Not here: the work that a node may do without its store (`lease`, `routing`).

use std::error::Error;
use std::time::Duration;

use quipu_model::shared::RegisterVerdict;
use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::{Millis, StoreError};

use super::{Membership, Sharing};
use crate::base::sync::lock;

/// A probe without a reply after this long counts as an outage.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// Least time between two warnings: a flapping store must not fill a log.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Time between two checks for problems. Settings are changed by people.
const PROBLEMS_EVERY: Duration = Duration::from_secs(10);
/// Least time between two warnings of a full registry: it stays full for weeks, or until an
/// operator acts.
const FULL_WARN_EVERY: Duration = Duration::from_secs(600);

/// Reachability of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreHealth {
    /// No probe has ended yet.
    Unknown,
    /// The last probe succeeded.
    Reachable,
    /// The last probe failed, or is late.
    Unreachable {
        /// Duration of the outage.
        for_time: Duration,
        /// The error message of the store's driver.
        error: String,
    },
}

/// State of the probes.
#[derive(Default)]
pub(crate) struct Probe {
    /// Start of the probe in progress.
    asked_at: Option<Duration>,
    was_answered: bool,
    outage: Option<Outage>,
    warned_at: Option<Duration>,
    problems: Vec<String>,
    problems_checked_at: Option<Duration>,
}

/// Whether the store's registry has room for this node.
#[derive(Default)]
pub(crate) struct RegistryRoom {
    /// Times at which it was found full, the first and the last.
    full: Option<(Duration, Duration)>,
    warned_at: Option<Duration>,
}

struct Outage {
    since: Duration,
    error: String,
    is_logged: bool,
}

impl Probe {
    fn record_failure(&mut self, now: Duration, error: String) {
        let warned_lately = self.warned_at.is_some_and(|at| now.saturating_sub(at) < WARN_EVERY);
        let outage = self.outage.get_or_insert(Outage { since: now, error: String::new(), is_logged: false });
        outage.error = error;
        if !outage.is_logged && !warned_lately {
            (outage.is_logged, self.warned_at) = (true, Some(now));
            tracing::warn!(error = outage.error, "the shared store cannot be reached: this node counts on by itself");
        }
    }

    /// Returns true if a check for problems is due: at first, after an outage, and at intervals.
    fn is_check_due(&self, now: Duration) -> bool {
        let is_recent = |at| now.saturating_sub(at) < PROBLEMS_EVERY;
        self.outage.is_some() || !self.problems_checked_at.is_some_and(is_recent)
    }

    fn record_problems(&mut self, now: Duration, problems: Vec<String>) {
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::error!(problem, "the shared store does not keep what it confirms");
        }
        for problem in self.problems.iter().filter(|problem| !problems.contains(problem)) {
            tracing::info!(problem, "a problem of the shared store is over");
        }
        (self.problems, self.problems_checked_at) = (problems, Some(now));
    }

    /// Ends an outage; returns true if there was one.
    fn record_success(&mut self, now: Duration) -> bool {
        self.was_answered = true;
        let Some(outage) = self.outage.take() else { return false };
        if outage.is_logged {
            let unreachable_ms = now.saturating_sub(outage.since).as_millis() as u64;
            tracing::info!(unreachable_ms, "the shared store can be reached again");
        }
        true
    }
}

impl Sharing<'_> {
    /// Reads the store's clock, which needs nothing but a responding store.
    pub async fn probe(self) {
        lock(&self.link.probe).asked_at = Some(self.elapsed());
        let answer = self.link.store.clock().await;
        if answer.is_ok() {
            self.publish_name().await;
            self.check_problems().await;
        }
        self.end_probe(&answer);
    }

    async fn check_problems(&self) {
        if !lock(&self.link.probe).is_check_due(self.elapsed()) {
            return;
        }
        // A store that cannot tell is asked again with the next probe.
        if let Ok(problems) = self.link.store.problems().await {
            let now = self.elapsed();
            lock(&self.link.probe).record_problems(now, problems);
        }
    }

    fn end_probe(&self, answer: &Result<Millis, StoreError>) {
        let now = self.elapsed();
        let mut probe = lock(&self.link.probe);
        probe.asked_at = None;
        match answer {
            Ok(_) if probe.record_success(now) => {
                drop(probe);
                lock(&self.link.pauses).clear();
            }
            Ok(_) => {}
            Err(error) => probe.record_failure(now, describe_causes(error)),
        }
    }

    /// Detects a late probe. For a thread that never waits for the store.
    pub fn check_probe(self) {
        let now = self.elapsed();
        let mut probe = lock(&self.link.probe);
        if probe.asked_at.is_some_and(|at| now.saturating_sub(at) >= PROBE_WAIT) {
            probe.record_failure(now, format!("no answer within {} s", PROBE_WAIT.as_secs()));
        }
    }

    /// Known problems that keep the store's servers from keeping confirmed data; empty if there are
    /// none.
    pub fn store_problems(self) -> Vec<String> {
        lock(&self.link.probe).problems.clone()
    }

    /// Returns the reachability of the store.
    pub fn health(self) -> StoreHealth {
        let probe = lock(&self.link.probe);
        match &probe.outage {
            Some(Outage { since, error, .. }) => {
                StoreHealth::Unreachable { for_time: self.elapsed().saturating_sub(*since), error: error.clone() }
            }
            None if probe.was_answered => StoreHealth::Reachable,
            None => StoreHealth::Unknown,
        }
    }
}

impl Sharing<'_> {
    /// Records whether the registry had room for a registration. One that replaces another needs
    /// none.
    pub(super) fn record_registration(&self, verdict: RegisterVerdict, is_new: bool) {
        let now = self.elapsed();
        let mut registry = lock(&self.link.registry);
        match verdict {
            RegisterVerdict::Full => {
                let since = registry.full.map_or(now, |(since, _)| since);
                registry.full = Some((since, now));
                if registry.warned_at.is_none_or(|at| now.saturating_sub(at) >= FULL_WARN_EVERY) {
                    registry.warned_at = Some(now);
                    drop(registry);
                    tracing::warn!("{}", self.registry_problem().unwrap_or_default());
                }
            }
            RegisterVerdict::Registered if is_new => {
                if let Some((since, _)) = std::mem::take(&mut *registry).full {
                    let full_ms = now.saturating_sub(since).as_millis() as u64;
                    tracing::info!(full_ms, "the registry of the shared store has room again: this node is registered");
                }
            }
            RegisterVerdict::Registered | RegisterVerdict::Moved => {}
        }
    }

    /// Reason and duration of a full registry that keeps this node from joining, with the remedy.
    pub fn registry_problem(self) -> Option<String> {
        let (since, last_full_at) = lock(&self.link.registry).full?;
        // A node that needs no more registrations requests none.
        let is_over = self.elapsed().saturating_sub(last_full_at) > 2 * self.link.options.lease;
        let state = match self.membership() {
            Membership::Live if is_over => return None,
            Membership::Live => "an older life of this node cannot be settled",
            Membership::Joining => "this node is joining, and counts by itself",
            Membership::Fenced { .. } => return None,
        };
        let seconds = self.elapsed().saturating_sub(since).as_secs();
        Some(format!(
            "the registry of the shared store is full, with {REGISTRATIONS_MAX} registrations, for {seconds} s: {state}; list them with `quipu writers --store URL`, and retire nodes that are gone with `quipu writers retire WRITER --store URL`, which makes room after twice `grace`"
        ))
    }
}

/// Joins the causes of an error in one line, the outermost first; an error without causes gives its
/// own text. A cause that its predecessor's text already includes is left out.
pub(super) fn describe_causes(error: &dyn Error) -> String {
    let mut text = if error.source().is_none() { error.to_string() } else { String::new() };
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&words);
        }
        cause = error.source();
    }
    text.replace(|letter: char| letter.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_warned_of_once_and_flapping_once_in_a_while() {
        let at = Duration::from_secs;
        let mut probe = Probe::default();
        assert!(!probe.record_success(at(0)), "there was no outage");
        probe.record_failure(at(1), "refused".to_owned());
        probe.record_failure(at(2), "late".to_owned());
        assert_eq!(probe.warned_at, Some(at(1)));
        assert_eq!(probe.outage.as_ref().map(|outage| (outage.since, &*outage.error)), Some((at(1), "late")));
        assert!(probe.record_success(at(3)));
        probe.record_failure(at(4), "refused".to_owned());
        assert_eq!(probe.warned_at, Some(at(1)), "too soon after the last warning");
        probe.record_failure(at(11), "refused".to_owned());
        assert_eq!(probe.warned_at, Some(at(11)), "an outage that lasts is logged after all");
    }

    #[test]
    fn problems_are_looked_for_at_first_after_an_outage_and_once_in_a_while() {
        let at = Duration::from_secs;
        let mut probe = Probe::default();
        assert!(probe.is_check_due(at(0)));
        probe.record_problems(at(0), vec!["evicts".to_owned()]);
        assert!(!probe.is_check_due(at(9)) && probe.is_check_due(at(10)));
        probe.record_failure(at(2), "refused".to_owned());
        assert!(probe.is_check_due(at(3)), "another server may have come back");
        assert_eq!(probe.problems, ["evicts"]);
        probe.record_problems(at(3), Vec::new());
        assert!(probe.problems.is_empty());
    }

    #[test]
    fn an_error_is_one_line_of_its_causes() {
        let source = std::io::Error::other("cannot connect\r\nto the server");
        let error = StoreError::NotApplied { call: quipu_model::StoreCall::Clock, source: Box::new(source) };
        assert_eq!(describe_causes(&error), "cannot connect  to the server");
        let error = std::io::Error::other("cannot connect");
        assert_eq!(describe_causes(&error), "cannot connect", "it has no causes");
    }
}

//! Publishes the node's display name in the store, beside the registrations, for lists of writers.
//!
//! In: a name. Out: calls that publish it, by the thread that probes the store.
//!
//! Invariant: no work waits for it, and a failure stops nothing.

use std::time::Duration;

use quipu_model::Incarnation;

use super::Sharing;
use super::lease::Membership;
use crate::base::sync::{Ordering, lock};

/// Interval between publications: a node that forgot this one may have removed the name meanwhile.
const PUBLISH_EVERY: Duration = Duration::from_secs(3_600);

/// Time until the next try after a failure.
const RETRY_EVERY: Duration = Duration::from_secs(60);

/// The name, and the time of its next publication.
#[derive(Default)]
pub(crate) struct NodeName {
    name: Option<String>,
    /// The writer of the last publication, and the number of detected losses at that time.
    published: Option<(Incarnation, u64)>,
    next_at: Duration,
}

impl Sharing<'_> {
    /// Sets the node's name.
    pub fn set_node_name(self, name: &str) {
        *lock(&self.link.name) = NodeName { name: Some(name.to_owned()), ..NodeName::default() };
    }

    /// Returns the node's name, if it has one.
    pub fn node_name(self) -> Option<String> {
        lock(&self.link.name).name.clone()
    }

    /// Publishes the name if it is due. Only a registered node does: the node that forgets its last
    /// writer removes the name.
    pub(super) async fn publish_name(&self) {
        let now = self.elapsed();
        let published = (self.link.incarnation(), self.link.metrics.losses.load(Ordering::Relaxed));
        let due = {
            let name = lock(&self.link.name);
            name.name.clone().filter(|_| name.published != Some(published) || name.next_at <= now)
        };
        let Some(due) = due.filter(|_| lock(&self.link.lease).membership == Membership::Live) else { return };
        let answer = self.link.store.name_node(self.link.node, Some(&due)).await;
        let mut name = lock(&self.link.name);
        if name.name.as_ref() == Some(&due) {
            let wait = if answer.is_ok() { PUBLISH_EVERY } else { RETRY_EVERY };
            (name.published, name.next_at) = (Some(published), now + wait);
        }
    }
}

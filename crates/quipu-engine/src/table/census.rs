//! Updates a namespace's census as counters of a held shard come and go.

use crate::namespaces::Census;
use crate::table::Shard;

impl Census {
    /// Counts a counter created in a held shard.
    pub(crate) fn counter_created(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id()) {
            *count += 1;
            self.add(1);
        }
    }

    /// Counts a counter removed from a held shard.
    pub(crate) fn counter_removed(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id()) {
            *count -= 1;
            self.remove(1);
        }
    }

    /// Counts the removal of all counters from a held shard.
    pub(crate) fn counters_cleared(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id()) {
            self.remove(std::mem::take(count));
        }
    }
}

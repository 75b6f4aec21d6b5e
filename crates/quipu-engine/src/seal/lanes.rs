//! Joins and closes the lanes of counters, so that a seal or a close includes their sums.

use crate::core::Core;
use crate::execute::turn::{LaneVisit, Turn};
use crate::table::lanes::LaneSet;

impl Core {
    /// Visits the lanes of all counters.
    pub(crate) fn visit_all_lanes(&self, visit: LaneVisit) {
        for lanes in self.lanes.all() {
            if visit == LaneVisit::CloseIdle {
                lanes.reset_recent_adds();
            }
            // A close visits each under its lock, since lanes may be about to be opened.
            if visit == LaneVisit::Close || lanes.is_live() || lanes.has_no_handles() {
                self.visit_lanes(&lanes, visit);
            }
        }
    }

    pub(crate) fn visit_lanes(&self, lanes: &LaneSet, visit: LaneVisit) {
        let visit_once = || {
            let mut turn = Turn::new(self);
            let visited = turn.visit_lanes(lanes, visit);
            turn.finish();
            visited
        };
        // For the sum of a late add, left in a lane after its counter was evicted. If the load
        // fails, the next visit retries.
        if !visit_once() && self.load_counter(lanes.name().bytes()).is_ok() {
            visit_once();
        }
    }
}

//! Adjusts the sampling rate of namespaces with `overload = "sample"` while the journal cannot keep
//! up.
//!
//! In: signs of pressure from the journal, checked at intervals. Out: a rate, for
//! [`Core::set_overload_rate`].
//!
//! The rate doubles while the journal cannot keep up, and is halved after each second in which it
//! could. So it converges on the rate at which the journal keeps up. Each change is a change of the
//! settings in force in those namespaces. The rarest rate is journaled before
//! (`namespaces::sampling`); so this work is not in the path of an add.
//!
//! Not here: the refusal of adds that cannot be journaled (`journal`). An add asks for room before
//! its random draw. If only drawn adds could be refused, the acknowledged sum would be too small.

use crate::base::sync::lock;
use crate::core::Core;

impl Core {
    /// Checks the journal and adjusts the rate of namespaces that sample under overload. Blocks
    /// while a change is journaled.
    pub(crate) fn adjust_overload_rate(&self) {
        self.retry_end_sampling();
        let (wanted, p_now) = {
            let policies = self.namespaces.current();
            (policies.has_overload(), policies.overload_p())
        };
        if !wanted && p_now == 1 {
            return;
        }
        let p = if wanted {
            lock(&self.pressure).update_rate(self.journal.pressure_signs(), self.clock.elapsed())
        } else {
            1
        };
        if p == p_now {
            return;
        }
        match self.set_overload_rate(p) {
            Ok(()) if p_now == 1 => tracing::warn!(
                p,
                "the journal cannot keep up: namespaces with overload = \"sample\" count one event in so many"
            ),
            Ok(()) if p == 1 => tracing::info!("the journal keeps up: every event is counted again"),
            Ok(()) => {}
            // The next check tries again; until then the old rate stays.
            Err(error) => tracing::debug!(%error, p, "the rate of sampling could not be changed"),
        }
    }
}

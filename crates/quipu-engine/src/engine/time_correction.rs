//! Sets the engine's time back to the wall clock, by an operator's decision.

use quipu_model::Millis;

use crate::base::sync::lock;
use crate::base::time::STEP_MAX;
use crate::core::Core;
use crate::core::watermark::Watermark;
use crate::seal::SealError;
use crate::tokens::TokenRecord;

/// The engine's time was set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeCorrection {
    /// The time before.
    pub from: Millis,
    /// The time after.
    pub to: Millis,
}

impl Core {
    pub(super) fn lower_time(&self) -> Result<Option<TimeCorrection>, SealError> {
        let (from, wall) = (self.now(), self.clock.wall());
        if from.0.saturating_sub(wall.0) <= STEP_MAX.as_millis() as u64 {
            return Ok(None);
        }
        // After this seal the journal has no record left, so only the watermark holds the newest
        // time.
        self.seal_all()?;
        let _one = lock(&self.seal_lock);
        let to = self.time.lower(&*self.clock);
        let horizon = TokenRecord::Horizon(self.tokens.lower_horizon(to)).to_aux_record();
        let watermark = Watermark { time: to, ..lock(&self.watermark).clone() };
        self.ledger.ingest(&[], &[horizon], &watermark.encode())?;
        *lock(&self.watermark) = watermark;
        Ok(Some(TimeCorrection { from, to }))
    }
}

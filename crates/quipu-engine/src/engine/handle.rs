//! Adds to one counter many times, after resolving its name once.
//!
//! In: adds of a program. Out: values as durable as the namespace asks; or no value, at a cost of a
//! few nanoseconds.

use std::time::Duration;

use quipu_model::{Name, NameTooLong};

use crate::base::sync::Arc;
use crate::core::load::Load;
use crate::engine::Engine;
use crate::engine::error::Error;
use crate::execute::turn::{AddOutcome, LaneVisit, NotRun, Turn};
use crate::table::lanes::{LaneAdd, LaneSet};

/// Every this many adds without lanes, `count` hands the journal's filled records to the operating
/// system. No caller waits for these adds, and their records must not fill the memory until the
/// next relaxed window.
const WRITE_FILLED_EVERY: u32 = 64;

/// A counter, resolved once. Clones are handles on the same one.
pub struct Handle {
    engine: Engine,
    lanes: Arc<LaneSet>,
}

impl Handle {
    pub(crate) fn new(engine: &Engine, name: &[u8]) -> Result<Handle, NameTooLong> {
        let name = Name::new(name)?;
        Ok(Handle { engine: engine.clone(), lanes: engine.core().acquire_lanes(name) })
    }

    /// Adds, and returns the value after it once it is as durable as the namespace asks.
    pub fn add(&self, delta: i64) -> Result<i64, Error> {
        self.engine.add_to(self.lanes.name(), delta)
    }

    /// Adds; neither returns a value nor waits. A later read of the counter sees the add.
    /// [`Handle::flush`], or any reply that shows the counter's value afterwards, acknowledges it.
    /// Without these, the add becomes as durable as the namespace asks within the relaxed window.
    // The call overhead would equal the cost of the add itself.
    #[inline(always)]
    pub fn count(&self, delta: i64) -> Result<(), Error> {
        match self.lanes.add(delta) {
            LaneAdd::Added => Ok(()),
            other => self.count_slow(other, delta),
        }
    }

    #[cold]
    #[inline(never)]
    fn count_slow(&self, lane_add: LaneAdd, delta: i64) -> Result<(), Error> {
        match lane_add {
            LaneAdd::Added => Ok(()),
            LaneAdd::NotAdded => self.count_without_lanes(delta),
            LaneAdd::Full => {
                self.join_full();
                Ok(())
            }
            LaneAdd::Late => self.join_late(),
        }
    }

    /// Waits until all earlier counts, through any handle of this counter, are as durable as the
    /// namespace asks.
    pub fn flush(&self) -> Result<(), Error> {
        loop {
            let mut turn = self.engine.turn();
            let flushed = turn.flush_lanes(&self.lanes);
            let wait = turn.finish();
            match flushed {
                Ok(()) => return Ok(self.engine.wait(wait)?),
                Err(NotRun::Refused(refusal)) => return Err(refusal.into()),
                Err(NotRun::Load(load)) => self.load(load, &mut None)?,
            }
        }
    }

    /// Returns true while [`Handle::count`] adds to lanes, i.e. while it is called often.
    pub fn is_split(&self) -> bool {
        self.lanes.is_open()
    }

    /// The counter's name.
    pub fn name(&self) -> &[u8] {
        self.lanes.name().bytes()
    }

    #[cold]
    fn count_without_lanes(&self, delta: i64) -> Result<(), Error> {
        let mut since = None;
        loop {
            let mut turn = self.engine.turn();
            since.into_iter().for_each(|since| turn.set_rows_since(since));
            let counted = turn.count_without_lanes(&self.lanes, delta);
            turn.finish();
            match counted {
                Ok(AddOutcome::Refused(refusal)) => return Err(refusal.into()),
                Ok(AddOutcome::Added | AddOutcome::Unknown) => break,
                Err(load) => self.load(load, &mut since)?,
            }
        }
        if self.lanes.recent_adds().is_multiple_of(WRITE_FILLED_EVERY) {
            self.engine.core().journal.write_filled();
        }
        Ok(())
    }

    #[cold]
    fn join_full(&self) {
        let mut turn = self.engine.turn();
        turn.join_full(&self.lanes);
        turn.finish();
    }

    #[cold]
    fn join_late(&self) -> Result<(), Error> {
        let mut turn = self.engine.turn();
        let joined = turn.join_late(&self.lanes);
        turn.finish();
        if joined {
            return Ok(());
        }
        // The counter may not be resident.
        self.engine.core().visit_lanes(&self.lanes, LaneVisit::Join);
        if self.lanes.has_pending() { Err(Error::OutcomeUnknown) } else { Ok(()) }
    }

    fn load(&self, load: Load, since: &mut Option<Duration>) -> Result<(), Error> {
        let reply = self.engine.load_now(load, since)?;
        debug_assert_eq!(reply, None, "an add that is loaded for has no reply yet");
        Ok(())
    }
}

impl Turn<'_> {
    /// Adds without returning the value. [`Turn::flush`] waits for its durability.
    pub fn add_by_handle(&mut self, handle: &Handle, delta: i64) -> Result<AddOutcome, Load> {
        self.add_to_lanes(&handle.lanes, delta)
    }

    /// Makes the replies of this turn wait until all earlier counts are as durable as the namespace
    /// asks. Refused if they could not be journaled.
    pub fn flush(&mut self, handle: &Handle) -> Result<(), NotRun> {
        self.flush_lanes(&handle.lanes)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        self.lanes.add_handle();
        Handle { engine: self.engine.clone(), lanes: self.lanes.clone() }
    }
}

impl Drop for Handle {
    /// The next visit of the lanes joins their sum and removes them.
    fn drop(&mut self) {
        self.lanes.drop_handle();
    }
}

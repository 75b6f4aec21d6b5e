//! A counter, resolved once, to be added to many times.
//!
//! In: adds of a program. Out: values that are as durable as the namespace asks, or no value at all and next to no cost.

use std::time::Duration;

use quipu_model::{Name, NameTooLong};

use crate::engine::{Engine, Error};
use crate::load::Load;
use crate::split::{Adding, Split};
use crate::sync::Arc;
use crate::turn::{Counted, Visit};

/// Adds that take the ordinary way and that nobody waits for are handed to the operating system after so many: they must not fill the memory until the next window.
const HAND_OVER_EVERY: u32 = 64;

/// A counter, resolved once. Clones are handles on the same one.
pub struct Handle {
    engine: Engine,
    split: Arc<Split>,
}

impl Handle {
    pub(crate) fn new(engine: &Engine, name: &[u8]) -> Result<Handle, NameTooLong> {
        let name = Name::new(name)?;
        Ok(Handle { engine: engine.clone(), split: engine.inner().split(name) })
    }

    /// Adds, and returns the value after it once it is as durable as the namespace asks.
    pub fn add(&self, delta: i64) -> Result<i64, Error> {
        self.engine.add_to(self.split.name(), delta)
    }

    /// Adds, and neither returns a value nor waits. Whoever reads the counter after this has returned sees it; it is acknowledged by
    /// [`Handle::flush`], or by whatever shows the counter's value afterwards. By itself it is as durable as the namespace asks within the relaxed
    /// window.
    // Always: a call costs as much as all that it does.
    #[inline(always)]
    pub fn count(&self, delta: i64) -> Result<(), Error> {
        match self.split.add(delta) {
            Adding::Laid => Ok(()),
            other => self.count_otherwise(other, delta),
        }
    }

    #[cold]
    #[inline(never)]
    fn count_otherwise(&self, adding: Adding, delta: i64) -> Result<(), Error> {
        match adding {
            Adding::Laid => Ok(()),
            Adding::Not => self.count_alone(delta),
            Adding::Full => {
                self.join_full();
                Ok(())
            }
            Adding::Late => self.join_late(),
        }
    }

    /// Waits until everything that was counted so far, through any handle of this counter, is as durable as the namespace asks.
    pub fn flush(&self) -> Result<(), Error> {
        loop {
            let mut turn = self.engine.turn();
            let flushed = turn.flush(self);
            let wait = turn.finish();
            match flushed {
                Ok(joined) => {
                    joined?;
                    return Ok(self.engine.wait(wait)?);
                }
                Err(load) => self.load(load, &mut None)?,
            }
        }
    }

    /// Whether [`Handle::count`] goes to lanes at the moment: while it is called often.
    pub fn is_split(&self) -> bool {
        self.split.is_open()
    }

    /// The counter's name.
    pub fn name(&self) -> &[u8] {
        self.split.name().bytes()
    }

    pub(crate) fn split(&self) -> &Arc<Split> {
        &self.split
    }

    #[cold]
    fn count_alone(&self, delta: i64) -> Result<(), Error> {
        let mut since = None;
        loop {
            let mut turn = self.engine.turn();
            since.into_iter().for_each(|since| turn.rows_since(since));
            let counted = turn.count_alone(&self.split, delta);
            turn.finish();
            match counted {
                Ok(Counted::Refused(refusal)) => return Err(refusal.into()),
                Ok(Counted::Yes | Counted::Unknown) => break,
                Err(load) => self.load(load, &mut since)?,
            }
        }
        if self.split.recent().is_multiple_of(HAND_OVER_EVERY) {
            self.engine.inner().journal.hand_over();
        }
        Ok(())
    }

    #[cold]
    fn join_full(&self) {
        let mut turn = self.engine.turn();
        turn.join_full(&self.split);
        turn.finish();
    }

    #[cold]
    fn join_late(&self) -> Result<(), Error> {
        let mut turn = self.engine.turn();
        let joined = turn.join_late(&self.split);
        turn.finish();
        if joined {
            return Ok(());
        }
        // At rest, perhaps.
        self.engine.inner().visit_split(&self.split, Visit::Join);
        if self.split.holds() { Err(Error::Unknown) } else { Ok(()) }
    }

    fn load(&self, load: Load, since: &mut Option<Duration>) -> Result<(), Error> {
        let reply = self.engine.load_now(load, since)?;
        debug_assert_eq!(reply, None, "an add that is loaded for has no reply yet");
        Ok(())
    }
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        self.split.add_handle();
        Handle { engine: self.engine.clone(), split: self.split.clone() }
    }
}

impl Drop for Handle {
    /// What it counted is joined by the next look, which also lets the lanes go.
    fn drop(&mut self) {
        self.split.drop_handle();
    }
}

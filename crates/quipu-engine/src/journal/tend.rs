//! Tends the journal: prepares segments ahead of the writing, cuts what seal has made superfluous, keeps the control file fresh.
//!
//! In: calls from the background, and from a worker in need of room. Out: room; a shorter journal; a control file that knows.
//!
//! Invariant: one thread at a time (`tending`), and whatever the control file is told is durable by then.

use std::io;
use std::path::PathBuf;

use quipu_model::Refusal;

use super::control::ControlFile;
use super::format::{Position, SegmentHeader};
use super::segments::{Mark, Segment, segment_file};
use super::{Journal, JournalError, io_error};
use crate::failpoint::step;
use crate::sync::{Ordering, lock};

/// Segments that the cut freed are kept for the next ones up to this many bytes or two segments, whichever is more.
const SPARE_BYTES: u64 = 64 << 20;

/// What tending works on.
pub(super) struct Tending {
    pub(super) control: ControlFile,
    /// Files the cut has freed, all of `segment_bytes`.
    pub(super) spare: Vec<PathBuf>,
    /// Why the last attempt to prepare a segment failed.
    pub(super) full: Option<String>,
}

impl Journal {
    /// Prepares segments until there is room ahead again. A full disk is not an error here: writes are refused until it heals.
    pub fn prepare(&self) -> Result<(), JournalError> {
        while self.room_is_low() {
            // One at a time, so that a worker in need gets its turn.
            if !self.prepare_one(&mut lock(&self.tending))? {
                break;
            }
        }
        Ok(())
    }

    /// Prepares segments for a worker that found no room for so many bytes, unless someone else just did or the disk is full.
    pub fn prepare_now(&self, bytes: usize) -> Result<(), Refusal> {
        let mut tending = lock(&self.tending);
        // Whether the disk is still full is for the background to find out, not for every command.
        if let Some(reason) = tending.full.clone() {
            return Err(Refusal::NoRoom { reason });
        }
        while self.room.load(Ordering::Acquire) < bytes as i64 {
            match self.prepare_one(&mut tending) {
                Ok(true) => {}
                Ok(false) => return Err(Refusal::NoRoom { reason: tending.full.clone().unwrap_or_default() }),
                Err(error) => {
                    self.fail(&error);
                    return Err(Refusal::NoRoom { reason: error.to_string() });
                }
            }
        }
        Ok(())
    }

    /// Whether the last attempt to prepare a segment found the disk full.
    pub fn is_full(&self) -> bool {
        lock(&self.tending).full.is_some()
    }

    /// Prepares one segment; false if the disk is full.
    fn prepare_one(&self, tending: &mut Tending) -> Result<bool, JournalError> {
        match self.try_prepare_one(tending) {
            Ok(()) => tending.full = None,
            Err(error) if error.is_full() => tending.full = Some(error.to_string()),
            Err(error) => return Err(error),
        }
        Ok(tending.full.is_none())
    }

    fn try_prepare_one(&self, tending: &mut Tending) -> Result<(), JournalError> {
        let state = *tending.control.state();
        let (bytes, number) = (self.options.segment_bytes, state.end);
        let header = SegmentHeader { log: self.log_id, number, base: state.base, bytes };
        // What an attempt that failed left behind is in the way of the next one.
        let path = self.dir.join(segment_file(number));
        match self.vfs.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&path, "remove", error)),
            _ => {}
        }
        let spare = tending.spare.pop();
        let segment = Segment::prepare(&*self.vfs, &self.dir, header, spare.as_deref()).inspect_err(|_| {
            // Nor does it keep the last of the space from others meanwhile.
            let _ = self.vfs.remove(&path);
        })?;
        step!("prepared");
        tending.control.write(|control| {
            control.end = number + 1;
            control.base = segment.end;
        })?;
        let payload = segment.end.0 - segment.base.0;
        lock(&self.log).segments.push_back(segment);
        self.segments.fetch_add(1, Ordering::AcqRel);
        self.room.fetch_add(payload as i64, Ordering::AcqRel);
        Ok(())
    }

    /// Lets the control file know how far the journal is synced; `clean` marks a clean stop.
    pub fn note_synced(&self, clean: bool) -> Result<(), JournalError> {
        let mut tending = lock(&self.tending);
        let synced = self.synced();
        let state = *tending.control.state();
        if state.synced == synced && state.clean == clean {
            return Ok(());
        }
        tending.control.write(|control| {
            control.synced = synced;
            control.clean = clean;
        })
    }

    /// Takes a place for a record and marks it as one to cut at. Needs room, like every place.
    pub fn reserve_marked(&self, bytes: usize) -> Position {
        // Under the log's lock nothing is handed over, so the chain at this place is not missed.
        let mut log = lock(&self.log);
        let position = self.reserve(bytes);
        log.mark = Some(Mark { position, previous: None });
        position
    }

    /// The marked place and the chain there, once it was handed over.
    pub fn marked(&self) -> Option<(Position, u32)> {
        lock(&self.log).mark.and_then(|mark| Some((mark.position, mark.previous?)))
    }

    /// Drops what lies before the mark. Everything that counts was written again behind it, and is synced.
    pub fn cut(&self, at: Position, previous: u32) -> Result<(), JournalError> {
        debug_assert!(at <= self.synced());
        let mut tending = lock(&self.tending);
        let freed: Vec<Segment> = {
            let log = lock(&self.log);
            log.segments.iter().take_while(|segment| segment.end <= at).cloned().collect()
        };
        let first = tending.control.state().first + freed.len() as u64;
        let synced = self.synced();
        tending.control.write(|control| {
            control.start = at;
            control.previous = previous;
            control.first = first;
            control.synced = synced;
        })?;
        step!("cut");
        self.sealed_bytes.store(self.reserved().0 - at.0, Ordering::Relaxed);
        lock(&self.log).segments.drain(..freed.len());
        self.start.store(at.0, Ordering::Release);
        self.segments.fetch_sub(freed.len() as u64, Ordering::AcqRel);
        let keep = (SPARE_BYTES / self.options.segment_bytes).max(2) as usize;
        for segment in freed {
            if tending.spare.len() < keep && segment.bytes() == self.options.segment_bytes {
                tending.spare.push(segment.path);
            } else {
                self.vfs.remove(&segment.path).map_err(|e| io_error(&segment.path, "remove", e))?;
            }
        }
        Ok(())
    }

    /// How much the last seal left: bytes between the start and where its cells ended.
    pub fn sealed_bytes(&self) -> u64 {
        self.sealed_bytes.load(Ordering::Relaxed)
    }

    /// For INFO and the decision to seal: bytes between the start and what is reserved, and how many segments there are.
    pub fn size(&self) -> (u64, usize) {
        // Asked for by clients, so it waits for no disk: the locks of tending and writing are held over syncs and writes.
        let start = self.start.load(Ordering::Acquire);
        (self.reserved().0.saturating_sub(start), self.segments.load(Ordering::Acquire) as usize)
    }
}

//! Stores the rare parts of a counter that do not fit a slot: long names, expiries, rare epochs,
//! own cells.

use quipu_model::{Cell, Epoch};

use crate::bodies::own_cells::OwnCells;

/// Extra of a slot; the slot's number is its index instead of a value.
#[derive(Default)]
pub struct Extra {
    /// The whole name, if it is too long for the slot.
    pub name: Option<Box<[u8]>>,
    /// `None`: known to be absent.
    pub cell: Option<Cell>,
    /// With a shared store: this node's own cells. `cell` is then the shown state: own cells merged
    /// with other nodes' known cells.
    pub own: Option<Box<OwnCells>>,
}

/// The extras of a shard, by number.
#[derive(Default)]
pub struct Extras {
    all: Vec<Extra>,
    free: Vec<u32>,
}

impl Extras {
    pub fn get(&self, at: i64) -> &Extra {
        &self.all[at as usize]
    }

    pub fn get_mut(&mut self, at: i64) -> &mut Extra {
        &mut self.all[at as usize]
    }

    /// Stores an extra; its number fits the slot's value field.
    pub fn put(&mut self, extra: Extra) -> i64 {
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = extra;
                i64::from(at)
            }
            None => {
                self.all.push(extra);
                self.all.len() as i64 - 1
            }
        }
    }

    /// Removes an extra.
    pub fn take(&mut self, at: i64) -> Extra {
        let extra = std::mem::take(self.get_mut(at));
        self.free.push(at as u32);
        if self.free.len() == self.all.len() {
            // No extras are left, so their memory is freed.
            *self = Extras::default();
        }
        extra
    }

    /// Their bytes, without the memory that each of them points to.
    pub fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Extra>() + self.free.capacity() * size_of::<u32>()
    }
}

/// Epochs that slots refer to by number: the first one, and a few that the shard's counters share.
///
/// All counters created since the last deletion in a shard have the same epoch, so a few suffice
/// for nearly all.
#[derive(Default)]
pub struct SharedEpochs {
    /// Each epoch with the number of slots that refer to it; 0: the number is free.
    named: Vec<(Epoch, u32)>,
}

/// Bound of the epoch numbers.
pub const EPOCHS_MAX: usize = 16;

impl SharedEpochs {
    /// The epoch of a number.
    #[inline]
    pub fn get(&self, number: usize) -> Epoch {
        if number == 0 { Epoch::FIRST } else { self.named[number - 1].0 }
    }

    /// A number for an epoch, unless all are in use; to be released once.
    pub fn acquire(&mut self, epoch: Epoch) -> Option<usize> {
        if epoch == Epoch::FIRST {
            return Some(0);
        }
        let existing = self.named.iter().position(|(named, count)| *named == epoch && *count > 0);
        let at = existing.or_else(|| self.named.iter().position(|(_, count)| *count == 0)).or_else(|| {
            (self.named.len() + 1 < EPOCHS_MAX).then(|| {
                self.named.push((epoch, 0));
                self.named.len() - 1
            })
        })?;
        self.named[at] = (epoch, self.named[at].1 + 1);
        Some(at + 1)
    }

    /// One slot no longer refers to this number.
    pub fn release(&mut self, number: usize) {
        if number > 0 {
            self.named[number - 1].1 -= 1;
        }
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.named.capacity() * size_of::<(Epoch, u32)>()
    }
}

//! What few counters have and a slot has no room for: long names, expiries, odd epochs, what is said on a shared store.

use quipu_model::{Cell, Epoch};

use crate::sharing::own::OwnCells;

/// What a slot's number stands for when it is not a plain value.
#[derive(Default)]
pub struct Extra {
    /// The whole name, if it is too long for the slot.
    pub name: Option<Box<[u8]>>,
    /// `None`: known not to exist.
    pub cell: Option<Cell>,
    /// With a shared store: what this node says there. The cell is then what it shows: its own cells over what it knows of others.
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

    /// Keeps one; its number fits where a value would stand.
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

    /// Takes one out.
    pub fn take(&mut self, at: i64) -> Extra {
        let extra = std::mem::take(self.get_mut(at));
        self.free.push(at as u32);
        if self.free.len() == self.all.len() {
            // Nobody has any: the memory goes back.
            *self = Extras::default();
        }
        extra
    }

    /// How many bytes they take, without what each of them points to.
    pub fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Extra>() + self.free.capacity() * size_of::<u32>()
    }
}

/// Epochs that slots name by a number: the first one, and a few that counters of the shard have in common.
///
/// All counters made since the newest deletion in a shard have the same epoch, so a few suffice for nearly all.
#[derive(Default)]
pub struct SharedEpochs {
    /// The epoch and how many slots name it; a place without any is free.
    named: Vec<(Epoch, u32)>,
}

/// Numbers of epochs are below this.
pub const EPOCHS_MAX: usize = 16;

impl SharedEpochs {
    /// The epoch of a number.
    #[inline]
    pub fn get(&self, number: usize) -> Epoch {
        if number == 0 { Epoch::FIRST } else { self.named[number - 1].0 }
    }

    /// A number for an epoch, unless all are taken by others; to be let go of once.
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

    /// A slot does not name it any more.
    pub fn release(&mut self, number: usize) {
        if number > 0 {
            self.named[number - 1].1 -= 1;
        }
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.named.capacity() * size_of::<(Epoch, u32)>()
    }
}

//! The counters of a run: few, so that everybody meets, and each for what can be known of it.

use quipu_model::{Durability, Name};

/// What clients do to a counter, and so what can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Adds above 0 only: readings never go back.
    Rising,
    /// Adds of any sign.
    Both,
    /// Adds above 0, and harvests that take everything: each add is taken once.
    Harvested,
    /// Everything: adds above 0, harvests, sets, deletes and expiry.
    Mixed,
}

impl Class {
    /// Whether nothing below 0 is ever added to it.
    pub fn only_grows(self) -> bool {
        self != Class::Both
    }

    /// Whether anything but adds happens to it.
    pub fn is_swapped(self) -> bool {
        matches!(self, Class::Harvested | Class::Mixed)
    }
}

/// A counter.
#[derive(Debug, Clone, Copy)]
pub struct Counter {
    /// Its name; the namespace decides the durability.
    pub name: &'static str,
    /// What happens to it.
    pub class: Class,
    /// What an ack means.
    pub durability: Durability,
}

/// All of them. Namespace `d` is durable, `r` relaxed, `m` in memory.
pub const COUNTERS: [Counter; 11] = [
    Counter { name: "d:rising", class: Class::Rising, durability: Durability::Durable },
    Counter { name: "r:rising", class: Class::Rising, durability: Durability::Relaxed },
    Counter { name: "m:rising", class: Class::Rising, durability: Durability::Memory },
    Counter { name: "d:both", class: Class::Both, durability: Durability::Durable },
    Counter { name: "r:both", class: Class::Both, durability: Durability::Relaxed },
    Counter { name: "d:harvested", class: Class::Harvested, durability: Durability::Durable },
    Counter { name: "r:harvested", class: Class::Harvested, durability: Durability::Relaxed },
    Counter { name: "m:harvested", class: Class::Harvested, durability: Durability::Memory },
    Counter { name: "d:mixed", class: Class::Mixed, durability: Durability::Durable },
    Counter { name: "r:mixed", class: Class::Mixed, durability: Durability::Relaxed },
    Counter { name: "m:mixed", class: Class::Mixed, durability: Durability::Memory },
];

/// Which counter has this name.
pub fn counter_of(name: &[u8]) -> Option<usize> {
    COUNTERS.iter().position(|counter| counter.name.as_bytes() == name)
}

/// A counter's name.
pub fn name_of(counter: usize) -> Name<'static> {
    Name::new(COUNTERS[counter].name.as_bytes()).expect("the names here are short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name_and_its_namespace_says_its_durability() {
        for (index, counter) in COUNTERS.iter().enumerate() {
            assert_eq!(counter_of(counter.name.as_bytes()), Some(index));
            let word = counter.durability.word().as_bytes();
            assert_eq!(name_of(index).namespace(), &word[..1], "{counter:?}");
        }
        assert_eq!(counter_of(b"other"), None);
    }
}

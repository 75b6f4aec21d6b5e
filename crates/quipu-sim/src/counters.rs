//! Defines the counters of a run: few, so that all nodes share them, and each with its own checks.

use quipu_model::{Durability, Name};

/// Actions on a counter, which decide the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterClass {
    /// Adds above 0 only: readings never go back.
    Rising,
    /// Adds of any sign.
    Both,
    /// Adds above 0, and harvests that take everything: each add is taken once.
    Harvested,
    /// All actions: adds above 0, harvests, sets, deletes and expiry.
    Mixed,
    /// A sketch: items are observed or counted, some repeatedly.
    Observed,
    /// The same, with occasional deletes.
    Discarded,
    /// The same, with expiry.
    Passing,
}

/// Type of a counter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterForm {
    /// A number.
    Number,
    /// A native sketch of uniques, which is exact for the few items here.
    Unique,
    /// A sketch of uniques in Redis's format.
    Hll,
    /// A sketch of frequencies, large enough for the items here.
    Frequency,
    /// A top-K list with room for all items here.
    Top,
}

impl CounterClass {
    /// Returns true if no negative number is ever added.
    pub fn only_grows(self) -> bool {
        !matches!(self, CounterClass::Both | CounterClass::Observed | CounterClass::Discarded | CounterClass::Passing)
    }

    /// Returns true if the class has other actions than adds.
    pub fn is_swapped(self) -> bool {
        matches!(self, CounterClass::Harvested | CounterClass::Mixed)
    }
}

/// A counter.
#[derive(Debug, Clone, Copy)]
pub struct SimCounter {
    /// Its name; the namespace decides the durability.
    pub name: &'static str,
    /// Its class.
    pub class: CounterClass,
    /// Type of its value.
    pub form: CounterForm,
    /// Durability that an ack promises.
    pub durability: Durability,
}

/// All counters. Namespace `d` is durable, `r` relaxed, `m` in memory.
pub const COUNTERS: [SimCounter; 18] = [
    SimCounter::number("d:rising", CounterClass::Rising, Durability::Durable),
    SimCounter::number("r:rising", CounterClass::Rising, Durability::Relaxed),
    SimCounter::number("m:rising", CounterClass::Rising, Durability::Memory),
    SimCounter::number("d:both", CounterClass::Both, Durability::Durable),
    SimCounter::number("r:both", CounterClass::Both, Durability::Relaxed),
    SimCounter::number("d:harvested", CounterClass::Harvested, Durability::Durable),
    SimCounter::number("r:harvested", CounterClass::Harvested, Durability::Relaxed),
    SimCounter::number("m:harvested", CounterClass::Harvested, Durability::Memory),
    SimCounter::number("d:mixed", CounterClass::Mixed, Durability::Durable),
    SimCounter::number("r:mixed", CounterClass::Mixed, Durability::Relaxed),
    SimCounter::number("m:mixed", CounterClass::Mixed, Durability::Memory),
    SimCounter::sketch("d:observed", CounterClass::Observed, CounterForm::Unique, Durability::Durable),
    SimCounter::sketch("r:observed", CounterClass::Observed, CounterForm::Hll, Durability::Relaxed),
    SimCounter::sketch("d:discarded", CounterClass::Discarded, CounterForm::Unique, Durability::Durable),
    SimCounter::sketch("m:discarded", CounterClass::Discarded, CounterForm::Unique, Durability::Memory),
    SimCounter::sketch("d:passing", CounterClass::Passing, CounterForm::Hll, Durability::Durable),
    SimCounter::sketch("d:counted", CounterClass::Observed, CounterForm::Frequency, Durability::Durable),
    SimCounter::sketch("d:ranked", CounterClass::Discarded, CounterForm::Top, Durability::Durable),
];

impl SimCounter {
    const fn number(name: &'static str, class: CounterClass, durability: Durability) -> SimCounter {
        SimCounter { name, class, form: CounterForm::Number, durability }
    }

    const fn sketch(name: &'static str, class: CounterClass, form: CounterForm, durability: Durability) -> SimCounter {
        SimCounter { name, class, form, durability }
    }

    /// Returns true for a sketch.
    pub fn is_sketch(&self) -> bool {
        self.form != CounterForm::Number
    }
}

/// Index of the counter with this name.
pub fn find_counter(name: &[u8]) -> Option<usize> {
    COUNTERS.iter().position(|counter| counter.name.as_bytes() == name)
}

/// Name of a counter.
pub fn counter_name(counter: usize) -> Name<'static> {
    Name::new(COUNTERS[counter].name.as_bytes()).expect("the names here are short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name_and_its_namespace_says_its_durability() {
        for (index, counter) in COUNTERS.iter().enumerate() {
            assert_eq!(find_counter(counter.name.as_bytes()), Some(index));
            let durability = counter.durability.name().as_bytes();
            assert_eq!(counter_name(index).namespace(), &durability[..1], "{counter:?}");
        }
        assert_eq!(find_counter(b"other"), None);
    }
}

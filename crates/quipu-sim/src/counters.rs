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
    /// A sketch: items are observed or counted, some again and again.
    Observed,
    /// The same, and it is deleted now and then.
    Discarded,
    /// The same, and it expires.
    Passing,
}

/// What a counter is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A number.
    Number,
    /// A sketch of uniques in our form, which is exact for as few as are observed here.
    Unique,
    /// A sketch of uniques in Redis's form.
    Hll,
    /// A sketch of frequencies, large enough for what is counted here.
    Frequency,
    /// A list of what is most frequent, which has room for all that is counted here.
    Top,
}

impl Class {
    /// Whether nothing below 0 is ever added to it.
    pub fn only_grows(self) -> bool {
        !matches!(self, Class::Both | Class::Observed | Class::Discarded | Class::Passing)
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
    /// What it is made of.
    pub form: Form,
    /// What an ack means.
    pub durability: Durability,
}

/// All of them. Namespace `d` is durable, `r` relaxed, `m` in memory.
pub const COUNTERS: [Counter; 18] = [
    Counter::number("d:rising", Class::Rising, Durability::Durable),
    Counter::number("r:rising", Class::Rising, Durability::Relaxed),
    Counter::number("m:rising", Class::Rising, Durability::Memory),
    Counter::number("d:both", Class::Both, Durability::Durable),
    Counter::number("r:both", Class::Both, Durability::Relaxed),
    Counter::number("d:harvested", Class::Harvested, Durability::Durable),
    Counter::number("r:harvested", Class::Harvested, Durability::Relaxed),
    Counter::number("m:harvested", Class::Harvested, Durability::Memory),
    Counter::number("d:mixed", Class::Mixed, Durability::Durable),
    Counter::number("r:mixed", Class::Mixed, Durability::Relaxed),
    Counter::number("m:mixed", Class::Mixed, Durability::Memory),
    Counter::sketch("d:observed", Class::Observed, Form::Unique, Durability::Durable),
    Counter::sketch("r:observed", Class::Observed, Form::Hll, Durability::Relaxed),
    Counter::sketch("d:discarded", Class::Discarded, Form::Unique, Durability::Durable),
    Counter::sketch("m:discarded", Class::Discarded, Form::Unique, Durability::Memory),
    Counter::sketch("d:passing", Class::Passing, Form::Hll, Durability::Durable),
    Counter::sketch("d:counted", Class::Observed, Form::Frequency, Durability::Durable),
    Counter::sketch("d:ranked", Class::Discarded, Form::Top, Durability::Durable),
];

impl Counter {
    const fn number(name: &'static str, class: Class, durability: Durability) -> Counter {
        Counter { name, class, form: Form::Number, durability }
    }

    const fn sketch(name: &'static str, class: Class, form: Form, durability: Durability) -> Counter {
        Counter { name, class, form, durability }
    }

    /// Whether it is a sketch.
    pub fn is_sketch(&self) -> bool {
        self.form != Form::Number
    }
}

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

//! What the ratio to Redis must be, and what it should be.
//!
//! A *goal* lies at 0.8 to 1.0 of what prototypes reached that do nothing but count; a *must* is what the finished server has to show
//! with everything switched on. For `durable` throughput is compared, since the disk decides; else CPU time per operation, since a
//! load generator may be slower than the server.

use quipu_model::Durability;

use super::commands::Verb;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// CPU time per operation: Redis's by ours.
    Cpu,
    /// Operations per second: ours by Redis's.
    Throughput,
}

impl Basis {
    /// What the modes are judged by.
    pub fn of(mode: Durability) -> Basis {
        match mode {
            Durability::Memory | Durability::Relaxed => Basis::Cpu,
            Durability::Durable => Basis::Throughput,
        }
    }

    /// Its name in tables.
    pub fn word(self) -> &'static str {
        match self {
            Basis::Cpu => "CPU per op",
            Basis::Throughput => "throughput",
        }
    }

    /// Its name in JSON, where the ratio itself has the same.
    pub fn key(self) -> &'static str {
        match self {
            Basis::Cpu => "cpu_per_operation",
            Basis::Throughput => "throughput",
        }
    }
}

/// How high a ratio ought to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// At least.
    pub must: f64,
    /// At best.
    pub goal: f64,
}

/// How a ratio stands to its bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// At the goal or above.
    Goal,
    /// At what it must be or above.
    Must,
    /// Below what it must be.
    Below,
}

impl Bar {
    /// The bar of a command in a mode at so many in flight; there is none for others than these.
    pub fn of(verb: Verb, mode: Durability, pipeline: usize) -> Option<Bar> {
        match verb {
            Verb::Incr => {}
            Verb::Pfadd => return (pipeline == 64).then_some(Bar { must: 2.0, goal: 2.0 }),
            Verb::Get | Verb::CmsIncrby | Verb::TopkAdd => return None,
        }
        let column = [1, 16, 64, 256].iter().position(|&known| known == pipeline)?;
        let (must, goal) = match mode {
            Durability::Memory => ([1.05, 2.0, 3.0, 4.5], [1.15, 2.3, 4.0, 7.0]),
            Durability::Relaxed => ([1.0, 2.0, 3.0, 3.0], [1.1, 2.3, 4.0, 4.5]),
            Durability::Durable => ([1.1, 2.0, 3.0, 4.0], [1.3, 2.3, 4.0, 6.0]),
        };
        Some(Bar { must: must[column], goal: goal[column] })
    }

    /// Where a ratio stands.
    pub fn standing(self, ratio: f64) -> Standing {
        match ratio {
            ratio if ratio >= self.goal => Standing::Goal,
            ratio if ratio >= self.must => Standing::Must,
            _ => Standing::Below,
        }
    }
}

impl Standing {
    /// Its name in tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Goal => "goal",
            Standing::Must => "must",
            Standing::Below => "below",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_bar_where_it_is_measured_by_default() {
        for mode in Durability::ALL {
            for pipeline in [1, 16, 64, 256] {
                let bar = Bar::of(Verb::Incr, mode, pipeline).unwrap();
                assert!(bar.must < bar.goal, "{mode} {pipeline}");
                assert_eq!(bar.standing(bar.goal), Standing::Goal);
                assert_eq!(bar.standing(bar.must), Standing::Must);
                assert_eq!(bar.standing(bar.must - 0.01), Standing::Below);
            }
            assert_eq!(Bar::of(Verb::Incr, mode, 32), None);
            assert_eq!(Bar::of(Verb::Get, mode, 64), None);
        }
    }
}

//! Random numbers of a measurement, mixed as in SplitMix64, and items by Zipf's law.

use quipu_sketch::splitmix;

/// Random numbers from a seed.
pub struct Rng {
    state: u64,
}

impl Rng {
    /// One of many streams of numbers from a seed.
    pub fn new(seed: u64, stream: u64) -> Rng {
        Rng { state: mix_stream(seed, stream) }
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        mix_stream(self.state, 0)
    }

    /// Returns a number in [0, 1).
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (-53f64).exp2()
    }
}

#[inline]
fn mix_stream(number: u64, stream: u64) -> u64 {
    splitmix::mix(number ^ stream.wrapping_add(1).wrapping_mul(splitmix::STEP))
}

/// Zipf's law: rank r, from 0, is drawn with a chance of 1/(r+1)^exponent. It uses Walker's alias
/// method with one random number per draw.
pub struct Zipf {
    /// Per rank: its own part of its column, and the rank of the rest.
    columns: Vec<(f64, u32)>,
}

impl Zipf {
    pub fn new(universe: u32, exponent: f64) -> Zipf {
        let weights: Vec<f64> = (1..=universe).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let mean = weights.iter().sum::<f64>() / f64::from(universe);
        let mut columns: Vec<(f64, u32)> =
            weights.iter().zip(0..).map(|(weight, rank)| (weight / mean, rank)).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..universe).partition(|rank| columns[*rank as usize].0 < 1.0);
        while let (Some(less), Some(more)) = (small.pop(), large.pop()) {
            columns[less as usize].1 = more;
            let rest = columns[more as usize].0 - (1.0 - columns[less as usize].0);
            columns[more as usize].0 = rest;
            if rest < 1.0 { small.push(more) } else { large.push(more) }
        }
        for rank in small.into_iter().chain(large) {
            columns[rank as usize].0 = 1.0;
        }
        Zipf { columns }
    }

    pub fn universe(&self) -> u32 {
        self.columns.len() as u32
    }

    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let at = rng.fraction() * self.columns.len() as f64;
        let (kept, other) = self.columns[at as usize];
        if at.fract() < kept { at as u32 } else { other }
    }
}

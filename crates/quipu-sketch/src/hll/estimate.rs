//! Estimates the number of items from registers.
//!
//! Otmar Ertl's improved estimator (2017) needs no tables and no switch between formulas. With m
//! registers, C₀ of them empty and C₅₁ of them full,
//!
//! ```text
//! n ≈ α m² / (m·σ(C₀/m) + Σ 2⁻ᵏ·Cₖ + m·2⁻⁵⁰·τ(1 − C₅₁/m)),   α = 1 / (2 ln 2)
//! ```
//!
//! where the sum is over registers that are neither. It needs the two numbers and the sum. All
//! three are in an incremental [`RegisterTally`], so an estimate does not walk the registers.

use super::{REGISTERS, dense::RegisterTally};

/// Returns the estimated number of distinct items.
pub fn estimate(tally: &RegisterTally) -> f64 {
    let m = REGISTERS as f64;
    let unit = (1u64 << 50) as f64;
    let between = (tally.room - (u128::from(tally.zeros) << 50)) as f64 / unit;
    let full = m * tau(1.0 - f64::from(tally.full) / m) / unit;
    let empty = m * sigma(f64::from(tally.zeros) / m);
    let alpha = 0.5 / std::f64::consts::LN_2;
    alpha * m * m / (empty + between + full)
}

/// x + Σ x^(2ᵏ)·2^(k−1), over k from 1.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// (1 − x − Σ (1 − x^(2⁻ᵏ))²·2⁻ᵏ) / 3, over k from 1.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

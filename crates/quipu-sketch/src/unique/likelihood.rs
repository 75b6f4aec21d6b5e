//! Maximum-likelihood estimate of the number of items.
//!
//! Consider possible *events*, each caused by an item with its own small chance cᵢ. Among n items,
//! event i did not happen with probability about exp(−n·cᵢ). The events are nearly independent
//! (exactly so, if n itself is a Poisson number). A sketch remembers that some events happened and
//! that some did not, and has forgotten the rest. So, with A the sum of the chances of those that
//! did not happen,
//!
//! ```text
//! log L(n) = −n·A + Σ over happened: log(1 − exp(−n·cᵢ))
//! dL/dn = 0  ⇔  Σ over happened: cᵢ / (exp(n·cᵢ) − 1) = A
//! ```
//!
//! For an UltraLogLog with m registers an event is "rank k came to register r", with c = ρ(k)/m and
//! ρ(k) = 2⁻ᵏ. A register of rank k with two bits shows that k happened, and that nothing above did
//! (Σ of ρ over j > k goes to A). Its bits show for k−1 and k−2 if they happened.
//!
//! For a list of tokens an event is a token. Those on the list happened. All others did not, and
//! together have the chance 1 − Σ cᵢ.
//!
//! The left side falls in n from ∞ to 0, and is convex, so Newton's steps from a point left of the
//! root never pass it. Since 1/(exp(x) − 1) ≥ 1/x − 1/2, such a point is n₀ = B / (A + C/2). B is
//! the number of happened events, and C the sum of their chances.

/// Evidence of a sketch. Chances are in units of 2⁻⁶⁴, so sums are exact and do not depend on their
/// order.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// Events that happened, by chance: `[e]` counts those of chance 2⁻ᵉ.
    pub happened: [u32; 65],
    /// Sum of the chances of events that did not happen, in 2⁻⁶⁴.
    pub absent: u128,
}

impl Evidence {
    /// Returns the most likely number of items; infinite if everything happened.
    pub fn estimate(&self) -> f64 {
        let total: u32 = self.happened.iter().sum();
        if total == 0 {
            return 0.0;
        }
        if self.absent == 0 {
            return f64::INFINITY;
        }
        let absent = self.absent as f64 * (-64f64).exp2();
        let chance = |e: usize| (-(e as f64)).exp2();
        let happened = || self.happened.iter().enumerate().filter(|(_, count)| **count > 0);
        let chances: f64 = happened().map(|(e, count)| f64::from(*count) * chance(e)).sum();
        let mut n = f64::from(total) / (absent + chances / 2.0);
        for _ in 0..STEPS_MAX {
            let (mut left, mut slope) = (0.0, 0.0);
            for (e, count) in happened() {
                let c = chance(e);
                let grown = (n * c).exp_m1();
                if !grown.is_finite() || grown == 0.0 {
                    continue;
                }
                let term = f64::from(*count) * c / grown;
                left += term;
                // d/dn of c/(e^{nc} − 1) = −c²·e^{nc}/(e^{nc} − 1)².
                slope += term * c * (1.0 + 1.0 / grown);
            }
            let step = (left - absent) / slope;
            if !step.is_finite() {
                break;
            }
            n += step;
            if step.abs() <= n * CLOSE {
                break;
            }
        }
        n
    }
}

/// Most Newton steps. Steps from below double the digits; if nearly everything happened, some tens
/// are needed.
const STEPS_MAX: usize = 200;

/// Relative size of the last step. The error of the estimate itself is a million times greater.
const CLOSE: f64 = 1e-10;

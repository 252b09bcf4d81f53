//! The gradient noise scale of training (McCandlish et al. 2018, arXiv:1812.06162): the batch size at which
//! the noise of a gradient is as large as the gradient, from the gradients of micro-batches and of the
//! windows that they add up to.
//!
//! A window has micro-batches with counts `c_k` (samples, or tokens) and gradient sums `s_k`, which add up
//! to `S` with the count `C`. For independent samples with mean gradient `G` and covariance `Σ`, the
//! expectations are
//! `E|s_k|² = c_k²|G|² + c_k tr Σ` and `E|S|² = C²|G|² + C tr Σ`. Solved for both unknowns, for
//! micro-batches of any sizes:
//!
//! ```text
//! |G|² ≈ (|S|² − Σ|s_k|²) / (C² − Σc_k²)        tr Σ ≈ (Σ|s_k|² − |G|² Σc_k²) / C
//! ```
//!
//! Both are unbiased, their ratio is not; so, as in the paper, each is averaged over many steps first.

/// Weight of older estimates in the moving averages: a time constant of 100 steps.
const DECAY: f64 = 0.99;
/// Number of estimates before an interval is given.
const MIN_ESTIMATES: u64 = 10;
/// Quantile of the normal distribution for a 95 % confidence interval.
const QUANTILE: f64 = 1.96;
/// Minimum factor between the batch and the interval's end for the batch to count as small or large.
const MIN_DISTANCE_FACTOR: f64 = 2.0;
/// Optimizers whose update does not depend on the gradient's scale: their learning rate follows the square
/// root rule.
const ADAPTIVE: [&str; 8] = ["adam", "lamb", "lion", "adagrad", "adafactor", "rmsprop", "adadelta", "sophia"];

/// Micro-batches of one optimizer step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoiseSample {
    /// Count of each micro-batch, and the squared norm of its gradient sum.
    pub parts: Vec<(f64, f64)>,
    /// Squared norm of the step's gradient sum.
    pub whole: f64,
}

/// Moving averages of the estimates of a training run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoiseScale {
    estimates: u64,
    undivided: u64,
    invalid: u64,
    // Decayed sums of the weights, their squares, the counts, and of |G|² and tr Σ with their products.
    weight: f64,
    weight_squared: f64,
    batch: f64,
    gradient: f64,
    noise: f64,
    gradient_squared: f64,
    noise_squared: f64,
    product: f64,
}

/// Estimate of the noise scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseEstimate {
    /// Noise scale, in the unit of the counts; `None` if the mean gradient cannot be distinguished from
    /// noise.
    pub value: Option<f64>,
    /// Lower end of the 95 % confidence interval; `None` with too few estimates.
    pub low: Option<f64>,
    /// Upper end; `None` if there is no bound.
    pub high: Option<f64>,
    /// Mean count of an optimizer step.
    pub batch: f64,
}

impl NoiseScale {
    /// Adds an optimizer step; returns `false` if it gives no estimate.
    pub fn step(&mut self, sample: &NoiseSample) -> bool {
        let parts: Vec<(f64, f64)> =
            sample.parts.iter().copied().filter(|&(count, _)| count != 0.0).collect();
        if parts.len() < 2 {
            self.undivided += 1;
            return false;
        }
        let count: f64 = parts.iter().map(|&(count, _)| count).sum();
        let squares: f64 = parts.iter().map(|&(count, _)| count * count).sum();
        let norms: f64 = parts.iter().map(|&(_, norm)| norm).sum();
        let gradient = (sample.whole - norms) / (count * count - squares);
        let noise = (norms - gradient * squares) / count;
        if !(gradient.is_finite()
            && noise.is_finite()
            && parts.iter().all(|&(count, _)| count.is_sign_positive()))
        {
            self.invalid += 1;
            return false;
        }
        self.estimates += 1;
        self.weight_squared = self.weight_squared * DECAY * DECAY + 1.0;
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.batch, count),
            (&mut self.gradient, gradient),
            (&mut self.noise, noise),
            (&mut self.gradient_squared, gradient * gradient),
            (&mut self.noise_squared, noise * noise),
            (&mut self.product, gradient * noise),
        ] {
            *sum = *sum * DECAY + value;
        }
        true
    }

    /// Number of steps that gave an estimate.
    pub fn estimates(&self) -> u64 {
        self.estimates
    }

    /// Number of steps with a single micro-batch, which give no estimate.
    pub fn undivided(&self) -> u64 {
        self.undivided
    }

    /// Noise scale from the steps so far; `None` before the first estimate.
    pub fn estimate(&self) -> Option<NoiseEstimate> {
        if self.estimates == 0 {
            return None;
        }
        let (gradient, noise) = (self.gradient / self.weight, self.noise / self.weight);
        let value = (gradient > 0.0).then(|| noise.max(0.0) / gradient);
        let (low, high) =
            if self.estimates < MIN_ESTIMATES { (None, None) } else { self.interval(gradient, noise) };
        Some(NoiseEstimate { value, low, high, batch: self.batch / self.weight })
    }

    /// 95 % confidence interval of a ratio of two means, by Fieller's theorem: all ratios `B` for which
    /// `tr Σ − B|G|²` is not significantly different from zero.
    fn interval(&self, gradient: f64, noise: f64) -> (Option<f64>, Option<f64>) {
        let independent = self.weight * self.weight / self.weight_squared;
        // The variance of a mean, from the spread of its estimates.
        let spread = |squares: f64, one: f64, other: f64| {
            (squares / self.weight - one * other) / (independent - 1.0) * QUANTILE * QUANTILE
        };
        let a = gradient * gradient - spread(self.gradient_squared, gradient, gradient).max(0.0);
        let b = noise * gradient - spread(self.product, noise, gradient);
        let c = noise * noise - spread(self.noise_squared, noise, noise).max(0.0);
        let root = (b * b - a * c).max(0.0).sqrt();
        if a > 0.0 && gradient > 0.0 {
            (Some(((b - root) / a).max(0.0)), Some(((b + root) / a).max(0.0)))
        } else if a < 0.0 && c > 0.0 {
            // The noise is significant and the gradient is not: only a lower bound.
            (Some(((b - root) / a).max(0.0)), None)
        } else {
            (Some(0.0), None)
        }
    }

    /// Advice in a sentence or two. `optimizer` is the name of its class, `unit` that of the counts.
    pub fn advice(&self, optimizer: &str, unit: &str) -> String {
        let Some(found) = self.estimate() else {
            return self.nothing();
        };
        let batch = found.batch;
        let Some(low) = found.low else {
            return format!(
                "{} of the {MIN_ESTIMATES} steps in micro-batches that an interval needs so far",
                self.estimates
            );
        };
        let rule = rule(optimizer);
        let about = format!("The global batch of {} {unit}", number(batch));
        let place = match found.high {
            _ if low >= MIN_DISTANCE_FACTOR * batch => {
                "is smaller than the noise scale: a smaller one costs few or no additional \
                                            samples, a larger one saves steps"
            }
            Some(high) if high * MIN_DISTANCE_FACTOR <= batch => {
                "is larger than the noise scale: a smaller one needs fewer samples \
                                                      for few additional steps, a larger one saves hardly any steps"
            }
            Some(_) => "is of the order of the noise scale",
            None => {
                return format!(
                    "The mean gradient cannot be distinguished from noise yet: the noise scale is at least {} {unit}, compared with a global \
                 batch of {} {unit}. {rule}",
                    number(low),
                    number(batch)
                );
            }
        };
        // Without an upper end, the value is anywhere above the lower one.
        let costs = found.value.filter(|_| found.high.is_some()).map_or_else(String::new, |value| {
            let steps = |factor: f64| (1.0 + value / (batch * factor)) / (1.0 + value / batch);
            let samples = |factor: f64| (batch * factor + value) / (batch + value);
            format!(
                " (modelled: half of it takes {:.2} times the steps and {:.2} times the {unit}, twice of it {:.2} and {:.2} \
                 times)",
                steps(0.5), samples(0.5), steps(2.0), samples(2.0)
            )
        });
        format!("{about} {place}{costs}. {rule}")
    }

    fn nothing(&self) -> String {
        if self.undivided > 0 {
            "No estimate: every step so far had a single micro-batch, and a noise scale needs gradients of two batch \
             sizes. Set `micro_batch=` or `accumulate=`."
                .to_owned()
        } else if self.invalid > 0 {
            "No estimate: gradients were not finite.".to_owned()
        } else {
            "No estimate: no optimizer step was made yet.".to_owned()
        }
    }
}

/// Rule for the learning rate of another global batch.
fn rule(optimizer: &str) -> &'static str {
    let name = optimizer.to_ascii_lowercase();
    if ADAPTIVE.iter().any(|each| name.contains(each)) {
        "If you change it, scale the learning rate with the square root of the factor (Adam and alike)."
    } else if name.contains("sgd") {
        "If you change it, scale the learning rate by the same factor, with a warm-up (SGD)."
    } else {
        "If you change it, scale the learning rate by the same factor for an optimizer like SGD, and with its square root \
         for one like Adam."
    }
}

/// A number with three significant digits; a whole number without decimals.
fn number(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_decimals() {
        let shown = [32.0, 7.0, 212.4, 32.56, 7.125].map(number);
        assert_eq!(shown, ["32", "7", "212", "32.6", "7.12"]);
    }

    /// Deterministic normal random numbers: a linear congruential generator and the Box–Muller transform.
    struct Normal(u64);

    impl Normal {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        }

        fn next(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }
    }

    /// A step over samples whose gradients have the mean 1 and the deviation `deviation` in each of 8
    /// dimensions: the noise scale is `deviation²`.
    fn step(normal: &mut Normal, sizes: &[u32], deviation: f64) -> NoiseSample {
        let square = |sum: &[f64; 8]| sum.iter().map(|each| each * each).sum::<f64>();
        let mut whole = [0.0; 8];
        let mut parts = Vec::new();
        for &size in sizes {
            let mut sum = [0.0; 8];
            (0..size).for_each(|_| sum.iter_mut().for_each(|each| *each += 1.0 + deviation * normal.next()));
            whole.iter_mut().zip(sum).for_each(|(total, each)| *total += each);
            parts.push((f64::from(size), square(&sum)));
        }
        NoiseSample { parts, whole: square(&whole) }
    }

    fn trained(sizes: &[u32], deviation: f64, steps: usize) -> NoiseScale {
        let (mut normal, mut scale) = (Normal(7), NoiseScale::default());
        (0..steps).for_each(|_| assert!(scale.step(&step(&mut normal, sizes, deviation))));
        scale
    }

    /// A step of two samples that estimates exactly this `|G|²` and `tr Σ`.
    fn exact(gradient: f64, noise: f64) -> NoiseSample {
        let norm = gradient + noise;
        NoiseSample { parts: vec![(1.0, norm), (1.0, norm)], whole: 4.0 * gradient + 2.0 * noise }
    }

    #[test]
    fn an_interval_is_the_mean_with_its_standard_error() {
        let noises: Vec<f64> = (0..12).map(|step| f64::from(step * step % 7)).collect();
        let mut scale = NoiseScale::default();
        for &noise in &noises {
            assert!(scale.step(&exact(1.0, noise)));
        }
        // Newer estimates weigh more. The gradient does not vary, so only the noise widens the interval.
        let weights: Vec<f64> = (0..12).rev().map(|age| 0.99f64.powi(age)).collect();
        let total: f64 = weights.iter().sum();
        let mean = weights.iter().zip(&noises).map(|(weight, noise)| weight * noise).sum::<f64>() / total;
        let spread = weights.iter().zip(&noises).map(|(weight, noise)| weight * (noise - mean).powi(2));
        let variance = spread.sum::<f64>() / total;
        let effective = total * total / weights.iter().map(|weight| weight * weight).sum::<f64>();
        let half = 1.96 * (variance / (effective - 1.0)).sqrt();
        let found = scale.estimate().expect("steps");
        for (is, should) in [
            (found.low, mean - half),
            (found.value, mean),
            (found.high, mean + half),
            (Some(found.batch), 2.0),
        ] {
            assert!((is.expect("bounded") - should).abs() < 1e-9, "{found:?} instead of {mean} ± {half}");
        }
    }

    #[test]
    fn advice_has_the_costs_of_half_and_twice_the_batch() {
        // With noise scale B and batch N, the number of steps is proportional to 1 + B/N, the number of
        // samples to N + B.
        let mut scale = NoiseScale::default();
        (0..10).for_each(|_| assert!(scale.step(&exact(1.0, 3.0))));
        let advice = scale.advice("SGD", "samples");
        let costs = "half of it takes 1.60 times the steps and 0.80 times the samples, twice of it 0.70 and 1.40 times";
        assert!(advice.contains(costs), "{advice}");
    }

    #[test]
    fn converges_to_the_true_scale_for_even_and_uneven_parts() {
        for sizes in [&[4, 4, 4, 4][..], &[3, 13], &[7, 3, 5, 1], &[8, 8]] {
            for truth in [4.0f64, 9.0] {
                let found = trained(sizes, truth.sqrt(), 2000).estimate().expect("steps");
                let (low, high) = (found.low.expect("many"), found.high.expect("bounded"));
                // One 95 % interval in twenty misses the truth; accept a miss by up to the interval's width.
                let width = high - low;
                assert!(low - width < truth && truth < high + width, "{sizes:?}: {truth} in {low}..{high}");
                assert!(width < truth, "{sizes:?}: {truth} in {low}..{high}");
                let value = found.value.expect("a gradient");
                assert!((value / truth - 1.0).abs() < 0.25, "{sizes:?}: {value} instead of {truth}");
                assert!((found.batch - f64::from(sizes.iter().sum::<u32>())).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn intervals_cover_the_truth_about_as_often_as_they_say() {
        let mut normal = Normal(3);
        let covered = (0..200)
            .filter(|_| {
                let mut scale = NoiseScale::default();
                (0..60).for_each(|_| assert!(scale.step(&step(&mut normal, &[4, 4], 2.0))));
                let found = scale.estimate().expect("steps");
                found.low.is_some_and(|low| low <= 4.0) && found.high.is_none_or(|high| high >= 4.0)
            })
            .count();
        assert!((180..=199).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn undivided_steps_give_nothing_and_say_so() {
        let mut scale = NoiseScale::default();
        assert!(scale.advice("SGD", "samples").contains("no optimizer step"));
        assert!(!scale.step(&NoiseSample { parts: vec![(8.0, 3.0)], whole: 3.0 }));
        // A micro-batch of weight zero is not a second batch size.
        assert!(!scale.step(&NoiseSample { parts: vec![(8.0, 3.0), (0.0, 0.0)], whole: 3.0 }));
        assert_eq!((scale.estimate(), scale.undivided(), scale.estimates()), (None, 2, 0));
        assert!(scale.advice("SGD", "samples").contains("single micro-batch"));
    }

    #[test]
    fn gradients_that_overflowed_do_not_spoil_the_averages() {
        let mut scale = trained(&[4, 4], 1.0, 20);
        let before = scale.estimate();
        assert!(!scale.step(&NoiseSample { parts: vec![(4.0, f64::INFINITY), (4.0, 1.0)], whole: f64::NAN }));
        assert_eq!(scale.estimate(), before);
        let mut none = NoiseScale::default();
        assert!(!none.step(&NoiseSample { parts: vec![(4.0, f64::NAN), (4.0, 1.0)], whole: 1.0 }));
        assert!(none.advice("SGD", "samples").contains("not finite"));
    }

    #[test]
    fn says_on_which_side_the_batch_is() {
        let small = trained(&[1, 1], 8.0, 3000).advice("AdamW", "samples");
        assert!(small.contains("smaller than the noise scale") && small.contains("square root"), "{small}");
        let large = trained(&[40, 40], 0.5, 300).advice("SGD", "tokens");
        assert!(large.contains("larger than the noise scale") && large.contains("same factor"), "{large}");
        assert!(large.contains("80.0 tokens"), "{large}");
        let alike = trained(&[8, 8], 4.0, 2000).advice("Muon", "samples");
        assert!(alike.contains("of the order"), "{alike}");
        // B = N: half the batch takes 1.5 times the steps and 0.75 times the samples.
        assert!(alike.contains("1.5") && alike.contains("0.7"), "{alike}");
        let few = trained(&[8, 8], 4.0, 9).advice("SGD", "samples");
        assert!(few.starts_with("9 of the 10"), "{few}");
    }

    #[test]
    fn a_gradient_lost_in_noise_has_a_lower_bound_only() {
        let (mut normal, mut scale) = (Normal(5), NoiseScale::default());
        for _ in 0..40 {
            let one = step(&mut normal, &[1, 1], 100.0);
            scale.step(&one);
        }
        let found = scale.estimate().expect("steps");
        assert_eq!(found.high, None);
        assert!(found.low.is_some_and(|low| low > 5.0), "{found:?}");
        let advice = scale.advice("SGD", "samples");
        assert!(advice.contains("smaller than the noise scale") && !advice.contains("modelled"), "{advice}");
        // If the batch may be larger than the noise scale, no advice is possible.
        let mut unclear = NoiseScale::default();
        (0..12).for_each(|_| assert!(unclear.step(&step(&mut normal, &[8, 8], 40.0))));
        let advice = unclear.advice("SGD", "samples");
        assert!(advice.contains("cannot be distinguished from noise"), "{advice}");
    }
}

//! Counter-based random numbers: functions of a key without state, so that the order of threads cannot change
//! them.

/// Random stream for a key: (seed, epoch, index) and a purpose.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    key: u64,
    count: u64,
}

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scatters.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Stream {
    /// Creates the stream of a key.
    pub(crate) fn new(place: &[u64]) -> Self {
        let key = place.iter().fold(GOLDEN, |key, part| mix(key ^ mix(part.wrapping_add(GOLDEN))));
        Self { key, count: 0 }
    }

    /// Next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.count += 1;
        mix(self.key.wrapping_add(self.count.wrapping_mul(GOLDEN)))
    }

    /// Uniform number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform number between two bounds.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform integer in `0..count`; 0 if `count` is 0.
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(count)) >> 64) as u32
    }
}

/// Shuffle of `0..count` whose elements are computed individually; nothing is stored.
///
/// A Feistel network over the next power of four, with cycle walking until the result is inside (Black and
/// Rogaway 2002).
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    count: u64,
    half: u32,
    keys: [u64; 6],
}

impl Shuffle {
    /// Creates the shuffle of a key.
    pub(crate) fn new(count: u64, place: &[u64]) -> Self {
        let bits = (64 - count.saturating_sub(1).leading_zeros()).max(2);
        let mut stream = Stream::new(place);
        Self { count, half: bits.div_ceil(2), keys: std::array::from_fn(|_| stream.bits()) }
    }

    /// Element at a position.
    pub(crate) fn element(&self, position: u64) -> u64 {
        let mut value = position;
        loop {
            value = self.permute(value);
            if value < self.count {
                return value;
            }
        }
    }

    fn permute(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half) - 1;
        let (mut left, mut right) = (value >> self.half & mask, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shuffle_names_each_once(count in 1_u64..2000, seed: u64, epoch: u64) {
            let shuffle = Shuffle::new(count, &[seed, epoch]);
            let mut seen: Vec<u64> = (0..count).map(|position| shuffle.element(position)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn numbers_stay_in_their_range(place: [u64; 3], count in 1_u32..1000) {
            let mut stream = Stream::new(&place);
            for _ in 0..100 {
                prop_assert!(stream.below(count) < count);
                prop_assert!((0.0..1.0).contains(&stream.unit()));
            }
        }
    }

    /// Distribution of the positions of 100 over many shuffles, which must be uniform.
    #[test]
    fn a_shuffle_favours_no_place() {
        let rounds = 4000_u64;
        let mut seen = vec![[0_u32; 100]; 3];
        for epoch in 0..rounds {
            let shuffle = Shuffle::new(100, &[1, epoch]);
            for (position, counts) in [0, 50, 99].into_iter().zip(&mut seen) {
                counts[shuffle.element(position) as usize] += 1;
            }
        }
        for counts in seen {
            let expected = rounds as f64 / 100.0;
            let chi: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
            // With 99 degrees of freedom, 160 is exceeded by chance once in ten thousand times.
            assert!(chi < 160.0, "chi squared {chi}");
        }
    }

    #[test]
    fn neighbours_in_a_shuffle_are_no_neighbours_before() {
        let shuffle = Shuffle::new(1 << 20, &[7, 0]);
        let close =
            (0..10_000).filter(|&at| shuffle.element(at).abs_diff(shuffle.element(at + 1)) < 1000).count();
        // The expected number is about 19 of 10,000.
        assert!(close < 60, "{close} neighbours lie close together");
    }
}

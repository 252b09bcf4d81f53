//! Numbers that are functions of where they are asked for: no state, so no order of threads can change them.

/// A stream of numbers for one place: (seed, epoch, index) and whatever else makes it one.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    key: u64,
    count: u64,
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scatters.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Stream {
    /// The stream of a place.
    pub(crate) fn new(place: &[u64]) -> Self {
        let key = place.iter().fold(GOLDEN, |key, part| mix(key ^ mix(part.wrapping_add(GOLDEN))));
        Self { key, count: 0 }
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.count += 1;
        mix(self.key.wrapping_add(self.count.wrapping_mul(GOLDEN)))
    }

    /// Evenly from 0 to 1, 1 excluded.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Evenly between two numbers.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Evenly from 0 to `count`, excluded; 0 if there is no choice.
    pub(crate) fn below(&mut self, count: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(count)) >> 64) as u32
    }
}

/// A shuffle of `0..count` in which each place is computed on its own: nothing is stored.
///
/// A Feistel network over the next power of four, walked until it lands inside (Black and Rogaway 2002).
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    count: u64,
    half: u32,
    keys: [u64; 6],
}

impl Shuffle {
    /// The shuffle of a place.
    pub(crate) fn new(count: u64, place: &[u64]) -> Self {
        let bits = (64 - count.saturating_sub(1).leading_zeros()).max(2);
        let mut stream = Stream::new(place);
        Self { count, half: bits.div_ceil(2), keys: std::array::from_fn(|_| stream.bits()) }
    }

    /// What stands at a position.
    pub(crate) fn at(&self, position: u64) -> u64 {
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
            let mut seen: Vec<u64> = (0..count).map(|position| shuffle.at(position)).collect();
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

    /// Where 100 come to stand over many shuffles: each place about as often as any other.
    #[test]
    fn a_shuffle_favours_no_place() {
        let rounds = 4000_u64;
        let mut seen = vec![[0_u32; 100]; 3];
        for epoch in 0..rounds {
            let shuffle = Shuffle::new(100, &[1, epoch]);
            for (position, counts) in [0, 50, 99].into_iter().zip(&mut seen) {
                counts[shuffle.at(position) as usize] += 1;
            }
        }
        for counts in seen {
            let expected = rounds as f64 / 100.0;
            let chi: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
            // 99 degrees of freedom: 160 is passed by chance once in ten thousand times.
            assert!(chi < 160.0, "chi squared {chi}");
        }
    }

    #[test]
    fn neighbours_in_a_shuffle_are_no_neighbours_before() {
        let shuffle = Shuffle::new(1 << 20, &[7, 0]);
        let close = (0..10_000).filter(|&at| shuffle.at(at).abs_diff(shuffle.at(at + 1)) < 1000).count();
        // By chance about 19 of 10,000.
        assert!(close < 60, "{close} neighbours lie close together");
    }
}

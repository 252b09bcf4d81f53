//! Levels of detail for curves: bounds of each category over ranges of ticks, and the composition at each
//! range's peak.

use memfit_vocabulary::Category;

use crate::columns::Columns;

/// Number of curves: one for each category. Together they are the reserved bytes.
pub const SERIES: usize = Category::ALL.len();
/// Ticks in a bin of the finest level. For shorter ranges, the page adds up blocks itself.
pub const FINEST: u32 = 64;
/// Bins of one level in a bin of the next.
pub const FANOUT: usize = 4;
/// Number of bins below which no coarser level is made.
const MIN_BINS: usize = 512;
/// Bins in one section.
const SECTION_BINS: usize = 2048;

/// Index of a category's curve.
pub(crate) const fn series(category: Category) -> usize {
    category.code() as usize - 1
}

/// Range of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// First tick of the maximum of the allocated bytes.
    pub peak: u32,
    /// Bytes of each category at that tick.
    pub at_peak: [u64; SERIES],
    /// Minimum of each category.
    pub low: [u64; SERIES],
    /// Maximum of each category.
    pub high: [u64; SERIES],
    /// Minimum and maximum of the allocated bytes.
    pub allocated: (u64, u64),
    /// Minimum and maximum of the reserved bytes.
    pub reserved: (u64, u64),
}

impl Bin {
    fn from_values(tick: u32, values: [u64; SERIES]) -> Self {
        let reserved: u64 = values.iter().sum();
        let allocated = reserved - values[series(Category::Fragmentation)];
        Self {
            peak: tick,
            at_peak: values,
            low: values,
            high: values,
            allocated: (allocated, allocated),
            reserved: (reserved, reserved),
        }
    }

    /// Merges a later range.
    fn join(&mut self, later: &Self) {
        if later.allocated.1 > self.allocated.1 {
            self.peak = later.peak;
            self.at_peak = later.at_peak;
        }
        for place in 0..SERIES {
            self.low[place] = self.low[place].min(later.low[place]);
            self.high[place] = self.high[place].max(later.high[place]);
        }
        let widen = |one: &mut (u64, u64), other: (u64, u64)| *one = (one.0.min(other.0), one.1.max(other.1));
        widen(&mut self.allocated, later.allocated);
        widen(&mut self.reserved, later.reserved);
    }
}

/// All levels, the finest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    levels: Vec<Vec<Bin>>,
    ticks: u32,
}

impl Envelope {
    /// Adds the next tick's bytes by category. [`Self::finish`] builds the levels.
    pub fn push(&mut self, values: [u64; SERIES]) {
        if self.levels.is_empty() {
            self.levels.push(Vec::new());
        }
        let bin = Bin::from_values(self.ticks, values);
        let finest = &mut self.levels[0];
        match finest.last_mut() {
            Some(last) if !self.ticks.is_multiple_of(FINEST) => last.join(&bin),
            _ => finest.push(bin),
        }
        self.ticks += 1;
    }

    /// Builds the coarser levels.
    pub fn finish(&mut self) {
        self.levels.truncate(1);
        while let Some(finer) = self.levels.last().filter(|level| level.len() > MIN_BINS) {
            let coarser = finer.chunks(FANOUT).filter_map(|bins| {
                let (first, others) = bins.split_first()?;
                let mut bin = *first;
                for other in others {
                    bin.join(other);
                }
                Some(bin)
            });
            let coarser = coarser.collect();
            self.levels.push(coarser);
        }
    }

    /// Levels, the finest first. A bin of level `n` has `FINEST * FANOUT.pow(n)` ticks.
    pub fn levels(&self) -> &[Vec<Bin>] {
        &self.levels
    }

    /// Number of ticks.
    pub fn ticks(&self) -> u32 {
        self.ticks
    }

    /// All ticks as one bin.
    pub fn whole(&self) -> Option<Bin> {
        let (first, others) = self.levels.last()?.split_first()?;
        let mut whole = *first;
        for other in others {
            whole.join(other);
        }
        Some(whole)
    }

    /// Categories whose curves are ever nonzero.
    pub fn categories(&self) -> Vec<Category> {
        let high = self.whole().map_or([0; SERIES], |whole| whole.high);
        Category::ALL.iter().copied().filter(|category| high[series(*category)] > 0).collect()
    }

    /// Sections of a level: each contains consecutive bins with the curves of `categories`.
    pub(crate) fn sections(&self, level: usize, categories: &[Category]) -> Vec<(usize, Vec<u8>)> {
        let bins = self.levels.get(level).map_or(&[][..], Vec::as_slice);
        bins.chunks(SECTION_BINS).map(|bins| (bins.len(), section(bins, categories))).collect()
    }
}

fn section(bins: &[Bin], categories: &[Category]) -> Vec<u8> {
    let mut columns = Columns::default();
    columns.deltas(bins.iter().map(|bin| u64::from(bin.peak)));
    for place in categories.iter().copied().map(series) {
        columns.deltas(bins.iter().map(|bin| bin.at_peak[place]));
        columns.deltas(bins.iter().map(|bin| bin.low[place]));
        columns.deltas(bins.iter().map(|bin| bin.high[place]));
    }
    columns.deltas(bins.iter().map(|bin| bin.allocated.0));
    columns.deltas(bins.iter().map(|bin| bin.reserved.0));
    columns.deltas(bins.iter().map(|bin| bin.reserved.1));
    columns.pack()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::columns::reading::Reader;

    fn envelope(values: &[[u64; SERIES]]) -> Envelope {
        let mut envelope = Envelope::default();
        for value in values {
            envelope.push(*value);
        }
        envelope.finish();
        envelope
    }

    /// Curves that are long enough for three levels, generated from a few numbers.
    fn curves() -> impl Strategy<Value = Vec<[u64; SERIES]>> {
        let step = (0..SERIES, 0..1_000_000_u64, 1..400_usize);
        proptest::collection::vec(step, 1..700).prop_map(|steps| {
            let mut values = [0; SERIES];
            let mut curves = Vec::new();
            for (place, bytes, ticks) in steps {
                values[place] = bytes;
                curves.extend(std::iter::repeat_n(values, ticks));
            }
            curves
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_level_bounds_the_true_curves_and_its_peaks_are_true(curves in curves()) {
            let envelope = envelope(&curves);
            prop_assert_eq!(envelope.ticks() as usize, curves.len());
            let allocated = |values: &[u64; SERIES]| -> u64 {
                values.iter().sum::<u64>() - values[series(Category::Fragmentation)]
            };
            let mut width = FINEST as usize;
            for level in envelope.levels() {
                prop_assert_eq!(level.len(), curves.len().div_ceil(width));
                for (bin, ticks) in level.iter().zip(curves.chunks(width)) {
                    for place in 0..SERIES {
                        let of_place = ticks.iter().map(|values| values[place]);
                        prop_assert_eq!(of_place.clone().min(), Some(bin.low[place]));
                        prop_assert_eq!(of_place.max(), Some(bin.high[place]));
                    }
                    prop_assert_eq!(curves[bin.peak as usize], bin.at_peak);
                    prop_assert_eq!(ticks.iter().map(allocated).max(), Some(bin.allocated.1));
                    prop_assert_eq!(ticks.iter().map(allocated).min(), Some(bin.allocated.0));
                    let reserved = ticks.iter().map(|values| values.iter().sum::<u64>());
                    prop_assert_eq!(reserved.clone().max(), Some(bin.reserved.1));
                    prop_assert_eq!(reserved.min(), Some(bin.reserved.0));
                    // The composition at a peak sums to the allocated bytes.
                    prop_assert_eq!(allocated(&bin.at_peak), bin.allocated.1);
                }
                width *= FANOUT;
            }
        }
    }

    #[test]
    fn the_peak_is_the_first_of_equals_on_every_level() {
        let mut curves = vec![[1; SERIES]; 200_000];
        curves[70_000][0] = 9;
        curves[70_001][0] = 9;
        curves[150_000][0] = 9;
        assert_eq!(envelope(&curves).whole().map(|whole| whole.peak), Some(70_000));
    }

    #[test]
    fn a_section_has_the_curves_that_were_asked_for() {
        let mut curves = vec![[0; SERIES]; 1000];
        curves[5][series(Category::Gradients)] = 7;
        let envelope = envelope(&curves);
        assert_eq!(envelope.categories(), [Category::Gradients]);
        let sections = envelope.sections(0, &envelope.categories());
        let [(bins, section)] = &sections[..] else { panic!("one section") };
        assert_eq!(*bins, 16);
        let mut reader = Reader::new(section);
        assert_eq!(reader.deltas(16)[0], 5);
        assert_eq!(reader.deltas(16)[..2], [7, 0]);
        assert_eq!(reader.deltas(16)[..2], [0, 0]);
        assert_eq!(reader.deltas(16)[..2], [7, 0]);
    }

    #[test]
    fn nothing_has_no_levels() {
        let mut nothing = Envelope::default();
        nothing.finish();
        assert_eq!((nothing.whole(), nothing.categories()), (None, Vec::new()));
    }
}

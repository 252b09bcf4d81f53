//! `length-buckets`: batches of samples of similar length, to reduce padding.
//!
//! The largest batch stays as large, so it saves no memory; the composition of batches changes, so training
//! results change. The savings in computation follow from the lengths of the data set.

/// Share of padding in batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Padding {
    /// With random batches.
    pub random_batches: f64,
    /// With batches of samples of similar length.
    pub bucketed: f64,
}

/// Computes the padding of a data set. Returns `None` if no batch has several samples of known length.
pub fn padding(lengths: &[u64], batch: u64) -> Option<Padding> {
    let batch = usize::try_from(batch).ok().filter(|batch| *batch > 1)?;
    let mut sorted: Vec<u64> = lengths.iter().copied().filter(|length| *length > 0).collect();
    if sorted.len() < batch {
        return None;
    }
    sorted.sort_unstable();
    let mean = sorted.iter().map(|length| *length as f64).sum::<f64>() / sorted.len() as f64;
    let full_batches = sorted.chunks(batch).filter(|chunk| chunk.len() == batch);
    let longest: Vec<f64> =
        full_batches.filter_map(|chunk| chunk.last()).map(|length| *length as f64).collect();
    let mean_longest = longest.iter().sum::<f64>() / longest.len() as f64;
    // Mean over full batches only, since their longest samples are known.
    let full = &sorted[..longest.len() * batch];
    let full_mean = full.iter().map(|length| *length as f64).sum::<f64>() / full.len() as f64;
    Some(Padding {
        random_batches: 1.0 - mean / expected_longest(&sorted, batch),
        bucketed: 1.0 - full_mean / mean_longest,
    })
}

/// Computes the expected length of the longest of `batch` random samples.
fn expected_longest(sorted: &[u64], batch: usize) -> f64 {
    let (count, batch) = (sorted.len() as f64, batch as f64);
    // Cumulative probability: no sample is longer than the one at `index`. Assumes sampling with replacement,
    // which is accurate enough for many samples.
    let cumulative = |index: usize| ((index + 1) as f64 / count).powf(batch);
    let mut previous = 0.0;
    let mut expected = 0.0;
    for (index, length) in sorted.iter().enumerate() {
        let probability = cumulative(index);
        expected += *length as f64 * (probability - previous);
        previous = probability;
    }
    expected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_padded_to_the_longest_of_their_batch() {
        // Half are ten times as long as the others: nearly every random batch contains a long one.
        let lengths: Vec<u64> = (0..200).map(|index| if index % 2 == 0 { 10 } else { 100 }).collect();
        let found = padding(&lengths, 10).unwrap();
        assert!((found.random_batches - 0.45).abs() < 0.01, "{found:?}");
        assert!(found.bucketed.abs() < 1e-9, "{found:?}");
        assert_eq!(padding(&lengths, 1), None);
        assert_eq!(padding(&[5, 6], 8), None);
        // One batch of all of them: its longest has 10, the mean is 7.
        let one = padding(&[5, 10, 6, 7, 0], 4).unwrap();
        assert!((one.bucketed - 0.3).abs() < 1e-9, "{one:?}");
        assert_eq!(padding(&[5, 10, 6, 0], 4), None, "an unknown length is no sample");
        let alike = padding(&[7; 64], 8).unwrap();
        assert!(alike.random_batches.abs() < 1e-9 && alike.bucketed.abs() < 1e-9);
    }
}

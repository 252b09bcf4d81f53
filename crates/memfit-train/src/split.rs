//! Splitting of a batch into micro-batches.

use std::ops::Range;

/// Samples of a micro-batch.
pub type Part = Range<usize>;

/// Splits `items` samples into parts of `most`, of which the last may be shorter.
///
/// All other parts have one size, so that compiled models and cuDNN see one shape.
pub fn split(items: usize, most: usize) -> Vec<Part> {
    let most = most.max(1);
    (0..items).step_by(most).map(|start| start..(start + most).min(items)).collect()
}

/// Leaves no single sample at the end if the part before can give one.
pub(crate) fn pair_the_last(parts: &mut [Part]) {
    if let [.., before, last] = parts
        && last.len() == 1
        && before.len() > 2
    {
        before.end -= 1;
        last.start -= 1;
    }
}

/// Number of samples of the next part of `left`, where `most` were intended: at least two, and never all but
/// one of them.
pub(crate) fn in_pairs(left: usize, most: usize) -> usize {
    let most = most.max(2).min(left);
    match left - most {
        1 if most > 2 => most - 1,
        1 => left,
        _ => most,
    }
}

/// Splits samples of different sizes into parts of at most `most` samples with a padded cost (the largest
/// cost times the length) of at most `budget`. A sample that exceeds the budget forms a part alone.
pub fn split_by_cost(costs: &[u64], most: usize, budget: u64) -> Vec<Part> {
    let most = most.max(1);
    let mut parts = Vec::new();
    let mut start = 0;
    let mut largest = 0;
    for (index, &cost) in costs.iter().enumerate() {
        let length = index - start;
        let widest = largest.max(cost);
        let padded = widest.saturating_mul(length as u64 + 1);
        if length > 0 && (length == most || padded > budget) {
            parts.push(start..index);
            start = index;
            largest = cost;
        } else {
            largest = widest;
        }
    }
    if start < costs.len() {
        parts.push(start..costs.len());
    }
    parts
}

/// Next batch size to try after `failed` samples of a global batch of `total` did not fit: its largest
/// divisor of at most half, so that gradient accumulation over whole micro-batches keeps the global batch.
/// `None` if there is none.
pub fn smaller_micro_batch(total: u32, failed: u32) -> Option<u32> {
    (1..=failed / 2).rev().find(|size| total.is_multiple_of(*size))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_part_may_be_shorter() {
        assert_eq!(split(10, 4), [0..4, 4..8, 8..10]);
        assert_eq!(split(8, 4), [0..4, 4..8]);
        assert_eq!(split(3, 100).len(), 1);
        assert!(split(0, 4).is_empty());
    }

    #[test]
    fn the_last_sample_is_paired() {
        for (mut parts, paired) in [
            (split(9, 4), vec![0..4, 4..7, 7..9]),
            (split(5, 2), vec![0..2, 2..4, 4..5]),
            (split(1, 4), split(1, 4)),
            (split(8, 4), split(8, 4)),
        ] {
            pair_the_last(&mut parts);
            assert_eq!(parts, paired);
        }
    }

    #[test]
    fn a_long_sample_goes_alone() {
        assert_eq!(split_by_cost(&[1, 1, 50, 1, 1], 4, 10), [0..2, 2..3, 3..5]);
        assert_eq!(split_by_cost(&[5, 5, 5, 5], 4, 10), [0..2, 2..4]);
        assert_eq!(split_by_cost(&[1; 6], 4, u64::MAX), [0..4, 4..6]);
    }

    proptest! {
        #[test]
        fn parts_in_pairs_leave_none_alone(items in 2usize..200, most in prop::collection::vec(0usize..9, 200)) {
            let mut left = items;
            for most in most {
                if left == 0 {
                    break;
                }
                let size = in_pairs(left, most);
                prop_assert!((2..=left).contains(&size), "{size} of {left}");
                prop_assert!(size <= most.max(2) || size == 3);
                left -= size;
            }
            prop_assert_eq!(left, 0);
        }

        #[test]
        fn every_sample_is_in_one_part(items in 0usize..400, most in 0usize..50) {
            let parts = split(items, most);
            prop_assert_eq!(parts.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..items).collect::<Vec<_>>());
            prop_assert!(parts.iter().all(|part| (1..=most.max(1)).contains(&part.len())));
        }

        #[test]
        fn no_part_of_several_exceeds_the_budget(
            costs in prop::collection::vec(0u64..100, 0..60), most in 1usize..9, budget in 0u64..400,
        ) {
            let parts = split_by_cost(&costs, most, budget);
            prop_assert_eq!(parts.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..costs.len()).collect::<Vec<_>>());
            for part in parts {
                prop_assert!(!part.is_empty());
                let padded = costs[part.clone()].iter().max().copied().unwrap_or(0) * part.len() as u64;
                prop_assert!(part.len() == 1 || padded <= budget);
                prop_assert!(part.len() <= most);
            }
        }
    }

    #[test]
    fn smaller_micro_batches_divide_the_global_batch() {
        assert_eq!(smaller_micro_batch(128, 128), Some(64));
        assert_eq!(smaller_micro_batch(48, 48), Some(24));
        assert_eq!(smaller_micro_batch(36, 9), Some(4));
        assert_eq!(smaller_micro_batch(7, 7), Some(1));
        assert_eq!(smaller_micro_batch(7, 1), None);
        assert_eq!(smaller_micro_batch(0, 0), None);
    }
}

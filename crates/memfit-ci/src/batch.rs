//! Search for the largest batch that fits.

/// Maximum batch size that is tried.
const MAX_BATCH: u64 = 1 << 24;
/// Reciprocal of the relative precision of the result.
const PRECISION_DIVISOR: u64 = 16;

/// Finds the largest batch size that `fits`, with a relative precision of 1/16: doubles from `start`, then
/// bisects. Returns `None` if not even a batch of one fits. The result is always a size that was tried.
pub fn largest_batch<E>(start: u64, mut fits: impl FnMut(u64) -> Result<bool, E>) -> Result<Option<u64>, E> {
    let start = start.clamp(1, MAX_BATCH);
    let (mut low, mut high) = if fits(start)? { (start, None) } else { (0, Some(start)) };
    while high.is_none() && low < MAX_BATCH {
        let next = (low * 2).min(MAX_BATCH);
        if fits(next)? { low = next } else { high = Some(next) }
    }
    let Some(mut high) = high else { return Ok(Some(low)) };
    while high - low > (low / PRECISION_DIVISOR).max(1) {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok((low > 0).then_some(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(start: u64, limit: u64) -> (Option<u64>, usize) {
        let mut tried = Vec::new();
        let found = largest_batch(start, |batch| {
            tried.push(batch);
            Ok::<_, ()>(batch <= limit)
        });
        let found = found.unwrap();
        assert!(found.is_none_or(|found| tried.contains(&found)), "a result that was not tried");
        (found, tried.len())
    }

    #[test]
    fn small_batches_are_exact_and_large_ones_to_a_sixteenth() {
        for limit in 1..40 {
            for start in [1, 3, 8, 64] {
                let (found, _) = search(start, limit);
                assert!(found.is_some_and(|found| found <= limit && limit - found <= found / 16), "{limit}");
            }
        }
        let (found, runs) = search(32, 1000);
        assert!(found.is_some_and(|found| (941..=1000).contains(&found)), "{found:?}");
        assert!(runs <= 11, "{runs} runs");
        assert_eq!(search(8, 0).0, None);
        assert_eq!(search(0, 0).0, None);
        assert_eq!(search(1, u64::MAX).0, Some(MAX_BATCH));
    }

    #[test]
    fn a_run_that_fails_ends_the_search() {
        assert_eq!(largest_batch(4, |batch| if batch > 8 { Err(batch) } else { Ok(true) }), Err(16));
    }
}

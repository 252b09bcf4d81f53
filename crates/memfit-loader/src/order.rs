//! Order of samples, as a function of (seed, epoch, position). It does not depend on the number of threads or
//! processes.

use crate::LoaderError;
use crate::random::Shuffle;

/// Tag that separates random streams for different purposes.
const ORDER: u64 = 0x006f_7264_6572;

/// Samples of one epoch for one of several ranks.
///
/// The position in an epoch is the number of samples that all ranks together have processed (`start`): a
/// different number of ranks can resume there with the same remaining samples.
#[derive(Clone, Debug)]
pub struct Order {
    count: u64,
    shuffle: Option<Shuffle>,
    batch: u64,
    drop_last: bool,
    rank: u64,
    world: u64,
    start: u64,
    /// Samples from `start` on for all ranks, including the padding duplicates.
    total: u64,
}

/// Parameters of an epoch.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Number of samples.
    pub count: u64,
    /// Seed of random choices.
    pub seed: u64,
    /// Epoch number.
    pub epoch: u64,
    /// `true` to shuffle each epoch, `false` for the order of the source.
    pub shuffle: bool,
    /// Samples of a batch.
    pub batch: u64,
    /// `true` to drop a last incomplete batch, and samples that cannot be divided evenly among ranks.
    pub drop_last: bool,
    /// Rank of this process.
    pub rank: u64,
    /// Number of ranks.
    pub world: u64,
    /// Number of samples that all ranks together have processed in this epoch.
    pub start: u64,
}

impl Order {
    /// Computes the order of an epoch.
    pub fn new(pass: Pass) -> Result<Self, LoaderError> {
        let wrong = |text: String| Err(LoaderError::Settings(text));
        if pass.batch == 0 {
            return wrong("batch_size= has to be at least 1".to_owned());
        }
        if pass.world == 0 || pass.rank >= pass.world {
            return wrong(format!("rank {} does not exist in a world of {}", pass.rank, pass.world));
        }
        if pass.start > pass.count {
            return wrong(format!(
                "the state is of a pass that had {} samples, and there are {}; was the data changed?",
                pass.start, pass.count
            ));
        }
        let left = pass.count - pass.start;
        let total =
            if pass.drop_last { left / pass.world * pass.world } else { left.next_multiple_of(pass.world) };
        Ok(Self {
            count: pass.count,
            shuffle: (pass.shuffle && pass.count > 0)
                .then(|| Shuffle::new(pass.count, &[ORDER, pass.seed, pass.epoch])),
            batch: pass.batch,
            drop_last: pass.drop_last,
            rank: pass.rank,
            world: pass.world,
            start: pass.start,
            total,
        })
    }

    /// Number of batches of this rank.
    pub fn batches(&self) -> u64 {
        let own = self.total / self.world;
        if self.drop_last { own / self.batch } else { own.div_ceil(self.batch) }
    }

    /// Samples of one of its batches.
    pub fn batch(&self, number: u64) -> Vec<u64> {
        let own = self.total / self.world;
        let first = number * self.batch;
        (first..(first + self.batch).min(own)).map(|at| self.sample(at * self.world + self.rank)).collect()
    }

    /// Number of samples processed by all ranks together after `batches` batches of each.
    pub fn position(&self, batches: u64) -> u64 {
        // Padding duplicates come last and are not counted.
        (self.start + (batches * self.batch * self.world).min(self.total)).min(self.count)
    }

    fn sample(&self, at: u64) -> u64 {
        let position = (self.start + at) % self.count;
        self.shuffle.as_ref().map_or(position, |shuffle| shuffle.element(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pass(count: u64, batch: u64, rank: u64, world: u64, start: u64) -> Pass {
        Pass { count, seed: 5, epoch: 2, shuffle: true, batch, drop_last: false, rank, world, start }
    }

    fn all(pass: Pass) -> Vec<Vec<u64>> {
        let order = Order::new(pass).expect("a pass");
        (0..order.batches()).map(|number| order.batch(number)).collect()
    }

    /// Samples of all ranks in the order of processing.
    fn interleaved(count: u64, batch: u64, world: u64, start: u64, batches: Option<u64>) -> Vec<u64> {
        let orders: Vec<Order> = (0..world)
            .map(|rank| Order::new(pass(count, batch, rank, world, start)).expect("a pass"))
            .collect();
        let mut found = Vec::new();
        for number in 0..batches.unwrap_or(orders[0].batches()) {
            let parts: Vec<Vec<u64>> = orders.iter().map(|order| order.batch(number)).collect();
            for at in 0..parts[0].len() {
                found.extend(parts.iter().map(|part| part[at]));
            }
        }
        found
    }

    #[test]
    fn ranks_share_as_a_distributed_sampler_does() {
        // DistributedSampler(range(10), num_replicas=4, shuffle=False): the first two samples are duplicated.
        let plain = |rank| Pass { shuffle: false, ..pass(10, 3, rank, 4, 0) };
        assert_eq!(all(plain(0)), [vec![0, 4, 8]]);
        assert_eq!(all(plain(1)), [vec![1, 5, 9]]);
        assert_eq!(all(plain(2)), [vec![2, 6, 0]]);
        assert_eq!(all(plain(3)), [vec![3, 7, 1]]);
        let dropped = |rank| Pass { drop_last: true, batch: 2, ..plain(rank) };
        assert_eq!(all(dropped(3)), [vec![3, 7]]);
    }

    proptest! {
        #[test]
        fn every_sample_comes_once(count in 1_u64..300, batch in 1_u64..20) {
            let mut seen: Vec<u64> = all(pass(count, batch, 0, 1, 0)).concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn another_number_of_ranks_takes_over_anywhere(
            count in 1_u64..200, batch in 1_u64..9, world in 1_u64..5, after in 0_u64..40, other in 1_u64..5, size in 1_u64..9
        ) {
            let whole = all(pass(count, 1, 0, 1, 0)).concat();
            let order = Order::new(pass(count, batch, 0, world, 0)).expect("a pass");
            let after = after.min(order.batches());
            let mut found = interleaved(count, batch, world, 0, Some(after));
            let start = order.position(after);
            found.truncate(count as usize);
            prop_assert_eq!(found.len() as u64, start);
            found.extend(interleaved(count, size, other, start, None));
            found.truncate(count as usize);
            prop_assert_eq!(found, whole);
        }
    }
}

//! Which sample comes when: a function of (seed, epoch, position), whatever the number of threads and
//! processes.

use crate::LoaderError;
use crate::random::Shuffle;

/// What makes streams of numbers for different purposes different.
const ORDER: u64 = 0x006f_7264_6572;

/// The samples of one pass, as one rank of several gets them.
///
/// A pass is known by the samples that all ranks together have had (`start`): another number of ranks can
/// take over there, and what is left is the same.
#[derive(Clone, Debug)]
pub struct Order {
    count: u64,
    shuffle: Option<Shuffle>,
    batch: u64,
    drop_last: bool,
    rank: u64,
    world: u64,
    start: u64,
    /// Samples from `start` on, of all ranks, those that stand in twice included.
    total: u64,
}

/// What a pass is made of.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// How many samples there are.
    pub count: u64,
    /// What random choices depend on.
    pub seed: u64,
    /// The number of the pass.
    pub epoch: u64,
    /// In an order of its own each time, or as the source has them.
    pub shuffle: bool,
    /// Samples in a batch.
    pub batch: u64,
    /// Leave out a last batch that is not full, and samples that not every rank gets as many of.
    pub drop_last: bool,
    /// This process among those that share the samples.
    pub rank: u64,
    /// How many processes share them.
    pub world: u64,
    /// Samples that all ranks together have had in this pass.
    pub start: u64,
}

impl Order {
    /// The order of a pass.
    pub fn new(pass: Pass) -> Result<Self, LoaderError> {
        let wrong = |text: String| Err(LoaderError::Settings(text));
        if pass.batch == 0 {
            return wrong("batch_size= has to be at least 1".to_owned());
        }
        if pass.world == 0 || pass.rank >= pass.world {
            return wrong(format!("there is no rank {} of {}", pass.rank, pass.world));
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

    /// How many batches this rank gets.
    pub fn batches(&self) -> u64 {
        let own = self.total / self.world;
        if self.drop_last { own / self.batch } else { own.div_ceil(self.batch) }
    }

    /// The samples of one of its batches.
    pub fn batch(&self, number: u64) -> Vec<u64> {
        let own = self.total / self.world;
        let first = number * self.batch;
        (first..(first + self.batch).min(own)).map(|at| self.sample(at * self.world + self.rank)).collect()
    }

    /// The samples that all ranks together have had, once each has had so many batches of this order.
    pub fn position(&self, batches: u64) -> u64 {
        // What stands in twice comes last, and counts as nothing.
        (self.start + (batches * self.batch * self.world).min(self.total)).min(self.count)
    }

    fn sample(&self, at: u64) -> u64 {
        let position = (self.start + at) % self.count;
        self.shuffle.as_ref().map_or(position, |shuffle| shuffle.at(position))
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

    /// The samples of all ranks, in the order in which they are had.
    fn together(count: u64, batch: u64, world: u64, start: u64, batches: Option<u64>) -> Vec<u64> {
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
        // DistributedSampler(range(10), num_replicas=4, shuffle=False): the first two stand in twice.
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
            let mut found = together(count, batch, world, 0, Some(after));
            let start = order.position(after);
            found.truncate(count as usize);
            prop_assert_eq!(found.len() as u64, start);
            found.extend(together(count, size, other, start, None));
            found.truncate(count as usize);
            prop_assert_eq!(found, whole);
        }
    }
}

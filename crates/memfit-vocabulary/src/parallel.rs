//! Degrees of parallelism: how a training run is spread over several GPUs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Distribution of a training run over ranks, one per GPU. The number of ranks is the product of the degrees.
///
/// Ranks are numbered with the tensor-parallel ones as neighbours, then those of a sharding group, then the
/// replicas, so that the groups that communicate most share a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parallel {
    /// Copies of the model, each with its share of the batch (DDP; with `shard`, HSDP).
    pub replicate: u32,
    /// Ranks that share parameters, gradients and optimizer state, each with its share of the batch (FSDP2).
    pub shard: u32,
    /// Ranks that share the matrices of each layer and see the same samples.
    pub tensor: u32,
    /// Ranks that share each sequence.
    pub context: u32,
    /// Stages of consecutive layers.
    pub pipeline: u32,
    /// Schedule of the pipeline.
    pub schedule: Option<Schedule>,
    /// `true` if gathered parameters are freed after the forward pass and gathered again for the backward
    /// pass.
    pub reshard_after_forward: bool,
    /// `true` if the shards and the optimizer state are kept in host memory.
    pub offload: bool,
}

/// Schedule of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Schedule {
    /// One forward, one backward.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The same with several stages per rank.
    #[serde(rename = "interleaved-1f1b")]
    Interleaved,
}

impl Schedule {
    /// Name in plan files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved-1f1b",
        }
    }
}

impl Default for Parallel {
    fn default() -> Self {
        Self {
            replicate: 1,
            shard: 1,
            tensor: 1,
            context: 1,
            pipeline: 1,
            schedule: None,
            reshard_after_forward: true,
            offload: false,
        }
    }
}

impl Parallel {
    /// Number of ranks; saturates.
    pub fn world(&self) -> u32 {
        self.degrees().iter().fold(1, |world: u32, (_, degree)| world.saturating_mul(*degree))
    }

    /// Returns `true` if there is more than one rank.
    pub fn is_spread(&self) -> bool {
        self.world() > 1
    }

    /// Number of parts that each batch is divided into.
    pub const fn batches(&self) -> u32 {
        self.replicate.saturating_mul(self.shard)
    }

    /// A rank's share of this many samples, rounded down.
    pub fn share(&self, samples: u64) -> u64 {
        samples / u64::from(self.batches()).max(1)
    }

    /// All degrees by name, in the order of a plan file's table `[parallel]`.
    pub const fn degrees(&self) -> [(&'static str, u32); 5] {
        [
            ("replicate", self.replicate),
            ("shard", self.shard),
            ("tensor", self.tensor),
            ("context", self.context),
            ("pipeline", self.pipeline),
        ]
    }

    /// Reason why the degrees contradict each other; `None` if they do not.
    pub fn conflict(&self) -> Option<String> {
        if let Some((name, _)) = self.degrees().iter().find(|(_, degree)| *degree == 0) {
            return Some(format!("`{name} = 0` in [parallel] has to be at least 1"));
        }
        if self.offload && self.shard == 1 {
            return Some("`offload` in [parallel] needs `shard` to be at least 2".to_owned());
        }
        if self.schedule.is_some() && self.pipeline == 1 {
            return Some("`schedule` in [parallel] needs `pipeline` to be at least 2".to_owned());
        }
        None
    }

    /// PyTorch's name for the data-parallel part.
    pub const fn engine(&self) -> &'static str {
        match (self.replicate > 1, self.shard > 1) {
            (true, false) => "DDP",
            (false, true) => "FSDP2",
            (true, true) => "HSDP",
            (false, false) => "no data parallelism",
        }
    }
}

impl fmt::Display for Parallel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let degrees: Vec<String> = self
            .degrees()
            .iter()
            .filter(|(_, degree)| *degree > 1)
            .map(|(name, degree)| format!("{name} {degree}"))
            .collect();
        if degrees.is_empty() {
            return formatter.write_str("one GPU");
        }
        formatter.write_str(&degrees.join(" x "))?;
        if self.shard > 1 && !self.reshard_after_forward {
            formatter.write_str(", parameters kept for the backward pass")?;
        }
        if self.offload {
            formatter.write_str(", offloaded")?;
        }
        Ok(())
    }
}

/// Limit of a step's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Arithmetic.
    Compute,
    /// Memory bandwidth.
    Memory,
    /// Communication that does not overlap with other work.
    Communication,
    /// Waiting for other stages of a pipeline.
    Bubble,
}

impl Bound {
    /// Name in JSON and in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Communication => "communication",
            Self::Bubble => "bubble",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_multiply_and_contradictions_are_named() {
        let hybrid = Parallel { replicate: 4, shard: 8, ..Parallel::default() };
        assert_eq!((hybrid.world(), hybrid.batches(), hybrid.engine()), (32, 32, "HSDP"));
        assert_eq!((hybrid.share(64), hybrid.share(31)), (2, 0));
        assert_eq!(hybrid.to_string(), "replicate 4 x shard 8");
        assert_eq!(hybrid.conflict(), None);
        let tensor = Parallel { shard: 4, tensor: 2, reshard_after_forward: false, ..Parallel::default() };
        assert_eq!((tensor.world(), tensor.batches()), (8, 4));
        assert!(tensor.to_string().ends_with("kept for the backward pass"));
        for wrong in [
            Parallel { shard: 0, ..Parallel::default() },
            Parallel { replicate: 2, offload: true, ..Parallel::default() },
            Parallel { schedule: Some(Schedule::Interleaved), ..Parallel::default() },
        ] {
            assert!(wrong.conflict().is_some(), "{wrong:?}");
        }
        assert_eq!(Parallel { replicate: u32::MAX, shard: 9, ..Parallel::default() }.world(), u32::MAX);
    }
}

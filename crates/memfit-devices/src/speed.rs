//! How much of its peak a card achieves: what work really gets of the rates and bandwidths that its data
//! sheet names.

use serde::{Deserialize, Serialize};

/// A share of a peak in thousandths, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[u16; 3]", into = "[u16; 3]")]
pub struct Share {
    /// The least that was seen of work that should reach the peak.
    pub low: u16,
    /// The best single guess.
    pub typical: u16,
    /// The most that was seen.
    pub high: u16,
}

impl Share {
    /// The typical share as a factor.
    pub fn factor(self) -> f64 {
        f64::from(self.typical) / 1000.0
    }

    /// By which factors the time of work changes at the most and at the least that was seen.
    pub fn time_range(self) -> (f64, f64) {
        let over = |share: u16| f64::from(self.typical) / f64::from(share.max(1));
        (over(self.high), over(self.low))
    }
}

impl TryFrom<[u16; 3]> for Share {
    type Error = String;

    fn try_from([low, typical, high]: [u16; 3]) -> Result<Self, String> {
        if 0 < low && low <= typical && typical <= high && high <= 1500 {
            Ok(Self { low, typical, high })
        } else {
            Err(format!("[{low}, {typical}, {high}] are not three rising shares in thousandths"))
        }
    }
}

impl From<Share> for [u16; 3] {
    fn from(share: Share) -> Self {
        [share.low, share.typical, share.high]
    }
}

/// What a card achieves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Achieved {
    /// Of the rates of its tensor cores, in large products of matrices.
    pub tensor: Share,
    /// Of the rates of its ordinary cores, in the same.
    pub ordinary: Share,
    /// Of its memory's bandwidth, in long copies.
    pub memory: Share,
    /// Of the link to the host, from and to page-locked memory.
    pub host_link: Share,
    /// Of the link to the other cards, in collective operations.
    pub peer_link: Share,
    /// Bytes a second at which the driver moves pageable memory into its own page-locked buffers.
    pub staging: u64,
    /// Nanoseconds from one short kernel's start to the next one's, queued in one stream.
    pub launch_ns: u32,
    /// What was measured on the machine's own card, beside the shares.
    #[serde(default, skip_serializing_if = "Measured::is_nothing")]
    pub measured: Measured,
}

/// What a calibrated card was seen to do, where shares of a peak would not say it of each type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measured {
    /// Operations a second in large products of matrices, double precision.
    pub fp64: Option<u64>,
    /// Single precision.
    pub fp32: Option<u64>,
    /// TF32.
    pub tf32: Option<u64>,
    /// Half precision.
    pub fp16: Option<u64>,
    /// bfloat16.
    pub bf16: Option<u64>,
    /// 8-bit floating point.
    pub fp8: Option<u64>,
    /// 8-bit integers.
    pub int8: Option<u64>,
    /// Bytes a second between cards, in collective operations.
    pub peers: Option<u64>,
}

impl Measured {
    /// Whether nothing was measured.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

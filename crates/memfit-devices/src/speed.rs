//! Efficiency of a device: the shares of the rates and bandwidths on its data sheet that real work reaches.

use serde::{Deserialize, Serialize};

/// Share of a peak in thousandths, as an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[u16; 3]", into = "[u16; 3]")]
pub struct Share {
    /// Minimum observed for work that should reach the peak.
    pub low: u16,
    /// Typical share.
    pub typical: u16,
    /// Maximum observed.
    pub high: u16,
}

impl Share {
    /// Typical share as a factor.
    pub fn factor(self) -> f64 {
        f64::from(self.typical) / 1000.0
    }

    /// Factors of the typical duration at the maximum and the minimum share.
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

/// Efficiency of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Achieved {
    /// Share of the tensor cores' rates in large matrix products.
    pub tensor: Share,
    /// Share of the ordinary cores' rates in large matrix products.
    pub ordinary: Share,
    /// Share of the memory bandwidth in long copies.
    pub memory: Share,
    /// Share of the host link, to and from page-locked memory.
    pub host_link: Share,
    /// Share of the link to other devices, in collective operations.
    pub peer_link: Share,
    /// Bytes per second at which the driver copies pageable memory into its page-locked staging buffers.
    pub staging: u64,
    /// Nanoseconds from one short kernel's start to the next one's, queued in one stream.
    pub launch_ns: u32,
    /// Measurements on the machine's own device, besides the shares.
    #[serde(default, skip_serializing_if = "Measured::is_nothing")]
    pub measured: Measured,
}

/// Measurements on a calibrated device, if shares of a peak would not describe each type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measured {
    /// Double precision, in operations per second of large matrix products.
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
    /// Bytes per second between devices, in collective operations.
    pub peers: Option<u64>,
}

impl Measured {
    /// Returns `true` if there are no measurements.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

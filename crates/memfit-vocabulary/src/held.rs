//! Facts for the message that a step does not fit.

/// Device memory at the time when a single sample did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Parameters.
    pub parameters: u64,
    /// Trained parameters. At the end of the backward pass, their gradients have the same size.
    pub trained: u64,
    /// Optimizer state.
    pub states: u64,
    /// Activations and inputs of the sample at that time.
    pub sample: u64,
    /// Bytes of the failed request.
    pub missing: u64,
}

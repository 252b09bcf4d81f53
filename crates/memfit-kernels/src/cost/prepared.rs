//! Problems that one kernel prepares on the device for the next one.

use std::cell::Cell;

use super::gemm::Gemm;

/// The problem that a launch left for the next one on the same thread.
#[derive(Debug, Default)]
pub struct Prepared(Cell<Option<Gemm>>);

impl Prepared {
    /// Creates an empty slot.
    pub const fn new() -> Self {
        Self(Cell::new(None))
    }

    /// A copy, for estimates that must not use the problem up.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self(Cell::new(self.0.get()))
    }

    /// Stores a problem for the kernel that computes it.
    pub(crate) fn set(&self, problem: Option<Gemm>) {
        self.0.set(problem);
    }

    /// Takes the last prepared problem, which is used once.
    pub(crate) fn take(&self) -> Option<Gemm> {
        self.0.take()
    }
}

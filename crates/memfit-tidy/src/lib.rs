//! Tests that check the tree against the invariants of ARCHITECTURE.md; see `tests/`.

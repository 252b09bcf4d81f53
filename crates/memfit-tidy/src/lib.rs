//! Tests that hold the tree to the invariants of ARCHITECTURE.md; see `tests/`.

//! Holds the tree to the invariants of ARCHITECTURE.md. There is nothing here but tests: see `tests/`.

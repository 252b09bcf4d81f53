//! Every renderer, and the wire types with their schema versions.

//! The Recording: what an allocator did and for whom, and its file format.

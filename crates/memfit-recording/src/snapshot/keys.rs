//! Dictionary keys and values of snapshots, with fixed text ids.

use std::sync::LazyLock;

use crate::Texts;

macro_rules! words {
    ($($name:ident = $text:literal,)+) => {
        // Zero is the empty text.
        words!(@number 1_u32; $($name,)+);

        /// Returns interned texts that begin with these words, so that each has its fixed id.
        pub(super) fn texts() -> Texts {
            static TEXTS: LazyLock<Texts> = LazyLock::new(|| {
                // Extra capacity, so that a copy need not grow for a small file.
                let mut texts = Texts::with_capacity(4 * COUNT as usize);
                for word in [$($text),+] {
                    texts.intern(word);
                }
                texts
            });
            TEXTS.clone()
        }

    };
    (@number $next:expr; $name:ident, $($rest:ident,)*) => {
        pub(super) const $name: u32 = $next;
        words!(@number $name + 1; $($rest,)*);
    };
    (@number $next:expr;) => {
        /// Number of fixed ids.
        pub(super) const COUNT: u32 = $next;
    };
}

words! {
    // Frame keys.
    NAME = "name",
    FILENAME = "filename",
    LINE = "line",
    // Event keys.
    ACTION = "action",
    ADDR = "addr",
    SIZE = "size",
    STREAM = "stream",
    TIME_US = "time_us",
    FRAMES = "frames",
    FORWARD_FRAMES = "forward_frames",
    DEVICE_FREE = "device_free",
    USER_METADATA = "user_metadata",
    POOL_ID = "pool_id",
    CATEGORY = "category",
    // Block keys.
    STATE = "state",
    REQUESTED_SIZE = "requested_size",
    ADDRESS = "address",
    HISTORY = "history",
    REAL_SIZE = "real_size",
    // Segment keys.
    DEVICE = "device",
    TOTAL_SIZE = "total_size",
    SEGMENT_TYPE = "segment_type",
    SEGMENT_POOL_ID = "segment_pool_id",
    IS_EXPANDABLE = "is_expandable",
    BLOCKS = "blocks",
    // Annotation keys.
    STAGE = "stage",
    // Top-level keys.
    SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces",
    ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations",
    // Settings keys.
    CONF = "PYTORCH_CUDA_ALLOC_CONF",
    MAX_SPLIT_SIZE = "max_split_size",
    GC_THRESHOLD = "garbage_collection_threshold",
    EXPANDABLE_SEGMENTS = "expandable_segments",
    ROUNDUP = "roundup_power2_divisions",
    // Values.
    ALLOC = "alloc",
    FREE_REQUESTED = "free_requested",
    FREE_COMPLETED = "free_completed",
    SEGMENT_ALLOC = "segment_alloc",
    SEGMENT_FREE = "segment_free",
    SEGMENT_MAP = "segment_map",
    SEGMENT_UNMAP = "segment_unmap",
    SNAPSHOT = "snapshot",
    OOM = "oom",
    ANNOTATE = "annotate",
    ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_PENDING_FREE = "active_pending_free",
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
    INACTIVE = "inactive",
    SMALL = "small",
    LARGE = "large",
    START = "START",
    END = "END",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_numbers() {
        let texts = texts();
        assert_eq!(texts.get(crate::TextId(NAME)), "name");
        assert_eq!(texts.get(crate::TextId(END)), "END");
        assert_eq!(texts.len(), COUNT as usize);
        const { assert!(COUNT <= 64, "the set of a dict's keys is kept in 64 bits") };
    }
}

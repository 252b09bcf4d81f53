//! Everything that a report may have to confess beside refused calls and assumed values: each remark on how
//! true the figures are, with the words by which it is known and what it may change in bytes.
//!
//! The device counts remarks by name in the ledger, the probe and the command write sentences. Whoever
//! renders a report finds the entry of a remark by its words, and [`Confession::ALL`] is what the
//! documentation and its test list.

/// What a remark's matter may change in the peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: only who held the memory, or how long something took.
    None,
    /// As much as was booked for it: the true size may be anything up to about twice that.
    Booked,
    /// It is an upper bound: the true peak may be lower by as much as was booked.
    Bound,
    /// As much as the remark itself says.
    Said,
    /// Nothing bounds it.
    Unbounded,
}

impl Effect {
    /// As it is said.
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "changes no peak",
            Self::Booked => "may be off by as much as was booked for it",
            Self::Bound => "an upper bound: may be lower by as much as was booked for it",
            Self::Said => "as much as it says",
            Self::Unbounded => "nothing bounds what it changes",
        }
    }
}

/// A remark on how true the figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confession {
    /// A stable name for programs.
    pub id: &'static str,
    /// The words by which a remark is known: all of it, or a part that no other has.
    pub words: &'static str,
    /// What it may change.
    pub effect: Effect,
}

macro_rules! confessions {
    ($($(#[$doc:meta])* $constant:ident: $effect:ident, $id:literal = $words:literal;)*) => {
        impl Confession {
            $($(#[$doc])* pub const $constant: Self = Self { id: $id, words: $words, effect: Effect::$effect };)*
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$constant),*];
        }
    };
}

confessions! {
    // What the device counts.

    /// `cudnnFind…` times nothing.
    CUDNN_FIND: Booked, "cudnn-find" = "cudnnFindConvolution: ranked by heuristics";
    /// cuDNN before 9.8 cannot be asked for a card that is not there.
    CUDNN_LAYOUT: Booked, "cudnn-layout" = "cuDNN before 9.8: sizes by an assumed layout";
    /// cuDNN refuses the card's description.
    CUDNN_CARD: Unbounded, "cudnn-card" = "cuDNN: no heuristics for this card";
    /// cuFFT's areas.
    CUFFT: Booked, "cufft-areas" = "cuFFT: work areas by the guide's formula";
    /// CUPTI.
    CUPTI: None, "cupti" = "CUPTI: no activity of the device is recorded";
    /// cuSPARSE's buffers.
    CUSPARSE: Booked, "cusparse-buffers" = "cuSPARSE: buffers by formulas";
    /// How many entries a product of sparse matrices has.
    CUSPARSE_PRODUCT: Booked, "cusparse-product" = "cuSPARSE: a product's entries are estimated";
    /// How many entries a sum of sparse matrices has.
    CUSPARSE_SUM: Bound, "cusparse-sum" = "cuSPARSE: a sum's entries at their upper bound";
    /// cuSOLVER's workspaces.
    CUSOLVER: Booked, "cusolver-workspaces" = "cuSOLVER: workspaces by LAPACK's formulas";
    /// The size of a part of a communicator, where other ranks are not there to say.
    NCCL_SPLIT: None, "nccl-split" = "ncclCommSplit: size taken from the whole";
    /// Values that ranks give each other.
    RANKS_FULL: Unbounded, "ranks-full" = "ranks cannot exchange values: run directory full";
    /// A rank that did not come.
    RANK_SILENT: Unbounded, "rank-silent" = "a rank did not answer another: values guessed";

    // What the probe says.

    /// An extension with a runtime of its own.
    STATIC_RUNTIME: Unbounded, "static-runtime" = "was not loaded: it has a CUDA runtime of its own";
    /// Files that a dry run writes.
    CHECKPOINTS: None, "checkpoints" = "checkpoints were written to the run's own folder";
    /// A data set made up.
    SYNTHETIC_DATA: Unbounded, "synthetic-data" = "synthetic data: ";
    /// Weights made up.
    SYNTHETIC_WEIGHTS: None, "synthetic-weights" = "synthetic weights: ";
    /// A rank of many that is alone.
    LONE_RANK: Unbounded, "lone-rank" = "this process stood for rank";
    /// No loader to look into.
    NO_LOADER: Unbounded, "no-loader" = "the training uses no torch DataLoader";
    /// The largest batch could not be had.
    LARGEST_BATCH: Unbounded, "largest-batch" = "the largest batch ";
    /// Not all items were looked at.
    ALL_ALIKE: Unbounded, "all-alike" = "all items are taken to have one size";
    /// What fills the memory is not known.
    NO_WATCHER: None, "no-watcher" = "what fills the memory is not known";
    /// What tensors asked for is not known.
    NO_SIZES: None, "no-sizes" = "what tensors asked for is not known";
    /// Where memory ran out is not known.
    NO_PLACE: None, "no-place" = "where memory ran out is not known";
    /// The probe could not name something.
    PROBE_LABEL: None, "probe-label" = "the probe could not ";
    /// The probe failed somewhere.
    PROBE_FAILED: None, "probe-failed" = "the probe failed ";

    // What the command says.

    /// Lines that nobody understands.
    GARBLED: None, "garbled" = "messages of the script's processes that could not be understood";
    /// A log that was full.
    LOG_FULL: None, "log-full" = "the log of a process was full before its end";
    /// More names than the ledger counts.
    TALLY_FULL: Unbounded, "tally-full" = "more kinds of calls and values than are counted";
    /// Pieces of a batch that are alike.
    PIECES: None, "pieces" = "pieces of a batch no more than";
    /// A part of a plan that could not be done.
    PLAN: Unbounded, "plan" = "the plan's `";
    /// Ranks that stood still.
    STALLED: Unbounded, "stalled" = "some ranks made no progress";
    /// A part of what was to be covered was not.
    NOT_COVERED: Unbounded, "not-covered" = "full cover was asked for";
    /// A real card is only looked at now and then.
    SAMPLED: Unbounded, "sampled" = "on a real card the device peak";
    /// Of several real cards.
    FIRST_CARD: Unbounded, "first-card" = "only the machine's first card";
    /// Memory that waited for another stream.
    PENDING: Said, "pending" = "still waited for another stream";
    /// The clock was stopped.
    CLOCK_INSTANT: Unbounded, "clock-instant" = "the clock was stopped";
    /// The clock never ran by itself.
    CLOCK_NEVER: Unbounded, "clock-never" = "no work on the card counted as done";
    /// What lies outside the allocator.
    OUTSIDE: Said, "outside" = "what lies outside the allocator is modelled";
    /// What was measured on the machine's card.
    CALIBRATED: None, "calibrated" = "the card's memory, what lies outside the allocator, and its speeds: calibrated";
    /// What other programs hold.
    OTHER_PROCESSES: Said, "other-processes" = "other processes are ";
}

impl Confession {
    /// The entry of a remark: the first whose words it holds.
    pub fn of(remark: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|confession| remark.contains(confession.words))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::ledger::NAME_BYTES;

    #[test]
    fn each_is_known_by_its_own_words() {
        for (index, confession) in Confession::ALL.iter().enumerate() {
            assert_eq!(Confession::of(confession.words), Some(*confession), "{}", confession.id);
            assert!(Confession::ALL[..index].iter().all(|other| other.id != confession.id));
        }
        assert_eq!(Confession::of("something else"), None);
    }

    #[test]
    fn what_the_device_counts_fits_the_ledger() {
        let counted =
            Confession::ALL.iter().take_while(|confession| **confession != Confession::STATIC_RUNTIME);
        for confession in counted {
            assert!(confession.words.len() <= NAME_BYTES, "{}", confession.id);
        }
    }

    /// The page that lists them is theirs: `UPDATE_DOCS=1 cargo test -p memfit-channel` writes it.
    #[test]
    fn the_documentation_lists_each() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/confessions.md");
        let mut page = String::from(PAGE);
        for Confession { id, words, effect } in Confession::ALL {
            let _ = writeln!(page, "| `{id}` | {} | {} |", words.trim(), effect.words());
        }
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page, "docs/confessions.md is not up to date");
    }

    const PAGE: &str = "# What a report may have to confess

`fidelity` in the JSON of `memfit run` names every call that was refused (`unmodelled`), every value that was assumed
(`values`), and everything else that there is to know (`notes`). `fidelity.effects` has one entry for each of these, with what
it may change in the peaks: `bytes`, or `null` where nothing bounds it.

These are all the remarks that there are, by the words that each holds. A test holds this page to the table in the source
(`crates/memfit-channel/src/confession.rs`); `tests/python/test_confessions.py` makes them happen, or names the test that does.

| `id` | words | what it may change |
|---|---|---|
";
}

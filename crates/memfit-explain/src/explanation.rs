//! What an explanation consists of.

use memfit_patch::Change;
use memfit_vocabulary::{Cause, Label, Lever, Phase, Proof};

use crate::holders::Holder;

/// Why memory ran out, or what there is to know where it did not.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The device.
    pub device: u8,
    /// The cause.
    pub cause: Cause,
    /// What speaks for it, the strongest first.
    pub evidence: Vec<Fact>,
    /// The moment that is explained.
    pub moment: MomentFacts,
    /// Who held the memory then.
    pub holders: Vec<Holder>,
    /// What would have helped, the best first.
    pub fixes: Vec<Fix>,
    /// What each step leaves behind.
    pub leaks: Vec<LeakFacts>,
    /// How much is reserved and cannot be used.
    pub fragmentation: Fragmentation,
    /// The causes that were weighed, with what each accounts for.
    pub considered: Vec<Weighed>,
    /// What is not known.
    pub unknown: Vec<String>,
}

impl Explanation {
    /// Of a device on which nothing happened.
    pub fn of_nothing(device: u8) -> Self {
        Self {
            device,
            cause: Cause::None,
            evidence: Vec::new(),
            moment: MomentFacts::default(),
            holders: Vec::new(),
            fixes: Vec::new(),
            leaks: Vec::new(),
            fragmentation: Fragmentation::default(),
            considered: Vec::new(),
            unknown: Vec::new(),
        }
    }
}

/// Something that speaks for a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// A sentence.
    pub text: String,
    /// How many bytes it is about.
    pub bytes: u64,
    /// The lines of the user's code that it is about, innermost first.
    pub lines: Vec<Line>,
}

/// A line of the user's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The file, as it was recorded.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// What stands there, where the file is at hand.
    pub text: Option<String>,
}

/// The moment that is explained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MomentFacts {
    /// Its index in the track.
    pub moment: u32,
    /// The step that was under way, from 1.
    pub step: u64,
    /// The phase that was under way.
    pub phase: Option<Phase>,
    /// What could not be served.
    pub requested: Option<u64>,
    /// Bytes in blocks.
    pub allocated: u64,
    /// Bytes in segments.
    pub reserved: u64,
    /// What the allocator could get.
    pub limit: Option<u64>,
    /// What was missing: the request and what was in blocks, less what the allocator could get.
    pub missing: Option<u64>,
}

/// A remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// What is done.
    pub lever: Lever,
    /// The bytes that it would have saved at the moment that is explained.
    pub saves: u64,
    /// How to do it.
    pub how: String,
    /// How it is known.
    pub proof: Proof,
    /// Whether the recorded run would have gone on; nothing where that cannot be told.
    pub fits: Option<bool>,
    /// What can be applied as it is.
    pub apply: Apply,
}

impl Fix {
    /// How far the training stays the same. A recording does not show if a batch can be divided.
    pub const fn label(&self) -> Label {
        self.lever.label_unverified()
    }
}

/// What of a remedy can be applied as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apply {
    /// Nothing: it takes somebody who knows the program. The reason where a change of the source was
    /// refused, as a sentence without its end.
    ByHand(Option<String>),
    /// An environment variable and its value; an empty value takes it away.
    Environment(&'static str, String),
    /// A change of a source file.
    Edit(Change),
    /// A card on which the allocator can get so much.
    Card(u64),
}

impl Default for Apply {
    fn default() -> Self {
        Self::ByHand(None)
    }
}

/// What each step leaves behind, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakFacts {
    /// The line that asked for it.
    pub line: Option<Line>,
    /// The module that it was made in.
    pub module: Option<String>,
    /// What it is.
    pub category: memfit_vocabulary::Category,
    /// Bytes that stay of each step.
    pub per_step: u64,
    /// Bytes that were there.
    pub bytes: u64,
    /// Of how many steps.
    pub steps: u64,
    /// The step in which memory runs out.
    pub dies_at: Option<u64>,
}

/// How much is reserved and cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fragmentation {
    /// Reserved, and in no block in use.
    pub unused: u64,
    /// The largest free block; absent where segments were not recorded.
    pub largest_free: Option<u64>,
    /// How many free blocks there are.
    pub free_blocks: Option<u64>,
    /// Free, and in pools of their own.
    pub in_private_pools: u64,
    /// The share of what is reserved that is not in use.
    pub share: f64,
}

/// A cause that was weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// The cause.
    pub cause: Cause,
    /// The bytes that it accounts for.
    pub bytes: u64,
    /// Whether without it there would have been enough.
    pub enough: bool,
}

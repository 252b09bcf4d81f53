//! What every judgement works with: the story, what was missing, and the recorded calls to be made once more.

use memfit_allocator::{Edit, Given, Outcome, Program};
use memfit_recording::StackId;
use memfit_vocabulary::{Label, Lever, Proof};

use crate::case::Case;
use crate::explanation::{Apply, Fact, Fix, Line};
use crate::origins::Site;
use crate::source::Source;
use crate::story::{LARGEST, Life, Story};

/// Memory that never runs out: small enough for one and an eighth of it to be reserved many times over.
const ENDLESS: u64 = 1 << 46;

/// One in so many of what the allocator could get is little.
pub(crate) const LITTLE: u64 = 10;

pub(crate) struct Bench<'case> {
    pub(crate) case: &'case Case<'case>,
    pub(crate) story: Story<'case>,
    pub(crate) program: Program,
    /// What the allocator could get, as far as is known: at least what it held when it failed.
    pub(crate) limit: Option<u64>,
    /// The request and what was in blocks, less what the allocator could get.
    pub(crate) missing: Option<i64>,
    /// What the recorded calls reserve where memory never runs out.
    demand: u64,
}

impl<'case> Bench<'case> {
    pub(crate) fn new(case: &'case Case<'case>) -> Option<Self> {
        let story = Story::of(case.track, case.device)?;
        let program = Program::of(case.track, case.device);
        let trouble = story.trouble;
        let limit = case.card.limit.or_else(|| trouble.requested.map(|_| trouble.reserved));
        let limit = limit.map(|limit| limit.min(LARGEST));
        let missing = limit
            .zip(trouble.requested)
            .map(|(limit, requested)| (trouble.allocated + requested) as i64 - limit as i64);
        let demand = program.run(&Given { capacity: ENDLESS, ..case.given }, |_| Edit::Keep).reserved();
        Some(Self { case, story, program, limit, missing, demand })
    }

    /// The bytes that were missing, where any were.
    pub(crate) fn short(&self) -> Option<u64> {
        self.missing.and_then(|missing| u64::try_from(missing).ok()).filter(|missing| *missing > 0)
    }

    /// Whether the card was full: something was missing, or so little was left that it is no wonder that it
    /// was in pieces.
    pub(crate) fn full(&self) -> bool {
        let left =
            self.limit.map(|limit| (limit.saturating_sub(self.story.trouble.allocated), limit / LITTLE));
        self.short().is_some() || self.missing.is_some() && left.is_some_and(|(left, little)| left < little)
    }

    /// Whether so many bytes less would have been enough.
    pub(crate) fn enough(&self, bytes: u64) -> Option<bool> {
        self.missing.map(|missing| bytes as i64 >= missing)
    }

    /// The recorded calls once more, where the allocator can get what it could: whether they all succeed, and
    /// what less they reserve where memory never runs out.
    pub(crate) fn replay(
        &self,
        program: &Program,
        given: &Given,
        edit: impl Fn(u32) -> Edit + Copy,
    ) -> Replayed {
        let endless = program.run(&Given { capacity: ENDLESS, ..*given }, edit);
        let died = self.limit.map(|capacity| program.run(&Given { capacity, ..*given }, edit));
        Replayed {
            saves: self.demand.saturating_sub(endless.reserved()),
            reserved: endless.reserved(),
            fits: died.as_ref().map(|outcome| outcome.died.is_none()),
            outcome: died,
        }
    }

    /// What the recorded calls reserve where memory never runs out.
    pub(crate) const fn demand(&self) -> u64 {
        self.demand
    }

    pub(crate) fn source(&self, site: Site) -> Option<Source> {
        let file = self.story.track.texts.get(site.file);
        (self.case.source)(file).map(|text| Source::new(file, &text))
    }

    /// The user's source files as far as they are at hand: those of the failing line first, then those that
    /// asked last.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let story = &self.story;
        let stacks = std::iter::once(story.trouble.stack);
        let stacks = stacks.chain(story.lives.iter().rev().map(|life| life.block.stack));
        let mut seen = std::collections::HashSet::new();
        let mut sources = Vec::new();
        for site in stacks.flat_map(|stack| &story.origins.get(stack).user) {
            if seen.insert(site.file) {
                sources.extend(self.source(*site));
            }
        }
        sources
    }

    pub(crate) fn line(&self, site: Site) -> Line {
        let texts = &self.story.track.texts;
        let text = self.source(site).map(|source| source.line(site.line).trim().to_owned());
        Line {
            file: texts.get(site.file).to_owned(),
            line: site.line,
            function: texts.get(site.function).to_owned(),
            text: text.filter(|text| !text.is_empty()),
        }
    }

    /// A line with its text, where its file is at hand.
    pub(crate) fn with_text(&self, line: Line) -> Line {
        let source = (self.case.source)(&line.file).map(|text| Source::new(&line.file, &text));
        let text = source.map(|source| source.line(line.line).trim().to_owned());
        Line { text: text.filter(|text| !text.is_empty()).or(line.text.clone()), ..line }
    }

    /// The user's lines of a stack, innermost first.
    pub(crate) fn lines(&self, stack: StackId) -> Vec<Line> {
        self.story.origins.get(stack).user.iter().map(|site| self.line(*site)).collect()
    }

    pub(crate) fn fact(&self, text: impl Into<String>, bytes: u64, stack: Option<StackId>) -> Fact {
        Fact { text: text.into(), bytes, lines: stack.map(|stack| self.lines(stack)).unwrap_or_default() }
    }

    /// The stacks of blocks, those that hold most first, each with its bytes.
    #[expect(clippy::unused_self, reason = "one of the questions that the bench is asked")]
    pub(crate) fn stacks<'a>(&self, lives: impl Iterator<Item = &'a Life>) -> Vec<(StackId, u64)> {
        let mut sums: std::collections::HashMap<StackId, u64> = std::collections::HashMap::new();
        for life in lives {
            *sums.entry(life.block.stack).or_default() += life.block.bytes;
        }
        let mut sums: Vec<(StackId, u64)> = sums.into_iter().collect();
        sums.sort_by_key(|(stack, bytes)| (std::cmp::Reverse(*bytes), *stack));
        sums
    }
}

/// What came of making the calls once more.
pub(crate) struct Replayed {
    /// What less is reserved where memory never runs out.
    pub(crate) saves: u64,
    /// What is reserved then.
    pub(crate) reserved: u64,
    /// Whether all calls succeed on the card.
    pub(crate) fits: Option<bool>,
    /// What comes of them on the card.
    pub(crate) outcome: Option<Outcome>,
}

/// A remedy that a replay has shown.
pub(crate) fn replayed(lever: Lever, label: Label, how: String, replayed: &Replayed, apply: Apply) -> Fix {
    Fix { lever, saves: replayed.saves, label, how, proof: Proof::Replayed, fits: replayed.fits, apply }
}

/// A remedy that arithmetic shows.
pub(crate) fn modelled(
    bench: &Bench<'_>,
    lever: Lever,
    label: Label,
    saves: u64,
    how: String,
    apply: Apply,
) -> Fix {
    Fix { lever, saves, label, how, proof: Proof::Modelled, fits: bench.enough(saves), apply }
}

//! What every judgement works with: the story, what was missing, and the recorded calls to be made once more.

use memfit_allocator::{Edit, Given, Outcome, Program};
use memfit_patch::{Code, Known, Ran, Refusal, Wanted};
use memfit_recording::{StackId, Track};
use memfit_vocabulary::{Lever, Proof};

use crate::case::Case;
use crate::explanation::{Apply, Fact, Fix, Line};
use crate::origins::{Origins, Site};
use crate::story::{LARGEST, Life, Story};

/// Memory that never runs out: small enough for one and an eighth of it to be reserved many times over.
const ENDLESS: u64 = 1 << 46;

/// One in so many of what the allocator could get is little.
pub(crate) const LITTLE: u64 = 10;

pub(crate) struct Bench<'case> {
    pub(crate) case: &'case Case<'case>,
    pub(crate) story: Story<'case>,
    /// The program's source, as far as it is at hand.
    pub(crate) code: Code<'case>,
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
        let code = Code::new(case.source, ran(case.track, &story.origins));
        Some(Self { case, story, code, program, limit, missing, demand })
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

    /// The change of the source that makes a remedy at the first of these lines where one is right.
    pub(crate) fn change(&self, lever: Lever, sites: &[Site], known: Known<'_>) -> Apply {
        let sites: Vec<memfit_patch::Site> = sites.iter().map(|site| self.place(*site)).collect();
        match self.code.change(&Wanted { lever, sites: &sites, known }) {
            Ok(change) => Apply::Edit(change),
            Err(Refusal::NotHere) => Apply::ByHand(None),
            Err(Refusal::Unproven(why)) => Apply::ByHand(Some(why)),
        }
    }

    /// Whether a line on the way to the failing request has gradients off, wherever on that way: then there
    /// is no graph, and no remedy is about one.
    pub(crate) fn without_graph(&self) -> bool {
        let story = &self.story;
        let off = |site: &Site| self.code.is_without_grad(story.track.texts.get(site.file), site.line);
        story.origins.get(story.trouble.stack).user.iter().any(off)
    }

    /// A line as the source knows it.
    pub(crate) fn place(&self, site: Site) -> memfit_patch::Site {
        place(self.story.track, site)
    }

    /// The user's lines of these stacks, each once.
    pub(crate) fn sites(&self, stacks: impl IntoIterator<Item = StackId>) -> Vec<Site> {
        let mut seen = std::collections::HashSet::new();
        let stacks = stacks.into_iter().filter(|stack| seen.insert(*stack)).collect::<Vec<_>>();
        let mut sites: Vec<Site> = Vec::new();
        for site in stacks.iter().flat_map(|stack| &self.story.origins.get(*stack).user) {
            if !sites.contains(site) {
                sites.push(*site);
            }
        }
        sites
    }

    pub(crate) fn line(&self, site: Site) -> Line {
        let memfit_patch::Site { file, line, function } = self.place(site);
        self.with_text(Line { file, line, function, text: None })
    }

    /// A line with its text, where its file is at hand.
    pub(crate) fn with_text(&self, line: Line) -> Line {
        Line { text: self.code.line(&line.file, line.line).or(line.text), ..line }
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

fn place(track: &Track, site: Site) -> memfit_patch::Site {
    memfit_patch::Site {
        file: track.texts.get(site.file).to_owned(),
        line: site.line,
        function: track.texts.get(site.function).to_owned(),
    }
}

/// The lines that a recording shows to have run, and which file is the script: the one whose own level most
/// stacks begin at.
fn ran(track: &Track, origins: &Origins) -> Ran {
    let mut begins: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for site in origins.all().filter_map(|origin| origin.user.last()) {
        if track.texts.get(site.function) == "<module>" {
            *begins.entry(track.texts.get(site.file)).or_default() += 1;
        }
    }
    let main = begins.into_iter().max_by_key(|(_, count)| *count).map(|(file, _)| file.to_owned());
    let sites = origins.all().flat_map(|origin| &origin.user).map(|site| place(track, *site));
    Ran::new(sites, main)
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
pub(crate) fn replayed(lever: Lever, how: String, replayed: &Replayed, apply: Apply) -> Fix {
    Fix { lever, saves: replayed.saves, how, proof: Proof::Replayed, fits: replayed.fits, apply }
}

/// A remedy that arithmetic shows.
pub(crate) fn modelled(bench: &Bench<'_>, lever: Lever, saves: u64, how: String, apply: Apply) -> Fix {
    Fix { lever, saves, how, proof: Proof::Modelled, fits: bench.enough(saves), apply }
}

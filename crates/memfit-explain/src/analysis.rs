//! Shared state of the cause checks: the timeline, the missing bytes, and replays of the recorded calls.

use memfit_allocator::{Edit, Outcome, Program, ReplayConditions, round_size, segment_size};
use memfit_patch::{Code, Ran, RecordedFacts, Refusal, RemedyRequest};
use memfit_recording::{StackId, Track};
use memfit_vocabulary::{Category, Lever, Phase, Proof, format_size};

use crate::case::Case;
use crate::explanation::{Apply, Fact, Fix, Line};
use crate::origins::{Origins, Role, Site};
use crate::timeline::{Life, MAX_BYTES, Timeline};

/// Capacity that is never reached: small enough for nine eighths of it to be reserved many times over.
const UNLIMITED_BYTES: u64 = 1 << 46;

/// Divisor of the limit: a tenth of what the allocator could use counts as little.
pub(crate) const SMALL_SHARE_DIVISOR: u64 = 10;

pub(crate) struct Analysis<'case> {
    pub(crate) case: &'case Case<'case>,
    pub(crate) timeline: Timeline<'case>,
    /// Source of the program, if it is available.
    pub(crate) code: Code<'case>,
    pub(crate) program: Program,
    /// Bytes that the allocator could use, if known: at least what it held when the request failed.
    pub(crate) limit: Option<u64>,
    /// Segment that the failed request needed, since no free block was large enough.
    pub(crate) segment: Option<u64>,
    /// Request plus allocated bytes, minus the limit.
    pub(crate) missing: Option<i64>,
    /// Bytes that the recorded calls reserve without a limit.
    demand: u64,
}

impl<'case> Analysis<'case> {
    pub(crate) fn new(case: &'case Case<'case>) -> Option<Self> {
        let timeline = Timeline::from_track(case.track, case.device)?;
        let program = Program::from_track(case.track, case.device);
        let trouble = timeline.trouble;
        let limit = case.card.limit.or_else(|| trouble.requested.map(|_| trouble.reserved));
        let limit = limit.map(|limit| limit.min(MAX_BYTES));
        let missing = limit
            .zip(trouble.requested)
            .map(|(limit, requested)| (trouble.allocated + requested) as i64 - limit as i64);
        let settings = &case.given.settings;
        let segment =
            trouble.requested.map(|requested| segment_size(round_size(requested, settings), settings));
        let demand = program
            .run(&ReplayConditions { capacity: UNLIMITED_BYTES, ..case.given }, |_| Edit::Keep)
            .reserved();
        let code = Code::new(case.source, ran(case.track, &timeline.origins));
        Some(Self { case, timeline, code, program, limit, segment, missing, demand })
    }

    /// Missing bytes, if any were.
    pub(crate) fn short(&self) -> Option<u64> {
        self.missing.and_then(|missing| u64::try_from(missing).ok()).filter(|missing| *missing > 0)
    }

    /// Formats the failed request: the segment that it needed, as in PyTorch's message, and the tensor's own
    /// size if the allocator rounded it up.
    pub(crate) fn request(&self) -> String {
        let requested = self.timeline.trouble.requested.unwrap_or(0);
        match self.segment.map(format_size) {
            Some(segment) if segment != format_size(requested) => {
                format!("{segment} for a tensor of {}", format_size(requested))
            }
            _ => format_size(requested),
        }
    }

    /// Returns `true` if the GPU was full: bytes were missing, or so few were left that fragmentation is no
    /// cause.
    pub(crate) fn full(&self) -> bool {
        let left = self.limit.map(|limit| {
            (limit.saturating_sub(self.timeline.trouble.allocated), limit / SMALL_SHARE_DIVISOR)
        });
        self.short().is_some() || self.missing.is_some() && left.is_some_and(|(left, little)| left < little)
    }

    /// Returns `true` if using `bytes` less would have prevented the failure; `None` if the limit is unknown.
    pub(crate) fn enough(&self, bytes: u64) -> Option<bool> {
        self.missing.map(|missing| bytes as i64 >= missing)
    }

    /// Replays the recorded calls with an edit, once within the limit and once without one. Returns whether
    /// all succeed and how much less they reserve.
    pub(crate) fn replay(
        &self,
        program: &Program,
        given: &ReplayConditions,
        edit: impl Fn(u32) -> Edit + Copy,
    ) -> Replayed {
        let endless = program.run(&ReplayConditions { capacity: UNLIMITED_BYTES, ..*given }, edit);
        let died = self.limit.map(|capacity| program.run(&ReplayConditions { capacity, ..*given }, edit));
        Replayed {
            saves: self.demand.saturating_sub(endless.reserved()),
            reserved: endless.reserved(),
            fits: died.as_ref().map(|outcome| outcome.died.is_none()),
            outcome: died,
        }
    }

    /// Bytes that the recorded calls reserve without a limit.
    pub(crate) const fn demand(&self) -> u64 {
        self.demand
    }

    /// Builds the source edit for a remedy at the first of these lines where it is correct.
    pub(crate) fn change(&self, lever: Lever, sites: &[Site], known: RecordedFacts<'_>) -> Apply {
        let sites = self.places(sites);
        match self.code.change(&RemedyRequest { lever, sites: &sites, known }) {
            Ok(change) => Apply::Edit(change),
            Err(Refusal::NotHere) => Apply::ByHand(None),
            Err(Refusal::Unproven(why)) => Apply::ByHand(Some(why)),
        }
    }

    /// Stack of the call of the model that takes the most memory of the explained moment; if none does then,
    /// of the whole recording.
    pub(crate) fn model_call(&self) -> Option<StackId> {
        let timeline = &self.timeline;
        let activations = timeline.live().filter(|life| life.category == Category::Activations);
        timeline.model_call(activations, true).or_else(|| timeline.model_call(timeline.lives.iter(), false))
    }

    /// Returns `true` if gradients are off on any line of the failing request's stack. Then there is no
    /// graph, and remedies for graphs do not apply.
    pub(crate) fn without_graph(&self) -> bool {
        let timeline = &self.timeline;
        let off = |site: &Site| self.code.is_without_grad(timeline.track.texts.get(site.file), site.line);
        timeline.origins.get(timeline.trouble.stack).user.iter().any(off)
    }

    /// Returns `true` if a line concatenates a tensor with more of the same.
    pub(crate) fn is_concatenated(&self, site: Site) -> bool {
        self.code.is_concatenated(&self.place(site))
    }

    /// Returns `true` if the source shows that a backward pass through what the failing request is for was
    /// still to come.
    pub(crate) fn backward_is_ahead(&self) -> bool {
        let timeline = &self.timeline;
        self.code.backward_is_ahead(&self.places(&timeline.origins.get(timeline.trouble.stack).user))
    }

    /// Converts a line to the form that `memfit-patch` uses.
    pub(crate) fn place(&self, site: Site) -> memfit_patch::Site {
        place(self.timeline.track, site)
    }

    /// Converts lines to the form that `memfit-patch` uses.
    pub(crate) fn places(&self, sites: &[Site]) -> Vec<memfit_patch::Site> {
        sites.iter().map(|site| self.place(*site)).collect()
    }

    /// User code lines of these stacks, without duplicates.
    pub(crate) fn sites(&self, stacks: impl IntoIterator<Item = StackId>) -> Vec<Site> {
        let mut seen = std::collections::HashSet::new();
        let stacks = stacks.into_iter().filter(|stack| seen.insert(*stack)).collect::<Vec<_>>();
        let mut sites: Vec<Site> = Vec::new();
        for site in stacks.iter().flat_map(|stack| &self.timeline.origins.get(*stack).user) {
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

    /// Adds the source text to a line if its file is available.
    pub(crate) fn with_text(&self, line: Line) -> Line {
        Line { text: self.code.line(&line.file, line.line).or(line.text), ..line }
    }

    /// User code lines of a stack, innermost first.
    pub(crate) fn lines(&self, stack: StackId) -> Vec<Line> {
        self.timeline.origins.get(stack).user.iter().map(|site| self.line(*site)).collect()
    }

    /// Stack of the failing request. The autograd engine's threads have no Python frames: their requests are
    /// blamed on the line that called the backward pass.
    pub(crate) fn failing_stack(&self) -> StackId {
        let timeline = &self.timeline;
        let trouble = timeline.trouble;
        let is_known = |stack: &StackId| timeline.origins.get(*stack).site().is_some();
        if trouble.phase != Phase::Backward || is_known(&trouble.stack) {
            return trouble.stack;
        }
        let backward = timeline
            .lives
            .iter()
            .filter(|life| life.role == Role::Backward && life.block.born <= trouble.moment);
        backward.rev().map(|life| life.block.stack).find(is_known).unwrap_or(trouble.stack)
    }

    pub(crate) fn fact(&self, text: impl Into<String>, bytes: u64, stack: Option<StackId>) -> Fact {
        Fact { text: text.into(), bytes, lines: stack.map(|stack| self.lines(stack)).unwrap_or_default() }
    }

    /// Stacks of blocks with their bytes, largest first.
    #[expect(clippy::unused_self, reason = "a method like the other queries of the analysis")]
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

/// Lines that the recording shows to have run, and the script's file: the one at whose module level most
/// stacks begin.
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

/// Result of a replay.
pub(crate) struct Replayed {
    /// Bytes saved without a limit.
    pub(crate) saves: u64,
    /// Bytes reserved.
    pub(crate) reserved: u64,
    /// `true` if all calls succeed within the limit.
    pub(crate) fits: Option<bool>,
    /// Outcome within the limit.
    pub(crate) outcome: Option<Outcome>,
}

/// Builds a remedy whose effect a replay has shown.
pub(crate) fn replayed_fix(lever: Lever, how: String, replayed: &Replayed, apply: Apply) -> Fix {
    Fix { lever, saves: replayed.saves, how, proof: Proof::Replayed, fits: replayed.fits, apply }
}

/// Builds a remedy whose effect is computed.
pub(crate) fn modelled_fix(
    analysis: &Analysis<'_>,
    lever: Lever,
    saves: u64,
    how: String,
    apply: Apply,
) -> Fix {
    // If enough memory was free, but in pieces, less than the request need not become one piece that is large
    // enough. Other remedies make the request itself smaller, or avoid it.
    let in_pieces = matches!(lever, Lever::Checkpointing | Lever::ActivationOffload)
        && analysis.missing.is_some_and(|missing| missing <= 0)
        && analysis.timeline.trouble.requested.is_some_and(|requested| saves < requested);
    let fits = analysis.enough(saves).filter(|_| !in_pieces);
    Fix { lever, saves, how, proof: Proof::Modelled, fits, apply }
}

//! Overrides for a replay: blocks selected by line, category or module are dropped, scaled, or freed at
//! the end of their step.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use memfit_allocator::Edit;
use memfit_recording::{StackId, Track};
use memfit_vocabulary::Category;

use crate::timeline::{Life, Timeline};

/// Maximum number of suggestions for a name that was not found.
const MAX_SUGGESTIONS: usize = 6;
/// Prefix that marks a name as a module rather than a category.
const MODULE_PREFIX: &str = "module:";

/// Selection of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Blocks allocated by a line, directly or in a function that it calls.
    Line {
        /// File path, or the end of it.
        file: String,
        /// Line number, from 1.
        line: u32,
    },
    /// Blocks of a category.
    Category(Category),
    /// Blocks of a module and its submodules.
    Module(String),
}

/// Error for a text that is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectorError {
    /// The text is empty.
    #[error(
        "it is empty: write a line (`train.py:42`), a category (`activations`) or a module (`encoder.0`)"
    )]
    Empty,
    /// The text after the colon is not a line number.
    #[error("`{0}` is not a line number: lines are counted from 1")]
    Line(String),
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Some(module) = text.strip_prefix(MODULE_PREFIX) {
            return if module.is_empty() {
                Err(SelectorError::Empty)
            } else {
                Ok(Self::Module(module.to_owned()))
            };
        }
        if let Some((file, number)) = text.rsplit_once(':') {
            let line = number.parse().ok().filter(|line| *line > 0);
            let line = line.ok_or_else(|| SelectorError::Line(number.to_owned()))?;
            let file = file.strip_prefix("./").unwrap_or(file).to_owned();
            return if file.is_empty() { Err(SelectorError::Empty) } else { Ok(Self::Line { file, line }) };
        }
        if text.is_empty() {
            return Err(SelectorError::Empty);
        }
        let category = Category::ALL.iter().find(|category| category.name() == text);
        Ok(category.map_or_else(|| Self::Module(text.to_owned()), |category| Self::Category(*category)))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(formatter, "{file}:{line}"),
            Self::Category(category) => formatter.write_str(category.name()),
            Self::Module(name) => formatter.write_str(name),
        }
    }
}

/// Effect on the selected blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// The blocks are not allocated.
    Drop,
    /// Their requested size is multiplied by a factor.
    Scale(f64),
    /// They are freed at the end of the step that allocated them.
    EachStep,
}

/// Override for a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Selected blocks.
    pub of: Selector,
    /// Effect on them.
    pub effect: Effect,
}

/// Blocks of a recording that a change selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of those that were live at the peak, or when memory ran out.
    pub at_peak: u64,
}

/// Error for a selector that matches no block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no block of the recording belongs to `{what}`")]
pub struct NoMatchingBlocks {
    /// The selector.
    pub what: Selector,
    /// Selectors that match, largest first.
    pub known: Vec<String>,
}

/// Changes resolved for a recording's blocks, as [`Program::run`](memfit_allocator::Program::run) needs them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    edits: HashMap<u32, Edit>,
    /// Reach of each change, in the order of the changes.
    pub reach: Vec<Reach>,
}

/// Combined effect of several changes on a block.
#[derive(Clone, Copy)]
struct CombinedEffect {
    drop: bool,
    factor: f64,
    until: Option<u32>,
}

impl Changes {
    /// Resolves changes for the blocks of one device.
    pub fn resolve(track: &Track, device: u8, wanted: &[Change]) -> Result<Self, NoMatchingBlocks> {
        let mut changes = Self::default();
        if wanted.is_empty() {
            return Ok(changes);
        }
        let timeline = Timeline::from_track(track, device);
        let lives = timeline.as_ref().map_or(&[][..], |timeline| &timeline.lives[..]);
        let mut mixed: HashMap<u32, CombinedEffect> = HashMap::new();
        for change in wanted {
            let mut named = Matcher::new(&change.of, track);
            let mut reach = Reach::default();
            for life in lives.iter().filter(|life| named.holds(life)) {
                let Some(timeline) = &timeline else { continue };
                reach.blocks += 1;
                reach.at_peak +=
                    if life.block.is_live_at(timeline.trouble.moment) { life.block.bytes } else { 0 };
                let entry = mixed.entry(life.index);
                let entry = entry.or_insert(CombinedEffect { drop: false, factor: 1.0, until: None });
                match change.effect {
                    Effect::Drop => entry.drop = true,
                    Effect::Scale(factor) => entry.factor *= factor.max(0.0),
                    Effect::EachStep => {
                        entry.until = timeline.periods().get(timeline.period_of(life.block.born)).copied();
                    }
                }
            }
            if reach.blocks == 0 {
                let known =
                    timeline.as_ref().map(|timeline| suggestions(timeline, &change.of)).unwrap_or_default();
                return Err(NoMatchingBlocks { what: change.of.clone(), known });
            }
            changes.reach.push(reach);
        }
        let edit = |life: &Life| Some((life.index, edit(life, *mixed.get(&life.index)?)));
        changes.edits = lives.iter().filter_map(edit).collect();
        Ok(changes)
    }

    /// Edit of a block.
    pub fn edit(&self, block: u32) -> Edit {
        self.edits.get(&block).copied().unwrap_or(Edit::Keep)
    }
}

fn edit(life: &Life, CombinedEffect { drop, factor, until }: CombinedEffect) -> Edit {
    let same = (factor - 1.0).abs() < f64::EPSILON;
    // Sizes are far below the limit of exact integers in a float.
    let bytes = (life.requested_bytes() as f64 * factor).round() as u64;
    match until {
        _ if drop || bytes == 0 => Edit::Drop,
        Some(moment) if same => Edit::FreeAt(moment),
        Some(until) => Edit::ResizeUntil { bytes, until },
        None if same => Edit::Keep,
        None => Edit::Resize(bytes),
    }
}

/// Matches blocks against a selector, with the result for each stack cached.
struct Matcher<'given> {
    selector: &'given Selector,
    track: &'given Track,
    stacks: HashMap<StackId, bool>,
}

impl<'given> Matcher<'given> {
    fn new(selector: &'given Selector, track: &'given Track) -> Self {
        Self { selector, track, stacks: HashMap::new() }
    }

    fn holds(&mut self, life: &Life) -> bool {
        let track = self.track;
        match self.selector {
            Selector::Category(category) => life.category == *category,
            Selector::Module(name) => {
                let own = track.texts.get(life.module());
                own == name || own.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'))
            }
            Selector::Line { file, line } => *self.stacks.entry(life.block.stack).or_insert_with(|| {
                let mut frames = track.stacks.get(life.block.stack);
                frames.any(|frame| frame.line == *line && is_end_of(file, track.texts.get(frame.file)))
            }),
        }
    }
}

/// Returns `true` if a path ends with these components.
fn is_end_of(end: &str, path: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// Suggests selectors of the same kind, by their bytes at the peak.
fn suggestions(timeline: &Timeline<'_>, instead_of: &Selector) -> Vec<String> {
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for life in timeline.live() {
        let name = match instead_of {
            Selector::Category(_) => life.category.name().to_owned(),
            Selector::Module(_) => timeline.track.texts.get(life.module()).to_owned(),
            Selector::Line { .. } => life.site.map(|site| site.text(timeline.track)).unwrap_or_default(),
        };
        *held.entry(name).or_default() += life.block.bytes;
    }
    held.remove("");
    let mut held: Vec<(String, u64)> = held.into_iter().collect();
    held.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    held.into_iter().take(MAX_SUGGESTIONS).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use memfit_recording::{Block, Frame, MomentKind, NEVER, Totals};

    use super::*;

    /// Two steps; in each, a line of `train.py` allocates an input that stays, and a module an activation
    /// that does not.
    fn track() -> Track {
        let mut track = Track::default();
        let file = track.texts.intern("/home/someone/project/train.py");
        let name = track.texts.intern("main");
        let module = track.texts.intern("encoder.0");
        let frame = |line| Frame { name, file, line };
        let frames = [7, 42, 43].map(|line| track.stacks.intern_frame(frame(line)));
        let kept = track.stacks.intern(&[frames[1], frames[0]]);
        let made = track.stacks.intern(&[frames[2], frames[0]]);
        let mut allocated = 0;
        for step in 1..=2_u32 {
            let mut hand_out = |track: &mut Track, block: Block| {
                allocated += block.bytes;
                track.alloc(&block, Totals { allocated, reserved: 2 << 20, time_us: None })
            };
            let block = |stack, noted, module| Block {
                address: u64::from(step) * 4096,
                bytes: 1024,
                requested: Some(1000),
                stack,
                noted: Some(noted),
                module,
                ..Block::default()
            };
            hand_out(&mut track, block(kept, Category::Inputs, memfit_recording::TextId::NONE));
            let address = u64::from(step) * 4096 + 1024;
            let of_module = Block { address, ..block(made, Category::Activations, module) };
            let activation = hand_out(&mut track, of_module);
            allocated -= 1024;
            let totals = Totals { allocated, reserved: 2 << 20, time_us: None };
            track.free(activation, 0, StackId::NONE, totals);
            track.add_moment(MomentKind::Step(step), 0, StackId::NONE, totals);
        }
        track
    }

    fn changes(of: &str, effect: Effect) -> Result<Changes, NoMatchingBlocks> {
        Changes::resolve(&track(), 0, &[Change { of: of.parse().unwrap(), effect }])
    }

    #[test]
    fn a_text_names_a_line_a_category_or_a_module() {
        for (text, expected) in [
            ("train.py:42", Ok(Selector::Line { file: "train.py".to_owned(), line: 42 })),
            ("./src/train.py:1", Ok(Selector::Line { file: "src/train.py".to_owned(), line: 1 })),
            ("activations", Ok(Selector::Category(Category::Activations))),
            ("module:activations", Ok(Selector::Module("activations".to_owned()))),
            (" encoder.0 ", Ok(Selector::Module("encoder.0".to_owned()))),
            ("", Err(SelectorError::Empty)),
            (":3", Err(SelectorError::Empty)),
            ("module:", Err(SelectorError::Empty)),
            ("train.py:0", Err(SelectorError::Line("0".to_owned()))),
            ("train.py:last", Err(SelectorError::Line("last".to_owned()))),
        ] {
            assert_eq!(text.parse::<Selector>(), expected, "{text}");
        }
    }

    #[test]
    fn blocks_are_found_by_line_category_and_module() {
        for (of, blocks) in [
            ("train.py:42", 2),
            ("project/train.py:43", 2),
            // A line selects what the functions it calls allocate.
            ("train.py:7", 4),
            ("activations", 2),
            ("encoder", 2),
            ("encoder.0", 2),
        ] {
            assert_eq!(changes(of, Effect::Drop).unwrap().reach[0].blocks, blocks, "{of}");
        }
        for of in ["rain.py:42", "train.py:44", "parameters", "enc"] {
            assert!(changes(of, Effect::Drop).is_err(), "{of}");
        }
        let error = changes("train.py:44", Effect::Drop).unwrap_err();
        assert_eq!(error.to_string(), "no block of the recording belongs to `train.py:44`");
        assert_eq!(error.known[0], "/home/someone/project/train.py:42");
    }

    #[test]
    fn each_effect_is_an_edit_and_several_of_them_mix() {
        let track = track();
        let change = |of: &str, effect| Change { of: of.parse().unwrap(), effect };
        let edits = |wanted: &[Change]| {
            let changes = Changes::resolve(&track, 0, wanted).unwrap();
            (0..4).map(|block| changes.edit(block)).collect::<Vec<_>>()
        };
        let keep = Edit::Keep;
        assert_eq!(edits(&[]), [keep; 4]);
        assert_eq!(edits(&[change("activations", Effect::Drop)]), [keep, Edit::Drop, keep, Edit::Drop]);
        let half = change("train.py:7", Effect::Scale(0.5));
        assert_eq!(edits(std::slice::from_ref(&half)), [Edit::Resize(500); 4]);
        let ends: Vec<u32> = track
            .moments()
            .iter()
            .enumerate()
            .filter(|(_, moment)| matches!(moment.kind, MomentKind::Step(_)))
            .map(|(place, _)| place as u32)
            .collect();
        let step = change("inputs", Effect::EachStep);
        assert_eq!(
            edits(std::slice::from_ref(&step)),
            [Edit::FreeAt(ends[0]), keep, Edit::FreeAt(ends[1]), keep]
        );
        let mixed = edits(&[half.clone(), half, step, change("encoder", Effect::Drop)]);
        let smaller = |until| Edit::ResizeUntil { bytes: 250, until };
        assert_eq!(mixed, [smaller(ends[0]), Edit::Drop, smaller(ends[1]), Edit::Drop]);
        assert_eq!(edits(&[change("inputs", Effect::Scale(0.0))])[0], Edit::Drop);
        assert!(track.block(0).is_some_and(|block| block.freed == NEVER));
    }
}

//! What could have been different about a recorded run: what a line, a category or a module asked for is not
//! asked for, has another size, or is given back with the step that it was made in.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use memfit_allocator::Edit;
use memfit_recording::{StackId, Track};
use memfit_vocabulary::Category;

use crate::story::{Life, Story};

/// So many names are offered where one was not found.
const OFFERED: usize = 6;
/// What a module's name begins with where it must not be taken for a category's.
const OF_MODULE: &str = "module:";

/// Which blocks a change is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Those that a line asked for, by itself or through what it called.
    Line {
        /// The file, or the end of its path.
        file: String,
        /// The line, from 1.
        line: u32,
    },
    /// Those that were for this.
    Category(Category),
    /// Those of a module and of the modules in it.
    Module(String),
}

/// A text that names no blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectorError {
    /// There is nothing in it.
    #[error(
        "it names nothing: write a line (`train.py:42`), a category (`activations`) or a module (`encoder.0`)"
    )]
    Empty,
    /// The number behind the colon is none of a line.
    #[error("`{0}` is no line's number: lines are counted from 1")]
    Line(String),
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Some(module) = text.strip_prefix(OF_MODULE) {
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

/// What is different about blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// They are not asked for.
    Drop,
    /// So many times what was asked for is asked for.
    Scale(f64),
    /// They are given back when the step ends that they were made in.
    EachStep,
}

/// Something that could have been different.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which blocks it is about.
    pub of: Selector,
    /// What is different about them.
    pub effect: Effect,
}

/// What a change is about, in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// How many blocks.
    pub blocks: u64,
    /// What those of them took that were there when memory was fullest, or ran out.
    pub at_peak: u64,
}

/// What a change names is not in the recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no block of the recording is of `{what}`")]
pub struct NothingNamed {
    /// What was named.
    pub what: Selector,
    /// What could be: those that held most, most first.
    pub known: Vec<String>,
}

/// Changes worked out for the blocks of a recording: what [`Program::run`](memfit_allocator::Program::run) is
/// told of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    edits: HashMap<u32, Edit>,
    /// What each change is about, in the order in which they were given.
    pub reach: Vec<Reach>,
}

/// What several changes make of one block.
#[derive(Clone, Copy)]
struct Mixed {
    drop: bool,
    factor: f64,
    until: Option<u32>,
}

impl Changes {
    /// The changes, for the blocks of one device.
    pub fn of(track: &Track, device: u8, wanted: &[Change]) -> Result<Self, NothingNamed> {
        let mut changes = Self::default();
        if wanted.is_empty() {
            return Ok(changes);
        }
        let story = Story::of(track, device);
        let lives = story.as_ref().map_or(&[][..], |story| &story.lives[..]);
        let mut mixed: HashMap<u32, Mixed> = HashMap::new();
        for change in wanted {
            let mut named = Named::new(&change.of, track);
            let mut reach = Reach::default();
            for life in lives.iter().filter(|life| named.holds(life)) {
                let Some(story) = &story else { continue };
                reach.blocks += 1;
                reach.at_peak +=
                    if life.block.is_live_at(story.trouble.moment) { life.block.bytes } else { 0 };
                let entry = mixed.entry(life.index);
                let entry = entry.or_insert(Mixed { drop: false, factor: 1.0, until: None });
                match change.effect {
                    Effect::Drop => entry.drop = true,
                    Effect::Scale(factor) => entry.factor *= factor.max(0.0),
                    Effect::EachStep => {
                        entry.until = story.periods().get(story.period_of(life.block.born)).copied();
                    }
                }
            }
            if reach.blocks == 0 {
                let known = story.as_ref().map(|story| offered(story, &change.of)).unwrap_or_default();
                return Err(NothingNamed { what: change.of.clone(), known });
            }
            changes.reach.push(reach);
        }
        let edit = |life: &Life| Some((life.index, edit(life, *mixed.get(&life.index)?)));
        changes.edits = lives.iter().filter_map(edit).collect();
        Ok(changes)
    }

    /// What is different about a block.
    pub fn edit(&self, block: u32) -> Edit {
        self.edits.get(&block).copied().unwrap_or(Edit::Keep)
    }
}

fn edit(life: &Life, Mixed { drop, factor, until }: Mixed) -> Edit {
    let same = (factor - 1.0).abs() < f64::EPSILON;
    // Sizes are far below what a float holds exactly.
    let bytes = (life.asked() as f64 * factor).round() as u64;
    match until {
        _ if drop || bytes == 0 => Edit::Drop,
        Some(moment) if same => Edit::FreeAt(moment),
        Some(until) => Edit::ResizeUntil { bytes, until },
        None if same => Edit::Keep,
        None => Edit::Resize(bytes),
    }
}

/// Whether blocks are among those that are named; of each stack this is worked out once.
struct Named<'given> {
    selector: &'given Selector,
    track: &'given Track,
    stacks: HashMap<StackId, bool>,
}

impl<'given> Named<'given> {
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

/// Whether a path ends in these parts.
fn is_end_of(end: &str, path: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

/// What could have been named instead: of the same kind, what held most when memory was fullest.
fn offered(story: &Story<'_>, instead_of: &Selector) -> Vec<String> {
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for life in story.live() {
        let name = match instead_of {
            Selector::Category(_) => life.category.name().to_owned(),
            Selector::Module(_) => story.track.texts.get(life.module()).to_owned(),
            Selector::Line { .. } => life.site.map(|site| site.text(story.track)).unwrap_or_default(),
        };
        *held.entry(name).or_default() += life.block.bytes;
    }
    held.remove("");
    let mut held: Vec<(String, u64)> = held.into_iter().collect();
    held.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    held.into_iter().take(OFFERED).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use memfit_recording::{Block, Frame, MomentKind, NEVER, Totals};

    use super::*;

    /// Two steps; in each a line of `train.py` makes an input that stays and a module an activation that does
    /// not.
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

    fn changes(of: &str, effect: Effect) -> Result<Changes, NothingNamed> {
        Changes::of(&track(), 0, &[Change { of: of.parse().unwrap(), effect }])
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
            // What a line calls is on its behalf.
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
        assert_eq!(error.to_string(), "no block of the recording is of `train.py:44`");
        assert_eq!(error.known[0], "/home/someone/project/train.py:42");
    }

    #[test]
    fn each_effect_is_an_edit_and_several_of_them_mix() {
        let track = track();
        let change = |of: &str, effect| Change { of: of.parse().unwrap(), effect };
        let edits = |wanted: &[Change]| {
            let changes = Changes::of(&track, 0, wanted).unwrap();
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

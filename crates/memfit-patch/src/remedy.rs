//! Remedies as source edits, made where the source and the recording prove that the edit does what its lever
//! says, and refused with a reason otherwise.

mod ahead;
mod around;
mod attention;
mod batches;
mod blocks;
mod contexts;
mod flow;
mod keeper;
mod kept;
mod options;
mod pools;
mod processes;
mod results;
mod upload;

pub use blocks::BlockCall;
use memfit_source::edit::{apply_checked, unified_diff};
use memfit_source::{Dialect, Edit, Span, StatementKind};
use memfit_vocabulary::Lever;

use crate::Why;
use crate::code::{Code, Scene, Script, Site};

/// Requested remedy, with the recorded lines that need it.
#[derive(Clone, Copy, Debug)]
pub struct RemedyRequest<'a> {
    /// Lever.
    pub lever: Lever,
    /// Lines concerned, the most relevant first.
    pub sites: &'a [Site],
    /// Further facts from the recording.
    pub known: RecordedFacts<'a>,
}

/// Facts from a recording in addition to the lines.
#[derive(Clone, Copy, Debug)]
pub enum RecordedFacts<'a> {
    /// None.
    Nothing,
    /// For memory that stays across steps: lines where backward passes began.
    Backwards(&'a [Site]),
    /// For memory that a step leaves to the next.
    Leftovers {
        /// Line of the optimizer step.
        step: Option<&'a Site>,
        /// `true` if it includes gradients.
        gradients: bool,
    },
    /// For a model call: `true` if backward passes followed calls on other lines, but none on this one.
    NeverTrained(bool),
    /// For allocator settings: the current text and the new one.
    Settings {
        /// Current settings.
        now: &'a str,
        /// New settings.
        then: &'a str,
    },
    /// For memory that a fraction set by the script withholds from it.
    MemoryFraction,
}

/// Change of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// File.
    pub file: String,
    /// First changed line, from 1.
    pub line: u32,
    /// Unified diff.
    pub diff: String,
    /// Changed text.
    pub after: String,
}

/// Reason for the absence of a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The source is not available, or contains nothing that the remedy applies to.
    #[error("the available source has no such code")]
    NotHere,
    /// The source does not prove that the edit does what its lever says. A sentence without a final full
    /// stop.
    #[error("{0}")]
    Unproven(Why),
}

impl From<Why> for Refusal {
    fn from(why: Why) -> Self {
        Self::Unproven(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::Unproven(why.to_owned())
    }
}

impl Code<'_> {
    /// Returns the edit for a remedy, or the reason why there is none.
    pub fn change(&self, wanted: &RemedyRequest<'_>) -> Result<Change, Refusal> {
        match (wanted.lever, wanted.known) {
            (Lever::ReleaseGraph | Lever::KeepOnCpu, RecordedFacts::Backwards(backwards)) => {
                kept::change(self, wanted, backwards)
            }
            (Lever::DropVariables | Lever::ZeroGradEarlier, RecordedFacts::Leftovers { step, gradients }) => {
                batches::change(self, wanted.sites, step, gradients)
            }
            (Lever::NoGrad, RecordedFacts::NeverTrained(never)) => {
                self.first(wanted.sites, |scene, site| around::no_grad(scene, site, never).map(Some))
            }
            (Lever::DropSetting, RecordedFacts::Settings { now, then }) => options::settings(self, now, then),
            (Lever::DropSetting, RecordedFacts::MemoryFraction) => options::memory_fraction(self),
            (Lever::Sdpa, _) => self.first(wanted.sites, attention::change),
            (Lever::ResizeBeforeUpload, _) => {
                self.first(wanted.sites, |scene, site| Ok(upload::change(scene, site)))
            }
            (Lever::Checkpointing, _) => blocks::change(self, wanted.sites),
            (Lever::ActivationOffload, _) => self.first(wanted.sites, |scene, site| {
                around::forward(scene, site, "torch.autograd.graph.save_on_cpu()").map(Some)
            }),
            (Lever::AutocastBf16, _) => self.first(wanted.sites, |scene, site| {
                around::forward(scene, site, "torch.autocast(\"cuda\", dtype=torch.bfloat16)").map(Some)
            }),
            (Lever::FusedOptimizer | Lever::ForeachOff, _) => self
                .first(wanted.sites, |scene, site| options::optimizer(scene, site, wanted.lever).map(Some)),
            (Lever::PoolOnOom, _) => self.first(wanted.sites, |scene, _| pools::lend(scene)),
            (Lever::SharePool, _) => self.first(wanted.sites, |scene, _| pools::share(scene)),
            (Lever::CpuOnlyWorkers, _) => processes::workers(self),
            (Lever::EndOtherProcess, _) => processes::wait(self),
            _ => Err(Refusal::NotHere),
        }
    }

    /// Returns the edit of the first line that has one, or else the first reason. `None` stands for a line
    /// without a match.
    fn first(
        &self,
        sites: &[Site],
        change: impl Fn(&Scene<'_>, &Site) -> Result<Option<Edits>, Why>,
    ) -> Result<Change, Refusal> {
        let mut refusal = Refusal::NotHere;
        for site in sites {
            let Some(scene) = self.scene(&site.file) else { continue };
            let made = scene
                .is_current(site)
                .and_then(|()| change(&scene, site))
                .and_then(|edits| edits.map(|edits| edits.change(&scene)).transpose());
            match made {
                Ok(Some(change)) => return Ok(change),
                Err(why) if refusal == Refusal::NotHere => refusal = Refusal::Unproven(why),
                Ok(None) | Err(_) => {}
            }
        }
        Err(refusal)
    }
}

/// Collected edits of one file.
#[derive(Debug, Default)]
struct Edits(Vec<Edit>);

impl Edits {
    fn push(&mut self, edit: Edit) {
        if !self.0.contains(&edit) {
            self.0.push(edit);
        }
    }

    /// Inserts a line before the line of an offset, with the same indentation.
    fn line_before(&mut self, script: &Script, at: u32, text: &str) {
        let (start, blank) = script.facts.line_start(at);
        self.push(Edit::insert(start, format!("{blank}{text}{}", newline(script))));
    }

    /// Inserts a line after the last line of a span, with the indentation of its first line.
    fn line_behind(&mut self, script: &Script, span: Span, text: &str) {
        let (_, blank) = script.facts.line_start(span.start);
        let rest = &script.text[span.end as usize..];
        let edit = if let Some(at) = rest.find('\n') {
            Edit::insert(span.end + at as u32 + 1, format!("{blank}{text}{}", newline(script)))
        } else {
            Edit::insert(script.text.len() as u32, format!("{}{blank}{text}", newline(script)))
        };
        self.push(edit);
    }

    /// Adds `import MODULE` at the top of the file if it is missing.
    fn import(&mut self, script: &Script, module: &str) {
        let imports = || script.statements.iter().filter(|each| each.kind == StatementKind::Import);
        if imports().any(|each| each.imports(module)) {
            return;
        }
        let of_torch = imports().find(|each| script.slice(each.span).contains("torch"));
        let leading = script
            .statements
            .iter()
            .take_while(|each| matches!(each.kind, StatementKind::Import | StatementKind::Text))
            .last();
        match of_torch.or(leading) {
            Some(behind) => self.line_behind(script, behind.span, &format!("import {module}")),
            None => self.push(Edit::insert(0, format!("import {module}{}", newline(script)))),
        }
    }

    fn change(&self, scene: &Scene<'_>) -> Result<Change, Why> {
        let script = &scene.script;
        let first = self.0.iter().map(|edit| edit.span.start).min().ok_or("nothing would change")?;
        let after =
            apply_checked(&script.text, &self.0, Dialect::Python).map_err(|error| error.to_string())?;
        let diff = unified_diff(scene.file, scene.file, &script.text, &after);
        if diff.is_empty() {
            return Err("nothing would change".to_owned());
        }
        Ok(Change { file: scene.file.to_owned(), line: script.line_of(first), diff, after })
    }
}

fn newline(script: &Script) -> &'static str {
    if script.text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// Text of an expression as an operand, in parentheses if necessary.
fn operand(script: &Script, of: &memfit_source::Expression) -> String {
    use memfit_source::ExpressionKind as Kind;
    let text = script.slice(of.span);
    match of.kind {
        Kind::Name(_) | Kind::Number | Kind::Call { .. } | Kind::Attribute { .. } | Kind::Item { .. } => {
            text.to_owned()
        }
        _ => format!("({text})"),
    }
}

#[cfg(test)]
mod tests;

//! A plan as a change of the script's source, and whether the changed script fits.

use std::path::Path;

use memfit_patch::patch;
use memfit_plan::{Plan, Room};
use memfit_report::wire::{FixProof, PlanPatch, RejectedLever};

use super::Tries;
use crate::run::{self, Changes, Request};
use crate::{CliError, Printer};

/// Lines that stay, shown around a change.
const CONTEXT: usize = 3;

/// Writes a plan into the script, and runs what comes of it on the card with what a plan may take.
pub(crate) fn patched(
    tries: &mut Tries<'_>,
    plan: &Plan,
    script: &Path,
    printer: &Printer,
) -> Result<PlanPatch, CliError> {
    let text = std::fs::read_to_string(script).map_err(CliError::io("read", script))?;
    let changed = patch(&text, plan);
    let file = shown(script);
    let proof = if changed.text == text {
        None
    } else {
        printer.remark("running the changed script");
        Some(proven(tries, script, &changed.text)?)
    };
    Ok(PlanPatch {
        diff: diff(&file, &text, &changed.text),
        file,
        written: None,
        levers: changed.done.iter().map(|lever| lever.name().to_owned()).collect(),
        left: changed
            .left
            .into_iter()
            .map(|left| RejectedLever { lever: left.lever.name().to_owned(), why: left.why })
            .collect(),
        remarks: changed.remarks,
        proof,
    })
}

fn proven(tries: &mut Tries<'_>, script: &Path, text: &str) -> Result<FixProof, CliError> {
    let card = tries.card(Room::Budget);
    let request = Request { card, planned: None, ..tries.request.clone() };
    let path = std::fs::canonicalize(script).map_err(CliError::io("find", script))?;
    let files = [(path.display().to_string(), text.to_owned())].into();
    let outcome = tries.rehearsal.run_with(&request, &Changes { files, ..Changes::default() })?;
    let report = run::report(&request, &outcome);
    Ok(FixProof { verdict: report.verdict, steps: report.steps, peak: report.peak })
}

/// The script's path from here, as a change has to name it.
fn shown(script: &Path) -> String {
    let here = std::env::current_dir().ok();
    let inside = here.as_deref().and_then(|here| script.strip_prefix(here).ok()).unwrap_or(script);
    let path = inside.strip_prefix("./").unwrap_or(inside);
    path.display().to_string().trim_start_matches('/').to_owned()
}

fn diff(file: &str, before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    let changes = similar::TextDiff::from_lines(before, after);
    let (old, new) = (format!("a/{file}"), format!("b/{file}"));
    changes.unified_diff().context_radius(CONTEXT).header(&old, &new).to_string()
}

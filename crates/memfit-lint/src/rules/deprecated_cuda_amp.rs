//! # deprecated-cuda-amp
//!
//! ## What it does
//! Finds `torch.cuda.amp.autocast` and `torch.cuda.amp.GradScaler`.
//!
//! The names in `torch.cpu.amp`, and those in the submodules `autocast_mode` and `grad_scaler`, are found as
//! well. A file that also calls the new name is left alone, since the old one may be its fallback for earlier
//! releases.
//!
//! ## Why
//! The names are deprecated since PyTorch 2.4, and `torch.amp` provides them for all devices. Measured: 3
//! calls give 3 times a `FutureWarning`, and none with the new names. Projects whose requirements allow only
//! earlier releases, which have no `torch.amp.GradScaler`, have no finding.
//!
//! ## Example
//! ```python
//! with torch.cuda.amp.autocast():
//!     loss = criterion(model(x), y)
//! ```
//! Use instead:
//! ```python
//! with torch.amp.autocast("cuda"):
//!     loss = criterion(model(x), y)
//! ```
//!
//! ## Fix safety
//! Safe: the new names behave the same. An import and all calls of the imported name are changed together.
//!
//! ## References
//! - [torch.amp](https://docs.pytorch.org/docs/stable/amp.html)

use memfit_source::{Call, Span};

use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "deprecated-cuda-amp", severity: Severity::Warning, fixes: Fixes::Safe, on: true, check };

const MODULES: &[(&str, &str)] = &[
    ("torch.cuda.amp", "cuda"),
    ("torch.cuda.amp.autocast_mode", "cuda"),
    ("torch.cuda.amp.grad_scaler", "cuda"),
    ("torch.cpu.amp", "cpu"),
];

/// The release that deprecated the names.
const DEPRECATED: (u32, u32) = (2, 4);

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in &context.facts.calls {
        let Some((name, device)) = deprecated(call) else { continue };
        // If the new name is used as well, the old one is a fallback for older releases.
        let both = context.facts.calls.iter().any(|other| {
            other
                .path
                .as_deref()
                .is_some_and(|path| path == format!("torch.amp.{name}") || path == format!("torch.{name}"))
        });
        if both || has_other_source(context, call) || !context.torch.reaches(DEPRECATED) {
            continue;
        }
        let edits = mended(context, call, name, device);
        findings
            .report(call.callee, format!("`torch.{device}.amp.{name}` is deprecated: each call warns"))
            .help(format!("use `torch.amp.{name}(\"{device}\")`"))
            .fix(edits.and_then(|edits| Fix::safe(format!("Use `torch.amp.{name}`"), edits)));
    }
}

/// Name in `torch.amp` and the device of a deprecated call.
fn deprecated(call: &Call) -> Option<(&'static str, &'static str)> {
    let (module, name) = call.path.as_deref()?.rsplit_once('.')?;
    let (_, device) = MODULES.iter().find(|(known, _)| *known == module)?;
    let name = ["autocast", "GradScaler"].into_iter().find(|known| *known == name)?;
    Some((name, device))
}

/// Returns `true` if the called name is also imported from elsewhere, depending on the release.
fn has_other_source(context: &Context<'_>, call: &Call) -> bool {
    let name = context.slice(call.callee).split('.').next().unwrap_or_default();
    context.facts.imports.iter().any(|import| {
        !MODULES.iter().any(|(module, _)| *module == import.module)
            && import.module.starts_with("torch")
            && import.module != "torch.cuda"
            && import.names.iter().any(|(imported, bound)| {
                let full = format!("{}.{imported}.", import.module);
                bound == name && !call.path.as_deref().is_some_and(|path| path.starts_with(&full))
            })
    })
}

fn mended(context: &Context<'_>, call: &Call, name: &str, device: &str) -> Option<Vec<Edit>> {
    let facts = context.facts;
    let text = context.slice(call.callee);
    if text == format!("torch.{device}.amp.{name}") {
        return Some(vec![
            Edit::replace(call.callee, format!("torch.amp.{name}")),
            argument(call, name, device)?,
        ]);
    }
    // An imported name: the import and every call of the name are changed.
    let import = facts.imports.iter().find(|import| {
        MODULES.iter().any(|(module, _)| *module == import.module)
            && import.names.iter().any(|(_, bound)| bound == text)
    })?;
    if !import.names.iter().all(|(imported, _)| ["autocast", "GradScaler"].contains(&imported.as_str())) {
        return None;
    }
    let mut edits = vec![Edit::replace(import.module_span, "torch.amp")];
    for (imported, bound) in &import.names {
        let calls: Vec<&Call> = facts
            .calls
            .iter()
            .filter(|other| context.slice(other.callee) == bound && deprecated(other).is_some())
            .collect();
        // A name used without a call, such as a decorator, is left to the author.
        if uses(&facts.text, bound, import.span) != calls.len() {
            return None;
        }
        for other in calls {
            edits.push(argument(other, imported, device)?);
        }
    }
    Some(edits)
}

/// Number of occurrences of a name in a text, apart from imports.
fn uses(text: &str, name: &str, import: Span) -> usize {
    let part = |text: &str| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'))
            .filter(|word| *word == name)
            .count()
    };
    let (before, after) = (&text[..import.start as usize], &text[import.end as usize..]);
    part(before) + part(after)
}

/// Inserts the device as the first argument, and adds the keyword to a positional `enabled`.
fn argument(call: &Call, name: &str, device: &str) -> Option<Edit> {
    let open = call.parentheses.start + 1;
    let quoted = format!("\"{device}\"");
    match call.arguments.first() {
        None => Some(Edit::insert(open, quoted)),
        Some(first) if first.starred => None,
        Some(first) if first.name.is_none() && name == "autocast" => {
            // Only the first may be positional, since the order of the others differs.
            let alone = call.arguments.iter().skip(1).all(|argument| argument.name.is_some());
            alone.then(|| Edit::insert(first.span.start, format!("{quoted}, enabled=")))
        }
        Some(first) => Some(Edit::insert(first.span.start, format!("{quoted}, "))),
    }
}

//! # deprecated-cuda-amp
//!
//! ## What it does
//! Finds `torch.cuda.amp.autocast` and `torch.cuda.amp.GradScaler`.
//!
//! ## Why
//! The names are deprecated since PyTorch 2.4, and `torch.amp` has them for all devices. Measured: 3 calls
//! give 3 times a `FutureWarning`, and none with the new names.
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
//! Safe: the new names do the same. An import and all calls of what it imports are changed together.
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

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in &context.facts.calls {
        let Some((name, device)) = deprecated(call) else { continue };
        // Where the new name is used as well, the old one is for a release that has no other.
        let both = context.facts.calls.iter().any(|other| {
            other
                .path
                .as_deref()
                .is_some_and(|path| path == format!("torch.amp.{name}") || path == format!("torch.{name}"))
        });
        if both || has_other_source(context, call) {
            continue;
        }
        let edits = mended(context, call, name, device);
        findings
            .at(call.callee, format!("`torch.{device}.amp.{name}` is deprecated: each call warns"))
            .help(format!("use `torch.amp.{name}(\"{device}\")`"))
            .fix(edits.and_then(|edits| Fix::safe(format!("Use `torch.amp.{name}`"), edits)));
    }
}

/// The name in `torch.amp` and the device that a deprecated call is for.
fn deprecated(call: &Call) -> Option<(&'static str, &'static str)> {
    let (module, name) = call.path.as_deref()?.rsplit_once('.')?;
    let (_, device) = MODULES.iter().find(|(known, _)| *known == module)?;
    let name = ["autocast", "GradScaler"].into_iter().find(|known| *known == name)?;
    Some((name, device))
}

/// The name that is called is imported from elsewhere as well: which one it is depends on the release.
fn has_other_source(context: &Context<'_>, call: &Call) -> bool {
    let name = context.slice(call.callee).split('.').next().unwrap_or_default();
    context.facts.imports.iter().any(|import| {
        !MODULES.iter().any(|(module, _)| *module == import.module)
            && import.module.starts_with("torch")
            && import.module != "torch.cuda"
            && import.names.iter().any(|(_, bound)| bound == name)
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
    // By an import: that is changed, and with it every call of what it imports.
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
        // A name that is used without being called, as a decorator may be, is left to its author.
        if uses(&facts.text, bound, import.span) != calls.len() {
            return None;
        }
        for other in calls {
            edits.push(argument(other, imported, device)?);
        }
    }
    Some(edits)
}

/// How often a name stands in a text, apart from where it is imported.
fn uses(text: &str, name: &str, import: Span) -> usize {
    let part = |text: &str| {
        text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'))
            .filter(|word| *word == name)
            .count()
    };
    let (before, after) = (&text[..import.start as usize], &text[import.end as usize..]);
    part(before) + part(after)
}

/// Puts the device first; what was `enabled` by position gets its name.
fn argument(call: &Call, name: &str, device: &str) -> Option<Edit> {
    let open = call.parentheses.start + 1;
    let quoted = format!("\"{device}\"");
    match call.arguments.first() {
        None => Some(Edit::insert(open, quoted)),
        Some(first) if first.starred => None,
        Some(first) if first.name.is_none() && name == "autocast" => {
            // Only the first may be given by position: the order of the others differs.
            let alone = call.arguments.iter().skip(1).all(|argument| argument.name.is_some());
            alone.then(|| Edit::insert(first.span.start, format!("{quoted}, enabled=")))
        }
        Some(first) => Some(Edit::insert(first.span.start, format!("{quoted}, "))),
    }
}

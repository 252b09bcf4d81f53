//! Mixed precision: autocast for the forward pass and the loss, and a gradient scaler for fp16.

use memfit_source::{Call, Edit, OpKind};

use crate::Why;
use crate::draft::Draft;
use crate::training::Training;

/// Wraps the forward pass and the loss in `torch.autocast`.
pub(crate) fn autocast(draft: &mut Draft<'_>, dtype: &str, scaled: bool) -> Result<(), Why> {
    let training = draft.round()?;
    Training::check_only_backward(draft.facts)?;
    if scaled {
        scaler(draft)?;
    }
    if change_own_autocast(draft, training, dtype) {
        draft.import("torch");
        return Ok(());
    }
    draft.context = Some(format!("torch.autocast(\"cuda\", dtype=torch.{dtype})"));
    if training.forward == training.backward {
        draft.remark("the forward and the backward pass are in one statement, so both run under autocast");
    }
    draft.import("torch");
    Ok(())
}

/// Changes the script's own autocast, which would override an outer one. Returns `false` if there is none.
fn change_own_autocast(draft: &mut Draft<'_>, training: &Training<'_>, dtype: &str) -> bool {
    let facts = draft.facts;
    // An autocast within the block may exclude a part of it.
    let round = &training.suite[..=training.backward];
    let of_round = |call: &&Call| {
        let path = call.path.as_deref().unwrap_or_default();
        let mut heads = round.iter().flat_map(|statement| &statement.values);
        path.starts_with("torch.") && path.ends_with(".autocast") && heads.any(|head| head.span == call.span)
    };
    let mut found = false;
    for call in facts.calls.iter().filter(of_round) {
        found = true;
        if let Some(enabled) = call.keyword("enabled") {
            draft.edits.push(Edit::replace(enabled.value_span, "True"));
        }
        let wanted = format!("torch.{dtype}");
        draft.edits.push(match call.keyword("dtype") {
            Some(given) => Edit::replace(given.value_span, wanted),
            None => facts.add_argument(call, &format!("dtype={wanted}")),
        });
    }
    found
}

/// Scales the loss before its backward pass, and unscales gradients before they are used.
fn scaler(draft: &mut Draft<'_>) -> Result<(), Why> {
    let training = draft.round()?;
    if let Some(made) = draft.facts.scalers.first().and_then(|index| draft.facts.calls.get(*index)) {
        // The script has one, which may be disabled.
        if let Some(enabled) = made.keyword("enabled") {
            draft.edits.push(Edit { span: enabled.value_span, text: "True".to_owned() });
        }
        return Ok(());
    }
    if training.steps.is_empty() {
        return Err("the optimizer step is not in the loop with the backward pass".to_owned());
    }
    let plain = |kind: &OpKind| matches!(kind, OpKind::Step { scaled: false, closure: false });
    if !training.steps.iter().all(|step| plain(&step.kind)) {
        return Err("the optimizer steps with a closure, which a gradient scaler does not support".to_owned());
    }
    let name = draft.unused_name("scaler");
    draft.before.push(format!("{name} = torch.amp.GradScaler(\"cuda\")"));
    for step in &training.steps {
        let line = &draft.text[draft.line_start(step.span.start) as usize..step.span.start as usize];
        if !line.trim().is_empty() {
            return Err("there is other code on the line of the optimizer's step".to_owned());
        }
        draft.edits.push(Edit {
            span: step.span,
            text: format!("{name}.step({})\n{line}{name}.update()", step.receiver),
        });
    }
    let optimizer = training.steps[0].receiver.clone();
    if let Some(clip) = training.clips.first() {
        let start = draft.line_start(clip.span.start);
        let line = &draft.text[start as usize..];
        let indent = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
        draft.edits.push(Edit {
            span: memfit_source::Span::empty(start),
            text: format!("{indent}{name}.unscale_({optimizer})\n"),
        });
    }
    draft.scaler = Some(name);
    Ok(())
}

//! Activation checkpointing of a model's blocks.

use memfit_source::{Edit, Expression, ExpressionKind as Kind, Span, StatementKind};

use super::{Change, Edits, Refusal};
use crate::Why;
use crate::code::{Code, Scene, Script, Site};

/// Line of a forward pass that calls a block and binds the result to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCall {
    /// First line of its function; blocks of one function belong together.
    pub function: u32,
    /// `true` if it is in a loop, so that it calls several blocks.
    pub in_loop: bool,
}

/// Parts of a block's call.
struct BlockCallParts<'s> {
    call: &'s Expression,
    block: &'s Expression,
    function: u32,
    in_loop: bool,
}

impl Code<'_> {
    /// Block that a line calls, if it can be checkpointed.
    pub fn block_call(&self, file: &str, line: u32) -> Option<BlockCall> {
        let scene = self.scene(file)?;
        let found = called(&scene.script, line)?;
        Some(BlockCall { function: found.function, in_loop: found.in_loop })
    }
}

fn called(script: &Script, line: u32) -> Option<BlockCallParts<'_>> {
    let path = script.statement_at_line(line)?;
    let statement = path.statement();
    let ([target], [call]) = (&statement.targets[..], &statement.values[..]) else { return None };
    let (name, (block, arguments)) = (target.name()?, call.call()?);
    let function = path.function()?;
    let is_forward = matches!(function.name.as_deref(), Some("forward" | "__call__"));
    let starred = arguments.iter().any(|argument| argument.starred);
    let callee = script.slice(block.span);
    let in_loop = path.loops().next().is_some();
    let repeated = in_loop && arguments.iter().any(|argument| argument.value.mentions(name));
    let own = block.root() == Some("self") && block.path().is_some();
    let library = script.called(call.span).is_some() || callee.starts_with("torch.");
    let plain = !library && !callee.contains("checkpoint") && is_reference(block);
    let whole = statement.kind == StatementKind::Assign && !starred && !arguments.is_empty();
    (is_forward && plain && whole && (repeated || own)).then(|| BlockCallParts {
        call,
        block,
        function: script.line_of(function.span.start),
        in_loop,
    })
}

/// Returns `true` if an expression is a reference without a call.
fn is_reference(of: &Expression) -> bool {
    match &of.kind {
        Kind::Name(_) => true,
        Kind::Attribute { of, .. } => is_reference(of),
        Kind::Item { of, index } => is_reference(of) && !index.any(&|part| part.call().is_some()),
        _ => false,
    }
}

/// Wraps `x = block(x)` in `torch.utils.checkpoint`.
pub(super) fn change(code: &Code<'_>, sites: &[Site]) -> Result<Change, Refusal> {
    let first = sites.first().ok_or(Refusal::NotHere)?;
    let scene = code.scene(&first.file).ok_or(Refusal::NotHere)?;
    let script = &*scene.script;
    scene.is_current(first)?;
    counts_nothing(&scene)?;
    let mut edits = Edits::default();
    for site in sites.iter().filter(|site| site.file == first.file) {
        let found = called(script, site.line)
            .ok_or("the line calls no block whose activations could be recomputed")?;
        let call = script.facts.calls.iter().find(|call| call.span == found.call.span);
        let call = call.ok_or("the call is too complex to be rewritten")?;
        let head = Span::new(found.block.span.start, call.parentheses.start + 1);
        let block = script.slice(found.block.span);
        edits.push(Edit::replace(head, format!("torch.utils.checkpoint.checkpoint({block}, ")));
        edits.push(script.facts.add_argument(call, "use_reentrant=False"));
    }
    edits.import(script, "torch.utils.checkpoint");
    edits.change(&scene).map_err(Refusal::Unproven)
}

/// Reason why blocks with batch normalisation are not wrapped.
const BATCH_NORM: &str = "the file uses batch normalisation. Recomputation updates its statistics twice, which changes them: leave such blocks out, or use the lever `checkpointing` of `memfit.Step`, which updates them once";

/// Refuses blocks that count their calls, such as batch normalisation, since recomputation would count twice.
fn counts_nothing(scene: &Scene<'_>) -> Result<(), Why> {
    let facts = &scene.script.facts;
    let counted = facts.calls.iter().find(|call| {
        let path = call.path.as_deref().unwrap_or_default();
        path.starts_with("torch.nn.") && path.contains("BatchNorm")
    });
    if counted.is_some() || facts.classes.iter().any(|class| class.has_batch_norm) {
        return Err(BATCH_NORM.to_owned());
    }
    Ok(())
}

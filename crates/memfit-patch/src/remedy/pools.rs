//! Private pools: made available to other allocations on OOM, or shared by captured graphs.

use memfit_source::{Call, StatementKind};

use super::{Edits, newline};
use crate::Why;
use crate::code::{Code, Scene, Script, Site};

/// Name of the pool that graphs share.
const SHARED_POOL: &str = "GRAPH_POOL";

impl Code<'_> {
    /// First line that makes a private pool: a `MemPool`, or the capture of a graph.
    pub fn pool_maker(&self) -> Option<Site> {
        self.scenes().find_map(|scene| {
            let script = &*scene.script;
            let made = POOL_MAKERS.iter().flat_map(|maker| calls(script, maker));
            let reached = made.filter_map(|call| script.statement_around(call.span).map(|path| (call, path)));
            let (call, path) = reached.into_iter().find(|(_, path)| scene.was_reached(path))?;
            let function = path.function().and_then(|function| function.name.clone()).unwrap_or_default();
            Some(Site { file: scene.file.to_owned(), line: script.line_of(call.span.start), function })
        })
    }
}

/// Calls that make a private pool.
const POOL_MAKERS: [&str; 3] =
    ["torch.cuda.MemPool", "torch.cuda.graph", "torch.cuda.make_graphed_callables"];

/// Sets `torch.cuda.MemPool(use_on_oom=True)`.
pub(super) fn lend(scene: &Scene<'_>) -> Result<Option<Edits>, Why> {
    let script = &*scene.script;
    let made = calls(script, "torch.cuda.MemPool");
    let [call] = &made[..] else {
        let several = "the file creates several pools, and the recording does not show which one it is";
        return if made.is_empty() { Ok(None) } else { Err(several.to_owned()) };
    };
    if !call.arguments.is_empty() {
        return Err("the pool has its own settings".to_owned());
    }
    if !script.statement_around(call.span).is_some_and(|path| scene.was_reached(&path)) {
        return Err("the recording does not show that the line that creates the pool ran".to_owned());
    }
    let mut edits = Edits::default();
    edits.push(script.facts.add_argument(call, "use_on_oom=True"));
    Ok(Some(edits))
}

/// Makes the graphs of a file share one pool.
pub(super) fn share(scene: &Scene<'_>) -> Result<Option<Edits>, Why> {
    let script = &*scene.script;
    let shown =
        |call: &&Call| script.statement_around(call.span).is_some_and(|path| scene.was_reached(&path));
    let captures = calls(script, "torch.cuda.graph");
    let captures: Vec<&Call> = captures
        .into_iter()
        .filter(|call| call.argument(1, "pool").is_none() && !call.is_open())
        .filter(shown)
        .collect();
    if captures.is_empty() {
        return Ok(None);
    }
    if script.text.contains(SHARED_POOL) {
        return Err(format!("the file already uses the name `{SHARED_POOL}`"));
    }
    // After the imports, so that all captures can use it.
    let mut imports = script.statements.iter().filter(|each| each.kind == StatementKind::Import);
    let first = script
        .statements
        .iter()
        .find(|each| !matches!(each.kind, StatementKind::Import | StatementKind::Text));
    let last = imports
        .rfind(|each| first.is_none_or(|first| each.span.start < first.span.start))
        .ok_or("the file has no imports at the top")?;
    let mut edits = Edits::default();
    for call in captures {
        edits.push(script.facts.add_argument(call, &format!("pool={SHARED_POOL}")));
    }
    let newline = newline(script);
    edits.line_behind(script, last.span, &format!("{newline}{SHARED_POOL} = torch.cuda.graph_pool_handle()"));
    edits.import(script, "torch");
    Ok(Some(edits))
}

/// Calls of a function, without duplicates.
fn calls<'s>(script: &'s Script, path: &str) -> Vec<&'s Call> {
    let mut found: Vec<&Call> = script.facts.calls.iter().filter(|call| call.is(path)).collect();
    found.sort_by_key(|call| call.span);
    found.dedup_by_key(|call| call.span);
    found
}

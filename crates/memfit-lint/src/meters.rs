//! Meters of the project in dictionaries: `meters = {"loss": AverageMeter()}`, which a step gets and updates.

use std::collections::HashSet;

use memfit_source::{Facts, Grad, Statement, StatementKind, StoreKind};

use crate::query::{backwards, words};
use crate::rule::{Context, Findings};
use crate::tree::tree;

/// Adds the classes of a file whose `update` adds its argument, as it is, to a sum of the object.
pub(crate) fn add(facts: &Facts, meters: &mut HashSet<String>) {
    for store in facts.stores.iter().filter(|store| store.kind == StoreKind::Add) {
        let function = facts.function(store.site.function);
        let (Some(class), Some(value)) = (function.class, function.parameters.get(1)) else { continue };
        let added = facts.slice(store.value_span);
        let is_cut = ["item(", "detach(", "float(", ".data"].iter().any(|way| added.contains(way));
        if function.name.ends_with(".update")
            && store.target.starts_with("self.")
            && !is_cut
            && words(added).any(|word| word == value)
        {
            meters.insert(facts.class(class).name.clone());
        }
    }
}

/// Reports the losses that a step gives to such a meter.
pub(crate) fn report(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut statements: Option<Vec<Statement>> = None;
    for call in facts.calls.iter().filter(|call| call.is_method("update")) {
        let (Some(receiver), Some(first)) = (&call.receiver, call.arguments.first()) else { continue };
        let Some((container, _)) = context.slice(receiver.span).split_once('[') else { continue };
        let given = context.slice(first.value_span);
        // The loss itself, which the step differentiates.
        let is_loss = backwards(facts).any(|(op, backward)| {
            op.site.function == call.site.function
                && op.via.is_none()
                && context.slice(backward.loss_span) == given
        });
        let is_said = || findings.found.iter().any(|found| found.span == call.span);
        if !is_loss || call.site.grad == Grad::Off || is_said() || context.project.meters.is_empty() {
            continue;
        }
        let read = statements.get_or_insert_with(|| tree(context));
        if read.iter().any(|statement| holds_meters(context, statement, container)) {
            findings
                .report(
                    call.span,
                    format!("`{container}` has meters that sum their argument, which stays a tensor: the sum's graph grows by a node in every iteration"),
                )
                .help(format!("pass a number: `{given}.item()`"));
        }
    }
}

/// Returns `true` if a statement, or one in it, binds a name to a container of meters.
fn holds_meters(context: &Context<'_>, statement: &Statement, container: &str) -> bool {
    let mut found = false;
    statement.visit(&mut |inner| {
        let binds = inner.kind == StatementKind::Assign
            && inner.targets.iter().any(|target| context.slice(target.span) == container);
        let is_meter = |name: Option<&str>| name.is_some_and(|name| context.project.meters.contains(name));
        found |= binds && inner.values.iter().any(|value| value.any(&|part| is_meter(part.last_name())));
    });
    found
}

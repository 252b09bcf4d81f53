//! Meters of the project in dictionaries: `meters = {"loss": AverageMeter()}`, which a step gets and updates;
//! and statistics of a step that are added to those of all steps: `total.update(Statistics(loss))`.

use std::collections::HashSet;

use memfit_source::{Call, Facts, FunctionId, Grad, Kind, Statement, StatementKind, StoreKind};

use crate::query::{backwards, words};
use crate::rule::{Context, Findings, Meters, Statistics};
use crate::tree::tree;

/// Adds the classes of a file.
pub(crate) fn add(facts: &Facts, meters: &mut Meters) {
    add_sums(facts, &mut meters.sums);
    for store in facts.stores.iter().filter(|store| store.kind == StoreKind::Add) {
        let function = facts.function(store.site.function);
        let (Some(class), Some(attribute)) = (function.class, store.target.strip_prefix("self.")) else {
            continue;
        };
        let added = facts.slice(store.value_span);
        let is_of_other = function.parameters.iter().any(|other| {
            other != "self"
                && added.strip_prefix(other.as_str()).and_then(|rest| rest.strip_prefix('.'))
                    == Some(attribute)
        });
        let parameter = || {
            let kept = facts.stores.iter().find(|kept| {
                let there = facts.function(kept.site.function);
                kept.kind == StoreKind::Assign
                    && kept.target == store.target
                    && there.class == Some(class)
                    && there.is_constructor()
            })?;
            let name = facts.slice(kept.value_span);
            let parameters = &facts.function(kept.site.function).parameters;
            let position = parameters.iter().position(|parameter| parameter == name)?.checked_sub(1)?;
            Some((position, name.to_owned()))
        };
        let Some(parameter) = is_of_other.then(parameter).flatten() else { continue };
        let method = function.name.rsplit('.').next().unwrap_or_default().to_owned();
        meters.statistics.entry(facts.class(class).name.clone()).or_insert(Statistics { parameter, method });
    }
}

fn add_sums(facts: &Facts, meters: &mut HashSet<String>) {
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

/// Reports the losses of steps whose statistics are added up.
fn report_statistics(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let known = &context.project.meters.statistics;
    let class_of = |call: &Call| match call.target.kind {
        Kind::Class(class) => known.get(&facts.class(class).name),
        _ => known.get(call.path.as_deref()?.rsplit('.').next()?),
    };
    for call in facts.calls.iter().filter(|call| call.site.grad == Grad::On && !known.is_empty()) {
        let Some(class) = class_of(call) else { continue };
        let (position, name) = (class.parameter.0, class.parameter.1.as_str());
        let Some(given) = call.argument(position, name) else { continue };
        let is_differentiated = backwards(facts).any(|(op, backward)| {
            op.site.function == call.site.function
                && op.via.is_none()
                && given.value.graph.has_passes()
                && backward.loss.graph.contains(&given.value.graph)
        });
        let bound = facts.bound_to(call.span);
        let adds = |other: &&Call| {
            let is_given = |argument: &memfit_source::Argument| {
                argument.value_span == call.span || bound == Some(facts.slice(argument.value_span))
            };
            other.is_method(&class.method)
                && other.site.function == call.site.function
                && other.arguments.iter().any(is_given)
        };
        let is_repeated = call.site.looped.is_some() || call.site.function != FunctionId::MODULE;
        let added = facts.calls.iter().find(adds).filter(|_| is_differentiated && is_repeated);
        let Some(added) = added else { continue };
        let text = context.slice(given.value_span);
        findings
            .report(
                given.span,
                format!("`{text}` stays a tensor: the sum of all statistics grows by a node of its graph in every step"),
            )
            .label(added.span, "added here")
            .help(format!("pass a number: `{text}.item()`"));
    }
}

/// Reports the losses that a step gives to such a meter.
pub(crate) fn report(context: &Context<'_>, findings: &mut Findings<'_>) {
    report_statistics(context, findings);
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
        if !is_loss || call.site.grad == Grad::Off || is_said() || context.project.meters.sums.is_empty() {
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
        let is_meter =
            |name: Option<&str>| name.is_some_and(|name| context.project.meters.sums.contains(name));
        found |= binds && inner.values.iter().any(|value| value.any(&|part| is_meter(part.last_name())));
    });
    found
}

//! Steps that leave something behind: a few tensors, or their whole graph.

use std::collections::HashSet;

use memfit_allocator::Edit;
use memfit_recording::StackId;
use memfit_vocabulary::{Category, Cause, Label, Lever};

use super::{Finding, size};
use crate::bench::{Bench, replayed};
use crate::explanation::{Apply, Fact};
use crate::leaks::Leak;
use crate::origins::{Role, Site};
use crate::source::{Source, assigned, call_in, ends_statement, indent_of, is_word, replace_word};
use crate::story::Life;

/// So many tensors of each step stay, so it is a graph and not what somebody collects.
const TENSORS_OF_A_GRAPH: usize = 4;

pub(super) fn find(bench: &Bench<'_>, leaks: &[Leak]) -> Option<Finding> {
    let bytes: u64 = leaks.iter().map(|leak| leak.bytes).sum();
    let per_step: u64 = leaks.iter().map(|leak| leak.per_step).sum();
    // What grows by less than a thousandth of what is there in each step is no reason for anything.
    if leaks.is_empty() || per_step * 1000 < bench.story.trouble.allocated {
        return None;
    }
    let story = &bench.story;
    let now = story.period_of(story.trouble.moment);
    let blocks: HashSet<u32> = leaks.iter().flat_map(|leak| leak.blocks.iter().copied()).collect();
    // What the step under way has made so far it may yet let go by itself.
    let old: u64 = story
        .live()
        .filter(|life| blocks.contains(&life.index) && story.period_of(life.block.born) < now)
        .map(|life| life.block.bytes)
        .sum();
    let activations: u64 =
        leaks.iter().filter(|leak| leak.category == Category::Activations).map(|leak| leak.bytes).sum();
    // Of a graph, many tensors of a step stay, and most of what its forward made for the backward.
    let typical = now.saturating_sub(2);
    let made =
        |life: &&Life| life.category == Category::Activations && story.period_of(life.block.born) == typical;
    let stayed = || story.lives.iter().filter(made).filter(|life| blocks.contains(&life.index));
    let tensors = stayed().count();
    let stays: u64 = stayed().map(|life| life.block.bytes).sum();
    // Other forwards of the same step, of which nothing stays, have graphs of their own.
    let called = |life: &Life| story.origins.get(life.block.stack).caller;
    let callers: HashSet<Site> = stayed().filter_map(called).collect();
    let of_modules: u64 = stayed().filter(|life| called(life).is_some()).map(|life| life.block.bytes).sum();
    let same_forward = |life: &&Life| {
        of_modules * 2 <= stays || called(life).is_some_and(|caller| callers.contains(&caller))
    };
    let whole: u64 = story.lives.iter().filter(made).filter(same_forward).map(|life| life.block.bytes).sum();
    let graph = tensors >= TENSORS_OF_A_GRAPH && activations * 2 > bytes && stays * 5 >= whole * 2;
    let unused = story.trouble.reserved.saturating_sub(story.trouble.allocated);
    let steps = leaks.iter().map(|leak| leak.steps).max().unwrap_or(0);
    let first = leaks.first()?;
    let stack = story.lives.iter().find(|life| life.index == first.blocks[0]).map(|life| life.block.stack);
    let (part, parts) = if story.by_rounds { ("forward pass", "forward passes") } else { ("step", "steps") };
    let (cause, text) = if graph {
        let text = format!(
            "each {part} leaves {} behind, in {tensors} tensors of the forward: its whole graph is kept, {} of {steps} {parts} by now",
            size(per_step),
            size(bytes)
        );
        (Cause::RetainedGraph, text)
    } else {
        let text = format!(
            "each {part} leaves {} behind, {} of {steps} {parts} by now",
            size(per_step),
            size(bytes)
        );
        (Cause::Leaking, text)
    };
    let mut facts = vec![bench.fact(text, bytes, stack)];
    if let Some(step) = first.dies_at.filter(|_| story.trouble.requested.is_none()) {
        facts.push(bench.fact(format!("at that rate memory runs out in {part} {step}"), per_step, None));
    }
    let end_of = |block: u32| -> Edit {
        let Some(life) =
            story.lives.binary_search_by_key(&block, |life| life.index).ok().map(|at| &story.lives[at])
        else {
            return Edit::Keep;
        };
        if !blocks.contains(&block) {
            return Edit::Keep;
        }
        story.periods().get(story.period_of(life.block.born)).map_or(Edit::Keep, |end| Edit::FreeAt(*end))
    };
    let then = bench.replay(&bench.program, &bench.case.given, end_of);
    let (kept, released) = edits(bench, leaks, graph);
    let keeper = kept.as_ref().map(|(_, keeper)| *keeper);
    if let Some(line) = keeper.filter(|keeper| facts[0].lines.iter().all(|line| line.line != keeper.line)) {
        let lines = vec![bench.line(line)];
        facts.push(Fact { text: "and this line keeps it".to_owned(), bytes: per_step, lines });
    }
    let kept = kept.map(|(apply, _)| apply);
    let fix = if graph {
        let how = "keep no tensor with a graph from step to step: `.item()` or `.detach()` what is added up, `.detach()` what is carried over, and no `retain_graph=True` where one backward is enough";
        replayed(
            Lever::ReleaseGraph,
            Label::Exact,
            how.to_owned(),
            &then,
            released.or(kept).unwrap_or_default(),
        )
    } else {
        let how = "keep what is collected from step to step without its graph and off the card: `.detach().cpu()`, or `.item()` for a number";
        replayed(
            Lever::KeepOffTheCard,
            Label::Exact,
            how.to_owned(),
            &then,
            kept.or(released).unwrap_or_default(),
        )
    };
    let enough = match story.trouble.requested {
        // What is left behind has to be what fills the card, and not a trickle beside something else.
        Some(_) => bench.enough(old) == Some(true) && old * 4 >= story.trouble.allocated && old >= unused,
        None => true,
    };
    Some(Finding { cause, bytes, enough, facts, fixes: vec![fix] })
}

/// Changes of the lines that keep: of what is collected, with the line, and of the graph.
fn edits(bench: &Bench<'_>, leaks: &[Leak], graph: bool) -> (Option<(Apply, Site)>, Option<Apply>) {
    let story = &bench.story;
    let mut stacks: Vec<StackId> = Vec::new();
    for leak in leaks.iter().take(8) {
        let newest = leak.blocks.iter().rev().take(1);
        for block in newest {
            if let Ok(at) = story.lives.binary_search_by_key(block, |life| life.index) {
                stacks.push(story.lives[at].block.stack);
            }
        }
    }
    let mut kept = None;
    for stack in &stacks {
        for site in &story.origins.get(*stack).user {
            let Some(mut source) = bench.source(*site) else { continue };
            if kept.is_none()
                && let Some(line) = keep_off_the_card(&mut source, site.line, graph)
            {
                kept = source.edit().map(|apply| (apply, Site { line, ..*site }));
            }
        }
    }
    let backward =
        story.lives.iter().rev().filter(|life| life.role == Role::Backward).map(|life| life.block.stack);
    let users =
        backward.chain(stacks.iter().copied()).find(|stack| story.origins.get(*stack).site().is_some());
    let released = users.and_then(|stack| {
        story.origins.get(stack).user.iter().find_map(|site| {
            let mut source = bench.source(*site)?;
            let changed = release_graph(&mut source);
            let carried = detach_carried(&mut source);
            let collected = !carried && collected_loss(&mut source);
            (changed || carried || collected).then(|| source.edit()).flatten()
        })
    });
    (kept, released)
}

/// `history.append(out)`, where `out` comes of the line: without its graph and off the card. Gives the first
/// line that keeps it.
fn keep_off_the_card(source: &mut Source, line: u32, graph: bool) -> Option<u32> {
    let text = source.line(line).to_owned();
    let by = |name: &str| if graph { format!("{name}.detach()") } else { format!("{name}.detach().cpu()") };
    // `history.append(model(x))`
    if let Some((callee, argument)) = call_in(&text).filter(|(callee, _)| callee.ends_with(".append"))
        && argument.contains('(')
    {
        let inner = by(&format!("({argument})"));
        source.replace(line, format!("{}{callee}({inner})", indent_of(&text)));
        return Some(line);
    }
    if let Some(new) = added_up_without_graph(source, &text) {
        source.replace(line, new);
        return Some(line);
    }
    let (names, _) = assigned(&text)?;
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let lines: Vec<(u32, String)> = source.lines().map(|(number, text)| (number, text.to_owned())).collect();
    let end = crate::source::loop_end(source, line).map_or(source.len(), |(last, _)| last);
    let mut first = None;
    for (number, text) in lines.iter().filter(|(number, _)| *number > line && *number <= end) {
        for name in &names {
            if let Some(new) = kept_without_graph(text, name, &by(name)) {
                source.replace(*number, new);
                first.get_or_insert(*number);
            }
        }
    }
    if first.is_some() {
        return first;
    }
    // Nothing keeps it here: then somebody that it is handed to does.
    for (number, text) in lines.iter().filter(|(number, _)| *number > line && *number <= end) {
        for name in &names {
            if let Some(new) = handed_on_without_graph(text, name, &by(name)) {
                source.replace(*number, new);
                first.get_or_insert(*number);
            }
        }
    }
    first
}

/// `total = total + model(x).mean()`, or with `+=`, in a loop: what is added comes without its graph, unless
/// a backward starts from the total.
fn added_up_without_graph(source: &Source, text: &str) -> Option<String> {
    let trimmed = text.trim();
    let (target, value) = trimmed.split_once('=')?;
    let (name, added, by) = if let Some(name) = target.trim_end().strip_suffix('+') {
        (name.trim(), value.trim(), "+=")
    } else {
        let name = target.trim();
        (name, value.trim().strip_prefix(name)?.trim_start().strip_prefix('+')?.trim(), "=")
    };
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    let whole = ends_statement(text) && added.ends_with(')') && !added.contains(" if ");
    let without = [".item()", ".detach()", ".cpu()"].iter().any(|call| added.contains(call));
    let differentiated = source.lines().any(|(_, line)| line.contains(&format!("{name}.backward(")));
    let before = if by == "=" { format!("{name} + ") } else { String::new() };
    (plain && whole && !without && !differentiated)
        .then(|| format!("{}{name} {by} {before}({added}).detach()", indent_of(text)))
}

/// `logger.log("out", out)`: a call whose answer nobody wants, so what it is given is all that it is for.
fn handed_on_without_graph(text: &str, name: &str, by: &str) -> Option<String> {
    let (callee, arguments) = call_in(text)?;
    let (object, method) = callee.rsplit_once('.')?;
    let trains = matches!(method, "backward" | "step" | "scale" | "zero_grad" | "manual_backward");
    if trains || matches!(object, "torch" | "F") || object.starts_with("torch.") {
        return None;
    }
    let whole = arguments.split(',').any(|argument| argument.trim() == name);
    whole.then(|| format!("{}{callee}({})", indent_of(text), replace_word(arguments, name, by)))
}

/// A line that keeps a name beyond the step, with something else kept in its place.
#[expect(clippy::case_sensitive_file_extension_comparisons, reason = "a method's name, and no file's")]
fn kept_without_graph(text: &str, name: &str, by: &str) -> Option<String> {
    let trimmed = text.trim();
    if let Some((callee, argument)) = call_in(trimmed)
        && (callee.ends_with(".append") || callee.ends_with(".add"))
        && is_word(argument, name)
        && !argument.contains(".item()")
        && !argument.contains(".cpu()")
    {
        return Some(format!("{}{callee}({})", indent_of(text), replace_word(argument, name, by)));
    }
    if let Some((target, value)) = trimmed.split_once("+=")
        && is_word(value, name)
        && !value.contains(".item()")
    {
        let replaced = replace_word(value.trim(), name, &format!("{name}.detach()"));
        return Some(format!("{}{}+= {replaced}", indent_of(text), target));
    }
    // `kept[key] = out`
    let (target, value) = trimmed.split_once('=')?;
    let subscript = target.trim_end().ends_with(']') && !target.contains('(');
    (subscript && is_word(value, name) && !value.contains(".cpu()") && !value.contains(".item()"))
        .then(|| format!("{}{target}= {}", indent_of(text), replace_word(value.trim(), name, by)))
}

/// `loss.backward(retain_graph=True)` lets go.
fn release_graph(source: &mut Source) -> bool {
    let lines: Vec<(u32, String)> = source.lines().map(|(number, text)| (number, text.to_owned())).collect();
    let mut changed = false;
    for (number, text) in lines {
        if !text.contains(".backward(") {
            continue;
        }
        let new = text
            .replace(", retain_graph=True", "")
            .replace("retain_graph=True, ", "")
            .replace("retain_graph=True", "");
        if new != text {
            source.replace(number, new);
            changed = true;
        }
    }
    changed
}

/// `out, state = model(x, state)`: what is carried over comes without its graph.
fn detach_carried(source: &mut Source) -> bool {
    let lines: Vec<(u32, String)> = source.lines().map(|(number, text)| (number, text.to_owned())).collect();
    for (number, text) in &lines {
        let Some((names, value)) = assigned(text) else { continue };
        let Some((_, arguments)) = call_in(value) else { continue };
        let in_loop = crate::source::loop_end(source, *number).is_some();
        let in_forward = crate::source::enclosing_def(source, *number)
            .is_some_and(|def| source.line(def).contains("def forward"));
        let carried = names.iter().find(|name| names.len() > 1 && is_word(arguments, name));
        if let Some(name) = carried.filter(|_| in_loop && !in_forward) {
            let indent = indent_of(text);
            source.insert_before(*number, format!("{indent}if {name} is not None:"));
            source.insert_before(
                *number,
                format!("{indent}    {name} = tuple(part.detach() for part in {name}) if isinstance({name}, tuple) else {name}.detach()"),
            );
            return true;
        }
    }
    false
}

/// `total += loss`, where `loss` is what the backward starts from.
fn collected_loss(source: &mut Source) -> bool {
    let lines: Vec<(u32, String)> = source.lines().map(|(number, text)| (number, text.to_owned())).collect();
    let losses: HashSet<String> = lines
        .iter()
        .filter_map(|(_, text)| text.trim().split_once(".backward(").map(|(name, _)| name.to_owned()))
        .filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
        .collect();
    let mut changed = false;
    for (number, text) in &lines {
        for name in &losses {
            if let Some(new) = kept_without_graph(text, name, &format!("{name}.detach()")) {
                source.replace(*number, new);
                changed = true;
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_on_goes_without_its_graph() {
        for (text, expected) in [
            ("    logger.log(\"out\", out)", Some("    logger.log(\"out\", out.detach())")),
            (
                "    meter.update(out, n=out.shape[0])",
                Some("    meter.update(out.detach(), n=out.detach().shape[0])"),
            ),
            ("    scaler.scale(out)", None),
            ("    out.backward()", None),
            ("    y = logger.log(out)", None),
            ("    print(out)", None),
            ("    torch.save(out, path)", None),
        ] {
            assert_eq!(handed_on_without_graph(text, "out", "out.detach()").as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_added_up_comes_without_its_graph() {
        for (text, behind, expected) in [
            ("    liked = liked + net(x).mean()", "", Some("    liked = liked + (net(x).mean()).detach()")),
            ("    self.liked += net(x).mean()", "", Some("    self.liked += (net(x).mean()).detach()")),
            ("    total += net(x).mean()", "total.backward()\n", None),
            ("    total += net(x).item()", "", None),
            ("    total += net(x).mean() if x else zero()", "", None),
            ("    total = other + net(x).mean()", "", None),
            ("    total = net(", "", None),
            ("    total == net(x)", "", None),
        ] {
            let source = Source::new("train.py", &format!("for x in loader:\n{text}\n{behind}"));
            assert_eq!(added_up_without_graph(&source, text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_kept_is_kept_without_its_graph() {
        for (text, expected) in [
            ("    history.append(out)", Some("    history.append(out.detach().cpu())")),
            ("    history.append((step, out))", Some("    history.append((step, out.detach().cpu()))")),
            ("    history.append(out.item())", None),
            ("    kept[step] = out", Some("    kept[step] = out.detach().cpu()")),
            ("    total += out", Some("    total += out.detach()")),
            ("    other.append(loss)", None),
            ("    y = out", None),
        ] {
            let found = kept_without_graph(text, "out", "out.detach().cpu()");
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}

//! Whether the forward runs under autocast already: what stands around the model's call says so, or what the
//! forward made does.

use std::collections::{BTreeMap, HashMap};

use memfit_recording::StackId;
use memfit_vocabulary::Category;

use crate::bench::Bench;
use crate::origins::Role;
use crate::source::{Source, contexts_around, statement_at};

/// Parameters of fewer bytes are biases and scales, which stay as they are.
const SMALLEST_WEIGHT: u64 = 32 << 10;

/// Whether autocast is on already, as far as can be told.
pub(super) fn is_on(bench: &Bench<'_>) -> bool {
    is_around_the_call(bench) || weights_are_cast(bench)
}

/// Whether the model is called within a `with` of it, wherever up the stack that stands.
fn is_around_the_call(bench: &Bench<'_>) -> bool {
    let story = &bench.story;
    let stacks = std::iter::once(story.trouble.stack);
    let stacks = stacks.chain(story.lives.iter().rev().map(|life| life.block.stack));
    let called = stacks.map(|stack| story.origins.get(stack)).find(|origin| origin.caller.is_some());
    called.is_some_and(|origin| {
        origin.user.iter().any(|site| bench.source(*site).is_some_and(|source| is_around(&source, site.line)))
    })
}

/// Whether a line stands under autocast: written out, or under a name.
fn is_around(source: &Source, line: u32) -> bool {
    contexts_around(source, line)
        .iter()
        .any(|context| turns_on(context) || parts(context).any(|part| names_it(source, part)))
}

/// Whether a text is a use of autocast that nothing turns off: what a flag decides is not known.
fn turns_on(text: &str) -> bool {
    let code = without_remark(text);
    let by_flag = code.split("enabled=").nth(1).is_some_and(|value| !value.trim_start().starts_with("True"));
    code.contains("autocast(") && !by_flag
}

fn without_remark(text: &str) -> &str {
    text.split('#').next().unwrap_or_default()
}

/// The names in a text, and those of their attributes.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let names = without_remark(text).split(|c: char| !c.is_alphanumeric() && c != '_');
    names.filter(|part| !part.is_empty())
}

/// Whether a name stands for it somewhere in the file: assigned, or a function that makes it.
fn names_it(source: &Source, name: &str) -> bool {
    source.lines().any(|(number, text)| {
        let stored = text.split_once('=').filter(|(_, value)| !value.starts_with('='));
        let target = stored.map(|(target, _)| target.split(':').next().unwrap_or_default());
        if target.is_some_and(|target| !target.contains('(') && parts(target).last() == Some(name)) {
            return turns_on(&statement_at(source, number));
        }
        let makes = text.trim_start().strip_prefix("def ").and_then(|rest| rest.split('(').next());
        makes == Some(name) && {
            let indent = text.len() - text.trim_start().len();
            let inside = |text: &str| text.trim().is_empty() || text.len() - text.trim_start().len() > indent;
            source
                .lines()
                .skip(number as usize)
                .take_while(|(_, text)| inside(text))
                .any(|(_, text)| text.trim_start().starts_with("return") && turns_on(text))
        }
    })
}

/// Whether the forward makes copies of the weights in half their size, as autocast does before it multiplies
/// by them: beside each copy the same line makes something else of it.
fn weights_are_cast(bench: &Bench<'_>) -> bool {
    let story = &bench.story;
    let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
    // By line and size, what the forward makes.
    let mut made: HashMap<StackId, BTreeMap<u64, u64>> = HashMap::new();
    for life in &story.lives {
        let role = story.origins.get(life.block.stack).role;
        match life.category {
            Category::Parameters if life.asked() >= SMALLEST_WEIGHT => {
                *weights.entry(life.asked()).or_default() += 1;
            }
            Category::Parameters | Category::Gradients | Category::Optimizer | Category::Buffers => {}
            _ if matches!(role, Role::Forward | Role::Plain) => {
                *made.entry(life.block.stack).or_default().entry(life.asked()).or_default() += 1;
            }
            _ => {}
        }
    }
    let copies_of = |size: u64| -> u64 {
        let of_line = made.values().map(|sizes| {
            let copies = sizes.get(&(size / 2)).copied().unwrap_or(0);
            let beside = sizes.values().sum::<u64>() - copies;
            copies.min(beside)
        });
        of_line.sum()
    };
    let all: u64 = weights.iter().map(|(size, count)| size * count).sum();
    let cast: u64 = weights.iter().map(|(size, count)| size * count.min(&copies_of(*size))).sum();
    all > 0 && cast > all / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_under_autocast_whatever_it_is_called() {
        let step = "    for batch in loader:\n        with ctx:\n            loss = model(batch)\n";
        for (before, around, expected) in [
            ("ctx = torch.autocast(\"cuda\", dtype=torch.bfloat16)\n", step, true),
            (
                "ctx = nullcontext() if cpu else torch.amp.autocast(device_type=\"cuda\", dtype=kind)\n",
                step,
                true,
            ),
            ("ctx = torch.autocast(\n    device_type=\"cuda\",\n    dtype=torch.float16,\n)\n", step, true),
            ("ctx = torch.autocast(\"cuda\", enabled=True)\n", step, true),
            ("ctx = torch.autocast(\"cuda\", enabled=False)\n", step, false),
            ("ctx = torch.autocast(\"cuda\", enabled=args.amp)\n", step, false),
            ("ctx = torch.no_grad()  # not autocast\n", step, false),
            ("other = torch.autocast(\"cuda\")\n", step, false),
            ("", "    with torch.autocast(\"cuda\"), timer:\n        loss = model(batch)\n", true),
            (
                "",
                "    with (\n        torch.autocast(\"cuda\"),\n        timer,\n    ):\n        loss = model(batch)\n",
                true,
            ),
            ("", "    with torch.autocast(\"cuda\"):\n        pass\n    loss = model(batch)\n", false),
            (
                "def half():\n    return torch.autocast(\"cuda\")\n",
                "    with half():\n        loss = model(batch)\n",
                true,
            ),
            ("def half():\n    return None\n", "    with half():\n        loss = model(batch)\n", false),
            (
                "self.half = torch.autocast(\"cuda\")\n",
                "    with self.half:\n        loss = model(batch)\n",
                true,
            ),
        ] {
            for decorated in ["", "@profile\n"] {
                let text = format!("{before}{decorated}def train(model, loader):\n{around}");
                let line = text.lines().position(|line| line.contains("model(batch)")).unwrap() as u32 + 1;
                assert_eq!(is_around(&Source::new("train.py", &text), line), expected, "{text}");
            }
        }
        let decorated = "@torch.autocast(\"cuda\")\ndef train(model, batch):\n    return model(batch)\n";
        assert!(is_around(&Source::new("train.py", decorated), 3));
        assert!(!is_around(&Source::new("train.py", &format!("{decorated}\nmodel(batch)\n")), 5));
    }
}

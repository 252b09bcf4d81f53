//! Lines that keep a value, also where it is handed on before it is stored.

use super::*;

fn code_of<'given>(text: &str, at: &[&str], read: &'given dyn Fn(&str) -> Option<String>) -> Code<'given> {
    Code::new(read, Ran::new(sites(text, at), Some(FILE.to_owned())))
}

/// Line that keeps what the marked lines compute.
fn keeper(text: &str, at: &[&str]) -> Option<String> {
    let read = |file: &str| (file == FILE).then(|| text.to_owned());
    let code = code_of(text, at, &read);
    let kept = code.keeper(&sites(text, at))?;
    code.line(&kept.file, kept.line)
}

#[test]
fn a_value_is_followed_to_the_function_that_stores_it() {
    const REPLAY: &str = "\
class Agent:
    def remember(self, obs, reward):
        self.memory.append((obs, reward))

def main():
    for step in range(9):
        following, reward = env.step(action)
        agent.remember(obs, 0)
        obs = following
";
    assert_eq!(keeper(REPLAY, &["env.step(action)"]).as_deref(), Some("self.memory.append((obs, reward))"));
    // A number is not a tensor, and a function that stores something else keeps nothing.
    for (from, to) in [("(obs, 0)", "(obs.mean().item(), 0)"), ("((obs, reward))", "(reward)")] {
        assert_eq!(keeper(&REPLAY.replace(from, to), &["env.step(action)"]), None, "{to}");
    }
    // A text holds no graph.
    assert_eq!(keeper(&REPLAY.replace("(obs, 0)", "(f\"{obs}\", 0)"), &["env.step(action)"]), None);
    // A function that calls itself, and one that hands a value on to another.
    let again = REPLAY.replace("self.memory.append((obs, reward))", "self.remember(obs, reward)");
    assert_eq!(keeper(&again, &["env.step(action)"]), None);
    let further = REPLAY
        .replace("self.memory.append((obs, reward))", "self.store(obs)")
        .replace("def main", "    def store(self, what):\n        self.memory.append(what)\n\ndef main");
    assert_eq!(keeper(&further, &["env.step(action)"]).as_deref(), Some("self.memory.append(what)"));
    // A name that is bound to something else is another value.
    assert_eq!(keeper(&REPLAY.replace("obs = following", "obs = make()"), &["env.step(action)"]), None);
    // A line that was not reached computes nothing that is stored.
    let read = |file: &str| (file == FILE).then(|| REPLAY.to_owned());
    let code = code_of(REPLAY, &["def main"], &read);
    assert_eq!(code.keeper(&sites(REPLAY, &["env.step(action)"])), None);
    // A name that two functions have is not followed.
    let twice = format!("{REPLAY}\ndef remember(obs, reward):\n    pass\n");
    assert_eq!(keeper(&twice, &["env.step(action)"]), None);
}

#[test]
fn a_hook_that_stores_what_a_module_returns_is_found() {
    const HOOK: &str = "\
class Camera:
    def __init__(self, layer):
        layer.register_forward_hook(self.see)

    def see(self, module, inputs, output):
        self.seen.append(output.detach())

cam = Camera(model.features)
";
    let found = |text: &str| {
        let read = |file: &str| (file == FILE).then(|| text.to_owned());
        let code = code_of(text, &["cam ="], &read);
        code.storing_hook().and_then(|site| code.line(&site.file, site.line))
    };
    assert_eq!(found(HOOK).as_deref(), Some("self.seen.append(output.detach())"));
    for (from, to) in [
        (".detach())", ".detach().cpu())"),
        ("self.seen.append(", "print("),
        ("register_forward_hook", "add"),
    ] {
        assert_eq!(found(&HOOK.replace(from, to)), None, "{to}");
    }
}

#[test]
fn a_hook_that_a_function_makes_is_found() {
    const MADE: &str = "\
def watch(model, store):
    def make(name):
        def hook(module, args, output):
            store[name].append(args[0].detach())
        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(make(name))

watch(model, kept)
";
    const PARTIAL: &str = "\
def keep(name, module, args, output):
    kept[name].append(args[0].detach())

for name, module in model.named_modules():
    module.register_forward_pre_hook(functools.partial(keep, name))
";
    for (text, at, line) in [
        (MADE, "watch(model, kept)", Some("store[name].append(args[0].detach())")),
        (PARTIAL, "module.register", Some("kept[name].append(args[0].detach())")),
        (&MADE.replace("return hook", "return print"), "watch(model, kept)", None),
        (&MADE.replace("make(name))", "other(name))"), "watch(model, kept)", None),
    ] {
        let read = |file: &str| (file == FILE).then(|| text.to_owned());
        let found = code_of(text, &[at], &read).storing_hook();
        let found = found.and_then(|site| code_of(text, &[at], &read).line(&site.file, site.line));
        assert_eq!(found.as_deref(), line, "{text}");
    }
}

#[test]
fn a_running_mean_loses_the_graph_of_what_it_is_computed_from() {
    let keeps = "gap = distance(out, y)\n        mean = 0.9 * mean + 0.1 * gap";
    let text = training(keeps, "print(float(mean))").replace("total = 0.0", "mean = 0.0");
    let change = change_kept(&text, Lever::ReleaseGraph, &["out = model"]).unwrap();
    assert_eq!(lines(&change)[1], "+        mean = (0.9 * mean + 0.1 * gap).detach()");
    // A backward pass goes through it.
    let text = text.replace("loss = crit(out, y)", "loss = crit(out, y) + mean");
    let why = refused(change_kept(&text, Lever::ReleaseGraph, &["out = model"]));
    assert!(why.contains("backward pass goes through it"), "{why}");
}

#[test]
fn the_line_that_makes_a_private_pool_is_found_if_it_was_reached() {
    let maker = |text: &str, at: &[&str]| {
        let read = |file: &str| (file == FILE).then(|| text.to_owned());
        let code = code_of(text, at, &read);
        code.pool_maker().and_then(|site| code.line(&site.file, site.line))
    };
    let text = "import torch\n\ndef train():\n    POOL\n    model(x)\n\ndef other():\n    pass\n";
    for pool in ["pool = torch.cuda.MemPool()", "with torch.cuda.graph(graph): step()"] {
        let text = text.replace("POOL", pool);
        assert_eq!(maker(&text, &["model(x)"]).as_deref(), Some(pool));
        assert_eq!(maker(&text, &["pass"]), None, "the function did not run");
    }
}

#[test]
fn values_of_a_generator_are_also_dropped_by_the_loop_that_gets_them() {
    const GENERATOR: &str = "\
def extract(names):
    for name in names:
        features = encoder(name)
        yield name, features

def main(names):
    for name, held in extract(names):
        table.add(held.mean().item())
    print(table)
";
    let known = RecordedFacts::Leftovers { step: None, gradients: false };
    let dropped = |text: &str| {
        let at = ["features = encoder", "for name, held"];
        lines(&changed_in(text, Lever::DropVariables, &at, &at, Some(known), true).unwrap())
    };
    assert_eq!(dropped(GENERATOR), ["+        del features", "+        del held"]);
    // The last one is read after the loop.
    let read = GENERATOR.replace("print(table)", "print(held)");
    assert_eq!(dropped(&read), ["+        del features"]);
    // An outer loop that binds the same name binds it again before it is read.
    let nested = GENERATOR.replace(
        "    for name, held in extract(names):\n        table",
        "    for held in range(3):\n        for name, held in extract(names):\n            table",
    );
    assert_eq!(dropped(&nested), ["+        del features", "+            del held"]);
}

#[test]
fn an_object_that_holds_tensors_is_not_detached() {
    const NODE: &str = "\nclass Node:\n    def __init__(self, out):\n        self.out = out\n";
    for made in ["Node(out)", "{\"out\": out}", "[out, y]", "dict(out=out)"] {
        let text = training(&format!("entry = {made}\n        history.append(entry)"), "") + NODE;
        for (lever, at) in [(Lever::ReleaseGraph, "out = model"), (Lever::KeepOnCpu, "entry =")] {
            let why = refused(change_kept(&text, lever, &[at]));
            assert!(why.contains("`entry` is an object that holds tensors"), "{made}: {why}");
        }
    }
    // The return value of a function may be a tensor.
    let text = training("entry = fold(out)\n        history.append(entry)", "") + NODE;
    let change = change_kept(&text, Lever::KeepOnCpu, &["entry ="]).unwrap();
    assert_eq!(lines(&change)[1], "+        history.append(entry.detach().cpu())");
}

#[test]
fn a_number_that_a_function_returns_is_not_detached() {
    for (body, is_number) in [
        (
            "    parts = []\n    for part in out:\n        parts.append((part > 0).sum().item())\n    return sum(parts) / 3\n",
            true,
        ),
        ("    return (out > 0).float().mean().item()\n", true),
        ("    total = 0.0\n    total += float(out.mean())\n    return total\n", true),
        ("    return out.square().mean()\n", false),
        (
            "    count = len(out)\n    parts = [part.mean() for part in out]\n    return torch.stack(parts)\n",
            false,
        ),
    ] {
        let function = format!("\ndef fold(out):\n{body}");
        for kept in ["history.append(fold(out))", "entry = fold(out)\n        history.append(entry)"] {
            let text = training(kept, "") + &function;
            let at = kept.lines().next().unwrap_or_default();
            for lever in [Lever::ReleaseGraph, Lever::KeepOnCpu] {
                let change = change_kept(&text, lever, &[at]);
                if is_number {
                    let why = refused(change);
                    assert!(why.contains("may be a number, not a tensor"), "{body}: {why}");
                } else {
                    assert!(change.is_ok(), "{body}: {change:?}");
                }
            }
        }
    }
}

#[test]
fn a_sum_that_a_backward_pass_goes_through_keeps_nothing() {
    for (after, kept) in
        [("print(total.item())", Some("total += out.mean()")), ("(total / 3).backward()", None)]
    {
        let text = training("total += out.mean()", after);
        assert_eq!(keeper(&text, &["out = model"]).as_deref(), kept, "{after}");
    }
}

//! Python syntax up to 3.15: the constructs of each release are parsed and analysed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::Arc;

use memfit_source::{Dialect, Facts, Kind, NoModules, facts};

fn read(text: &str) -> Facts {
    facts(&Arc::from(text), Dialect::Python, &NoModules).unwrap()
}

/// Each contains a call of `torch.save`, which must be found.
const CONSTRUCTS: &[(&str, &str)] = &[
    ("3.8, assignment expressions", "if (x := torch.save(a, b)):\n    pass\n"),
    ("3.8, positional-only parameters", "def f(a, /, b, *, c):\n    torch.save(a, b)\n"),
    ("3.9, any expression as a decorator", "@table[0].of(1)\ndef f():\n    torch.save(a, b)\n"),
    (
        "3.10, patterns",
        "match x:\n    case {\"a\": [1, *rest], **others} if rest:\n        torch.save(a, b)\n    case A(b=1) | None:\n        pass\n",
    ),
    ("3.10, contexts in parentheses", "with (open(a) as b, open(c) as d):\n    torch.save(a, b)\n"),
    ("3.11, groups of exceptions", "try:\n    torch.save(a, b)\nexcept* ValueError as group:\n    pass\n"),
    ("3.11, unpacking in subscripts", "x[*y]\ntorch.save(a, b)\n"),
    (
        "3.12, type parameters",
        "type Pair[T: int, *U, **V] = tuple[T, U]\ndef f[T](a: T) -> T:\n    torch.save(a, b)\nclass C[T]:\n    pass\n",
    ),
    (
        "3.12, the same quotes in templates",
        "x = f\"{d[\"a\"]} {f\"{torch.save(a, b)!r:>{w}}\"}\"\ntorch.save(a, b)\n",
    ),
    ("3.13, defaults of type parameters", "def f[T = int](a: T):\n    torch.save(a, b)\n"),
    ("3.14, template strings", "x = t\"{a!r:>{b}} {c=}\"\ntorch.save(a, b)\n"),
    (
        "3.14, exceptions without parentheses",
        "try:\n    torch.save(a, b)\nexcept ValueError, TypeError:\n    pass\n",
    ),
    ("3.15, unpacking in a list", "x = [*part for part in parts]\ntorch.save(a, b)\n"),
    ("3.15, unpacking in a set", "x = {*part for part in parts}\ntorch.save(a, b)\n"),
    ("3.15, unpacking in a generator", "x = f(*part for part in parts)\ntorch.save(a, b)\n"),
    ("3.15, unpacking in a dict", "x = {**part for part in torch.save(a, b)}\n"),
    ("3.15, lazy imports", "lazy import json\nlazy from os import path as p\ntorch.save(a, b)\n"),
];

#[test]
fn every_construct_is_read_and_what_stands_in_it_is_seen() {
    for (name, construct) in CONSTRUCTS {
        let found = read(&format!("import torch\n{construct}"));
        assert_eq!(found.problems, [], "{name}");
        assert!(found.calls.iter().any(|call| call.is("torch.save")), "{name}: the call is not seen");
    }
}

#[test]
fn lazy_imports_count_as_imports() {
    let found = read(
        "lazy import torch as t\nlazy from torch import nn as layers\nmodel = layers.Linear(2, 2)\nt.save(model, 'x')\n",
    );
    assert_eq!(found.problems, []);
    assert!(found.calls.iter().any(|call| call.is("torch.save")));
    assert!(found.calls.iter().any(|call| call.is("torch.nn.Linear") && call.result.kind == Kind::Module));
}

/// A syntax error is reported, and the rest is analysed.
#[test]
fn syntax_errors_are_reported_with_their_place() {
    for broken in
        ["x = (\n", "def f(:\n    pass\n", "for in y:\n    pass\n", "x = = 1\n", "lazy = lazy import\n"]
    {
        let text = format!("import torch\ntorch.save(a, b)\n{broken}");
        let found = read(&text);
        assert!(!found.problems.is_empty(), "{broken}");
        assert!(found.problems.iter().all(|problem| !problem.message.is_empty()), "{broken}");
        assert!(found.problems.iter().all(|problem| problem.span.end as usize <= text.len()), "{broken}");
        assert!(found.calls.iter().any(|call| call.is("torch.save")), "{broken}");
    }
}

/// Finds the place at which a script trains: its guard, else the outermost loop or call. A library has none.
#[test]
fn a_script_trains_at_its_guard_loop_or_call() {
    let library = "import torch\ndef train(loss):\n    loss.backward()\n";
    let table = [
        (String::from(library), None),
        (format!("{library}if __name__ == '__main__':\n    pass\n"), Some("__name__ == '__main__'")),
        (format!("{library}train(make())\n"), Some("train(make())")),
        ("import torch\nmodel(x).sum().backward()\n".to_owned(), Some("model(x).sum().backward()")),
        (format!("{library}def later():\n    train(make())\n"), None),
    ];
    for (text, expected) in table {
        let found = read(&text);
        assert_eq!(found.training_entry().map(|span| found.slice(span)), expected, "{text}");
    }
    let nested =
        "import torch\nfor epoch in range(3):\n    for x in data:\n        model(x).sum().backward()\n";
    let found = read(nested);
    let entry = found.training_entry().map(|span| found.slice(span));
    assert!(entry.is_some_and(|header| header.contains("epoch")), "{entry:?}");
}

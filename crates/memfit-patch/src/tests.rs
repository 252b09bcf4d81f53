//! Plans applied to scripts.

use std::fmt::Write as _;
use std::path::Path;

use memfit_plan::{MadeFor, Setting};
use memfit_source::{Dialect, is_valid};
use memfit_vocabulary::{Framework, Label, Parallel};

use super::*;

const LOADER: &str = r"import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size=48)
loss_fn = nn.CrossEntropyLoss()
for epoch in range(3):
    for step, (inputs, labels) in enumerate(loader):
        # To the GPU.
        inputs, labels = inputs.cuda(), labels.cuda()
        loss = loss_fn(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(step, loss.item() * len(inputs))
";

const OWN_BATCHES: &str = r#""""Trains."""

import argparse

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    model = build().to("cuda")
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=0.1,
        foreach=True,
    )
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    model.train()
    for step in range(10):
        images = torch.randn(args.batch_size, 3, 224, 224).to("cuda")
        with torch.autocast("cuda", enabled=False):
            loss = model(images).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {loss.item():.4f}")


main()
"#;

fn plan(text: &str) -> Plan {
    Plan::parse(text, Path::new("memfit.plan.toml")).unwrap()
}

/// Plan with these levers.
fn levers(micro_batch: Option<u64>, levers: &[(&str, &str)]) -> Plan {
    let mut text = micro_batch.map_or(String::new(), |size| format!("micro_batch = {size}\n"));
    for (name, value) in levers {
        let _ = writeln!(text, "[[lever]]\nname = \"{name}\"\nvalue = {value}\nlabel = \"exact\"");
    }
    plan(&text)
}

#[test]
fn a_loaders_batches_are_cut() {
    let plan = levers(
        Some(16),
        &[
            ("fused-optimizer", "true"),
            ("autocast-bf16", "true"),
            ("checkpointing", "[\"1.0\", \"1.1\", \"1.2\"]"),
            ("expandable-segments", "true"),
            ("lora", "8"),
        ],
    );
    let patched = patch(LOADER, &plan);
    assert_eq!(patched.left.iter().map(|left| left.lever).collect::<Vec<_>>(), [Lever::Lora]);
    insta::assert_snapshot!(patched.text);
}

#[test]
fn an_import_is_not_repeated_where_another_binds_the_module() {
    for import in ["import torch, torch.nn as nn", "import os, torch", "import torch.utils.data"] {
        let patched =
            patch(&LOADER.replacen("import torch", import, 1), &levers(None, &[("autocast-bf16", "true")]));
        assert_eq!(patched.left, []);
        assert!(!patched.text.contains("\nimport torch\n"), "{}", patched.text);
    }
    let patched = patch(
        &LOADER.replacen("import torch", "import torch as t", 1),
        &levers(None, &[("autocast-bf16", "true")]),
    );
    assert!(patched.text.contains("\nimport torch\n"), "{}", patched.text);
}

#[test]
fn losses_are_scaled_where_fp16_needs_it() {
    let patched = patch(LOADER, &levers(None, &[("autocast-fp16", "true"), ("foreach-off", "true")]));
    assert_eq!(patched.left, []);
    insta::assert_snapshot!(patched.text);
}

#[test]
fn a_script_that_makes_its_own_batches_makes_smaller_ones() {
    let mut plan = levers(Some(16), &[("autocast-fp16", "true"), ("fused-optimizer", "true")]);
    plan.made_for.batch = Some(64);
    plan.made_for.batch_names = vec!["batch_size".to_owned()];
    let patched = patch(OWN_BATCHES, &plan);
    assert_eq!(patched.left, []);
    insta::assert_snapshot!(patched.text);
}

#[test]
fn unknown_code_is_left_unchanged() {
    let plan = levers(Some(16), &[("autocast-bf16", "true")]);
    let left = |text: &str| {
        let patched = patch(text, &plan);
        (patched.text == text, patched.left.len(), patched.left[0].why.clone())
    };
    for (text, why) in [
        ("trainer.train()\n", "no loop"),
        ("for x in\n", "could not be read"),
        (
            "import torch\nfor x in loader:\n    loss = model(x).mean()\n    loss.backward(); optimizer.step()\n",
            "are on one line",
        ),
        (
            "import torch\nfor x in loader:\n    loss = model(x).mean()\n    if loss > 9: continue\n    loss.backward()\n    optimizer.step()\n",
            "`continue`",
        ),
    ] {
        let (same, count, told) = left(text);
        assert!(told.contains(why), "{told}");
        assert!(same || count == 1, "{text}");
    }
}

/// Each reference workload, none of which was written for this test, accepts a plan or gets a reason why not.
#[test]
fn workloads_take_a_plan_or_say_why_not() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "py"))
        .collect();
    names.sort();
    let mut told = String::new();
    for name in names {
        let text = std::fs::read_to_string(folder.join(&name)).unwrap();
        let mut plan = levers(
            Some(2),
            &[("autocast-bf16", "true"), ("fused-optimizer", "true"), ("checkpointing", "[\"layers.0\"]")],
        );
        if !text.contains("DataLoader(") {
            plan.made_for.batch = Some(8);
            plan.made_for.batch_names = vec!["batch_size".to_owned()];
        }
        let patched = patch(&text, &plan);
        assert!(is_valid(&patched.text, Dialect::Python), "{name}");
        assert_eq!(patched.text == text, patched.done.is_empty(), "{name}");
        let done: Vec<&str> = patched.done.iter().map(|lever| lever.name()).collect();
        let _ = writeln!(told, "{name}: {}", done.join(", "));
        for left in &patched.left {
            let _ = writeln!(told, "    without {}: {}", left.lever, left.why);
        }
    }
    insta::assert_snapshot!(told);
}

#[test]
fn a_model_is_compiled_as_a_whole_or_block_by_block_and_told_what_to_keep() {
    let text = patch(LOADER, &levers(None, &[("compile", "true"), ("activation-budget", "45")])).text;
    assert!(text.contains("import torch._functorch.config\n"), "{text}");
    assert!(
        text.contains("\nmodel.compile()\ntorch._functorch.config.activation_memory_budget = 0.45\n"),
        "{text}"
    );
    let text = patch(LOADER, &levers(None, &[("compile", "[\"1.0\", \"1.1\"]")])).text;
    assert!(text.contains("\ncompile_each(model, [f\"1.{i}\" for i in range(0, 2)])\n"), "{text}");
    let both = levers(None, &[("compile", "[\"1.0\", \"1.1\"]"), ("activation-offload", "[\"1.0\"]")]);
    let left = patch(LOADER, &both).left;
    assert_eq!(left.iter().map(|left| left.lever).collect::<Vec<_>>(), [Lever::ActivationOffload]);
}

#[test]
fn the_scripts_own_autocast_of_the_step_is_changed() {
    let script = "import torch\n\ndef evaluate():\n    with torch.autocast(\"cuda\", dtype=torch.float16):\n        model(x)\n\nmodel = make()\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\nfor x in loader:\n    with torch.autocast(\"cuda\", dtype=torch.float16, enabled=args.amp):\n        loss = model(x).mean()\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n";
    let text = patch(script, &levers(None, &[("autocast-bf16", "true")])).text;
    assert!(text.contains("with torch.autocast(\"cuda\", dtype=torch.bfloat16, enabled=True):"), "{text}");
    assert_eq!(text.matches("dtype=torch.float16").count(), 1, "the evaluation keeps its own: {text}");
    assert_eq!(text.matches("autocast").count(), 2, "{text}");
}

#[test]
fn a_forward_pass_in_the_statement_of_its_backward_pass_is_remarked() {
    let script = |body: &str| {
        format!(
            "import torch\nmodel = make()\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\nfor x in loader:\n    optimizer.zero_grad()\n{body}    optimizer.step()\n"
        )
    };
    let remarked = |body: &str| {
        let patched = patch(&script(body), &levers(None, &[("autocast-bf16", "true")]));
        patched.remarks.iter().any(|remark| remark.contains("in one statement"))
    };
    assert!(remarked("    model(x).mean().backward()\n"));
    assert!(!remarked("    loss = model(x).mean()\n    loss.backward()\n"));
    let both = levers(None, &[("activation-offload", "[\"1\"]"), ("autocast-bf16", "true")]);
    let remarks = patch(&script("    model(x).mean().backward()\n"), &both).remarks;
    assert_eq!(remarks.len(), 2, "{remarks:?}");
}

#[test]
fn remarks_for_people_are_made_once() {
    let remarks = |given: &[(&str, &str)]| patch(LOADER, &levers(None, given)).remarks;
    assert_eq!(remarks(&[("checkpointing", "[\"1.0\"]")]), [""; 0]);
    let offload = remarks(&[("activation-offload", "[\"1.0\"]")]);
    assert_eq!(offload.len(), 1, "{offload:?}");
    let both = remarks(&[
        ("activation-offload", "[\"1.0\"]"),
        ("expandable-segments", "true"),
        ("autocast-fp16", "true"),
    ]);
    assert!(both.contains(&offload[0]) && !offload[0].is_empty());
    let mut once = both.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), both.len(), "{both:?}");
}

#[test]
fn rows_of_modules_are_comprehensions() {
    let check = |names: &[&str], told: &str| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(before::listed(&names), told);
    };
    check(&["h.0", "h.1", "h.2"], "[f\"h.{i}\" for i in range(0, 3)]");
    check(&["h.0.mlp", "h.1.mlp", "head"], "[*(f\"h.{i}.mlp\" for i in range(0, 2)), \"head\"]");
    check(&["a", "h.3"], "[\"a\", \"h.3\"]");
}

proptest::proptest! {
    #[test]
    fn whatever_text_it_is_stays_python(cut in 0..LOADER.len(), end in 0..OWN_BATCHES.len()) {
        let plan = levers(Some(16), &[("autocast-fp16", "true"), ("fused-optimizer", "true"), ("compile", "true")]);
        for text in [LOADER.get(cut..), OWN_BATCHES.get(..end)].into_iter().flatten() {
            let patched = patch(text, &plan);
            let was = is_valid(text, Dialect::Python);
            proptest::prop_assert!(!was || is_valid(&patched.text, Dialect::Python));
        }
    }
}

const TRAINER: &str = r#"from transformers import Trainer, TrainingArguments

settings = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=args.batch,
    num_train_epochs=1,
)
Trainer(model=model, args=settings, train_dataset=data).train()
"#;

const LIGHTNING: &str = r#"import lightning as L

trainer = L.Trainer(precision="32-true", max_steps=3)
trainer.fit(model, loader)
"#;

#[test]
fn a_librarys_trainer_takes_the_plan_through_its_own_settings() {
    let setting = |lever: Lever, value: Value| Setting { lever, value, label: Label::Exact };
    let plan = Plan {
        micro_batch: Some(4),
        micro_batches_per_step: Some(8),
        levers: vec![
            setting(Lever::AutocastBf16, Value::default()),
            setting(Lever::Checkpointing, Value::Names(vec!["h.0".to_owned()])),
            setting(Lever::ChunkedLoss, Value::default()),
        ],
        made_for: MadeFor { batch: Some(32), own_accumulation: 1, ..MadeFor::default() },
        ..Plan::as_is()
    };
    let changed = patch(TRAINER, &plan);
    assert_eq!(changed.done, [Lever::MicroBatch, Lever::AutocastBf16, Lever::Checkpointing]);
    assert_eq!(changed.left.iter().map(|left| left.lever).collect::<Vec<_>>(), [Lever::ChunkedLoss]);
    assert!(changed.remarks.iter().any(|remark| remark.contains("every block")));
    let inside = "    per_device_train_batch_size=4,\n    num_train_epochs=1, gradient_accumulation_steps=8, bf16=True, gradient_checkpointing=True,\n)";
    assert!(changed.text.contains(inside), "{}", changed.text);
    // Lightning's loader belongs to the script, and so does its batch.
    let changed = patch(LIGHTNING, &plan);
    assert_eq!(changed.done, [Lever::AutocastBf16]);
    assert!(changed.text.contains("L.Trainer(precision=\"bf16-mixed\", max_steps=3)"), "{}", changed.text);
    let left: Vec<Lever> = changed.left.iter().map(|left| left.lever).collect();
    assert_eq!(left, [Lever::MicroBatch, Lever::Checkpointing, Lever::ChunkedLoss]);
    assert!(changed.left[0].why.contains("accumulate_grad_batches=8"));
    // With two sets of settings, the source does not show which one the training uses.
    let twice = format!("{TRAINER}other = TrainingArguments(output_dir=\"b\")\n");
    assert_eq!(patch(&twice, &plan).text, twice);
}

#[test]
fn a_library_that_distributes_is_told_so_in_its_settings() {
    let plan = |framework| Plan {
        parallel: Some(Parallel { shard: 8, ..Parallel::default() }),
        made_for: MadeFor {
            batch: Some(32),
            count: 8,
            framework: Some(framework),
            block_classes: vec!["Block".to_owned()],
            ..MadeFor::default()
        },
        ..Plan::as_is()
    };
    let changed = spread(TRAINER, &plan(Framework::Transformers), &["h.0".to_owned()]);
    assert_eq!((changed.done, changed.left), (vec![Lever::Shard], Vec::new()));
    for word in ["per_device_train_batch_size=4", "fsdp=\"full_shard auto_wrap\"", "[\"Block\"]"] {
        assert!(changed.text.contains(word), "{word}: {}", changed.text);
    }
    assert!(!changed.text.contains("init_process_group") && !changed.text.contains("fully_shard("));
    // Other libraries take objects, and the script has to import their classes.
    for (script, framework, taker) in
        [(LIGHTNING, Framework::Lightning, "`Trainer`"), (ACCELERATE, Framework::Accelerate, "`Accelerator`")]
    {
        let changed = spread(script, &plan(framework), &[]);
        assert_eq!(changed.text, script);
        assert!(changed.left[0].lever == Lever::Shard && changed.left[0].why.contains(taker));
    }
    let without = spread("import torch\n", &plan(Framework::Transformers), &[]);
    assert!(without.left[0].why.contains("does not create `TrainingArguments`"), "{:?}", without.left);
}

const ACCELERATE: &str = r#"import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="no")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"#;

#[test]
fn accelerate_is_told_of_the_precision_and_its_loop_is_the_scripts_own() {
    let changed =
        patch(ACCELERATE, &levers(None, &[("autocast-fp16", "true"), ("expandable-segments", "true")]));
    assert_eq!(changed.left, []);
    let told = "Accelerator(gradient_accumulation_steps=2, mixed_precision=\"fp16\")";
    assert!(changed.text.contains(told), "{}", changed.text);
    assert!(!changed.text.contains("GradScaler") && !changed.text.contains("torch.autocast"));
}

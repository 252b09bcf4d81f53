//! Tests of edits outside the training step: options, settings, processes and pools.

use super::*;

#[test]
fn the_optimizer_that_steps_takes_the_option() {
    let text = "import torch\n\ndef main():\n    net = make()\n    opt = torch.optim.AdamW(\n        net.parameters(),\n        lr=1,\n    )\n    opt.step()\n\ndef never():\n    sgd = torch.optim.SGD(p, lr=1)\n";
    let change = changed(text, Lever::ForeachOff, &["opt.step"]).unwrap();
    assert_eq!(lines(&change), ["-        lr=1,", "+        lr=1, foreach=False,"]);
    for (from, to, why) in [
        ("    opt = torch", "    new = torch", "created in several places"),
        ("lr=1,\n    )", "**options)", "are not in this call"),
        ("AdamW", "LBFGS", "no fused kernel"),
        (
            "    opt = torch.optim.AdamW(\n        net.parameters(),\n        lr=1,\n    )",
            "    pass",
            "does not show",
        ),
    ] {
        let refusal = refused(changed(&text.replace(from, to), Lever::FusedOptimizer, &["opt.step"]));
        assert!(refusal.contains(why), "{to}: {refusal}");
    }
}

#[test]
fn of_two_optimizers_the_one_that_steps_on_the_line_takes_the_option() {
    let text = "import torch\n\ndef main():\n    a = torch.optim.SGD(p, lr=1)\n    b = torch.optim.Adam(q, lr=2)\n    a.step()\n    b.step()\n    x = 1\n";
    for (step, made) in [("a.step", "SGD(p, lr=1"), ("b.step", "Adam(q, lr=2")] {
        let change = changed_in(text, Lever::FusedOptimizer, &[step], &["optim."], None, true).unwrap();
        assert!(lines(&change)[1].ends_with(&format!("{made}, fused=True)")), "{:?}", lines(&change));
        assert_eq!(lines(&change).len(), 2);
    }
    // A line without a step.
    let why = refused(changed_in(text, Lever::FusedOptimizer, &["x = 1"], &["optim."], None, true));
    assert!(why.contains("no optimizer step"), "{why}");
}

#[test]
fn settings_go_where_the_script_sets_them() {
    let text = "import os\n\nos.environ.setdefault(\"PYTORCH_CUDA_ALLOC_CONF\", \"a:1,b:2\")\n\nimport torch\nx = 1\n\ndef never():\n    os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"c:3\"\n";
    let settings = |now, then| {
        changed_in(
            text,
            Lever::DropSetting,
            &["x = 1"],
            &[],
            Some(RecordedFacts::Settings { now, then }),
            true,
        )
    };
    assert_eq!(
        lines(&settings("a:1,b:2", "b:2").unwrap())[1],
        "+os.environ.setdefault(\"PYTORCH_CUDA_ALLOC_CONF\", \"b:2\")"
    );
    assert_eq!(lines(&settings("a:1,b:2", "").unwrap()).len(), 1);
    assert!(refused(settings("c:3", "")).contains("does not show"));
    assert_eq!(settings("d:4", ""), Err(Refusal::NotHere));
}

#[test]
fn workers_are_not_started_where_one_loader_has_them() {
    let text = "from torch.utils.data import DataLoader\n\ndef main():\n    loader = DataLoader(rows, num_workers=3, batch_size=2, prefetch_factor=2)\n    for x in loader:\n        y = model(x)\n\ndef never():\n    other = DataLoader(rows, num_workers=4)\n";
    let change = changed(text, Lever::CpuOnlyWorkers, &["y = model"]).unwrap();
    assert_eq!(lines(&change)[1], "+    loader = DataLoader(rows, num_workers=0, batch_size=2)");
    let refusal = refused(changed(text, Lever::CpuOnlyWorkers, &["y = model", "return"]).and_then(|_| {
        changed_in(
            text,
            Lever::CpuOnlyWorkers,
            &["y = model"],
            &["other ="],
            Some(RecordedFacts::Nothing),
            true,
        )
    }));
    assert!(refusal.contains("several loaders"), "{refusal}");
}

#[test]
fn a_process_is_waited_for_only_where_it_ends_by_itself() {
    let of = |starts: &str, after: &str| {
        format!("import subprocess\n\ndef main():\n    {starts}\n    y = model(x)\n    {after}\n")
    };
    let change = changed(
        &of("helper = subprocess.Popen([\"a\"])", "helper.wait()"),
        Lever::EndOtherProcess,
        &["y = model"],
    );
    assert_eq!(lines(&change.unwrap()), ["+    helper.wait()"]);
    let change = changed(
        &of("p = Process(target=work)\n    p.start()", "p.join()"),
        Lever::EndOtherProcess,
        &["y = model"],
    );
    assert!(change.unwrap().after.contains("p.start()\n    p.join()\n    y"));
    for (starts, after, why) in [
        ("p = Process(target=work, args=(queue,))\n    p.start()", "p.join()", "may communicate with"),
        ("p = Process(args=(queue,), target=work)\n    p.start()", "p.join()", "may communicate with"),
        ("p = subprocess.Popen([\"a\"], stdin=subprocess.PIPE)", "p.wait()", "may communicate with"),
        (
            "p = subprocess.Popen([\"server\"])",
            "p.terminate()\n    p.wait()",
            "ends by itself: the script never waits",
        ),
        ("p = subprocess.Popen([\"server\"])", "pass", "ends by itself: the script never waits"),
    ] {
        let refusal = refused(changed(&of(starts, after), Lever::EndOtherProcess, &["y = model"]));
        assert!(refusal.contains(why), "{starts}: {refusal}");
    }
}

#[test]
fn pools_are_lent_and_shared() {
    let text = "import torch\n\nPOOL = torch.cuda.MemPool()\nx = 1\n";
    let change = changed(text, Lever::PoolOnOom, &["x = 1"]).unwrap();
    assert_eq!(lines(&change)[1], "+POOL = torch.cuda.MemPool(use_on_oom=True)");
    let refusal = refused(changed(
        &text.replace("x = 1", "x = 1\nB = torch.cuda.MemPool()"),
        Lever::PoolOnOom,
        &["x = 1"],
    ));
    assert!(refusal.contains("several pools"), "{refusal}");
    let graphs = "import torch\n\ndef main():\n    with torch.cuda.graph(g):\n        y = f(x)\n";
    let change = changed(graphs, Lever::SharePool, &["y = f"]).unwrap();
    let expected = "import torch\n\nGRAPH_POOL = torch.cuda.graph_pool_handle()\n\ndef main():\n    with torch.cuda.graph(g, pool=GRAPH_POOL):\n        y = f(x)\n";
    assert_eq!(change.after, expected);
    let own = graphs.replace("graph(g)", "graph(g, pool=p)");
    assert_eq!(changed(&own, Lever::SharePool, &["y = f"]), Err(Refusal::NotHere));
}

#[test]
fn the_share_of_the_gpu_that_a_script_gives_itself_becomes_all_of_it() {
    let change = |text: &str| {
        changed_in(text, Lever::DropSetting, &[], &["x = 1"], Some(RecordedFacts::MemoryFraction), true)
    };
    for (call, expected) in [
        (
            "torch.cuda.set_per_process_memory_fraction(0.5)",
            "torch.cuda.set_per_process_memory_fraction(1.0)",
        ),
        (
            "torch.cuda.set_per_process_memory_fraction(fraction=share, device=0)",
            "torch.cuda.set_per_process_memory_fraction(fraction=1.0, device=0)",
        ),
        (
            "torch.cuda.memory.set_per_process_memory_fraction(share, 0)",
            "torch.cuda.memory.set_per_process_memory_fraction(1.0, 0)",
        ),
    ] {
        let text = format!("import torch\n\ndef setup(share):\n    {call}\n\nsetup(0.5)\nx = 1\n");
        assert!(change(&text).unwrap().after.contains(expected), "{call}");
    }
    let twice = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\nx = 1\ntorch.cuda.set_per_process_memory_fraction(0.9)\n";
    assert!(refused(change(twice)).contains("several places"));
    let open = "import torch\ntorch.cuda.set_per_process_memory_fraction(*shares)\nx = 1\n";
    assert!(refused(change(open)).contains("is not in this call"));
    assert_eq!(change("import torch\nx = 1\n"), Err(Refusal::NotHere));
}

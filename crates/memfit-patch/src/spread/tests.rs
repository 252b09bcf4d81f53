//! Changes for several GPUs: the lines that are written, and what is refused.

use memfit_source::{Dialect, is_valid};
use memfit_vocabulary::{Lever, Parallel};

use super::*;
use crate::{Patched, spread};

const SCRIPT: &str = r#""""Trains."""
import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    """Runs the training."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    # With momentum.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=args.size, shuffle=True, num_workers=2)
    for epoch in range(3):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs.cuda()), labels.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
"#;

fn plan(parallel: Parallel) -> Plan {
    Plan { parallel: Some(parallel), ..Plan::as_is() }
}

fn changed(text: &str, parallel: Parallel) -> Patched {
    let blocks = ["0", "1"].map(str::to_owned);
    let patched = spread(text, &plan(parallel), &blocks);
    assert!(is_valid(&patched.text, Dialect::Python), "{}", patched.text);
    patched
}

#[test]
fn a_sharded_training_starts_its_group_and_loads_its_part() {
    let patched = changed(SCRIPT, Parallel { shard: 8, ..Parallel::default() });
    assert_eq!(patched.done, [Lever::Shard], "{:?}", patched.left);
    for line in [
        "import torch.distributed.fsdp\n",
        "    torch.distributed.init_process_group()\n    if torch.cuda.is_available():\n        torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))\n    model = nn",
        "    model = shard(model, [f\"{i}\" for i in range(0, 2)], (8,), (\"shard\",), True)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        "    loader = DataLoader(data, batch_size=args.size // torch.distributed.get_world_size(), sampler=torch.utils.data.DistributedSampler(data, shuffle=True), num_workers=2)\n",
        "        loader.sampler.set_epoch(epoch)\n        for inputs, labels in loader:\n",
    ] {
        assert!(patched.text.contains(line), "{line}\n---\n{}", patched.text);
    }
    let both = changed(
        SCRIPT,
        Parallel { replicate: 2, shard: 4, reshard_after_forward: false, ..Parallel::default() },
    );
    assert!(both.text.contains("(2, 4), (\"replicate\", \"shard\"), False)"), "{}", both.text);
    let copies = changed(SCRIPT, Parallel { replicate: 8, ..Parallel::default() });
    assert!(copies.text.contains("    model = torch.nn.parallel.DistributedDataParallel(model)\n"));
    assert!(!copies.text.contains("fsdp"), "{}", copies.text);
}

#[test]
fn the_command_that_starts_the_ranks_is_remarked() {
    let eight = Parallel { shard: 8, ..Parallel::default() };
    for (nodes, command) in [
        (None, "`torchrun --standalone --nproc-per-node 8`"),
        (Some(1), "`torchrun --standalone --nproc-per-node 8`"),
        (Some(2), "`torchrun --nnodes 2 --nproc-per-node 4`"),
    ] {
        let mut plan = plan(eight);
        plan.made_for.nodes = nodes;
        let remarks = spread(SCRIPT, &plan, &["0".to_owned()]).remarks;
        assert!(remarks.iter().any(|remark| remark.contains(command)), "{nodes:?}: {remarks:?}");
    }
}

#[test]
fn changes_that_a_few_lines_cannot_make_are_refused() {
    let eight = Parallel { shard: 8, ..Parallel::default() };
    let check = |text: &str, parallel: Parallel, why: &str| {
        let patched = changed(text, parallel);
        assert_eq!(patched.text, text, "{why}");
        let reasons: Vec<&str> = patched.left.iter().map(|left| left.why.as_str()).collect();
        assert!(reasons.iter().any(|reasons| reasons.contains(why)), "{reasons:?}, not {why}");
    };
    let replaced = |from: &str, to: &str| {
        assert!(SCRIPT.contains(from));
        SCRIPT.replace(from, to)
    };
    check(SCRIPT, Parallel { tensor: 2, shard: 4, ..Parallel::default() }, "tensor parallelism");
    check(SCRIPT, Parallel { offload: true, ..eight }, "more than replicas and shards");
    check(
        &replaced("    # With", "    count = sum(p.numel() for p in model.parameters())\n    # With"),
        eight,
        "collected before",
    );
    check(&replaced("model.parameters()", "others"), eight, "not visibly created from the parameters");
    check(&replaced("shuffle=True", "sampler=mine"), eight, "has a sampler");
    check(&replaced("DataLoader(data,", "DataLoader(read(),"), eight, "has no name");
    check(&replaced("for epoch in range(3)", "while True"), eight, "same order");
    check(&replaced("in loader:", "in loaders[0]:"), eight, "no `DataLoader`");
    check(&replaced(".cuda()", ".to(\"cuda:0\")"), eight, "by its number");
    let saves = replaced("    main()\n", "    main()\n    torch.save(model.state_dict(), \"m.pt\")\n");
    check(&saves, eight, "`state_dict`");
    // Replicas all have the whole model.
    let copies = changed(&saves, Parallel { replicate: 8, ..Parallel::default() });
    assert_eq!(copies.done, [Lever::Shard], "{:?}", copies.left);
}

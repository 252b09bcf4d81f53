//! Data parallelism in plain PyTorch: the process group, the model's shards or replicas, and the part of the
//! data that each rank loads.

use memfit_plan::Plan;
use memfit_source::{Call, Edit, Statement, StatementKind};
use memfit_vocabulary::Parallel;

use crate::Why;
use crate::before::listed;
use crate::draft::{Draft, words};
use crate::optimizer::makes_optimizer;
use crate::training::{Training, is_path};

const SHARD_HELPER: &str = r#"def shard(model, blocks, sizes, names, reshard):
    """Shards a model over a mesh of ranks, block by block. All ranks begin with the parameters of rank 0."""
    for tensor in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(tensor.detach(), 0)
    device = next(model.parameters()).device.type
    mesh = torch.distributed.device_mesh.init_device_mesh(device, sizes, mesh_dim_names=names)
    for name in blocks:
        block = model.get_submodule(name)
        torch.distributed.fsdp.fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    # By default, the root keeps its own parameters for the backward pass, which begins with them.
    root = None if reshard else False
    return torch.distributed.fsdp.fully_shard(model, mesh=mesh, reshard_after_forward=root)
"#;

/// Writes the parallel part of a plan. `blocks` are the modules that FSDP2 gathers one by one.
pub(crate) fn write(draft: &mut Draft<'_>, plan: &Plan, blocks: &[String]) -> Result<(), Why> {
    let parallel = plan.parallel.unwrap_or_default();
    check(draft, plan, &parallel)?;
    let training = draft.round()?;
    Training::check_only_backward(draft.facts)?;
    let model = training.model.clone().ok_or("the model is not called by name in the training loop")?;
    let optimizer = optimizer(draft, training, &model)?;
    let loader = Loader::find(draft, training)?;
    start(draft, training)?;
    for module in ["os", "torch", "torch.distributed", "torch.utils.data"] {
        draft.import(module);
    }
    let indent = draft.indent(optimizer);
    let wrapped = if parallel.shard > 1 {
        draft.helpers.push(SHARD_HELPER);
        draft.import("torch.distributed.device_mesh");
        draft.import("torch.distributed.fsdp");
        format!("shard({model}, {})", arguments(&parallel, blocks))
    } else {
        format!("torch.nn.parallel.DistributedDataParallel({model})")
    };
    let at = draft.line_start(optimizer.span.start);
    draft.edits.push(Edit::insert(at, format!("{indent}{model} = {wrapped}\n")));
    loader.divide(draft, training)?;
    let nodes = plan.made_for.nodes.unwrap_or(1);
    let count = match plan.made_for.count {
        0 => u64::from(parallel.world()) / nodes,
        count => count,
    };
    let machines = if nodes > 1 { format!("--nnodes {nodes}") } else { "--standalone".to_owned() };
    draft.remark(&format!(
        "`torchrun {machines} --nproc-per-node {count}` starts it; each rank loads its part of every batch, in the order of `DistributedSampler`, which repeats samples if the last batch is short"
    ));
    Ok(())
}

/// Refuses plans and scripts for which this code would be wrong.
fn check(draft: &Draft<'_>, plan: &Plan, parallel: &Parallel) -> Result<(), Why> {
    let by_step = |what: &str| format!("{what}: `memfit.Step(…, plan=\"FILE\")` does it");
    if parallel.tensor > 1 {
        return Err(by_step("tensor parallelism takes more than a few lines of plain PyTorch"));
    }
    if parallel.offload || parallel.context > 1 || parallel.pipeline > 1 {
        return Err(by_step("the plan uses more than replicas and shards"));
    }
    if !plan.made_for.batch_names.is_empty() {
        return Err(by_step(
            "the script creates its batches itself, and memfit cannot tell which part each rank would create",
        ));
    }
    let mentions = |wanted: &[&str]| words(draft.text).find(|word| wanted.contains(word));
    if let Some(word) = mentions(&["state_dict", "save_pretrained"]).filter(|_| parallel.shard > 1) {
        return Err(by_step(&format!(
            "`{word}` would contain this rank's shards only, and saving sharded checkpoints takes more than a change of one line"
        )));
    }
    if draft.text.contains("cuda:") {
        return Err(
            "the script names a GPU by its number, which would be the same one on all ranks".to_owned()
        );
    }
    Ok(())
}

/// Arguments of the helper after the model.
fn arguments(parallel: &Parallel, blocks: &[String]) -> String {
    let (sizes, names) = if parallel.replicate > 1 {
        (format!("({}, {})", parallel.replicate, parallel.shard), "(\"replicate\", \"shard\")")
    } else {
        (format!("({},)", parallel.shard), "(\"shard\",)")
    };
    let reshard = if parallel.reshard_after_forward { "True" } else { "False" };
    format!("{}, {sizes}, {names}, {reshard}", listed(blocks))
}

/// The statement that creates the optimizer from the model's parameters, which the shards replace.
fn optimizer<'a>(draft: &Draft<'a>, training: &Training<'a>, model: &str) -> Result<&'a Statement, Why> {
    let mut made: Vec<&Call> = draft.facts.calls.iter().filter(|call| makes_optimizer(call)).collect();
    made.sort_by_key(|call| call.span);
    made.dedup_by_key(|call| call.span);
    let [call] = made.as_slice() else {
        return Err(format!("the script creates {} optimizers of torch.optim instead of one", made.len()));
    };
    let place = training.scope.iter().find(|statement| statement.span.contains(call.span));
    let statement = place
        .filter(|each| each.kind == StatementKind::Assign)
        .ok_or("the optimizer is not created by a separate statement in the training function")?;
    let requests = |call: &&Call| {
        ["parameters", "named_parameters"].iter().any(|name| call.is_method(name))
            && call.receiver.as_ref().is_some_and(|receiver| receiver.span.slice(draft.text) == model)
    };
    let mut requested = draft.facts.calls.iter().filter(requests).map(|call| call.span);
    let scope = training.scope.first().map_or(0, |first| first.span.start);
    if requested.clone().any(|span| (scope..statement.span.start).contains(&span.start)) {
        return Err(format!(
            "the parameters of `{model}` are collected before the optimizer is created, and would not be the sharded ones"
        ));
    }
    if !requested.any(|span| statement.span.contains(span)) {
        return Err(format!("the optimizer is not visibly created from the parameters of `{model}`"));
    }
    Ok(statement)
}

/// Starts the process group before the function's first statement.
fn start(draft: &mut Draft<'_>, training: &Training<'_>) -> Result<(), Why> {
    let definition = |kind| {
        matches!(
            kind,
            StatementKind::Import | StatementKind::Text | StatementKind::Function | StatementKind::Class
        )
    };
    let first = training.scope.iter().find(|each| !definition(each.kind));
    let first = first.ok_or("the training function has no statements")?;
    let indent = draft.indent(first);
    let lines = [
        "torch.distributed.init_process_group()",
        "if torch.cuda.is_available():",
        "    torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))",
    ];
    let text = lines.map(|line| format!("{indent}{line}\n")).concat();
    draft.edits.push(Edit::insert(draft.line_start(first.span.start), text));
    Ok(())
}

/// The training's `DataLoader`.
struct Loader<'a> {
    call: &'a Call,
    /// Name of the loader; `None` if it is created in the loop's header.
    name: Option<&'a str>,
}

impl<'a> Loader<'a> {
    fn find(draft: &Draft<'a>, training: &Training<'a>) -> Result<Self, Why> {
        let iterable = training.looped.iterable;
        let made = draft.facts.calls.iter().filter(|call| call.is("torch.utils.data.DataLoader"));
        let mut found: Vec<Self> = Vec::new();
        for call in made {
            if iterable.contains(call.span) {
                found.push(Self { call, name: None });
                continue;
            }
            let assigned = training.scope.iter().find(|statement| {
                statement.kind == StatementKind::Assign && statement.span.contains(call.span)
            });
            let left = assigned.and_then(|statement| statement.span.slice(draft.text).split('=').next());
            let name = left.map(str::trim).filter(|name| is_path(name));
            if let Some(name) = name.filter(|name| iterable.slice(draft.text).contains(*name)) {
                let in_header =
                    words(iterable.slice(draft.text)).any(|word| Some(word) == name.split('.').next());
                if in_header {
                    found.push(Self { call, name: Some(name) });
                }
            }
        }
        found.sort_by_key(|loader| loader.call.span);
        found.dedup_by_key(|loader| loader.call.span);
        if found.len() != 1 {
            return Err(
                "no `DataLoader` was found that the training function creates for its loop".to_owned()
            );
        }
        found.pop().ok_or_else(|| "no `DataLoader` was found".to_owned())
    }

    /// Gives each rank its part of every batch.
    fn divide(&self, draft: &mut Draft<'_>, training: &Training<'_>) -> Result<(), Why> {
        let (call, text) = (self.call, draft.text);
        if call.is_open() || ["sampler", "batch_sampler"].iter().any(|name| call.keyword(name).is_some()) {
            return Err("the `DataLoader` has a sampler, or arguments from `*args` or `**kwargs`".to_owned());
        }
        let data = call.argument(0, "dataset").map(|argument| argument.value_span.slice(text));
        let data = data.filter(|data| is_path(data)).ok_or("the loader's data set has no name")?;
        let size = call.argument(1, "batch_size").ok_or("the loader's batches are single samples")?;
        let written = size.value_span.slice(text);
        let whole = if is_path(written) || written.bytes().all(|byte| byte.is_ascii_digit()) {
            written.to_owned()
        } else {
            format!("({written})")
        };
        let share = format!("{whole} // torch.distributed.get_world_size()");
        draft.edits.push(Edit::replace(size.value_span, share));
        let sampler =
            |shuffle: &str| format!("sampler=torch.utils.data.DistributedSampler({data}, shuffle={shuffle})");
        let shuffles = match (call.keyword("shuffle"), call.argument(2, "shuffle")) {
            (Some(shuffle), _) => {
                let value = shuffle.value_span.slice(text);
                draft.edits.push(Edit::replace(shuffle.span, sampler(value)));
                value != "False"
            }
            (None, Some(_)) => return Err("`shuffle` of the loader has no keyword".to_owned()),
            (None, None) => {
                draft.edits.push(draft.facts.add_argument(call, &sampler("False")));
                false
            }
        };
        let [.., around, inner] = training.around.as_slice() else { return Ok(()) };
        if !shuffles {
            return Ok(());
        }
        let outer = draft.facts.loops.iter().find(|looped| looped.span == around.span);
        let epoch =
            outer.filter(|looped| !looped.is_while).and_then(|looped| match looped.targets.as_slice() {
                [name] if is_path(name) => Some(name),
                _ => None,
            });
        let (Some(epoch), Some(name)) = (epoch, self.name) else {
            return Err(
                "each epoch would have the same order: the loader, or the epoch, has no name".to_owned()
            );
        };
        let line = format!("{}{name}.sampler.set_epoch({epoch})\n", draft.indent(inner));
        draft.edits.push(Edit::insert(draft.line_start(inner.span.start), line));
        Ok(())
    }
}

#[cfg(test)]
mod tests;

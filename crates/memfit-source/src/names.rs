//! Values suggested by names without a visible binding. A binding always takes precedence.

use crate::facts::{Criterion, Device, Flags, Graph, Kind, Value};

/// Value that a name suggests; the last component of a dotted name counts.
pub(crate) fn value_by_name(name: &str) -> Value {
    let last = name.rsplit('.').next().unwrap_or(name).trim_start_matches('_');
    let kind = if makes(last) {
        Kind::Unknown
    } else if last.bytes().any(|byte| byte.is_ascii_uppercase()) {
        kind(&last.to_ascii_lowercase())
    } else {
        kind(last)
    };
    let mut value = Value { kind, graph: Graph::unknown(), ..Value::default() };
    if !value.is_unknown() {
        value.graph = Graph::none();
        value = value.with_flags(Flags::BY_NAME);
    }
    value
}

/// Returns `true` for the name of a class, or of a function that makes something: `Actor`, `get_model`.
fn makes(name: &str) -> bool {
    const VERBS: &[&str] = &[
        "get_", "build_", "make_", "create_", "load_", "init_", "define_", "setup_", "unwrap_", "wrap_",
        "save_", "update_", "prepare_",
    ];
    let mut letters = name.chars();
    let is_class =
        letters.next().is_some_and(char::is_uppercase) && letters.next().is_some_and(char::is_lowercase);
    is_class || VERBS.iter().any(|verb| name.starts_with(verb))
}

fn kind(name: &str) -> Kind {
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    match name {
        "optimizer" | "optim" | "opt" | "optimiser" | "optimizers" | "optims" | "opts" => Kind::Optimizer,
        "scheduler" | "lr_scheduler" | "sched" | "lr_sched" => Kind::Scheduler,
        "scaler" | "grad_scaler" | "gradscaler" | "loss_scaler" | "amp_scaler" => Kind::Scaler(None),
        "model" | "net" | "network" | "ddp_model" | "unet" | "resnet" | "rnn" | "lstm" | "gru"
        | "backbone" | "generator" | "discriminator" | "netg" | "netd" | "transformer" | "classifier"
        | "teacher" | "student" | "actor" | "critic" | "actor_target" | "critic_target" | "target_actor"
        | "target_critic" => Kind::Module,
        "criterion" | "crit" | "loss_fn" | "loss_func" | "loss_function" | "lossfn" | "lossfunc"
        | "loss_fct" => Kind::Criterion { which: Criterion::Other, sums: false },
        "loader" | "dataloader" | "data_loader" | "dl" => Kind::Loader(None),
        "device" | "dev" | "gpu" | "local_rank" | "gpu_id" => Kind::Device(Device::Named),
        "tokenizer" | "tok" | "processor" => Kind::Tokenizer,
        _ if ends(&["optimizer", "optimiser", "_optim", "_opt", "optimizers"])
            || name.starts_with("optimizer_")
            || is_one_of_two_optimizers(name) =>
        {
            Kind::Optimizer
        }
        _ if ends(&["scheduler", "_sched"]) => Kind::Scheduler,
        _ if ends(&["_scaler"]) => Kind::Scaler(None),
        _ if ends(&["loader", "_dl", "loaders"]) => Kind::Loader(None),
        _ if ends(&["_model", "_net"]) => Kind::Module,
        _ if ends(&["_criterion", "_loss_fn", "loss_fn"]) || name.starts_with("criterion") => {
            Kind::Criterion { which: Criterion::Other, sums: false }
        }
        _ if ends(&["_device"]) => Kind::Device(Device::Named),
        _ if ends(&["tokenizer"]) => Kind::Tokenizer,
        _ => Kind::Unknown,
    }
}

/// Full name of a short name that snippets often use without importing it.
pub(crate) fn conventional_path(name: &str) -> Option<&'static str> {
    Some(match name {
        "torch" => "torch",
        "torchvision" => "torchvision",
        "nn" => "torch.nn",
        "F" => "torch.nn.functional",
        "optim" => "torch.optim",
        "DataLoader" => "torch.utils.data.DataLoader",
        "Dataset" => "torch.utils.data.Dataset",
        "GradScaler" => "torch.amp.GradScaler",
        "autocast" => "torch.amp.autocast",
        "DDP" | "DistributedDataParallel" => "torch.nn.parallel.DistributedDataParallel",
        "deepcopy" => "copy.deepcopy",
        "copy" => "copy",
        "os" => "os",
        "np" => "numpy",
        "tqdm" => "tqdm.tqdm",
        _ => return None,
    })
}

/// Returns `true` for Python's built-in names.
pub(crate) fn is_builtin(name: &str) -> bool {
    matches!(
        name,
        "abs"
            | "all"
            | "any"
            | "bool"
            | "bytes"
            | "callable"
            | "dict"
            | "dir"
            | "enumerate"
            | "eval"
            | "exec"
            | "exit"
            | "filter"
            | "float"
            | "format"
            | "frozenset"
            | "getattr"
            | "globals"
            | "hasattr"
            | "hash"
            | "id"
            | "input"
            | "int"
            | "isinstance"
            | "issubclass"
            | "iter"
            | "len"
            | "list"
            | "locals"
            | "map"
            | "max"
            | "min"
            | "next"
            | "object"
            | "open"
            | "ord"
            | "pow"
            | "print"
            | "property"
            | "quit"
            | "range"
            | "repr"
            | "reversed"
            | "round"
            | "set"
            | "setattr"
            | "slice"
            | "sorted"
            | "staticmethod"
            | "str"
            | "sum"
            | "super"
            | "tuple"
            | "type"
            | "vars"
            | "zip"
            | "Exception"
            | "RuntimeError"
            | "ValueError"
            | "MemoryError"
            | "KeyboardInterrupt"
            | "BaseException"
            | "StopIteration"
            | "NotImplementedError"
            | "True"
            | "False"
            | "None"
            | "__name__"
            | "__file__"
            | "classmethod"
            | "TypeError"
            | "KeyError"
            | "AssertionError"
            | "ImportError"
            | "OSError"
    )
}

/// `opt_g`, `optim_d`, `optimizerD`, `opt_critic`
fn is_one_of_two_optimizers(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let rest = ["optimizer", "optimiser", "optim", "opt"].iter().find_map(|start| lower.strip_prefix(start));
    let models =
        ["g", "d", "actor", "critic", "gen", "disc", "generator", "discriminator", "policy", "value"];
    rest.is_some_and(|rest| models.contains(&rest.trim_start_matches('_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_suggest_by_their_last_part() {
        let table = [
            ("self.optimizer", Kind::Optimizer),
            ("optimizer_g", Kind::Optimizer),
            ("opt_d", Kind::Optimizer),
            ("optimG", Kind::Optimizer),
            ("opt_level", Kind::Unknown),
            ("train_loader", Kind::Loader(None)),
            ("lr_scheduler", Kind::Scheduler),
            ("scaler", Kind::Scaler(None)),
            ("self._model", Kind::Module),
            ("x", Kind::Unknown),
            ("modelling", Kind::Unknown),
            ("options", Kind::Unknown),
            ("netG", Kind::Module),
            // What makes an object is none.
            ("Actor", Kind::Unknown),
            ("get_model", Kind::Unknown),
        ];
        for (name, kind) in table {
            assert_eq!(value_by_name(name).kind, kind, "{name}");
        }
    }
}

//! # cuda-in-worker
//!
//! ## What it does
//! Finds CUDA calls in code that loader workers run (`__getitem__`, `collate_fn`), and data sets with tensors
//! on the GPU that workers read.
//!
//! ## Why
//! A forked worker cannot use CUDA: `Cannot re-initialize CUDA in forked subprocess`. A spawned one creates a
//! CUDA context of its own. Measured: more than 100 MiB of device memory for each worker.
//!
//! ## Example
//! ```python
//! class Images(Dataset):
//!     def __getitem__(self, i):
//!         return self.images[i].cuda()
//! loader = DataLoader(Images(), num_workers=4)
//! ```
//! Use instead:
//! ```python
//! class Images(Dataset):
//!     def __getitem__(self, i):
//!         return self.images[i]
//! for x in DataLoader(Images(), num_workers=4):
//!     x = x.cuda()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Multiprocessing](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html)

use memfit_source::{Call, ClassId, Device, Function, Kind, Span, StoreKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "cuda-in-worker", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let loaders: Vec<_> = facts.loaders.iter().filter_map(|index| facts.calls.get(*index)).collect();
    // Without workers, the main process runs the code, which is allowed.
    let without = |call: &&memfit_source::Call| {
        !call.is_open()
            && call.argument(5, "num_workers").is_none_or(|argument| argument.value.int() == Some(0))
    };
    if !loaders.is_empty() && loaders.iter().all(without) {
        return;
    }
    for loader in loaders.iter().filter(|call| !without(call)) {
        held(context, loader, findings);
    }
    let collates = |function: &Function| {
        loaders.iter().any(|call| {
            call.keyword("collate_fn").is_some_and(|argument| match argument.value.kind {
                Kind::Function(id) => std::ptr::eq(facts.function(id), function),
                Kind::Partial(ref partial) => match partial.of.kind {
                    Kind::Function(id) => std::ptr::eq(facts.function(id), function),
                    _ => false,
                },
                _ => false,
            })
        })
    };
    for call in &facts.calls {
        let function = facts.function(call.site.function);
        let reads = function.name.ends_with(".__getitem__")
            && function.class.is_some_and(|class| facts.class(class).is_dataset);
        if !reads && !collates(function) {
            continue;
        }
        let moved = (call.is_method("cuda") || call.is_method("to"))
            && call.result.device == Device::Cuda
            && call.receiver.is_some();
        let made = call.path.as_deref().is_some_and(|path| path.starts_with("torch."))
            && call
                .keyword("device")
                .is_some_and(|argument| argument.value.text().is_some_and(|text| text.starts_with("cuda")));
        if (moved || made) && call.site.guard.is_none() {
            findings
                .report(
                    call.span,
                    format!("`{}` runs in the loader's workers, which cannot use CUDA", function.name),
                )
                .help("return tensors on the host, and move the batch in the training loop");
        }
    }
}

/// Tensors on the GPU that a data set creates in `__init__` and its workers read.
fn held(context: &Context<'_>, loader: &Call, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let workers = loader.argument(5, "num_workers").and_then(|argument| argument.value.int());
    let Some(Kind::Object(class)) = loader.argument(0, "dataset").map(|set| set.value.kind.clone()) else {
        return;
    };
    // Spawned workers get GPU tensors through CUDA IPC and can read them, so nothing is reported.
    if workers.is_none_or(|workers| workers < 1)
        || !facts.class(class).is_dataset
        || loader.keyword("multiprocessing_context").is_some()
        || facts.text.contains("set_start_method")
    {
        return;
    }
    let Some(read) = method(context, class, "__getitem__") else { return };
    let words = || context.slice(read).split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'));
    for store in
        facts.stores.iter().filter(|store| store.kind == StoreKind::Assign && store.site.guard.is_none())
    {
        let function = facts.function(store.site.function);
        if function.class != Some(class)
            || !function.name.ends_with(".__init__")
            || store.value.kind != Kind::Tensor
            || !store.value.device.is_gpu()
            || !words().any(|word| word == store.target)
        {
            continue;
        }
        findings
            .report(
                store.value_span,
                format!(
                    "`{}` is on the GPU, but is read by the loader's workers, which cannot use CUDA",
                    store.target
                ),
            )
            .label(loader.span, "this loader has workers")
            .help("keep it on the host and move the batches, or load it with `num_workers=0`");
    }
}

/// Span of a method; `None` if the class has no such method.
fn method(context: &Context<'_>, class: ClassId, name: &str) -> Option<Span> {
    let mut functions = context.facts.functions.iter().filter(|function| function.class == Some(class));
    functions.find(|function| function.name.rsplit('.').next() == Some(name)).map(|function| function.span)
}

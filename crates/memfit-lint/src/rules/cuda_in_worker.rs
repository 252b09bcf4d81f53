//! # cuda-in-worker
//!
//! ## What it does
//! Finds CUDA calls in code that loader workers run (`__getitem__`, the methods that it calls, `collate_fn`,
//! also of a loader in another file), and data sets with tensors on the GPU that workers read,
//! `TensorDataset` among them. An option as the number of workers counts, unless it is 0 by default.
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

use memfit_source::{Call, ClassId, Device, Facts, Function, Kind, StoreKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "cuda-in-worker", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let loaders: Vec<_> = facts.loaders.iter().filter_map(|index| facts.calls.get(*index)).collect();
    let given = &context.project.worker_functions;
    let is_given = || facts.functions.iter().any(|function| given.contains(&function.name));
    if !loaders.is_empty() && !loaders.iter().any(|call| has_workers(facts, call)) && !is_given() {
        return;
    }
    let mut read_by = vec![false; facts.classes.len()];
    for loader in loaders.iter().filter(|call| has_workers(facts, call)) {
        if let Some(Kind::Object(class)) = loader.argument(0, "dataset").map(|set| set.value.kind.clone())
            && loader.keyword("multiprocessing_context").is_none()
        {
            held(context, class, Some(loader), &mut read_by, findings);
        }
    }
    if loaders.is_empty() && context.project.has_workers {
        let sets = (0..facts.classes.len()).filter(|index| facts.classes[*index].is_dataset);
        for class in sets.filter_map(|index| facts.class_ids().nth(index)) {
            held(context, class, None, &mut read_by, findings);
        }
    }
    of_tensors(context, &loaders, findings);
    let collates = |function: &Function| {
        // A loader of another file may have it.
        let elsewhere =
            !function.name.is_empty() && given.contains(&function.name) && !context.project.spawns;
        elsewhere
            || loaders.iter().any(|call| {
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
        let class = function.class.filter(|class| facts.class(*class).is_dataset);
        let name = function.name.rsplit('.').next().unwrap_or_default();
        let reads =
            class.is_some_and(|class| readers(context, class).any(|read| std::ptr::eq(read, function)));
        if !reads && name != "__getitem__" && !collates(function) {
            continue;
        }
        let moved = (call.is_method("cuda") || call.is_method("to"))
            && call.result.device == Device::Cuda
            && call.receiver.is_some();
        let made = call.path.as_deref().is_some_and(|path| path.starts_with("torch."))
            && call
                .keyword("device")
                .is_some_and(|argument| argument.value.text().is_some_and(|text| text.starts_with("cuda")));
        // `if self.cuda:` holds wherever there is a card.
        let always = facts.guards_of(call.site.guard).all(|id| {
            let guard = facts.guard(id);
            let test = context.slice(guard.test).to_ascii_lowercase();
            let asks = !guard.negated && (test.contains("cuda") || test.contains("gpu"));
            let is_read =
                class.is_some_and(|class| context.project.worker_sets.contains(&facts.class(class).name));
            guard.is_rest || asks && is_read && !context.project.spawns
        });
        if (moved || made) && always && (class.is_some() || collates(function)) {
            findings
                .report(
                    call.span,
                    format!("`{}` runs in the loader's workers, which cannot use CUDA", function.name),
                )
                .help("return tensors on the host, and move the batch in the training loop");
        }
    }
}

/// Returns `true` if a loader has workers: a number of them, or an option that is not 0 by default.
pub(crate) fn has_workers(facts: &Facts, loader: &Call) -> bool {
    if loader.is_open() {
        return true;
    }
    let Some(workers) = loader.argument(5, "num_workers") else { return false };
    match workers.value.int() {
        Some(number) => number > 0,
        None => default_of(facts, facts.slice(workers.value_span)) != Some(0),
    }
}

/// Default of a command-line option, `args.workers`, that the text declares.
fn default_of(facts: &Facts, option: &str) -> Option<i64> {
    let (_, name) = option.rsplit_once('.')?;
    let declares = |call: &&Call| {
        call.is_method("add_argument")
            && call
                .arguments
                .iter()
                .filter_map(|argument| argument.value.text())
                .any(|text| text.trim_start_matches('-').replace('-', "_") == name)
    };
    facts.calls.iter().find(declares)?.keyword("default")?.value.int()
}

/// Methods of a data set that its loader's workers run: `__getitem__` and those that it calls.
fn readers<'a>(context: &'a Context<'_>, class: ClassId) -> impl Iterator<Item = &'a Function> {
    let facts = context.facts;
    let methods = || facts.functions.iter().filter(move |function| function.class == Some(class));
    let last = |function: &Function| function.name.rsplit('.').next().unwrap_or_default().to_owned();
    let mut read: Vec<&Function> =
        methods().filter(|function| ["__getitem__", "__iter__"].contains(&last(function).as_str())).collect();
    let mut next = 0;
    while let Some(function) = read.get(next).copied() {
        next += 1;
        let body = context.slice(function.span);
        for method in methods() {
            let called = format!("self.{}(", last(method));
            if body.contains(&called) && !read.iter().any(|known| std::ptr::eq(*known, method)) {
                read.push(method);
            }
        }
    }
    read.into_iter()
}

/// Tensors on the GPU that a data set creates in `__init__` and its workers read.
fn held(
    context: &Context<'_>,
    class: ClassId,
    loader: Option<&Call>,
    seen: &mut [bool],
    findings: &mut Findings<'_>,
) {
    let facts = context.facts;
    // Spawned workers get GPU tensors through CUDA IPC and can read them, so nothing is reported.
    let index = facts.class_ids().position(|id| id == class).unwrap_or_default();
    if !facts.class(class).is_dataset
        || context.project.spawns
        || facts.text.contains("set_start_method")
        || std::mem::replace(&mut seen[index], true)
    {
        return;
    }
    let read: Vec<&str> = readers(context, class).map(|function| context.slice(function.span)).collect();
    let words =
        || read.iter().flat_map(|text| text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')));
    let keeps = |store: &&memfit_source::Store| {
        matches!(store.kind, StoreKind::Assign | StoreKind::Append) && store.site.guard.is_none()
    };
    for store in facts.stores.iter().filter(keeps) {
        let function = facts.function(store.site.function);
        let holds = store.kind == StoreKind::Append
            || matches!(store.value.kind, Kind::Tensor | Kind::Container { .. });
        let is_read = |word: &str| {
            word == store.target || word.strip_prefix(&store.target).is_some_and(|rest| rest.starts_with('.'))
        };
        if function.class != Some(class)
            || !function.name.ends_with(".__init__")
            || !holds
            || !store.value.device.is_gpu()
            || !words().any(is_read)
        {
            continue;
        }
        let found = findings.report(
            store.value_span,
            format!(
                "`{}` is on the GPU, but is read by the loader's workers, which cannot use CUDA",
                store.target
            ),
        );
        if let Some(loader) = loader {
            found.label(loader.span, "this loader has workers");
        }
        found.help("keep it on the host and move the batches, or load it with `num_workers=0`");
    }
}

/// Finds `DataLoader(TensorDataset(x, y), num_workers=4)` of tensors on the GPU.
fn of_tensors(context: &Context<'_>, loaders: &[&Call], findings: &mut Findings<'_>) {
    let facts = context.facts;
    if context.project.spawns || facts.text.contains("set_start_method") {
        return;
    }
    for loader in loaders.iter().filter(|call| has_workers(facts, call) && !call.is_open()) {
        let Some(set) = loader.argument(0, "dataset") else { continue };
        let name = context.slice(set.value_span);
        let made = facts.calls.iter().filter(|call| call.is("torch.utils.data.TensorDataset")).find(|call| {
            call.span == set.value_span
                || facts.bound_to(call.span) == Some(name) && call.site.function == loader.site.function
        });
        let held = made.and_then(|made| {
            made.arguments
                .iter()
                .find(|held| matches!(held.value.kind, Kind::Tensor) && held.value.device == Device::Cuda)
        });
        if let Some(held) = held {
            findings
                .report(loader.span, "the workers of this loader cannot read tensors on the GPU")
                .label(held.span, "this one is on the GPU")
                .help("keep the tensors on the host and move the batches, or load with `num_workers=0`");
        }
    }
}

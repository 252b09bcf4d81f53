//! # cuda-in-worker
//!
//! ## What it does
//! Finds CUDA calls in what the workers of a loader run: `__getitem__`, `collate_fn`.
//!
//! ## Why
//! A forked worker cannot use CUDA: `Cannot re-initialize CUDA in forked subprocess`. A spawned one makes a
//! context of its own. Measured: more than 100 MiB of device memory for each worker.
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
//! There is none: what to do instead is for the author to decide.
//!
//! ## References
//! - [Multiprocessing](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html)

use memfit_source::{Device, Function, Kind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "cuda-in-worker", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let loaders: Vec<_> = facts.loaders.iter().filter_map(|index| facts.calls.get(*index)).collect();
    // Without workers the main process does it, where it is legal.
    let without = |call: &&memfit_source::Call| {
        !call.is_open()
            && call.argument(5, "num_workers").is_none_or(|argument| argument.value.int() == Some(0))
    };
    if !loaders.is_empty() && loaders.iter().all(without) {
        return;
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
        let function = facts.function(call.place.function);
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
        if (moved || made) && call.place.guard.is_none() {
            findings
                .at(
                    call.span,
                    format!("`{}` runs in the loader's workers, and these cannot use CUDA", function.name),
                )
                .help("return tensors on the host, and move the batch in the training loop");
        }
    }
}

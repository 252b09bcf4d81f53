//! # checkpoint-kept-on-device
//!
//! ## What it does
//! Notes checkpoints that are loaded onto the GPU, copied into a model, and still there when the same
//! function trains.
//!
//! ## Why
//! `load_state_dict` copies the weights into those of the model: the loaded ones stay on the GPU beside them
//! until their name is bound again or deleted. Measured: a checkpoint of a model of 4 MiB keeps 4 MiB;
//! deleted, or loaded to the host, none on the GPU.
//!
//! ## Example
//! ```python
//! def train(model, optimizer, loader, device):
//!     checkpoint = torch.load("model.pt", map_location=device)
//!     model.load_state_dict(checkpoint["model"])
//!     for x, y in loader:
//!         optimizer.zero_grad()
//!         loss = criterion(model(x), y)
//!         loss.backward()
//!         optimizer.step()
//! ```
//! Use instead:
//! ```python
//! def train(model, optimizer, loader, device):
//!     checkpoint = torch.load("model.pt", map_location="cpu")
//!     model.load_state_dict(checkpoint["model"])
//!     for x, y in loader:
//!         optimizer.zero_grad()
//!         loss = criterion(model(x), y)
//!         loss.backward()
//!         optimizer.step()
//! ```
//!
//! ## Fix safety
//! No fix: other code may read the checkpoint.
//!
//! ## References
//! - [torch.load](https://docs.pytorch.org/docs/stable/generated/torch.load.html)

use memfit_source::{Call, Device, Facts, Kind, OpKind, StoreKind};

use crate::query::words;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "checkpoint-kept-on-device",
    severity: Severity::Note,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| call.is("torch.load") && !call.is_open()) {
        let is_name = |name: &&str| words(name).eq([*name]);
        let is_attribute =
            |name: &&str| name.strip_prefix("self.").is_some_and(|rest| words(rest).eq([rest]));
        let bound = facts.bound_to(call.span);
        let Some(name) = bound.filter(|name| is_name(name) || is_attribute(name)) else { continue };
        if !is_on_card(call) || is_let_go(facts, call, name) || !is_copied(facts, call, name) {
            continue;
        }
        let trains = facts.ops.iter().find(|op| {
            facts.precedes(&call.site, &op.site)
                && (op.site.function == call.site.function || name.starts_with("self."))
                && op.site.looped.is_some()
                && matches!(op.kind, OpKind::Backward(_))
        });
        let Some(trains) = trains else { continue };
        findings
            .report(call.span, format!("`{name}` stays on the GPU, beside the model that it was copied into, while this function trains"))
            .label(trains.call.unwrap_or(trains.span), "the training")
            .help(format!("pass `map_location=\"cpu\"`, or `del {name}` after it was copied"));
    }
}

/// Returns `true` for a checkpoint that is loaded onto the GPU.
fn is_on_card(call: &Call) -> bool {
    let Some(place) = call.argument(1, "map_location") else { return false };
    match &place.value.kind {
        Kind::Device(device) => device.is_gpu(),
        Kind::Str(text) => text.starts_with("cuda"),
        _ => place.value.device == Device::Cuda,
    }
}

/// Returns `true` if the function deletes the name, or binds it to something else.
fn is_let_go(facts: &Facts, load: &Call, name: &str) -> bool {
    let body = match load.site.function {
        id if id != memfit_source::FunctionId::MODULE && !name.starts_with("self.") => {
            facts.slice(facts.function(id).span)
        }
        _ => facts.text.as_ref(),
    };
    let deletes = |line: &str| {
        let names = line.trim().strip_prefix("del ");
        names.is_some_and(|names| names.split(',').any(|deleted| deleted.trim() == name))
    };
    let binds =
        |line: &str| memfit_source::assigned_text(line, name).is_some_and(|value| !value.contains("load("));
    body.lines().any(|line| deletes(line) || binds(line))
}

/// Returns `true` if a model gets the checkpoint, and nothing else of the function keeps it.
fn is_copied(facts: &Facts, load: &Call, name: &str) -> bool {
    let here = |call: &&Call| call.site.function == load.site.function;
    let root = |text: &str| {
        text.strip_prefix(name)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let copied = facts.calls.iter().filter(here).any(|call| {
        call.is_method("load_state_dict")
            && call.arguments.first().is_some_and(|given| root(facts.slice(given.value_span)))
            && !call.receiver.as_ref().is_some_and(|of| matches!(of.value.kind, Kind::Optimizer))
    });
    let kept = facts.stores.iter().any(|store| {
        store.site.function == load.site.function
            && store.kind == StoreKind::Assign
            && store.target.contains('.')
            && facts.slice(store.value_span) == name
    });
    copied && !kept
}

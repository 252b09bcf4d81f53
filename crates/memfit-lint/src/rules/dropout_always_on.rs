//! # dropout-always-on
//!
//! ## What it does
//! Finds functional dropout in a module that does not depend on the module's mode: `F.dropout(x, 0.5)`.
//!
//! ## Why
//! `torch.nn.functional.dropout` drops values unless it is told otherwise, and knows nothing of `eval()`:
//! evaluation and inference are random. Measured: in evaluation mode, 125 of 256 values are dropped; with
//! `training=self.training`, 0.
//!
//! ## Example
//! ```python
//! class Head(torch.nn.Module):
//!     def forward(self, x):
//!         return self.out(F.dropout(x, 0.5))
//! ```
//! Use instead:
//! ```python
//! class Head(torch.nn.Module):
//!     def forward(self, x):
//!         return self.out(F.dropout(x, 0.5, training=self.training))
//! ```
//!
//! ## Fix safety
//! No fix: it changes the results of the evaluation, so the author must decide.
//!
//! ## References
//! - [dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html)

use memfit_source::Grad;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "dropout-always-on", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

const DROPOUTS: &[&str] =
    &["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in &facts.calls {
        let name = call.path.as_deref().and_then(|path| path.strip_prefix("torch.nn.functional."));
        let Some(name) = name.filter(|name| DROPOUTS.contains(name)) else { continue };
        let function = facts.function(call.site.function);
        let is_module = function.class.is_some_and(|class| facts.class(class).is_module);
        // Without gradients, as in a sampler, it is there to be on.
        if !is_module
            || call.site.grad == Grad::Off
            || call.is_open()
            || call.argument(2, "training").is_some()
        {
            continue;
        }
        // `if self.training:` around it, and dropout that is meant to be on, as for Monte Carlo samples.
        let depends =
            facts.guards_of(call.site.guard).any(|id| context.slice(facts.guard(id).test).contains("train"));
        let class =
            function.class.map(|class| facts.class(class).name.to_ascii_lowercase()).unwrap_or_default();
        let meant = ["mc", "monte", "bayes", "always"]
            .iter()
            .any(|word| class.contains(word) || function.name.to_ascii_lowercase().contains(word));
        let never = call.argument(1, "p").is_some_and(|p| context.slice(p.value_span) == "0");
        if depends || meant || never {
            continue;
        }
        findings
            .report(call.span, format!("`F.{name}` drops values in evaluation mode too"))
            .help("give it `training=self.training`");
    }
}

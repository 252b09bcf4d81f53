//! The kernel of an optimizer, where it is made.

use memfit_source::{Call, Span};

use crate::Why;
use crate::draft::{Draft, Edit};

/// Modules of torch.optim that make no optimizer.
const OTHERS: &[&str] = &["torch.optim.lr_scheduler", "torch.optim.swa_utils"];

/// A keyword of each optimizer's constructor, such as `fused=True`, in the place of another one.
pub(crate) fn kernel(draft: &mut Draft<'_>, word: &str, name: &str, other: &str) -> Result<(), Why> {
    let makes = |call: &&Call| {
        let path = call.path.as_deref().unwrap_or_default();
        let class = path.rsplit('.').next().unwrap_or_default();
        path.starts_with("torch.optim.")
            && !OTHERS.iter().any(|other| path.starts_with(other))
            && class.starts_with(char::is_uppercase)
    };
    let made: Vec<&Call> = draft.facts.calls.iter().filter(makes).collect();
    if made.is_empty() {
        return Err("the script makes no optimizer of torch.optim where it can be seen".to_owned());
    }
    for call in made {
        if let Some(argument) = call.keyword(name).or_else(|| call.keyword(other)) {
            draft.edits.push(Edit { span: argument.span, text: word.to_owned() });
        } else if let Some(last) = call.arguments.last() {
            draft.edits.push(Edit { span: Span::at(last.span.end), text: format!(", {word}") });
        }
    }
    Ok(())
}

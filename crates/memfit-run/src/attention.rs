//! Attention of another package that is not installed: what does without it.

use memfit_report::wire::{Exception, Problem, ProblemKind};

use crate::traceback;

/// Words about a package of attention, its name, and what needs as little memory without it.
const PACKAGES: &[(&str, &str, &str)] = &[
    (
        "has been toggled on, but it cannot be used",
        "flash-attn",
        "`attn_implementation=\"sdpa\"` in the script takes PyTorch's own, which does not keep the scores of all pairs of tokens either; or install `flash-attn`: its releases on GitHub have wheels for a PyTorch and a Python that need neither a compiler nor a GPU",
    ),
    (
        "xformers is not available",
        "xformers",
        "leave out the option that asks for it (`--enable_xformers_memory_efficient_attention`): diffusers takes PyTorch's own otherwise, which needs about as little memory",
    ),
    (
        "more information on how to install xformers",
        "xformers",
        "leave out the call of `enable_xformers_memory_efficient_attention()`: diffusers takes PyTorch's own otherwise, which needs about as little memory",
    ),
];

/// Problem behind an exception about such a package.
pub(crate) fn problem(interpreter: Option<&str>, exception: &Exception) -> Option<Problem> {
    let (_, package, hint) = PACKAGES.iter().find(|(words, ..)| exception.message.contains(words))?;
    let place =
        traceback::user_line(&exception.traceback).map(|place| format!(" at {place}")).unwrap_or_default();
    let which = interpreter.unwrap_or("the interpreter that ran the script");
    Some(Problem {
        kind: ProblemKind::ModuleMissing,
        message: format!(
            "The script asks{place} for the attention of `{package}`, which {which} does not have."
        ),
        hint: Some((*hint).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_without_a_package_is_told() {
        let told = |message: &str| {
            let traceback = "  File \"/me/train.py\", line 4, in main\n    load()\n".to_owned();
            let exception =
                Exception { r#type: "ImportError".to_owned(), message: message.to_owned(), traceback };
            problem(Some("/v/bin/python"), &exception).map(|problem| (problem.message, problem.hint.unwrap()))
        };
        let flash = "FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed.";
        let (message, hint) = told(flash).unwrap();
        assert!(message.contains("/me/train.py:4") && message.contains("`flash-attn`"), "{message}");
        assert!(hint.contains("sdpa"), "{hint}");
        let (_, hint) = told("xformers is not available. Make sure it is installed correctly").unwrap();
        assert!(hint.contains("--enable_xformers"), "{hint}");
        assert!(told("No module named 'x'").is_none());
    }
}

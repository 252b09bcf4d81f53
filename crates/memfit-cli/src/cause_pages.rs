//! The pages of causes, which are embedded in the command.

use memfit_vocabulary::Cause;

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../../docs/causes/", $name, ".md"))
    };
}

/// The page of a cause for a terminal, with links to other pages reduced to their text; empty if there is
/// none.
pub(crate) fn page(cause: Cause) -> String {
    let mut is_code = false;
    let mut out = String::new();
    for line in source(cause).lines() {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            out.push_str(line);
        } else {
            push_without_links(&mut out, line);
        }
        out.push('\n');
    }
    out
}

/// Returns `true` for the path of another page, maybe with an anchor.
fn is_page(target: &str) -> bool {
    let path = target.split('#').next().unwrap_or(target);
    path.rsplit_once('.').is_some_and(|(_, extension)| extension == "md")
}

/// Appends a line of Markdown, with `[text](page.md)` as `text`.
fn push_without_links(out: &mut String, mut line: &str) {
    while let Some((before, rest)) = line.split_once('[') {
        out.push_str(before);
        let link = rest.split_once("](").and_then(|(text, rest)| Some((text, rest.split_once(')')?)));
        match link {
            Some((text, (target, after))) if is_page(target) && !text.contains(['[', ']']) => {
                out.push_str(text);
                line = after;
            }
            _ => {
                out.push('[');
                line = rest;
            }
        }
    }
    out.push_str(line);
}

/// The page as it is in the guides.
const fn source(cause: Cause) -> &'static str {
    match cause {
        Cause::None => "",
        Cause::TooBig => page!("too-big"),
        Cause::Fragmented => page!("fragmented"),
        Cause::Leaking => page!("leaking"),
        Cause::RetainedGraph => page!("retained-graph"),
        Cause::TwoBatchesAlive => page!("two-batches-alive"),
        Cause::EvaluationWithGradients => page!("evaluation-with-gradients"),
        Cause::FirstStepSurprise => page!("first-step-surprise"),
        Cause::GiantRequest => page!("giant-request"),
        Cause::OtherProcesses => page!("other-processes"),
        Cause::Outside => page!("outside"),
        Cause::PrivatePools => page!("private-pools"),
        Cause::SettingThatHurts => page!("setting-that-hurts"),
        Cause::DoesNotFit => page!("does-not-fit"),
        Cause::GrowingCache => page!("growing-cache"),
        Cause::HostMemory => page!("host-memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_page() {
        for cause in Cause::ALL.iter().filter(|cause| **cause != Cause::None) {
            let page = page(*cause);
            let heading = page.lines().next().unwrap_or_default();
            assert!(heading.contains(cause.name()), "{cause}: {heading}");
            assert!(!page.contains("](../"), "{cause} shows a link");
        }
    }

    #[test]
    fn links_are_reduced_to_their_text() {
        let shown = |line| {
            let mut out = String::new();
            push_without_links(&mut out, line);
            out
        };
        assert_eq!(shown("- [`del` x](../a.md), or [that](b.md)."), "- `del` x, or that.");
        assert_eq!(shown("x[0] and [a](https://b.c), [d"), "x[0] and [a](https://b.c), [d");
    }
}

//! The pages of causes, which are embedded in the command.

use memfit_vocabulary::Cause;

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../../docs/causes/", $name, ".md"))
    };
}

/// The page of a cause; empty if there is none.
pub(crate) const fn page(cause: Cause) -> &'static str {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_page() {
        for cause in Cause::ALL.iter().filter(|cause| **cause != Cause::None) {
            let heading = page(*cause).lines().next().unwrap_or_default();
            assert!(heading.contains(cause.name()), "{cause}: {heading}");
        }
    }
}

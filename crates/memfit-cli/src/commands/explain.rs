//! `memfit explain FILE`.

use std::path::Path;

use memfit_devices::Bytes;
use memfit_explain::{ExplainOverrides, explain_source};
use memfit_recording::{Source, Trial};
use memfit_report::text;
use memfit_report::wire::{ExplainFix, ExplainReport, FixProof, Peak, Verdict};
use memfit_run::read_source;
use memfit_vocabulary::Proof;

use super::answer_shared;
use crate::args::ExplainArgs;
use crate::cause_pages::page;
use crate::input;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Explains why memory ran out.
pub(crate) fn explain(args: &ExplainArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    if let Some(cause) = args.cause {
        printer.answer(&page(cause));
        return Ok(Exit::Good);
    }
    // The argument parser ensures that there is a file or a cause.
    let file = args.file.clone().unwrap_or_default();
    let (input, problems) = input::read(&file)?;
    let report = report(args, &input, problems)?;
    let canvas = printer.canvas();
    answer_shared(
        &report,
        args.confidential,
        || text::explain(&report, canvas),
        &args.out,
        settings,
        printer,
    )?;
    Ok(Exit::Good)
}

/// Builds the report on a file.
pub(super) fn report(
    args: &ExplainArgs,
    input: &Source,
    problems: Vec<String>,
) -> Result<ExplainReport, CliError> {
    let overrides =
        ExplainOverrides { limit: args.capacity.map(Bytes::get), device: args.device, torch: args.torch };
    let file = args.file.as_deref().unwrap_or(Path::new(""));
    let explanation = explain_source(&overrides, input, &read_source)?;
    let mut report = ExplainReport::new(file.display().to_string(), explanation, problems);
    // The runs that tried remedies had this GPU and this PyTorch.
    if let Source::Recording(recording) = input
        && overrides.limit.is_none()
        && overrides.torch.is_none()
    {
        add_trials(&mut report.fixes, &recording.origin.trials);
    }
    Ok(report)
}

/// Adds what runs with remedies have shown, which replaces what a replay or a model says of them.
fn add_trials(fixes: &mut [ExplainFix], trials: &[Trial]) {
    for trial in trials {
        let is_tried = |fix: &&mut ExplainFix| fix.lever.to_string() == trial.lever && fix.how == trial.how;
        let Some(fix) = fixes.iter_mut().find(is_tried) else { continue };
        let Trial { fits, steps, allocated, reserved, device, device_upper, .. } = *trial;
        fix.evidence = Proof::Run;
        fix.enough = Some(fits);
        fix.proof = Some(FixProof {
            verdict: if fits { Verdict::Fits } else { Verdict::Oom },
            steps,
            peak: Peak { allocated, reserved, device, device_upper },
        });
    }
    // A replay ends where the script failed, and a run with one setting has shown that more is needed.
    let is_setting = |fix: &ExplainFix| fix.environment.is_some();
    if fixes.iter().any(|fix| is_setting(fix) && fix.proof.is_some() && fix.enough == Some(false)) {
        for fix in fixes.iter_mut().filter(|fix| is_setting(fix) && fix.proof.is_none()) {
            fix.enough = fix.enough.filter(|enough| !enough);
        }
    }
    fixes.sort_by_key(|fix| match (fix.enough, fix.proof) {
        (Some(true), Some(_)) => 0,
        (Some(false), Some(_)) => 2,
        _ => 1,
    });
}

#[cfg(test)]
mod tests {
    use memfit_report::wire::ExplainEnvironment;
    use memfit_vocabulary::{Label, Lever};

    use super::*;

    #[test]
    fn a_run_with_a_remedy_says_more_than_a_model() {
        let fix = |lever| ExplainFix {
            lever,
            saves: 1,
            label: Label::Exact,
            how: "do it".to_owned(),
            evidence: Proof::Modelled,
            enough: Some(true),
            environment: None,
            edit: None,
            card: None,
            proof: None,
        };
        let trial = |lever: Lever, fits| Trial {
            lever: lever.to_string(),
            how: "do it".to_owned(),
            fits,
            steps: 3,
            ..Trial::default()
        };
        let mut fixes =
            vec![fix(Lever::Checkpointing), fix(Lever::MicroBatch), fix(Lever::ActivationOffload)];
        let other = Trial { how: "do something else".to_owned(), ..trial(Lever::MicroBatch, true) };
        let trials = [trial(Lever::Checkpointing, false), trial(Lever::ActivationOffload, true), other];
        add_trials(&mut fixes, &trials);
        let found: Vec<_> = fixes.iter().map(|fix| (fix.lever, fix.evidence, fix.enough)).collect();
        let expected = [
            (Lever::ActivationOffload, Proof::Run, Some(true)),
            (Lever::MicroBatch, Proof::Modelled, Some(true)),
            (Lever::Checkpointing, Proof::Run, Some(false)),
        ];
        assert_eq!(found, expected);
        assert_eq!(fixes[0].proof.map(|proof| (proof.verdict, proof.steps)), Some((Verdict::Fits, 3)));
    }

    #[test]
    fn a_run_with_one_setting_withdraws_what_replays_say_of_the_others() {
        let setting = |mib: u32| ExplainFix {
            lever: Lever::MaxSplitSize,
            saves: 1,
            label: Label::Exact,
            how: format!("split at {mib}"),
            evidence: Proof::Replayed,
            enough: Some(true),
            environment: Some(ExplainEnvironment {
                name: "PYTORCH_ALLOC_CONF".to_owned(),
                value: mib.to_string(),
            }),
            edit: None,
            card: None,
            proof: None,
        };
        for (fits, left) in [(false, None), (true, Some(true))] {
            let mut fixes = vec![setting(64), setting(256)];
            let lever = Lever::MaxSplitSize.to_string();
            add_trials(
                &mut fixes,
                &[Trial { lever, how: "split at 64".to_owned(), fits, ..Trial::default() }],
            );
            let other = fixes.iter().find(|fix| fix.proof.is_none()).unwrap();
            assert_eq!(other.enough, left);
        }
    }
}

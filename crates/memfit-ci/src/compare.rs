//! Comparison of two measurements.

use std::collections::BTreeMap;

use memfit_report::wire::{CiRow, CiSide, CiVerdict, Problem};

use crate::lines::{changed_lines, changed_modules};
use crate::{JudgedPeak, Measurement, Script};

/// The script and the peak that one row of the `ci` table compares.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'given> {
    /// The script, with its permitted growth.
    pub script: &'given Script,
    /// The peak that is compared.
    pub peak: JudgedPeak,
}

/// Compares a measurement with its base; without a base, the row is new.
pub fn compare(comparison: Comparison<'_>, base: Option<&Measurement>, head: &Measurement) -> CiRow {
    let mut row = blank(comparison, Some(head));
    let Some(base) = base else { return row };
    let (before, now) = (comparison.peak.bytes_of(&base.peak), comparison.peak.bytes_of(&head.peak));
    let permitted = comparison.script.max_growth.bytes(before);
    let growth = now as i64 - before as i64;
    row.base = Some(side(base));
    row.growth = Some(growth);
    row.permitted = Some(permitted);
    let floor = base.floor().max(head.floor());
    row.lines = changed_lines(&base.lines, &head.lines, floor);
    row.modules = changed_modules(&base.modules, &head.modules, floor);
    row.categories = categories(base, head);
    row.verdict = if growth > permitted as i64 || base.fits && !head.fits {
        CiVerdict::Grew
    } else if growth < -(permitted as i64) {
        CiVerdict::Shrank
    } else {
        CiVerdict::Same
    };
    row.notes = notes(base, head);
    row
}

/// The row of a script without an answer.
pub fn failed(comparison: Comparison<'_>, problem: Problem) -> CiRow {
    CiRow { verdict: CiVerdict::Failed, problem: Some(problem), ..blank(comparison, None) }
}

fn blank(comparison: Comparison<'_>, head: Option<&Measurement>) -> CiRow {
    CiRow {
        script: comparison.script.name.clone(),
        gpu: comparison.script.gpu.clone(),
        command: head.map_or_else(|| comparison.script.command.clone(), |head| head.command.clone()),
        base: None,
        head: head.map(side),
        growth: None,
        permitted: None,
        max_growth: comparison.script.max_growth.to_string(),
        lines: Vec::new(),
        modules: Vec::new(),
        categories: BTreeMap::new(),
        verdict: CiVerdict::New,
        notes: head.filter(|head| !head.fits).map(|_| does_not_fit()).into_iter().collect(),
        problem: None,
    }
}

fn does_not_fit() -> String {
    "it does not fit on this GPU; its peak is that of a run with unlimited memory".to_owned()
}

fn side(of: &Measurement) -> CiSide {
    CiSide {
        peak: of.peak,
        fits: of.fits,
        largest_batch: of.largest_batch,
        step_ms_estimate: of.step_ms_estimate,
        torch: of.torch.clone(),
        memfit: of.memfit.clone(),
    }
}

fn categories(base: &Measurement, head: &Measurement) -> BTreeMap<String, i64> {
    let mut changes: BTreeMap<String, i64> = BTreeMap::new();
    for (category, bytes) in &head.by_category {
        *changes.entry(category.clone()).or_default() += *bytes as i64;
    }
    for (category, bytes) in &base.by_category {
        *changes.entry(category.clone()).or_default() -= *bytes as i64;
    }
    changes.retain(|_, change| *change != 0);
    changes
}

/// Other differences between the two, which may explain the growth.
fn notes(base: &Measurement, head: &Measurement) -> Vec<String> {
    let mut notes = Vec::new();
    match (base.fits, head.fits) {
        (true, false) => notes.push(
            "it no longer fits on this GPU; its peak is that of a run with unlimited memory".to_owned(),
        ),
        (false, true) => notes.push("it fits on this GPU now; the base did not".to_owned()),
        (false, false) => notes.push(does_not_fit()),
        (true, true) => {}
    }
    let mut differs = |what: &str, before: Option<&str>, now: Option<&str>| {
        if let (Some(before), Some(now)) = (before, now)
            && before != now
        {
            notes.push(format!(
                "the base used {what} {before} and the new measurement {now}; that may explain a difference"
            ));
        }
    };
    differs("torch", base.torch.as_deref(), head.torch.as_deref());
    differs("memfit", Some(&base.memfit), Some(&head.memfit));
    let (before, now) = (base.command.join(" "), head.command.join(" "));
    differs("the command", Some(&format!("`{before}`")), Some(&format!("`{now}`")));
    if base.steps != head.steps {
        notes.push(format!("the base ran {} steps and the new measurement {}", base.steps, head.steps));
    }
    notes
}

#[cfg(test)]
mod tests {
    use memfit_report::wire::{Peak, ProblemKind};

    use super::*;
    use crate::MaxGrowth;

    const MIB: u64 = 1 << 20;

    fn script(max_growth: MaxGrowth) -> Script {
        Script {
            name: "train".into(),
            gpu: "t4".into(),
            command: vec!["python".into(), "train.py".into()],
            folder: "".into(),
            max_growth,
            steps: None,
            largest_batch: false,
        }
    }

    fn measured(mib: u64) -> Measurement {
        let peak = Peak {
            allocated: mib * MIB / 2,
            reserved: mib * MIB * 3 / 4,
            device: mib * MIB,
            device_upper: mib * MIB * 2,
        };
        Measurement {
            peak,
            fits: true,
            steps: 3,
            memfit: "1".into(),
            torch: Some("2.9".into()),
            ..Measurement::default()
        }
    }

    fn verdict(max_growth: MaxGrowth, base: u64, head: u64) -> (CiVerdict, Option<i64>) {
        let script = script(max_growth);
        let comparison = Comparison { script: &script, peak: JudgedPeak::Device };
        let row = compare(comparison, Some(&measured(base)), &measured(head));
        (row.verdict, row.growth)
    }

    #[test]
    fn growth_is_judged_against_the_permitted_growth_of_the_base() {
        let one = MaxGrowth::default();
        assert_eq!(verdict(one, 1000, 1010), (CiVerdict::Same, Some(10 * MIB as i64)));
        assert_eq!(verdict(one, 1000, 1011).0, CiVerdict::Grew);
        assert_eq!(verdict(one, 1000, 990).0, CiVerdict::Same);
        assert_eq!(verdict(one, 1000, 989), (CiVerdict::Shrank, Some(-11 * MIB as i64)));
        let none = MaxGrowth::Bytes(0);
        assert_eq!(verdict(none, 1000, 1000).0, CiVerdict::Same);
        assert_eq!(verdict(none, 1000, 1001).0, CiVerdict::Grew);
        assert_eq!(verdict(MaxGrowth::Bytes(300 * MIB), 1000, 1300).0, CiVerdict::Same);
    }

    #[test]
    fn the_settings_choose_the_peak() {
        let script = script(MaxGrowth::default());
        for (peak, growth) in
            [(JudgedPeak::Device, 100), (JudgedPeak::Reserved, 75), (JudgedPeak::Allocated, 50)]
        {
            let row = compare(Comparison { script: &script, peak }, Some(&measured(400)), &measured(500));
            assert_eq!(row.growth, Some(growth * MIB as i64));
        }
    }

    #[test]
    fn a_script_that_no_longer_fits_grew_whatever_is_permitted() {
        let script = script(MaxGrowth::Bytes(1 << 40));
        let comparison = Comparison { script: &script, peak: JudgedPeak::Device };
        let too_big = Measurement { fits: false, ..measured(1001) };
        let row = compare(comparison, Some(&measured(1000)), &too_big);
        assert_eq!(row.verdict, CiVerdict::Grew);
        assert!(row.notes[0].contains("no longer fits"));
        assert_eq!(compare(comparison, Some(&too_big), &too_big).verdict, CiVerdict::Same);
        let back = compare(comparison, Some(&too_big), &measured(1000));
        assert!(back.notes[0].contains("fits on this GPU now"), "{:?}", back.notes);
    }

    #[test]
    fn without_a_base_a_row_is_new_and_without_a_run_it_failed() {
        let script = script(MaxGrowth::default());
        let comparison = Comparison { script: &script, peak: JudgedPeak::Device };
        let row = compare(comparison, None, &measured(1000));
        assert_eq!((row.verdict, row.growth, row.base), (CiVerdict::New, None, None));
        assert!(row.head.is_some_and(|head| head.fits));
        let problem = Problem { kind: ProblemKind::Io, message: "y".into(), hint: None };
        let row = failed(comparison, problem);
        assert_eq!((row.verdict, row.head), (CiVerdict::Failed, None));
        assert_eq!(row.command, script.command);
    }

    #[test]
    fn whatever_else_differs_is_said() {
        let script = script(MaxGrowth::default());
        let comparison = Comparison { script: &script, peak: JudgedPeak::Device };
        assert!(compare(comparison, Some(&measured(1000)), &measured(1000)).notes.is_empty());
        let base = Measurement {
            torch: Some("2.8".into()),
            memfit: "0".into(),
            steps: 2,
            command: vec!["python".into()],
            ..measured(1000)
        };
        let notes = compare(comparison, Some(&base), &measured(1000)).notes.join("\n");
        for part in [
            "the base used torch 2.8 and the new measurement 2.9; that may explain a difference",
            "memfit 0 and the new measurement 1",
            "2 steps and the new measurement 3",
            "`python`",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
        // An unknown value does not count as different.
        let unknown = Measurement { torch: None, ..measured(1000) };
        assert!(compare(comparison, Some(&unknown), &measured(1000)).notes.is_empty());
    }

    #[test]
    fn categories_have_their_changes() {
        let script = script(MaxGrowth::default());
        let comparison = Comparison { script: &script, peak: JudgedPeak::Device };
        let of = |parts: &[(&str, u64)]| Measurement {
            by_category: parts.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect(),
            ..measured(1000)
        };
        let row = compare(
            comparison,
            Some(&of(&[("a", 1), ("b", 2), ("c", 3)])),
            &of(&[("a", 1), ("c", 9), ("d", 4)]),
        );
        let expected = [("b", -2), ("c", 6), ("d", 4)].map(|(name, change)| (name.to_owned(), change));
        assert_eq!(row.categories, BTreeMap::from(expected));
    }
}

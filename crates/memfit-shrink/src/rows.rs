//! The rows: measurements of each technique, and figures derived from them.

use memfit_report::text::size;
use memfit_report::wire::{Peak, ShrinkBytes, ShrinkLever, ShrinkRow, ShrinkSaved};
use memfit_vocabulary::{Label, Lever, Training, Value};

use crate::technique::{Affects, Technique};

/// The name of the row without any technique.
const BASELINE: &str = "none";

/// Measures a training run with levers.
pub trait Bench {
    /// Error that prevented a measurement.
    type Error;

    /// Runs the training, or one inference pass of its model, with these levers. Returns `None` after an
    /// interrupt.
    fn measure(&mut self, settings: &[(Lever, Value)], pass: Pass) -> Result<Option<Measured>, Self::Error>;
}

/// Kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Some optimizer steps.
    Training,
    /// One forward pass under `inference_mode`, with neither gradients nor optimizer state.
    Inference,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The peaks; `None` if the run failed.
    pub peak: Option<Peak>,
    /// Numbers of all parameters and of trained ones.
    pub parameters: (u64, u64),
    /// Bytes that belong to the parameters.
    pub bytes: ShrinkBytes,
    /// Estimated milliseconds of an optimizer step.
    pub step_ms: Option<f64>,
    /// Facts about the training.
    pub training: Training,
    /// Levers that could not be applied, with reasons.
    pub refused: Vec<(String, String)>,
    /// Reason why the run failed.
    pub problem: Option<String>,
}

/// The rows of a table.
#[derive(Clone, Debug)]
pub struct Table {
    /// The row without any technique.
    pub baseline: ShrinkRow,
    /// One row for each technique, in the order in which they were given.
    pub rows: Vec<ShrinkRow>,
    /// `true` if an interrupt left rows out.
    pub interrupted: bool,
}

/// Measures the techniques on a GPU with this much memory. Returns `None` if an interrupt came before the
/// unchanged training was measured.
pub fn table<B: Bench>(
    bench: &mut B,
    techniques: &[&Technique],
    capacity: u64,
) -> Result<Option<Table>, B::Error> {
    let Some(as_is) = bench.measure(&[], Pass::Training)? else { return Ok(None) };
    let Some(infers) = bench.measure(&[], Pass::Inference)? else { return Ok(None) };
    let baseline = baseline(&as_is, &infers, capacity);
    let mut table = Table { baseline, rows: Vec::new(), interrupted: false };
    for technique in techniques {
        let Some(row) = row(bench, technique, &as_is.training, &table.baseline, capacity)? else {
            table.interrupted = true;
            break;
        };
        table.rows.push(row);
    }
    Ok(Some(table))
}

fn baseline(as_is: &Measured, infers: &Measured, capacity: u64) -> ShrinkRow {
    let failed = |measured: &Measured, what: &str| {
        measured.problem.as_ref().map(|why| format!("{what} cannot be measured: {why}"))
    };
    ShrinkRow {
        technique: BASELINE.to_owned(),
        title: "as it is".to_owned(),
        levers: Vec::new(),
        parameters: Some(as_is.parameters.0),
        trained: Some(as_is.parameters.1),
        bytes: Some(as_is.bytes),
        training: as_is.peak,
        inference: infers.peak,
        saves: ShrinkSaved::default(),
        fits: as_is.peak.map(|peak| peak.device_upper <= capacity),
        step_ms_estimate: as_is.step_ms,
        label: Label::Exact,
        how: String::new(),
        note: failed(as_is, "training").or_else(|| failed(infers, "inference")),
    }
}

fn row<B: Bench>(
    bench: &mut B,
    technique: &Technique,
    training: &Training,
    baseline: &ShrinkRow,
    capacity: u64,
) -> Result<Option<ShrinkRow>, B::Error> {
    let mut row = blank(technique);
    let settings = match technique.settings(training) {
        Ok(settings) => settings,
        Err(why) => {
            row.note = Some(why);
            return Ok(Some(row));
        }
    };
    row.levers =
        settings.iter().map(|(lever, value)| ShrinkLever { name: *lever, value: value.clone() }).collect();
    let mut notes = Vec::new();
    if technique.affects != Affects::Inference {
        let Some(trained) = bench.measure(&settings, Pass::Training)? else { return Ok(None) };
        if let Some(why) = failure(&trained) {
            row.note = Some(why);
            return Ok(Some(row));
        }
        (row.parameters, row.trained) = (Some(trained.parameters.0), Some(trained.parameters.1));
        (row.bytes, row.training, row.step_ms_estimate) =
            (Some(trained.bytes), trained.peak, trained.step_ms);
        row.fits = trained.peak.map(|peak| peak.device_upper <= capacity);
    }
    if technique.affects == Affects::Training {
        // The trained model has the same size.
        row.inference = baseline.inference;
    } else if baseline.inference.is_some() {
        let settings = match technique.inference_settings(training) {
            Ok(settings) => settings,
            Err(why) => {
                row.note = Some(why);
                return Ok(Some(row));
            }
        };
        let Some(inferred) = bench.measure(&settings, Pass::Inference)? else { return Ok(None) };
        match failure(&inferred) {
            Some(why) if technique.affects == Affects::Inference => {
                row.note = Some(why);
                return Ok(Some(row));
            }
            Some(why) => notes.push(format!("inference cannot be measured: {why}")),
            None => {
                row.inference = inferred.peak;
                if technique.affects == Affects::Inference {
                    row.parameters = Some(inferred.parameters.0);
                    row.bytes =
                        Some(ShrinkBytes { weights: inferred.bytes.weights, ..ShrinkBytes::default() });
                }
            }
        }
    } else {
        notes.push("the original model's inference could not be measured".to_owned());
    }
    let saved = |before: Option<Peak>, after: Option<Peak>| {
        before.zip(after).map(|(before, after)| before.device as i64 - after.device as i64)
    };
    row.saves = ShrinkSaved {
        training: saved(baseline.training, row.training),
        inference: saved(baseline.inference, row.inference),
    };
    let columns = [
        ("training", technique.affects != Affects::Inference, baseline.training, row.training),
        ("inference", technique.affects != Affects::Training, baseline.inference, row.inference),
    ];
    for (what, is_affected, before, after) in columns {
        notes
            .extend(before.zip(after).filter(|_| is_affected).and_then(|(old, new)| unsaved(what, old, new)));
    }
    notes.extend(kept_activations(baseline, &row));
    notes.extend(Some(technique.note.to_owned()).filter(|note| !note.is_empty()));
    row.note = Some(notes.join("\n")).filter(|note| !note.is_empty());
    Ok(Some(row))
}

fn blank(technique: &Technique) -> ShrinkRow {
    ShrinkRow {
        technique: technique.name.to_owned(),
        title: technique.title.to_owned(),
        levers: Vec::new(),
        parameters: None,
        trained: None,
        bytes: None,
        training: None,
        inference: None,
        saves: ShrinkSaved::default(),
        fits: None,
        step_ms_estimate: None,
        label: technique.label(),
        how: technique.how.to_owned(),
        note: None,
    }
}

/// Reason why a technique has no figures: a lever was refused, or the run failed.
fn failure(measured: &Measured) -> Option<String> {
    let refused = measured.refused.first().map(|(lever, why)| format!("`{lever}` cannot be applied: {why}"));
    refused.or_else(|| measured.problem.as_ref().map(|why| format!("the script fails with it: {why}")))
}

/// Note if the peak does not become smaller.
fn unsaved(what: &str, before: Peak, after: Peak) -> Option<String> {
    if after.device < before.device {
        return None;
    }
    let device = after.device - before.device;
    let (more, less) =
        (after.allocated.saturating_sub(before.allocated), before.allocated.saturating_sub(after.allocated));
    let nothing = format!("saves nothing in {what}");
    Some(match (device, more, less) {
        (0, 0, 0) => nothing,
        (0, 0, less) => {
            format!("{nothing}: tensors take {} less, but the device peak stays the same", size(less))
        }
        (0, more, _) => format!("{nothing}: tensors take {} more", size(more)),
        (device, 0, 0) => format!("{nothing}: the device peak rises by {}", size(device)),
        (device, 0, less) => format!(
            "{nothing}: tensors take {} less, but the device peak rises by {}",
            size(less),
            size(device)
        ),
        (device, more, _) => format!(
            "{nothing}: tensors take {} more, and the device peak rises by {}",
            size(more),
            size(device)
        ),
    })
}

/// Note on the memory that training with frozen weights needs in addition to weights, gradients and optimizer
/// state, if that is most of the peak and hardly less than before.
fn kept_activations(before: &ShrinkRow, after: &ShrinkRow) -> Option<String> {
    // Some of these bytes may already be freed at the peak, so the rest is at least this.
    let rest = |row: &ShrinkRow| {
        let bytes = row.bytes?;
        let held = bytes.weights + bytes.gradients + bytes.optimizer;
        Some((row.training?.allocated, row.training?.allocated.saturating_sub(held)))
    };
    let ((_, was), (peak, is)) = (rest(before)?, rest(after)?);
    let stays = is >= was - was / 10;
    (after.trained? <= before.trained? / 2 && is >= peak / 2 && stays).then(|| {
        format!(
            "activations stay: the peak has {} besides weights, gradients and optimizer state; \
             activation checkpointing reduces that",
            size(is)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::technique::find;

    const MIB: u64 = 1 << 20;

    fn peak(mib: u64) -> Peak {
        let bytes = mib * MIB;
        Peak { allocated: bytes, reserved: bytes, device: bytes + 100 * MIB, device_upper: bytes + 150 * MIB }
    }

    /// Returns a peak for each number of levers and pass, and counts the calls.
    struct Sheet<F> {
        answer: F,
        asked: Vec<(usize, Pass)>,
        interrupted_after: usize,
    }

    impl<F: FnMut(&[(Lever, Value)], Pass) -> Measured> Bench for Sheet<F> {
        type Error = std::convert::Infallible;

        fn measure(
            &mut self,
            settings: &[(Lever, Value)],
            pass: Pass,
        ) -> Result<Option<Measured>, Self::Error> {
            self.asked.push((settings.len(), pass));
            Ok((self.asked.len() <= self.interrupted_after).then(|| (self.answer)(settings, pass)))
        }
    }

    fn rows(
        names: &[&str],
        answer: impl FnMut(&[(Lever, Value)], Pass) -> Measured,
        interrupted_after: usize,
    ) -> (Option<Table>, Vec<(usize, Pass)>) {
        let techniques: Vec<&Technique> = names.iter().filter_map(|name| find(name)).collect();
        let mut sheet = Sheet { answer, asked: Vec::new(), interrupted_after };
        let Ok(table) = table(&mut sheet, &techniques, 1024 * MIB);
        (table, sheet.asked)
    }

    fn ran(mib: u64) -> Measured {
        Measured { peak: Some(peak(mib)), parameters: (10, 4), step_ms: Some(2.0), ..Measured::default() }
    }

    #[test]
    fn each_column_is_measured_only_where_it_changes() {
        let by_pass = |settings: &[(Lever, Value)], pass| match (settings.len(), pass) {
            (0, Pass::Training) => ran(1000),
            (0, Pass::Inference) => ran(400),
            (_, Pass::Training) => ran(600),
            (_, Pass::Inference) => ran(420),
        };
        let (table, asked) = rows(&["lora", "8-bit-optimizer", "int8-weights"], by_pass, usize::MAX);
        let table = table.unwrap();
        let twice = [(0, Pass::Training), (0, Pass::Inference)];
        let each = [(1, Pass::Training), (1, Pass::Inference), (1, Pass::Training), (1, Pass::Inference)];
        assert_eq!(asked, [twice.as_slice(), &each].concat());
        let [lora, optimizer, weights] = table.rows.as_slice() else { panic!("three rows") };
        let mib = MIB as i64;
        let saved = |row: &ShrinkRow| (row.saves.training, row.saves.inference);
        assert_eq!(saved(lora), (Some(400 * mib), Some(-20 * mib)));
        assert_eq!(saved(optimizer), (Some(400 * mib), Some(0)));
        assert_eq!(saved(weights), (None, Some(-20 * mib)));
        assert_eq!((weights.training, weights.trained, weights.parameters), (None, None, Some(10)));
        assert_eq!((table.baseline.fits, lora.fits, weights.fits), (Some(false), Some(true), None));
        // There is no note that it saves nothing on a part that it does not affect.
        assert_eq!(optimizer.note, None);
        let note = lora.note.as_deref().unwrap();
        let first = note.lines().next();
        let expected =
            "saves nothing in inference: tensors take 20.0 MiB more, and the device peak rises by 20.0 MiB";
        assert_eq!(first, Some(expected));
    }

    #[test]
    fn models_trained_for_a_format_infer_in_it() {
        let by_lever = |settings: &[(Lever, Value)], pass| match (settings, pass) {
            ([], Pass::Training) => ran(1000),
            ([], Pass::Inference) => ran(400),
            ([(Lever::Qat, _)], Pass::Training) => ran(1300),
            ([(Lever::TorchaoWeights, Value::Word(kind))], Pass::Inference) if kind == "int8-int4" => {
                ran(150)
            }
            other => panic!("{other:?} is not what the technique is"),
        };
        let row = &rows(&["qat"], by_lever, 9).0.unwrap().rows[0];
        assert_eq!((row.training, row.inference), (Some(peak(1300)), Some(peak(150))));
        assert!(row.note.as_deref().is_some_and(|note| note.contains("300 MiB more")), "{:?}", row.note);
        assert_eq!(row.levers[0].name, Lever::Qat);
    }

    #[test]
    fn a_refused_lever_and_a_failed_script_leave_cells_empty() {
        let answer = |settings: &[(Lever, Value)], pass| match settings {
            [] => ran(1000),
            [(Lever::PruneChannels, _)] => {
                let why = "torch-pruning is not installed: `pip install torch-pruning`";
                Measured { refused: vec![("prune-channels".to_owned(), why.to_owned())], ..ran(1000) }
            }
            [(Lever::FewerBlocks, _)] => {
                Measured { peak: None, problem: Some("KeyError: 'x'".to_owned()), ..Measured::default() }
            }
            _ if pass == Pass::Inference => {
                Measured { peak: None, problem: Some("TypeError".to_owned()), ..Measured::default() }
            }
            _ => ran(500),
        };
        let (table, _) =
            rows(&["prune-channels", "fewer-blocks", "bf16-weights", "int8-weights"], answer, 99);
        let table = table.unwrap();
        let texts: Vec<&str> = table.rows.iter().filter_map(|row| row.note.as_deref()).collect();
        assert!(texts[0].contains("pip install torch-pruning"));
        assert!(texts[1].contains("fails with it: KeyError"));
        assert!(texts[2].starts_with("inference cannot be measured: the script fails with it: TypeError"));
        assert!(texts[3].contains("TypeError"));
        for row in [0, 1, 3].map(|place| &table.rows[place]) {
            assert_eq!(
                (row.training, row.inference, row.step_ms_estimate, row.parameters),
                (None, None, None, None)
            );
            assert_eq!((row.saves.training, row.saves.inference, row.fits), (None, None, None));
        }
        assert_eq!(table.rows[2].training, Some(peak(500)));
    }

    #[test]
    fn rows_that_save_nothing_say_so_with_bytes() {
        let with = |allocated: u64, device: u64| Peak { allocated, device, ..Peak::default() };
        let before = with(10 * MIB, 100 * MIB);
        let check = |after: Peak, texts: Option<&str>| {
            assert_eq!(unsaved("training", before, after).as_deref(), texts);
        };
        check(with(9 * MIB, 99 * MIB), None);
        check(with(10 * MIB, 100 * MIB), Some("saves nothing in training"));
        check(with(13 * MIB, 100 * MIB), Some("saves nothing in training: tensors take 3.0 MiB more"));
        check(
            with(9 * MIB, 100 * MIB),
            Some("saves nothing in training: tensors take 1.0 MiB less, but the device peak stays the same"),
        );
        check(
            with(12 * MIB, 150 * MIB),
            Some(
                "saves nothing in training: tensors take 2.0 MiB more, and the device peak rises by 50.0 MiB",
            ),
        );
        check(
            with(10 * MIB, 150 * MIB),
            Some("saves nothing in training: the device peak rises by 50.0 MiB"),
        );
    }

    #[test]
    fn frozen_weights_leave_activations_and_the_row_says_so() {
        let held = |weights: u64, rest: u64| ShrinkBytes {
            weights: weights * MIB,
            gradients: rest * MIB,
            optimizer: 2 * rest * MIB,
        };
        let row = |bytes: ShrinkBytes, trained: u64, mib: u64| {
            let technique = find("lora").unwrap();
            ShrinkRow {
                bytes: Some(bytes),
                trained: Some(trained),
                training: Some(peak(mib)),
                ..blank(technique)
            }
        };
        let before = row(held(100, 100), 100, 1000);
        let note = kept_activations(&before, &row(held(101, 1), 1, 704)).unwrap();
        assert!(note.contains("the peak has 600 MiB besides weights"), "{note}");
        // Frozen blocks at the beginning have no activations.
        assert_eq!(kept_activations(&before, &row(held(101, 1), 1, 600)), None);
        // The rest is small, or most weights are trained.
        assert_eq!(kept_activations(&before, &row(held(101, 1), 1, 180)), None);
        assert_eq!(kept_activations(&before, &row(held(100, 90), 90, 970)), None);
        // Inference has no bytes of training.
        assert_eq!(kept_activations(&before, &blank(find("int8-weights").unwrap())), None);
    }

    #[test]
    fn an_interrupt_keeps_the_rows_that_were_measured() {
        let (table, asked) = rows(&["lora", "8-bit-optimizer"], |_, _| ran(10), 4);
        let table = table.unwrap();
        assert!(table.interrupted && table.rows.len() == 1 && asked.len() == 5);
        assert!(rows(&["lora"], |_, _| ran(10), 1).0.is_none());
    }

    #[test]
    fn a_technique_that_does_not_apply_is_not_run() {
        let (table, asked) = rows(&["smaller-images"], |_, _| ran(10), 9);
        assert_eq!(asked.len(), 2);
        assert!(table.unwrap().rows[0].note.as_deref().is_some_and(|note| note.contains("DataLoader")));
    }
}

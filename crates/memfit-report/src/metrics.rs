//! Runs in progress as metrics in the Prometheus text format.
//!
//! Command lines and paths are left out, since metrics are stored and read by others.

use std::fmt::Write as _;

use crate::wire::{CardKind, WatchReport, WatchedRun};

/// Content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metric with its samples.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<(String, f64)>,
}

impl Metric {
    const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: "gauge", help, samples: Vec::new() }
    }
}

/// Formats the runs that have not ended.
pub fn metrics(report: &WatchReport) -> String {
    let mut info = Metric::gauge("memfit_run_info", "A run in progress.");
    let mut seconds = Metric::gauge("memfit_run_seconds", "Time since the run began.");
    let steps_help = "Completed optimizer steps of the rank that has completed the most.";
    let mut steps = Metric { kind: "counter", ..Metric::gauge("memfit_steps_total", steps_help) };
    let mut capacity = Metric::gauge("memfit_gpu_memory_capacity_bytes", "Memory of the GPU.");
    let mut used = Metric::gauge("memfit_gpu_memory_used_bytes", "Memory in use on the GPU.");
    let mut peak = Metric::gauge("memfit_gpu_memory_peak_bytes", "Most memory that was in use on the GPU.");
    let mut allocated = Metric::gauge(
        "memfit_process_allocated_bytes",
        "Bytes in PyTorch's blocks after the process's last step.",
    );
    let mut most =
        Metric::gauge("memfit_process_peak_allocated_bytes", "Most bytes in PyTorch's blocks in any step.");
    let mut resident = Metric::gauge("memfit_process_resident_bytes", "Host memory of the process.");
    let mut pinned = Metric::gauge("memfit_process_pinned_bytes", "Page-locked host memory of the process.");
    let mut failed = Metric::gauge(
        "memfit_out_of_memory_requested_bytes",
        "Size of the last allocation that failed, labelled with its step.",
    );
    for run in report.runs.iter().filter(|run| !run.ended) {
        let of_run = labels(&[("run", &run.pid.to_string())]);
        info.samples.push((about(run), 1.0));
        seconds.samples.push((of_run.clone(), run.seconds));
        steps.samples.push((of_run, run.steps as f64));
        for (index, card) in run.cards.iter().enumerate() {
            let of_card =
                labels(&[("run", &run.pid.to_string()), ("gpu", &index.to_string()), ("name", &card.name)]);
            capacity.samples.push((of_card.clone(), card.capacity as f64));
            used.samples.push((of_card.clone(), card.used as f64));
            peak.samples.push((of_card, card.peak as f64));
        }
        for process in run.processes.iter().filter(|process| process.alive) {
            let rank = process.rank.map(|rank| rank.to_string()).unwrap_or_default();
            let of_process =
                labels(&[("run", &run.pid.to_string()), ("pid", &process.pid.to_string()), ("rank", &rank)]);
            allocated.samples.push((of_process.clone(), process.allocated as f64));
            most.samples.push((of_process.clone(), process.peak_allocated as f64));
            resident.samples.push((of_process.clone(), process.resident as f64));
            pinned.samples.push((of_process, process.pinned as f64));
        }
        if let Some(oom) = &run.oom {
            let of_oom = labels(&[
                ("run", &run.pid.to_string()),
                ("pid", &oom.pid.to_string()),
                ("step", &oom.step.to_string()),
                ("phase", oom.phase.name()),
            ]);
            failed.samples.push((of_oom, oom.requested as f64));
        }
    }
    let all = [info, seconds, steps, capacity, used, peak, allocated, most, resident, pinned, failed];
    let mut text = String::new();
    for metric in all {
        let Metric { name, kind, help, samples } = metric;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    }
    text
}

fn about(run: &WatchedRun) -> String {
    let kind = match run.kind {
        CardKind::Real => "real",
        CardKind::Virtual => "virtual",
    };
    labels(&[("run", &run.pid.to_string()), ("torch", run.torch.as_deref().unwrap_or("")), ("gpus", kind)])
}

/// Formats labels, with backslashes, quotes and line ends escaped.
fn labels(labels: &[(&str, &str)]) -> String {
    let each = labels.iter().map(|(name, value)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    });
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfit_vocabulary::Phase;

    use crate::wire::{WatchedCard, WatchedOom, WatchedProcess, schema};

    fn run(ended: bool) -> WatchedRun {
        let process = |pid, alive| WatchedProcess {
            pid,
            rank: Some(1),
            alive,
            steps: 3,
            allocated: 1 << 30,
            peak_allocated: 3 << 30,
            used: None,
            resident: 5,
            pinned: 7,
        };
        WatchedRun {
            pid: 4711,
            command: vec!["python".to_owned(), "train.py".to_owned(), "--token=secret".to_owned()],
            ended,
            seconds: 1.5,
            steps: 3,
            steps_wanted: None,
            torch: Some("2.15.0".to_owned()),
            kind: CardKind::Virtual,
            cards: vec![WatchedCard {
                name: "A \"card\"\\\n".to_owned(),
                capacity: 16 << 30,
                used: 4 << 30,
                peak: 6 << 30,
                history: Vec::new(),
            }],
            processes: vec![process(4712, true), process(4713, false)],
            oom: Some(WatchedOom {
                pid: 4712,
                requested: 9 << 30,
                step: 4,
                phase: Phase::Forward,
                module: Some("net.secret".to_owned()),
                line: Some("/home/me/secret.py:3".to_owned()),
            }),
        }
    }

    #[test]
    fn runs_in_progress_are_samples_and_tell_no_secrets() {
        let text = metrics(&WatchReport { schema: schema::WATCH, runs: vec![run(false)] });
        for line in [
            "# TYPE memfit_steps_total counter",
            "memfit_run_info{run=\"4711\",torch=\"2.15.0\",gpus=\"virtual\"} 1",
            "memfit_run_seconds{run=\"4711\"} 1.5",
            "memfit_steps_total{run=\"4711\"} 3",
            "memfit_gpu_memory_capacity_bytes{run=\"4711\",gpu=\"0\",name=\"A \\\"card\\\"\\\\\\n\"} 17179869184",
            "memfit_process_allocated_bytes{run=\"4711\",pid=\"4712\",rank=\"1\"} 1073741824",
            "memfit_out_of_memory_requested_bytes{run=\"4711\",pid=\"4712\",step=\"4\",phase=\"forward\"} 9663676416",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("secret") && !text.contains("4713"), "{text}");
    }

    #[test]
    fn without_a_run_the_metrics_have_no_samples() {
        let text = metrics(&WatchReport { schema: schema::WATCH, runs: vec![run(true)] });
        assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
        assert!(text.ends_with('\n'));
    }
}

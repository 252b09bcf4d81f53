//! Snapshots of the text output.

#![allow(clippy::unwrap_used, clippy::exit, reason = "a panic fails the test")]

mod support;

use memfit_devices::{
    Bytes, CalibratedCard, CalibratedLink, CalibratedWith, Calibration, Catalogue, Gap, Interval, Origin,
    OutsideParts, Spread,
};
use memfit_report::remarks::Note;
use memfit_report::text::{self, Canvas};
use memfit_report::wire::{
    CalibrateReport, CardKind, Check, CodeLine, Coverage, DoctorReport, ExplainFix, ExplainReport, FixProof,
    Health, NotRun, OutsideModules, OutsidePart, RunReport, Verdict, WatchReport, WatchedCard, WatchedOom,
    WatchedProcess, WatchedRun, schema,
};
use memfit_vocabulary::{Phase, Remark};
use support::{all, failed, fits, oom, recovered, two_ranks, unknown};

/// The text without ANSI styles.
fn plain(report: &RunReport, width: usize, unicode: bool) -> String {
    let text = text::run(report, Canvas { width, unicode });
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn a_run_that_fits() {
    insta::assert_snapshot!("fits_at_80_columns", plain(&fits(), 80, true));
    insta::assert_snapshot!("fits_at_120_columns", plain(&fits(), 120, true));
    insta::assert_snapshot!("fits_in_ascii", plain(&fits(), 80, false));
}

#[test]
fn a_fit_that_leaves_little_is_doubted() {
    let mut report = fits();
    let left =
        |report: &RunReport| plain(report, 120, true).contains("note: only 940 MiB of the GPU is left.");
    assert!(!left(&report));
    report.peak.device_upper = report.device.capacity - (940 << 20);
    assert!(left(&report), "{}", plain(&report, 120, true));
}

#[test]
fn what_a_run_holds_beside_its_segments_need_not_be_another_process() {
    let told = |kind: CardKind, origin: Origin| {
        let mut report = fits();
        report.device.kind = kind;
        report.outside.other_processes = 314 << 20;
        report.outside_parts.push(OutsidePart {
            name: "other_processes".to_owned(),
            low: 314 << 20,
            typical: 314 << 20,
            high: 314 << 20,
            origin,
            source: String::new(),
        });
        let text = plain(&report, 120, true);
        (text.contains("other memory 314 MiB"), text.contains("other processes 314 MiB"))
    };
    assert_eq!(told(CardKind::Virtual, Origin::Counted), (true, false));
    assert_eq!(told(CardKind::Virtual, Origin::Stated), (false, true));
    assert_eq!(told(CardKind::Real, Origin::Counted), (false, true));
}

#[test]
fn an_explanation_of_each_cause() {
    let canvas = Canvas { width: 100, unicode: true };
    for report in support::explained::each() {
        let text = anstream::adapter::strip_str(&text::explain(&report, canvas)).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        insta::assert_snapshot!(format!("explained_{}", report.cause), text);
    }
}

#[test]
fn remedies_that_runs_refuted_are_named_though_they_are_not_shown() {
    let mut report = oom();
    let peak = report.peak;
    let refuted = |card| ExplainFix {
        enough: Some(false),
        card,
        proof: Some(FixProof { verdict: Verdict::Oom, steps: 1, peak }),
        ..report.fixes[2].clone()
    };
    let more = [refuted(Some(20 << 30)), refuted(None)];
    report.fixes.push(more[0].clone());
    let unwrapped = |report: &RunReport| {
        let text = plain(report, 120, true);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let one = unwrapped(&report);
    assert!(one.contains("; a run with a GPU with 20.00 GiB also ran out of memory"), "{one}");
    report.fixes.push(more[1].clone());
    let both = unwrapped(&report);
    assert!(both.contains("and 2 more"), "{both}");
    assert!(both.contains("runs with a GPU with 20.00 GiB and smaller-batch also ran"), "{both}");
}

#[test]
fn a_stack_is_shown_once() {
    let canvas = Canvas { width: 100, unicode: true };
    let text = |report: &_| anstream::adapter::strip_str(&text::explain(report, canvas)).to_string();
    let with_stack =
        |report: &ExplainReport| report.evidence.first().is_some_and(|first| !first.stack.is_empty());
    let mut report = support::explained::each().find(with_stack).unwrap();
    report.evidence.truncate(1);
    let once = text(&report);
    report.evidence.push(report.evidence[0].clone());
    let twice = text(&report);
    let line = &report.evidence[0].stack[0];
    let frame = format!("at {}:{}", line.file, line.line);
    assert_eq!((once.matches(&frame).count(), twice.matches(&frame).count()), (1, 1), "{twice}");
    assert!(twice.contains(&format!("{}:{}, as above", line.file, line.line)), "{twice}");
}

#[test]
fn a_file_that_does_not_say_the_step_gives_none() {
    let canvas = Canvas { width: 100, unicode: true };
    for mut report in support::explained::each() {
        report.peak.step = 0;
        let text = anstream::adapter::strip_str(&text::explain(&report, canvas)).to_string();
        assert!(!text.contains("step 0"), "{text}");
    }
}

#[test]
fn comparisons_of_cards() {
    let canvases = [(80, true), (120, true), (60, false)];
    for (index, report) in support::compared::each().iter().enumerate() {
        for (width, unicode) in canvases {
            let text = text::cards(report, Canvas { width, unicode });
            let text = anstream::adapter::strip_str(&text).to_string();
            insta::assert_snapshot!(format!("cards_{index}_at_{width}_columns"), text);
        }
    }
}

#[test]
fn comparisons_of_commits() {
    for (name, report) in support::reviewed::each() {
        for (width, unicode) in [(80, true), (60, false)] {
            let text = text::ci(&report, Canvas { width, unicode });
            let text = anstream::adapter::strip_str(&text).to_string();
            insta::assert_snapshot!(format!("ci_{name}_at_{width}_columns"), text);
        }
        let comment = memfit_report::ci_comment(&report);
        assert!(comment.starts_with(memfit_report::CI_MARKER), "it cannot be found again");
        insta::assert_snapshot!(format!("ci_{name}_comment"), comment);
    }
}

#[test]
fn a_page_of_cards_has_its_rows_and_lets_none_of_them_out() {
    for report in support::compared::each() {
        let page = memfit_report::cards_page(&report);
        assert_eq!(page.matches("</script>").count(), 2, "a row's text ends no script");
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("http://") && !addresses.contains("https://"), "it fetches nothing");
        let data = page.split("id=\"report\">").nth(1).unwrap().split("</script>").next().unwrap();
        assert_eq!(serde_json::from_str::<memfit_report::wire::CardsReport>(data).unwrap(), report);
    }
}

#[test]
fn the_headline_of_a_page_of_cards_says_how_many_rows_are_unknown() {
    use memfit_report::wire::CardVerdict;
    let mut seen = Vec::new();
    for report in support::compared::each() {
        let page = memfit_report::cards_page(&report);
        let fits = report.rows.iter().any(|row| row.verdict.fits());
        let unknown = report.rows.iter().filter(|row| row.verdict == CardVerdict::Unknown).count();
        let is_open = !fits && unknown > 0;
        assert_eq!(page.contains(&format!(", {unknown} of them unknown</h1>")), is_open);
        assert_eq!(page.contains("class=\"badge open\""), is_open);
        assert_eq!(page.contains("class=\"badge bad\""), !fits && unknown == 0);
        seen.push(is_open);
    }
    assert!(seen.contains(&true) && seen.contains(&false));
}

#[test]
fn replays() {
    for (name, report) in support::replayed::each() {
        for (width, unicode) in [(100, true), (72, false)] {
            let text = text::replay(&report, Canvas { width, unicode });
            let text = anstream::adapter::strip_str(&text).to_string();
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            insta::assert_snapshot!(format!("replay_{name}_at_{width}_columns"), text);
        }
    }
}

#[test]
fn runs_in_progress() {
    let process = |pid, rank, alive| WatchedProcess {
        pid,
        rank,
        alive,
        steps: 1234,
        allocated: 9 << 30,
        peak_allocated: 11 << 30,
        used: Some(12 << 30),
        resident: 2 << 30,
        pinned: 0,
    };
    let card = WatchedCard {
        name: "Tesla T4".into(),
        capacity: 16 << 30,
        used: 12 << 30,
        peak: 14 << 30,
        history: (0..30).map(|look| look << 29).collect(),
    };
    let ranks = WatchedRun {
        pid: 4711,
        command: vec!["torchrun".into(), "--nproc-per-node".into(), "2".into(), "train.py".into()],
        ended: false,
        seconds: 3725.0,
        steps: 1234,
        steps_wanted: None,
        torch: Some("2.15.0".into()),
        kind: CardKind::Virtual,
        cards: vec![card.clone(), WatchedCard { used: 0, ..card.clone() }],
        processes: vec![process(4712, Some(0), true), process(4713, Some(1), false)],
        oom: Some(WatchedOom {
            pid: 4713,
            requested: 3 << 30,
            step: 1235,
            phase: Phase::Forward,
            module: Some("encoder.layer.3".into()),
            line: Some("train.py:17 in step".into()),
        }),
    };
    let real = WatchedRun {
        ended: true,
        steps_wanted: Some(2000),
        torch: None,
        kind: CardKind::Real,
        cards: vec![card],
        processes: vec![WatchedProcess { used: None, ..process(4712, None, true) }],
        oom: None,
        ..ranks.clone()
    };
    let report = WatchReport { schema: schema::WATCH, runs: vec![ranks, real] };
    let text = text::watch(&report, Canvas { width: 80, unicode: true });
    insta::assert_snapshot!("runs_in_progress", anstream::adapter::strip_str(&text).to_string());
}

#[test]
fn styles_are_those_of_a_terminal() {
    let text = text::run(&fits(), Canvas { width: 80, unicode: true });
    insta::assert_snapshot!("fits_in_colour", text.replace('\u{1b}', "\\e"));
}

#[test]
fn a_run_that_does_not() {
    insta::assert_snapshot!("out_of_memory", plain(&oom(), 80, true));
}

#[test]
fn a_run_that_recovers() {
    insta::assert_snapshot!("recovered", plain(&recovered(), 80, true));
}

#[test]
fn a_run_that_cannot_tell() {
    insta::assert_snapshot!("cannot_tell", plain(&unknown(), 80, true));
}

#[test]
fn a_run_of_two_ranks() {
    insta::assert_snapshot!("two_ranks", plain(&two_ranks(), 80, true));
}

#[test]
fn parts_that_a_script_cannot_have_are_not_missing() {
    let told = |change: fn(&mut RunReport)| {
        let mut report = fits();
        change(&mut report);
        plain(&report, 100, true)
    };
    let with_loader = told(|_| ());
    assert!(with_loader.contains("an evaluation, a batch of the largest items"), "{with_loader}");
    assert!(with_loader.contains("--cover full"), "{with_loader}");
    let without = told(|report| (report.coverage.has_loader, report.coverage.epoch_end) = (false, false));
    assert!(!without.contains("not covered") && !without.contains("--cover full"), "{without}");
    let unfinished = told(|report| {
        (report.coverage.has_loader, report.coverage.epoch_end) = (false, false);
        let (place, code) = ("train.py:9".to_owned(), "evaluate(model)".to_owned());
        report.coverage.not_run = vec![NotRun { place, code }];
    });
    assert!(unfinished.contains("not covered   an evaluation\n"), "{unfinished}");
    let inference = told(|report| report.coverage.forward_only = true);
    assert!(!inference.contains("an evaluation"), "{inference}");
}

#[test]
fn memory_runs_out_in_a_forward_pass_of_a_script_without_an_optimizer() {
    let mut report = oom();
    report.coverage = Coverage { steps: 1, forward_only: true, ..Coverage::default() };
    report.oom.as_mut().unwrap().phase = Phase::Forward;
    let text = plain(&report, 200, true);
    assert!(text.contains(", in forward pass 2 of `"), "{text}");
    report.oom.as_mut().unwrap().phase = Phase::Backward;
    assert!(!plain(&report, 200, true).contains("forward pass 2"));
}

/// A T4 on which most quantities were measured.
fn calibration() -> Calibration {
    let megabytes = |mib: [u64; 3]| {
        let [low, typical, high] = mib.map(Bytes::from_mib);
        Some(Interval { low, typical, high })
    };
    let spread = |typical: f64| Spread::from_measurements([0.97 * typical, typical, 1.01 * typical]);
    let rates = [("fp32", 7.1e12), ("fp16", 26.4e12)];
    Calibration {
        schema: Calibration::SCHEMA.to_owned(),
        card: CalibratedCard {
            id: "t4".to_owned(),
            name: "Tesla T4".to_owned(),
            memory: Bytes::from_mib(14_913),
            is_virtual: false,
        },
        with: CalibratedWith {
            machine: "node7".to_owned(),
            date: "2026-11-20".to_owned(),
            driver: Some("580.82.07".to_owned()),
            torch: "2.15.0+cu132".to_owned(),
            cuda: "13.2".to_owned(),
        },
        outside: OutsideParts {
            context: megabytes([100, 102, 104]),
            libraries: megabytes([8, 38, 92]),
            per_communicator: None,
            other_processes: Some(Bytes::from_mib(3)),
        },
        rates: rates.iter().filter_map(|(name, rate)| Some(((*name).to_owned(), spread(*rate)?))).collect(),
        memory_bandwidth: spread(241e9),
        host_link: CalibratedLink {
            to_card_pinned: spread(12.3e9),
            to_host_pinned: spread(13.1e9),
            to_card_pageable: spread(6.2e9),
            to_host_pageable: spread(5.0e9),
        },
        peer_link: None,
        launch_ns: spread(2_350.0),
        not_measured: vec![Gap {
            what: "communicators, links between GPUs".to_owned(),
            why: "needs two GPUs".to_owned(),
        }],
    }
}

#[test]
fn a_calibration_stands_beside_the_catalogue() {
    let catalogue = Catalogue::builtin().unwrap();
    let t4 = catalogue.find("t4").unwrap();
    let canvas = Canvas { width: 80, unicode: true };
    let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
    let kept = Some("/home/me/.config/memfit/calibration/node7/t4.json".to_owned());
    let report = CalibrateReport::new(calibration(), t4, kept);
    insta::assert_snapshot!("calibration", plain(&text::calibration(&report, canvas)));
    let card = t4.clone().calibrated(&calibration());
    insta::assert_snapshot!("calibrated_card", plain(&text::gpu(&card, canvas)));
}

#[test]
fn equal_memory_outside_the_allocator_is_shown_once() {
    let catalogue = Catalogue::builtin().unwrap();
    let t4 = catalogue.find("t4").unwrap();
    let text = text::gpu(t4, Canvas { width: 80, unicode: true });
    let rows = text.lines().filter(|line| line.contains("context 96 MiB")).count();
    assert_eq!(rows, 1, "{text}");
}

#[test]
fn a_run_without_an_answer() {
    insta::assert_snapshot!("no_answer", plain(&failed(), 80, true));
}

#[test]
fn no_text_is_wider_than_it_may_be() {
    for report in all() {
        for width in [60, 80, 100, 120, 200] {
            for unicode in [true, false] {
                for line in plain(&report, width, unicode).lines() {
                    // Lines of a diff are shown in full, so that they can be copied.
                    let is_diff = line.starts_with("     +") || line.starts_with("     -");
                    assert!(
                        is_diff || line.chars().count() <= width,
                        "{width} columns, and this has more:\n{line}"
                    );
                    assert!(unicode || line.is_ascii(), "not ASCII:\n{line}");
                }
            }
        }
    }
}

/// The bars agree with the numbers: together with the headroom they fill the GPU.
#[test]
fn bars_begin_where_the_one_above_ends() {
    let text = plain(&fits(), 120, false);
    let bars: Vec<(usize, usize)> = text
        .lines()
        .filter(|line| line.contains('#') && line.ends_with('%'))
        .map(|line| (line.find('#').unwrap(), line.rfind('#').unwrap() + 1))
        .collect();
    assert!(bars.len() > 8, "{text}");
    for pair in bars.windows(2) {
        let ((_, end), (start, _)) = (pair[0], pair[1]);
        assert!(
            start.abs_diff(end) <= 1,
            "a bar begins at {start}, and the one above ends at {end}:\n{text}"
        );
    }
}

/// Without the wrapping.
fn text_of(report: &RunReport) -> String {
    plain(report, 200, false).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn growth_is_told_where_it_would_matter() {
    let mut report = fits();
    report.coverage.growth_per_step = Some(report.headroom / 100);
    report.coverage.steps = 4;
    assert!(text_of(&report).contains("more: full after 100 more steps"), "{}", text_of(&report));
    assert!(text_of(&report).contains("each step takes"), "{}", text_of(&report));
    // One difference between two steps shows no rate.
    report.coverage.steps = 3;
    assert!(
        text_of(&report).contains("`--steps 10` shows whether memory goes on growing"),
        "{}",
        text_of(&report)
    );
    // Batches of different sizes have no growth.
    report.coverage.growth_per_step = None;
    assert!(text_of(&report).contains("the steps differ in memory"), "{}", text_of(&report));
    report.coverage.largest_batch = true;
    assert!(!text_of(&report).contains("the steps differ in memory"), "{}", text_of(&report));
    // Such a small growth is noise: it would take two hundred thousand steps to matter.
    report.coverage.growth_per_step = Some(report.headroom / 200_000);
    assert!(!text_of(&report).contains("grew"), "{}", text_of(&report));
}

#[test]
fn tensors_of_no_module_stand_first_where_they_take_the_most() {
    let mut report = fits();
    let outside = |report: &mut RunReport, bytes, line| {
        report.at_peak.as_mut().unwrap().outside_modules = Some(OutsideModules { bytes, line });
    };
    let (file, function) = ("train.py".to_owned(), "train".to_owned());
    let line = Some(CodeLine { file, line: 16, function, text: None });
    outside(&mut report, 1 << 20, line.clone());
    assert!(!plain(&report, 120, true).contains("outside of modules"), "a module has more");
    outside(&mut report, 3 << 30, line);
    let text = plain(&report, 120, true);
    let (heading, rest) = text.split_once("Largest modules at the peak, without their submodules\n").unwrap();
    assert!(!heading.contains("outside of modules"));
    assert_eq!(
        rest.lines().next().unwrap().trim(),
        "3.00 GiB  outside of modules, most of it at train.py:16 in train"
    );
    outside(&mut report, 3 << 30, None);
    assert!(plain(&report, 120, true).contains("3.00 GiB  outside of modules\n"), "stacks were not recorded");
}

#[test]
fn statements_that_did_not_run_are_listed() {
    let mut report = fits();
    let statement = |line: u32| NotRun {
        place: format!("/home/ada/train.py:{line}"),
        code: format!("evaluate(model, loaders[{line}])"),
    };
    report.coverage.not_run = (1..=4).map(statement).collect();
    let text = text_of(&report);
    assert!(text.contains("not run train.py:1: `evaluate(model, loaders[1])` train.py:2:"), "{text}");
    assert!(text.contains("loaders[4])` step time"), "{text}");
    assert!(text.contains("next: `--steps 0` runs the script to its end"), "{text}");
    report.coverage.not_run = (1..=6).map(statement).collect();
    let text = text_of(&report);
    assert!(text.contains("loaders[4])` and 2 other statements that use the GPU"), "{text}");
    assert!(!text.contains("loaders[5]"), "{text}");
}

#[test]
fn full_cover_is_not_advised_where_it_was_tried() {
    let mut report = fits();
    assert!(text_of(&report).contains("next: `--cover full`"));
    report.fidelity.add(&Note::new(Remark::NotCovered).with_value("what", "evaluation"));
    assert!(!text_of(&report).contains("next: `--cover full`"), "{}", text_of(&report));
}

#[test]
fn a_small_step_is_said_to_be_the_hosts() {
    let mut report = fits();
    for (milliseconds, is_told) in [(0.43, true), (50.0, false)] {
        report.time.step_ms_estimate = Some(milliseconds);
        assert_eq!(text_of(&report).contains("`--host-time measured` counts"), is_told, "{milliseconds}");
    }
}

#[test]
fn what_is_installed() {
    let check = |name: &str, health, found: &str, hint: Option<&str>| Check {
        name: name.to_owned(),
        health,
        found: found.to_owned(),
        hint: hint.map(str::to_owned),
    };
    let report = DoctorReport::new(vec![
        check("memfit", Health::Good, "0.1.0", None),
        check(
            "torch",
            Health::Broken,
            "PyTorch is not installed for `python`",
            Some("install it: `python -m pip install torch`"),
        ),
        check("real GPU", Health::Absent, "none, and none is needed", None),
    ]);
    assert!(!report.ready);
    let text = text::doctor(&report, Canvas { width: 80, unicode: true });
    insta::assert_snapshot!("doctor", anstream::adapter::strip_str(&text).to_string());
}

//! Remarks in reports of runs that went wrong, produced by a stand-in for the script.

#![allow(clippy::unwrap_used, clippy::exit, reason = "a panic fails the test")]

mod support;

use std::process::Command;

use memfit_channel::Message;
use memfit_channel::events::{self, Event, Writer};
use memfit_channel::ledger::{MAX_TALLY, TallyKind};
use memfit_vocabulary::Remark;
use serde_json::{Value, json};
use support::{GIB, PART, Place, Script, wait};

/// Not a test: it plays the script.
#[test]
#[ignore = "child process of the other tests"]
fn the_script() {
    let part = std::env::var(PART).unwrap();
    match part.as_str() {
        "one moves, one stands still" => start_ranks(&["moves", "stands still"]),
        "two on a real card" => start_ranks(&["on a real card", "on a real card"]),
        part => play(part),
    }
    std::process::exit(0);
}

fn play(part: &str) {
    let mut script = Script::join();
    match part {
        "counts too much" => (0..=MAX_TALLY).for_each(|name| {
            script.tally(TallyKind::Unmodelled, &format!("call {name}"));
        }),
        "logs too much" => {
            let log =
                Writer::create(&script.run_dir.events(std::process::id()), std::process::id(), 256).unwrap();
            let block = |number: u64| Event::Alloc {
                place: events::EventContext::default(),
                address: (number + 1) << 20,
                bytes: 1 << 20,
                allocated: (number + 1) << 20,
                reserved: GIB,
            };
            (0..100).for_each(|number| log.push(&block(number)));
        }
        "refuses a lever" => script.say(&Message::Refused {
            lever: "channels-last".into(),
            why: "the model has no convolutions".into(),
        }),
        "has a later torch" => {
            script.say(&Message::Torch {
                version: "2.99.0+cu132".into(),
                cuda: Some("13.2".into()),
                alloc_conf: None,
            });
        }
        "stands still" => {
            script.allocate(GIB);
            script.steps(1..=1);
            wait();
        }
        "crashes at its end" => {
            script.allocate(3 * GIB);
            script.steps(1..=3);
            script.done("exit", 3);
            std::process::abort();
        }
        _ => {}
    }
    if part != "on a real card" {
        script.allocate(3 * GIB);
    }
    script.steps(1..=3);
    script.done("steps", 3);
    wait();
}

fn start_ranks(parts: &[&str]) {
    let start = |(rank, part): (usize, &&str)| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(std::env::args_os().skip(1)).env(PART, part);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", parts.len().to_string());
        command.spawn().unwrap()
    };
    let children: Vec<_> = parts.iter().enumerate().map(start).collect();
    for mut child in children {
        child.wait().unwrap();
    }
}

/// The ids of a report's remarks; each must also be among the notes.
fn remarks(report: &Value) -> Vec<String> {
    let fidelity = &report["fidelity"];
    let effects = fidelity["effects"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    let notes = fidelity["notes"].as_array().unwrap();
    let found: Vec<&Value> = effects.iter().filter(|effect| notes.contains(&effect["what"])).collect();
    assert_eq!(found.len(), notes.len(), "{fidelity:#}");
    found.iter().map(|effect| effect["id"].as_str().unwrap().to_owned()).collect()
}

fn check(part: &str, options: &[&str], expected: &[Remark]) {
    let (output, report) = Place::new().report(part, options);
    let found = remarks(&report);
    for remark in expected {
        assert!(
            found.iter().any(|id| id == remark.id()),
            "{part}: {} is not among {found:?}\n{}",
            remark.id(),
            support::text(&output.stderr)
        );
    }
}

#[test]
fn more_names_than_are_counted() {
    check("counts too much", &[], &[Remark::TallyFull]);
}

#[test]
fn more_events_than_a_log_holds() {
    check("logs too much", &[], &[Remark::LogFull]);
}

#[test]
fn a_lever_that_was_not_applied() {
    check("refuses a lever", &[], &[Remark::LeverRefused]);
}

#[test]
fn a_crash_after_the_last_line_leaves_the_answer() {
    check("crashes at its end", &["--steps", "0"], &[Remark::CrashedAtEnd]);
    let (_, report) = Place::new().report("crashes at its end", &["--steps", "0"]);
    assert_eq!((&report["verdict"], &report["script"]["signal"]), (&json!("fits"), &json!("SIGABRT")));
}

#[test]
fn a_torch_that_nothing_was_run_with() {
    check("has a later torch", &[], &[Remark::TorchUntried]);
}

#[test]
fn a_rank_that_stands_still_while_the_others_are_done() {
    check("one moves, one stands still", &["--gpu", "rtx-4090:2"], &[Remark::Stalled]);
}

#[test]
fn a_plan_whose_batches_have_many_pieces() {
    let place = Place::new();
    let plan = place.folder.path().join("plan.toml");
    std::fs::write(&plan, "version = 1\nmicro_batch = 2\n\n[made_for]\nbatch = 64\n").unwrap();
    let (output, report) = place.report("trains", &["--plan", plan.to_str().unwrap()]);
    let found = remarks(&report);
    assert!(found.iter().any(|id| id == Remark::Pieces.id()), "{found:?}\n{}", support::text(&output.stderr));
}

#[test]
fn a_plan_for_another_card() {
    let place = Place::new();
    let plan = place.folder.path().join("plan.toml");
    std::fs::write(&plan, "version = 1\n\n[made_for]\ngpu = \"Tesla T4\"\n").unwrap();
    let (output, report) = place.report("trains", &["--plan", plan.to_str().unwrap()]);
    let found = remarks(&report);
    assert!(
        found.iter().any(|id| id == Remark::PlanDiffers.id()),
        "{found:?}\n{}",
        support::text(&output.stderr)
    );
}

/// A machine with a GPU, as seen through the driver's library.
const DRIVER: &str = r#"
#include <string.h>
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = &nvmlInit_v2; return index != 0; }
int nvmlDeviceGetMemoryInfo(void *card, struct memory *memory) {
    memory->total = 16ull << 30; memory->free = 12ull << 30; memory->used = 4ull << 30;
    return card == 0;
}
int nvmlDeviceGetName(void *card, char *name, unsigned length) { strncpy(name, "Tesla T4", length); return card == 0; }
"#;

#[test]
fn a_real_card_is_looked_at_now_and_then_and_only_the_first() {
    let place = Place::new();
    let driver = place.folder.path().join("driver");
    std::fs::create_dir(&driver).unwrap();
    std::fs::write(driver.join("driver.c"), DRIVER).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([driver.join("libnvidia-ml.so.1"), driver.join("driver.c")])
        .status()
        .unwrap();
    assert!(status.success(), "cc made no library");
    let mut command = place.run("two on a real card", &["--gpu", "local"]);
    let output = command.env("LD_LIBRARY_PATH", &driver).output().unwrap();
    let stderr = support::text(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!(report["device"]["kind"], "real", "{report:#}");
    let found = remarks(&report);
    for remark in [Remark::Sampled, Remark::FirstCard] {
        assert!(found.iter().any(|id| id == remark.id()), "{found:?}\n{stderr}");
    }
}

//! `memfit run` with a stand-in for the script: verdicts, exit statuses, and no leftover processes.

#![allow(clippy::unwrap_used, clippy::exit, reason = "a panic fails the test")]
#![allow(clippy::print_stderr, reason = "the stand-in prints like a script")]

mod support;

use std::process::{Command, Stdio};

use memfit_channel::ValuePolicy;
use memfit_channel::ledger::TallyKind;
use memfit_vocabulary::Assumption;
use serde_json::Value;
use support::{GIB, MIB, PART, Place, Script, is_alive, note_pid, text, wait};

/// Not a test: it plays the script.
#[test]
#[ignore = "child process of the other tests"]
fn the_script() {
    let part = std::env::var(PART).unwrap();
    play(&part);
    std::process::exit(0);
}

fn play(part: &str) {
    match part {
        "deaf" => {
            note_pid();
            wait();
        }
        "fails before torch" => {
            eprintln!("no data set here");
            std::process::exit(3);
        }
        "crashes" => std::process::abort(),
        "starts two ranks" => start_ranks(2, &["trains", "trains"]),
        "starts a rank that fails" => start_ranks(2, &["trains", "exception"]),
        "starts a rank that ends early" => start_ranks(2, &["trains", "ends early"]),
        "hides a child" => {
            hide_child();
            play("trains");
        }
        "reads its input" => {
            let input = std::io::read_to_string(std::io::stdin()).unwrap();
            assert_eq!(input, "a word\n");
            play("trains");
        }
        _ => play_with_torch(part, Script::join()),
    }
}

fn play_with_torch(part: &str, mut script: Script) {
    match part {
        "trains" => {
            script.allocate(3 * GIB);
            script.steps(1..=3);
            script.done("steps", 3);
            wait();
        }
        "ends early" => {
            script.allocate(3 * GIB);
            script.steps(1..=2);
            script.done("exit", 2);
        }
        "never uses the gpu" => {
            let done = |devices| memfit_channel::message::Done {
                reason: "exit".into(),
                steps: 0,
                forward_only: true,
                evaluation: false,
                largest_batch: false,
                epoch_end: false,
                growth_per_step: None,
                unmet: 0,
                held: false,
                feeding: None,
                asks_size: false,
                reduced: None,
                not_run: Vec::new(),
                devices,
            };
            script.say(&memfit_channel::Message::Done(done(std::collections::BTreeMap::new())));
        }
        "oom" => {
            script.allocate(3 * GIB);
            script.steps(1..=1);
            script.oom(2);
            script.uncaught("torch.OutOfMemoryError", true);
            eprintln!("torch.OutOfMemoryError: CUDA out of memory.");
            std::process::exit(1);
        }
        "oom, then smaller" => {
            script.allocate(3 * GIB);
            script.oom(1);
            script.steps(1..=3);
            script.done("steps", 3);
            wait();
        }
        "oom, then gives up" => {
            script.allocate(3 * GIB);
            script.oom(1);
            script.done("exit", 0);
        }
        "oom by sizes" | "oom in any case" => {
            script.allocate(3 * GIB);
            script.tally(TallyKind::ValuePolicy, Assumption::Nonzero.id());
            if part == "oom in any case" || script.setup.values == ValuePolicy::UPPER {
                script.oom(1);
                script.uncaught("torch.OutOfMemoryError", true);
                std::process::exit(1);
            }
            script.steps(1..=3);
            script.done("steps", 3);
            wait();
        }
        "exception" => {
            script.uncaught("ValueError", false);
            eprintln!("ValueError: it failed");
            std::process::exit(1);
        }
        "fails, and does not end" => {
            script.allocate(3 * GIB);
            script.uncaught("ValueError", false);
            wait();
        }
        "fails, and crashes at its end" => {
            script.uncaught("ValueError", false);
            std::process::abort();
        }
        "garbles" => {
            script.garble();
            play_with_torch("trains", script);
        }
        "nearly full, with a refused call" => {
            let capacity = script.setup.cards[0].capacity();
            script.tally(TallyKind::Unmodelled, "cudaGraphicsMapResources");
            script.allocate(capacity - 2 * GIB);
            script.steps(1..=3);
            script.done("steps", 3);
            wait();
        }
        "does not end" => {
            script.allocate(3 * GIB);
            script.steps(1..=1);
            wait();
        }
        other => panic!("no part is called {other:?}"),
    }
}

fn start_ranks(world: u32, parts: &[&str]) {
    note_pid();
    let mut children: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(rank, part)| {
            again(part).env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string()).spawn().unwrap()
        })
        .collect();
    // Like a launcher: when one process fails, it exits and orphans the others.
    while !children.iter_mut().any(|child| child.try_wait().unwrap().is_some_and(|status| !status.success()))
    {
        std::thread::yield_now();
    }
    std::process::exit(1);
}

/// Runs this program again with another part to play.
fn again(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1)).env(PART, part);
    command
}

/// A grandchild in its own session, with an environment that has nothing of the run, whose parent has exited.
fn hide_child() {
    let pids = std::env::var_os(support::PIDS).unwrap();
    let mut middle = Command::new("setsid");
    middle.arg(std::env::current_exe().unwrap()).args(std::env::args_os().skip(1)).stdin(Stdio::null());
    middle.env_clear().env(PART, "deaf").env(support::PIDS, pids);
    #[expect(clippy::zombie_processes, reason = "the process is orphaned on purpose")]
    let child = middle.spawn().unwrap();
    // Wait until it has started; otherwise there would be nothing to hide.
    let mark =
        std::path::PathBuf::from(std::env::var_os(support::PIDS).unwrap()).join(child.id().to_string());
    while !mark.exists() {
        std::thread::yield_now();
    }
}

/// Runs the stand-in with a part to play; checks the exit status, the verdict and the kind of problem, and
/// that nothing of the run is left.
fn check(part: &str, options: &[&str], status: i32, verdict: &str, problem: Option<&str>) -> (String, Value) {
    let place = Place::new();
    let (output, report) = place.report(part, options);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{part}: {report:#}\n{stderr}");
    assert_eq!(report["verdict"], verdict, "{part}: {report:#}");
    assert_eq!(report["problem"]["kind"].as_str(), problem, "{part}: {report:#}");
    for pid in place.started() {
        assert!(!is_alive(pid), "{part}: process {pid} is left");
    }
    assert!(place.is_clean(), "{part}: files are left");
    (stderr, report)
}

#[test]
fn a_run_that_completes_its_steps_fits() {
    let (_, report) = check("trains", &[], 0, "fits", None);
    let peak = &report["peak"];
    assert_eq!(peak["allocated"], 2 * GIB);
    assert_eq!(peak["reserved"], 3 * GIB);
    let outside =
        report["outside"]["context"].as_u64().unwrap() + report["outside"]["libraries"].as_u64().unwrap();
    assert_eq!(peak["device"], 3 * GIB + outside);
    assert!(peak["device_upper"].as_u64() > peak["device"].as_u64());
    let capacity = report["device"]["capacity"].as_u64().unwrap();
    assert_eq!(report["headroom"].as_u64().unwrap(), capacity - peak["device_upper"].as_u64().unwrap());
    assert_eq!(report["steps"], 3);
    assert_eq!(report["coverage"]["epoch_end"], true);
    assert_eq!(report["oom"], Value::Null);
    assert_eq!(report["torch"], "2.15.0");
    assert_eq!(report["script"]["exit_status"], Value::Null);
}

#[test]
fn a_script_shorter_than_was_asked_fits_for_what_ran() {
    let (_, report) = check("ends early", &[], 0, "fits", None);
    assert_eq!(report["steps"], 2);
    assert_eq!(report["script"]["exit_status"], 0);
}

#[test]
fn out_of_memory_is_bad_news() {
    let (_, report) = check("oom", &[], 1, "oom", None);
    let oom = &report["oom"];
    assert_eq!(oom["caught"], false);
    assert_eq!(oom["requested"], 392 * MIB);
    assert_eq!((oom["step"].as_u64(), oom["phase"].as_str()), (Some(2), Some("forward")));
    assert_eq!(oom["module"], "layer3.5.conv2");
    assert_eq!(oom["message"], "CUDA out of memory. Tried to allocate 392.00 MiB.");
    assert_eq!(report["script"]["exit_status"], 1);
}

#[test]
fn out_of_memory_that_the_script_survives_is_told_and_fits() {
    let (_, report) = check("oom, then smaller", &[], 0, "fits", None);
    assert_eq!(report["oom"]["caught"], true);
    let (_, report) = check("oom, then gives up", &[], 1, "oom", None);
    assert_eq!(report["oom"]["caught"], true);
}

#[test]
fn sizes_that_are_read_back_are_tried_as_zero_before_they_are_blamed() {
    check("oom by sizes", &[], 2, "unknown", Some("size-read-back"));
    check("oom in any case", &[], 1, "oom", None);
}

#[test]
fn a_refused_call_matters_where_little_is_left() {
    let (_, report) = check("nearly full, with a refused call", &[], 2, "unknown", Some("unmodelled-call"));
    assert_eq!(report["fidelity"]["unmodelled"][0]["call"], "cudaGraphicsMapResources");
}

#[test]
fn a_scripts_own_failure_is_its_own() {
    let (stderr, report) = check("fails before torch", &[], 2, "error", Some("exit"));
    assert_eq!(report["script"]["exit_status"], 3);
    assert!(stderr.contains("no data set here"), "{stderr}");
    let (stderr, report) = check("exception", &[], 2, "error", Some("exception"));
    assert_eq!(report["script"]["exception"]["type"], "ValueError");
    assert!(stderr.contains("ValueError: it failed"), "{stderr}");
    check("fails, and crashes at its end", &[], 2, "error", Some("exception"));
    check("fails, and does not end", &["--timeout", "10m"], 2, "error", Some("exception"));
    let (_, report) = check("crashes", &[], 2, "error", Some("signal"));
    assert_eq!(report["script"]["signal"], "SIGABRT");
    check("never uses the gpu", &[], 2, "error", Some("no-gpu-use"));
}

#[test]
fn a_script_that_does_not_come_to_a_step_is_given_up() {
    check("deaf", &["--timeout", "0.5s"], 2, "error", Some("timeout"));
    let (_, report) = check("does not end", &["--timeout", "0.5s"], 2, "error", Some("timeout"));
    assert!(report["peak"]["device"].as_u64().unwrap() > 3 * GIB, "what was seen is told");
}

#[test]
fn every_rank_is_waited_for() {
    let (_, report) = check("starts two ranks", &["--gpu", "rtx-4090:2"], 0, "fits", None);
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.iter().map(|rank| rank["rank"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    check("starts a rank that fails", &[], 2, "error", Some("exception"));
    // Nor does the run wait for a process that ended by itself.
    let (_, report) = check("starts a rank that ends early", &["--gpu", "rtx-4090:2"], 0, "fits", None);
    assert_eq!(report["steps"], 2);
    let notes = report["fidelity"]["notes"].to_string();
    assert!(!notes.contains("no progress"), "{notes}");
}

#[test]
fn processes_that_hide_are_ended_as_well() {
    check("hides a child", &[], 0, "fits", None);
}

#[test]
fn garbled_messages_are_passed_over_and_told() {
    let (_, report) = check("garbles", &[], 0, "fits", None);
    let notes = report["fidelity"]["notes"].as_array().unwrap();
    assert!(
        notes.iter().any(|note| note
            .as_str()
            .unwrap()
            .contains("2 messages from the script's processes could not be read")),
        "{notes:?}"
    );
}

#[test]
fn standard_input_goes_to_the_script() {
    let place = Place::new();
    let input = place.folder.path().join("input");
    std::fs::write(&input, "a word\n").unwrap();
    let status =
        place.run("reads its input", &[]).stdin(std::fs::File::open(input).unwrap()).output().unwrap().status;
    assert_eq!(status.code(), Some(0));
}

#[test]
fn output_of_the_script_is_shown_beside_the_answer() {
    let place = Place::new();
    let (output, report) = place.report("fails before torch", &["--show-output"]);
    let stderr = text(&output.stderr);
    assert_eq!(stderr.matches("no data set here").count(), 1, "{stderr}");
    assert_eq!(report["verdict"], "error");
}

#[test]
fn cover_that_was_asked_for_and_not_had_is_told() {
    let (_, report) = check("trains", &["--cover", "full"], 0, "fits", None);
    let notes = report["fidelity"]["notes"].to_string();
    assert!(
        notes.contains("found no evaluation") && notes.contains("found no batch of the largest items"),
        "{notes}"
    );
}

#[test]
fn the_recording_is_saved_where_it_was_asked_for() {
    let place = Place::new();
    let (_, report) = place.report("trains", &["-o", "run.memfit"]);
    assert_eq!(report["recording"], "run.memfit");
    let file = std::fs::read(place.folder.path().join("run.memfit")).unwrap();
    assert!(file.starts_with(b"MEMFIT"));
}

#[test]
fn the_json_file_equals_json_on_standard_output() {
    let place = Place::new();
    let (_, report) = place.report("trains", &["--json", "report.json"]);
    let file = std::fs::read(place.folder.path().join("report.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&file).unwrap(), report);
}

#[test]
fn the_runs_files_stay_where_they_are_wanted() {
    let place = Place::new();
    let (output, _) = place.report("trains", &["--keep"]);
    assert!(!place.is_clean());
    assert!(text(&output.stderr).contains("the run's files are in"), "{}", text(&output.stderr));
}

/// Waits until `condition` holds.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[test]
fn an_interrupted_run_says_so_and_leaves_nothing() {
    for signal in ["INT", "TERM", "HUP"] {
        let place = Place::new();
        let child =
            place.run("does not end", &[]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        until(|| !place.started().is_empty());
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["problem"]["kind"], "interrupted");
        assert!(place.started().into_iter().all(|pid| !is_alive(pid)));
        assert!(place.is_clean());
    }
}

#[test]
fn a_killed_memfit_takes_its_run_with_it() {
    let place = Place::new();
    let mut child = place
        .run("starts two ranks", &["--steps", "9"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(|| place.started().len() == 3);
    child.kill().unwrap();
    child.wait().unwrap();
    until(|| place.started().into_iter().all(|pid| !is_alive(pid)));
    until(|| place.is_clean());
}

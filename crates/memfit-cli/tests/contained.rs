//! Verbs in a container, with engines that write down how they were called.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A project, and a folder of engines on the search path.
struct Place(TempDir);

impl Place {
    fn new(engines: &[&str]) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.folder("bin")).unwrap();
        fs::create_dir(place.folder("project")).unwrap();
        for engine in engines {
            let calls = place.folder("calls");
            // `images` answers with `IMAGES`, `run` with the status `STATUS`. `WITHOUT_SERVICE` names an
            // engine that is installed and does not run.
            let text = format!(
                "#!/bin/sh\nprintf '%s\\n' \"${{0##*/}}\" \"$@\" ===== >> {}\n\
                 if [ \"${{0##*/}}\" = \"$WITHOUT_SERVICE\" ]; then exit 1; fi\n\
                 if [ \"$1\" = images ]; then echo \"$SAID\" >&2; echo \"$IMAGES\"; exit ${{IMAGES_STATUS:-0}}; fi\n\
                 exit ${{STATUS:-0}}\n",
                calls.display()
            );
            let file = place.folder("bin").join(engine);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        place
    }

    fn folder(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn memfit(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_memfit"))
            .args(arguments)
            .current_dir(self.folder("project"))
            .env_clear()
            .env("PATH", self.folder("bin"))
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    }

    /// The last call of an engine, a word on each line.
    fn last_call(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder("calls")).unwrap();
        let call = calls.trim_end().trim_end_matches("=====").trim_end();
        call.rsplit("\n=====\n").next().unwrap().lines().map(str::to_owned).collect()
    }
}

const BUILT: (&str, &str) = ("IMAGES", "0123456789ab");

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn after<'call>(call: &'call [String], word: &str) -> &'call [String] {
    let place = call.iter().position(|each| each == word);
    &call[place.unwrap_or_else(|| panic!("no {word}: {call:?}")) + 1..]
}

#[test]
fn the_verb_and_the_command_are_handed_on_without_the_option() {
    let place = Place::new(&["docker"]);
    for (arguments, image, expected) in [
        (
            &["run", "--container", "--gpu", "t4", "--", "python", "train.py", "--lr", "1e-3"][..],
            concat!("memfit:", env!("CARGO_PKG_VERSION")),
            &["memfit", "run", "--gpu", "t4", "--", "python", "train.py", "--lr", "1e-3"][..],
        ),
        (
            &["plan", "--gpu", "t4", "--container=mine:2", "train.py"],
            "mine:2",
            &["memfit", "plan", "--gpu", "t4", "--", "train.py"],
        ),
        (&["ci", "--container=mine"], "mine", &["memfit", "ci"]),
    ] {
        let output = place.memfit(arguments, &[BUILT]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let call = place.last_call();
        assert_eq!(after(&call, image), expected);
        let project = place.folder("project").canonicalize().unwrap();
        assert!(call.contains(&format!("--workdir={}", project.display())), "{call:?}");
    }
}

#[test]
fn the_exit_status_is_that_of_the_command_in_the_container() {
    let place = Place::new(&["docker"]);
    for status in [0, 1, 2] {
        let output = place.memfit(
            &["run", "--container", "--gpu", "t4", "--", "python", "train.py"],
            &[BUILT, ("STATUS", &status.to_string())],
        );
        assert_eq!(output.status.code(), Some(status));
    }
}

#[test]
fn an_engine_that_cannot_start_the_container_gives_no_answer() {
    let place = Place::new(&["podman"]);
    let output = place.memfit(
        &["run", "--container", "--gpu", "t4", "--", "python", "train.py"],
        &[BUILT, ("STATUS", "125")],
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("`podman` could not start the container"), "{}", text(&output));
}

#[test]
fn missing_parts_are_reported_with_the_command_that_mends_them() {
    let run = ["run", "--container", "--gpu", "t4", "--", "python", "train.py"];
    let mine = ["run", "--container=mine", "--gpu", "t4", "--", "python", "train.py"];
    let mut told = Vec::new();
    for (title, engines, arguments, variables) in [
        ("no engine", &[][..], run, &[][..]),
        ("no image", &["docker"], run, &[]),
        ("no image of the user's", &["nerdctl"], mine, &[]),
        (
            "no service",
            &["docker"],
            run,
            &[("IMAGES_STATUS", "1"), ("SAID", "Cannot connect to the Docker daemon. Is it running?")],
        ),
    ] {
        let output = Place::new(engines).memfit(&arguments, variables);
        assert_eq!(output.status.code(), Some(2), "{title}");
        told.push(format!("--- {title}\n{}", text(&output)));
    }
    insta::assert_snapshot!(told.concat());
}

#[test]
fn a_project_can_always_use_its_own_image() {
    let place = Place::new(&["finch", "podman"]);
    let settings = "[tool.memfit]\ncontainer = \"team/training\"\n";
    fs::write(place.folder("project/pyproject.toml"), settings).unwrap();
    let output = place.memfit(&["run", "--gpu", "t4", "--", "python", "train.py"], &[BUILT]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let call = place.last_call();
    assert_eq!((call[0].as_str(), after(&call, "team/training")[0].as_str()), ("podman", "memfit"));
    // In the container, memfit reads the same settings.
    fs::remove_file(place.folder("calls")).unwrap();
    let run = ["run", "--gpu", "t4", "--", "python", "train.py"];
    let _here = place.memfit(&run, &[BUILT, ("MEMFIT_IN_CONTAINER", "1")]);
    assert!(!place.folder("calls").exists());
}

#[test]
fn the_command_of_a_measured_loader_is_handed_on_as_it_was_typed() {
    let place = Place::new(&["docker"]);
    let settings = "[tool.memfit]\ncontainer = \"team/training\"\n";
    fs::write(place.folder("project/pyproject.toml"), settings).unwrap();
    for arguments in [
        &["data", "--gpu", "t4", "--loader", "python", "train.py", "--lr", "1"][..],
        &["data", "--loader=train.py"],
    ] {
        let output = place.memfit(arguments, &[BUILT]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let call = place.last_call();
        assert_eq!(after(&call, "memfit"), arguments);
    }
}

#[test]
fn an_engine_that_does_not_run_gives_way_to_the_next() {
    let place = Place::new(&["docker", "podman"]);
    let run = ["run", "--container", "--gpu", "t4", "--", "python", "train.py"];
    let output = place.memfit(&run, &[BUILT, ("WITHOUT_SERVICE", "docker")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(place.last_call()[0], "podman");
    // An engine that runs says more about what is missing than one that does not.
    let output = place.memfit(&run, &[("WITHOUT_SERVICE", "docker")]);
    assert!(text(&output).contains("there is no image"), "{}", text(&output));
    assert!(text(&output).contains("podman build"), "{}", text(&output));
}

#[test]
fn an_interpreter_of_this_machine_is_said_to_be_replaced() {
    let place = Place::new(&["docker"]);
    let output =
        place.memfit(&["run", "--container", "--gpu", "t4", "--", ".venv/bin/python", "train.py"], &[BUILT]);
    assert!(text(&output).contains("`.venv/bin/python`"), "{}", text(&output));
    let call = place.last_call();
    assert_eq!(after(&call, "--")[0], "python");
}

#[test]
fn verbs_that_run_no_script_stay_here() {
    let place = Place::new(&["docker"]);
    let settings = "[tool.memfit]\ncontainer = \"team/training\"\n";
    fs::write(place.folder("project/pyproject.toml"), settings).unwrap();
    let output = place.memfit(&["gpus", "t4"], &[BUILT]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(!Path::new(&place.folder("calls")).exists());
}

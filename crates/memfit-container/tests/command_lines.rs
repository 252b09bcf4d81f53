//! The command line of each engine, and what the container sees.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use memfit_container::{Call, ContainerError, Engine, Host};

/// A user's folder with a repository in it, and another folder beside it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for folder in ["home/project/.git", "home/project/src", "data/images", "home/.cache/huggingface"] {
            fs::create_dir_all(place.path(folder)).unwrap();
        }
        fs::write(place.path("data/labels.csv"), "").unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A Mac; on Linux, files have an owner.
    fn host(&self) -> Host {
        Host {
            user: None,
            folder: self.path("home/project/src"),
            home: Some(self.path("home")),
            variables: Vec::new(),
            caches: vec![
                ("HF_HOME", self.path("home/.cache/huggingface")),
                ("TORCH_HOME", self.path("missing")),
            ],
            terminal: false,
        }
    }

    /// A command line as text, with `~` for the place.
    fn text(&self, call: &Call<'_>) -> String {
        let line = call.command_line();
        let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
        words.join("\n").replace(&self.0.path().display().to_string(), "~")
    }
}

fn words(text: &[&str]) -> Vec<OsString> {
    text.iter().map(Into::into).collect()
}

#[test]
fn each_engine_on_each_system_has_this_command_line() {
    let place = Place::new();
    let mut text = Vec::new();
    for engine in Engine::ALL {
        for (system, user) in [("Linux", Some((1000, 1000))), ("macOS", None)] {
            let host = Host { user, terminal: user.is_none(), ..place.host() };
            let own = words(&["run", "--gpu", "rtx-4090"]);
            let call =
                Call::new(engine, "memfit:0.1.0", &host, &own, &words(&["python", "train.py"])).unwrap();
            text.push(format!("--- {engine} on {system}\n{}", place.text(&call)));
        }
    }
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn the_whole_repository_is_mounted_under_its_own_path() {
    let place = Place::new();
    let host = place.host();
    let call = Call::new(Engine::Docker, "i", &host, &words(&["run"]), &words(&["python", "a.py"])).unwrap();
    let [mount] = call.mounts() else { panic!("{:?}", call.mounts()) };
    assert_eq!(*mount, place.path("home/project"));
}

#[test]
fn a_home_under_version_control_is_not_mounted_whole() {
    let place = Place::new();
    fs::create_dir(place.path("home/.git")).unwrap();
    fs::remove_dir(place.path("home/project/.git")).unwrap();
    assert_eq!(place.host().project(), place.path("home/project/src"));
}

#[test]
fn files_outside_of_the_project_are_mounted_once_each() {
    let place = Place::new();
    let host = place.host();
    let data = place.path("data/images");
    let data = data.to_str().unwrap();
    let own = words(&["run", "--json", "../../report.json", "--plan", "../plan.toml"]);
    let labels = format!("--labels={}", place.path("data/labels.csv").display());
    // As in Hydra.
    fs::create_dir(place.path("masks")).unwrap();
    let masks = format!("data.masks={}", place.path("masks").display());
    let command = words(&[
        "python",
        "train.py",
        data,
        &labels,
        &masks,
        "--again",
        data,
        "--lr=1e-3",
        "/nowhere/at/all",
    ]);
    let call = Call::new(Engine::Docker, "i", &host, &own, &command).unwrap();
    // The report is written to the folder above the project, which has to be seen whole.
    let expected =
        ["home/project", "home", "data/images", "data/labels.csv", "masks"].map(|name| place.path(name));
    assert_eq!(call.mounts(), expected);
}

#[test]
fn the_folder_of_downloaded_models_is_seen_unless_it_is_already() {
    let place = Place::new();
    let host = place.host();
    let lines = |own: &[&str]| {
        let own = words(own);
        let call = Call::new(Engine::Podman, "i", &host, &own, &words(&["python", "a.py"])).unwrap();
        place.text(&call)
    };
    assert!(lines(&["run"]).contains("--env=HF_HOME=~/home/.cache/huggingface\n"));
    assert!(!lines(&["run", "--json", "../../report.json"]).contains("HF_HOME"));
}

#[test]
fn an_interpreter_of_this_machine_is_replaced_and_a_script_is_not() {
    let place = Place::new();
    let host = place.host();
    for (first, expected, replaced) in [
        (".venv/bin/python", "python", true),
        ("/opt/homebrew/bin/torchrun", "torchrun", true),
        ("python3", "python3", false),
        ("./train.py", "./train.py", false),
        ("scripts/train.sh", "scripts/train.sh", false),
    ] {
        let command = words(&[first, "x"]);
        let call = Call::new(Engine::Docker, "i", &host, &words(&["run"]), &command).unwrap();
        let line = call.command_line();
        assert_eq!(line[line.len() - 2], expected, "{first}");
        assert_eq!(call.replaced.is_some(), replaced, "{first}");
    }
}

#[test]
fn variables_by_which_training_is_configured_are_passed_without_their_values() {
    let place = Place::new();
    let names = [
        "PYTORCH_ALLOC_CONF",
        "HF_TOKEN",
        "WANDB_MODE",
        "PATH",
        "HOME",
        "AWS_SECRET",
        "CUDA_HOME",
        "HF_HOME",
    ];
    let host = Host { variables: names.map(str::to_owned).to_vec(), caches: Vec::new(), ..place.host() };
    let call = Call::new(Engine::Docker, "i", &host, &words(&["run"]), &words(&["python", "a.py"])).unwrap();
    let text = place.text(&call);
    let passed: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("--env=")).collect();
    assert_eq!(passed, ["MEMFIT_IN_CONTAINER=1", "PYTORCH_ALLOC_CONF", "HF_TOKEN", "WANDB_MODE"]);
}

#[test]
fn a_comma_in_a_path_does_not_end_the_field() {
    let place = Place::new();
    let folder = place.path("a, b \"c\"");
    fs::create_dir(&folder).unwrap();
    let host = Host { folder, ..place.host() };
    let call = Call::new(Engine::Docker, "i", &host, &words(&["run"]), &words(&["python", "a.py"])).unwrap();
    let text = place.text(&call);
    assert!(text.contains(r#"--mount=type=bind,"source=~/a, b ""c""","target=~/a, b ""c""""#), "{text}");
}

#[test]
fn a_folder_of_the_image_itself_is_refused() {
    for folder in ["/", "/usr", "/etc"] {
        let host = Host {
            user: None,
            folder: folder.into(),
            home: None,
            variables: Vec::new(),
            caches: Vec::new(),
            terminal: false,
        };
        let refused = Call::new(Engine::Docker, "i", &host, &[], &[]);
        assert!(matches!(refused, Err(ContainerError::SystemFolder { .. })), "{folder}");
    }
}

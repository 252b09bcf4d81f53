//! Snapshots of the command's surface: help, lists, errors with hints, exit statuses.

#![allow(clippy::unwrap_used, clippy::exit, reason = "a panic fails the test")]

mod support;

use std::process::{Command, Stdio};

use support::{Place, text};

/// Output of a command line, as one text.
fn shown(place: &Place, arguments: &[&str]) -> String {
    let output = place.memfit(arguments).output().unwrap();
    let folder = place.folder.path().to_str().unwrap();
    let clean = |bytes: &[u8]| {
        let text = text(bytes).replace(folder, "[FOLDER]").replace(env!("CARGO_PKG_VERSION"), "[VERSION]");
        text.replace(env!("CARGO_BIN_EXE_memfit").trim_end_matches("/memfit"), "[BESIDE]")
    };
    format!(
        "status: {}\n---- stdout\n{}---- stderr\n{}",
        output.status.code().unwrap(),
        clean(&output.stdout),
        clean(&output.stderr)
    )
}

#[test]
fn help() {
    let place = Place::new();
    insta::assert_snapshot!("help", shown(&place, &["--help"]));
    insta::assert_snapshot!("help_run", shown(&place, &["run", "-h"]));
    insta::assert_snapshot!("help_cards", shown(&place, &["cards", "-h"]));
    insta::assert_snapshot!("help_shrink", shown(&place, &["shrink", "-h"]));
    insta::assert_snapshot!("help_ci", shown(&place, &["ci", "-h"]));
    insta::assert_snapshot!("no_arguments", shown(&place, &[]));
    insta::assert_snapshot!("version", shown(&place, &["--version"]));
}

#[test]
fn mistakes() {
    let place = Place::new();
    for file in ["a_script.py", "a_notebook.ipynb", "a.log"] {
        std::fs::write(place.folder.path().join(file), "epoch = 1\nloss = 2.3\n").unwrap();
    }
    for (name, arguments) in [
        ("unknown_verb", &["fly"][..]),
        ("unknown_option", &["gpus", "--colour"]),
        ("no_gpu", &["run", "--", "true"]),
        ("unknown_gpu", &["run", "--gpu", "rtx-4091", "--", "true"]),
        ("unknown_gpu_like_none", &["gpus", "voodoo-3dfx"]),
        ("too_many_gpus", &["run", "--gpu", "t4:99", "--", "true"]),
        ("size_without_unit", &["run", "--gpu", "t4", "--memory", "12", "--", "true"]),
        ("no_command", &["run", "--gpu", "t4"]),
        ("unknown_command", &["run", "--gpu", "t4", "--", "no-such-program"]),
        ("missing_path", &["run", "--gpu", "t4", "--", "./train"]),
        ("memory_of_local", &["run", "--gpu", "local", "--memory", "12GiB", "--", "true"]),
        ("cards_unknown_gpu", &["cards", "--gpu", "rtx-4091", "--", "true"]),
        ("cards_none_left", &["cards", "--min-memory", "9TiB", "--", "true"]),
        ("cards_missing_prices", &["cards", "--prices", "prices.toml", "--", "true"]),
        ("cards_samples_and_epochs", &["cards", "--samples", "1", "--epochs", "1", "--", "true"]),
        ("shrink_unknown_technique", &["shrink", "--gpu", "t4", "--only", "magic", "--", "true"]),
        ("shrink_on_local", &["shrink", "--gpu", "local", "--", "true"]),
        ("ci_without_settings", &["ci"]),
        ("explain_missing_file", &["explain", "nothing.memfit"]),
        ("explain_a_script", &["explain", "a_script.py"]),
        ("explain_a_notebook", &["view", "a_notebook.ipynb", "-o", "page.html"]),
        ("explain_a_log_without_an_error", &["explain", "a.log"]),
        ("ci_accepts_no_base", &["ci", "--accept", "--base", "main"]),
        ("missing_catalogue", &["gpus", "--catalogue", "cards.toml"]),
    ] {
        insta::assert_snapshot!(name, shown(&place, arguments));
    }
}

#[test]
fn settings_of_ci_that_name_nothing_to_run() {
    for (name, settings) in [
        ("ci_no_scripts", "gpus = ['t4']"),
        ("ci_no_gpu", "scripts = ['python train.py']"),
        ("ci_local", "gpus = ['local']\nscripts = ['python train.py']"),
        ("ci_wrong_setting", "gpu = ['t4']"),
    ] {
        let place = Place::new();
        let text = format!("[tool.memfit.ci]\n{settings}\n");
        std::fs::write(place.folder.path().join("pyproject.toml"), text).unwrap();
        insta::assert_snapshot!(name, shown(&place, &["ci"]));
    }
}

/// A folder with an interpreter that prints a given answer.
fn with_interpreter(answer: &str) -> Place {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let python = place.folder.path().join("python3");
    std::fs::write(&python, format!("#!/bin/sh\n{answer}\n")).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(place.folder.path().join("train.py"), "").unwrap();
    place
}

fn answer(place: &Place, torch: Option<&str>) -> String {
    let folder = place.folder.path();
    let torch = match torch {
        Some(version_py) => {
            let torch = folder.join("torch");
            std::fs::create_dir(&torch).unwrap();
            std::fs::write(torch.join("version.py"), version_py).unwrap();
            format!("\"{}\"", torch.display())
        }
        None => "null".to_owned(),
    };
    format!(
        "echo '{{\"executable\": \"{}/python3\", \"version\": \"3.11.7\", \"torch\": {torch}, \"musl\": false}}'",
        folder.display()
    )
}

#[test]
fn an_interpreter_without_a_torch_that_will_do() {
    for (name, torch) in [
        ("no_torch", None),
        ("cpu_only_torch", Some("__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n")),
    ] {
        let place = with_interpreter("");
        let script = answer(&place, torch);
        std::fs::write(place.folder.path().join("python3"), format!("#!/bin/sh\n{script}\n")).unwrap();
        let run = ["run", "--gpu", "t4", "--", "./python3", "train.py"];
        insta::assert_snapshot!(name, shown(&place, &run));
        let json = ["run", "--gpu", "t4", "--format", "json", "--", "./python3", "train.py"];
        let output = place.memfit(&json).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(report["schema"], "memfit.run/1");
        assert_eq!(report["verdict"], "error");
        assert_eq!(report["problem"]["kind"], name.replace('_', "-"));
    }
}

#[test]
fn an_interpreter_that_is_none() {
    let place = with_interpreter("echo 'cannot start' >&2; exit 1");
    insta::assert_snapshot!(
        "broken_python",
        shown(&place, &["run", "--gpu", "t4", "--", "./python3", "train.py"])
    );
    let missing = shown(&place, &["run", "--gpu", "t4", "--", "./python3", "trian.py"]);
    insta::assert_snapshot!("missing_script", missing);
}

#[test]
fn settings_are_read_and_checked() {
    let place = Place::new();
    let settings = |text: &str| std::fs::write(place.folder.path().join("pyproject.toml"), text).unwrap();
    settings("[tool.memfit]\ngpus = 't4'\n");
    insta::assert_snapshot!("unknown_setting", shown(&place, &["gpus", "t4"]));
    settings("[tool.memfit]\ntimeout = 'soon'\n");
    insta::assert_snapshot!("wrong_setting", shown(&place, &["gpus", "t4"]));
    assert!(place.memfit(&["gpus", "t4", "--isolated"]).output().unwrap().status.success());
    settings("[tool.memfit]\ngpu = 'no-such-card'\n");
    let output = place.memfit(&["run", "--", "true"]).output().unwrap();
    assert!(text(&output.stderr).contains("no-such-card"), "{}", text(&output.stderr));
    settings("[tool.memfit]\nformat = 'json'\n");
    let output = place.memfit(&["gpus", "t4"]).output().unwrap();
    let gpu: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(gpu["schema"], "memfit.gpu/1");
    assert_eq!(gpu["gpu"]["id"], "t4");
}

#[test]
fn the_catalogue_is_listed() {
    let place = Place::new();
    let output = place.memfit(&["gpus", "--format", "json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["schema"], "memfit.gpus/1");
    let ids: Vec<_> =
        list["gpus"].as_array().unwrap().iter().map(|gpu| gpu["id"].as_str().unwrap()).collect();
    assert!(ids.len() >= 35 && ids.contains(&"rtx-4090"), "{ids:?}");
    let table = text(&place.memfit(&["gpus"]).output().unwrap().stdout);
    assert_eq!(table.lines().count(), ids.len() + 1);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

#[test]
fn cards_of_ones_own_are_found() {
    let place = Place::new();
    let cards = place.folder.path().join("cards.toml");
    std::fs::write(&cards, "[[card]]\nid = \"my-card\"\nname = \"My Card\"\nbased_on = \"rtx-4090\"\nmemory = \"40 GiB\"\nbox_memory = \"48 GiB\"\n").unwrap();
    let output =
        place.memfit(&["gpus", "my-card", "--catalogue", "cards.toml", "--format", "json"]).output().unwrap();
    let gpu: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_eq!(gpu["gpu"]["memory"], 40_u64 << 30);
}

#[test]
fn colour_is_for_those_who_can_see_it() {
    let place = Place::new();
    let coloured = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = place.memfit(arguments);
        command.envs(environment.iter().copied());
        command.output().unwrap().stdout.contains(&0x1b)
    };
    assert!(!coloured(&["gpus"], &[]), "a pipe is not a terminal");
    assert!(coloured(&["gpus", "--color", "always"], &[]));
    assert!(coloured(&["gpus"], &[("FORCE_COLOR", "1")]));
    assert!(!coloured(&["gpus"], &[("FORCE_COLOR", "1"), ("NO_COLOR", "1")]));
    assert!(!coloured(&["gpus", "--color", "never"], &[("FORCE_COLOR", "1")]));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    let mut child = place.memfit(&["gpus"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn completions_are_what_shells_understand() {
    let place = Place::new();
    let output = place.memfit(&["completions", "bash"]).output().unwrap();
    let script = place.folder.path().join("completion.bash");
    std::fs::write(&script, &output.stdout).unwrap();
    let status = Command::new("bash").arg("-n").arg(&script).status().unwrap();
    assert!(status.success());
    for shell in ["zsh", "fish", "nushell", "elvish", "powershell"] {
        assert!(place.memfit(&["completions", shell]).output().unwrap().stdout.len() > 500);
    }
}

#[test]
fn the_manual_page_has_every_verb_with_its_options() {
    let place = Place::new();
    let page = text(&place.memfit(&["completions", "man"]).output().unwrap().stdout);
    assert!(page.contains(".TH memfit 1"), "{page}");
    let help = text(&place.memfit(&["--help"]).output().unwrap().stdout);
    let verbs = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: Vec<&str> = verbs
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let title = format!("\n.SH {}\n", name.to_uppercase());
        let section = page.split(&title).nth(1).unwrap_or_default();
        let section = section.split("\n.SH ").next().unwrap();
        assert!(section.contains(".SS SYNOPSIS") && section.contains(".SS OPTIONS"), "{name}: {section}");
    }
}

#[test]
fn the_doctor_sees_what_is_there_and_what_is_not() {
    let place = Place::new();
    let report = |place: &Place, environment: &[(&str, &str)]| -> (i32, serde_json::Value) {
        let mut command = place.memfit(&["doctor", "--format", "json"]);
        let output = command.envs(environment.iter().copied()).output().unwrap();
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
    };
    let health = |report: &serde_json::Value, name: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks
            .iter()
            .find(|check| check["name"] == name)
            .map(|check| check["health"].as_str().unwrap().to_owned())
    };
    let (status, without) =
        report(&place, &[("MEMFIT_LIBRARY_DIR", "/nowhere"), ("VIRTUAL_ENV", "/nowhere")]);
    assert_eq!((status, without["ready"].as_bool()), (2, Some(false)));
    assert_eq!(without["schema"], "memfit.doctor/1");
    assert_eq!(health(&without, "libcuda.so.1").as_deref(), Some("broken"));
    assert_eq!(health(&without, "catalogue").as_deref(), Some("good"));
    let (_, with) = report(&place, &[]);
    assert_eq!(health(&with, "libcuda.so.1").as_deref(), Some("good"));
}

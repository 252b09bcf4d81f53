//! Tests of the files that a process sees, and of those that stay on the user's disk. Each test runs in a
//! separate process that belongs to a run; there, the standard library's calls go through the overlay.

#![allow(clippy::unwrap_used, clippy::exit, reason = "ends a failed test, and a child process that is done")]

use std::{
    env, fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, symlink},
    path::Path,
    process::{self, Command},
};

use memfit_channel::{RunDir, env::RUN_DIR};
use memfit_overlay::{decide::count_writer, layer::Layer};

/// Variable with the folder of the user's files, for the process of a run.
const USER: &str = "MEMFIT_TEST_USER";

/// Runs `script` in a run over the files that `before` makes, then `after` outside of it.
fn run(name: &str, before: fn(&Path), script: fn(&Path), after: fn(&Path)) {
    if let Some(user) = env::var_os(USER) {
        script(Path::new(&user));
        process::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    let (run_dir, user) = (RunDir::new(folder.path().join("run")), folder.path().join("user"));
    fs::create_dir_all(&user).unwrap();
    fs::create_dir_all(run_dir.overlay_tree()).unwrap();
    fs::create_dir_all(run_dir.overlay_made()).unwrap();
    before(&user);
    let done = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(RUN_DIR, run_dir.path())
        .env(USER, &user)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    after(&user);
}

/// Writes a checkpoint as a library with announced writers does.
fn checkpoint(path: impl AsRef<Path>) {
    count_writer(true);
    let written = fs::write(&path, vec![0; 1 << 20]);
    count_writer(false);
    written.unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn nothing(_: &Path) {}

#[test]
fn a_checkpoint_is_seen_and_can_be_renamed_linked_copied_and_removed() {
    run(
        "a_checkpoint_is_seen_and_can_be_renamed_linked_copied_and_removed",
        nothing,
        |user| {
            let path = |name: &str| user.join(name);
            checkpoint(path("a.tmp"));
            assert_eq!(fs::metadata(path("a.tmp")).unwrap().len(), 1 << 20);
            assert!(fs::metadata(path("a.tmp")).unwrap().blocks() < 64, "zeros take no room");
            fs::rename(path("a.tmp"), path("a.pt")).unwrap();
            assert!(!path("a.tmp").exists());
            fs::hard_link(path("a.pt"), path("b.pt")).unwrap();
            symlink("a.pt", path("latest.pt")).unwrap();
            assert_eq!(fs::canonicalize(path("latest.pt")).unwrap(), fs::canonicalize(path("a.pt")).unwrap());
            fs::copy(path("latest.pt"), path("c.pt")).unwrap();
            assert_eq!(fs::read(path("c.pt")).unwrap(), vec![0; 1 << 20]);
            assert!(fs::metadata(path("c.pt")).unwrap().blocks() < 64, "nor in a copy");
            assert_eq!(names(user), ["a.pt", "b.pt", "c.pt", "latest.pt"]);
            fs::remove_file(path("a.pt")).unwrap();
            assert_eq!(names(user), ["b.pt", "c.pt", "latest.pt"]);
            assert!(!path("latest.pt").exists(), "a link to a file that is gone");
        },
        |user| assert_eq!(names(user), [] as [&str; 0]),
    );
}

#[test]
fn a_redirected_file_that_is_read_is_recorded() {
    run(
        "a_redirected_file_that_is_read_is_recorded",
        |user| fs::write(user.join("log"), "the user's").unwrap(),
        |user| {
            let is_recorded = || RunDir::from_env().unwrap().read_back().exists();
            count_writer(true);
            fs::write(user.join("saved"), b"PK\x03\x04 and more").unwrap();
            count_writer(false);
            assert_eq!(fs::read_to_string(user.join("log")).unwrap(), "the user's");
            fs::write(user.join("log"), "the script's").unwrap();
            assert_eq!(fs::read_to_string(user.join("log")).unwrap(), "the script's");
            assert_eq!(names(user), ["log", "saved"]);
            assert!(!is_recorded(), "it was only written");
            fs::read(user.join("saved")).unwrap();
            assert!(is_recorded());
        },
        |_| {},
    );
}

#[test]
fn the_users_files_stay_whatever_the_script_does() {
    run(
        "the_users_files_stay_whatever_the_script_does",
        |user| {
            for name in ["overwritten", "removed", "renamed", "replaced", "shortened", "saved"] {
                fs::write(user.join(name), format!("the user's {name}")).unwrap();
            }
            fs::create_dir(user.join("pruned")).unwrap();
            fs::write(user.join("pruned/weights"), "a week").unwrap();
        },
        |user| {
            let path = |name: &str| user.join(name);
            let read = |name: &str| fs::read_to_string(user.join(name)).unwrap();
            fs::write(path("overwritten"), "new").unwrap();
            assert_eq!(read("overwritten"), "new");
            fs::remove_file(path("removed")).unwrap();
            assert!(fs::metadata(path("removed")).is_err());
            fs::write(path("removed"), "again").unwrap();
            assert_eq!(read("removed"), "again");
            fs::rename(path("renamed"), path("elsewhere")).unwrap();
            assert_eq!(read("elsewhere"), "the user's renamed");
            assert!(!path("renamed").exists());
            fs::write(path("temporary"), "mine").unwrap();
            fs::rename(path("temporary"), path("replaced")).unwrap();
            assert_eq!(read("replaced"), "mine");
            let shortened =
                fs::OpenOptions::new().write(true).truncate(true).open(path("shortened")).unwrap();
            assert_eq!(shortened.metadata().unwrap().len(), 0);
            checkpoint(path("saved"));
            assert_eq!(fs::metadata(path("saved")).unwrap().len(), 1 << 20);
            fs::remove_dir_all(path("pruned")).unwrap();
            assert!(!path("pruned").exists());
            fs::create_dir(path("pruned")).unwrap();
            assert_eq!(names(&path("pruned")), [] as [&str; 0]);
            fs::write(path("pruned/new"), "x").unwrap();
            assert_eq!(names(&path("pruned")), ["new"]);
            assert!(Layer::get().is_some());
        },
        |user| {
            for name in ["overwritten", "removed", "renamed", "replaced", "shortened", "saved"] {
                assert_eq!(fs::read_to_string(user.join(name)).unwrap(), format!("the user's {name}"));
            }
            assert_eq!(fs::read_to_string(user.join("pruned/weights")).unwrap(), "a week");
            assert_eq!(names(&user.join("pruned")), ["weights"]);
            assert!(!user.join("elsewhere").exists() && !user.join("temporary").exists());
        },
    );
}

#[test]
fn other_files_are_written_as_they_would_be() {
    run(
        "other_files_are_written_as_they_would_be",
        |user| fs::write(user.join("log"), "before\n").unwrap(),
        |user| {
            fs::OpenOptions::new()
                .append(true)
                .open(user.join("log"))
                .unwrap()
                .write_all(b"after\n")
                .unwrap();
            fs::create_dir(user.join("out")).unwrap();
            fs::write(user.join("out/a.csv"), "1").unwrap();
            fs::write(user.join("out/a.csv"), "2").unwrap();
            fs::write(user.join("out/b.tmp"), "b").unwrap();
            fs::rename(user.join("out/b.tmp"), user.join("out/b.json")).unwrap();
            fs::write(user.join("out/gone"), "").unwrap();
            fs::remove_file(user.join("out/gone")).unwrap();
        },
        |user| {
            assert_eq!(fs::read_to_string(user.join("log")).unwrap(), "before\nafter\n");
            assert_eq!(fs::read_to_string(user.join("out/a.csv")).unwrap(), "2");
            assert_eq!(names(&user.join("out")), ["a.csv", "b.json"]);
        },
    );
}

#[test]
fn a_folder_with_a_checkpoint_moves_and_goes_as_a_whole() {
    run(
        "a_folder_with_a_checkpoint_moves_and_goes_as_a_whole",
        nothing,
        |user| {
            let path = |name: &str| user.join(name);
            fs::create_dir(path("tmp-5")).unwrap();
            fs::write(path("tmp-5/state.json"), "{}").unwrap();
            checkpoint(path("tmp-5/model.pt"));
            fs::rename(path("tmp-5"), path("checkpoint-5")).unwrap();
            assert_eq!(names(&path("checkpoint-5")), ["model.pt", "state.json"]);
            assert_eq!(names(user), ["checkpoint-5"]);
            assert!(fs::remove_dir(path("checkpoint-5")).is_err(), "it is not empty");
            env::set_current_dir(path("checkpoint-5")).unwrap();
            assert!(Path::new("model.pt").exists() && Path::new("../checkpoint-5/model.pt").exists());
            env::set_current_dir(user).unwrap();
            fs::remove_dir_all(path("checkpoint-5")).unwrap();
            assert_eq!(names(user), [] as [&str; 0]);
        },
        |user| assert_eq!(names(user), [] as [&str; 0]),
    );
}

#[test]
fn an_open_file_is_led_aside_when_a_checkpoint_is_written_to_it() {
    use std::os::fd::AsFd as _;
    run(
        "an_open_file_is_led_aside_when_a_checkpoint_is_written_to_it",
        |user| fs::write(user.join("theirs"), "a week").unwrap(),
        |user| {
            let layer = Layer::get().unwrap();
            let mut file = fs::File::create(user.join("own.pt")).unwrap();
            file.write_all(b"header").unwrap();
            assert!(layer.divert(file.as_fd()));
            file.write_all(&vec![0; 1 << 20]).unwrap();
            assert_eq!(fs::metadata(user.join("own.pt")).unwrap().len(), 6 + (1 << 20));
            let theirs = fs::OpenOptions::new().append(true).open(user.join("theirs")).unwrap();
            assert!(!layer.divert(theirs.as_fd()), "a file of the user's stays where it is");
        },
        |user| assert_eq!(names(user), ["theirs"]),
    );
}

#[test]
fn without_a_run_no_file_is_redirected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    if env::var_os(RUN_DIR).is_none() {
        checkpoint(&path);
        fs::rename(&path, folder.path().join("b.pt")).unwrap();
        assert_eq!(names(folder.path()), ["b.pt"]);
    }
}

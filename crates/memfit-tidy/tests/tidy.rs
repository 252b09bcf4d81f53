//! Rules for every file of the tree.

mod common;

use std::path::Path;

/// Maximum lines of a Rust file; longer files need a reason below.
const MAX_LINES: usize = 600;
const MAX_PYTHON_LINES: usize = 450;

/// Files that may be longer, with the reason.
const LONG_FOR_A_REASON: &[(&str, &str)] = &[
    ("Cargo.lock", "generated"),
    ("crates/memfit-cuda/api", "one line a function of a library: the list is the documentation"),
    ("crates/memfit-cuda-libraries/api", "one line a function of a library: the list is the documentation"),
    ("crates/memfit-nvml/api", "one line a function of a library: the list is the documentation"),
    ("crates/memfit-devices/data", "one table of cards"),
    ("crates/memfit-lint/specs", "one specification for each rule, with all its examples"),
    ("measurements", "results of runs"),
    ("scripts/strangers/scripts.toml", "one table of scripts, with what was read of each"),
    ("scripts/accuracy/cases", "tables of published figures, with what each source states"),
    ("docs/api.md", "generated from the code"),
];

fn is_text_for_people(file: &Path) -> bool {
    file.extension().is_some_and(|extension| {
        ["rs", "py", "pyi", "md", "toml", "sh"].iter().any(|known| extension == *known)
    })
}

#[test]
fn no_file_is_too_long_without_a_reason() {
    let mut long = Vec::new();
    for file in common::files() {
        if !is_text_for_people(&file) || LONG_FOR_A_REASON.iter().any(|(path, _)| file.starts_with(path)) {
            continue;
        }
        let lines = common::text(&file).map_or(0, |text| text.lines().count());
        let python = file.extension().is_some_and(|extension| extension == "py");
        if lines > if python { MAX_PYTHON_LINES } else { MAX_LINES } {
            long.push(format!("{}: {lines} lines", file.display()));
        }
    }
    assert!(
        long.is_empty(),
        "files over {MAX_LINES} lines ({MAX_PYTHON_LINES} of Python):\n{}",
        long.join("\n")
    );
}

/// A module `name` is `name.rs`, its parts are in `name/`, and its unit tests are its module `tests`. Only
/// code shared by a crate's integration tests is in `support/mod.rs`, because Cargo takes every other file
/// there for a test.
#[test]
fn modules_have_one_layout() {
    for (file, text) in common::sources("crates", "rs") {
        let below_src = file.components().any(|part| part.as_os_str() == "src");
        if !below_src {
            continue;
        }
        assert!(!file.ends_with("mod.rs"), "{}: call it by its module's name", file.display());
        assert!(!text.contains("#[path"), "{}: a module is where its name says", file.display());
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        assert!(!stem.ends_with("_tests"), "{}: unit tests are in the module `tests`", file.display());
    }
}

/// The formatter wraps code but not comments. ruff checks the same width in Python's comments (W505).
#[test]
fn comments_are_wrapped_at_the_width_of_the_code() {
    const WIDTH: usize = 110;
    let mut wide = Vec::new();
    for (file, text) in common::sources("crates", "rs").into_iter().chain(common::sources("fuzz", "rs")) {
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start().starts_with("//") && !line.contains("https://");
            if comment && line.chars().count() > WIDTH {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wider than {WIDTH} columns: {wide:#?}");
}

#[test]
fn every_rust_file_says_what_it_owns() {
    for (file, text) in common::sources("crates", "rs") {
        assert!(text.starts_with("//!"), "{} does not begin with what it owns", file.display());
    }
}

#[test]
fn no_line_ends_in_a_space() {
    for file in common::files() {
        if !is_text_for_people(&file) {
            continue;
        }
        for (number, line) in common::text(&file).unwrap_or_default().lines().enumerate() {
            assert_eq!(line.trim_end(), line, "{}:{} ends in a space", file.display(), number + 1);
        }
    }
}

/// Package registries and paths of one machine must not be named.
#[test]
fn nothing_names_a_host_of_packages_or_a_path_of_one_machine() {
    // Split so that this file does not match itself.
    let forbidden: Vec<String> = [
        ("files.python", "hosted.org"),
        ("pypi", ".org/simple"),
        ("static.crates", ".io"),
        ("/opt/", "venvs"),
        ("/work/", "main"),
        ("/work/", "shared"),
    ]
    .iter()
    .map(|(head, tail)| format!("{head}{tail}"))
    .collect();
    for file in common::files() {
        let Some(text) = common::text(&file) else { continue };
        for name in &forbidden {
            assert!(!text.contains(name), "{} names {name}", file.display());
        }
    }
}

/// The Python package is a thin layer: anything that can be decided without calling torch is decided in Rust.
#[test]
fn the_python_package_stays_under_a_quarter_of_the_rust_code() {
    let lines = |sources: Vec<(std::path::PathBuf, String)>| -> usize {
        sources.iter().map(|(_, text)| text.lines().filter(|line| !line.trim().is_empty()).count()).sum()
    };
    let python = lines(common::sources("python", "py"));
    let rust = lines(
        common::sources("crates", "rs")
            .into_iter()
            .filter(|(file, _)| !file.components().any(|part| part.as_os_str() == "tests"))
            .collect(),
    );
    assert!(python > 0 && rust > 0, "found {python} lines of Python and {rust} of Rust");
    assert!(python * 4 < rust, "{python} lines of Python against {rust} of Rust");
}

/// The fuzz targets are a workspace of their own, so no other check notices when their lock file is outdated.
#[test]
fn the_lock_file_of_the_fuzz_targets_knows_what_crates_depend_on() {
    let parsed = |file: &str| -> toml::Table {
        let text = common::text(std::path::Path::new(file)).unwrap_or_else(|| panic!("{file} is missing"));
        text.parse().unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    let lock = parsed("fuzz/Cargo.lock");
    let packages = lock["package"].as_array().expect("a lock file lists packages");
    let mut seen = 0;
    for package in packages {
        let name = package["name"].as_str().expect("a package has a name");
        if !name.starts_with("memfit-") || name == "memfit-fuzz" {
            continue;
        }
        // A name, and its version if there are several.
        let locked: Vec<&str> =
            (package.get("dependencies").and_then(toml::Value::as_array).into_iter().flatten())
                .filter_map(|each| each.as_str()?.split(' ').next())
                .collect();
        let manifest = parsed(&format!("crates/{name}/Cargo.toml"));
        let wanted = manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten();
        let is_optional =
            |how: &toml::Value| how.get("optional").and_then(toml::Value::as_bool) == Some(true);
        for (dependency, _) in wanted.filter(|(_, how)| !is_optional(how)) {
            seen += 1;
            assert!(
                locked.contains(&dependency.as_str()),
                "fuzz/Cargo.lock lacks {dependency} of {name}: run cargo in fuzz/"
            );
        }
    }
    assert!(seen > 20, "only {seen} dependencies found: this test looks in the wrong place");
}

/// Paths in the architecture and in the guide for contributors exist.
#[test]
fn documents_name_paths_that_exist() {
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = common::text(Path::new(document)).unwrap_or_default();
        let mut paths = 0;
        for quoted in text.split('`').skip(1).step_by(2) {
            let tops = ["crates/", "python/", "scripts/", "tests/python", "docs/", "benches/"];
            if tops.iter().any(|top| quoted.starts_with(top)) {
                // `NAME` stands for a file to be added.
                let path = quoted.split([' ', '*']).next().unwrap_or_default();
                let path = path.split("NAME").next().unwrap_or_default();
                assert!(
                    common::root().join(path).exists(),
                    "{document} names `{path}`, which does not exist"
                );
                paths += 1;
            }
        }
        assert!(paths > 5, "{document} names only {paths} paths");
    }
}

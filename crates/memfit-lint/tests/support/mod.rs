//! Projects of several files for tests of the linter.

use std::path::Path;

use memfit_lint::{Config, check_paths};

/// Returns the files in which a rule finds something.
pub(crate) fn files_with_finding(rule: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let config = Config { select: vec![rule.to_owned()], ..Config::default() };
    let report = check_paths(&[folder.path().to_owned()], &config).unwrap();
    let name = |path: &Path| path.strip_prefix(folder.path()).unwrap().display().to_string();
    report.files.iter().map(|source| name(&source.path)).collect()
}

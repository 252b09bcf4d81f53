//! Looks for a missing module in the script's own project: in a folder that is not on the path, or in a git
//! submodule that was not fetched.

use std::path::{Path, PathBuf};
use std::{env, fs};

use memfit_vocabulary::shell_word;

use crate::traceback;

/// Maximum folders above the file that imports the module which can belong to its project.
const MAX_LEVELS: usize = 5;
/// Maximum folders directly below the project's own that are looked into.
const MAX_FOLDERS: usize = 200;
/// Files and folders of which one is in a project's uppermost folder.
const MARKERS: &[&str] =
    &[".git", ".gitmodules", "pyproject.toml", "setup.py", "README.md", "requirements.txt"];

/// Remedy for a missing module that the project of the file that imports it has, or would have with its
/// submodules.
pub(crate) fn remedy(module: &str, traceback: &str) -> Option<String> {
    let file = traceback::user_file(traceback).map(Path::new).filter(|file| file.is_absolute())?;
    let folders = project(file);
    let root = module.split('.').next().unwrap_or(module);
    let whole = module == root;
    if let Some((folder, path)) = folders.iter().find_map(|folder| empty_submodule(folder, module)) {
        return Some(format!(
            "the folder `{path}` is a git submodule of the script's project, and empty: `git -C {} submodule update --init --recursive` fills it; the project's README says whether it is then to be installed (`pip install {path}`)",
            folder.display()
        ));
    }
    if let Some(package) = folders.iter().find_map(|folder| hidden(folder, module)) {
        if let Some(said) = same_name_elsewhere(&folders, &package) {
            return Some(said);
        }
        return Some(format!(
            "the script's own folder `{0}` has no `__init__.py`, so Python imports the installed package `{root}` instead: add the file (`touch {1}`), or use an environment without that package",
            package.display(),
            shell_word(&package.join("__init__.py").to_string_lossy()),
        ));
    }
    if !whole && let Some(said) = shadowed(module, None, traceback) {
        return Some(said);
    }
    if let Some(part) = folders.iter().find_map(|folder| lacks_part(folder, module)) {
        if part.join("setup.py").is_file() {
            return Some(format!(
                "`{0}` belongs to the script's project, and this part of it is compiled by the `setup.py` there: `cd {1} && python setup.py build_ext --inplace`, or as the project's README says",
                part.display(),
                shell_word(&part.to_string_lossy()),
            ));
        }
        return Some(format!(
            "`{}` belongs to the script's project, and lacks this part. The project's README may say where to get it, for example from another repository",
            part.display()
        ));
    }
    let below = folders.last().map(|top| folders_in(top)).unwrap_or_default();
    let found = folders.iter().chain(&below).filter(|_| whole).find(|folder| holds(folder, root))?;
    Some(format!(
        "the script's own project has a `{root}` in `{}`, which is not on the path: `{}` in front of the command puts it there, or its README says how to install it",
        found.display(),
        before_others(found),
    ))
}

/// Remedy for a module of the script's own project in whose place Python took an installed one, which lacks a
/// part or a name that the project's has.
pub(crate) fn shadowed(module: &str, name: Option<&str>, traceback: &str) -> Option<String> {
    let file = traceback::user_file(traceback).map(Path::new).filter(|file| file.is_absolute())?;
    let folders = project(file);
    let below = folders.last().map(|top| folders_in(top)).unwrap_or_default();
    let root = module.split('.').next().unwrap_or(module);
    // The folder of the script comes before installed packages.
    let script = traceback::user_folders(traceback).next();
    let found =
        folders.iter().chain(&below).filter(|folder| Some(folder.as_path()) != script).find(|folder| {
            // A folder without this file never comes before an installed package.
            let is_package = module == root || folder.join(root).join("__init__.py").is_file();
            let path = folder.join(module.replace('.', "/"));
            let sources = [path.with_extension("py"), path.join("__init__.py")];
            is_package
                && sources.iter().any(|file| {
                    fs::read_to_string(file)
                        .is_ok_and(|source| name.is_none_or(|name| defines(&source, name)))
                })
        })?;
    Some(format!(
        "the script's own project has a `{root}` in `{}`, and Python takes the installed package of that name in its place: `{}` in front of the command puts the script's own first",
        found.display(),
        before_others(found),
    ))
}

/// Setting that puts a folder on Python's path, before installed packages.
fn before_others(folder: &Path) -> String {
    let is_set = env::var_os("PYTHONPATH").is_some_and(|value| !value.is_empty());
    let rest = if is_set { ":$PYTHONPATH" } else { "" };
    format!("PYTHONPATH={}{rest}", shell_word(&folder.to_string_lossy()))
}

/// Returns `true` if a module's source defines a name.
fn defines(source: &str, name: &str) -> bool {
    source.lines().any(|line| {
        let rest = ["def ", "class ", ""].iter().find_map(|word| line.strip_prefix(word)?.strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start().starts_with(['(', ':', '=']))
    })
}

/// Maximum entries of a project that are looked at for a file.
const MAX_ENTRIES: usize = 20_000;

/// File of the project of a script's file that has the name of another path.
pub(crate) fn file_named_as(path: &str, traceback: &str) -> Option<PathBuf> {
    let file = traceback::user_file(traceback).map(Path::new).filter(|file| file.is_absolute())?;
    let name = Path::new(path).file_name()?;
    let mut folders = vec![project(file).pop()?];
    let mut left = MAX_ENTRIES;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_hidden => folders.push(entry.path()),
                Ok(kind) if kind.is_file() && entry.file_name() == name => return Some(entry.path()),
                _ => {}
            }
        }
    }
    None
}

/// Folders of a file's project, from the file's own to the uppermost.
fn project(file: &Path) -> Vec<PathBuf> {
    let mut above: Vec<PathBuf> = Vec::new();
    for folder in file.ancestors().skip(1).take(MAX_LEVELS).filter(|folder| folder.parent().is_some()) {
        above.push(folder.to_owned());
        if folder.join(".git").exists() {
            break;
        }
    }
    let is_marked = |folder: &PathBuf| MARKERS.iter().any(|marker| folder.join(marker).exists());
    let top = above.iter().rposition(is_marked).unwrap_or(0);
    above.truncate(top + 1);
    above
}

/// The folder and the path in it of an empty submodule with the name of a module or of a package above it.
fn empty_submodule(folder: &Path, module: &str) -> Option<(PathBuf, String)> {
    let listed = fs::read_to_string(folder.join(".gitmodules")).ok()?;
    let mut paths = listed
        .lines()
        .filter_map(|line| Some(line.trim().strip_prefix("path")?.trim().strip_prefix('=')?.trim()));
    let path = paths.find(|path| {
        // The folder of the package `simple_knn` is `simple-knn`.
        let name = path.rsplit('/').next().unwrap_or_default().replace('-', "_");
        module.split('.').any(|part| part == name)
    })?;
    let is_empty = fs::read_dir(folder.join(path)).map_or(true, |mut entries| entries.next().is_none());
    is_empty.then(|| (folder.to_owned(), path.to_owned()))
}

/// The package of a module in a folder that lacks an `__init__.py`, as any installed package of its name
/// comes before it.
fn hidden(folder: &Path, module: &str) -> Option<PathBuf> {
    let (root, inner) = module.split_once('.')?;
    let package = folder.join(root);
    let path = package.join(inner.replace('.', "/"));
    let is_there = path.is_dir() || path.with_extension("py").is_file();
    (is_there && !package.join("__init__.py").exists()).then_some(package)
}

/// Remedy for a folder of modules whose name another folder of the project has as well. Without an
/// `__init__.py` in either, Python joins both once both are on its path.
fn same_name_elsewhere(folders: &[PathBuf], package: &Path) -> Option<String> {
    let (parent, name) = (package.parent()?, package.file_name()?);
    let other = folders.iter().filter(|folder| folder.as_path() != parent).map(|folder| folder.join(name));
    let other = other.into_iter().find(|other| other.is_dir() && !other.join("__init__.py").exists())?;
    Some(format!(
        "the script's own project has a `{}` in `{}`, which is not on the path, and Python takes `{}` in its place: `{}` in front of the command adds it, or run the script in that folder",
        name.to_string_lossy(),
        parent.display(),
        other.display(),
        before_others(parent),
    ))
}

/// The project's own package in a folder that a module is to be in, and is not. An installed package comes
/// before a folder without an `__init__.py`.
fn lacks_part(folder: &Path, module: &str) -> Option<PathBuf> {
    let (package, part) = module.rsplit_once('.')?;
    let root = folder.join(package.split('.').next().unwrap_or(package));
    let package = folder.join(package.replace('.', "/"));
    (root.join("__init__.py").is_file() && package.is_dir() && !holds(&package, part)).then_some(package)
}

/// Returns `true` if a folder holds a module, or a package with source code.
fn holds(folder: &Path, module: &str) -> bool {
    let is_source = |entry: fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "py");
    folder.join(format!("{module}.py")).is_file()
        || fs::read_dir(folder.join(module))
            .is_ok_and(|mut found| found.any(|entry| entry.is_ok_and(is_source)))
}

/// Folders directly in a folder, by name.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_shown = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    let mut found: Vec<PathBuf> = entries
        .filter(is_shown)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .take(MAX_FOLDERS)
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traceback(file: &Path) -> String {
        format!("  File \"{}\", line 3, in <module>\n    import util\nModuleNotFoundError: x", file.display())
    }

    #[test]
    fn a_module_in_whose_place_an_installed_one_is_taken_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path().join("gpt");
        for folder in [".git", "src/utils", "tests"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        fs::write(
            top.join("src/datasets.py"),
            "import torch\nclass Sonnets(torch.utils.data.Dataset):\n  x = 1\n",
        )
        .unwrap();
        fs::write(top.join("src/utils/__init__.py"), "").unwrap();
        fs::write(top.join("src/utils/steps.py"), "").unwrap();
        let from = |module: &str, name| shadowed(module, name, &traceback(&top.join("tests/main.py")));
        let said = from("datasets", Some("Sonnets")).unwrap();
        assert!(said.contains(&format!("`PYTHONPATH={}`", top.join("src").display())), "{said}");
        assert!(from("utils.steps", None).is_some());
        for (module, name) in [("datasets", Some("Sonnet")), ("datasets", Some("x")), ("utils.gone", None)] {
            assert_eq!(from(module, name), None, "{module} {name:?}");
        }
        let said = remedy("utils.steps", &traceback(&top.join("tests/main.py"))).unwrap();
        assert!(said.contains("in its place"), "{said}");
    }

    #[test]
    fn a_module_of_the_project_is_found_where_it_is_not_on_the_path() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path().join("act");
        for folder in [".git", "detr/util", "detr/models", "train", "wandb"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        fs::write(top.join("detr/util/misc.py"), "").unwrap();
        fs::write(scratch.path().join("outside.py"), "").unwrap();
        let from = |file: &str, module: &str| remedy(module, &traceback(&top.join(file)));
        for file in ["detr/models/backbone.py", "train/main.py"] {
            let said = from(file, "util").unwrap();
            assert!(said.contains(&format!("`PYTHONPATH={}", top.join("detr").display())), "{said}");
        }
        for module in ["wandb", "outside", "einops", "util.misc"] {
            assert_eq!(from("train/main.py", module), None);
        }
        assert_eq!(remedy("util", "ModuleNotFoundError: x"), None);
    }

    #[test]
    fn a_part_that_the_scripts_own_package_lacks_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        fs::create_dir_all(top.join("models/networks")).unwrap();
        for file in
            ["README.md", "models/__init__.py", "models/networks/__init__.py", "models/networks/loss.py"]
        {
            fs::write(top.join(file), "").unwrap();
        }
        let said = |module: &str| remedy(module, &traceback(&top.join("models/networks/loss.py")));
        let own = said("models.networks.sync_batchnorm").unwrap();
        assert!(
            own.contains("models/networks` belongs to the script's project, and lacks this part"),
            "{own}"
        );
        fs::write(top.join("models/networks/setup.py"), "").unwrap();
        let built = said("models.networks.core").unwrap();
        assert!(built.contains("models/networks && python setup.py build_ext --inplace`"), "{built}");
        assert!(said("models.networks.loss").unwrap().contains("in its place"));
        assert_eq!(said("timm.models.layers.helpers"), None);
    }

    #[test]
    fn a_folder_that_an_installed_package_hides_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("datasets")).unwrap();
        fs::write(scratch.path().join("datasets/series.py"), "").unwrap();
        let said = |module: &str| remedy(module, &traceback(&scratch.path().join("train.py")));
        let hint = said("datasets.series").unwrap();
        assert!(hint.contains("`touch ") && hint.contains("datasets/__init__.py"), "{hint}");
        assert_eq!(said("datasets.other"), None);
        fs::write(scratch.path().join("datasets/__init__.py"), "").unwrap();
        assert_eq!(said("datasets.series"), None);
    }

    #[test]
    fn a_folder_whose_name_another_folder_of_the_project_has_is_put_on_the_path() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        for folder in [".git", "models", "src/models"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        fs::write(top.join("src/models/unet.py"), "").unwrap();
        let said = || remedy("models.unet", &traceback(&top.join("src/train.py"))).unwrap();
        let hint = said();
        assert!(hint.contains(&format!("`PYTHONPATH={}`", top.join("src").display())), "{hint}");
        assert!(!hint.contains("touch") && !hint.contains("installed"), "{hint}");
        fs::remove_dir(top.join("models")).unwrap();
        assert!(said().contains("touch"));
    }

    #[test]
    fn an_empty_submodule_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let top = scratch.path();
        fs::create_dir_all(top.join("third/tacotron2")).unwrap();
        let listed = "[submodule \"tacotron2\"]\n\tpath = third/tacotron2\n\turl = https://example.org/t\n";
        fs::write(top.join(".gitmodules"), listed).unwrap();
        let said = |module: &str| remedy(module, &traceback(&top.join("train.py")));
        for module in ["tacotron2", "tacotron2.layers"] {
            let said = said(module).unwrap();
            assert!(
                said.contains("`third/tacotron2` is a git submodule") && said.contains("--init"),
                "{said}"
            );
        }
        assert!(
            said("third.tacotron2.layers").unwrap().contains("`third/tacotron2`"),
            "below another package"
        );
        assert_eq!(said("einops"), None);
        let listed = format!("{listed}[submodule \"knn\"]\n\tpath = third/simple-knn\n");
        fs::write(top.join(".gitmodules"), listed).unwrap();
        assert!(said("simple_knn._C").unwrap().contains("`third/simple-knn` is a git submodule"));
        fs::write(top.join("third/tacotron2/layers.py"), "").unwrap();
        assert_eq!(said("tacotron2.text"), None);
    }
}

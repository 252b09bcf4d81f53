//! Failures that come from how a script was started: a file of a package that was run by its path, an
//! environment variable that was not set.

use std::path::Path;

use memfit_report::wire::Exception;
use memfit_vocabulary::{is_user_file, shell_word};

use crate::traceback;

/// Python's messages about a relative import of a file that was not started as part of a package, or not of
/// one that reaches as far up.
const RELATIVE: &[&str] = &[
    "attempted relative import with no known parent package",
    "attempted relative import beyond top-level package",
];
/// Names under which tracebacks have the module `os`.
const OS_FILES: &[&str] = &["<frozen os>", "/os.py"];
/// Calls that return `None` for a variable that is not set.
const ASKS_FOR_VARIABLE: &[&str] = &["getenv(", "environ.get("];

/// Remedy for such a failure. No value that memfit assumed or made up can be its cause.
pub(crate) fn hint(exception: &Exception) -> Option<String> {
    as_module(exception).or_else(|| unset_variable(exception))
}

/// The command that starts a file as a module of its package.
fn as_module(exception: &Exception) -> Option<String> {
    if !RELATIVE.iter().any(|text| exception.message.contains(text)) {
        return None;
    }
    let file = Path::new(traceback::user_file(&exception.traceback)?);
    let (_, imports) = traceback::user_source(&exception.traceback)?.split_once("from ")?;
    let dots = imports.trim_start().chars().take_while(|each| *each == '.').count();
    let mut folders = file.ancestors().skip(1).filter(|folder| folder.file_name().is_some());
    // One folder up for each dot, and on while the folder is a package.
    let package = folders.nth(dots.checked_sub(1)?)?;
    let is_package = |folder: &&Path| folder.join("__init__.py").is_file();
    let top = package.ancestors().skip(1).take_while(is_package).last().unwrap_or(package);
    let folder = top.parent()?;
    // The command's script may be another file, which imports this one.
    let mut files = traceback::calls(&exception.traceback).map(|(file, _)| file);
    let script = files.find(|file| is_user_file(file))?;
    let inside = Path::new(script).with_extension("");
    let parts: Vec<_> = inside.strip_prefix(folder).ok()?.iter().map(|part| part.to_string_lossy()).collect();
    let is_name = |part: &str| {
        part.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && part.chars().all(|each| each.is_alphanumeric() || each == '_')
    };
    if !parts.iter().all(|part| is_name(part)) {
        return None;
    }
    Some(format!(
        "the script imports from a package that Python does not know if the script is run by its path: `cd {}`, and `python -m {}` in place of the path in the command",
        shell_word(&folder.to_string_lossy()),
        parts.join(".")
    ))
}

/// The setting that a script lacks.
fn unset_variable(exception: &Exception) -> Option<String> {
    let source = traceback::user_source(&exception.traceback)?;
    let name = if exception.r#type == "KeyError" {
        let raised_in = traceback::raising_file(&exception.traceback)?;
        let by_os = OS_FILES.iter().any(|name| raised_in.ends_with(name)) && source.contains("environ");
        by_os.then_some(exception.message.trim_matches(['\'', '"']))?
    } else if exception.r#type == "TypeError" && exception.message.contains("NoneType") {
        let file = traceback::user_file(&exception.traceback)?;
        let name = name_asked_for(source).map(str::to_owned).or_else(|| assigned_from(file, source));
        return name.as_deref().map(set_it);
    } else {
        return None;
    };
    (!name.is_empty()).then(|| set_it(name))
}

fn set_it(name: &str) -> String {
    format!(
        "the script reads the environment variable `{name}`, which is not set: put `{name}=…` with the value that its README names in front of `memfit`, for data a folder with a few samples"
    )
}

/// Name of the variable that a line of source asks for and that may be unset.
fn name_asked_for(source: &str) -> Option<&str> {
    let asked = ASKS_FOR_VARIABLE.iter().find_map(|call| Some(source.split_once(call)?.1))?;
    let (name, rest) = asked.trim_start().strip_prefix(['\'', '"'])?.split_once(['\'', '"'])?;
    // A second argument is the value if it is not set.
    (!name.is_empty() && rest.trim_start().starts_with(')')).then_some(name)
}

/// Name of the variable of the environment that a name in a line of source was assigned from.
fn assigned_from(file: &str, source: &str) -> Option<String> {
    let text = crate::read_source(file)?;
    let words: Vec<&str> = source.split(|each: char| !each.is_alphanumeric() && each != '_').collect();
    text.lines().find_map(|line| {
        let (target, value) = line.split_once('=')?;
        words.contains(&target.trim()).then(|| name_asked_for(value).map(str::to_owned)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint_of(kind: &str, message: &str, frames: &[(&str, &str)]) -> Option<String> {
        let frames = frames.iter().map(|(file, source)| ((*file).into(), "load", *source));
        hint(&traceback::raised(kind, message, frames))
    }

    #[test]
    fn a_file_of_a_package_is_started_as_a_module() {
        let scratch = tempfile::tempdir().unwrap();
        let package = scratch.path().join("gan/train");
        std::fs::create_dir_all(&package).unwrap();
        std::fs::write(scratch.path().join("gan/__init__.py"), "").unwrap();
        let file = package.join("main.py").to_string_lossy().into_owned();
        let plain = scratch.path().join("tools/run.py").to_string_lossy().into_owned();
        for (file, source, module) in [
            // `gan` has an `__init__.py`, so its folder is not the place to start from.
            (&file, "from .model import Net", "gan.train.main"),
            (&file, "from ..data import load", "gan.train.main"),
            (&plain, "from . import model", "tools.run"),
        ] {
            let hint = hint_of("ImportError", RELATIVE[0], &[(file, source)]).unwrap();
            let folder = scratch.path().display();
            assert!(hint.contains(&format!("`cd {folder}`, and `python -m {module}`")), "{hint}");
        }
        // Another file of the script's reaches above what it was imported as a part of.
        let script = scratch.path().join("tools/run.py").to_string_lossy().into_owned();
        let model = scratch.path().join("tools/models/net.py").to_string_lossy().into_owned();
        let frames = [(script.as_str(), "from models import net"), (&model, "from ..util import load")];
        let hint = hint_of("ImportError", RELATIVE[1], &frames).unwrap();
        assert!(hint.contains("`python -m tools.run`"), "{hint}");
        let script = scratch.path().join("voc-fcn/run.py").to_string_lossy().into_owned();
        assert_eq!(hint_of("ImportError", RELATIVE[0], &[(&script, "from .model import Net")]), None);
        assert_eq!(
            hint_of("ImportError", "cannot import name 'a' from 'b'", &[(&file, "from b import a")]),
            None
        );
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let os = ("<frozen os>", "raise KeyError(key) from None");
        let (line, other) = ("ROOT = os.environ['DATA_DIR']", "ROOT = settings['DATA_DIR']");
        let joined = "path = os.path.join(os.getenv(\"DATA_DIR\"), 'a')";
        let scratch = tempfile::tempdir().unwrap();
        let settings = scratch.path().join("settings.py").to_string_lossy().into_owned();
        std::fs::write(&settings, "OTHER = None\nROOT=os.getenv('DATA_DIR')\n").unwrap();
        let none = "expected str, bytes or os.PathLike object, not NoneType";
        for (kind, message, frames, is_named) in [
            ("KeyError", "'DATA_DIR'", vec![("/me/train.py", line), os], true),
            (
                "KeyError",
                "'DATA_DIR'",
                vec![("/me/train.py", line), ("/usr/lib/python3.11/os.py", os.1)],
                true,
            ),
            ("KeyError", "'DATA_DIR'", vec![("/me/train.py", other)], false),
            ("TypeError", none, vec![("/me/train.py", joined)], true),
            ("TypeError", none, vec![("/me/train.py", "os.path.join(args.data, 'a')")], false),
            ("TypeError", none, vec![("/me/train.py", "os.getenv('DATA_DIR', '.') / None")], false),
            ("TypeError", none, vec![(&settings, "DATA = os.path.join(ROOT, 'data')")], true),
            ("TypeError", none, vec![(&settings, "DATA = os.path.join(OTHER, 'data')")], false),
        ] {
            let hint = hint_of(kind, message, &frames);
            assert_eq!(hint.is_some_and(|hint| hint.contains("`DATA_DIR=…`")), is_named, "{frames:?}");
        }
    }
}

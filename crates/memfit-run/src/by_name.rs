//! Calls of a library's function with more arguments in order than its release here takes that way.

use memfit_report::wire::Exception;

use crate::traceback;

/// Parts of Python's message: `mel() takes 0 positional arguments but 5 were given`.
const TAKES: &str = "() takes ";
const IN_ORDER: &str = " positional argument";
const GIVEN: &str = " but ";

/// Remedy for a function that a file of the script imports from a library, and that takes fewer arguments in
/// order than the line gives it.
pub(crate) fn hint(exception: &Exception) -> Option<String> {
    let (name, rest) = exception.message.split_once(TAKES)?;
    let is_of_arguments = rest.contains(IN_ORDER) && rest.contains(GIVEN);
    // A method's name has its class before it.
    let is_function = !name.is_empty() && !name.contains(['.', ' ', '<']);
    let raised_by_script = traceback::is_raised_by_script(&exception.traceback);
    if exception.r#type != "TypeError" || !is_of_arguments || !is_function || !raised_by_script {
        return None;
    }
    let file = traceback::user_file(&exception.traceback)?;
    let text = crate::read_source(file)?;
    let source = traceback::user_source(&exception.traceback)?;
    let package = package_of(name, &text, source)?;
    let folder = std::path::Path::new(file).parent()?;
    let is_own =
        [folder.join(package), folder.join(format!("{package}.py"))].iter().any(|path| path.exists());
    (!is_own).then(|| {
        format!(
            "the release of `{package}` here takes arguments of `{name}` by their names: write `name=value` on that line, or install the release of `{package}` that the script's requirements name"
        )
    })
}

/// Root of the package from which a file imports a function, or from whose module a line calls it.
fn package_of<'text>(name: &str, text: &'text str, source: &str) -> Option<&'text str> {
    let is_word = |words: &str, word: &str| {
        words.split(|each: char| !each.is_alphanumeric() && each != '_').any(|each| each == word)
    };
    text.lines().map(str::trim).find_map(|line| {
        if let Some((module, names)) = line.strip_prefix("from ").and_then(|rest| rest.split_once(" import "))
        {
            let module = module.trim();
            // `from librosa.filters import mel as mel_filter`, `from librosa import util` with `util.mel(…)`.
            let imports = is_word(names, name)
                || (source.contains(&format!(".{name}("))
                    && names.split(',').any(|each| is_called(each, name, source)));
            return (imports && !module.starts_with('.')).then(|| root(module));
        }
        let modules = line.strip_prefix("import ")?;
        modules.split(',').find(|each| is_called(each, name, source)).map(|each| root(each.trim()))
    })
}

/// Returns `true` if a line of source calls a function of an imported module: `librosa.util as librosa_util`.
fn is_called(import: &str, name: &str, source: &str) -> bool {
    let import = import.trim();
    let (module, alias) = import.split_once(" as ").unwrap_or((import, import));
    let alias = if alias == module { root(module) } else { alias.trim() };
    let calls = |(before, _): (usize, &str)| {
        source[..before]
            .rsplit(|each: char| !each.is_alphanumeric() && each != '_' && each != '.')
            .next()
            .is_some_and(|path| root(path) == alias)
    };
    source.match_indices(&format!(".{name}(")).any(calls)
}

fn root(module: &str) -> &str {
    let end = module.find(|each: char| !each.is_alphanumeric() && each != '_').unwrap_or(module.len());
    &module[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_a_librarys_function_takes_by_name_are_told() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("stft.py");
        std::fs::write(scratch.path().join("own.py"), "").unwrap();
        let message = "pad_center() takes 1 positional argument but 2 were given";
        for (imports, source, package) in [
            ("from librosa.util import pad_center, tiny", "w = pad_center(w, n)", Some("librosa")),
            ("import librosa.util as librosa_util", "w = librosa_util.pad_center(w, n)", Some("librosa")),
            ("import numpy as np, librosa", "w = librosa.util.pad_center(w, n)", Some("librosa")),
            ("from librosa import util", "w = util.pad_center(w, n)", Some("librosa")),
            ("from own import pad_center", "w = pad_center(w, n)", None),
            ("from .util import pad_center", "w = pad_center(w, n)", None),
            ("import numpy", "w = pad_center(w, n)", None),
        ] {
            std::fs::write(&file, format!("{imports}\n\n{source}\n")).unwrap();
            let exception = Exception {
                r#type: "TypeError".to_owned(),
                message: message.to_owned(),
                traceback: format!("  File \"{}\", line 3, in main\n    {source}\n", file.display()),
            };
            let named = hint(&exception).map(|hint| hint.contains("the release of `librosa` here"));
            assert_eq!(named, package.map(|_| true), "{imports}");
        }
    }
}

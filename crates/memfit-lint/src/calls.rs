//! Calls of functions, methods and classes that other files define: the loops around them, and the models,
//! loss functions, optimizers and containers that they are given.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use memfit_source::{Criterion, Facts, Flags, GivenValue};

/// Maximum number of arguments and of callers that are kept for a function and a module that imports it.
pub(crate) const MAX_KEPT: usize = 64;

/// Calls by the qualified name of what is called: `train`, `Trainer.step`, `Trainer`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(HashMap<String, Vec<Called>>);

/// Calls of one function by the files of one folder.
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts of the calls")]
#[derive(Clone, Debug)]
pub(crate) struct Called {
    /// Module of the function, as it is imported.
    module: String,
    /// Folder of the files that call it.
    folder: PathBuf,
    /// A loop runs one of the calls.
    pub(crate) looped: bool,
    /// A loop or a function that trains runs one of the calls.
    pub(crate) trained: bool,
    /// Gradients are on in one of the calls.
    pub(crate) recorded: bool,
    /// A backward pass begins at the result of one of the calls, or goes through it.
    pub(crate) differentiated: bool,
    /// Functions with the calls that no loop of their file runs: the file, and the qualified name.
    pub(crate) callers: Vec<(PathBuf, String)>,
    /// Containers that outlive each iteration of a loop with a call.
    pub(crate) kept: Vec<Parameter>,
    /// Models, loss functions and optimizers.
    pub(crate) arguments: Vec<GivenArgument>,
}

/// Parameter to which a call gives an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    /// By its position, without the object of a method.
    At(usize),
    /// By its name.
    Named(String),
}

impl Calls {
    /// Calls of a name that a module defines, by files of a folder.
    pub(crate) fn entry(&mut self, name: String, module: String, folder: &Path) -> &mut Called {
        let known = self.0.entry(name).or_default();
        let at = known.iter().position(|called| called.module == module && called.folder == folder);
        let at = at.unwrap_or_else(|| {
            known.push(Called {
                module,
                folder: folder.to_owned(),
                looped: false,
                trained: false,
                recorded: false,
                differentiated: false,
                callers: Vec::new(),
                kept: Vec::new(),
                arguments: Vec::new(),
            });
            known.len() - 1
        });
        &mut known[at]
    }

    /// Calls of a name that a file defines.
    pub(crate) fn of<'c, 'f>(
        &'c self,
        file: &'f Path,
        name: &str,
    ) -> impl Iterator<Item = &'c Called> + use<'c, 'f> {
        self.0.get(name).into_iter().flatten().filter(move |called| called.may_mean(file))
    }

    /// What all calls of a function of a file give to a parameter, if they agree.
    pub(crate) fn given(
        &self,
        file: &Path,
        name: &str,
        position: usize,
        parameter: &str,
    ) -> Option<&GivenValue> {
        let arguments = self.of(file, name).flat_map(|called| &called.arguments);
        let mut given = arguments
            .filter(|argument| argument.parameter.is(position, parameter))
            .map(|own| own.value.as_ref());
        let first = given.next()??;
        given.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns `true` if calls of a file's functions tell more of their parameters than the names do.
    pub(crate) fn inform(&self, file: &Path, facts: &Facts) -> bool {
        facts.functions.iter().filter(|function| !function.name.is_empty()).any(|function| {
            let name = function.name.strip_suffix(".__init__").unwrap_or(&function.name);
            let skipped = usize::from(function.class.is_some());
            self.0.contains_key(name)
                && function.parameters.iter().skip(skipped).enumerate().any(|(position, parameter)| {
                    let given = self.given(file, name, position, parameter);
                    given.is_some_and(|given| !given.is_told_by(parameter))
                })
        })
    }
}

impl Called {
    /// Returns `true` if a file is the imported module, or a part of the imported package. A module of one
    /// name is in the folder of the caller, or in a folder above or below.
    fn may_mean(&self, file: &Path) -> bool {
        let parts: PathBuf = self.module.split('.').filter(|part| !part.is_empty()).collect();
        let is_named = file.with_extension("").ancestors().any(|path| path.ends_with(&parts));
        let folder = file.parent().unwrap_or(Path::new(""));
        let is_near = folder.starts_with(&self.folder) || self.folder.starts_with(folder);
        is_named && (is_near || parts.components().count() > 1)
    }
}

impl Parameter {
    /// Returns `true` for the parameter at a position with a name.
    pub(crate) fn is(&self, position: usize, name: &str) -> bool {
        match self {
            Self::At(at) => *at == position,
            Self::Named(known) => known == name,
        }
    }
}

/// Argument of a call of a function that another file defines.
#[derive(Clone, Debug)]
pub(crate) struct GivenArgument {
    /// Parameter that gets it.
    pub(crate) parameter: Parameter,
    /// What is known of a model.
    pub(crate) model: Option<GivenModel>,
    /// Last operation on the output of a model.
    pub(crate) last: Flags,
    /// Which loss function it is, if it is one.
    pub(crate) criterion: Option<Criterion>,
    /// What it is, as far as that holds for the called function.
    pub(crate) value: Option<GivenValue>,
    /// Whether the caller, or a function that it calls, clears the gradients of an optimizer.
    pub(crate) clears: Option<bool>,
}

/// Model that a caller gives to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts of a caller")]
pub(crate) struct GivenModel {
    /// No optimizer of the caller's file holds its parameters, and one holds those of another model.
    pub(crate) loose: bool,
    /// The caller's file makes it of a class, or copies another one.
    pub(crate) built: bool,
    /// An optimizer of the caller's file holds its parameters.
    pub(crate) held: bool,
    /// The caller evaluates it, loads its weights, or sets them to require no gradients.
    pub(crate) evaluated: bool,
    /// The caller may set its parameters to require no gradients.
    pub(crate) frozen: bool,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Calls;

    #[test]
    fn a_module_is_a_file_near_its_caller() {
        let table = [
            ("engine", "", "engine.py", true),
            ("engine", "", "other.py", false),
            ("engine", "one", "two/engine.py", false),
            ("engine", "one", "engine.py", true),
            ("engine", "", "src/engine.py", true),
            ("src.engine", "tools", "src/engine.py", true),
            ("src.engine", "tools", "lib/engine.py", false),
            // The package brings the names of its modules along.
            ("engine", "", "engine/steps.py", true),
            (".", "pack", "pack/steps.py", true),
            (".steps", "pack", "pack/steps.py", true),
            (".", "pack", "steps.py", true),
        ];
        for (module, folder, file, is_it) in table {
            let mut calls = Calls::default();
            calls.entry("step".to_owned(), module.to_owned(), Path::new(folder));
            assert_eq!(calls.of(Path::new(file), "step").count() == 1, is_it, "{module} of {folder}: {file}");
        }
    }
}

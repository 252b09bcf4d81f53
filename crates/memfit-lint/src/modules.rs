//! Resolution of imports within a project: from the name in an `import` to the file and its definitions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use memfit_source::{
    Dialect, GivenValue, ImportedClass, ImportedFunction, Index, Modules, NoModules, is_relevant,
};

use crate::calls::Calls;

/// Maximum depth to which imports of imported modules are followed.
const MAX_DEPTH: u8 = 2;

/// Files and folders in the root of a project.
const ROOTS: &[&str] = &[".git", "pyproject.toml", "setup.py", "setup.cfg"];

/// Maximum number of folders between a file and the root of its project.
const MAX_UP: usize = 6;

/// Maximum number of re-exports followed for a name.
const MAX_REEXPORTS: u8 = 4;

/// Maximum length in bytes of an imported module without a word of torch, such as one with a class that
/// averages numbers.
const MAX_HELPER: usize = 64 * 1024;

type Slot<T> = Arc<OnceLock<Option<T>>>;

/// Cache of imported modules.
#[derive(Debug, Default)]
pub(crate) struct Library {
    modules: Mutex<HashMap<PathBuf, Slot<Arc<Module>>>>,
    functions: Mutex<HashMap<(PathBuf, String, u8), Slot<ImportedFunction>>>,
    /// Number of folders between each folder and the root of its project.
    depths: Mutex<HashMap<PathBuf, usize>>,
    /// Resolved file of a module name, for each importing folder.
    found: Mutex<HashMap<(PathBuf, String), Option<PathBuf>>>,
}

/// Imported module.
#[derive(Debug)]
pub(crate) struct Module {
    file: PathBuf,
    source: memfit_source::Module,
    index: Index,
}

impl Module {
    /// Parsed source.
    pub(crate) fn source(&self) -> &memfit_source::Module {
        &self.source
    }
}

/// Import resolver of one file.
#[derive(Debug)]
pub(crate) struct FileImports<'a> {
    library: &'a Library,
    folder: &'a Path,
    level: u8,
    /// The file, and calls of its functions by others.
    called: Option<(&'a Path, &'a Calls)>,
}

impl Library {
    /// Resolver for a file in this folder.
    pub(crate) fn imports_from<'a>(&'a self, folder: &'a Path) -> FileImports<'a> {
        FileImports { library: self, folder, level: MAX_DEPTH, called: None }
    }

    /// Resolver for a file whose functions others call.
    pub(crate) fn imports_of<'a>(&'a self, file: &'a Path, calls: &'a Calls) -> FileImports<'a> {
        let folder = file.parent().unwrap_or(Path::new(""));
        FileImports { called: Some((file, calls)), ..self.imports_from(folder) }
    }

    /// Returns the parsed module if a file with this text was imported already.
    pub(crate) fn parsed(&self, file: &Path, text: &str) -> Option<Arc<Module>> {
        let known = self.modules.lock().ok()?.get(file)?.get()?.clone();
        known.filter(|known| known.source.text() == text)
    }

    fn file(&self, folder: &Path, module: &str) -> Option<PathBuf> {
        let key = (folder.to_owned(), module.to_owned());
        if let Ok(found) = self.found.lock()
            && let Some(file) = found.get(&key)
        {
            return file.clone();
        }
        let file = find(folder, module).or_else(|| self.find_above(folder, module));
        if let Ok(mut found) = self.found.lock() {
            found.insert(key, file.clone());
        }
        file
    }

    /// Finds a module in a folder above: scripts are run from the root of a project, or from a folder of it,
    /// and packages may have no `__init__.py`.
    fn find_above(&self, folder: &Path, module: &str) -> Option<PathBuf> {
        if module.starts_with('.') {
            return None;
        }
        let known = self.depths.lock().ok()?.get(folder).copied();
        let depth = known.unwrap_or_else(|| {
            let is_root = |folder: &Path| ROOTS.iter().any(|sign| folder.join(sign).exists());
            let depth = folder.ancestors().take(MAX_UP).position(is_root).unwrap_or(0);
            if let Ok(mut depths) = self.depths.lock() {
                depths.insert(folder.to_owned(), depth);
            }
            depth
        });
        let relative = module.replace('.', "/");
        folder.ancestors().take(depth + 1).skip(1).find_map(|here| in_folder(here, &relative))
    }

    fn module(&self, file: PathBuf) -> Option<Arc<Module>> {
        let slot = self.modules.lock().ok()?.entry(file.clone()).or_default().clone();
        slot.get_or_init(|| {
            let text = std::fs::read_to_string(&file).ok()?;
            if text.len() > MAX_HELPER && !is_relevant(&text) && !file.ends_with("__init__.py") {
                return None;
            }
            let source = memfit_source::Module::read(text.into(), Dialect::Python).ok()?;
            let index = source.index();
            Some(Arc::new(Module { file, source, index }))
        })
        .clone()
    }

    /// Module that defines a name, and the name there; packages re-export names of their modules.
    fn defining(&self, folder: &Path, module: &str, name: &str) -> Option<(Arc<Module>, String)> {
        let mut found = self.module(self.file(folder, module)?)?;
        let (mut name, rest) = match name.split_once('.') {
            Some((class, rest)) => (class.to_owned(), Some(rest)),
            None => (name.to_owned(), None),
        };
        for _ in 0..MAX_REEXPORTS {
            if let Some((module, there)) = found.index.reexported(&name) {
                let (module, there) = (module.to_owned(), there.to_owned());
                found = self.module(self.file(found.file.parent()?, &module)?)?;
                name = there;
            } else if !found.index.knows(&name) && !found.index.starred().is_empty() {
                let mut starred = found.index.starred().iter().filter_map(|module| {
                    let module = self.module(self.file(found.file.parent()?, module)?)?;
                    let knows = module.index.knows(&name) || !module.index.starred().is_empty();
                    knows.then_some(module)
                });
                let Some(next) = starred.next() else { break };
                drop(starred);
                found = next;
            } else {
                break;
            }
        }
        Some((found, rest.map_or(name.clone(), |rest| format!("{name}.{rest}"))))
    }

    /// Collects the names that a module exports, and those of the modules from which it imports all.
    fn names(&self, folder: &Path, module: &str, level: u8, into: &mut Vec<String>) {
        let found = self.file(folder, module).and_then(|file| self.module(file));
        let Some(found) = found else { return };
        into.extend(found.index.names().map(str::to_owned));
        let Some((level, folder)) = level.checked_sub(1).zip(found.file.parent()) else { return };
        for starred in found.index.starred() {
            self.names(folder, starred, level, into);
        }
    }

    fn function(&self, module: &Module, name: &str, level: u8) -> Option<ImportedFunction> {
        if !module.index.has_function(name) {
            return None;
        }
        let key = (module.file.clone(), name.to_owned(), level);
        let slot = self.functions.lock().ok()?.entry(key).or_default().clone();
        slot.get_or_init(|| {
            let folder = module.file.parent()?;
            match level.checked_sub(1) {
                Some(level) if level > 0 => {
                    module.source.function(name, &FileImports { library: self, folder, level, called: None })
                }
                _ => module.source.function(name, &NoModules),
            }
        })
        .clone()
    }
}

impl Modules for FileImports<'_> {
    fn function(&self, module: &str, name: &str) -> Option<ImportedFunction> {
        let (module, name) = self.library.defining(self.folder, module, name)?;
        self.library.function(&module, &name, self.level)
    }

    fn class(&self, module: &str, name: &str) -> Option<ImportedClass> {
        let (module, name) = self.library.defining(self.folder, module, name)?;
        module.index.class(&name)
    }

    fn names(&self, module: &str) -> Vec<String> {
        let mut names = Vec::new();
        self.library.names(self.folder, module, MAX_REEXPORTS, &mut names);
        names
    }

    fn given(&self, function: &str, position: usize, parameter: &str) -> Option<GivenValue> {
        let (file, calls) = self.called?;
        calls.given(file, function, position, parameter).cloned()
    }
}

/// Finds the file of a module, as imported from a folder of the project.
fn find(folder: &Path, module: &str) -> Option<PathBuf> {
    let dots = module.bytes().take_while(|byte| *byte == b'.').count();
    let relative = module[dots..].replace('.', "/");
    if !relative
        .split('/')
        .all(|part| part.is_empty() || part.chars().all(|c| c.is_alphanumeric() || c == '_'))
    {
        return None;
    }
    if dots > 0 {
        let base = folder.ancestors().nth(dots - 1)?;
        return in_folder(base, &relative);
    }
    // Beside the file, or above the packages that contain it.
    let mut base = Some(folder);
    while let Some(here) = base {
        if let Some(file) = in_folder(here, &relative) {
            return Some(file);
        }
        if !here.join("__init__.py").is_file() {
            break;
        }
        base = here.parent();
    }
    None
}

fn in_folder(base: &Path, relative: &str) -> Option<PathBuf> {
    let package = base.join(relative);
    let module = package.with_extension("py");
    if !relative.is_empty() && module.is_file() {
        return Some(module);
    }
    let init = package.join("__init__.py");
    init.is_file().then_some(init)
}

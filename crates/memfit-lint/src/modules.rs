//! Imports within the project: from the name in an `import` to the file, and to what that offers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use memfit_source::{Alone, Exports, Modules, is_relevant};

/// How far imports of imports are followed.
const DEEPEST: u8 = 2;

type Slot = Arc<OnceLock<Option<Arc<Exports>>>>;

/// Everything that was imported so far.
#[derive(Debug, Default)]
pub(crate) struct Library {
    files: Mutex<HashMap<(PathBuf, u8), Slot>>,
    /// Where a name of a module leads, seen from a folder.
    found: Mutex<HashMap<(PathBuf, String), Option<PathBuf>>>,
}

/// The imports of one file.
#[derive(Debug)]
pub(crate) struct Of<'a> {
    library: &'a Library,
    folder: &'a Path,
    level: u8,
}

impl Library {
    /// The imports of a file in this folder.
    pub(crate) fn of<'a>(&'a self, folder: &'a Path) -> Of<'a> {
        Of { library: self, folder, level: DEEPEST }
    }

    fn file(&self, folder: &Path, module: &str) -> Option<PathBuf> {
        let key = (folder.to_owned(), module.to_owned());
        if let Ok(found) = self.found.lock()
            && let Some(file) = found.get(&key)
        {
            return file.clone();
        }
        let file = find(folder, module);
        if let Ok(mut found) = self.found.lock() {
            found.insert(key, file.clone());
        }
        file
    }

    fn exports(&self, file: &Path, level: u8) -> Option<Arc<Exports>> {
        let slot = self.files.lock().ok()?.entry((file.to_owned(), level)).or_default().clone();
        slot.get_or_init(|| {
            let text: Arc<str> = std::fs::read_to_string(file).ok()?.into();
            if !is_relevant(&text) && !file.ends_with("__init__.py") {
                return None;
            }
            let folder = file.parent()?;
            let exports = match level.checked_sub(1) {
                Some(level) if level > 0 => {
                    memfit_source::exports(&text, &Of { library: self, folder, level })
                }
                _ => memfit_source::exports(&text, &Alone),
            };
            exports.ok().map(Arc::new)
        })
        .clone()
    }
}

impl Modules for Of<'_> {
    fn exports(&self, module: &str) -> Option<Arc<Exports>> {
        let file = self.library.file(self.folder, module)?;
        self.library.exports(&file, self.level)
    }
}

/// The file of a module, seen from a folder of the project.
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
    // Beside the file, or above the packages that it is in.
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

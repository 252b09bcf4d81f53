//! Where memfit's own shared libraries are.

use std::path::{Path, PathBuf};

use memfit_channel::env::LIBRARY_DIR;

use crate::{Home, RunError};

/// One of memfit's shared libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The virtual CUDA device.
    Device,
    /// The virtual device as NVML shows it.
    Nvml,
    /// The watcher.
    Watch,
}

impl Library {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Device, Self::Nvml, Self::Watch];

    /// Its name in a package, where it has the name that the loader looks for.
    pub fn soname(self) -> &'static str {
        match self {
            Self::Device => "libcuda.so.1",
            Self::Nvml => "libnvidia-ml.so.1",
            Self::Watch => "libmemfit_watch.so",
        }
    }

    /// Its name in Cargo's target folder.
    fn built_name(self) -> &'static str {
        match self {
            Self::Device => "libmemfit_vgpu.so",
            Self::Nvml => "libmemfit_nvml.so",
            Self::Watch => "libmemfit_watch.so",
        }
    }

    /// The library's file: where the environment says, in the Python package, or beside the program.
    pub fn find(self, home: &Home) -> Result<PathBuf, RunError> {
        let folders = folders(home);
        folders.iter().flat_map(|folder| self.candidates(folder)).find(|path| path.is_file()).ok_or_else(
            || {
                let looked = folders.iter().map(|folder| folder.path.clone()).collect();
                RunError::LibraryNotFound { name: self.soname(), looked }
            },
        )
    }

    /// A system's own `libcuda.so.1` may stand in a folder like `/usr/lib` beside the program: only a folder
    /// that is known to be memfit's is trusted with that name.
    fn candidates(self, folder: &Folder) -> Vec<PathBuf> {
        let mut names = vec![self.built_name()];
        if folder.packaged {
            names.insert(0, self.soname());
        }
        names.into_iter().map(|name| folder.path.join(name)).collect()
    }
}

struct Folder {
    path: PathBuf,
    /// Whether the folder is memfit's alone.
    packaged: bool,
}

fn folders(home: &Home) -> Vec<Folder> {
    // Whoever names a folder wants that one, and no other that happens to be near.
    if let Some(path) = std::env::var_os(LIBRARY_DIR).filter(|path| !path.is_empty()).map(PathBuf::from) {
        return vec![Folder { path, packaged: true }];
    }
    let program = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let beside = program.as_deref().and_then(Path::parent);
    let mut folders = Vec::new();
    folders.extend(home.libraries.clone().map(|path| Folder { path, packaged: true }));
    if let Some(beside) = beside {
        folders.push(Folder { path: beside.to_owned(), packaged: false });
        folders.push(Folder { path: beside.join("../lib/memfit"), packaged: true });
    }
    folders
}

//! Location of memfit's own shared libraries.

use std::path::{Path, PathBuf};

use memfit_channel::env::LIBRARY_DIR;

use crate::{Home, RunError};

/// One of memfit's shared libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Virtual CUDA device.
    Device,
    /// NVML of the virtual device.
    Nvml,
    /// Watcher library.
    Watch,
}

impl Library {
    /// All libraries.
    pub const ALL: [Self; 3] = [Self::Device, Self::Nvml, Self::Watch];

    /// Name in a package: the name that the loader looks for.
    pub fn soname(self) -> &'static str {
        match self {
            Self::Device => "libcuda.so.1",
            Self::Nvml => "libnvidia-ml.so.1",
            Self::Watch => "libmemfit_watch.so",
        }
    }

    /// Name in Cargo's target folder.
    fn built_name(self) -> &'static str {
        match self {
            Self::Device => "libmemfit_vgpu.so",
            Self::Nvml => "libmemfit_nvml.so",
            Self::Watch => "libmemfit_watch.so",
        }
    }

    /// Finds the library's file: in the folder from the environment, in the Python package, or next to the
    /// program.
    pub fn find(self, home: &Home) -> Result<PathBuf, RunError> {
        let folders = folders(home);
        folders.iter().flat_map(|folder| self.candidates(folder)).find(|path| path.is_file()).ok_or_else(
            || {
                let looked = folders.iter().map(|folder| folder.path.clone()).collect();
                RunError::LibraryNotFound { name: self.soname(), looked }
            },
        )
    }

    /// File names to try in a folder. A folder such as `/usr/lib` may contain the system's own `libcuda.so.1`
    /// next to the program, so that name is accepted only in a folder that belongs to memfit.
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
    /// `true` if the folder belongs to memfit alone.
    packaged: bool,
}

fn folders(home: &Home) -> Vec<Folder> {
    // A folder from the environment is the only one used.
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

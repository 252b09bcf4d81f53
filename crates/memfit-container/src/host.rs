//! The machine on which the engine is called.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

/// Folders of downloaded models: the variable that names each, and where it is by default, below the user's
/// own folder.
const CACHES: [(&str, &str); 2] = [("HF_HOME", ".cache/huggingface"), ("TORCH_HOME", ".cache/torch")];

/// What the command line depends on.
#[derive(Clone, Debug)]
pub struct Host {
    /// User and group that own the user's files; `None` on macOS, where the engine's virtual machine writes
    /// files as the user.
    pub user: Option<(u32, u32)>,
    /// The current folder.
    pub folder: PathBuf,
    /// The user's own folder.
    pub home: Option<PathBuf>,
    /// Names of the environment's variables.
    pub variables: Vec<String>,
    /// Folders of downloaded models, with the variables that name them.
    pub caches: Vec<(&'static str, PathBuf)>,
    /// `true` if input and output are a terminal.
    pub terminal: bool,
}

impl Host {
    /// This machine, seen from a folder.
    pub fn here(folder: PathBuf) -> Self {
        let home = std::env::home_dir();
        let cache = |(variable, default): (&'static str, &str)| {
            let named = std::env::var_os(variable).map(PathBuf::from).filter(|named| named.is_absolute());
            Some((variable, named.or_else(|| Some(home.as_ref()?.join(default)))?))
        };
        Self {
            user: (!cfg!(target_os = "macos"))
                .then(|| (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())),
            caches: CACHES.into_iter().filter_map(cache).collect(),
            folder,
            home,
            variables: std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect(),
            terminal: std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        }
    }

    /// The folder that the container sees: the repository of the current folder, if it is in one below the
    /// user's own folder; otherwise the current folder.
    pub fn project(&self) -> &Path {
        let above_home = |folder: &Path| self.home.as_deref().is_some_and(|home| home.starts_with(folder));
        self.folder
            .ancestors()
            .take_while(|folder| folder.parent().is_some() && !above_home(folder))
            .find(|folder| folder.join(".git").exists())
            .unwrap_or(&self.folder)
    }
}

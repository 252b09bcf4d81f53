//! One command in a container.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use crate::{ContainerError, Engine, Host, INSIDE};

/// Variables of the environment that the container gets: those by which scripts, PyTorch and memfit are
/// configured.
const PASSED: &[&str] = &["CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "NO_COLOR", "PYTHONHASHSEED", "TERM"];
const PASSED_PREFIXES: &[&str] = &[
    "ACCELERATE_",
    "CUBLAS_",
    "CUDA_",
    "HF_",
    "MEMFIT_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "TOKENIZERS_",
    "TORCH",
    "TRANSFORMERS_",
    "TRITON_",
    "WANDB_",
];
/// Variables with paths of this machine's own programs.
const NOT_PASSED: &[&str] =
    &["CUDA_HOME", "CUDA_PATH", "HF_HOME", "MEMFIT_COMMAND", "MEMFIT_LIBRARY_DIR", "TORCH_HOME"];

/// Shared memory, for the workers of data loaders; engines give 64 MB.
const SHARED_MEMORY: &str = "2g";

/// Folders of the image's own system.
const OWN_FOLDERS: &[&str] = &[
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr", "/var",
];

/// A command in a container.
#[derive(Clone, Debug)]
pub struct Call<'call> {
    engine: Engine,
    image: &'call str,
    host: &'call Host,
    arguments: Vec<OsString>,
    /// Folders and files that the container sees under the paths that they have here.
    mounts: Vec<PathBuf>,
    /// The interpreter or program of this machine that was replaced by the container's own.
    pub replaced: Option<String>,
}

impl<'call> Call<'call> {
    /// Prepares `memfit OWN… -- COMMAND…`. `own` are memfit's arguments, `command` is the training command.
    pub fn new(
        engine: Engine,
        image: &'call str,
        host: &'call Host,
        own: &[OsString],
        command: &[OsString],
    ) -> Result<Self, ContainerError> {
        let project = host.project();
        if is_own_folder(project) {
            return Err(ContainerError::SystemFolder { folder: project.to_owned() });
        }
        let mut call = Self {
            engine,
            image,
            host,
            arguments: vec!["memfit".into()],
            mounts: vec![project.to_owned()],
            replaced: None,
        };
        call.add(own);
        if let Some((program, rest)) = command.split_first() {
            call.arguments.push("--".into());
            let program = call.guest_program(program);
            call.arguments.push(program);
            call.add(rest);
        }
        Ok(call)
    }

    /// Adds words, with the files and folders that they name.
    fn add(&mut self, words: &[OsString]) {
        for word in words {
            self.mount_outside(word);
            self.arguments.push(word.clone());
        }
    }

    /// The folders and files that the container sees.
    pub fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    /// The engine's arguments, after its name.
    pub fn command_line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = ["run", "--rm", "--pull=never", "--interactive"].map(Into::into).into();
        let mut option = |name: &str, value: String| line.push(format!("--{name}={value}").into());
        if self.host.terminal {
            option("tty", "true".to_owned());
        }
        option("shm-size", SHARED_MEMORY.to_owned());
        option("env", format!("{INSIDE}=1"));
        if let Some((user, group)) = self.host.user {
            match self.engine {
                // A container without root rights maps the user that it starts as to root.
                Engine::Podman if user != 0 => option("userns", "keep-id".to_owned()),
                _ => option("user", format!("{user}:{group}")),
            }
            // The image knows no such user.
            option("env", "HOME=/tmp".to_owned());
        }
        for mount in &self.mounts {
            option("mount", mount_option(mount));
        }
        for (variable, folder) in self.caches() {
            option("env", format!("{variable}={}", folder.display()));
            option("mount", mount_option(folder));
        }
        let passed = self.host.variables.iter().filter(|name| is_passed(name));
        for name in passed {
            option("env", name.clone());
        }
        option("workdir", self.host.folder.display().to_string());
        line.push(self.image.into());
        line.extend(self.arguments.iter().cloned());
        line
    }

    /// The folders of downloaded models that are not mounted already.
    fn caches(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let there = self.host.caches.iter().map(|(variable, folder)| (*variable, folder.as_path()));
        there.filter(|(_, folder)| folder.is_dir() && !self.is_mounted(folder))
    }

    fn is_mounted(&self, path: &Path) -> bool {
        self.mounts.iter().any(|mount| path.starts_with(mount))
    }

    /// Mounts the file or folder that a word names, if it is outside of the project. Where it is not there
    /// yet, as a file that is to be written, its folder is mounted.
    fn mount_outside(&mut self, word: &OsStr) {
        let Some(path) = named_path(word).map(|path| absolute(&self.host.folder, path)) else { return };
        let Some(there) = path.ancestors().take(2).find(|path| path.exists()) else { return };
        if !self.is_mounted(there) && !is_own_folder(there) {
            self.mounts.push(there.to_owned());
        }
    }

    /// The first word of the training command. A program of this machine is replaced by the container's own
    /// of the same name: `.venv/bin/python` by `python`. A script stays what it is.
    fn guest_program(&mut self, word: &OsStr) -> OsString {
        let path = Path::new(word);
        let is_path = path.components().count() > 1;
        let is_script = path.extension().is_some_and(|extension| extension == "py" || extension == "sh");
        if !is_path || is_script {
            self.mount_outside(word);
            return word.to_owned();
        }
        self.replaced = Some(word.to_string_lossy().into_owned());
        path.file_name().unwrap_or(word).to_owned()
    }
}

/// The value of `--mount`, in the engines' own form of comma-separated fields.
fn mount_option(path: &Path) -> String {
    let field = |name: &str| {
        let field = format!("{name}={}", path.display());
        if field.contains([',', '"']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
    };
    format!("type=bind,{},{}", field("source"), field("target"))
}

/// Returns `true` for folders of the image's own system.
fn is_own_folder(path: &Path) -> bool {
    OWN_FOLDERS.iter().any(|own| path == Path::new(own))
}

fn is_passed(name: &str) -> bool {
    let wanted = PASSED.contains(&name) || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    wanted && !NOT_PASSED.contains(&name)
}

/// The path outside of the current folder that a word may name: an absolute one, or one that goes up.
fn named_path(word: &OsStr) -> Option<&Path> {
    let text = word.to_str()?;
    // `--data=/mnt/x`, and Hydra's `data.root=/mnt/x`.
    let path = Path::new(text.split_once('=').map_or(text, |(_, value)| value));
    let mut depth = 0_i32;
    let goes_up = path.components().any(|part| {
        match part {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            _ => {}
        }
        depth < 0
    });
    (path.is_absolute() || goes_up).then_some(path)
}

/// A path from the current folder, without `..`.
fn absolute(folder: &Path, path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in folder.join(path).components() {
        match part {
            Component::ParentDir => {
                whole.pop();
            }
            Component::CurDir => {}
            part => whole.push(part),
        }
    }
    whole
}

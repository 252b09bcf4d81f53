//! Cheap checks before anything is started: torch is inspected, not imported.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::RunError;
use memfit_vocabulary::release;

use crate::releases::{OLDEST_CUDA, OLDEST_PYTHON};

/// Returns the name of this system, or an error if PyTorch has no CUDA builds for it.
pub fn system() -> Result<String, RunError> {
    let system = format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH);
    if cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
        Ok(system)
    } else {
        Err(RunError::UnsupportedSystem { system })
    }
}

/// Facts about an interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Interpreter {
    /// `sys.executable`.
    pub executable: PathBuf,
    /// Version of Python.
    pub version: String,
    /// `true` if it is linked with musl, for which there are no CUDA builds of PyTorch.
    musl: bool,
    /// Folder of the installed torch.
    torch: Option<PathBuf>,
}

impl Interpreter {
    /// Returns `true` if a package named torch is installed.
    pub fn has_torch(&self) -> bool {
        self.torch.is_some()
    }
}

/// A CUDA build of PyTorch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torch {
    /// `torch.__version__`.
    pub version: String,
    /// `torch.version.cuda`.
    pub cuda: String,
}

impl Torch {
    /// Major version of CUDA.
    pub fn cuda_major(&self) -> Option<u32> {
        self.cuda.split('.').next()?.parse().ok()
    }
}

/// Program that reports an interpreter's version and the folder of its torch, which it finds without
/// importing it. It must also run on versions of Python that memfit does not support.
const INSPECTION_PROGRAM: &str = "\
import json, os, platform, sys
folder = None
if sys.version_info >= (3, 4):
    import importlib.util
    spec = importlib.util.find_spec('torch')
    folder = os.path.dirname(spec.origin) if spec and spec.origin else None
with open(sys.executable, 'rb') as program:
    loader = program.read(4096)
print(json.dumps({'executable': sys.executable, 'version': platform.python_version(), 'torch': folder,
                  'musl': b'/ld-musl-' in loader}))";

/// Asks an interpreter for its version and its torch.
pub fn interpreter(python: &Path) -> Result<Interpreter, RunError> {
    let broken = |said: String| RunError::BrokenPython { python: python.to_owned(), said };
    let output = Command::new(python)
        .args(["-c", INSPECTION_PROGRAM])
        .stdin(Stdio::null())
        .output()
        .map_err(|source| RunError::Start { program: python.to_owned(), source })?;
    let last_line = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes)
            .lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty())
            .map(str::to_owned)
    };
    let answer = last_line(&output.stdout).filter(|_| output.status.success());
    let answer = answer.ok_or_else(|| broken(last_line(&output.stderr).unwrap_or_default()))?;
    serde_json::from_str(&answer).map_err(|_| broken(answer))
}

/// Returns an error for interpreters that the probe does not support.
pub fn supported(interpreter: &Interpreter) -> Result<(), RunError> {
    let (python, version) = (interpreter.executable.clone(), interpreter.version.clone());
    if release(&version).is_some_and(|version| version < OLDEST_PYTHON) {
        return Err(RunError::OldPython { python, version });
    }
    if interpreter.musl {
        return Err(RunError::MuslPython { python });
    }
    Ok(())
}

/// Inspects the interpreter's torch. Returns an error if it is missing, too old, or built without CUDA.
pub fn torch(interpreter: &Interpreter) -> Result<Torch, RunError> {
    supported(interpreter)?;
    let python = &interpreter.executable;
    let Some(folder) = &interpreter.torch else { return Err(RunError::NoTorch { python: python.clone() }) };
    let file = folder.join("version.py");
    // Any folder named `torch` counts as a package for Python.
    let Ok(text) = std::fs::read_to_string(&file) else {
        return Err(RunError::NoTorch { python: python.clone() });
    };
    let version = assigned(&text, "__version__").unwrap_or_else(|| "of an unknown version".to_owned());
    match assigned(&text, "cuda") {
        Some(cuda) => {
            let torch = Torch { version, cuda };
            if torch.cuda_major().is_some_and(|major| major < OLDEST_CUDA) {
                return Err(RunError::OldTorch {
                    python: python.clone(),
                    version: torch.version,
                    cuda: torch.cuda,
                });
            }
            Ok(torch)
        }
        None => Err(RunError::CpuOnlyTorch { python: python.clone(), version }),
    }
}

/// Returns the text that a line such as `cuda: Optional[str] = '13.2'` assigns to `name`; `None` if the value
/// is `None`.
fn assigned(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (annotation, value) = rest.split_once('=')?;
        let annotated = annotation.trim().is_empty() || annotation.trim_start().starts_with(':');
        let value = value.trim();
        let quote = value.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        annotated.then(|| value.trim_matches(quote).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torch_with(version_py: Option<&str>) -> Result<Torch, RunError> {
        let folder = tempfile::tempdir().unwrap();
        if let Some(text) = version_py {
            std::fs::write(folder.path().join("version.py"), text).unwrap();
        }
        torch(&Interpreter {
            executable: "/venv/bin/python".into(),
            version: "3.11.7".into(),
            musl: false,
            torch: Some(folder.path().to_owned()),
        })
    }

    #[test]
    fn a_cuda_build_is_read_from_its_version_file() {
        let text = "from typing import Optional\n__all__ = ['__version__', 'cuda']\n__version__ = '2.15.0+cu132'\ndebug = False\ncuda: Optional[str] = '13.2'\ngit_version = 'abc'\nhip: Optional[str] = None\n";
        let torch = torch_with(Some(text)).unwrap();
        assert_eq!(torch, Torch { version: "2.15.0+cu132".into(), cuda: "13.2".into() });
        assert_eq!(torch.cuda_major(), Some(13));
    }

    #[test]
    fn a_cpu_build_is_refused_with_its_version() {
        let error = torch_with(Some("__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n")).unwrap_err();
        assert!(
            matches!(&error, RunError::CpuOnlyTorch { version, .. } if version == "2.15.0+cpu"),
            "{error:?}"
        );
    }

    #[test]
    fn a_folder_named_torch_without_a_version_file_is_not_pytorch() {
        assert!(matches!(torch_with(None), Err(RunError::NoTorch { .. })));
    }

    #[test]
    fn unsupported_interpreters_are_refused_before_torch_is_searched() {
        let interpreter = |version: &str, musl| Interpreter {
            executable: "/p".into(),
            version: version.into(),
            musl,
            torch: None,
        };
        assert!(matches!(torch(&interpreter("3.9.18", false)), Err(RunError::OldPython { .. })));
        assert!(matches!(torch(&interpreter("2.7.18", true)), Err(RunError::OldPython { .. })));
        assert!(matches!(torch(&interpreter("3.12.1", true)), Err(RunError::MuslPython { .. })));
        assert!(matches!(torch(&interpreter("3.10.0", false)), Err(RunError::NoTorch { .. })));
    }

    #[test]
    fn a_torch_for_an_old_cuda_is_refused() {
        let error = torch_with(Some("__version__ = '1.13.1+cu117'\ncuda = '11.7'\n")).unwrap_err();
        assert!(matches!(error, RunError::OldTorch { .. }), "{error:?}");
        assert!(torch_with(Some("__version__ = '2.6.0+cu124'\ncuda = '12.4'\n")).is_ok());
    }

    #[test]
    fn an_assignment_is_read_only_for_the_exact_name() {
        assert_eq!(assigned("cuda_home = 'x'\ncuda = '12.8'", "cuda").as_deref(), Some("12.8"));
        assert_eq!(assigned("cuda = None", "cuda"), None);
        assert_eq!(assigned("", "cuda"), None);
    }
}

//! Programs of the virtual machine that shadow the real ones: `nvidia-smi`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use memfit_channel::RunDir;
use memfit_channel::env::RUN_DIR;
use memfit_vocabulary::shell_word;

use crate::libraries::Library;
use crate::{Home, RunError};

/// Writes the programs into the run directory. `nvidia-smi` calls the NVML library from any Python; without
/// that library it is not written.
pub(crate) fn write(run_dir: &RunDir, home: &Home) -> Result<(), RunError> {
    let folder = run_dir.programs();
    std::fs::create_dir(&folder).map_err(RunError::io("make the folder", &folder))?;
    let library = run_dir.libraries().join(Library::Nvml.soname());
    if !library.exists() {
        return Ok(());
    }
    let path = folder.join("nvidia-smi");
    std::fs::write(&path, nvidia_smi(run_dir.path(), &library, home.python.as_deref()))
        .map_err(RunError::io("write", &path))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))
        .map_err(RunError::io("make executable", path))
}

/// Source of the program. It is not part of the run: it neither uses the device nor is watched.
fn nvidia_smi(run_dir: &Path, library: &Path, python: Option<&Path>) -> String {
    let python =
        python.map(|python| format!("{} ", shell_word(&python.to_string_lossy()))).unwrap_or_default();
    format!(
        "#!/bin/sh
unset LD_PRELOAD
export {RUN_DIR}={run_dir}
for python in python3 python {python}; do
    if command -v \"$python\" > /dev/null; then
        exec \"$python\" -I -S -c '
import ctypes, os, sys
words = [os.fsencode(word) for word in sys.argv[2:]]
library = ctypes.CDLL(sys.argv[1])
sys.exit(library.memfit_nvidia_smi(len(words), (ctypes.c_char_p * len(words))(*words)))
' {library} \"$@\"
    fi
done
echo 'the virtual nvidia-smi needs a python3 on PATH' >&2
exit 12
",
        run_dir = shell_word(&run_dir.to_string_lossy()),
        library = shell_word(&library.to_string_lossy()),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_program_hands_its_words_to_the_library_whatever_the_paths_are() {
        let root = tempfile::tempdir().unwrap();
        let odd = root.path().join("it's a folder");
        std::fs::create_dir(&odd).unwrap();
        // Stands in for Python: it prints its arguments.
        let python = odd.join("python");
        std::fs::write(&python, "#!/bin/sh\nshift 4\nprintf '%s\\n' \"$@\" \"$MEMFIT_RUN_DIR\"\n").unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o700)).unwrap();
        symlink("/bin/sh", odd.join("sh")).unwrap();
        let text = nvidia_smi(&odd, &odd.join("lib.so"), Some(&python));
        let done = std::process::Command::new("/bin/sh")
            .args(["-c", &text, "nvidia-smi", "-i", "0 1"])
            .env("PATH", "/nowhere")
            .output()
            .unwrap();
        let expected = format!("{0}/lib.so\n-i\n0 1\n{0}\n", odd.display());
        assert_eq!(String::from_utf8_lossy(&done.stdout), expected, "{done:?}");
    }
}

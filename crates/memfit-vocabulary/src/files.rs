//! Which files are the user's own: the rule for stacks, tracebacks and logs.

/// Folders in which packages are installed.
const PACKAGE_FOLDERS: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// The path of a file within the folder of installed packages; `None` if it is not in one.
pub fn installed_path(file: &str) -> Option<&str> {
    PACKAGE_FOLDERS.iter().find_map(|folder| file.rsplit_once(folder)).map(|(_, path)| path)
}

/// Returns `true` if a file is user code, not a library, Python's own or native code.
pub fn is_user_file(file: &str) -> bool {
    let of_library = [
        "/lib/python",
        // memfit's own code in the script's process.
        "/memfit_probe/",
        "/memfit_levers/",
        "/memfit_parallel/",
        // Compiler output, and PyTorch in a source checkout.
        "/torchinductor_",
        "/torch/_dynamo/",
        "/torch/_inductor/",
        "/torch/_functorch/",
        "/torch/autograd/",
        "/torch/nn/modules/",
        "\\site-packages\\",
        "\\lib\\",
        "\\Lib\\",
    ];
    // The interpreter for Windows that needs no installation names its library's files without a folder.
    let of_interpreter = ["threading.py", "contextlib.py", "runpy.py", "selectors.py"];
    let launchers = ["/bin/torchrun", "/bin/accelerate", "/bin/accelerate-launch", "/bin/deepspeed"];
    let is_launcher = |file: &str| launchers.iter().any(|launcher| file.ends_with(launcher));
    // Cells of older notebooks.
    if file.starts_with("<ipython-input") {
        return true;
    }
    is_python(file)
        && installed_path(file).is_none()
        && !file.starts_with('<')
        && !of_library.iter().any(|part| file.contains(part))
        && !file.starts_with("torch/")
        && !of_interpreter.contains(&file)
        && !is_launcher(file)
        && !file.contains("frozen ")
}

/// Returns `true` if a file contains Python. With `stacks="all"`, PyTorch's default, stacks also have native
/// frames of source files, objects, libraries and the interpreter; a Python script without an extension is
/// distinguished from these by its name.
fn is_python(file: &str) -> bool {
    const ENDINGS: [&str; 3] = ["py", "pyw", "ipynb"];
    let name = file.rsplit(['/', '\\']).next().unwrap_or_default();
    match name.rsplit_once('.') {
        Some((_, ending)) => ENDINGS.contains(&ending),
        None => {
            !name.is_empty() && name != "??" && !name.starts_with("python") && !name.starts_with("pt_main")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_libraries_and_of_python_are_not_the_users() {
        for file in [
            "",
            "<string>",
            "<frozen runpy>",
            "??",
            "/v/lib/python3.11/threading.py",
            "/x/libc10_cuda.so",
            "torch/csrc/autograd/engine.cpp",
            "/me/miniconda3/envs/x/bin/python3.11",
            "/usr/bin/python",
            "thread48.o",
            "../sysdeps/x86_64/start.S",
            "./nptl/pthread_create.c",
            "/build/glibc/csu/../sysdeps/nptl/libc_start_call_main.h",
            "/usr/local/src/conda/python-3.11.5/Python/ceval.c",
            "/me/ext/attention.cxx",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/tmp/torchinductor_me/ab/cabcdefg.py",
            "/home/me/pytorch/torch/nn/modules/linear.py",
            "/usr/lib/python3/dist-packages/torch/cuda/memory.py",
            "/tmp/memfit-1/probe/memfit_levers/wrapping.py",
            "pandas/_libs/parsers.pyx",
            "/v/lib/python2.7/Queue.py",
            "D:\\conda\\Lib\\asyncio\\events.py",
            "threading.py",
            "/v/bin/torchrun",
        ] {
            assert!(!is_user_file(file), "{file}");
        }
        for file in [
            "train.py",
            "/home/me/models/net.py",
            "C:\\work\\train.py",
            "/content/notebook.ipynb",
            "/me/bin/train",
            "/tmp/ipykernel_4711/1234567.py",
            "<ipython-input-7-5c2ea9b3d1f0>",
            "/me/torchling/a.py",
            "/me/memfit_experiments/train.py",
        ] {
            assert!(is_user_file(file), "{file}");
        }
    }

    #[test]
    fn an_installed_file_has_its_path_in_the_packages() {
        assert_eq!(
            installed_path("/v/lib/python3.11/site-packages/timm/layers/a.py"),
            Some("timm/layers/a.py")
        );
        assert_eq!(installed_path("/usr/lib/python3/dist-packages/yaml/b.py"), Some("yaml/b.py"));
        assert_eq!(installed_path("/me/train.py"), None);
    }
}

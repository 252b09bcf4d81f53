//! Tests of the library in front of a program, as in front of PyTorch: a stand-in for libc10 whose allocator
//! reports.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{env, fs, path::PathBuf, process::Command};

use memfit_channel::{
    RunDir,
    events::{self, Event},
};

/// libc10's two functions, with a count of their calls; and a program that opens the library like Python, in
/// a separate scope, and reports like PyTorch's allocator.
const LIBRARY: &str = r"
#include <stdint.h>
#include <stddef.h>
typedef struct { int8_t type, index; } Device;
int reached;
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *p, int64_t n, size_t a, size_t r, Device d) {
    reached += p == (void *)0x1000 && a == 512 && r == 2097152 && d.type == 1 && d.index == 2 ? 1 : 0;
}
void _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(int64_t n, size_t a, size_t r, Device d) { reached += 100; }
";

const ALLOCATOR: &str = r"
#include <stdint.h>
#include <stddef.h>
typedef struct { int8_t type, index; } Device;
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, int64_t, size_t, size_t, Device);
void _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(int64_t, size_t, size_t, Device);
extern int reached;
int run(void) {
    Device gpu = {1, 2}, cpu = {0, -1};
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)0x1000, 512, 512, 2097152, gpu);
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)0x1000, -512, 0, 2097152, gpu);
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)0x2000, 64, 64, 0, cpu);
    _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(1 << 30, 0, 2097152, gpu);
    return reached;
}
";

const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    void *allocator = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!allocator) { puts(dlerror()); return 90; }
    int (*run)(void) = (int (*)(void))dlsym(allocator, "run");
    int reached = run();
    pid_t child = argc > 2 ? fork() : -1;
    if (child == 0) { run(); _exit(0); }
    if (child > 0) waitpid(child, NULL, 0);
    return reached;
}
"#;

struct Stage {
    folder: PathBuf,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    fn build(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("memfit-watch-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("run")).unwrap();
        let stage = Self { folder };
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libc10.so"];
        stage.compile("libc10.so", LIBRARY, &shared);
        let library = stage.folder.display().to_string();
        let (c10, search) = (format!("{library}/libc10.so"), format!("-Wl,-rpath,{library}"));
        let linked = ["-shared", "-fPIC", &c10, &search];
        stage.compile("libc10_cuda.so", ALLOCATOR, &linked);
        stage.compile("program", PROGRAM, &["-ldl"]);
        stage
    }

    fn compile(&self, name: &str, source: &str, options: &[&str]) {
        let path = self.folder.join(format!("{name}.c"));
        fs::write(&path, source).unwrap();
        let done = Command::new("cc")
            .arg(&path)
            .args(["-w", "-o"])
            .arg(self.folder.join(name))
            .args(options)
            .output()
            .expect("a C compiler, which building memfit needs anyway");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn run(&self, watched: bool, arguments: &[&str]) -> i32 {
        let mut command = Command::new(self.folder.join("program"));
        command.arg(self.folder.join("libc10_cuda.so")).args(arguments);
        command.env("LD_PRELOAD", library()).env_remove("MEMFIT_RUN_DIR");
        if watched {
            command.env("MEMFIT_RUN_DIR", self.folder.join("run"));
        }
        let done = command.output().unwrap();
        done.status.code().unwrap_or_else(|| panic!("{done:?}"))
    }

    fn run_dir(&self) -> RunDir {
        RunDir::new(self.folder.join("run"))
    }
}

/// Library that Cargo has built next to this test.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    let library = test.parent().map(|folder| folder.join("libmemfit_watch.so")).unwrap();
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// The stand-in's functions are reached by the first report (the only one with these arguments) and by the
/// failure.
const REACHED: i32 = 101;

#[test]
fn reports_are_logged_and_passed_on() {
    let stage = Stage::build("logged");
    assert_eq!(stage.run(true, &[]), REACHED, "libc10's own functions are called with the same arguments");
    let pids = stage.run_dir().event_pids().unwrap();
    let (log, problems) = events::read(&stage.run_dir().events(pids[0])).unwrap();
    assert_eq!((pids.len(), problems.len()), (1, 0));
    let logged_blocks: Vec<_> = log
        .events
        .iter()
        .map(|event| match *event {
            Event::Alloc { place, address, bytes, allocated, .. } => {
                ("alloc", place.device, address, bytes, allocated)
            }
            Event::Free { place, address, bytes, allocated, .. } => {
                ("free", place.device, address, bytes, allocated)
            }
            Event::Oom { place, bytes, allocated, .. } => ("oom", place.device, 0, bytes, allocated),
            ref other => panic!("{other:?}"),
        })
        .collect();
    let expected = [("alloc", 2, 0x1000, 512, 512), ("free", 2, 0x1000, 512, 0), ("oom", 2, 0, 1 << 30, 0)];
    assert_eq!(logged_blocks, expected, "what the CPU's allocator reports is not logged");
}

#[test]
fn a_forked_child_has_a_log_of_its_own() {
    let stage = Stage::build("forked");
    assert_eq!(stage.run(true, &["fork"]), REACHED);
    let pids = stage.run_dir().event_pids().unwrap();
    assert_eq!(pids.len(), 2);
    for pid in pids {
        let (log, problems) = events::read(&stage.run_dir().events(pid)).unwrap();
        assert_eq!((log.pid, log.events.len(), problems.len()), (pid, 3, 0));
    }
}

#[test]
fn outside_a_run_reports_are_only_passed_on() {
    let stage = Stage::build("outside");
    assert_eq!(stage.run(false, &[]), REACHED);
    assert!(stage.run_dir().event_pids().unwrap().is_empty());
}

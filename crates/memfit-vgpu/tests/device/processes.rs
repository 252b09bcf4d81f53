//! Tests of forks, and of concurrent processes.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::{
    env,
    process::{Command, Stdio},
};

use crate::{
    cuda::*,
    machine::{GIB, MIB, alone, enter, make_run},
};

const ROLE: &str = "MEMFIT_TEST_ROLE";

/// Runs a function in a forked child, which must only call the device; its result is the child's exit status.
fn forked(function: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes the call and ends at once.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let answer = function();
            libc::_exit(answer & 0xff);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "the child ended with {status:#x}");
        libc::WEXITSTATUS(status)
    }
}

#[test]
fn a_child_of_a_process_that_used_the_device_cannot() {
    let _alone = alone();
    let address = malloc(MIB);
    for (name, answer) in [
        ("malloc", forked(|| cudaMalloc(&mut 0, 100))),
        ("free", forked(|| cudaFree(address))),
        ("count", forked(|| cudaGetDeviceCount(&mut 0))),
        ("set", forked(|| cudaSetDevice(0))),
        ("synchronize", forked(cudaDeviceSynchronize)),
        ("init", forked(|| cuInit(0))),
    ] {
        assert_eq!(answer, INITIALIZATION, "{name}");
    }
    assert_eq!(forked(|| i32::from(cudaGetErrorString(2).is_null())), 0, "texts are there all the same");
    assert_eq!(cudaFree(address), 0, "the parent goes on");
}

/// Not a test: the body of the processes that the tests below start.
#[test]
fn role() {
    match env::var(ROLE).as_deref() {
        Ok("child first") => {
            // This process has not used the device: its child may, and then so may it.
            assert_eq!(forked(|| cudaMalloc(&mut 0, 100)), 0);
            assert_eq!(cudaMalloc(&mut 0, 100), 0);
            assert_eq!(forked(|| cudaMalloc(&mut 0, 100)), INITIALIZATION);
        }
        Ok("no run") => {
            assert_eq!(cudaGetDeviceCount(&mut 0), NO_DEVICE);
            assert_eq!(cudaMalloc(&mut 0, 100), NO_DEVICE);
            assert_eq!(cuInit(0), NO_DEVICE);
            assert_eq!(cudaGetLastError(), NO_DEVICE);
        }
        Ok("second card only") => {
            assert_eq!(out(cudaGetDeviceCount), 1);
            let mut text = [0u8; 20];
            assert_eq!(cudaDeviceGetPCIBusId(text.as_mut_ptr(), 20, 0), 0);
            assert!(text.starts_with(b"0000:02:00.0"));
            malloc(GIB);
            let view = crate::machine::ledger();
            assert_eq!((view.cards[0].used, view.cards[1].used), (0, GIB));
        }
        Ok("no card") => assert_eq!(cudaGetDeviceCount(&mut 0), NO_DEVICE),
        Ok("share") => {
            let handle = out(|handle| cudaIpcGetMemHandle(handle, malloc(5 * MIB) + 100));
            assert_eq!(cudaIpcOpenMemHandle(&mut 0, handle, 1), INVALID_CONTEXT, "in the same process");
            let free = info().0;
            let opened = forked_with_exec(handle);
            assert!(opened.success());
            assert_eq!(info().0, free, "opening books nothing");
        }
        Ok("open") => {
            let words: Vec<u64> = env::var("MEMFIT_TEST_HANDLE")
                .unwrap()
                .split(' ')
                .map(|word| word.parse().unwrap())
                .collect();
            let handle = IpcHandle(words.try_into().unwrap());
            let first = out(|address| cudaIpcOpenMemHandle(address, handle, 1));
            let second = out(|address| cudaIpcOpenMemHandle(address, handle, 1));
            assert_eq!(first, second, "it is open already");
            let own = [1u8; 64];
            assert_eq!(cudaMemcpy(first + 5 * MIB - 64, own.as_ptr() as u64, 64, HOST_TO_DEVICE), 0);
            assert_eq!(
                cudaMemcpy(first + 5 * MIB - 63, own.as_ptr() as u64, 64, HOST_TO_DEVICE),
                INVALID_VALUE
            );
            assert_eq!(cudaFree(first), INVALID_VALUE, "it is not this process's to free");
            assert_eq!((cudaIpcCloseMemHandle(first), cudaIpcCloseMemHandle(first)), (0, 0));
            assert_eq!(cudaIpcCloseMemHandle(first), INVALID_VALUE);
        }
        Ok("clock") => crate::streams::work_is_done_when_the_clock_says_so(),
        Ok(other) => panic!("no role {other}"),
        Err(_) => {}
    }
}

fn forked_with_exec(handle: IpcHandle) -> std::process::ExitStatus {
    let words: Vec<String> = handle.0.iter().map(u64::to_string).collect();
    started("open").env("MEMFIT_TEST_HANDLE", words.join(" ")).status().unwrap()
}

fn started(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "processes::role", "--test-threads=1"]).env(ROLE, role).stdout(Stdio::null());
    command
}

#[test]
fn other_processes_behave_as_their_surroundings_say() {
    enter();
    let run = make_run("roles");
    for (role, run_dir, visible) in [
        ("child first", Some(&run), None),
        ("no run", None, None),
        ("second card only", Some(&run), Some("1")),
        ("no card", Some(&run), Some("")),
        ("share", Some(&run), None),
        ("clock", Some(&run), None),
    ] {
        let mut command = started(role);
        command.env_remove(memfit_channel::env::RUN_DIR);
        if let Some(run) = run_dir {
            command.env(memfit_channel::env::RUN_DIR, run);
        }
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        assert!(command.status().unwrap().success(), "{role}");
    }
    std::fs::remove_dir_all(run).unwrap();
}

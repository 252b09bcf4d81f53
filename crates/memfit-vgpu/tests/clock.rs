//! Tests of the three clock modes, each in a separate process: work on one stream, as the host and other
//! streams see it.
//!
//! One test, since it forks: a second test's thread would interfere with the children.

#![allow(unsafe_code, reason = "the tests call as C callers do")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::ffi::c_void;
use std::fs;

use memfit_channel::{CardSetup, ClockMode, RunDir, Setup};
use memfit_devices::{Bytes, Catalogue, Overhead};
use memfit_prototypes::testing::fork::in_child;
// The calls below are the library's, so it must be linked.
use memfit_vgpu as _;

const NOT_READY: i32 = 600;
const HOST_TO_DEVICE: i32 = 1;
const SIZE: usize = 256 << 20;

unsafe extern "C" {
    safe fn cudaMalloc(address: &mut u64, size: usize) -> i32;
    safe fn cudaHostAlloc(address: &mut u64, size: usize, flags: u32) -> i32;
    safe fn cudaMemcpyAsync(target: u64, source: u64, size: usize, way: i32, stream: u64) -> i32;
    safe fn cudaStreamCreateWithFlags(stream: &mut u64, flags: u32) -> i32;
    safe fn cudaStreamQuery(stream: u64) -> i32;
    safe fn cudaStreamSynchronize(stream: u64) -> i32;
    safe fn cudaStreamWaitEvent(stream: u64, event: u64, flags: u32) -> i32;
    safe fn cudaStreamBeginCapture(stream: u64, mode: i32) -> i32;
    safe fn cudaStreamEndCapture(stream: u64, graph: &mut u64) -> i32;
    safe fn cudaGraphInstantiate(executable: &mut u64, graph: u64, flags: u64) -> i32;
    safe fn cudaGraphLaunch(executable: u64, stream: u64) -> i32;
    safe fn cudaEventCreateWithFlags(event: &mut u64, flags: u32) -> i32;
    safe fn cudaEventRecord(event: u64, stream: u64) -> i32;
    safe fn cudaEventQuery(event: u64) -> i32;
    safe fn cudaEventElapsedTime(milliseconds: &mut f32, from: u64, to: u64) -> i32;
    safe fn cufftPlan1d(plan: &mut i32, size: i32, kind: i32, batch: i32) -> i32;
    safe fn cufftSetStream(plan: i32, stream: u64) -> i32;
    safe fn cufftExecC2C(plan: i32, input: u64, output: u64, direction: i32) -> i32;
    safe fn cublasCreate_v2(handle: &mut u64) -> i32;
    safe fn cublasSetStream_v2(handle: u64, stream: u64) -> i32;
    fn cublasSgemm_v2(
        handle: u64,
        a_form: i32,
        b_form: i32,
        m: i32,
        n: i32,
        k: i32,
        alpha: *const c_void,
        a: u64,
        a_step: i32,
        b: u64,
        b_step: i32,
        beta: *const c_void,
        c: u64,
        c_step: i32,
    ) -> i32;
}

fn create_handle(make: impl FnOnce(&mut u64) -> i32) -> u64 {
    let mut value = 0;
    assert_eq!(make(&mut value), 0);
    value
}

fn enter(clock: ClockMode) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("memfit-clock-{}", std::process::id()));
    // A killed test of a process with this id may have left its own.
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    let device = Catalogue::builtin().unwrap().find("a100-80gb").unwrap().clone();
    let card = CardSetup::new(device.with_memory(Bytes::from_gib(8)), Overhead::default());
    let setup = Setup { clock, ..Setup::new(vec![card]) };
    setup.write(&RunDir::new(&path)).unwrap();
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var(memfit_channel::env::RUN_DIR, &path) };
    path
}

/// A copy in progress on a stream, and an event after it.
struct Copying {
    stream: u64,
    event: u64,
}

fn copying() -> Copying {
    let (device, pinned) =
        (create_handle(|to| cudaMalloc(to, SIZE)), create_handle(|to| cudaHostAlloc(to, SIZE, 0)));
    let stream = create_handle(|stream| cudaStreamCreateWithFlags(stream, 1));
    let event = create_handle(|event| cudaEventCreateWithFlags(event, 2));
    assert_eq!(cudaMemcpyAsync(device, pinned, SIZE, HOST_TO_DEVICE, stream), 0);
    assert_eq!(cudaEventRecord(event, stream), 0);
    Copying { stream, event }
}

fn expect(what: &str, actual: i32, expected: i32) -> Result<(), String> {
    if actual == expected { Ok(()) } else { Err(format!("{what}: {actual}, not {expected}")) }
}

fn estimate() -> Result<(), String> {
    let Copying { stream, event } = copying();
    expect("ten milliseconds of copying are not over at once", cudaEventQuery(event), NOT_READY)?;
    let mut asked = 0;
    while cudaEventQuery(event) == NOT_READY {
        asked += 1;
    }
    if !(1_000..100_000).contains(&asked) {
        return Err(format!("over after {asked} questions of a microsecond"));
    }
    expect("the stream is idle then", cudaStreamQuery(stream), 0)
}

fn instant() -> Result<(), String> {
    let Copying { stream, event } = copying();
    expect("everything is over at once", cudaEventQuery(event), 0)?;
    expect("and the stream idle", cudaStreamQuery(stream), 0)
}

fn never() -> Result<(), String> {
    let Copying { stream, event } = copying();
    for _ in 0..50_000 {
        expect("nothing is over before it is waited for", cudaEventQuery(event), NOT_READY)?;
    }
    let other = copying();
    expect("waiting", cudaStreamSynchronize(stream), 0)?;
    expect("what was waited for is over", cudaEventQuery(event), 0)?;
    expect("what was queued behind it is not", cudaEventQuery(other.event), NOT_READY)?;
    // A program that only polls must come to its end, too.
    let mut asked = 0_u32;
    while cudaEventQuery(other.event) == NOT_READY {
        asked += 1;
        if asked > 1_000_000 {
            return Err("asking never ends".to_owned());
        }
    }
    Ok(())
}

fn multiply(handle: u64, size: i32) {
    let one = 1.0_f32;
    let scalar = (&raw const one).cast();
    // SAFETY: the scalars are on the host; the matrices' addresses are not dereferenced.
    let status =
        unsafe { cublasSgemm_v2(handle, 0, 0, size, size, size, scalar, 0, size, 0, size, scalar, 0, size) };
    assert_eq!(status, 0);
}

fn elapsed(work: impl FnOnce(u64)) -> f32 {
    let stream = create_handle(|stream| cudaStreamCreateWithFlags(stream, 1));
    let [begin, end] = [0; 2].map(|_| create_handle(|event| cudaEventCreateWithFlags(event, 0)));
    assert_eq!(cudaEventRecord(begin, stream), 0);
    work(stream);
    assert_eq!(cudaEventRecord(end, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    let mut milliseconds = 0.0;
    assert_eq!(cudaEventElapsedTime(&mut milliseconds, begin, end), 0);
    milliseconds
}

/// Kernels on two branches of a graph share one device; a copy on a branch runs concurrently.
fn graphs() -> Result<(), String> {
    let handle = create_handle(|handle| cublasCreate_v2(handle));
    let alone = elapsed(|stream| {
        assert_eq!(cublasSetStream_v2(handle, stream), 0);
        multiply(handle, 4096);
    });
    // 137 billion operations of single precision on an A100.
    if !(6.0..12.0).contains(&alone) {
        return Err(format!("a product took {alone} ms"));
    }
    let (first, second) = (
        create_handle(|stream| cudaStreamCreateWithFlags(stream, 1)),
        create_handle(|stream| cudaStreamCreateWithFlags(stream, 1)),
    );
    let [fork, join] = [0; 2].map(|_| create_handle(|event| cudaEventCreateWithFlags(event, 2)));
    assert_eq!(cudaStreamBeginCapture(first, 1), 0);
    assert_eq!(cudaEventRecord(fork, first), 0);
    assert_eq!(cudaStreamWaitEvent(second, fork, 0), 0);
    for (stream, times) in [(first, 3), (second, 1)] {
        assert_eq!(cublasSetStream_v2(handle, stream), 0);
        for _ in 0..times {
            multiply(handle, 4096);
        }
    }
    // Less than the duration of one product.
    let (device, pinned) =
        (create_handle(|to| cudaMalloc(to, SIZE / 4)), create_handle(|to| cudaHostAlloc(to, SIZE / 4, 0)));
    assert_eq!(cudaMemcpyAsync(device, pinned, SIZE / 4, HOST_TO_DEVICE, second), 0);
    assert_eq!(cudaEventRecord(join, second), 0);
    assert_eq!(cudaStreamWaitEvent(first, join, 0), 0);
    let graph = create_handle(|graph| cudaStreamEndCapture(first, graph));
    let executable = create_handle(|made| cudaGraphInstantiate(made, graph, 0));
    let whole = elapsed(|stream| assert_eq!(cudaGraphLaunch(executable, stream), 0));
    let ratio = whole / alone;
    if (3.9..4.2).contains(&ratio) { Ok(()) } else { Err(format!("{ratio} times one product")) }
}

/// A Fourier transform takes the time of its passes over memory, on the stream of its plan.
fn transforms() -> Result<(), String> {
    const COMPLEX: i32 = 0x29;
    let mut plan = 0;
    assert_eq!(cufftPlan1d(&mut plan, 1 << 20, COMPLEX, 64), 0);
    let elsewhere = elapsed(|_| assert_eq!(cufftExecC2C(plan, 0, 0, 1), 0));
    // Work that still runs would take a share of the device.
    assert_eq!(cudaStreamSynchronize(0), 0);
    let here = elapsed(|stream| {
        assert_eq!(cufftSetStream(plan, stream), 0);
        assert_eq!(cufftExecC2C(plan, 0, 0, 1), 0);
    });
    // Half a GiB, read and written twice, at about 1.4 TB per second.
    if elsewhere < 0.1 && (1.0..2.5).contains(&here) {
        Ok(())
    } else {
        Err(format!("{here} ms on the plan's stream, {elsewhere} on another"))
    }
}

/// Check that runs in one process.
type Check = fn() -> Result<(), String>;

#[test]
fn work_is_over_when_the_mode_says_so() {
    let modes: [(ClockMode, Check); 5] = [
        (ClockMode::Estimate, estimate),
        (ClockMode::Instant, instant),
        (ClockMode::Never, never),
        (ClockMode::Estimate, graphs),
        (ClockMode::Estimate, transforms),
    ];
    for (mode, check) in modes {
        let outcome = in_child(|| {
            let path = enter(mode);
            let outcome = check();
            fs::remove_dir_all(path).ok();
            outcome
        });
        assert_eq!(outcome, Ok(()), "{mode:?}");
    }
}

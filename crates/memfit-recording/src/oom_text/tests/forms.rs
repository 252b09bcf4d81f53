//! Forms in which errors of memory reach a log besides PyTorch's own message: other allocators, the host,
//! launchers, servers, and messages that were cut or wrapped.

use super::{GIB, MIB, found, holds};
use crate::oom_text::{Elsewhere, OomKind, OomText, log};

/// Line of a log, the kind of its error, and whether the text alone proves it.
const LINES: [(&str, OomKind, bool); 43] = [
    (
        "Tried to allocate 34.00 MiB (GPU 1; 3.94 GiB total capacity; 3.01 GiB already allocated; 9.12 MiB free; 3.10 GiB reserved in total by PyTorch)",
        OomKind::CachingAllocator,
        true,
    ),
    ("torch.OutOfMemoryError: Allocation on device ", OomKind::CudaMallocAsync, true),
    ("torch.cuda.OutOfMemoryError", OomKind::Cuda, true),
    (
        "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":830, please report a bug to PyTorch.",
        OomKind::Unreported,
        false,
    ),
    (
        "RuntimeError: MPS backend out of memory (MPS allocated: 4.10 GB, other allocations: 2.00 GB, max allowed: 6.20 GB). Tried to allocate 512.00 MB on private pool.",
        OomKind::Mps,
        true,
    ),
    (
        "THCudaCheck FAIL file=/b/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
        OomKind::Cuda,
        true,
    ),
    (
        "RuntimeError: cuda runtime error (2) : out of memory at /b/THC/generic/THCStorage.cu:66",
        OomKind::Cuda,
        true,
    ),
    (
        "cuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1 to get correct traceback.",
        OomKind::Cuda,
        true,
    ),
    ("Error out of memory at line 91 in file /b/csrc/ops.cu", OomKind::Cuda, true),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 512.00 MiB on device 0: cudaMalloc failed: out of memory",
        OomKind::Cuda,
        true,
    ),
    (
        "(Worker_TP1 pid=77) ERROR 01-02 03:04:05 [core.py:1] RuntimeError: CUDA out of memory occurred when warming up sampler with 64 dummy requests.",
        OomKind::Serving,
        true,
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        OomKind::Serving,
        true,
    ),
    (
        "ValueError: Free memory on device (4.2/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.2 GiB).",
        OomKind::Serving,
        true,
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
        OomKind::Host,
        true,
    ),
    (
        "RuntimeError: [enforce fail at D:\\b\\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8589934592 bytes.",
        OomKind::Host,
        true,
    ),
    (
        "RuntimeError: $ Torch: not enough memory: you tried to allocate 8GB. Buy new RAM! at /b/TH/THGeneral.c:204",
        OomKind::Host,
        true,
    ),
    (
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1073741824,) and data type float64",
        OomKind::Host,
        true,
    ),
    ("OSError: [Errno 12] Cannot allocate memory", OomKind::Host, true),
    (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        OomKind::SharedMemory,
        true,
    ),
    (
        "RuntimeError: DataLoader worker (pid 31) is killed by signal: Bus error. ",
        OomKind::SharedMemory,
        true,
    ),
    (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -7) local_rank: 2 (pid: 31) of binary: /usr/bin/python",
        OomKind::SharedMemory,
        true,
    ),
    ("  exitcode  : -7 (pid: 31)", OomKind::SharedMemory, true),
    ("RuntimeError: DataLoader worker (pid 31) is killed by signal: Killed. ", OomKind::Killed, false),
    ("RuntimeError: DataLoader worker (pid(s) 31, 32) exited unexpectedly", OomKind::Killed, false),
    (
        "E0101 01:01:01.000000 9 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 31) of binary: /usr/bin/python",
        OomKind::Killed,
        false,
    ),
    ("  exitcode  : -9 (pid: 31)", OomKind::Killed, false),
    ("  traceback : Signal 9 (SIGKILL) received by PID 31", OomKind::Killed, false),
    (
        "subprocess.CalledProcessError: Command 'train.py' died with <Signals.SIGKILL: 9>.",
        OomKind::Killed,
        false,
    ),
    (
        "[2024-01-01 01:01:01,001] [ERROR] [launch.py:322:sigkill_handler] ['python', 'x.py'] exits with return code = -9",
        OomKind::Killed,
        false,
    ),
    ("Killed", OomKind::Killed, false),
    ("run.sh: line 12:    77 Killed                  python train.py", OomKind::Killed, false),
    ("[1]    4242 killed     python train.py", OomKind::Killed, false),
    ("RuntimeError: One or more background workers are no longer alive. Exiting.", OomKind::Killed, false),
    ("      Reason:       OOMKilled", OomKind::HostLimit, true),
    ("[99.1] python invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0", OomKind::HostLimit, true),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
        OomKind::HostLimit,
        true,
    ),
    ("srun: error: node3: task 0: Out Of Memory", OomKind::HostLimit, true),
    (
        "(raylet) node_manager.cc:3069: 2 Workers (tasks / actors) killed due to memory pressure (OOM)",
        OomKind::HostLimit,
        true,
    ),
    ("RuntimeError: CUDA failed with error out of memory", OomKind::Cuda, true),
    (
        "RuntimeError: [enforce fail at event_gpu.cc:17] error == cudaSuccess. 2 vs 0. Error at: /b/event_gpu.cc:17: out of memory",
        OomKind::Cuda,
        true,
    ),
    ("| WARNING: ran out of memory, skipping batch", OomKind::Cuda, true),
    ("MemoryError", OomKind::Host, true),
    ("terminate called after throwing an instance of 'std::bad_alloc'", OomKind::Host, true),
];

#[test]
fn errors_of_all_kinds_of_memory_are_recognised() {
    for (line, kind, is_certain) in LINES {
        let texts = found(line);
        let [text] = &texts[..] else { panic!("{line}: {texts:?}") };
        assert_eq!((text.kind, text.kind.is_certain(&text.message)), (kind, is_certain), "{line}");
        let of_host =
            matches!(kind, OomKind::Host | OomKind::Killed | OomKind::HostLimit | OomKind::SharedMemory);
        assert_eq!(kind.is_of_host(), of_host, "{line}");
    }
}

#[test]
fn other_lines_with_the_same_words_are_no_errors() {
    for line in [
        "Killed 3 zombie processes",
        "player 7 killed player 9",
        "exitcode  : 1 (pid: 31)",
        "  - exitcode: 0",
        "the server exited unexpectedly",
        "    raise ValueError(\"No available memory for the cache blocks. \"",
        "    raise RuntimeError('DataLoader worker (pid(s) {}) exited unexpectedly'.format(pids_str))",
        "except torch.cuda.OutOfMemoryError as error:",
        "RuntimeError: x == y INTERNAL ASSERT FAILED at \"../c10/core/TensorImpl.h\":1, please report a bug",
        "Tried to allocate a seat (GPU conference)",
        "polars.exceptions.OutOfMemoryError",
        "to avoid running out of memory on the GPU, reduce the batch",
        "except MemoryError:",
    ] {
        assert_eq!(found(line), [], "{line}");
    }
}

/// Requested, capacity and free bytes of the only error, in MiB.
fn figures(text: &OomText, mib: [f64; 3]) -> bool {
    let figures = &text.figures;
    let said = [figures.requested, figures.capacity, figures.free];
    said.into_iter().zip(mib).all(|(amount, mib)| holds(amount, Some(mib)))
}

#[test]
fn cut_and_wrapped_messages_keep_their_figures() {
    let after_the_name = "torch.cuda.OutOfMemoryError: CUDA out of memory.\nTried to allocate 64.00 MiB (GPU 0; 8.00 GiB total capacity; 7.00 GiB already\nallocated; 16.00 MiB free; 7.25 GiB reserved in total by PyTorch)\n";
    // A launcher marks the first line of a message only.
    let after_a_prefix = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. \nGPU 0 has a total capacity of 8.00 GiB of which 16.00 MiB is free.\nProcess 41 has 6.00 GiB memory in use. \nProcess 42 has 1.50 GiB memory in use.\n";
    for log in [after_the_name, after_a_prefix] {
        let texts = found(log);
        let [text] = &texts[..] else { panic!("{texts:?}") };
        assert!(figures(text, [64.0, 8192.0, 16.0]), "{text:?}");
    }
    let others = &found(after_a_prefix)[0].figures.other_processes;
    assert_eq!(others.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [41, 42]);
    // What follows a message that breaks off belongs to the next one.
    let broken = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU\nTraceback (most recent call last):\n  File \"/me/eval.py\", line 5, in main\nRuntimeError: CUDA error: out of memory\n";
    let texts = found(broken);
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(!texts[0].message.contains("eval.py"), "{}", texts[0].message);
    assert_eq!(texts[1].frames.len(), 1);
    // The capacity is known although its last word is missing.
    let start = "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 1; 8.00 GiB total";
    let said = &found(start)[0].figures;
    assert_eq!(said.device, Some(1));
    assert!(holds(said.capacity, Some(8192.0)) && holds(said.requested, Some(64.0)), "{said:?}");
    // Only a request may follow the bare words.
    let bare = "RuntimeError: CUDA out of memory.\nEpoch 3 is skipped\n";
    assert_eq!(found(bare)[0].message, "CUDA out of memory.");
}

#[test]
fn prefixes_of_servers_and_loggers_hide_neither_traceback_nor_process() {
    let worker = |name: &str, text: &str| format!("({name}) ERROR 01-02 03:04:05 [worker.py:9] {text}\n");
    let mut log = String::new();
    for (name, line) in [("Worker_TP0 pid=70", 11), ("VllmWorker rank=1 pid=71", 12)] {
        log += &worker(name, "Traceback (most recent call last):");
        log += &worker(name, &format!("  File \"/srv/model.py\", line {line}, in forward"));
    }
    for name in ["Worker_TP0 pid=70", "VllmWorker rank=1 pid=71"] {
        log += &worker(name, "RuntimeError: CUDA error: out of memory");
    }
    let texts = found(&log);
    let found_frames: Vec<_> =
        texts.iter().map(|text| (text.rank, text.is_of_server, text.frames[0].line)).collect();
    assert_eq!(found_frames, [(Some(0), true, 11), (Some(1), true, 12)]);
    // Ray's workers have no rank, and are no server.
    let ray = "(TrainWorker pid=9, ip=10.0.0.4)   File \"/srv/train.py\", line 3, in loop\n(TrainWorker pid=9, ip=10.0.0.4) RuntimeError: CUDA error: out of memory\n";
    let text = &found(ray)[0];
    assert_eq!((text.rank, text.is_of_server, text.frames.len()), (None, false, 1));
    let of_compose = "app-1  | 2025-01-01T00:00:00Z   File \"/srv/app.py\", line 8, in answer\napp-1  | 2025-01-01T00:00:01Z RuntimeError: CUDA error: out of memory\n";
    assert_eq!(found(of_compose)[0].frames[0].line, 8);
    let nccl = "node1:500:501 [3] NCCL INFO Channel 00\nnode1:500:500 [3] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'\n";
    assert_eq!(found(nccl)[0].figures.device, Some(3));
}

#[test]
fn the_end_of_a_process_is_reported_once() {
    let log = "\
W0101 api.py:900] Sending process 30 closing signal SIGTERM
E0101 api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 31) of binary: /usr/bin/python
Root Cause (first observed failure):
[0]:
  time      : 2025-01-01_01:01:01
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 31)
  traceback : Signal 9 (SIGKILL) received by PID 31
";
    let texts = found(log);
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert_eq!((texts[0].kind, texts[0].rank), (OomKind::Killed, Some(5)));
    // The parent's traceback has the script's line, also if the log ends in it.
    let loader = "\
  File \"/lib/queue.py\", line 180, in get
RuntimeError: DataLoader worker (pid 31) is killed by signal: Killed.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File \"/me/train.py\", line 14, in <module>
";
    let reported = format!("{loader}RuntimeError: DataLoader worker (pid(s) 31) exited unexpectedly\n");
    for log in [loader, &reported] {
        let texts = found(log);
        let [text] = &texts[..] else { panic!("{texts:?}") };
        assert!(text.message.contains("killed by signal"), "{}", text.message);
        assert_eq!((text.frames.len(), text.frames[0].line), (1, 14));
    }
}

#[test]
fn figures_of_other_memory_are_read() {
    let mps = "MPS backend out of memory (MPS allocated: 4.00 GiB, other allocations: 1.50 GiB, max allowed: 6.00 GiB). Tried to allocate 768.00 MiB on private pool.";
    let said = &found(mps)[0].figures;
    assert!(holds(said.requested, Some(768.0)) && holds(said.allocated, Some(4096.0)), "{said:?}");
    assert!(holds(said.allowed, Some(6144.0)) && holds(said.this_process, Some(5632.0)), "{said:?}");
    // Older releases name the same units in another way.
    let older = mps.replace("iB", "B");
    assert_eq!(&found(&older)[0].figures, said);
    let ray = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.4, ID: ab) where the task (actor ID: cd, name=A.run, pid=9, memory used=1.00GB) was running was 30.00GB / 32.00GB (0.9375), which exceeds the memory usage threshold of 0.93.\n";
    let said = &found(ray)[0].figures;
    assert_eq!(
        (
            said.allocated.map(crate::oom_text::Amount::bytes),
            said.capacity.map(crate::oom_text::Amount::bytes)
        ),
        (Some(30 * GIB), Some(32 * GIB))
    );
    let host = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1048576 bytes.";
    assert_eq!(found(host)[0].figures.requested.map(crate::oom_text::Amount::bytes), Some(MIB));
}

#[test]
fn errors_of_other_memory_are_named() {
    for (line, what) in [
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 99000, Hardware limit: 65536.",
            Elsewhere::KernelSharedMemory,
        ),
        (
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[8,64]",
            Elsewhere::TensorFlow,
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes.",
            Elsewhere::Jax,
        ),
    ] {
        let searched = log::search(format!("start\n{line}\n").as_bytes()).unwrap();
        assert_eq!((searched.found.len(), searched.elsewhere), (0, Some((what, 2))), "{line}");
    }
}

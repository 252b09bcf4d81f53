//! Explanations of messages, with the figures that they prove.

use memfit_recording::find_oom_texts;
use memfit_vocabulary::Lever;

use super::*;
use crate::explanation::{ENDED, Fix};

const IN_WORKER: &str = "Caught AcceleratorError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File \"/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py\", line 375, in _worker_loop
    data = fetcher.fetch(index)
  File \"/home/me/train.py\", line 11, in __getitem__
    return torch.full((2048,), float(index), device=\"cuda\")
torch.AcceleratorError: CUDA error: out of memory
Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com for more information.
";

fn text_of(log: &str) -> OomText {
    let mut texts = find_oom_texts(log.as_bytes()).expect("memory can be read");
    assert_eq!(texts.len(), 1, "{texts:?}");
    texts.remove(0)
}

#[test]
fn a_worker_that_gets_no_context_is_outside_of_the_allocator() {
    let text = text_of(IN_WORKER);
    let refused = card_from_text(&text).refused.expect("the worker was refused");
    assert_eq!(refused.lines.len(), 1);
    assert_eq!((refused.lines[0].file.as_str(), refused.lines[0].line), ("/home/me/train.py", 11));
    assert_eq!(worker_number(IN_WORKER), Some(1));
    let explanation = explain_text(&text);
    assert_eq!(explanation.cause, Cause::Outside);
    assert_eq!(explanation.fixes[0].lever, Lever::CpuOnlyWorkers);
}

#[test]
fn a_limit_of_the_process_is_the_cause_while_the_gpu_has_room() {
    let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which FREE is free. Process 1950 has 5.95 GiB memory in use. Including non-PyTorch memory, this process has 7.67 GiB memory in use. 6.99 GiB allowed; Of the allocated memory 6.77 GiB is allocated by PyTorch, and 175.39 MiB is reserved by PyTorch but unallocated.";
    let explained = |free: &str| explain_text(&text_of(&message.replace("FREE", free)));
    let limited = explained("124.59 GiB");
    assert_eq!(limited.cause, Cause::SettingThatHurts);
    let text = &limited.evidence[0].text;
    assert!(text.contains("more than 6.99 GiB") && text.contains("124.59 GiB"), "{text}");
    let levers: Vec<Lever> = limited.fixes.iter().map(|fix| fix.lever).collect();
    assert_eq!(levers[..2], [Lever::DropSetting, Lever::Checkpointing], "{levers:?}");
    assert_eq!(limited.fixes[0].fits, Some(true));
    // Without the limit the request would have failed as well.
    assert_eq!(explained("20.00 MiB").cause, Cause::OtherProcesses);
}

#[test]
fn the_figures_of_a_message_are_those_of_the_card() {
    const GIB: u64 = 1 << 30;
    let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is free. Process 41 has 3.00 GiB memory in use. Including non-PyTorch memory, this process has 12.00 GiB memory in use. Of the allocated memory 9.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 2.00 GiB is reserved by PyTorch but unallocated.";
    let card = card_from_text(&text_of(message));
    assert_eq!((card.capacity, card.limit, card.withheld), (Some(16 * GIB), Some(12 * GIB), 0));
    assert_eq!((card.in_private_pools, card.own_outside), (GIB, Some(GIB)));
    let others: Vec<(u32, u64, u64)> =
        card.others.iter().map(|other| (other.pid, other.reserved, other.bytes)).collect();
    assert_eq!(others, [(41, 3 * GIB, 3 * GIB)]);
    // What the process may not use, although it is free.
    let allowed = message.replace("Of the allocated memory", "11.50 GiB allowed; Of the allocated memory");
    let card = card_from_text(&text_of(&allowed));
    assert_eq!((card.limit, card.withheld), (Some(23 * GIB / 2), GIB / 2));
}

#[test]
fn the_runtime_alone_proves_nothing_of_workers_and_figures_say_more() {
    let bare = "RuntimeError: CUDA error: out of memory";
    assert_eq!((card_from_text(&text_of(bare)).refused, worker_number(bare)), (None, None));
    let figures = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 3.00 GiB of which 1.00 GiB is free. Of the allocated memory 1.50 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.";
    let in_worker = IN_WORKER.replace("CUDA error: out of memory", figures);
    assert_eq!(card_from_text(&text_of(&in_worker)).refused, None);
}

const NEARLY_FULL: &str = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.16 GiB already allocated; 11.44 MiB free; 6.26 GiB reserved in total by PyTorch)";
const SHORT: &str = "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the allocated memory 21.40 GiB is allocated by PyTorch, and 640.00 MiB is reserved by PyTorch but unallocated.";

#[test]
fn a_full_gpu_is_not_fragmented() {
    let cause = |log: &str| explain_text(&text_of(log)).cause;
    assert_eq!(cause(NEARLY_FULL), Cause::TooBig);
    assert_eq!(cause(&NEARLY_FULL.replace("6.16 GiB already", "4.16 GiB already")), Cause::Fragmented);
}

#[test]
fn a_remedy_that_cannot_be_enough_comes_last() {
    let ends = |log: &str| {
        let fixes = explain_text(&text_of(log)).fixes;
        let fix = |fix: &Fix| (fix.lever, fix.fits);
        (fixes.first().map(fix), fixes.last().map(fix))
    };
    let setting = Lever::ExpandableSegments;
    assert_eq!(ends(SHORT), (Some((Lever::Checkpointing, None)), Some((setting, Some(false)))));
    // More is unallocated than requested.
    let fits = SHORT
        .replace("1.96 GiB", "1.70 GiB")
        .replace("21.40 GiB", "18.40 GiB")
        .replace("640.00 MiB", "3.62 GiB");
    assert_eq!(ends(&fits).0, Some((setting, None)));
    let others = SHORT.replace("Including", "Process 41 has 2.00 GiB memory in use. Including");
    assert_eq!(ends(&others), (Some((Lever::EndOtherProcess, Some(true))), Some((setting, Some(false)))));
}

#[test]
fn a_message_without_figures_has_no_cause() {
    for message in [
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: CUDA error: out of memory",
    ] {
        let explanation = explain_text(&text_of(message));
        assert_eq!((explanation.cause, explanation.considered.len()), (Cause::None, 0), "{message}");
        assert!(explanation.unknown.iter().any(|gap| gap == NO_FIGURES), "{:?}", explanation.unknown);
        assert_eq!(explanation.fixes, []);
    }
}

/// A message, its cause, the first remedies, and words of the evidence.
type Case = (&'static str, Cause, &'static [Lever], &'static str);

const ROOM: &str = "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 8.00 GiB total capacity; 1.00 GiB already allocated; 4.00 GiB free; 1.25 GiB reserved in total by PyTorch)";
const OWN_PID: &str = "CUDA out of memory. Tried to allocate 600.00 MiB. GPU 2 has a total capacity of 16.00 GiB of which 200.00 MiB is free. Process 901 has 15.80 GiB memory in use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.";
const SPILLED: &str = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 14.00 GiB already allocated; 0 bytes free; 15.00 GiB reserved in total by PyTorch)";
const LIMITED: &str = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 80.00 GiB of which 70.00 GiB is free. 2.10 GiB allowed; Of the allocated memory 2.00 GiB is allocated by PyTorch, and 98.00 MiB is reserved by PyTorch but unallocated.";
const DISPLAY: &str = "CUDA out of memory. Tried to allocate 16.00 MiB (GPU 0; 8.00 GiB total capacity; 5.00 GiB already allocated; 0 bytes free; 5.25 GiB reserved in total by PyTorch)";
const CUT: &str = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. \nGPU 3 has a total capacity of 24.00 GiB of which 2.00 GiB is free.\nProcess 41 has 20.00 GiB memory in use. \nProcess 42 has 2.00 GiB memory in use.";
const ALONE: &str = "OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 4.00 GiB is free. Process 41 has 11.95 GiB memory in use. Of th";
const BARELY: &str = "CUDA out of memory. Tried to allocate 6.00 GiB (GPU 0; 24.00 GiB total capacity; 16.00 GiB already allocated; 5.80 GiB free; 16.30 GiB reserved in total by PyTorch)";
const START: &str = "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 1; 8.00 GiB total";
const XPU: &str = "RuntimeError: XPU out of memory. Tried to allocate 6.00 GiB (GPU 0; 16.00 GiB total capacity; 1.00 GiB already allocated; 1.00 GiB reserved in total by PyTorch)";
const MPS: &str = "RuntimeError: MPS backend out of memory (MPS allocated: 5.00 GiB, other allocations: 1.00 GiB, max allowed: 6.50 GiB). Tried to allocate 1.00 GiB on private pool.";

const CASES: [Case; 19] = [
    (ROOM, Cause::None, &[], "4.00 GiB of the GPU were free, more than the 1.50 GiB requested"),
    // One page more than what is free is a full GPU.
    (NEARLY_FULL, Cause::TooBig, &[Lever::Checkpointing], "the GPU was nearly full"),
    (
        OWN_PID,
        Cause::TooBig,
        &[Lever::Checkpointing],
        "GPU 2 has 16.00 GiB: 15.10 GiB reserved by PyTorch, 719 MiB of this process outside",
    ),
    (
        SPILLED,
        Cause::TooBig,
        &[Lever::Checkpointing],
        "on a GPU of 8.00 GiB: the driver keeps the rest in host memory",
    ),
    (LIMITED, Cause::SettingThatHurts, &[Lever::DropSetting], "may not use more than 2.10 GiB"),
    (
        DISPLAY,
        Cause::TooBig,
        &[Lever::EndOtherProcess, Lever::Checkpointing],
        "2.75 GiB of this process's CUDA context, the driver and other programs",
    ),
    (
        CUT,
        Cause::None,
        &[Lever::Checkpointing],
        "20.00 GiB of process 41, 2.00 GiB of process 42, 2.00 GiB free; one of the processes may be this one",
    ),
    (START, Cause::None, &[Lever::Checkpointing], "the request failed on GPU 1, which has 8.00 GiB"),
    (
        ALONE,
        Cause::None,
        &[Lever::Checkpointing],
        "GPU 0 has 16.00 GiB: 11.95 GiB of this process, 4.00 GiB free",
    ),
    (BARELY, Cause::TooBig, &[Lever::Checkpointing], "free on the GPU: 6.00 GiB did not fit in one piece"),
    (XPU, Cause::None, &[], "PyTorch held 1.00 GiB of the GPU's 16.00 GiB"),
    (MPS, Cause::TooBig, &[Lever::Checkpointing], "at most 6.50 GiB that it may use"),
    (
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes.",
        Cause::HostMemory,
        &[Lever::LessHostMemory, Lever::MoreHostMemory],
        "4.00 GiB of host memory",
    ),
    (
        "RuntimeError: DataLoader worker (pid 31) is killed by signal: Killed.",
        Cause::HostMemory,
        &[Lever::LoaderWorkers, Lever::MoreHostMemory],
        "a loader worker (process 31) was killed",
    ),
    (
        "E0101 api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 31) of binary: /usr/bin/python",
        Cause::HostMemory,
        &[Lever::LessHostMemory],
        "process 31 (local rank 3) was killed",
    ),
    (
        "RuntimeError: DataLoader worker (pid 31) is killed by signal: Bus error.",
        Cause::HostMemory,
        &[Lever::MoreHostMemory, Lever::LoaderWorkers],
        "/dev/shm",
    ),
    (
        "ValueError: No available memory for the cache blocks.",
        Cause::DoesNotFit,
        &[Lever::DropSetting],
        "KV cache",
    ),
    (
        "ValueError: Free memory on device (4.2/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.2 GiB).",
        Cause::OtherProcesses,
        &[Lever::EndOtherProcess],
        "gpu_memory_utilization",
    ),
    (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 64 dummy requests.",
        Cause::TooBig,
        &[Lever::ByParts],
        "before the first request",
    ),
];

#[test]
fn each_form_of_error_has_its_cause_and_remedies() {
    for (log, cause, levers, words) in CASES {
        let texts = find_oom_texts(log.as_bytes()).expect("memory can be read");
        let explanation = explain_texts(&texts);
        assert_eq!(explanation.cause, cause, "{log}");
        let first: Vec<Lever> = explanation.fixes.iter().map(|fix| fix.lever).take(levers.len()).collect();
        assert_eq!(first, levers, "{log}");
        assert_eq!(explanation.fixes.is_empty(), levers.is_empty(), "{log}");
        let evidence: Vec<&str> = explanation.evidence.iter().map(|fact| fact.text.as_str()).collect();
        assert!(evidence.iter().any(|text| text.contains(words)), "{log}: {evidence:?}");
        // A figure that the message does not have is no zero.
        assert_eq!(
            evidence.iter().any(|text| text.contains("0 B")),
            log.contains("; 0 bytes free"),
            "{evidence:?}"
        );
    }
    assert_eq!(explain_text(&text_of(OWN_PID)).device, 2);
    for (log, gap) in
        [(ROOM, HAD_ROOM), (XPU, HAD_ROOM), (CUT, CUT_OFF), (CASES[13].0, ENDED), (CASES[14].0, ENDED)]
    {
        let unknown = explain_text(&text_of(log)).unknown;
        assert!(unknown.iter().any(|found| found == gap), "{log}: {unknown:?}");
    }
    // What the kernel or a container reports is certain.
    let certain = explain_text(&text_of("Memory cgroup out of memory: Killed process 9 (python)"));
    assert_eq!((certain.cause, certain.unknown.len()), (Cause::HostMemory, 0));
}

#[test]
fn another_process_that_is_listed_beside_this_one_is_blamed() {
    let own = "Process 901 has 15.80 GiB memory in use.";
    let both = OWN_PID
        .replace(own, "Process 77 has 3.00 GiB memory in use. Process 901 has 12.80 GiB memory in use.");
    let both = both.replace("15.00 GiB is allocated", "12.00 GiB is allocated");
    let text = text_of(&both);
    let explanation = explain_text(&text);
    assert_eq!(explanation.cause, Cause::OtherProcesses);
    let others: Vec<u32> = card_from_text(&text).others.iter().map(|other| other.pid).collect();
    assert_eq!(others, [77]);
    assert_eq!(explanation.fixes[0].saves, 3 << 30);
}

#[test]
fn remedies_suit_what_the_program_does() {
    let log = |frames: &[(&str, &str)]| {
        let lines: Vec<String> = frames
            .iter()
            .map(|(file, function)| format!("  File \"{file}\", line 3, in {function}"))
            .collect();
        format!("Traceback (most recent call last):\n{}\n{SHORT}", lines.join("\n"))
    };
    let levers =
        |log: &str| -> Vec<Lever> { explain_text(&text_of(log)).fixes.iter().map(|fix| fix.lever).collect() };
    let training = [Lever::Checkpointing, Lever::MicroBatch, Lever::AutocastBf16];
    for frames in [
        [("/me/run.py", "<module>"), ("/v/site-packages/torch/_tensor.py", "backward")],
        [("/me/train_gan.py", "<module>"), ("/me/net.py", "forward")],
        [("/me/run.py", "training_step"), ("/v/site-packages/diffusers/pipelines/x.py", "__call__")],
    ] {
        assert_eq!(levers(&log(&frames))[..4], [&training[..], &[Lever::ExpandableSegments]].concat());
    }
    for frames in [
        [("C:\\ui\\modules\\txt2img.py", "run"), ("C:\\ui\\net.py", "forward")],
        [("/me/app.py", "answer"), ("/v/site-packages/transformers/generation/utils.py", "generate")],
        [("/me/inference_video.py", "<module>"), ("/me/net.py", "forward")],
    ] {
        let levers = levers(&log(&frames));
        assert_eq!(levers[..3], [Lever::NoGrad, Lever::ByParts, Lever::QuantizedWeights], "{frames:?}");
    }
    let server = log(&[("/v/site-packages/vllm/worker/model_runner.py", "execute_model")]);
    assert_eq!(levers(&server)[..2], [Lever::ByParts, Lever::QuantizedWeights]);
    // Nothing is known: both are named.
    let unknown = levers(&log(&[("/me/main.py", "<module>")]));
    assert_eq!(unknown[..4], [&training[..], &[Lever::NoGrad]].concat());
}

#[test]
fn of_several_errors_the_one_that_says_most_is_explained() {
    let notes = |log: &str| {
        let explanation = explain_texts(&find_oom_texts(log.as_bytes()).expect("memory can be read"));
        (explanation.cause, explanation.unknown[0].clone())
    };
    let of_ranks = format!("[rank0]: {SHORT}\n[rank1]: {SHORT}\n");
    let (cause, note) = notes(&of_ranks);
    assert_eq!(cause, Cause::TooBig);
    assert_eq!(
        note,
        "the log has 2 out-of-memory errors, of ranks 0 and 1; this answer is about rank 1's, on line 2"
    );
    // The launcher kills the other ranks after the error of one.
    let killed = format!("{SHORT}\nE0101 failed (exitcode: -9) local_rank: 3 (pid: 31) of binary: python\n");
    let (cause, note) = notes(&killed);
    assert_eq!(cause, Cause::TooBig);
    assert!(
        note.ends_with("the one on line 1. The last, on line 2, is about a process that was killed"),
        "{note}"
    );
    let vague = "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\nKilled\n";
    assert_eq!(notes(vague).0, Cause::HostMemory);
    let figures_first = format!("{SHORT}\nRuntimeError: CUDA error: out of memory\n");
    assert_eq!(notes(&figures_first).0, Cause::TooBig);
}

//! Explanations of messages that are not about PyTorch's allocator on an NVIDIA or AMD GPU: the host's
//! memory, Apple's GPUs, servers for language models.

use memfit_recording::{OomKind, OomText};
use memfit_vocabulary::{Cause, Lever};

use super::remedies::{Work, advice, for_less};
use super::{bytes, device, user_lines};
use crate::explanation::{ConsideredCause, ENDED, Explanation, Fact, Fix, MomentFacts};
use crate::weigh::size;

const FEWER_WORKERS: &str = "fewer loader workers (`num_workers`), and `prefetch_factor=2` or less: each worker holds its own copy of what the dataset keeps in memory, and batches in advance";
const MORE_MEMORY: &str = "raise the memory limit of the container or job (`docker run --memory`, `#SBATCH --mem`), or use a host with more memory";
const LESS_ON_HOST: &str = "hold less in host memory: read the dataset from disk as it is needed (`numpy.memmap`, Arrow), load weights with `mmap=True`, and not once for every rank";

/// Explains an error of the host's memory.
pub(super) fn host(text: &OomText) -> Explanation {
    let requested = bytes(text.figures.requested);
    let mut explanation = Explanation::without_events(0);
    explanation.moment = MomentFacts { requested, ..MomentFacts::default() };
    explanation.cause = Cause::HostMemory;
    let fact = Fact { text: host_fact(text), bytes: requested.unwrap_or(0), lines: user_lines(text) };
    explanation.evidence.push(fact);
    explanation.considered =
        vec![ConsideredCause { cause: Cause::HostMemory, bytes: requested.unwrap_or(0), enough: true }];
    let is_of_workers = text.message.contains("worker");
    let more = advice(Lever::MoreHostMemory, MORE_MEMORY);
    let workers = advice(Lever::LoaderWorkers, FEWER_WORKERS);
    explanation.fixes = match text.kind {
        OomKind::SharedMemory => vec![
            advice(
                Lever::MoreHostMemory,
                "give the container more shared memory: `docker run --shm-size=16g` (the default is 64 MiB) or `--ipc=host`; in Kubernetes, an `emptyDir` with `medium: Memory` at /dev/shm",
            ),
            advice(Lever::LoaderWorkers, "fewer loader workers; `num_workers=0` needs no shared memory"),
        ],
        _ if is_of_workers => vec![workers, more],
        _ => vec![advice(Lever::LessHostMemory, LESS_ON_HOST), more, workers],
    };
    if !text.kind.is_certain(&text.message) {
        explanation.unknown.push(ENDED.to_owned());
    }
    explanation
}

/// Sentence about what the host refused, or whom it ended.
fn host_fact(text: &OomText) -> String {
    let figures = &text.figures;
    let message = &text.message;
    match text.kind {
        OomKind::Host => match bytes(figures.requested) {
            Some(requested) => format!(
                "{} of host memory (RAM) were requested and refused: this is not the GPU's memory",
                size(requested)
            ),
            None => "a request for host memory (RAM) was refused: this is not the GPU's memory".to_owned(),
        },
        OomKind::SharedMemory => "a process ended with a bus error, as loader workers do when the host's shared memory (/dev/shm), through which they pass batches, is full".to_owned(),
        OomKind::HostLimit => match (bytes(figures.allocated), bytes(figures.capacity)) {
            (Some(used), Some(all)) => format!(
                "Ray ended a worker because {} of the node's {} of host memory (RAM) were in use",
                size(used),
                size(all)
            ),
            _ => "a process was ended because of its host memory (RAM), by the kernel or by the limit of its container or job".to_owned(),
        },
        _ if message.contains("DataLoader worker") => {
            let pid = number_behind(message, "(pid ").or_else(|| number_behind(message, "(pid(s) "));
            format!(
                "a loader worker{} was killed, most likely because the host's memory (RAM) was full",
                pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
            )
        }
        _ if message.contains("background workers") => {
            "a worker that prepares data is gone, most likely because the host's memory (RAM) was full".to_owned()
        }
        _ => {
            let rank = number_behind(message, "local_rank: ").map(|rank| format!(" (local rank {rank})"));
            let pid = number_behind(message, "(pid: ").or_else(|| number_behind(message, "PID "));
            format!(
                "{}{} was killed (SIGKILL), most likely because the host's memory (RAM) was full; a lack of GPU memory raises an exception instead",
                pid.map_or_else(|| "the process".to_owned(), |pid| format!("process {pid}")),
                rank.unwrap_or_default()
            )
        }
    }
}

fn number_behind(text: &str, words: &str) -> Option<u32> {
    let (_, rest) = text.split_once(words)?;
    rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

/// Explains an error of Apple's GPUs, whose memory is the computer's.
pub(super) fn mps(text: &OomText) -> Explanation {
    let figures = &text.figures;
    let (requested, allocated) = (bytes(figures.requested), bytes(figures.allocated).unwrap_or(0));
    let allowed = bytes(figures.allowed);
    let outside = bytes(figures.this_process).map_or(0, |all| all.saturating_sub(allocated));
    let mut explanation = Explanation::without_events(device(text));
    let missing = requested
        .zip(allowed)
        .map(|(requested, allowed)| (allocated + outside + requested).saturating_sub(allowed));
    explanation.moment = MomentFacts {
        requested,
        allocated,
        reserved: allocated + outside,
        limit: allowed,
        missing: missing.filter(|missing| *missing > 0),
        ..MomentFacts::default()
    };
    let cause = if requested.zip(allowed).is_some_and(|(requested, allowed)| requested > allowed) {
        Cause::GiantRequest
    } else {
        Cause::TooBig
    };
    explanation.cause = cause;
    explanation.evidence.push(Fact {
        text: format!(
            "on this Mac, PyTorch's tensors took {}, its caches and the rest of the process {}, of at most {} that it may use",
            size(allocated),
            size(outside),
            allowed.map_or_else(|| "what".to_owned(), size)
        ),
        bytes: allocated,
        lines: user_lines(text),
    });
    explanation.considered = vec![ConsideredCause { cause, bytes: requested.unwrap_or(0), enough: true }];
    explanation.fixes = for_less(Work::from_text(text));
    for fix in &mut explanation.fixes {
        fix.how = fix.how.replace("autocast(\"cuda\"", "autocast(\"mps\"");
    }
    explanation.fixes.push(advice(
        Lever::DropSetting,
        "close other programs, and set PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to remove PyTorch's limit: macOS then swaps, and may become unresponsive",
    ));
    explanation
}

/// Explains an error of a server for language models, which has taken its share of the GPU in advance.
pub(super) fn serving(text: &OomText) -> Explanation {
    let mut explanation = Explanation::without_events(device(text));
    let message = &text.message;
    let (cause, fact, fixes): (Cause, &str, Vec<Fix>) = if message.contains("cache blocks") {
        (
            Cause::DoesNotFit,
            "weights and activations took the whole share of the GPU that the server may use (`gpu_memory_utilization`): nothing was left for the KV cache",
            vec![
                advice(
                    Lever::DropSetting,
                    "raise `gpu_memory_utilization`, if no other process needs the rest of the GPU",
                ),
                advice(
                    Lever::ByParts,
                    "lower `max_model_len`, `max_num_batched_tokens` and `max_num_seqs`: activations of the trial run need less",
                ),
                advice(
                    Lever::QuantizedWeights,
                    "serve a model quantized to 8 or 4 bits, or split it over more GPUs (`tensor_parallel_size`)",
                ),
            ],
        )
    } else if message.contains("is less than desired") {
        (
            Cause::OtherProcesses,
            "other processes hold so much of the GPU that the server cannot take its share (`gpu_memory_utilization`)",
            vec![
                advice(
                    Lever::EndOtherProcess,
                    "end the other processes (`nvidia-smi` shows them), or use another GPU (CUDA_VISIBLE_DEVICES)",
                ),
                advice(Lever::DropSetting, "lower `gpu_memory_utilization`"),
            ],
        )
    } else {
        (
            Cause::TooBig,
            "the server ran out of GPU memory while it warmed up, before the first request: weights, KV cache and the buffers of the warm-up need more than the GPU has",
            for_less(Work::Serving),
        )
    };
    explanation.cause = cause;
    explanation.evidence.push(Fact { text: fact.to_owned(), bytes: 0, lines: user_lines(text) });
    explanation.considered = vec![ConsideredCause { cause, bytes: 0, enough: true }];
    explanation.fixes = fixes;
    explanation
}

//! Remedies that a message supports.

use memfit_allocator::Release;
use memfit_recording::OomText;
use memfit_vocabulary::{Cause, Lever, Proof};

use super::account::GpuUse;
use super::bytes;
use crate::case::Card;
use crate::explanation::{Apply, Fix};

/// Use of the model, as far as the traceback shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It trains.
    Training,
    /// The traceback does not say, or there is none.
    Unknown,
    /// It only runs a model.
    Inference,
    /// It is a server for language models, with a pool of memory of its own.
    Serving,
}

impl Work {
    pub(super) fn from_text(text: &OomText) -> Self {
        const TRAINS: [&str; 6] = ["backward", "train", "training", "fit", "loss", "step"];
        const SERVES: [&str; 3] = ["/vllm/", "/sglang/", "/text_generation_server/"];
        const RUNS: [&str; 9] = [
            "/diffusers/pipelines/",
            "/transformers/generation/",
            "/transformers/pipelines/",
            "/comfy/",
            "/k_diffusion/",
            "/modules/txt2img.py",
            "/modules/img2img.py",
            "/modules/processing.py",
            "/llama_index/",
        ];
        let file = |frame: &memfit_recording::LogFrame| frame.file.replace('\\', "/");
        let is_word = |name: &str, words: &[&str]| {
            let name = name.to_lowercase();
            words.iter().any(|word| name.split(['_', '.', '-']).any(|part| part == *word))
        };
        let stem = |path: &str| path.rsplit('/').next().unwrap_or("").trim_end_matches(".py").to_owned();
        let trains = text.frames.iter().any(|frame| {
            is_word(&frame.function, &TRAINS[..5])
                || (frame.function == TRAINS[5] && file(frame).contains("/optim/"))
                || is_word(&stem(&file(frame)), &["train", "trainer", "training", "finetune"])
        });
        if trains {
            return Self::Training;
        }
        let in_files = |parts: &[&str]| {
            text.frames.iter().any(|frame| parts.iter().any(|part| file(frame).contains(part)))
        };
        if text.is_of_server || in_files(&SERVES) {
            return Self::Serving;
        }
        let runs = text.frames.iter().any(|frame| {
            is_word(&frame.function, &["generate", "predict", "inference", "infer", "sample"])
                || is_word(&stem(&file(frame)), &["inference", "infer", "predict", "generate", "demo"])
        });
        if runs || in_files(&RUNS) { Self::Inference } else { Self::Unknown }
    }
}

/// A remedy that the user applies, with an unknown effect.
pub(super) fn advice(lever: Lever, how: &str) -> Fix {
    Fix {
        lever,
        saves: 0,
        how: how.to_owned(),
        proof: Proof::Modelled,
        fits: None,
        apply: Apply::ByHand(None),
    }
}

/// Remedies for a program whose tensors are too large together.
pub(super) fn for_less(work: Work) -> Vec<Fix> {
    match work {
        Work::Unknown => {
            let mut fixes = for_less(Work::Training);
            fixes.push(advice(
                Lever::NoGrad,
                "if the script only runs a model: `torch.inference_mode()`, fewer or smaller inputs at a time, weights in 8 or 4 bits",
            ));
            fixes
        }
        Work::Training => vec![
            advice(
                Lever::Checkpointing,
                "activation checkpointing (`torch.utils.checkpoint`) of the repeated blocks without BatchNorm, if activations fill the GPU",
            ),
            advice(Lever::MicroBatch, "gradient accumulation over micro-batches"),
            advice(
                Lever::AutocastBf16,
                "run the forward pass under `torch.autocast(\"cuda\", dtype=torch.bfloat16)`",
            ),
        ],
        Work::Inference => vec![
            advice(Lever::NoGrad, "run the model under `torch.inference_mode()`, if it does not yet"),
            advice(
                Lever::ByParts,
                "process less at a time: fewer inputs per batch, smaller images, tiles (`vae.enable_tiling()`)",
            ),
            advice(
                Lever::QuantizedWeights,
                "load the weights in 16, 8 or 4 bits, or keep what is not in use in host memory (`enable_model_cpu_offload()`, `device_map=\"auto\"`, `--lowvram`)",
            ),
        ],
        Work::Serving => vec![
            advice(
                Lever::ByParts,
                "lower the share of the GPU that the server fills with weights and KV cache in advance (`gpu_memory_utilization` of vLLM, `--mem-fraction-static` of SGLang), then `max_num_seqs` and `max_num_batched_tokens`",
            ),
            advice(
                Lever::QuantizedWeights,
                "serve a model quantized to 8 or 4 bits, or split it over more GPUs (`tensor_parallel_size`)",
            ),
        ],
    }
}

/// Remedies for an error of the GPU's memory, those that may be enough first. `room` is what was free, or
/// reserved but unallocated.
pub(super) fn of_gpu(
    text: &OomText,
    cause: Cause,
    card: &Card,
    used: &GpuUse,
    unused: u64,
    room: u64,
) -> Vec<Fix> {
    let requested = bytes(text.figures.requested).unwrap_or(0);
    let mut fixes = Vec::new();
    match cause {
        Cause::SettingThatHurts => fixes.push(Fix {
            saves: card.withheld,
            fits: Some(true),
            ..advice(
                Lever::DropSetting,
                "let the process use the whole GPU, if nothing else needs the rest: drop `torch.cuda.set_per_process_memory_fraction`, or `per_process_memory_fraction` in the allocator's settings",
            )
        }),
        Cause::OtherProcesses => fixes.push(Fix {
            saves: card.others_total(),
            fits: Some(true),
            ..advice(
                Lever::EndOtherProcess,
                "end the other processes (`nvidia-smi` shows them), or use another GPU (CUDA_VISIBLE_DEVICES)",
            )
        }),
        Cause::Outside => fixes.push(advice(
            Lever::CpuOnlyWorkers,
            "keep CUDA out of helper processes, and close other programs on the GPU",
        )),
        Cause::PrivatePools => fixes.push(Fix {
            saves: unused,
            ..advice(
                Lever::SharePool,
                "let graphs share one pool, or create the pool with `use_on_oom=True` (2.9 and later)",
            )
        }),
        _ => {}
    }
    let on = text.advice == Some(memfit_recording::Advice::ExpandableAlreadyOn);
    let expandable = (!on && unused * 10 > requested && cause != Cause::None).then(|| Fix {
        saves: unused,
        fits: (room < requested).then_some(false),
        apply: Apply::Environment(
            Release::NEWEST.settings_variable(),
            "expandable_segments:True".to_owned(),
        ),
        ..advice(
            Lever::ExpandableSegments,
            "set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9): most of the memory that is reserved but unallocated becomes usable",
        )
    });
    let is_too_much = matches!(cause, Cause::TooBig | Cause::GiantRequest);
    fixes.extend(expandable.clone().filter(|_| !is_too_much));
    let others = used.unnamed_programs();
    let tenth = card.capacity.unwrap_or(u64::MAX) / 10;
    if cause == Cause::TooBig && others >= requested && others >= tenth {
        fixes.push(Fix {
            saves: others,
            ..advice(
                Lever::EndOtherProcess,
                "close other programs that use the GPU, also those that draw on the screen (`nvidia-smi` shows them)",
            )
        });
    }
    // The limit may be there for a reason: then the program has to need less.
    let is_cut_off = cause == Cause::None && requested > 0 && text.figures.allocated.is_none();
    if is_too_much || is_cut_off || cause == Cause::SettingThatHurts {
        fixes.extend(for_less(Work::from_text(text)));
    }
    fixes.extend(expandable.filter(|_| is_too_much));
    fixes.sort_by_key(|fix| fix.fits == Some(false));
    fixes
}

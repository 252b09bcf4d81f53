//! Arguments and attributes of training libraries that have another name today.

/// Packages, names that they no longer have, and what replaces them.
const RENAMED: &[(&[&str], &[&str], &str)] = &[
    (&["transformers"], &["evaluation_strategy"], "its name is `eval_strategy` now"),
    (&["transformers"], &["no_cuda"], "`use_cpu` replaces it"),
    (&["transformers"], &["per_gpu_train_batch_size"], "`per_device_train_batch_size` replaces it"),
    (&["transformers"], &["per_gpu_eval_batch_size"], "`per_device_eval_batch_size` replaces it"),
    (&["transformers"], &["group_by_length"], "`train_sampling_strategy=\"group_by_length\"` replaces it"),
    (&["transformers"], &["warmup_ratio"], "`warmup_steps` takes a fraction as well"),
    (&["transformers"], &["overwrite_output_dir"], "leave it out"),
    (&["transformers"], &["logging_dir"], "the environment variable `TENSORBOARD_LOGGING_DIR` replaces it"),
    (&["transformers"], &["use_auth_token"], "its name is `token` now"),
    (&["transformers", "trl"], &["tokenizer"], "its name is `processing_class` now"),
    (&["transformers"], GENERATION, "the parameters of generation are in `model.generation_config` now"),
    (&["trl"], &["max_seq_length"], "its name is `max_length` now, in `SFTConfig`"),
    (&["trl"], &["max_prompt_length"], "leave it out"),
    (LIGHTNING, &["gpus"], "`accelerator=\"gpu\", devices=…` replaces it"),
    (LIGHTNING, &["distributed_backend"], "`strategy` replaces it"),
    (LIGHTNING, &["checkpoint_callback"], "`enable_checkpointing` replaces it"),
    (LIGHTNING, &["progress_bar_refresh_rate"], "`enable_progress_bar` replaces it"),
    (LIGHTNING, &["weights_summary"], "`enable_model_summary` replaces it"),
    (LIGHTNING, &["replace_sampler_ddp"], "`use_distributed_sampler` replaces it"),
    (LIGHTNING, &["resume_from_checkpoint"], "`ckpt_path` of `fit` replaces it"),
    (&["torch"], &["verbose"], "leave it out"),
    (&["transformers"], &["AdamW"], "`torch.optim.AdamW` replaces it"),
    (&["tensorboard"], &["SummaryWriter"], "`from torch.utils.tensorboard import SummaryWriter` imports it"),
];
const LIGHTNING: &[&str] = &["pytorch_lightning", "lightning"];
/// Parameters of generation that a model's configuration had.
const GENERATION: &[&str] = &[
    "max_length",
    "min_length",
    "num_beams",
    "do_sample",
    "early_stopping",
    "temperature",
    "top_k",
    "top_p",
    "no_repeat_ngram_size",
    "num_return_sequences",
    "length_penalty",
    "repetition_penalty",
    "forced_decoder_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
];

/// Replacement for a name that a package no longer has.
pub(crate) fn replacement(package: &str, name: &str) -> Option<&'static str> {
    RENAMED
        .iter()
        .find(|(packages, names, _)| packages.contains(&package) && names.contains(&name))
        .map(|(.., now)| *now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_its_package() {
        assert!(replacement("trl", "max_seq_length").unwrap().contains("`max_length`"));
        assert!(replacement("lightning", "gpus").unwrap().contains("devices"));
        assert!(
            replacement("transformers", "suppress_tokens").unwrap().contains("`model.generation_config`")
        );
        assert!(replacement("tensorboard", "SummaryWriter").unwrap().contains("torch.utils.tensorboard"));
        assert_eq!(replacement("transformers", "gpus"), None);
        assert_eq!(replacement("accelerate", "tokenizer"), None);
    }
}

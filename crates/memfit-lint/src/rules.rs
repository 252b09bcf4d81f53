//! Lint rules, one file each. The header of a rule's file is its documentation page.

macro_rules! rules {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*

        /// Each rule with the text of its file.
        static ALL: &[(&crate::rule::Rule, &str)] =
            &[$((&$module::RULE, include_str!(concat!("rules/", stringify!($module), ".rs")))),*];
    };
}

rules! {
    alloc_conf_set_late,
    anomaly_mode_left_on,
    autocast_without_scaler,
    backward_on_no_grad_loss,
    batch_norm_under_accumulation,
    blocking_copy_from_pinned,
    checkpoint_kept_on_device,
    checkpoint_without_use_reentrant,
    clip_before_unscale,
    collective_on_one_rank,
    compile_in_loop,
    create_graph_backward,
    cuda_in_worker,
    cudnn_benchmark_with_varying_shapes,
    cycled_loader,
    data_parallel,
    ddp_without_bucket_view,
    deepcopy_model_on_device,
    deprecated_cuda_amp,
    device_tensor_in_container,
    dropout_always_on,
    empty_cache_in_loop,
    eval_mode_not_restored,
    eval_without_no_grad,
    find_unused_parameters,
    float_before_transfer,
    freeze_without_effect,
    full_image_on_device,
    gradients_for_nothing,
    graph_in_container,
    half_batch_norm,
    half_model_with_grad_scaler,
    hook_in_loop,
    hook_stores_activation,
    late_zero_grad,
    load_without_map_location,
    loss_parameters_untrained,
    loss_summed_before_backward,
    method_not_called,
    missing_zero_grad,
    no_grad_not_called,
    no_sync_missing,
    non_blocking_copy_read,
    non_blocking_unpinned,
    one_parameter_gradient_scaled,
    oom_string_match,
    oom_swallowed,
    optimizer_before_replacement,
    optimizer_in_loop,
    optimizer_state_before_device,
    pad_to_max_length,
    parameter_not_leaf,
    parameter_rebound,
    partial_window_dropped,
    penalty_without_graph,
    pin_memory_without_workers,
    pruning_masks_saved,
    quantized_weights_trained,
    recurrent_state_not_detached,
    reentrant_checkpoint_without_gradients,
    retain_graph_in_loop,
    retry_inside_except,
    scaler_call_missing,
    scaler_with_bfloat16,
    scheduler_per_epoch,
    scheduler_per_micro_batch,
    sigmoid_before_bce_with_logits,
    softmax_before_cross_entropy,
    stale_window_index,
    state_dict_alias,
    tensor_running_loss,
    unbounded_memory_history,
    unscaled_accumulation,
    view_keeps_storage,
    whole_set_in_one_batch,
    window_off_by_one,
    zero_grad_before_step,
    zero_grad_inside_window,
    zero_grad_to_zero,
}

pub(crate) use cuda_in_worker::has_workers;
pub(crate) use empty_cache_in_loop::emptying;
pub(crate) use scaler_call_missing::add_scalers;

use crate::rule::Rule;

/// All rules by name.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    ALL.iter().map(|(rule, _)| *rule)
}

/// Rule with a name.
pub fn find(name: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.name == name)
}

/// Documentation page of a rule in Markdown.
pub fn page(rule: &Rule) -> String {
    let source = ALL.iter().find(|(known, _)| known.name == rule.name).map_or("", |(_, source)| *source);
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let mut page = String::new();
    for line in lines {
        page.push_str(line.strip_prefix(' ').unwrap_or(line));
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_its_page() {
        assert!(all().count() >= 40);
        for rule in all() {
            let page = page(rule);
            assert!(page.starts_with(&format!("# {}\n", rule.name)), "{}", rule.name);
            for part in
                ["## What it does", "## Why", "## Example", "## Fix safety", "## References", "https://"]
            {
                assert!(page.contains(part), "{} has no {part}", rule.name);
            }
        }
    }

    #[test]
    fn rules_are_in_order_and_named_once() {
        let names: Vec<_> = all().map(|rule| rule.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(names, sorted);
    }
}

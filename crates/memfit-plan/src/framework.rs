//! Training libraries: plans as their settings.

use memfit_vocabulary::{Framework, Lever, Parallel};

use crate::plan::Plan;

/// Keywords of a library's settings for a plan, with values and levers.
pub fn framework_settings(framework: Framework, plan: &Plan) -> Vec<(&'static str, String, Lever)> {
    let mut words = Vec::new();
    let parallel = plan.parallel.filter(Parallel::is_spread);
    let share = plan.made_for.batch.map(|batch| parallel.unwrap_or_default().share(batch));
    let exact = plan.micro_batch.zip(share).filter(|(size, batch)| batch.is_multiple_of(*size));
    let pieces = plan.micro_batches_per_step.unwrap_or(1).max(plan.made_for.own_accumulation.max(1));
    let size = exact.map(|(size, _)| size);
    if let Some(size) = size.or(share.filter(|_| parallel.is_some()))
        && framework == Framework::Transformers
    {
        let lever = if exact.is_some() { Lever::MicroBatch } else { Lever::Shard };
        words.push(("per_device_train_batch_size", size.to_string(), lever));
    }
    if exact.is_some() {
        let shards = parallel.is_some_and(|parallel| parallel.shard > 1);
        words.extend(accumulation(framework, pieces, shards));
    }
    if let Some(parallel) = parallel {
        words.extend(distribution(framework, plan, &parallel));
    }
    for setting in plan.levers.iter().filter(|setting| plan.moves(setting.lever)) {
        let keywords = setting.lever.declaration().keywords;
        if let Some(keyword) = keywords.iter().find(|keyword| keyword.framework == framework) {
            words.push((keyword.name, keyword.value.to_owned(), setting.lever));
        }
    }
    words
}

/// The call that creates a library's settings for a plan, in words; `None` if the plan needs none of them.
pub fn framework_call(framework: Framework, plan: &Plan) -> Option<String> {
    let settings = framework_settings(framework, plan);
    let words: Vec<String> = settings.iter().map(|(name, value, _)| format!("{name}={value}")).collect();
    let parallel = plan.parallel.filter(Parallel::is_spread);
    // The other libraries divide the loader's batches by themselves.
    let samples = match (framework, plan.made_for.batch.zip(parallel)) {
        (Framework::Lightning, Some((batch, parallel))) => {
            let size = plan.micro_batch.unwrap_or_else(|| parallel.share(batch));
            format!(", with a loader of batches of {size}")
        }
        _ => String::new(),
    };
    (!words.is_empty()).then(|| format!("`{}({})`{samples}", framework.taker(), words.join(", ")))
}

/// Settings for micro-batches. Sharded gradients are reduced after each of them: otherwise, FSDP2 would keep
/// whole gradients until the last.
fn accumulation(
    framework: Framework,
    pieces: u64,
    shards: bool,
) -> impl Iterator<Item = (&'static str, String, Lever)> {
    let (first, second) = match framework {
        Framework::Lightning => (("accumulate_grad_batches", pieces.to_string()), None),
        Framework::Accelerate if shards => (
            (
                "gradient_accumulation_plugin",
                format!("GradientAccumulationPlugin(num_steps={pieces}, sync_each_batch=True)"),
            ),
            None,
        ),
        Framework::Transformers | Framework::Accelerate => (
            ("gradient_accumulation_steps", pieces.to_string()),
            shards.then(|| {
                let value = "{\"gradient_accumulation_kwargs\": {\"sync_each_batch\": True}}";
                ("accelerator_config", value.to_owned())
            }),
        ),
    };
    std::iter::once(first).chain(second).map(|(name, value)| (name, value, Lever::MicroBatch))
}

/// Settings that distribute a script over several GPUs.
fn distribution(
    framework: Framework,
    plan: &Plan,
    parallel: &Parallel,
) -> impl Iterator<Item = (&'static str, String, Lever)> {
    let blocks = &plan.made_for.block_classes;
    let quoted = blocks.iter().map(|block| format!("\"{block}\"")).collect::<Vec<_>>().join(", ");
    let reshards = if parallel.reshard_after_forward { "True" } else { "False" };
    let if_any = |text: String| if blocks.is_empty() { String::new() } else { text };
    let mut words: Vec<(&'static str, String)> = Vec::new();
    match framework {
        Framework::Transformers if parallel.shard > 1 => {
            let wrapped = if_any(format!(", \"transformer_layer_cls_to_wrap\": [{quoted}]"));
            let value = format!("{{\"version\": 2, \"reshard_after_forward\": {reshards}{wrapped}}}");
            words.extend([("fsdp", "\"full_shard auto_wrap\"".to_owned()), ("fsdp_config", value)]);
        }
        Framework::Transformers => {}
        Framework::Accelerate => {
            if parallel.shard > 1 {
                let wrapped = if_any(format!(", transformer_cls_names_to_wrap=[{quoted}]"));
                words.push((
                    "fsdp_plugin",
                    format!(
                        "FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward={reshards}, auto_wrap_policy=\"transformer_based_wrap\"{wrapped})"
                    ),
                ));
            }
            words.push(("dataloader_config", "DataLoaderConfiguration(split_batches=True)".to_owned()));
        }
        Framework::Lightning => {
            let nodes = plan.made_for.nodes.unwrap_or(1).max(1);
            words.push(("devices", (u64::from(parallel.world()) / nodes).to_string()));
            if nodes > 1 {
                words.push(("num_nodes", nodes.to_string()));
            }
            let strategy = if parallel.shard > 1 {
                let kept = if parallel.reshard_after_forward { "FULL_SHARD" } else { "SHARD_GRAD_OP" };
                let wrapped = if_any(format!("auto_wrap_policy={{{}}}, ", blocks.join(", ")));
                format!("FSDPStrategy({wrapped}sharding_strategy=\"{kept}\")")
            } else {
                "\"ddp\"".to_owned()
            };
            words.push(("strategy", strategy));
        }
    }
    words.into_iter().map(|(name, value)| (name, value, Lever::Shard))
}

/// Environment variables with which a library of this kind distributes an unmodified script as the plan says,
/// in addition to those of `torchrun`. They do not change the batch size. Lightning has none.
pub fn framework_environment(
    framework: Framework,
    parallel: &Parallel,
    blocks: &[String],
) -> Vec<(&'static str, String)> {
    if parallel.shard < 2 || framework == Framework::Lightning {
        return Vec::new();
    }
    let mut variables = vec![
        ("ACCELERATE_USE_FSDP", "true".to_owned()),
        ("FSDP_VERSION", "2".to_owned()),
        ("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP".to_owned()),
        ("FSDP_RESHARD_AFTER_FORWARD", parallel.reshard_after_forward.to_string()),
    ];
    if !blocks.is_empty() {
        variables.push(("FSDP_TRANSFORMER_CLS_TO_WRAP", blocks.join(",")));
    }
    variables
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::{Label, Value};

    use super::*;
    use crate::plan::MadeFor;
    use crate::setting::Setting;

    #[test]
    fn a_plan_is_told_in_a_librarys_own_words() {
        let setting = |lever: Lever| Setting { lever, value: Value::default(), label: Label::Exact };
        let mut plan = Plan {
            micro_batch: Some(4),
            micro_batches_per_step: Some(16),
            levers: vec![setting(Lever::AutocastBf16), setting(Lever::ChunkedLoss)],
            made_for: MadeFor { batch: Some(32), own_accumulation: 2, ..MadeFor::default() },
            ..Plan::as_is()
        };
        let check = |framework: Framework, plan: &Plan, expected: &str| {
            let words = framework_settings(framework, plan);
            let words: Vec<String> = words.iter().map(|(name, value, _)| format!("{name}={value}")).collect();
            assert_eq!(words.join(", "), expected);
        };
        let accumulates = "gradient_accumulation_steps=16";
        check(
            Framework::Transformers,
            &plan,
            &format!("per_device_train_batch_size=4, {accumulates}, bf16=True"),
        );
        check(Framework::Lightning, &plan, "accumulate_grad_batches=16, precision=\"bf16-mixed\"");
        check(Framework::Accelerate, &plan, &format!("{accumulates}, mixed_precision=\"bf16\""));
        // Micro-batches of different sizes cannot be batches of a loader.
        plan.micro_batch = Some(5);
        check(Framework::Transformers, &plan, "bf16=True");
        for name in ["transformers", "lightning", "accelerate"] {
            assert!(Framework::from_name(name).is_some());
        }
        assert_eq!(Framework::from_name(""), None);
    }

    #[test]
    fn a_library_distributes_with_its_own_settings() {
        let made_for = |batch| MadeFor {
            batch: Some(batch),
            count: 4,
            nodes: Some(2),
            block_classes: vec!["Block".to_owned()],
            ..MadeFor::default()
        };
        let shard = Parallel { shard: 8, ..Parallel::default() };
        let plan = |parallel, micro_batch: Option<u64>| Plan {
            parallel: Some(parallel),
            micro_batch,
            micro_batches_per_step: micro_batch.map(|size| 8 / size),
            made_for: made_for(64),
            ..Plan::as_is()
        };
        let call = |framework, plan: &Plan| framework_call(framework, plan).unwrap();
        let sharded = plan(shard, None);
        let replicated = plan(Parallel { replicate: 8, ..Parallel::default() }, None);
        let kept = plan(Parallel { reshard_after_forward: false, ..shard }, Some(2));
        let (trainer, lightning, accelerate) =
            (Framework::Transformers, Framework::Lightning, Framework::Accelerate);
        for (framework, plan, expected) in [
            (trainer, &replicated, "`TrainingArguments(per_device_train_batch_size=8)`"),
            (
                trainer,
                &sharded,
                "`TrainingArguments(per_device_train_batch_size=8, fsdp=\"full_shard auto_wrap\", fsdp_config={\"version\": 2, \"reshard_after_forward\": True, \"transformer_layer_cls_to_wrap\": [\"Block\"]})`",
            ),
            (
                trainer,
                &kept,
                "`TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=4, accelerator_config={\"gradient_accumulation_kwargs\": {\"sync_each_batch\": True}}, fsdp=\"full_shard auto_wrap\", fsdp_config={\"version\": 2, \"reshard_after_forward\": False, \"transformer_layer_cls_to_wrap\": [\"Block\"]})`",
            ),
            (
                lightning,
                &replicated,
                "`Trainer(devices=4, num_nodes=2, strategy=\"ddp\")`, with a loader of batches of 8",
            ),
            (
                lightning,
                &kept,
                "`Trainer(accumulate_grad_batches=4, devices=4, num_nodes=2, strategy=FSDPStrategy(auto_wrap_policy={Block}, sharding_strategy=\"SHARD_GRAD_OP\"))`, with a loader of batches of 2",
            ),
            (
                accelerate,
                &replicated,
                "`Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))`",
            ),
            (
                accelerate,
                &kept,
                "`Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4, sync_each_batch=True), fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=False, auto_wrap_policy=\"transformer_based_wrap\", transformer_cls_names_to_wrap=[\"Block\"]), dataloader_config=DataLoaderConfiguration(split_batches=True))`",
            ),
        ] {
            assert_eq!(call(framework, plan), expected);
        }
        let variables = |framework, plan: &Plan| {
            let parallel = plan.parallel.unwrap();
            framework_environment(framework, &parallel, &plan.made_for.block_classes)
        };
        for framework in [trainer, accelerate] {
            let set = variables(framework, &kept);
            for (name, value) in [
                ("ACCELERATE_USE_FSDP", "true"),
                ("FSDP_VERSION", "2"),
                ("FSDP_RESHARD_AFTER_FORWARD", "false"),
                ("FSDP_TRANSFORMER_CLS_TO_WRAP", "Block"),
            ] {
                assert!(set.contains(&(name, value.to_owned())), "{name}: {set:?}");
            }
            assert_eq!(variables(framework, &replicated), []);
        }
        assert_eq!(variables(lightning, &sharded), []);
    }
}

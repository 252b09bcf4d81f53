//! Training libraries: plans as their settings.

use memfit_vocabulary::{Framework, Lever};

use crate::plan::Plan;

/// Keywords of a library's settings for a plan, with values and levers.
pub fn framework_settings(framework: Framework, plan: &Plan) -> Vec<(&'static str, String, Lever)> {
    let mut words = Vec::new();
    let pieces = plan.micro_batches_per_step.unwrap_or(1).max(plan.made_for.own_accumulation.max(1));
    let accumulation = match framework {
        Framework::Lightning => "accumulate_grad_batches",
        Framework::Transformers | Framework::Accelerate => "gradient_accumulation_steps",
    };
    let exact = plan.micro_batch.zip(plan.made_for.batch).filter(|(size, batch)| batch.is_multiple_of(*size));
    if let Some((size, _)) = exact {
        if framework == Framework::Transformers {
            words.push(("per_device_train_batch_size", size.to_string(), Lever::MicroBatch));
        }
        words.push((accumulation, pieces.to_string(), Lever::MicroBatch));
    }
    for setting in plan.levers.iter().filter(|setting| plan.moves(setting.lever)) {
        let keywords = setting.lever.declaration().keywords;
        if let Some(keyword) = keywords.iter().find(|keyword| keyword.framework == framework) {
            words.push((keyword.name, keyword.value.to_owned(), setting.lever));
        }
    }
    words
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
}

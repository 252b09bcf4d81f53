//! A plan as text, with comments that say what each part is for.

use std::fmt::Write as _;

use memfit_vocabulary::{Label, Lever};

use super::VERSION;
use crate::plan::{Expected, Plan};
use crate::setting::{Setting, Value};

impl Plan {
    /// The plan file's text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.head(&mut text);
        self.levers(&mut text);
        self.origin(&mut text);
        text
    }

    fn head(&self, text: &mut String) {
        text.push_str("# A plan of memfit: what to do so that this training fits.\n");
        text.push_str(
            "#   memfit run --plan FILE -- COMMAND     runs the script with it on a virtual card\n",
        );
        text.push_str("#   memfit.Step(..., plan=\"FILE\")         trains with it\n");
        let _ = write!(text, "version = {VERSION}\n\n");
        if let Some(micro_batch) = self.micro_batch {
            let _ =
                writeln!(text, "micro_batch = {micro_batch}  # samples in one forward and backward, at most");
        }
        if let Some(count) = self.micro_batches_per_step {
            let _ = writeln!(text, "micro_batches_per_step = {count}");
        }
        let _ =
            writeln!(text, "accumulate = {}  # the loader's batches in one optimizer step", self.accumulate);
    }

    fn levers(&self, text: &mut String) {
        for Setting { lever, value, label } in &self.levers {
            let _ = write!(
                text,
                "\n[[lever]]  # {}\nname = {}\nvalue = {}\nlabel = {}  # {}\n",
                what(*lever),
                quoted(lever.name()),
                literal(value),
                quoted(label.name()),
                meaning(*label),
            );
        }
    }

    fn origin(&self, text: &mut String) {
        let made_for = &self.made_for;
        text.push_str("\n[made_for]  # elsewhere it may not fit: memfit warns\n");
        let mut line = |key: &str, value: String| {
            let _ = writeln!(text, "{key} = {value}");
        };
        line("memfit", quoted(&made_for.memfit));
        if let Some(torch) = &made_for.torch {
            line("torch", quoted(torch));
        }
        line("gpu", quoted(&made_for.gpu));
        line("capacity", made_for.capacity.to_string());
        line("count", made_for.count.to_string());
        line("command", list(&made_for.command));
        if let Some(batch) = made_for.batch {
            line("batch", batch.to_string());
        }
        if made_for.own_accumulation > 1 {
            line("own_accumulation", made_for.own_accumulation.to_string());
        }
        if !made_for.batch_names.is_empty() {
            line("batch_names", list(&made_for.batch_names));
        }
        if !made_for.models.is_empty() {
            line("models", list(&made_for.models));
        }
        if made_for.inference {
            line("inference", "true".to_owned());
        }
        if let Some(script) = &made_for.script {
            line("script", quoted(script));
        }
        if let Some(sum) = &made_for.script_sha256 {
            line("script_sha256", quoted(sum));
        }
        if let Some(expected) = &self.expected {
            expectation(text, expected);
        }
    }
}

fn expectation(text: &mut String, expected: &Expected) {
    text.push_str("\n[expected]  # peaks in bytes, as the virtual card saw them\n");
    for (key, bytes) in [
        ("allocated", expected.allocated),
        ("reserved", expected.reserved),
        ("device", expected.device),
        ("device_upper", expected.device_upper),
    ] {
        let gib = bytes as f64 / (1_u64 << 30) as f64;
        let _ = writeln!(text, "{key} = {bytes}  # {gib:.2} GiB");
    }
    if let Some(milliseconds) = expected.step_ms {
        let _ = writeln!(text, "step_ms = {milliseconds:?}  # an estimate, of one optimizer step");
    }
}

/// What a lever does, for somebody who reads the file: the first words of its documentation, as it were.
fn what(lever: Lever) -> &'static str {
    match lever {
        Lever::Checkpointing => "these modules' activations are computed again in the backward",
        Lever::AutocastBf16 => "most operations in bf16",
        Lever::FusedOptimizer => "one kernel updates the parameters, without temporaries",
        Lever::ForeachOff => "parameters are updated one by one",
        Lever::ExpandableSegments => "segments that grow: less fragmentation",
        Lever::MicroBatch => "the batch in pieces, gradients added up",
        Lever::ChunkedLoss => "the loss over pieces of the logits",
        Lever::Sdpa => "attention without its matrix",
        Lever::EightBitOptimizer => "optimizer state in 8 bits",
        Lever::AutocastFp16 => "most operations in fp16, the loss scaled",
        Lever::Tf32 => "products of fp32 matrices in tf32",
        Lever::PureBf16 => "weights, gradients and optimizer state in bf16",
        Lever::ChannelsLast => "pictures with their channels last in memory",
        Lever::Compile => "kernels that torch.compile fuses",
        Lever::ActivationBudget => {
            "so many hundredths of what compiled graphs would keep for the backward are kept"
        }
        Lever::ActivationOffload => "these modules' activations wait for the backward in the host's memory",
        Lever::OptimizerInBackward => "each parameter is updated as soon as its gradient is there",
        Lever::Bf16OptimizerState => "optimizer state in bf16",
        Lever::HostOptimizerState => "optimizer state in the host's memory",
        Lever::Adafactor => "Adafactor in the optimizer's place",
        Lever::GradientAsBucketView => "gradients live in the buckets that are exchanged",
        _ => "see docs/plan.md",
    }
}

fn meaning(label: Label) -> &'static str {
    match label {
        Label::Exact => "the same mathematics",
        Label::Rounding => "the same mathematics, rounded in another order",
        Label::Precision => "the same training in fewer bits",
        Label::ChangesTraining => "another training",
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn list(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", texts.join(", "))
}

fn literal(value: &Value) -> String {
    match value {
        Value::Switch(on) => on.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Word(word) => quoted(word),
        Value::Names(names) => list(names),
    }
}

//! Serialisation of a plan as TOML with comments.

use std::fmt::Write as _;

use memfit_vocabulary::Value;

use super::VERSION;
use crate::plan::{Expected, Plan};
use crate::setting::Setting;

impl Plan {
    /// Text of the plan file.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.head(&mut text);
        self.parallel(&mut text);
        self.levers(&mut text);
        self.origin(&mut text);
        text
    }

    fn head(&self, text: &mut String) {
        text.push_str("# A memfit plan: the changes with which this training fits.\n");
        text.push_str(
            "#   memfit run --gpu NAME --plan FILE -- COMMAND     runs the script with it on a virtual GPU\n",
        );
        text.push_str(match self.made_for.framework {
            None => "#   memfit.Step(..., plan=\"FILE\")                    trains with it\n",
            Some(_) => "#   memfit launch FILE -- COMMAND                    says how to train with it\n",
        });
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

    fn parallel(&self, text: &mut String) {
        let Some(parallel) = &self.parallel else { return };
        let _ = write!(
            text,
            "\n[parallel]  # {} ranks, {}: `memfit launch FILE -- COMMAND` starts them\n",
            parallel.world(),
            parallel.engine()
        );
        for (name, degree) in parallel.degrees() {
            let _ = writeln!(text, "{name} = {degree}");
        }
        if let Some(schedule) = parallel.schedule {
            let _ = writeln!(text, "schedule = {}", quoted(schedule.name()));
        }
        let _ = writeln!(text, "reshard_after_forward = {}", parallel.reshard_after_forward);
        let _ = writeln!(text, "offload = {}", parallel.offload);
    }

    fn levers(&self, text: &mut String) {
        for Setting { lever, value, label } in &self.levers {
            let _ = write!(
                text,
                "\n[[lever]]  # {}\nname = {}\nvalue = {}\nlabel = {}  # {}\n",
                lever.declaration().brief,
                quoted(lever.name()),
                literal(value),
                quoted(label.name()),
                label.meaning(),
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
        if let Some(nodes) = made_for.nodes {
            line("nodes", nodes.to_string());
        }
        if !made_for.links.is_empty() {
            line("links", list(&made_for.links));
        }
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
        if let Some(framework) = made_for.framework {
            line("framework", quoted(framework.name()));
        }
        if !made_for.block_classes.is_empty() {
            line("block_classes", list(&made_for.block_classes));
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
    text.push_str("\n[expected]  # peaks in bytes, on the virtual GPU\n");
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

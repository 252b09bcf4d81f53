//! Redaction of names, for pages to be shared.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::lane::{Lane, MarkKind};
use crate::places::{Role, torch_path};

/// Replaces the names of files, functions, modules and announced ranges with numbers, and renumbers lines.
/// Equal names stay equal. PyTorch's own files keep their paths within PyTorch, and numbers in module names
/// stay.
pub fn redact(lane: &mut Lane) {
    let marks: Vec<u32> = lane
        .marks
        .iter()
        .filter_map(|mark| match mark.kind {
            MarkKind::Begin(text) | MarkKind::End(text) => Some(text),
            _ => None,
        })
        .collect();
    let mut names = Names::default();
    lane.places.rename(
        |role, text| names.name(role, text),
        |row| if marks.contains(&row) { Role::Mark } else { Role::Module },
    );
}

/// Assigns numbers in order of first use: unlike hashes, they cannot be checked against guesses.
#[derive(Default)]
struct Names {
    numbers: HashMap<(Role, String), usize>,
    counts: HashMap<Role, usize>,
}

impl Names {
    fn number(&mut self, role: Role, text: &str) -> usize {
        let count = self.counts.entry(role).or_default();
        *self.numbers.entry((role, text.to_owned())).or_insert_with(|| {
            *count += 1;
            *count
        })
    }

    fn name(&mut self, role: Role, text: &str) -> String {
        match role {
            Role::File => match torch_path(text) {
                Some(path) => path.to_owned(),
                None => format!("file {}", self.number(role, text)),
            },
            Role::TorchFunction => text.to_owned(),
            Role::Function => format!("function {}", self.number(role, text)),
            Role::Mark => format!("range {}", self.number(role, text)),
            Role::Module => {
                let part = |part: &str| {
                    let index = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
                    if index { part.to_owned() } else { format!("m{}", self.number(role, part)) }
                };
                text.split('.').map(part).collect::<Vec<_>>().join(".")
            }
        }
    }
}

/// Fields of an explanation that may stay if they hold numbers, verdicts or names of remedies.
const ALLOWED_FIELDS: [&str; 34] = [
    "schema",
    "cause",
    "evidence",
    "peak",
    "allocated",
    "reserved",
    "requested",
    "limit",
    "missing",
    "step",
    "phase",
    "fixes",
    "lever",
    "saves",
    "label",
    "card",
    "leaks",
    "category",
    "per_step",
    "bytes",
    "steps",
    "dies_at",
    "fragmentation",
    "unused",
    "largest_free",
    "free_blocks",
    "in_private_pools",
    "share",
    "considered",
    "enough",
    "device",
    "growth",
    "blocks",
    "interval",
];

/// Reduces an explanation to verdicts, names of remedies, labels and figures. Sentences may quote the script,
/// and lines and files belong to the user, so none are kept.
pub(crate) fn redact_explanation(explanation: &Value) -> Value {
    match explanation {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, value)| {
                ALLOWED_FIELDS.contains(&key.as_str()) && value.as_str().is_none_or(is_identifier)
            });
            let kept = kept.map(|(key, value)| (key.clone(), redact_explanation(value)));
            Value::Object(kept.collect::<Map<_, _>>())
        }
        Value::Array(values) => {
            Value::Array(values.iter().filter(|value| !value.is_string()).map(redact_explanation).collect())
        }
        other => other.clone(),
    }
}

/// Schema of explanations.
const EXPLAIN_SCHEMA: &str = "memfit.explain/1";

/// Returns `true` for verdicts and names of remedies: single lower-case words, some with a number, unlike
/// sentences and paths.
fn is_identifier(text: &str) -> bool {
    let of_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text == EXPLAIN_SCHEMA || text.bytes().all(of_word)
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::{Category, Cause, Label, Lever};

    use super::*;
    use crate::lane::{Mark, Piece};

    #[test]
    fn no_name_of_the_user_is_left_and_places_stay_distinct() {
        let mut lane = Lane::default();
        let torch = "/home/ada/.venv/lib/python3.11/site-packages/torch/nn/modules/linear.py";
        let places = &mut lane.places;
        let stacks = [
            places.stack([("forward", torch, 134), ("secret_attention", "/home/ada/thesis/net.py", 4711)]),
            places.stack([("forward", torch, 134), ("secret_attention", "/home/ada/thesis/net.py", 4712)]),
            places.stack([("train", "/home/ada/thesis/train.py", 9)]),
        ];
        let module = places.text("encoder.layers.5.secret_gate");
        let range = places.text("epoch of thesis");
        lane.marks.push(Mark { tick: 0, time: None, kind: MarkKind::Begin(range) });
        lane.pieces.push(Piece {
            address: 0,
            asked: 1,
            rounding: 0,
            born: 0,
            freed: 1,
            reusable: 1,
            stack: stacks[0],
            module,
            category: Category::Activations,
        });
        redact(&mut lane);
        let shown = format!("{:?} {:?}", lane.places, lane.marks);
        for secret in
            ["ada", "thesis", "secret", "4711", "4712", "encoder", "layers", "gate", "net.py", "train"]
        {
            assert!(!shown.contains(secret), "{secret} is in {shown}");
        }
        assert!(shown.contains("\"torch/nn/modules/linear.py\"") && shown.contains("134"), "{shown}");
        assert_eq!(lane.places.name(module), "m1.m2.5.m3");
        let lines: Vec<_> = stacks.iter().map(|stack| lane.places.line(*stack)).collect();
        assert_eq!(lines, [Some(("file 1", 1)), Some(("file 1", 2)), Some(("file 2", 1))]);
    }

    #[test]
    fn every_verdict_and_every_remedy_keeps_its_name() {
        let causes = Cause::ALL.iter().map(|cause| ("cause", cause.name()));
        let levers = Lever::ALL.iter().map(|lever| ("lever", lever.name()));
        let labels = Label::ALL.iter().map(|label| ("label", label.name()));
        for (key, name) in causes.chain(levers).chain(labels) {
            let fix = serde_json::json!({ key: name });
            assert_eq!(redact_explanation(&fix), fix);
        }
    }

    #[test]
    fn an_explanation_keeps_verdicts_and_figures() {
        let explanation = serde_json::json!({
            "schema": "memfit.explain/1", "cause": "leaking",
            "evidence": ["the list in /home/ada/net.py grows", {"what": "net.py:4", "bytes": 5}],
            "fixes": [{"lever": "without-the-leak", "saves": 7, "label": "exact", "how": "del net.py:4", "evidence": "replayed"}],
            "peak": {"allocated": 9, "modules": {"secret": 4}},
            "leaks": [{"line": {"file": "net.py", "line": 4711}, "module": "secret", "category": "activations", "per_step": 3}],
        });
        let kept = serde_json::json!({
            "schema": "memfit.explain/1", "cause": "leaking", "evidence": [{"bytes": 5}],
            "fixes": [{"lever": "without-the-leak", "saves": 7, "label": "exact", "evidence": "replayed"}],
            "peak": {"allocated": 9}, "leaks": [{"category": "activations", "per_step": 3}],
        });
        assert_eq!(redact_explanation(&explanation), kept);
    }
}

//! Validates the JSON of reports against the published schemas.

#![allow(clippy::unwrap_used, clippy::exit, reason = "a panic fails the test")]

mod support;

use memfit_report::wire::{CardsReport, ExplainReport, ReplayReport, RunReport};
use serde_json::Value;
use support::all;

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../docs/schema/memfit.run-1.json")).unwrap()
}

/// Violations of a schema. Only the parts of JSON Schema that memfit uses are supported; anything else is an
/// error.
fn violations(value: &Value, schema: &Value, root: &Value, path: &str, found: &mut Vec<String>) {
    let rules = schema.as_object().unwrap();
    for (rule, wanted) in rules {
        let holds = match rule.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" => true,
            "$ref" => {
                let target = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                violations(value, root.pointer(target).unwrap(), root, path, found);
                true
            }
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|name| is_a(value, name.as_str().unwrap())),
                name => is_a(value, name.as_str().unwrap()),
            },
            "minimum" => value.as_f64().is_none_or(|value| value >= wanted.as_f64().unwrap()),
            "anyOf" => wanted.as_array().unwrap().iter().any(|schema| {
                let mut inner = Vec::new();
                violations(value, schema, root, path, &mut inner);
                inner.is_empty()
            }),
            "prefixItems" => {
                for (index, (item, schema)) in array(value).iter().zip(array(wanted)).enumerate() {
                    violations(item, schema, root, &format!("{path}/{index}"), found);
                }
                true
            }
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= wanted.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= wanted.as_u64().unwrap()),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    violations(item, wanted, root, &format!("{path}/{index}"), found);
                }
                true
            }
            "properties" => {
                for (name, schema) in wanted.as_object().unwrap() {
                    if let Some(property) = value.get(name) {
                        violations(property, schema, root, &format!("{path}/{name}"), found);
                    }
                }
                true
            }
            "required" => value.as_object().is_none_or(|object| {
                wanted.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
            }),
            "additionalProperties" => {
                let known = rules.get("properties");
                for (name, value) in value.as_object().into_iter().flatten() {
                    if known.is_none_or(|known| known.get(name).is_none()) {
                        violations(value, wanted, root, &format!("{path}/{name}"), found);
                    }
                }
                true
            }
            other => panic!("the schema uses `{other}`, which this test does not know"),
        };
        if !holds {
            found.push(format!("{path}: {value} violates {rule}: {wanted}"));
        }
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn is_a(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is not a type of JSON"),
    }
}

fn check(value: &Value) -> Vec<String> {
    check_against(value, &schema())
}

fn check_against(value: &Value, schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    violations(value, schema, schema, "", &mut found);
    found
}

#[test]
fn every_report_matches_its_schema() {
    for report in all() {
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(check(&value), Vec::<String>::new());
    }
}

#[test]
fn every_explanation_is_as_promised() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/schema/memfit.explain-1.json")).unwrap();
    for report in support::explained::each() {
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(check_against(&value, &schema), Vec::<String>::new());
        assert_eq!(serde_json::from_value::<ExplainReport>(value.clone()).unwrap(), report);
        let mut broken = value;
        broken["peak"]["reserved"] = Value::from("21 GiB");
        assert!(!check_against(&broken, &schema).is_empty());
    }
}

#[test]
fn every_comparison_of_cards_is_as_promised() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/schema/memfit.cards-1.json")).unwrap();
    for report in support::compared::each() {
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(check_against(&value, &schema), Vec::<String>::new());
        assert_eq!(serde_json::from_value::<CardsReport>(value.clone()).unwrap(), report);
        let mut broken = value;
        broken["rows"][0]["verdict"] = Value::from("fits");
        assert!(!check_against(&broken, &schema).is_empty());
    }
}

#[test]
fn every_replay_report_matches_its_schema() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/schema/memfit.replay-1.json")).unwrap();
    for (name, report) in support::replayed::each() {
        let good = serde_json::to_value(&report).unwrap();
        assert_eq!(check_against(&good, &schema), Vec::<String>::new(), "{name}");
        assert_eq!(serde_json::from_value::<ReplayReport>(good.clone()).unwrap(), report);
        for (pointer, value) in [
            ("/schema", Value::from("memfit.replay/2")),
            ("/addresses/matching", Value::from(-1)),
            ("/peak/reserved", Value::from("21 GiB")),
            ("/under/torch", Value::Null),
            ("/oom", Value::from(false)),
            ("/recorded", Value::from(1)),
        ] {
            let mut broken = good.clone();
            *broken.pointer_mut(pointer).unwrap() = value;
            assert!(!check_against(&broken, &schema).is_empty(), "{name}: {pointer}");
        }
        for (field, _) in good.as_object().unwrap() {
            let mut broken = good.clone();
            broken.as_object_mut().unwrap().remove(field);
            assert!(!check_against(&broken, &schema).is_empty(), "{name} without {field}");
        }
    }
}

#[test]
fn incompatible_schema_changes_are_found() {
    let good = serde_json::to_value(&all()[0]).unwrap();
    let broken = |pointer: &str, value: Value| {
        let mut report = good.clone();
        *report.pointer_mut(pointer).unwrap() = value;
        report
    };
    for (pointer, value) in [
        ("/verdict", "maybe".into()),
        ("/schema", "memfit.run/2".into()),
        ("/peak/device", Value::from(-1)),
        ("/peak/device", "14 GiB".into()),
        ("/peak/device", Value::from(1.5)),
        ("/at_peak/by_category", Value::Object(serde_json::Map::new())),
        ("/ranks/0", Value::Null),
        ("/oom", "yes".into()),
    ] {
        assert!(!check(&broken(pointer, value.clone())).is_empty(), "{value} passes at {pointer}");
    }
    // A newer release may add fields.
    let mut more = good.clone();
    more["surprise"] = Value::from(1);
    assert_eq!(check(&more), Vec::<String>::new());
}

#[test]
fn a_report_is_read_back_as_it_was_written() {
    for report in all() {
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<RunReport>(&text).unwrap(), report);
    }
}

#[test]
fn categories_sum_to_what_is_reserved() {
    for report in all() {
        let Some(peak) = &report.at_peak else { continue };
        let value = serde_json::to_value(peak).unwrap();
        let sum: u64 =
            value["by_category"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(sum, peak.reserved);
    }
}

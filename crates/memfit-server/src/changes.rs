//! Changes from an editor: to a text, and to the cells of a notebook.

use std::collections::HashMap;
use std::sync::Arc;

use memfit_lint::Lines;
use serde_json::Value;

use crate::document::Item;
use crate::position::offset_at;

/// Parses a text document item of the protocol.
pub(crate) fn parse_item(item: &Value) -> Option<Item> {
    Some(Item {
        uri: item.get("uri")?.as_str()?.to_owned(),
        version: item.get("version").cloned().unwrap_or(Value::Null),
        text: item.get("text")?.as_str()?.into(),
    })
}

/// Applies changes to a text, each of a range or of the whole.
pub(crate) fn apply_text_changes(mut text: Arc<str>, changes: &Value) -> Arc<str> {
    for change in changes.as_array().into_iter().flatten() {
        let Some(new) = change.get("text").and_then(Value::as_str) else { continue };
        let Some(range) = change.get("range") else {
            text = new.into();
            continue;
        };
        let lines = Lines::new(&text);
        let start = offset_at(&range["start"], &text, &lines) as usize;
        let end = (offset_at(&range["end"], &text, &lines) as usize).max(start);
        let (Some(before), Some(after)) = (text.get(..start), text.get(end..)) else { continue };
        text = [before, new, after].concat().into();
    }
    text
}

/// Code cells of a notebook, from its list of cells and the texts sent with it.
pub(crate) fn cells(listed: &Value, texts: &Value) -> Vec<Item> {
    let texts: HashMap<String, Item> = texts
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(parse_item)
        .map(|text| (text.uri.clone(), text))
        .collect();
    let code = listed.as_array().into_iter().flatten().filter(|cell| is_code(cell));
    code.filter_map(|cell| texts.get(cell.get("document")?.as_str()?).cloned()).collect()
}

fn is_code(cell: &Value) -> bool {
    cell.get("kind").and_then(Value::as_u64) == Some(2)
}

/// Code cells of a notebook after a change: cells are inserted or removed, and texts change.
pub(crate) fn apply_cell_changes(mut cells: Vec<Item>, change: &Value) -> Vec<Item> {
    let Some(change) = change.get("cells") else { return cells };
    if let Some(structure) = change.get("structure") {
        let array = &structure["array"];
        let number = |key: &str| array.get(key).and_then(Value::as_u64).unwrap_or_default() as usize;
        let start = number("start").min(cells.len());
        let end = start.saturating_add(number("deleteCount")).min(cells.len());
        // A moved cell is removed and inserted again, and its text is not sent a second time.
        let known = cells.iter().cloned().chain(opened(structure));
        let known: HashMap<String, Item> = known.map(|text| (text.uri.clone(), text)).collect();
        let put = array.get("cells").and_then(Value::as_array).into_iter().flatten();
        let put: Vec<Item> = put
            .filter(|cell| is_code(cell))
            .filter_map(|cell| known.get(cell.get("document")?.as_str()?).cloned())
            .collect();
        cells.splice(start..end, put);
    }
    for changed in change.get("textContent").and_then(Value::as_array).into_iter().flatten() {
        let uri = changed.pointer("/document/uri").and_then(Value::as_str);
        if let Some(cell) = cells.iter_mut().find(|cell| Some(cell.uri.as_str()) == uri) {
            cell.text = apply_text_changes(cell.text.clone(), &changed["changes"]);
            cell.version = changed.pointer("/document/version").cloned().unwrap_or(Value::Null);
        }
    }
    cells
}

fn opened(structure: &Value) -> impl Iterator<Item = Item> + '_ {
    structure.get("didOpen").and_then(Value::as_array).into_iter().flatten().filter_map(parse_item)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_and_wholes_are_replaced() {
        let range = |a: (u32, u32), b: (u32, u32)| json!({"start": {"line": a.0, "character": a.1}, "end": {"line": b.0, "character": b.1}});
        let table = [
            (json!([{"text": "new"}]), "new"),
            // A position within a character is treated as before it.
            (json!([{"range": range((0, 1), (1, 1)), "text": "-"}]), "a-𝄞é\n"),
            (
                json!([{"range": range((1, 0), (1, 2)), "text": "e"}, {"range": range((0, 0), (0, 0)), "text": "#"}]),
                "#a\neé\n",
            ),
            (json!([{"range": range((9, 9), (0, 0)), "text": "!"}]), "a\n𝄞é\n!"),
            (json!([3, {"range": 4}]), "a\n𝄞é\n"),
        ];
        for (changes, after) in table {
            assert_eq!(&*apply_text_changes("a\n𝄞é\n".into(), &changes), after, "{changes}");
        }
    }

    #[test]
    fn cells_come_go_and_move() {
        let text = |uri: &str, text: &str| json!({"uri": uri, "version": 1, "text": text});
        let code = |uri: &str| json!({"kind": 2, "document": uri});
        let listed = json!([code("a"), {"kind": 1, "document": "m"}, code("b")]);
        let before = cells(&listed, &json!([text("a", "1"), text("b", "2"), text("m", "# hi")]));
        let after = |change: Value| -> Vec<String> {
            apply_cell_changes(before.clone(), &change)
                .iter()
                .map(|cell| format!("{}={}", cell.uri, cell.text))
                .collect()
        };
        assert_eq!(after(json!({})), ["a=1", "b=2"]);
        let moved = json!({"cells": {"structure": {"array": {"start": 0, "deleteCount": 2, "cells": [code("b"), code("a")]}}}});
        assert_eq!(after(moved), ["b=2", "a=1"]);
        let put = json!({"cells": {
            "structure": {"array": {"start": 1, "deleteCount": 1, "cells": [code("c")]}, "didOpen": [text("c", "3")]},
            "textContent": [{"document": {"uri": "a", "version": 2}, "changes": [{"text": "4"}]}],
        }});
        assert_eq!(after(put), ["a=4", "c=3"]);
        let nonsense = json!({"cells": {"structure": {"array": {"start": 9, "deleteCount": 99, "cells": [3]}}, "textContent": 7}});
        assert_eq!(after(nonsense), ["a=1", "b=2"]);
    }
}

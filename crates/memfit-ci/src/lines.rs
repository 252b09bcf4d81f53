//! Matches the lines of two commits: a line that moves because of an edit above it stays the same line.

use std::collections::BTreeMap;

use memfit_report::wire::{CiLine, CiModule};

use crate::measurement::{MeasuredLine, MeasuredModule};

/// Minimum similarity of two texts to count as versions of one line.
const MIN_SIMILARITY: f64 = 0.5;
/// Maximum lines and modules of a row.
const MAX_LISTED: usize = 20;

/// Changes of all lines, largest first. If only one side lists a line, its bytes on the other side are
/// unknown but at most that side's `floor`, below which lines are not listed; only the change beyond that
/// counts.
pub(crate) fn changed_lines(base: &[MeasuredLine], head: &[MeasuredLine], floor: u64) -> Vec<CiLine> {
    let mut changes: Vec<CiLine> = matched(base, head)
        .into_iter()
        .filter(|(before, now)| {
            before.is_some() && now.is_some() || now.or(*before).is_some_and(|line| line.bytes() > floor)
        })
        .filter_map(|(before, now)| change(before, now))
        .filter(|line| line.growth != 0)
        .collect();
    changes.sort_by_key(|line| (std::cmp::Reverse(line.growth.unsigned_abs()), line.file.clone(), line.line));
    changes.truncate(MAX_LISTED);
    changes
}

/// Changes of all modules, the largest first; `floor` as for lines.
pub(crate) fn changed_modules(base: &[MeasuredModule], head: &[MeasuredModule], floor: u64) -> Vec<CiModule> {
    let mut sides: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for module in base {
        sides.entry(&module.name).or_default().0 += module.bytes;
    }
    for module in head {
        sides.entry(&module.name).or_default().1 += module.bytes;
    }
    let mut changes: Vec<CiModule> = sides
        .into_iter()
        .filter(|(_, (before, now))| before != now && (*before > 0 && *now > 0 || before.max(now) > &floor))
        .map(|(name, (before, now))| CiModule {
            name: name.to_owned(),
            base: before,
            head: now,
            growth: now as i64 - before as i64,
        })
        .collect();
    changes.sort_by_key(|module| (std::cmp::Reverse(module.growth.unsigned_abs()), module.name.clone()));
    changes.truncate(MAX_LISTED);
    changes
}

type Pair<'lines> = (Option<&'lines MeasuredLine>, Option<&'lines MeasuredLine>);

/// Pairs lines: first those with equal text in the same function, in order; then those whose text was edited;
/// then those with equal text in another file or function.
fn matched<'lines>(base: &'lines [MeasuredLine], head: &'lines [MeasuredLine]) -> Vec<Pair<'lines>> {
    let mut before: Vec<&MeasuredLine> = base.iter().collect();
    let mut now: Vec<&MeasuredLine> = head.iter().collect();
    // Equal lines are paired in order of their position.
    before.sort_by_key(|line| (&line.file, line.line));
    now.sort_by_key(|line| (&line.file, line.line));
    let mut pairs = Vec::new();
    let function =
        |one: &MeasuredLine, other: &MeasuredLine| one.file == other.file && one.function == other.function;
    take(&mut before, &mut now, &mut pairs, |one, other| {
        f64::from(u8::from(function(one, other) && one.text == other.text))
    });
    take(&mut before, &mut now, &mut pairs, |one, other| {
        if function(one, other) { strsim::normalized_levenshtein(&one.text, &other.text) } else { 0.0 }
    });
    take(&mut before, &mut now, &mut pairs, |one, other| {
        f64::from(u8::from(!one.text.is_empty() && one.text == other.text))
    });
    pairs.extend(before.into_iter().map(|line| (Some(line), None)));
    pairs.extend(now.into_iter().map(|line| (None, Some(line))));
    pairs
}

/// Moves pairs out of both lists, most similar first.
fn take<'lines>(
    before: &mut Vec<&'lines MeasuredLine>,
    now: &mut Vec<&'lines MeasuredLine>,
    pairs: &mut Vec<Pair<'lines>>,
    similarity: impl Fn(&MeasuredLine, &MeasuredLine) -> f64,
) {
    let mut scores: Vec<(f64, usize, usize)> = Vec::new();
    for (first, one) in before.iter().enumerate() {
        for (second, other) in now.iter().enumerate() {
            let score = similarity(one, other);
            if score >= MIN_SIMILARITY {
                scores.push((score, first, second));
            }
        }
    }
    scores.sort_by(|one, other| other.0.total_cmp(&one.0).then((one.1, one.2).cmp(&(other.1, other.2))));
    let (mut used, mut taken) = (vec![false; before.len()], vec![false; now.len()]);
    for (_, first, second) in scores {
        if !used[first] && !taken[second] {
            (used[first], taken[second]) = (true, true);
            pairs.push((Some(before[first]), Some(now[second])));
        }
    }
    let mut keep = used.iter();
    before.retain(|_| !keep.next().copied().unwrap_or(false));
    let mut keep = taken.iter();
    now.retain(|_| !keep.next().copied().unwrap_or(false));
}

/// The change of a line; `None` if both sides are missing.
fn change(before: Option<&MeasuredLine>, now: Option<&MeasuredLine>) -> Option<CiLine> {
    let shown = now.or(before)?;
    let bytes = |line: Option<&MeasuredLine>| line.map_or(0, MeasuredLine::bytes);
    let (category, module) = most_changed(before, now);
    Some(CiLine {
        file: shown.file.clone(),
        line: shown.line,
        function: shown.function.clone(),
        text: Some(shown.text.clone()).filter(|text| !text.is_empty()),
        module: Some(module).filter(|module| !module.is_empty()),
        category,
        base: bytes(before),
        head: bytes(now),
        growth: bytes(now) as i64 - bytes(before) as i64,
    })
}

/// The category and the module whose bytes changed most.
fn most_changed(before: Option<&MeasuredLine>, now: Option<&MeasuredLine>) -> (String, String) {
    let mut changes: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for (side, sign) in [(before, -1), (now, 1)] {
        for (category, modules) in side.into_iter().flat_map(|line| &line.holds) {
            for (module, bytes) in modules {
                *changes.entry((category, module)).or_default() += sign * *bytes as i64;
            }
        }
    }
    let most =
        changes.into_iter().max_by_key(|(key, change)| (change.unsigned_abs(), std::cmp::Reverse(*key)));
    most.map(|((category, module), _)| (category.to_owned(), module.to_owned())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(file: &str, number: u32, text: &str, bytes: u64) -> MeasuredLine {
        let holds = BTreeMap::from([("activations".to_owned(), BTreeMap::from([(String::new(), bytes)]))]);
        MeasuredLine { file: file.into(), line: number, function: "main".into(), text: text.into(), holds }
    }

    fn summary(base: &[MeasuredLine], head: &[MeasuredLine]) -> Vec<String> {
        let one = |line: &CiLine| format!("{}:{} {:+}", line.file, line.line, line.growth);
        changed_lines(base, head, 0).iter().map(one).collect()
    }

    #[test]
    fn a_line_that_moved_is_the_same_line() {
        let base = [line("a.py", 10, "x = f()", 100), line("a.py", 20, "y = g()", 50)];
        let head = [
            line("a.py", 13, "x = f()", 100),
            line("a.py", 11, "new()", 300),
            line("a.py", 23, "y = g()", 50),
        ];
        assert_eq!(summary(&base, &head), ["a.py:11 +300"]);
        assert_eq!(summary(&head, &base), ["a.py:11 -300"]);
    }

    #[test]
    fn equal_lines_are_told_apart_by_their_order() {
        let base = [line("a.py", 1, "x = f()", 100), line("a.py", 2, "x = f()", 7)];
        let head = [line("a.py", 4, "x = f()", 107), line("a.py", 3, "x = f()", 100)];
        assert_eq!(summary(&base, &head), ["a.py:4 +100"]);
    }

    #[test]
    fn an_edited_line_is_the_same_line_and_an_unrelated_one_is_not() {
        let base = [line("a.py", 1, "x = torch.empty(100)", 100)];
        let head = [line("a.py", 1, "x = torch.empty(400)", 400)];
        assert_eq!(summary(&base, &head), ["a.py:1 +300"]);
        let other = [line("a.py", 1, "loss.backward()", 400)];
        assert_eq!(summary(&base, &other), ["a.py:1 +400", "a.py:1 -100"]);
    }

    #[test]
    fn a_renamed_file_keeps_its_lines() {
        let base = [line("old.py", 1, "x = f()", 100), line("old.py", 2, "", 5)];
        let head = [line("new.py", 1, "x = f()", 150), line("new.py", 2, "", 5)];
        assert_eq!(summary(&base, &head), ["new.py:1 +50", "new.py:2 +5", "old.py:2 -5"]);
    }

    #[test]
    fn the_module_that_changed_is_named() {
        let of = |parts: &[(&str, u64)]| MeasuredLine {
            holds: BTreeMap::from([(
                "parameters".to_owned(),
                parts.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect(),
            )]),
            ..line("a.py", 1, "model.cuda()", 0)
        };
        let found =
            changed_lines(&[of(&[("big", 900), ("head", 10)])], &[of(&[("big", 900), ("head", 40)])], 0);
        assert_eq!(found[0].module.as_deref(), Some("head"));
        assert_eq!((found[0].category.as_str(), found[0].growth), ("parameters", 30));
    }

    #[test]
    fn modules_are_compared_by_name() {
        let of = |name: &str, bytes| MeasuredModule { name: name.to_owned(), bytes };
        let found =
            changed_modules(&[of("a", 5), of("b", 9), of("c", 1)], &[of("a", 5), of("b", 2), of("d", 3)], 0);
        let summary: Vec<_> = found.iter().map(|module| (module.name.as_str(), module.growth)).collect();
        assert_eq!(summary, [("b", -7), ("d", 3), ("c", -1)]);
    }

    #[test]
    fn lines_that_one_side_may_have_left_out_are_no_change() {
        let base = [line("a.py", 1, "x = f()", 100), line("a.py", 2, "other", 30)];
        let head = [line("a.py", 1, "x = f()", 110)];
        assert_eq!(changed_lines(&base, &head, 30).len(), 1);
        assert_eq!(changed_lines(&base, &head, 29).len(), 2);
        let of = |name: &str, bytes| MeasuredModule { name: name.to_owned(), bytes };
        assert_eq!(changed_modules(&[of("a", 9)], &[of("b", 30)], 30).len(), 0);
        assert_eq!(changed_modules(&[of("a", 9), of("c", 2)], &[of("b", 31), of("c", 1)], 30).len(), 2);
    }
}

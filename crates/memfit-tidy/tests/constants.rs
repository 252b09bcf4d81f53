//! Checks that each constant of the time model states its source.

mod common;

/// Files of the time model. Constants of GPUs and links are in data files, which have a `source` each.
const FILES: &[&str] = &[
    "crates/memfit-kernels/src/cost/",
    "crates/memfit-kernels/src/cost.rs",
    "crates/memfit-kernels/src/families/table.rs",
    "crates/memfit-cuda-libraries/src/cost/",
    "crates/memfit-cuda/src/clock.rs",
    "crates/memfit-cuda/src/transfer.rs",
    "crates/memfit-channel/src/clock.rs",
];
/// First words of the line that states the source.
const ORIGINS: &[&str] = &["Source:", "Fitted:", "Definition:", "Unsourced:"];
/// Number of constants without a published source. If it falls, change it here.
const UNSOURCED: usize = 14;

/// Code before the unit tests.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

/// Lines of a comment, from the line before `number` upwards.
fn comment(lines: &[&str], number: usize) -> Vec<String> {
    lines[..number]
        .iter()
        .rev()
        .map(|line| line.trim_start())
        .take_while(|line| line.starts_with("///"))
        .map(|line| line.trim_start_matches('/').trim_start().to_owned())
        .collect()
}

/// Returns `true` for a number with a fraction, such as `0.85`, outside a comment.
fn has_fraction(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    let mut words = code.split(|letter: char| !(letter.is_ascii_digit() || letter == '.' || letter == '_'));
    words.any(|word| {
        let Some((whole, fraction)) = word.split_once('.') else { return false };
        let is_range = fraction.starts_with('.');
        !whole.is_empty() && !is_range && fraction.bytes().any(|digit| (b'1'..=b'9').contains(&digit))
    })
}

#[test]
fn a_constant_of_the_time_model_says_where_it_is_from() {
    let (mut silent, mut unsourced) = (Vec::new(), 0);
    for (file, text) in common::sources("crates", "rs") {
        let name = file.display().to_string();
        // Published times are not constants of the model.
        if name.ends_with("/measured.rs") {
            continue;
        }
        if !FILES.iter().any(|known| name.starts_with(known)) {
            continue;
        }
        let lines: Vec<&str> = code(&text).lines().collect();
        let mut number = 0;
        while number < lines.len() {
            let is_item = lines[number].contains("const ") && !lines[number].contains("const fn");
            let end = (number..lines.len()).find(|at| lines[*at].trim_end().ends_with(';'));
            let last = end.filter(|_| is_item).unwrap_or(number);
            let item = &lines[number..=last];
            let is_number = is_item && ["f64", "NANOSECONDS"].iter().any(|word| item[0].contains(word));
            if is_number || item.iter().any(|line| has_fraction(line)) {
                let said = if is_item { comment(&lines, number) } else { Vec::new() };
                match ORIGINS.iter().find(|origin| said.iter().any(|line| line.starts_with(**origin))) {
                    Some(&"Unsourced:") => unsourced += 1,
                    Some(_) => {}
                    None => silent.push(format!("{name}:{}: {}", number + 1, item[0].trim())),
                }
            }
            number = last + 1;
        }
    }
    assert!(silent.is_empty(), "constants that do not say where they are from:\n{}", silent.join("\n"));
    assert_eq!(unsourced, UNSOURCED, "constants without a source; state their number in this test");
}

#[test]
fn a_number_with_a_fraction_is_told_from_others() {
    for line in ["let x = 0.85;", "speeds.traffic(bytes, 0.6)", "[0.90, 1.0]", "1e-3 * 2.5"] {
        assert!(has_fraction(line), "{line}");
    }
    for line in ["let x = 2.0;", "// 0.85 of it", "x.0", "call(1_000.0)", "0..3"] {
        assert!(!has_fraction(line), "{line}");
    }
}

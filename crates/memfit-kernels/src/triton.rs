//! Finds the operands that a Triton kernel writes, from the intermediate text that its compiler keeps next to
//! the machine code.
//!
//! The names of such kernels are not signatures, and machine code does not show how a parameter is used. The
//! text does: each address that is stored to was derived from a parameter. If the path from one to the other
//! cannot be followed, the result is unknown.

use std::collections::HashMap;

/// Maximum parameters that are distinguished.
const MAX_PARAMS: usize = 64;
/// Maximum passes over the text until nothing changes: loops carry addresses into themselves.
const MAX_PASSES: usize = 8;

/// Parameters that an address may derive from, one bit each.
type Origins = u64;

/// Indices of a kernel's parameters through which it writes memory; `None` if the text does not show it.
pub(crate) fn written_params(text: &str, kernel: &str) -> Option<Vec<usize>> {
    let (params, body) = function(text, kernel)?;
    let mut flow = Flow::default();
    for (index, param) in split(params).into_iter().enumerate() {
        let (name, kind) = param.split_once(':')?;
        if kind.contains("tensordesc") || index >= MAX_PARAMS {
            return None;
        }
        if kind.trim_start().starts_with("!tt.ptr") {
            flow.values.insert(name.trim(), 1 << index);
        }
    }
    for _ in 0..MAX_PASSES {
        flow.changed = false;
        for line in body.lines().take_while(|line| !line.trim_start().starts_with("tt.func")) {
            flow.follow(without_location(line).trim())?;
        }
        flow.regions.clear();
        if !flow.changed {
            return Some((0..MAX_PARAMS).filter(|index| flow.written >> index & 1 == 1).collect());
        }
    }
    None
}

/// Parameters and body of a kernel, as in the text; `None` if it does not contain the kernel.
pub(crate) fn function_parts<'t>(text: &'t str, kernel: &str) -> Option<(Vec<&'t str>, &'t str)> {
    let (params, body) = function(text, kernel)?;
    let params = split(params).into_iter().map(str::trim).collect();
    Some((params, body.split("tt.func").next().unwrap_or(body)))
}

/// Finds the parameters and the body of a function.
fn function<'t>(text: &'t str, kernel: &str) -> Option<(&'t str, &'t str)> {
    let start = text.match_indices(kernel).find(|(at, _)| {
        let (before, after) = (&text[..*at], &text[at + kernel.len()..]);
        before.ends_with("tt.func public @") && after.starts_with('(')
    })?;
    let inside = &text[start.0 + kernel.len() + 1..];
    let end = closing(inside)?;
    Some((&inside[..end], &inside[end + 1..]))
}

/// Position of the parenthesis that closes the one opened before the text.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (1_usize, false);
    for (at, character) in text.char_indices() {
        match character {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Splits at commas outside brackets and quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start) = (0_usize, false, 0);
    let mut parts = Vec::new();
    for (at, character) in text.char_indices() {
        match character {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '<' | '{' | '[' => depth += 1,
            ')' | '>' | '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Strips the source location at the end of a line.
fn without_location(line: &str) -> &str {
    line.find(" loc(").map_or(line, |at| &line[..at])
}

/// Names of the values in a text, without the result number of those with several results.
fn values(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('%').map(|(start, _)| {
        let rest = &text[start + 1..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_$.-".contains(c)));
        &text[start..start + 1 + end.unwrap_or(rest.len())]
    })
}

/// Surroundings of a line: the values that a loop carries, and the result name of the loop or branch.
#[derive(Clone, Default)]
struct Region<'t> {
    handed_on: Vec<&'t str>,
    result: Option<&'t str>,
}

/// Origins of a function's values.
#[derive(Default)]
struct Flow<'t> {
    /// Origin of each address.
    values: HashMap<&'t str, Origins>,
    written: Origins,
    changed: bool,
    regions: Vec<Region<'t>>,
}

impl<'t> Flow<'t> {
    fn origins(&self, value: &str) -> Origins {
        self.values.get(value).copied().unwrap_or(0)
    }

    fn add(&mut self, value: &'t str, origins: Origins) {
        if self.origins(value) | origins != self.origins(value) {
            *self.values.entry(value).or_default() |= origins;
            self.changed = true;
        }
    }

    fn write(&mut self, origins: Origins) {
        self.changed |= self.written | origins != self.written;
        self.written |= origins;
    }

    /// Follows addresses through a line; `None` if they are lost.
    fn follow(&mut self, line: &'t str) -> Option<()> {
        if line.starts_with("^bb") {
            // Addresses among the parameters of a basic block have unknown origins.
            return if line.contains("!tt.ptr") { None } else { Some(()) };
        }
        let left = if line.starts_with('}') { self.regions.pop() } else { None };
        let (result, operation) = match line.split_once(" = ") {
            Some((result, operation)) if line.starts_with('%') => (values(result).next(), operation),
            _ => (None, line),
        };
        let name = operation.trim_start_matches('"');
        let name = &name[..name.find([' ', '"', '(']).unwrap_or(name.len())];
        self.carry_out(name, operation, result)?;
        if line.ends_with('{') {
            let region = match (left, name) {
                // `} else {`
                (Some(region), _) => region,
                (None, "scf.for" | "scf.while" | "scf.if") => {
                    Region { handed_on: self.enter(operation), result }
                }
                _ => Region::default(),
            };
            self.regions.push(region);
        }
        Some(())
    }

    /// Applies an operation to the origins of addresses.
    fn carry_out(&mut self, name: &str, operation: &'t str, result: Option<&'t str>) -> Option<()> {
        let operands = || values(operation);
        let all = operands().fold(0, |all, value| all | self.origins(value));
        let (dialect, what) = name.split_once('.').unwrap_or(("", name));
        match (dialect, what) {
            (
                "tt",
                "store" | "descriptor_store" | "descriptor_scatter" | "descriptor_reduce" | "atomic_rmw"
                | "atomic_cas",
            ) => {
                let address = operands().next().map_or(0, |address| self.origins(address));
                if address == 0 {
                    return None;
                }
                self.write(address);
            }
            ("tt", "load" | "descriptor_load" | "descriptor_gather") => {}
            ("tt", "call" | "extern_elementwise" | "elementwise_inline_asm") => self.write(all),
            ("tt" | "arith", _) => result.into_iter().for_each(|result| self.add(result, all)),
            ("scf", "yield") => {
                let Region { handed_on, result } = self.regions.last().cloned().unwrap_or_default();
                for (index, value) in operands().enumerate() {
                    let origins = self.origins(value);
                    handed_on.get(index).into_iter().chain(&result).for_each(|to| self.add(to, origins));
                }
            }
            ("scf" | "math" | "", _) => {}
            // Any other operation with an address may write there.
            _ => self.write(all),
        }
        Some(())
    }

    /// Initialises the values that a loop carries with those passed to it.
    fn enter(&mut self, operation: &'t str) -> Vec<&'t str> {
        let mut handed_on = Vec::new();
        for handed in split(operation.split_once("iter_args(").map_or("", |(_, rest)| rest)) {
            if let Some((inner, outer)) = handed.split_once(" = ") {
                let origins = values(outer).next().map_or(0, |outer| self.origins(outer));
                self.add(inner.trim(), origins);
                handed_on.push(inner.trim());
            }
        }
        handed_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(body: &str) -> String {
        format!(
            "module {{\n  tt.func public @work(%in: !tt.ptr<f32> {{tt.divisibility = 16 : i32}} loc(\"in, (\"(#loc)), \
             %n: i32 loc(\"n\"(#loc)), %out: !tt.ptr<i64>) attributes {{noinline = false}} {{\n{body}\n    tt.return\n  }}\n}}\n"
        )
    }

    fn check(body: &str, expected: Option<&[usize]>) {
        assert_eq!(written_params(&kernel(body), "work").as_deref(), expected, "{body}");
    }

    #[test]
    fn stores_are_followed_to_the_parameter_that_their_address_was_made_of() {
        check(
            "    %0 = tt.splat %out : !tt.ptr<i64> -> tensor<16x!tt.ptr<i64>> loc(#loc4)\n    \
             %1 = tt.addptr %0, %i : tensor<16x!tt.ptr<i64>>, tensor<16xi32> loc(#loc4)\n    \
             %2 = tt.splat %in : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>\n    \
             %3 = tt.load %2, %1 : tensor<16x!tt.ptr<f32>>\n    \
             tt.store %1, %3 : tensor<16x!tt.ptr<i64>> loc(#loc6)",
            Some(&[2]),
        );
        check(
            "    %0 = tt.atomic_rmw fadd, acq_rel, gpu, %in, %v, %m : (!tt.ptr<f32>, f32, i1) -> f32",
            Some(&[0]),
        );
        check("    %0 = tt.load %in : !tt.ptr<f32>", Some(&[]));
    }

    #[test]
    fn addresses_go_around_loops_and_through_branches() {
        check(
            "    %0:2 = scf.for %i = %a to %b step %c iter_args(%p = %in, %q = %in) -> (!tt.ptr<f32>, !tt.ptr<f32>)  : i32 {\n      \
             tt.store %q, %v : !tt.ptr<f32>\n      \
             %3 = tt.addptr %out, %n : !tt.ptr<i64>, i32\n      \
             scf.yield %p, %3 : !tt.ptr<f32>, !tt.ptr<i64>\n    \
             } loc(#loc5)",
            Some(&[0, 2]),
        );
        check(
            "    %0 = scf.if %c -> (!tt.ptr<i64>) {\n      scf.yield %out : !tt.ptr<i64>\n    } else {\n      \
             scf.yield %out : !tt.ptr<i64>\n    }\n    tt.store %0, %v : !tt.ptr<i64>",
            Some(&[2]),
        );
        check(
            "    %0 = \"tt.reduce\"(%v) <{axis = 0 : i32}> ({\n    ^bb0(%x: f32, %y: f32):\n      \
             tt.reduce.return %x : f32\n    }) : (tensor<256xf32>) -> f32\n    tt.store %out, %0 : !tt.ptr<i64>",
            Some(&[2]),
        );
    }

    #[test]
    fn stores_that_cannot_be_followed_are_unknown() {
        check("    %0 = tt.int_to_ptr %n : i64 -> !tt.ptr<f32>\n    tt.store %0, %v : !tt.ptr<f32>", None);
        check("  ^bb1(%p: !tt.ptr<f32>):\n    tt.store %p, %v : !tt.ptr<f32>", None);
        check("    tt.call @helper(%in, %n) : (!tt.ptr<f32>, i32) -> ()", Some(&[0]));
        check("    ttng.async_copy_out %out, %v : !tt.ptr<i64>", Some(&[2]));
        assert_eq!(written_params(&kernel(""), "other"), None);
        let described = kernel("").replace("%n: i32", "%n: !tt.tensordesc<tensor<8x8xf32>>");
        assert_eq!(written_params(&described, "work"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_fall(text in "(tt.func public @k\\(|%[a-c]|!tt.ptr|[(){}<>,:=\" ]|scf.for|iter_args\\(|tt.store|scf.yield|\n){0,40}") {
            let _ = written_params(&text, "k");
            let _ = written_params(&format!("tt.func public @k({text}"), "k");
        }
    }
}

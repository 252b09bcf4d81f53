//! Solves block choices given as JSON, one per line, and measures the time, for comparison with other
//! solvers.
//!
//! Input: `{"blocks": [[keep, residue, recompute_ns], …], "tail": bytes, "budget": bytes}`. Output:
//! `{"extra_ns", "peak", "recomputed", "solve_ns"}`, or `null` if nothing fits.

use std::io::{BufRead as _, Write as _};
use std::time::Instant;

use memfit_plan::{Block, Fate, choose};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let problem: Value = serde_json::from_str(&line?)?;
        let number = |value: &Value| value.as_u64().ok_or("a number was expected");
        let mut blocks = Vec::new();
        for block in problem["blocks"].as_array().ok_or("`blocks` is a list")? {
            blocks.push(Block {
                keep: number(&block[0])?,
                residue: number(&block[1])?,
                recompute_ns: number(&block[2])?,
                offload: None,
            });
        }
        let (tail, budget) = (number(&problem["tail"])?, number(&problem["budget"])?);
        let begin = Instant::now();
        let choice = choose(&blocks, tail, budget);
        let solve_ns = begin.elapsed().as_nanos() as u64;
        let answer = choice.map(|choice| {
            json!({
                "extra_ns": choice.extra_ns,
                "peak": choice.peak,
                "recomputed": choice.fates.iter().filter(|fate| **fate == Fate::Recompute).count(),
                "solve_ns": solve_ns,
            })
        });
        writeln!(out, "{}", answer.unwrap_or(Value::Null))?;
    }
    Ok(())
}

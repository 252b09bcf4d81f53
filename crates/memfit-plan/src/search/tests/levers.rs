//! Levers with fixed effects: on which variants of the script each is tried.

use super::*;

/// Training whose levers change memory and time by fixed amounts.
struct Effects {
    /// Bytes and milliseconds that a lever adds.
    of: Vec<(Lever, i64, f64)>,
}

const BYTES: u64 = 1_000_000;
const STEP_MS: f64 = 1_000.0;

impl Trial for Effects {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        let moved = || self.of.iter().filter(|(lever, ..)| candidate.value(*lever).is_some());
        let bytes = moved().fold(BYTES, |sum, (_, bytes, _)| sum.saturating_add_signed(*bytes));
        let step_ms = moved().fold(STEP_MS, |sum, (.., ms)| sum + ms);
        Ok(Some(Outcome {
            fits: room == Room::Boundless,
            peak: Expected { device_upper: bytes, step_ms: Some(step_ms), ..Expected::default() },
            training: Some(Training {
                batch: 1,
                own_accumulation: 1,
                optimizes: true,
                explicit_attention: true,
                convolves: true,
                classes: 1 << 20,
                fusible: true,
                ..Training::default()
            }),
            ..Outcome::default()
        }))
    }
}

/// Variants that a lever was tried on, by their levers.
fn variants_of(answer: &Answer, lever: Lever) -> Vec<String> {
    let tried = answer.tried.iter().filter(|tried| !tried.on_card && tried.candidate.value(lever).is_some());
    tried.map(|tried| tried.candidate.describe()).collect()
}

fn answer(of: &[(Lever, i64, f64)]) -> Answer {
    let limits = Limits { has_tf32: true, ..limits(1, Label::Precision) };
    search(&mut Effects { of: of.to_vec() }, &limits).unwrap().unwrap()
}

#[test]
fn a_lever_without_effect_is_tried_on_one_variant_of_each_precision() {
    let split = (Lever::Sdpa, -100_000, 100.0);
    for (bytes, ms, times) in [(0, 0.0, 1), (0, 30.0, 2), (-700, 0.0, 2), (0, 0.4, 1), (0, 0.7, 2)] {
        let answer = answer(&[split, (Lever::ChannelsLast, bytes, ms)]);
        let variants = variants_of(&answer, Lever::ChannelsLast);
        assert_eq!(variants.len(), times, "{bytes} bytes, {ms} ms: {variants:?}");
    }
}

#[test]
fn of_many_variants_the_fastest_and_the_smallest_are_followed() {
    // Each lever saves memory and costs time, so eight variants are on the Pareto front.
    let split = |lever, bytes: i64| (lever, -bytes, bytes as f64 / 1_000.0);
    let answer = answer(&[
        split(Lever::Sdpa, 100_000),
        split(Lever::Tf32, 200_000),
        split(Lever::ChannelsLast, 400_000),
        (Lever::ChunkedLoss, 0, 300.0),
    ]);
    assert_eq!(
        variants_of(&answer, Lever::ChunkedLoss),
        [
            "chunked-loss",
            "sdpa, chunked-loss",
            "tf32, chunked-loss",
            "sdpa, tf32, channels-last, chunked-loss"
        ]
    );
}

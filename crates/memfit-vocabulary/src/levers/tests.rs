//! Tests of all levers.

use super::*;
use crate::{Held, Search, Sense, Situation, Training, Turn, Value};

#[test]
fn exclusion_goes_both_ways_and_none_excludes_itself() {
    for one in Lever::ALL {
        assert_eq!(one.excludes(*one), None);
        for two in Lever::ALL {
            assert_eq!(one.excludes(*two), two.excludes(*one));
        }
    }
    assert!(Lever::FusedOptimizer.excludes(Lever::ForeachOff).is_some());
    assert_eq!(Lever::Checkpointing.excludes(Lever::MicroBatch), None);
}

#[test]
fn levers_that_harm_more_than_rounding_change_the_training() {
    for lever in Lever::ALL {
        assert!(lever.harm() == Harm::Digits || lever.label() == Label::ChangesTraining, "{lever}");
    }
    assert!(Harm::ALL.is_sorted());
    assert!(Lever::EightBitOptimizer.harm() < Lever::Adafactor.harm());
    assert!(Lever::Lora.harm() < Lever::ResizeBeforeUpload.harm());
}

#[test]
fn conflicts_are_named() {
    assert_eq!(Lever::conflict(&[Lever::Checkpointing, Lever::AutocastBf16, Lever::MicroBatch]), None);
    for (chosen, text) in [
        (vec![Lever::QuantizedBase], "`quantized-base` needs `lora`"),
        (vec![Lever::Tf32, Lever::Tf32], "`tf32` is named twice"),
        (
            vec![Lever::MicroBatch, Lever::Sdpa, Lever::OptimizerInBackward],
            "`micro-batch` and `optimizer-in-backward` cannot be combined: each gradient is freed \
             before the next micro-batch's could be added",
        ),
    ] {
        assert_eq!(Lever::conflict(&chosen).as_deref(), Some(text));
    }
}

#[test]
fn names_lead_back() {
    for lever in Lever::ALL {
        assert_eq!(Lever::from_name(lever.name()), Some(*lever));
    }
    assert_eq!(Lever::from_name("no-such-lever"), None);
}

#[test]
fn names_are_distinct_and_of_words() {
    for (index, lever) in Lever::ALL.iter().enumerate() {
        assert!(Lever::ALL[..index].iter().all(|other| other.name() != lever.name()), "{lever}");
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(!lever.name().is_empty() && lever.name().bytes().all(plain), "{lever}");
    }
}

#[test]
fn a_pair_is_stated_once() {
    for one in Lever::ALL {
        for (other, _) in one.declaration().excludes {
            let again = other.declaration().excludes.iter().any(|(lever, _)| lever == one);
            assert!(!again, "`{one}` and `{other}` both say why they exclude each other");
        }
    }
}

#[test]
fn applied_levers_have_a_description() {
    for lever in Lever::ALL {
        let declared = lever.declaration();
        assert_eq!(declared.stage == Stage::ByHand, declared.docs.effect.is_empty(), "{lever}");
        assert_eq!(declared.stage == Stage::ByHand, declared.brief.is_empty(), "{lever}");
        let nothing = Moved { value: &Value::default(), label: lever.label(), passes: 1 };
        assert!(!lever.sentence(nothing).is_empty(), "{lever}");
    }
}

#[test]
fn a_search_has_an_order_and_does_not_contradict_itself() {
    let searched = || Lever::ALL.iter().filter_map(|lever| Some((*lever, lever.declaration().search?)));
    for (lever, search) in searched() {
        assert_ne!(lever.stage(), Stage::ByHand, "{lever}");
        assert!(!search.instead_of.contains(&lever), "{lever}");
        let same = |other: &(Lever, Search)| other.0 != lever && other.1.place == search.place;
        assert!(!searched().any(|other| same(&other)), "{lever} has the place of another");
        for (other, _) in search.with {
            assert_eq!(lever.excludes(*other), None, "{lever}");
        }
    }
    let turns: Vec<(u16, Turn)> = searched().map(|(_, search)| (search.place, search.turn)).collect();
    let last = turns.iter().filter(|(_, turn)| *turn == Turn::Always).map(|(place, _)| *place).max();
    assert!(turns.iter().all(|(place, turn)| *turn == Turn::Always || Some(*place) > last));
}

#[test]
fn nothing_is_tried_on_what_is_not_there() {
    let training = Training::default();
    let situation = Situation {
        budget: 1 << 30,
        has_bf16: true,
        has_tf32: true,
        compiles: true,
        ..Situation::new(&training)
    };
    for lever in Lever::ALL {
        let Some(search) = lever.declaration().search else { continue };
        let sense = (search.sense)(&situation);
        let of_numbers = matches!(lever, Lever::AutocastBf16 | Lever::Tf32);
        assert_eq!(matches!(sense, Sense::Try(_)), of_numbers, "{lever}: {sense:?}");
    }
}

#[test]
fn savings_of_nothing_are_zero() {
    for lever in Lever::ALL {
        if let Some(saves) = lever.declaration().saves {
            assert_eq!(saves(&Held::default()), 0, "{lever}");
        }
    }
}

#[test]
fn json_is_the_name() {
    let read = |text: &str| {
        let deserializer = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text);
        Lever::deserialize(deserializer)
    };
    assert_eq!(read("channels-last"), Ok(Lever::ChannelsLast));
    assert!(read("time-travel").is_err());
}

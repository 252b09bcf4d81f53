//! The rules of a verdict, and the hints that come with them.

use super::*;

const GIB: u64 = 1 << 30;

fn plain(ended: Ended) -> Evidence {
    Evidence {
        ended,
        steps_asked: 3,
        steps_done: 3,
        more_time_helps: true,
        oom: None,
        exception: false,
        survived: false,
        used_gpu: true,
        watched: true,
        crashed_at_end: false,
        sizes: SizesRead::default(),
        chosen: false,
        refused: None,
        capacity: 24 * GIB,
        device_upper: 12 * GIB,
        unmet: 0,
        repeated: None,
        stepless: false,
        held: false,
        tested: Tested::default(),
    }
}

fn check(evidence: &Evidence, verdict: Verdict, kind: Option<&str>) {
    let (found, problem) = judge(evidence);
    assert_eq!((found, problem.as_ref().map(|problem| problem.kind.name())), (verdict, kind), "{evidence:?}");
}

#[test]
fn an_option_is_advised_only_where_it_can_change_the_answer() {
    let timed_out = |steps_done| Evidence { steps_done, ..plain(Ended::TimedOut) };
    let unfinished = |more_time_helps| Evidence {
        more_time_helps,
        tested: Tested { numbers: Numbers::Unfinished, ..Tested::default() },
        ..plain(Ended::Complete)
    };
    for (evidence, option, advised) in [
        // Without a single step, fewer steps end no earlier.
        (timed_out(0), "--steps", false),
        (timed_out(1), "--steps", true),
        (timed_out(0), "--timeout", true),
        // A repeated run has a time limit of its own.
        (unfinished(true), "--timeout", true),
        (unfinished(false), "--timeout", false),
        (unfinished(false), "--sizes", true),
    ] {
        let hint = judge(&evidence).1.and_then(|problem| problem.hint).unwrap();
        assert_eq!(hint.contains(option), advised, "{option}: {hint}");
    }
}

const UNCAUGHT: Option<Oom> = Some(Oom { uncaught: true, steps_after: 0 });
const CAUGHT: Option<Oom> = Some(Oom { uncaught: false, steps_after: 0 });
const RECOVERED: Option<Oom> = Some(Oom { uncaught: false, steps_after: 3 });

#[test]
fn how_it_ended_decides() {
    use Verdict::{Error, Fits};
    for (ended, verdict, kind) in [
        (Ended::Complete, Fits, None),
        (Ended::Stalled, Fits, None),
        (Ended::Exited(0), Fits, None),
        (Ended::Exited(1), Error, Some("exit")),
        (Ended::Signalled(libc::SIGSEGV), Error, Some("signal")),
        (Ended::Interrupted, Error, Some("interrupted")),
        (Ended::TimedOut, Error, Some("timeout")),
    ] {
        check(&plain(ended), verdict, kind);
    }
    check(&Evidence { exception: true, ..plain(Ended::Exited(1)) }, Error, Some("exception"));
    check(&Evidence { exception: true, ..plain(Ended::Stalled) }, Error, Some("exception"));
    let crashed = plain(Ended::Signalled(libc::SIGABRT));
    check(&Evidence { crashed_at_end: true, ..crashed.clone() }, Fits, None);
    check(&Evidence { exception: true, ..crashed }, Error, Some("exception"));
    let survived = Evidence { exception: true, survived: true, ..plain(Ended::Exited(0)) };
    check(&survived, Verdict::Unknown, Some("exception"));
    check(&Evidence { used_gpu: false, ..survived }, Error, Some("exception"));
    check(&Evidence { used_gpu: false, ..plain(Ended::Exited(0)) }, Error, Some("no-gpu-use"));
    check(&Evidence { used_gpu: false, ..plain(Ended::Exited(3)) }, Error, Some("exit"));
    let unwatched = Evidence { used_gpu: false, watched: false, ..plain(Ended::Exited(0)) };
    check(&unwatched, Error, Some("not-watched"));
}

#[test]
fn an_out_of_memory_error_is_bad_news_unless_the_steps_came_after_it() {
    use Verdict::{Error, Fits, Oom};
    for (oom, ended, steps_asked, verdict, kind) in [
        (UNCAUGHT, Ended::Exited(1), 3, Oom, None),
        (UNCAUGHT, Ended::Signalled(libc::SIGABRT), 3, Oom, None),
        (UNCAUGHT, Ended::TimedOut, 3, Oom, None),
        (CAUGHT, Ended::Exited(0), 3, Oom, None),
        (CAUGHT, Ended::Exited(1), 3, Oom, None),
        (CAUGHT, Ended::TimedOut, 3, Error, Some("timeout")),
        (RECOVERED, Ended::Complete, 3, Fits, None),
        (RECOVERED, Ended::Exited(0), 3, Oom, None),
        (RECOVERED, Ended::Exited(0), 0, Fits, None),
        (RECOVERED, Ended::Exited(1), 0, Oom, None),
    ] {
        check(&Evidence { steps_asked, oom, ..plain(ended) }, verdict, kind);
    }
}

#[test]
fn doubt_counts_only_where_it_could_turn_the_verdict() {
    use Verdict::{Fits, Oom, Unknown};
    let tight = 24 * GIB - GIB;
    let none = SizesRead::default();
    let bounded = SizesRead { bounded: true, ..none };
    let unbounded = SizesRead { unbounded: true, ..none };
    for (sizes, chosen, device_upper, verdict, kind) in [
        (bounded, false, 12 * GIB, Fits, None),
        (bounded, false, tight, Unknown, Some("size-read-back")),
        (bounded, true, tight, Fits, None),
        (unbounded, false, GIB, Unknown, Some("size-unbounded")),
        (unbounded, true, GIB, Fits, None),
        (none, false, tight, Fits, None),
    ] {
        check(&Evidence { sizes, chosen, device_upper, ..plain(Ended::Complete) }, verdict, kind);
    }
    for (numbers, chosen, verdict, kind) in [
        (Numbers::Untried, false, Fits, None),
        (Numbers::Harmless, false, Fits, None),
        (Numbers::Decisive, false, Unknown, Some("number-read-back")),
        (Numbers::Fatal, false, Unknown, Some("number-read-back")),
        (Numbers::Unfinished, false, Unknown, Some("number-read-back")),
        (Numbers::Unfinished, true, Fits, None),
        (Numbers::Decisive, true, Fits, None),
        (Numbers::NeedsMore(GIB), false, Fits, None),
        (Numbers::NeedsMore(1000 * GIB), false, Unknown, Some("number-read-back")),
    ] {
        let tested = Tested { numbers, ..Tested::default() };
        check(&Evidence { chosen, tested, ..plain(Ended::Complete) }, verdict, kind);
    }
    for (refused, device_upper, verdict, kind) in [
        ("cudaGraphicsMapResources", tight, Unknown, Some("unmodelled-call")),
        ("cudaGraphicsMapResources", GIB, Fits, None),
    ] {
        let refused = Some(refused.to_owned());
        check(&Evidence { refused, device_upper, ..plain(Ended::Complete) }, verdict, kind);
    }
    for (lower, chosen, out_of_memory, tight_fit) in [
        (OtherSizes::Untried, false, Unknown, Unknown),
        (OtherSizes::Decisive, false, Unknown, Unknown),
        (OtherSizes::OutOfMemory, false, Oom, Unknown),
        (OtherSizes::Inert, false, Oom, Fits),
        (OtherSizes::Untried, true, Oom, Fits),
    ] {
        let tested = Tested { sizes: lower, ..Tested::default() };
        let evidence = Evidence { sizes: bounded, chosen, tested, ..plain(Ended::Complete) };
        let failed = Evidence { oom: UNCAUGHT, ended: Ended::Exited(1), ..evidence.clone() };
        let fitted = Evidence { device_upper: tight, ..evidence };
        for (evidence, verdict) in [(failed, out_of_memory), (fitted, tight_fit)] {
            check(&evidence, verdict, (verdict == Unknown).then_some("size-read-back"));
        }
    }
}

#[test]
fn an_out_of_memory_error_that_other_values_avoid_is_no_answer() {
    use Verdict::{Oom, Unknown};
    for (numbers, chosen, verdict) in [
        (Numbers::Untried, false, Oom),
        (Numbers::Harmless, false, Oom),
        (Numbers::Decisive, false, Unknown),
        (Numbers::Decisive, true, Oom),
    ] {
        for sizes in [SizesRead::default(), SizesRead { bounded: true, ..SizesRead::default() }] {
            let tested = Tested { numbers, sizes: OtherSizes::OutOfMemory };
            let evidence = Evidence { oom: UNCAUGHT, chosen, sizes, tested, ..plain(Ended::Exited(1)) };
            check(&evidence, verdict, (verdict == Unknown).then_some("number-read-back"));
        }
    }
}

#[test]
fn a_first_step_decides_only_where_what_it_made_fits_as_well() {
    use Verdict::{Fits, Unknown};
    for (unmet, verdict, kind) in [
        (0, Fits, None),
        (10 * GIB, Fits, None),
        (11 * GIB, Unknown, Some("single-step")),
        (20 * GIB, Unknown, Some("single-step")),
    ] {
        check(&Evidence { unmet, ..plain(Ended::Complete) }, verdict, kind);
    }
    check(&Evidence { stepless: true, ..plain(Ended::Stalled) }, Unknown, Some("no-step"));
    check(&Evidence { held: true, ..plain(Ended::Exited(0)) }, Unknown, Some("no-step"));
}

#[test]
fn an_early_step_is_added_to_what_came_later() {
    use Verdict::{Fits, Unknown};
    for (excess, verdict, kind) in [
        (12 * GIB, Fits, None),
        (12 * GIB + 1, Unknown, Some("early-step")),
        (u64::MAX, Unknown, Some("early-step")),
    ] {
        let work = RepeatedWork {
            step: 1,
            allocated: 9 * GIB,
            later: GIB,
            excess,
            line: Some("train.py:7".to_owned()),
        };
        let evidence = Evidence { repeated: Some(work), ..plain(Ended::Complete) };
        check(&evidence, verdict, kind);
        let message = judge(&evidence).1.map(|problem| problem.message).unwrap_or_default();
        assert_eq!(
            message.contains("train.py:7") && message.contains("9.00 GiB"),
            verdict == Unknown,
            "{message}"
        );
    }
}

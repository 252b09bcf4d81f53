//! Text output of `memfit watch`.

use std::fmt::Write as _;

use super::canvas::{BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::moment::moment;
use super::{count, size};
use crate::wire::{CardKind, WatchReport, WatchedCard, WatchedProcess, WatchedRun};

/// Maximum processes listed for a run.
const MAX_PROCESSES: usize = 16;
/// Number of samples in the small curve next to a GPU.
const CURVE: usize = 24;

/// The runs, one below another.
pub fn watch(report: &WatchReport, canvas: Canvas) -> String {
    let runs: Vec<String> = report.runs.iter().map(|run| one(run, canvas)).collect();
    runs.join("\n")
}

fn one(run: &WatchedRun, canvas: Canvas) -> String {
    let mut out = String::new();
    let dot = canvas.dot();
    let _ = writeln!(out, "{}", paint(BOLD, &command(&run.command, canvas)));
    let steps = match run.steps_wanted {
        Some(wanted) => format!("step {} of {}", count(run.steps), count(wanted)),
        None => format!("step {}", count(run.steps)),
    };
    let mut facts = vec![format!("process {}", run.pid), duration(run.seconds), steps];
    facts.extend(run.torch.as_ref().map(|torch| format!("torch {torch}")));
    if run.torch.is_none() {
        facts.push("torch is not imported yet".to_owned());
    }
    let state = if run.ended { format!("{dot}{}", paint(GOOD, "ended")) } else { String::new() };
    let _ = writeln!(out, "{}{state}", paint(DIM, &facts.join(dot)));
    for (index, card) in run.cards.iter().enumerate() {
        out.push_str(&card_lines(index, run, card, canvas));
    }
    if let Some(oom) = &run.oom {
        let moment = moment(oom.step, oom.phase, oom.module.as_deref());
        let line = oom.line.as_ref().map(|line| format!(", at {line}")).unwrap_or_default();
        let text = format!("{} were requested in {moment}{line}", size(oom.requested));
        out.push_str(&canvas.wrapped("  out of memory: ", BAD, &text));
    }
    out.push_str(&processes(run));
    out
}

/// The command on one line. If it is too long, files lose their folders but keep their names, so that the
/// script is still recognisable.
fn command(words: &[String], canvas: Canvas) -> String {
    let name = |word: &str| word.rsplit('/').find(|part| !part.is_empty()).unwrap_or(word).to_owned();
    let arguments = words.get(1..).unwrap_or_default();
    let program = words.first().map(|word| name(word));
    let whole = program.iter().chain(arguments).cloned().collect::<Vec<_>>().join(" ");
    if whole.chars().count() <= canvas.columns() {
        return whole;
    }
    let short = program.into_iter().chain(arguments.iter().map(|word| name(word)));
    canvas.shortened(&short.collect::<Vec<_>>().join(" "), canvas.columns())
}

fn card_lines(index: usize, run: &WatchedRun, card: &WatchedCard, canvas: Canvas) -> String {
    let kind = if run.kind == CardKind::Virtual { "virtual" } else { "real" };
    let share = if card.capacity == 0 { 0.0 } else { card.used as f64 / card.capacity as f64 };
    let style = match share {
        share if share > 0.97 => BAD,
        share if share > 0.85 => DOUBT,
        _ => GOOD,
    };
    let numbered = if run.cards.len() > 1 { format!("{index}  ") } else { String::new() };
    let mut out = format!(
        "  {numbered}{} {}  {} of {}{}peak {}\n",
        card.name,
        paint(DIM, &format!("({kind})")),
        paint(BOLD, &size(card.used)),
        size(card.capacity),
        canvas.dot(),
        size(card.peak)
    );
    let curve = curve(card, canvas);
    let cells = canvas.columns().saturating_sub(4 + CURVE + 3).max(10);
    let bar = canvas.bar(0, card.used, card.capacity, cells);
    let rest = (if canvas.unicode { "░" } else { "." }).repeat(cells.saturating_sub(bar.chars().count()));
    let _ = writeln!(out, "  {}{}  {}", paint(style, &bar), paint(DIM, &rest), paint(DIM, &curve));
    out
}

/// Used memory at the last samples, between zero and the capacity.
fn curve(card: &WatchedCard, canvas: Canvas) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const PLAIN: [char; 4] = ['_', '.', '-', '^'];
    let heights: &[char] = if canvas.unicode { &HEIGHTS } else { &PLAIN };
    let skipped = card.history.len().saturating_sub(CURVE);
    let height = |used: u64| {
        let part =
            u128::from(used.min(card.capacity)) * heights.len() as u128 / u128::from(card.capacity.max(1));
        heights[usize::try_from(part).unwrap_or(0).min(heights.len() - 1)]
    };
    card.history.iter().skip(skipped).map(|used| height(*used)).collect()
}

fn processes(run: &WatchedRun) -> String {
    if run.processes.is_empty() {
        return String::new();
    }
    let mut out = String::new();
    let ranked = run.processes.iter().any(|process| process.rank.is_some());
    let first = if ranked { "rank  " } else { "" };
    let header = format!(
        "  {first}{:>8}  {:>8}  {:>11}  {:>11}  {:>11}  {:>11}",
        "process", "step", "allocated", "peak", "on the GPU", "on the host"
    );
    let _ = writeln!(out, "{}", paint(DIM, &header));
    for process in run.processes.iter().take(MAX_PROCESSES) {
        let line = process_line(process, ranked);
        let _ = writeln!(out, "{}", if process.alive { line } else { paint(DIM, &format!("{line}  gone")) });
    }
    let more = run.processes.len().saturating_sub(MAX_PROCESSES);
    if more > 0 {
        let _ = writeln!(out, "  {}", paint(DIM, &format!("and {more} more")));
    }
    out
}

fn process_line(process: &WatchedProcess, ranked: bool) -> String {
    let rank = process.rank.map(|rank| rank.to_string()).unwrap_or_default();
    let first = if ranked { format!("{rank:>4}  ") } else { String::new() };
    format!(
        "  {first}{:>8}  {:>8}  {:>11}  {:>11}  {:>11}  {:>11}",
        process.pid,
        count(process.steps),
        size(process.allocated),
        size(process.peak_allocated),
        process.used.map_or_else(|| "-".to_owned(), size),
        size(process.resident)
    )
}

/// A time for people.
fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_units_that_matter() {
        for (seconds, text) in [
            (-1.0, "0 s"),
            (59.9, "59 s"),
            (61.0, "1 min 01 s"),
            (3600.0, "1 h 00 min"),
            (90_000.0, "25 h 00 min"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn a_command_on_a_narrow_screen_still_names_its_script() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let narrow = Canvas { width: 60, unicode: true };
        for (typed, shown) in [
            ("/a/very/long/way/to/an/environment/of/its/own/bin/python train.py", "python train.py"),
            ("python3 train.py --data /data/photos", "python3 train.py --data /data/photos"),
            (
                "python3 /home/somebody/work/on/photos/train.py --data /data/photos/",
                "python3 train.py --data photos",
            ),
            (
                "python3 train.py --one 1 --two 2 --three 3 --four 4 --five 5 --six 6",
                "python3 train.py --one 1 --tw…ee 3 --four 4 --five 5 --six 6",
            ),
            ("/", "/"),
        ] {
            assert_eq!(command(&words(typed), narrow), shown);
        }
        assert_eq!(command(&[], narrow), "");
    }

    #[test]
    fn the_curve_stays_between_nothing_and_the_whole_card() {
        let card = WatchedCard {
            name: String::new(),
            capacity: 8,
            used: 0,
            peak: 0,
            history: vec![0, 1, 4, 7, 8, u64::MAX],
        };
        assert_eq!(curve(&card, Canvas { width: 80, unicode: true }), "▁▂▅███");
        let long = WatchedCard { history: vec![1; 1000], ..card };
        assert_eq!(curve(&long, Canvas { width: 80, unicode: true }).chars().count(), CURVE);
    }
}

//! Which conditions further runs invert, so that branches are taken that the first run did not take.
//!
//! A run with all conditions inverted may end at the first of them (`if loss > 1e4: raise`), and takes no
//! `else` of a nested one. So conditions are also inverted one by one, and together with those that appear
//! only then. If there are too many for that, they are inverted in groups, so that of any two there is a run
//! in which only one is.

use std::collections::{BTreeSet, VecDeque};

/// Maximum number of runs after the one in which all conditions are inverted.
const MAX_RUNS: usize = 6;

/// Beginning of the place of a condition that the script reads a certain number from a file that it wrote.
const FILED: &str = "file=";

/// The sets of conditions that are still to be inverted.
pub(crate) struct Branches {
    /// Places of conditions that any run reached by a set that is queued or done.
    known: BTreeSet<String>,
    queue: VecDeque<Vec<String>>,
    runs: usize,
}

impl Branches {
    /// Begins after a run without inverted conditions and one with all of them inverted, which evaluated
    /// conditions at these places.
    pub(crate) fn new(plain: &[String], all: &[String]) -> Self {
        let mut branches = Self { known: BTreeSet::new(), queue: VecDeque::new(), runs: 0 };
        // With a single condition, both runs together took both of its branches. A number in a file is not
        // known when the file is written, unless it is given.
        let is_filed = plain.iter().any(|place| place.starts_with(FILED));
        if plain.len() > 1 || is_filed || all.iter().any(|place| !plain.contains(place)) {
            branches.ran(&[], plain);
        }
        branches
    }

    /// Takes note of the conditions that a run evaluated with these inverted: those that appeared only there
    /// are inverted, too.
    pub(crate) fn ran(&mut self, inverted: &[String], evaluated: &[String]) {
        let fresh: Vec<String> =
            evaluated.iter().filter(|place| self.known.insert((*place).clone())).cloned().collect();
        let left = MAX_RUNS.saturating_sub(self.runs + self.queue.len());
        let groups = if fresh.len() <= left { singles(&fresh) } else { halves(&fresh, left) };
        self.queue.extend(groups.into_iter().map(|group| [inverted, &group].concat()));
    }

    /// Next set to invert; `None` after the last one, or after [`MAX_RUNS`].
    pub(crate) fn next(&mut self) -> Option<Vec<String>> {
        let next = self.queue.pop_front().filter(|_| self.runs < MAX_RUNS)?;
        self.runs += 1;
        Some(next)
    }
}

/// Each place by itself.
fn singles(places: &[String]) -> Vec<Vec<String>> {
    places.iter().map(|place| vec![place.clone()]).collect()
}

/// Groups of places: for each binary digit of their numbers, those in which it is 1, and, as far as these are
/// no more than `most` groups, those in which it is 0.
fn halves(places: &[String], most: usize) -> Vec<Vec<String>> {
    let digits = usize::BITS - places.len().saturating_sub(1).leading_zeros();
    let group = |digit: u32, value: usize| -> Vec<String> {
        let numbered = places.iter().enumerate();
        numbered.filter(|(number, _)| number >> digit & 1 == value).map(|(_, place)| place.clone()).collect()
    };
    let ones = (0..digits).map(|digit| group(digit, 1));
    ones.chain((0..digits).map(|digit| group(digit, 0))).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script: the places that it evaluates if those given are inverted.
    type Script = fn(&dyn Fn(&str) -> bool) -> Vec<&'static str>;

    /// The sets that are inverted one after the other, after a run with all of them.
    fn explored(script: Script) -> Vec<String> {
        let run = |is_inverted: &dyn Fn(&str) -> bool| -> Vec<String> {
            script(is_inverted).into_iter().map(str::to_owned).collect()
        };
        let mut branches = Branches::new(&run(&|_| false), &run(&|_| true));
        let mut sets = Vec::new();
        while let Some(set) = branches.next() {
            branches.ran(&set, &run(&|place| set.iter().any(|each| each == place)));
            sets.push(set.concat());
        }
        sets
    }

    #[test]
    fn both_branches_of_a_single_condition_were_taken_before() {
        assert!(explored(|_| vec!["a"]).is_empty());
        assert!(explored(|_| vec![]).is_empty());
        assert_eq!(explored(|_| vec!["file=101"]), ["file=101"], "the run with all of them has no such file");
    }

    #[test]
    fn conditions_after_a_guard_are_inverted_without_it() {
        let script: Script = |inverted| if inverted("a") { vec!["a"] } else { vec!["a", "b"] };
        assert_eq!(explored(script), ["a", "b"]);
    }

    #[test]
    fn the_else_of_a_nested_condition_is_reached() {
        // if a: if b: … else: if c: … else: …
        let script: Script = |inverted| match (inverted("a"), inverted("b")) {
            (false, _) => vec!["a"],
            (true, true) => vec!["a", "b"],
            (true, false) => vec!["a", "b", "c"],
        };
        assert_eq!(explored(script), ["a", "ab", "ac"]);
    }

    #[test]
    fn many_conditions_are_inverted_in_groups_each_without_each_other() {
        let script: Script = |_| vec!["a", "b", "c", "d", "e", "f", "g", "h"];
        let sets = explored(script);
        assert_eq!(sets, ["bdfh", "cdgh", "efgh", "aceg", "abef", "abcd"]);
        let apart = |one: char, other: char| sets.iter().any(|set| set.contains(one) && !set.contains(other));
        for one in 'a'..='h' {
            assert!(('a'..='h').all(|other| one == other || apart(one, other)), "{one}");
        }
    }

    #[test]
    fn the_number_of_runs_is_limited() {
        let all: Vec<String> = (0..500).map(|place| place.to_string()).collect();
        let mut branches = Branches::new(&all, &all);
        let mut runs = 0;
        while let Some(set) = branches.next() {
            branches.ran(&set, &all);
            runs += 1;
        }
        assert_eq!(runs, MAX_RUNS);
    }
}

//! Statements of the script that use the GPU and did not run before the run was ended.

use memfit_channel::message::Done;
use memfit_report::wire::NotRun;

use crate::watch::Ended;

/// Statements that did not run on some rank.
pub(crate) fn of_ranks(dones: &[&Done]) -> Vec<NotRun> {
    let mut found: Vec<NotRun> = Vec::new();
    for (place, code) in dones.iter().flat_map(|done| &done.not_run) {
        if found.iter().all(|known| known.place != *place) {
            found.push(NotRun { place: place.clone(), code: code.clone() });
        }
    }
    found
}

/// Statements that did not run in further runs with other assumed values, which may take other branches.
#[derive(Clone, Debug, Default)]
pub(crate) struct FurtherRuns(Vec<Vec<NotRun>>);

impl FurtherRuns {
    /// Adds a further run. One that failed shows only that it did not come far.
    pub(crate) fn add(&mut self, ended: Ended, not_run: Vec<NotRun>) {
        if ended == Ended::Complete {
            self.0.push(not_run);
        }
    }

    /// Keeps those statements that ran nowhere.
    pub(crate) fn retain(&self, statements: &mut Vec<NotRun>) {
        statements.retain(|statement| self.0.iter().all(|run| run.contains(statement)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(lines: &[u32]) -> Vec<NotRun> {
        lines.iter().map(|line| NotRun { place: format!("train.py:{line}"), code: String::new() }).collect()
    }

    #[test]
    fn a_statement_that_ran_in_a_further_run_is_dropped() {
        let mut further = FurtherRuns::default();
        further.add(Ended::Complete, statements(&[1, 3]));
        // This run did not come far.
        further.add(Ended::Exited(1), Vec::new());
        let mut found = statements(&[1, 2, 3]);
        further.retain(&mut found);
        assert_eq!(found, statements(&[1, 3]));
    }

    #[test]
    fn several_ranks_name_a_statement_once() {
        let done = |lines: &[u32]| Done {
            not_run: statements(lines).into_iter().map(|each| (each.place, each.code)).collect(),
            ..Done::default()
        };
        assert_eq!(of_ranks(&[&done(&[1, 2]), &done(&[2, 3])]), statements(&[1, 2, 3]));
    }
}

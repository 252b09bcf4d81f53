//! Fixing a file: fixes are put together where they do not touch each other, and those that would do harm are
//! left out and told.

use memfit_source::Edit;
use memfit_source::edit::compose;

use crate::check::{Checked, Error, FileFix, Source, check_source};
use crate::config::Config;
use crate::fix::{Applied, Refused, apply};

/// The most rounds of fixing: each does what did not touch what the one before did.
const MAX_ROUNDS: usize = 40;

/// What is said of a fix that would do harm.
const BRINGS_OTHERS: &str = "its change would bring about another finding, or leave this one";

impl Source {
    /// The text with everything fixed that can be: the unsafe fixes too, if they are wanted. What a fix would
    /// break, or what it would bring about, is left as it is, and told.
    pub fn fixed(&self, with_unsafe: bool, config: &Config) -> Result<Applied, Error> {
        let mut now = self.clone();
        let mut fixed = 0;
        // The edits that were tried alone and refused, as the text was then.
        let mut refused: Vec<(&'static str, Vec<Edit>)> = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let wanted: Vec<(&Checked, &FileFix)> = now
                .findings
                .iter()
                .filter_map(|finding| Some((finding, finding.fix.as_ref()?)))
                .filter(|(_, fix)| fix.safe || with_unsafe)
                .filter(|(finding, fix)| !refused.contains(&(finding.rule, fix.edits.clone())))
                .collect();
            let fixes: Vec<&[Edit]> = wanted.iter().map(|(_, fix)| fix.edits.as_slice()).collect();
            if fixes.is_empty() {
                break;
            }
            let mut next = now.with(&fixes, config)?;
            if next.is_none() {
                // One of them does harm: each is tried alone.
                for (finding, fix) in &wanted {
                    next = now.with(&[&fix.edits], config)?;
                    if next.is_some() {
                        break;
                    }
                    refused.push((finding.rule, fix.edits.clone()));
                }
            }
            let Some((next, count)) = next else { break };
            fixed += now.findings.len().saturating_sub(next.findings.len()).min(count.max(1));
            now = next;
        }
        let refused = now.findings.iter().filter_map(|finding| {
            let reason = match (&finding.fix, &finding.blocked) {
                (Some(fix), _) if fix.safe || with_unsafe => BRINGS_OTHERS.to_owned(),
                (_, Some((safe, reason))) if *safe || with_unsafe => reason.to_string(),
                _ => return None,
            };
            Some(Refused { rule: finding.rule, start: finding.start, reason })
        });
        let refused = refused.collect();
        Ok(Applied { text: now.text.to_string(), fixed, refused })
    }

    /// This with as many of the fixes made as go together, and how many these are; nothing if that is no
    /// better.
    fn with(&self, fixes: &[&[Edit]], config: &Config) -> Result<Option<(Self, usize)>, Error> {
        let (edits, count) = compose(fixes);
        let Some(applied) = apply(&self.text, &edits, count).filter(|_| count > 0) else { return Ok(None) };
        let next = check_source(&self.path, &applied.text, config)?;
        Ok(next.is_better(self).then_some((next, count)))
    }

    /// Nothing is found here that was not found there, and it parses no worse.
    fn is_better(&self, before: &Self) -> bool {
        let count =
            |source: &Self, rule: &str| source.findings.iter().filter(|finding| finding.rule == rule).count();
        self.problems.len() <= before.problems.len()
            && self.findings.len() < before.findings.len()
            && self.findings.iter().all(|finding| count(self, finding.rule) <= count(before, finding.rule))
    }
}

//! Fixing of a file: non-overlapping fixes are combined; fixes with side effects on other findings are left
//! out and reported.

use memfit_source::Edit;
use memfit_source::edit::compose;

use crate::check::{Checked, Error, FileFix, Source, check_source};
use crate::config::Config;
use crate::fix::{Applied, Refused, apply};

/// Maximum number of rounds. Each round applies fixes that do not overlap with those of the round before.
const MAX_ROUNDS: usize = 40;

/// Reason for refusing a fix with side effects.
const BRINGS_OTHERS: &str = "its change would bring about another finding, or leave this one";

impl Source {
    /// Applies all possible fixes, including unsafe ones if `with_unsafe`. A fix that would break the code or
    /// cause another finding is refused and reported.
    pub fn fix_all(&self, with_unsafe: bool, config: &Config) -> Result<Applied, Error> {
        let mut now = self.clone();
        let mut fixed = 0;
        // Edits that were refused individually, with positions in the text of that time.
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
            let mut next = now.with_fixes(&fixes, config)?;
            if next.is_none() {
                // One of the fixes has a side effect, so each is tried individually.
                for (finding, fix) in &wanted {
                    next = now.with_fixes(&[&fix.edits], config)?;
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

    /// Applies as many non-overlapping fixes as possible, and returns the result with their number. Returns
    /// `None` if that is no improvement.
    fn with_fixes(&self, fixes: &[&[Edit]], config: &Config) -> Result<Option<(Self, usize)>, Error> {
        let (edits, count) = compose(fixes);
        let Some(applied) = apply(&self.text, &edits, count).filter(|_| count > 0) else { return Ok(None) };
        let next = check_source(&self.path, &applied.text, config)?;
        Ok(next.is_better(self).then_some((next, count)))
    }

    /// Returns `true` if there are no new findings and no new syntax errors.
    fn is_better(&self, before: &Self) -> bool {
        let count =
            |source: &Self, rule: &str| source.findings.iter().filter(|finding| finding.rule == rule).count();
        self.problems.len() <= before.problems.len()
            && self.findings.len() < before.findings.len()
            && self.findings.iter().all(|finding| count(self, finding.rule) <= count(before, finding.rule))
    }
}

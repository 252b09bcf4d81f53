//! `memfit rule [NAME]`

use std::io::IsTerminal as _;

use memfit_lint::{Fixes, Rule};
use memfit_report::text;
use memfit_report::wire::{RuleEntry, RuleList, RuleReport};

use super::answer;
use crate::args::RuleArgs;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Shows a rule's page, or lists all rules.
pub(crate) fn rule(args: &RuleArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    if let Some(name) = &args.name {
        let rule = memfit_lint::rule(name).ok_or_else(|| unknown(name))?;
        let report = RuleReport::new(entry(rule), memfit_lint::page(rule));
        answer(&report, || text::rule(&report), &args.out, settings, printer)?;
    } else {
        let list = RuleList::new(memfit_lint::rules().map(entry).collect());
        let terminal = std::io::stdout().is_terminal().then(|| printer.canvas());
        answer(&list, || text::rules(&list.rules, terminal), &args.out, settings, printer)?;
    }
    Ok(Exit::Good)
}

fn unknown(name: &str) -> CliError {
    let config = memfit_lint::Config { select: vec![name.to_owned()], ..memfit_lint::Config::default() };
    match config.validate() {
        Err(error) => CliError::Rule(error),
        // The only name of findings that is not a rule.
        Ok(()) => {
            CliError::Rule(memfit_lint::ConfigError::UnknownRule { name: name.to_owned(), suggestion: None })
        }
    }
}

fn entry(rule: &Rule) -> RuleEntry {
    RuleEntry {
        name: rule.name.to_owned(),
        severity: rule.severity.name().to_owned(),
        fix: match rule.fixes {
            Fixes::Never => None,
            Fixes::Safe => Some("safe".to_owned()),
            Fixes::Unsafe => Some("unsafe".to_owned()),
        },
        on: rule.on,
        summary: summary(&memfit_lint::page(rule)),
    }
}

/// The first sentence of a rule's description.
pub(crate) fn summary(page: &str) -> String {
    let part = page.split("## What it does\n").nth(1).unwrap_or_default();
    let paragraph = part.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    paragraph.trim().split_inclusive(". ").next().unwrap_or_default().trim().to_owned()
}

//! The GPUs for a script as a page: price against time with the Pareto front, filters, and the command for
//! each point.
//!
//! The page is one file without external resources. The report's rows are embedded as JSON, and a short
//! script draws those that match the filters.

use memfit_vocabulary::shell_line;

use crate::html::escaped;
use crate::text::size;
use crate::wire::{CardVerdict, CardsReport};

/// The style sheet that all report pages share.
const STYLE: &str = include_str!("plan_page/page.css");
const OWN_STYLE: &str = include_str!("cards_page/page.css");
const SCRIPT: &str = include_str!("cards_page/page.js");

/// The page.
pub fn cards_page(report: &CardsReport) -> String {
    let fits = report.rows.iter().filter(|row| row.verdict.fits()).count();
    let unknown = report.rows.iter().filter(|row| row.verdict == CardVerdict::Unknown).count();
    let total = report.rows.len();
    let (class, badge, headline) = match (fits, unknown) {
        (0, 0) => ("bad", "fits nowhere", format!("It fits on none of {total} configurations")),
        (0, _) => (
            "open",
            "unknown",
            format!("It fits on none of {total} configurations, {unknown} of them unknown"),
        ),
        _ => ("good", "fits", format!("It fits on {fits} of {total} configurations")),
    };
    let most = report.rows.iter().map(|row| row.capacity).max().unwrap_or(0);
    let refused = total - fits - unknown;
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>memfit cards</title>\n<style>\n{STYLE}{OWN_STYLE}</style>\n\
         <header><span class=\"badge {class}\">{badge}</span>\n<h1>{headline}</h1>\n\
         <p class=\"soft\">{refused} do not fit, {unknown} unknown · up to {most} per GPU · {steps} · {runs} in {wall:.0} s · \
         <code>{command}</code></p></header>\n\
         <noscript><section>The plot and the table are drawn by this page's own script, which the browser does not run.</section></noscript>\n\
         <section id=\"filters\" aria-label=\"Filters\"></section>\n\
         <section><h2 id=\"plot-title\"></h2><div id=\"plot\"></div><p class=\"key\" id=\"key\"></p><div id=\"selected\" aria-live=\"polite\"></div></section>\n\
         <section><h2>All GPUs</h2><div class=\"scroll\"><table id=\"rows\"></table></div></section>\n\
         <script type=\"application/json\" id=\"report\">{json}</script>\n<script>\n{SCRIPT}</script>\n</html>\n",
        most = size(most),
        steps = match report.steps {
            0 => "no training step ran".to_owned(),
            1 => "1 step ran".to_owned(),
            steps => format!("{steps} steps ran"),
        },
        runs = match report.runs {
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs"),
        },
        wall = report.wall_s,
        command = escaped(&shell_line(&report.command)),
        json = embedded(report),
    )
}

/// The report as JSON, escaped so that it cannot end the element that contains it.
fn embedded(report: &CardsReport) -> String {
    serde_json::to_string(report).unwrap_or_else(|_| "null".to_owned()).replace('<', "\\u003c")
}

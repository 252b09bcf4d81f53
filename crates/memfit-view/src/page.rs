//! The HTML page: one file without external requests, or one that loads its sections from the server.

use std::fmt::Write as _;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest as _, Sha256};

use crate::View;
use crate::view::LaneInfo;

const PAGE_TEMPLATE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/style.css");
/// Parts of the page's script, in order of dependency.
const SCRIPT: &[&str] = &[
    include_str!("../assets/format.js"),
    include_str!("../assets/store.js"),
    include_str!("../assets/lane.js"),
    include_str!("../assets/paint.js"),
    include_str!("../assets/ribbon.js"),
    include_str!("../assets/timeline.js"),
    include_str!("../assets/tree.js"),
    include_str!("../assets/allocator.js"),
    include_str!("../assets/panels.js"),
    include_str!("../assets/main.js"),
];

/// Writes everything as one HTML file, whose content security policy forbids all requests.
pub fn write_page(view: &View, mut to: impl Write) -> io::Result<()> {
    let (head, tail) = page(view, "none");
    to.write_all(head.as_bytes())?;
    for (number, section) in view.sections().iter().enumerate() {
        write!(to, "<script type=\"application/octet-stream\" id=\"section-{number}\">")?;
        to.write_all(BASE64.encode(section).as_bytes())?;
        to.write_all(b"</script>\n")?;
    }
    to.write_all(tail.as_bytes())
}

/// The page without sections: it loads `section/N` relative to itself.
pub fn served_page(view: &View) -> String {
    let (head, tail) = page(view, "self");
    head + &tail
}

/// The page in two parts: sections go between them, and the script runs after both.
fn page(view: &View, connect: &str) -> (String, String) {
    let script = format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPT.join("\n"));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src '{connect}'; \
         base-uri 'none'; form-action 'none'",
        digest(&script),
        digest(STYLE),
    );
    let (head, tail) = PAGE_TEMPLATE.split_once("{{sections}}").unwrap_or((PAGE_TEMPLATE, ""));
    let head = head
        .replace("{{policy}}", &policy)
        .replace("{{style}}", STYLE)
        // Names from the recording are inserted last, so that they cannot act as placeholders.
        .replace("{{title}}", &escape(&view.title()))
        .replacen("{{summary}}", &summary(view), 1);
    let tail =
        tail.replace("{{script}}", &script).replacen("{{manifest}}", &BASE64.encode(view.manifest()), 1);
    (head, tail)
}

fn digest(text: &str) -> String {
    BASE64.encode(Sha256::digest(text.as_bytes()))
}

/// Escapes text for elements and quoted attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // A brace in a name must not act as a placeholder.
            '{' => escaped.push_str("&#123;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// Summary for print, and for browsers without scripts.
fn summary(view: &View) -> String {
    let mut html = String::new();
    for (name, explanation, lanes) in view.summaries() {
        let _ = write!(html, "<h2>{}</h2>", escape(name));
        let cause =
            explanation.and_then(|explanation| explanation.get("cause")).and_then(|cause| cause.as_str());
        if let Some(cause) = cause {
            let _ = write!(html, "<p>Cause: <strong>{}</strong></p>", escape(cause));
        }
        for lane in lanes {
            lane_summary(&mut html, lane);
        }
    }
    html
}

fn lane_summary(html: &mut String, lane: &LaneInfo) {
    let peak = &lane.peak;
    let _ = write!(
        html,
        "<h3>{}</h3><p>Peak allocated: {}. Reserved at that moment: {}. Peak reserved: {}.</p>",
        escape(&lane.title),
        size(peak.allocated),
        size(peak.reserved),
        size(peak.highest_reserved)
    );
    html.push_str("<table><caption>By category, at the peak of allocated memory</caption><tbody>");
    for (category, bytes) in &peak.by_category {
        let _ = write!(html, "<tr><th scope=\"row\">{category}</th><td>{}</td></tr>", size(*bytes));
    }
    html.push_str(
        "</tbody></table><table><caption>Largest lines and modules at that moment</caption><thead><tr>",
    );
    html.push_str("<th scope=\"col\">where</th><th scope=\"col\">category</th><th scope=\"col\">blocks</th>");
    html.push_str("<th scope=\"col\">size</th></tr></thead><tbody>");
    for holder in &lane.holders {
        let place = if holder.place.is_empty() { "not known" } else { &holder.place };
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(place),
            holder.category,
            holder.blocks,
            size(holder.bytes)
        );
    }
    html.push_str("</tbody></table>");
}

/// Formats a size like the page's script.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

//! Tests of the page as a file: escaping of names, and redaction.

mod support;

use std::io::Read as _;

use memfit_view::{View, lane, served_page, write_page};
use memfit_vocabulary::Category;
use support::{MIB, Names, PLAIN, recorded, training, view};

fn file(view: &View) -> String {
    let mut page = Vec::new();
    write_page(view, &mut page).expect("memory takes it");
    String::from_utf8(page).expect("a page is text")
}

/// All text that can be read in a page after its sections are decompressed.
fn readable(view: &View) -> String {
    let mut text = file(view) + &view.manifest();
    for section in view.sections() {
        let mut bytes = Vec::new();
        flate2::read::DeflateDecoder::new(&section[..]).read_to_end(&mut bytes).expect("a section unpacks");
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    text
}

#[test]
fn a_lane_says_what_happened() {
    let lane = lane(&training(&PLAIN), 0);
    // Phases and steps are not ticks: a segment, a block, twice three blocks with their frees, and a failure.
    assert_eq!(lane.length, 1 + 1 + 2 * 6 + 1);
    let whole = lane.envelope.whole().expect("something happened");
    assert_eq!(whole.allocated, (0, 28 * MIB));
    assert_eq!(whole.reserved, (64 * MIB, 64 * MIB));
    assert_eq!(lane.pieces.len(), 7);
    assert_eq!(lane.spans.len(), 1);
    let at_peak: u64 = lane
        .pieces
        .iter()
        .filter(|piece| piece.is_live_at(whole.peak))
        .map(|piece| piece.asked + piece.rounding)
        .sum();
    assert_eq!(at_peak, 28 * MIB, "the blocks of the peak are what was allocated then");
    assert!(lane.pieces.iter().any(|piece| piece.category == Category::Gradients));
}

#[test]
fn names_stay_names() {
    let hostile = Names {
        file: "</script><script>alert(1)</script>.py",
        function: "<img src=x onerror=alert(2)>",
        module: "\"><svg/onload=alert(3)>{{script}}",
        range: "<!--</title>",
        recording: "</title><script>alert(4)</script>{{manifest}}",
        command: "</script>",
    };
    for page in [file(&view(&hostile, false)), served_page(&view(&hostile, false))] {
        let plain = file(&view(&PLAIN, false));
        for markup in ["<script>alert", "<img", "<svg/", "</title><", "<!--<"] {
            assert!(!page.contains(markup), "{markup} of a name is in the page as it is");
        }
        let opened = |page: &str| page.matches("<script").count() - page.matches("octet-stream").count();
        assert_eq!(opened(&page), opened(&plain), "a name opened an element");
        assert!(page.contains("&lt;script&gt;alert(4)"), "the name is shown as what it is");
        assert_eq!(page.matches("<title>").count(), 1);
    }
}

#[test]
fn a_confidential_page_has_no_name_of_the_users() {
    let secrets = Names {
        file: "/home/ada/thesis/secretnet.py",
        function: "secret_attention",
        module: "hidden.gate.3",
        range: "unpublished epoch",
        recording: "thesis-run.memfit",
        command: "--dataset=patients",
    };
    let open = readable(&view(&secrets, false));
    let closed = readable(&view(&secrets, true));
    for secret in
        ["ada", "thesis", "secretnet", "secret_attention", "hidden", "gate", "unpublished", "patients"]
    {
        // The page's own script and style may contain the word; the recording must not add it.
        let own = readable(&view(&PLAIN, false)).matches(secret).count();
        assert!(open.matches(secret).count() > own, "{secret} is not even in the open page");
        assert_eq!(closed.matches(secret).count(), own, "{secret} is in the confidential page");
    }
}

#[test]
fn the_page_forbids_itself_the_network() {
    let page = file(&view(&PLAIN, false));
    let policy = page.split("Content-Security-Policy").nth(1).expect("there is a policy");
    let policy = &policy[..policy.find('>').expect("it ends")];
    for part in [
        "default-src 'none'",
        "connect-src 'none'",
        "script-src 'sha256-",
        "style-src 'sha256-",
        "base-uri 'none'",
    ] {
        assert!(policy.contains(part), "{part} is missing: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"), "the page refers to the network");
    assert!(served_page(&view(&PLAIN, false)).contains("connect-src 'self'"));
}

#[test]
fn the_summary_needs_no_script() {
    let page = file(&view(&PLAIN, false));
    for part in
        ["Peak allocated: 28.0 MiB", "/home/me/project/train.py:31", "<th scope=\"row\">gradients</th>"]
    {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn two_recordings_have_sections_of_their_own() {
    let one = View::new(vec![recorded(&PLAIN)], false);
    let two = View::new(vec![recorded(&PLAIN), recorded(&PLAIN)], false);
    assert_eq!(two.sections().len(), 2 * one.sections().len());
}

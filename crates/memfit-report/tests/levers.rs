//! Checks that the table of levers in the documentation agrees with the declarations. `MEMFIT_UPDATE_DOCS=1`
//! writes it.

use std::path::Path;

use memfit_report::lever_table;

/// The lines around the table.
const BEGIN: &str = "<!-- levers: MEMFIT_UPDATE_DOCS=1 cargo test -p memfit-report --test levers -->\n";
const END: &str = "<!-- end of levers -->\n";

#[test]
fn the_table_of_levers_is_fresh() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/training.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    let fresh = lever_table();
    if std::env::var_os("MEMFIT_UPDATE_DOCS").is_some() {
        std::fs::write(&file, format!("{before}{BEGIN}{fresh}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(table, fresh, "MEMFIT_UPDATE_DOCS=1 updates it");
}

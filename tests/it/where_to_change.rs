//! `docs/where-to-change.md`: its files exist, and have the places that it names.

use std::fs;
use std::path::Path;

/// The code in a cell of a table: `` `code` ``.
fn code(cell: &str) -> Option<&str> {
    cell.trim().strip_prefix('`')?.strip_suffix('`')
}

#[test]
fn files_have_the_places_that_the_page_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/where-to-change.md")).unwrap();
    let rows: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            Some((code(cells.next()?)?, code(cells.next()?)?))
        })
        .collect();
    assert!(rows.len() > 30, "{}", rows.len());
    let missing: Vec<_> = rows
        .iter()
        .filter(|(file, place)| {
            !fs::read_to_string(root.join(file)).is_ok_and(|text| text.contains(place))
        })
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

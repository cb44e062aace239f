//! Registry entries of a family of environments.

use crate::error::Result;

use super::env::Env;

/// Id of an environment and the function that makes it; the function takes that id.
pub(super) type Entry = (&'static str, fn(&'static str) -> Result<Box<dyn Env>>);

/// Returns the three of `names` that are nearest to the unknown `id`, for an error message.
pub(super) fn nearest(id: &str, mut names: Vec<&'static str>) -> String {
    // The sort is stable: equally near ids stay in alphabetical order.
    names.sort_by_key(|name| edit_distance(&id.to_lowercase(), &name.to_lowercase()));
    names[..3].join(", ")
}

/// Returns the Levenshtein distance: how many letters must be inserted, removed or replaced to turn
/// `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // row[j]: the distance between the letters of `a` read so far and the first j letters of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

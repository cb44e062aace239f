//! What a family of environments hands to the registry.

use crate::error::Result;

use super::env::Env;

/// An id, and how to make the environment that it names; the function is given that id.
pub(super) type Entry = (&'static str, fn(&'static str) -> Result<Box<dyn Env>>);

/// The three of `names` that are nearest to the unknown `id`, for a message.
pub(super) fn nearest(id: &str, mut names: Vec<&'static str>) -> String {
    // A stable sort: equally near ids stay in alphabetical order.
    names.sort_by_key(|name| edit_distance(&id.to_lowercase(), &name.to_lowercase()));
    names[..3].join(", ")
}

/// How many letters must be inserted, removed or replaced to turn `a` into `b` (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // row[j]: the distance between what we have read of `a` and the first j letters of `b`.
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

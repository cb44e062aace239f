//! Registry entries of a family of environments.

use strsim::levenshtein;

use crate::envs::env::Env;
use crate::error::Result;

/// Id of an environment and the function that makes it; the function takes that id.
pub(in crate::envs) type Entry = (&'static str, fn(&'static str) -> Result<Box<dyn Env>>);

/// Returns an id without its version.
fn base(id: &str) -> &str {
    id.split_once("-v").map_or(id, |(base, _)| base)
}

/// Returns up to three of `names` that are similar to the unknown `id`, nearest first, as a part of an
/// error message: those that contain it, and those that differ in few letters.
pub(in crate::envs) fn nearest(id: &str, names: Vec<&'static str>) -> String {
    let id = id.to_lowercase();
    let own = base(&id);
    let similar = names.into_iter().filter_map(|name| {
        let lower = name.to_lowercase();
        let is_similar = levenshtein(own, base(&lower)) <= 1 + own.len() / 3
            || (own.len() > 2 && lower.contains(own));
        is_similar.then_some((levenshtein(&id, &lower), name))
    });
    let mut similar: Vec<_> = similar.collect();
    // The sort is stable: equally near ids stay in alphabetical order.
    similar.sort_by_key(|(distance, _)| *distance);
    let names: Vec<&str> = similar.into_iter().take(3).map(|(_, name)| name).collect();
    match names[..] {
        [] => String::new(),
        [name] => format!("the nearest is {name}; "),
        _ => format!("the nearest are {}; ", names.join(", ")),
    }
}

//! Registry entries of a family of environments.

use strsim::levenshtein;

use crate::envs::env::Env;
use crate::error::Result;

/// Id of an environment and the function that makes it; the function takes that id.
pub(in crate::envs) type Entry = (&'static str, fn(&'static str) -> Result<Box<dyn Env>>);

/// Returns up to three of `names` that are similar to the unknown `id`, nearest first, as a part of an
/// error message: those that contain it, and those that differ in few letters.
pub(in crate::envs) fn nearest(id: &str, names: Vec<&'static str>) -> String {
    let id = id.to_lowercase();
    let base = id.split_once("-v").map_or(&*id, |(base, _)| base);
    let similar = names.into_iter().filter_map(|name| {
        let lower = name.to_lowercase();
        let distance = levenshtein(&id, &lower);
        let is_similar = distance <= 1 + id.len() / 3 || (base.len() > 2 && lower.contains(base));
        is_similar.then_some((distance, name))
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

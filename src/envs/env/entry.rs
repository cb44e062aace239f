//! Registry entries of a family of environments.

use strsim::levenshtein;

use crate::envs::env::Env;
use crate::error::Result;

/// Id of an environment and the function that makes it; the function takes that id.
pub(in crate::envs) type Entry = (&'static str, fn(&'static str) -> Result<Box<dyn Env>>);

/// Returns the three of `names` that are nearest to the unknown `id`, for an error message.
pub(in crate::envs) fn nearest(id: &str, mut names: Vec<&'static str>) -> String {
    // The sort is stable: equally near ids stay in alphabetical order.
    names.sort_by_key(|name| levenshtein(&id.to_lowercase(), &name.to_lowercase()));
    names[..3].join(", ")
}

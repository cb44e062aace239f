//! The environments by name.

use crate::error::{Error, Result};

use super::atari;
use super::classic;
use super::env::Env;
use super::minatar;
use super::mujoco;
use super::own;
use super::spec::EnvSpec;
use super::toy_text;

/// An id, and how to make the environment that it names.
pub(super) type Entry = (&'static str, fn() -> Result<Box<dyn Env>>);

/// Every family of environments. Each lists its own.
const FAMILIES: &[&[Entry]] =
    &[atari::ENVS, classic::ENVS, minatar::ENVS, mujoco::ENVS, own::ENVS, toy_text::ENVS];

fn entries() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().copied().flatten()
}

/// The ids that [`make`] knows, in alphabetical order.
pub fn list_envs() -> Vec<&'static str> {
    let mut ids: Vec<_> = entries().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids
}

/// One environment by its id, without a pool around it: no time limit, no automatic reset.
///
/// Fails for an unknown id, and then names the nearest ones.
pub fn make(id: &str) -> Result<Box<dyn Env>> {
    match entries().find(|(name, _)| *name == id) {
        Some((_, make)) => make(),
        None => Err(unknown("environment", id, list_envs())),
    }
}

/// What the environment `id` promises. Fails as [`make`] does.
pub fn spec(id: &str) -> Result<EnvSpec> {
    Ok(make(id)?.spec())
}

/// The error for an `id` that is none of `names`, with the nearest ones.
pub(super) fn unknown(what: &str, id: &str, mut names: Vec<&'static str>) -> Error {
    // A stable sort: equally near ids stay in alphabetical order.
    names.sort_by_key(|name| edit_distance(&id.to_lowercase(), &name.to_lowercase()));
    Error::Env(format!(
        "unknown {what} \"{id}\"; the nearest are {}; list_envs() has all {}",
        names[..3].join(", "),
        list_envs().len()
    ))
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

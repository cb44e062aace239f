//! `podracer envs`: a table of the environments, or one of them in full.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;

use super::table;
use podracer::algos::registry::fitting;
use podracer::envs::{self, EnvSpec};
use podracer::error::Result;
use podracer::native::{Lock, Settings as NativeSettings};
use podracer::rl::checkpoint::saved_spec::SavedSpec;
use podracer::rl::settings::help::wrapped;

/// Flags of `podracer envs`.
#[derive(Debug, Args)]
pub struct Settings {
    /// An id, to show that environment with the algorithms that take it, or a part of ids
    filter: Option<String>,
    /// Print a line of JSON for each environment
    #[arg(long)]
    json: bool,
}

/// An environment as JSON.
#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    /// Native parts that are not installed; the environment is not described then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<&'static str>,
    #[serde(flatten)]
    spec: Option<SavedSpec>,
    algorithms: Vec<&'static str>,
}

pub fn envs(settings: &Settings) -> Result<String> {
    let filter = settings.filter.as_deref().unwrap_or_default();
    let ids = envs::list_envs();
    // Environments of Python and JAX are not listed.
    if ids.contains(&filter) || filter.contains(':') {
        let spec = envs::spec(filter)?;
        return Ok(if settings.json { line(filter, &Ok(spec)) } else { in_full(&spec) });
    }
    let contains = |id: &&str| id.to_lowercase().contains(&filter.to_lowercase());
    let ids: Vec<&str> = ids.into_iter().filter(contains).collect();
    if ids.is_empty() {
        // The error has the nearest ids.
        return envs::spec(filter).map(|spec| in_full(&spec));
    }
    let described = described(&ids)?;
    if settings.json {
        return Ok(described.iter().map(|(id, spec)| line(id, spec)).collect());
    }
    let mut rows = vec![["id", "observation", "action", "limit", "solved at"].map(String::from)];
    rows.extend(described.iter().map(|(id, spec)| match spec {
        Ok(spec) => [
            (*id).into(),
            spec.observation.to_string(),
            spec.action.to_string(),
            spec.max_episode_steps.map_or("-".into(), |steps| steps.to_string()),
            spec.reward_threshold.map_or("-".into(), |threshold| threshold.to_string()),
        ],
        Err(parts) => {
            let fetch = format!("after `podracer fetch {}`", parts.join(" "));
            [(*id).into(), fetch, "-".into(), "-".into(), "-".into()]
        }
    }));
    Ok(wrapped(&table(&rows), 4))
}

/// The specification of an environment, or the native parts that it lacks.
type Described = std::result::Result<EnvSpec, Vec<&'static str>>;

/// Describes environments without fetching what they need.
fn described<'a>(ids: &[&'a str]) -> Result<Vec<(&'a str, Described)>> {
    let settings = NativeSettings::from_env()?;
    let mut installed: BTreeMap<&str, bool> = BTreeMap::new();
    let mut described = Vec::new();
    for &id in ids {
        let mut missing = Vec::new();
        for &part in envs::native_parts(id) {
            if !installed.contains_key(part) {
                let locked = Lock::get().part(part)?;
                let is_there = locked.is_published() && settings.find(locked)?.is_some();
                installed.insert(part, is_there);
            }
            missing.extend((!installed[part]).then_some(part));
        }
        let spec = if missing.is_empty() { Ok(envs::spec(id)?) } else { Err(missing) };
        described.push((id, spec));
    }
    Ok(described)
}

fn line(id: &str, described: &Described) -> String {
    let spec = described.as_ref().ok();
    let row = Row {
        id,
        missing: described.as_ref().err().cloned().unwrap_or_default(),
        spec: spec.and_then(SavedSpec::new),
        algorithms: spec.map(fitting).unwrap_or_default(),
    };
    serde_json::to_string(&row).expect("text and numbers") + "\n"
}

/// One environment, an item a line.
fn in_full(spec: &EnvSpec) -> String {
    let algorithms = fitting(spec);
    // Those with which to begin (docs/custom-environment.md).
    let first = ["ppo", "ppo_continuous_action", "ppo_atari_envpool", "ppo_atari"];
    let train = first
        .iter()
        .find(|name| algorithms.contains(name))
        .or(algorithms.first())
        .map_or("-".into(), |name| format!("podracer train {name} --env-id {}", spec.id));
    let steps = spec.max_episode_steps.map_or("no limit".into(), |steps| steps.to_string());
    let solved = spec.reward_threshold.map_or("-".into(), |threshold| threshold.to_string());
    let rows = [
        ["id".into(), spec.id.clone()],
        ["observation".into(), spec.observation.to_string()],
        ["action".into(), spec.action.to_string()],
        ["steps".into(), steps],
        ["solved at".into(), solved],
        ["algorithms".into(), algorithms.join(" ")],
        ["train".into(), train],
    ];
    wrapped(&table(&rows), "observation  ".len())
}

//! Registry of the algorithms by name.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use serde_json::{Map, Value};
use strsim::levenshtein;

use super::*;
use crate::envs::{self, EnvSpec};
use crate::error::{Error, Result};
use crate::rl::checkpoint::saved::SavedMetadata;
use crate::rl::commands::eval::saved_model;
use crate::rl::{Algorithm, EnvSupport, Evaluation, Policy, TrainedPolicy, algorithm};

/// A registered algorithm.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name of the algorithm.
    pub name: &'static str,
    /// Environments that the algorithm supports.
    pub envs: EnvSupport,
    /// Returns a one-line description.
    pub about: fn() -> String,
    /// Returns the clap command with the algorithm's flags and their ranges.
    pub command: fn() -> Command,
    /// Parses and checks a command line, whose first word is the program's name, without starting
    /// anything.
    pub check: fn(Vec<OsString>) -> Result<()>,
    /// Parses a command line, whose first word is the program's name, into all settings. Checks
    /// names and ranges, and starts nothing.
    pub settings: fn(Vec<OsString>) -> Result<Map<String, Value>>,
    /// Trains with a command line, whose first word is the program's name, and prints the result.
    pub train: fn(Vec<OsString>) -> ExitCode,
    /// Evaluates the model in a file whose metadata is known.
    play: fn(&Path, &SavedMetadata, &mut Evaluation) -> Result<()>,
    /// Returns the policy of the model in a file whose metadata is known.
    policy: fn(&Path, &SavedMetadata) -> Result<Policy>,
    /// Returns the same policy for a program that does not train.
    trained_policy: fn(&Path, &SavedMetadata) -> Result<TrainedPolicy>,
}

const fn entry<A: Algorithm>() -> Entry {
    Entry {
        name: A::NAME,
        envs: A::ENVS,
        about: || A::command().get_about().map(ToString::to_string).unwrap_or_default(),
        command: algorithm::ranged_command::<A>,
        check: |args| {
            let args = algorithm::parse::<A>(args);
            algorithm::check(&args.map_err(|error| Error::Config(error.to_string()))?)
        },
        settings: algorithm::settings_of::<A>,
        train: |args| algorithm::run::<A>(args),
        play: algorithm::play_saved::<A>,
        policy: algorithm::policy_of::<A>,
        trained_policy: algorithm::trained_policy::<A>,
    }
}

/// All algorithms. A constant would compile them anew in each crate that reads it.
pub static ALGORITHMS: &[Entry] = &[
    entry::<a2c::Args>(),
    entry::<a2c_continuous_action::Args>(),
    entry::<c51::Args>(),
    entry::<c51_atari::Args>(),
    entry::<cleanba_impala::Args>(),
    entry::<cleanba_ppo::Args>(),
    entry::<crossq_continuous_action::Args>(),
    entry::<ddpg_continuous_action::Args>(),
    entry::<dpo_anakin::Args>(),
    entry::<dqn::Args>(),
    entry::<dqn_anakin::Args>(),
    entry::<dqn_atari::Args>(),
    entry::<fast_sac::Args>(),
    entry::<fast_td3::Args>(),
    entry::<iqn::Args>(),
    entry::<ppg::Args>(),
    entry::<ppo::Args>(),
    entry::<ppo_anakin::Args>(),
    entry::<ppo_anakin_gru::Args>(),
    entry::<ppo_atari::Args>(),
    entry::<ppo_atari_envpool::Args>(),
    entry::<ppo_atari_lstm::Args>(),
    entry::<ppo_atari_multigpu::Args>(),
    entry::<ppo_continuous_action::Args>(),
    entry::<ppo_continuous_action_lstm::Args>(),
    entry::<ppo_masked::Args>(),
    entry::<ppo_pettingzoo_ma_atari::Args>(),
    entry::<ppo_rnd_envpool::Args>(),
    entry::<ppo_self_play::Args>(),
    entry::<ppo_trxl::Args>(),
    entry::<pqn::Args>(),
    entry::<pqn_atari_envpool::Args>(),
    entry::<pqn_atari_envpool_lstm::Args>(),
    entry::<qdagger_dqn_atari::Args>(),
    entry::<qrdqn::Args>(),
    entry::<rainbow_atari::Args>(),
    entry::<rpo_continuous_action::Args>(),
    entry::<sac_atari::Args>(),
    entry::<sac_continuous_action::Args>(),
    entry::<sebulba_sac::Args>(),
    entry::<simba_sac::Args>(),
    entry::<td3_continuous_action::Args>(),
];

/// CleanRL's scripts under other names than the algorithms here.
const SCRIPTS: [(&str, &str); 11] = [
    ("c51_atari_jax", "c51_atari"),
    ("c51_jax", "c51"),
    ("ddpg_continuous_action_jax", "ddpg_continuous_action"),
    ("dqn_atari_jax", "dqn_atari"),
    ("dqn_jax", "dqn"),
    ("ppg_procgen", "ppg"),
    ("ppo_atari_envpool_xla_jax", "ppo_atari_envpool"),
    ("ppo_atari_envpool_xla_jax_scan", "ppo_atari_envpool"),
    ("qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari"),
    ("qdagger_dqn_atari_jax_impalacnn", "qdagger_dqn_atari"),
    ("td3_continuous_action_jax", "td3_continuous_action"),
];

/// CleanRL's scripts that are not here, with the reason.
const ABSENT: [(&str, &str); 2] = [
    ("ppo_continuous_action_isaacgym", "Isaac Gym is not here; ppo_continuous_action has MuJoCo"),
    (
        "ppo_procgen",
        "cleanba_ppo has its network, and --env-id envpool:CoinrunEasy-v0 is a game of Procgen",
    ),
];

/// Returns the algorithm of that name, which may also be that of CleanRL's script, as in
/// `cleanrl/dqn_jax.py`.
///
/// # Errors
/// Returns [`Error::Argument`], with similar names, if there is none.
pub fn find(name: &str) -> Result<&'static Entry> {
    let script = script(name);
    let own = SCRIPTS.iter().find(|(theirs, _)| *theirs == script).map_or(script, |(_, own)| own);
    ALGORITHMS.iter().find(|entry| entry.name == own).ok_or_else(|| {
        if let Some((_, reason)) = ABSENT.iter().find(|(theirs, _)| *theirs == script) {
            return Error::Argument(format!("no algorithm {script}: {reason}"));
        }
        let names: Vec<&str> = ALGORITHMS.iter().map(|entry| entry.name).collect();
        let hint = match &similar(script, &names)[..] {
            [] => ";".into(),
            similar => format!("; did you mean {}?", similar.join(" or ")),
        };
        Error::Argument(format!("no algorithm {name}{hint} `podracer train` lists them"))
    })
}

/// Returns the names with all words of `script`, as `sac_continuous_action` has those of `sac`;
/// without any, the name that differs in the fewest letters, if these are few.
fn similar<'a>(script: &str, names: &[&'a str]) -> Vec<&'a str> {
    let has = |name: &str, word: &str| name.split('_').any(|other| other == word);
    let longer = |name: &&&str| script.split('_').all(|word| has(name, word));
    let longer: Vec<&str> = names.iter().filter(longer).copied().collect();
    if !longer.is_empty() {
        return longer;
    }
    let nearest = names.iter().map(|name| (levenshtein(script, name), *name)).min();
    let few = nearest.filter(|(letters, _)| *letters <= 1 + script.len() / 3);
    few.into_iter().map(|(_, name)| name).collect()
}

/// Returns the name of a script without its folder and its suffix; CleanRL's runs have it as the
/// name of the experiment.
pub fn script(name: &str) -> &str {
    match name.strip_suffix(".py") {
        Some(path) => path.rsplit('/').next().unwrap_or(path),
        None => name,
    }
}

impl Entry {
    /// Returns the names of the flags, and other names of the same flags.
    fn flags(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for flag in (self.command)().get_arguments() {
            names.extend(flag.get_long().map(String::from));
            names.extend(flag.get_all_aliases().into_iter().flatten().map(String::from));
        }
        names
    }

    /// Checks flags against those of other algorithms, for which the parser suggests similar flags of
    /// this one.
    ///
    /// # Errors
    /// Returns [`Error::Argument`] for a flag that only other algorithms have, with their names.
    pub fn ensure_own_flags(&self, words: &[OsString]) -> Result<()> {
        let own = self.flags();
        let words = words.iter().filter_map(|word| word.to_str()?.strip_prefix("--"));
        for word in words.take_while(|word| !word.is_empty()) {
            let name = word.split('=').next().unwrap_or_default().replace('_', "-");
            if own.contains(&name) {
                continue;
            }
            let others = ALGORITHMS.iter().filter(|entry| entry.flags().contains(&name));
            let others: Vec<&str> = others.map(|entry| entry.name).collect();
            if !others.is_empty() {
                let (own, others) = (self.name, others.join(", "));
                let text =
                    format!("--{name}: {own} does not have this flag, but these do: {others}");
                return Err(Error::Argument(text));
            }
        }
        Ok(())
    }
}

/// Returns the names of the algorithms that support the environment.
pub fn fitting(spec: &EnvSpec) -> Vec<&'static str> {
    let fitting = ALGORITHMS.iter().filter(|entry| entry.envs.fits(spec));
    fitting.map(|entry| entry.name).collect()
}

/// Adds the algorithms that support the environment to the error of one that does not.
pub(super) fn with_alternatives<A: Algorithm>(args: &A, error: Error) -> Error {
    match (error, envs::spec(args.env_id())) {
        (Error::Config(text), Ok(spec)) if text.starts_with("--env-id") && !A::ENVS.fits(&spec) => {
            let names = match fitting(&spec).as_slice() {
                [] => "no algorithm here takes it".into(),
                names => format!("what fits it: {}", names.join(", ")),
            };
            Error::Config(format!("{text}; {names}"))
        }
        (error, _) => error,
    }
}

/// Evaluates the model at `path` with the algorithm that saved it.
///
/// # Errors
/// Returns [`Error::File`] for the model of an algorithm that is not in [`ALGORITHMS`], and the
/// errors of the algorithm.
pub fn play(path: &Path, metadata: &SavedMetadata, evaluation: &mut Evaluation) -> Result<()> {
    (saved_by(path, metadata, "evaluates it: `PROGRAM eval")?.play)(path, metadata, evaluation)
}

/// Returns the policy of the model at `path`.
///
/// # Errors
/// Returns [`Error::File`] for the model of an algorithm that is not in [`ALGORITHMS`], and the
/// errors of the algorithm.
pub fn policy(path: &Path, metadata: &SavedMetadata) -> Result<Policy> {
    (saved_by(path, metadata, "exports it: `PROGRAM export")?.policy)(path, metadata)
}

impl TrainedPolicy {
    /// Loads the policy of a model that an algorithm of this crate saved; `run` is the folder of the
    /// run, or the file of the model. No environment is made and nothing is compiled.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; [`Error::File`] if there is no model, if the file is
    /// damaged, if an older version saved it without the spaces of the environment, or if an algorithm
    /// of another program saved it, for which [`load_as`](TrainedPolicy::load_as) is;
    /// [`Error::Argument`] if the policy is recurrent.
    pub fn load(run: impl AsRef<Path>) -> Result<TrainedPolicy> {
        let (path, metadata) = saved_model(run.as_ref(), false)?;
        let advice = "loads it by `TrainedPolicy::load_as`, and evaluates it: `PROGRAM eval";
        (saved_by(&path, &metadata, advice)?.trained_policy)(&path, &metadata)
    }
}

/// Returns the algorithm that saved a model. `advice` is what another program does with it.
fn saved_by(path: &Path, metadata: &SavedMetadata, advice: &str) -> Result<&'static Entry> {
    ALGORITHMS.iter().find(|entry| entry.name == metadata.algorithm).ok_or_else(|| {
        Error::File(format!(
            "{0} was saved by {1}, which is not an algorithm of this command; the program that \
             trained it {advice} --run {0}`",
            path.display(),
            metadata.algorithm
        ))
    })
}

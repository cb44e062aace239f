//! Completion of the command's words in a shell.

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, Elvish, Fish, Powershell, Shells, Zsh};
use podracer::algos::registry::ALGORITHMS;
use podracer::envs::list_envs;
use podracer::error::{Error, Result};

/// Environment variable with which the script of a shell asks for the words that fit.
const VARIABLE: &str = "PODRACER_COMPLETE";
const SHELLS: Shells<'static> = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &Zsh]);

/// Shell that completes the command's words.
#[derive(Debug, Args)]
pub struct Settings {
    /// Shell for which the script is printed
    #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
    shell: String,
}

/// Answers a script that asks for the words that fit, and ends the program then.
pub fn answer<A: CommandFactory>() {
    CompleteEnv::with_factory(completed::<A>).var(VARIABLE).shells(SHELLS).complete();
}

/// Returns the script that makes a shell complete the words of `podracer`.
pub fn script(settings: &Settings) -> Result<String> {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("podracer"));
    let program = program.to_string_lossy();
    let shell = SHELLS.completer(&settings.shell).expect("clap has checked the name");
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "podracer", "podracer", &program, &mut script)
        .map_err(|error| Error::Argument(format!("{}: {error}", settings.shell)))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Flags and arguments that take an id of an environment.
const ENV_IDS: [&str; 3] = ["env_id", "env_ids", "filter"];
/// Flags and arguments that take a name of an algorithm.
const ALGOS: [&str; 2] = ["algo", "algos"];

/// The command with the algorithms as subcommands of `train`, with names of algorithms and ids of
/// environments.
fn completed<A: CommandFactory>() -> Command {
    let algorithms = ALGORITHMS.iter().map(|entry| with_values((entry.command)().name(entry.name)));
    A::command().mut_subcommands(with_values).mut_subcommand("train", |train| {
        let about = train.get_about().cloned().unwrap_or_default();
        Command::new("train").about(about).subcommands(algorithms)
    })
}

/// Offers the values of the flags and arguments that take a known name.
fn with_values(command: Command) -> Command {
    let env_ids = || candidates(list_envs());
    let algos = || candidates(ALGORITHMS.iter().map(|entry| entry.name).collect());
    command.mut_args(|arg| match arg.get_id().as_str() {
        id if ENV_IDS.contains(&id) => arg.add(ArgValueCandidates::new(env_ids)),
        id if ALGOS.contains(&id) => arg.add(ArgValueCandidates::new(algos)),
        _ => arg,
    })
}

fn candidates(names: Vec<&str>) -> Vec<CompletionCandidate> {
    names.into_iter().map(CompletionCandidate::new).collect()
}

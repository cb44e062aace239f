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

/// The command with the algorithms as subcommands of `train`, and with ids of environments.
fn completed<A: CommandFactory>() -> Command {
    let ids = || list_envs().into_iter().map(CompletionCandidate::new).collect::<Vec<_>>();
    let algorithms = ALGORITHMS.iter().map(move |entry| {
        let command = (entry.command)().name(entry.name);
        command.mut_arg("env_id", |arg| arg.add(ArgValueCandidates::new(ids)))
    });
    A::command().mut_subcommand("train", |train| {
        let about = train.get_about().cloned().unwrap_or_default();
        Command::new("train").about(about).subcommands(algorithms)
    })
}

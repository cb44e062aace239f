//! Interface of an algorithm: name, settings, training, evaluation, and its command line.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind as ClapErrorKind;
use clap::{Command, Parser};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::distributed::process_prefix;
use crate::envs::{self, ObsKind};
use crate::error::{Error, Result};
use crate::output;
use crate::rl::buffers::memory;
use crate::rl::checkpoint::saved::{
    CHECKPOINT, MODEL, SavedMetadata, checkpoint_in, ensure_same_settings, settings,
};
use crate::rl::checkpoint::{self, Checkpoint};
use crate::rl::commands::eval::{EvalCommand, saved_model};
use crate::rl::commands::export::ExportCommand;
use crate::rl::environments::support::EnvSupport;
use crate::rl::files;
use crate::rl::interrupt;
use crate::rl::policy::Policy;
use crate::rl::policy::evaluation::Evaluation;
use crate::rl::policy::trained::TrainedPolicy;
use crate::rl::settings::env_options::EnvOptions;
use crate::rl::settings::options::{ENV_TIMEOUT, RunOptions};
use crate::rl::settings::trust::EnvSettings;
use crate::rl::settings::{flags, ranges};
use crate::rl::summary::Summary;
use crate::runtime::RuntimeOptions;

/// An algorithm, represented by its settings: each algorithm's `Args` implements it.
pub trait Algorithm: Parser + Serialize {
    /// Name of the algorithm, as in `ppo_atari`.
    const NAME: &'static str;

    /// Flags inserted before the given ones if the environment has vector observations: defaults for
    /// small environments of an algorithm whose own defaults, `--env-id` among them, are for images.
    const VECTOR_DEFAULTS: &'static [&'static str] = &[];

    /// Environments that the algorithm supports. [`pools::images`](crate::rl::run::pools::images) refuses
    /// others.
    const ENVS: EnvSupport = EnvSupport::ALL;

    /// Returns the options that every algorithm has.
    fn options(&self) -> &RunOptions;
    /// Returns the id of the environment.
    fn env_id(&self) -> &str;
    /// Returns the total number of timesteps of the run.
    fn total_timesteps(&self) -> u64;

    /// Checks what the ranges of single flags do not say: relations between them. Starts nothing.
    ///
    /// # Errors
    /// [`Error::Config`] that names the flag.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Trains an agent. Writes events and, if requested, the model to the run's folder.
    ///
    /// Prints progress to standard error: a bar on a terminal, lines elsewhere. The option
    /// [`json`](RunOptions::json) omits the lines. The result is returned, not printed.
    ///
    /// # Errors
    /// [`Error::Config`] for settings out of range, and errors of the environments, compilation,
    /// execution and file I/O.
    fn train(&self) -> Result<Summary>;

    /// Adds advice to an error of [`train`](Algorithm::train).
    fn explain(&self, error: Error) -> Error {
        error
    }

    /// Returns the policy of a saved model, which [`play`](Algorithm::play) evaluates and the
    /// command `export` writes for other programs.
    ///
    /// # Errors
    /// [`Error::Argument`] for a model of other sizes, and for algorithms that have no such function;
    /// errors of the environments.
    fn policy(&self, _model: &Checkpoint) -> Result<Policy> {
        Err(Error::Argument(format!(
            "{} has no policy to export: `Algorithm::policy` is not implemented",
            Self::NAME
        )))
    }

    /// Evaluates a saved model: plays the episodes of `evaluation` with its
    /// [`policy`](Algorithm::policy).
    ///
    /// # Errors
    /// Returns the errors of [`policy`](Algorithm::policy), of the environments, of compilation and
    /// of execution.
    fn play(&self, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
        let name = format!("{}_evaluate", Self::NAME);
        self.policy(model)?.play(&name, self.options().mode, evaluation)
    }

    /// Parses the settings from a command line without the program's name:
    /// `Args::from_flags(["--seed", "3"])`. [`check`](check()) and [`train`](Algorithm::train)
    /// compare numbers with their ranges.
    ///
    /// # Errors
    /// Returns clap's errors, which are no [`Error`]: `map_err(|e| Error::Config(e.to_string()))?`, or `?`
    /// in a function that returns `Box<dyn std::error::Error>`.
    fn from_flags<'a>(
        given: impl IntoIterator<Item = &'a str>,
    ) -> std::result::Result<Self, clap::Error> {
        let words = [Self::NAME].into_iter().chain(given).map(Into::into);
        parse_with(command::<Self>, words.collect())
    }
}

/// Implements [`Algorithm`] for a struct of flags with the fields `run`, `env_id` and `total_timesteps`:
/// `algorithm!(Args, "dqn", Args::check, train, policy)`.
///
/// The functions have the signatures of the trait's methods, with `&Args` in the place of `&self`.
/// `Args::check` is optional. `play = evaluate` in the place of `policy`, or after it, is an evaluation
/// of its own. `docs/custom-algorithm.md` in the repository has a complete program.
#[macro_export]
macro_rules! algorithm {
    ($args:ty, $name:literal, $train:path, play = $play:path) => {
        $crate::algorithm!(@with $args, $name, $train, [], [$play], {});
    };
    ($args:ty, $name:literal, $train:path, $policy:path $(, play = $play:path)?) => {
        $crate::algorithm!(@with $args, $name, $train, [$policy], [$($play)?], {});
    };
    ($args:ty, $name:literal, $check:path, $train:path, play = $play:path) => {
        $crate::algorithm!(@with $args, $name, $train, [], [$play], {
            fn check(&self) -> $crate::Result<()> {
                $check(self)
            }
        });
    };
    ($args:ty, $name:literal, $check:path, $train:path, $policy:path $(, play = $play:path)?) => {
        $crate::algorithm!(@with $args, $name, $train, [$policy], [$($play)?], {
            fn check(&self) -> $crate::Result<()> {
                $check(self)
            }
        });
    };
    (@with $args:ty, $name:literal, $train:path, [$($policy:path)?], [$($play:path)?],
        { $($items:tt)* }) => {
        impl $crate::rl::Algorithm for $args {
            const NAME: &'static str = $name;

            $($items)*

            fn options(&self) -> &$crate::rl::RunOptions {
                &self.run
            }

            fn env_id(&self) -> &str {
                &self.env_id
            }

            fn total_timesteps(&self) -> u64 {
                self.total_timesteps
            }

            fn train(&self) -> $crate::Result<$crate::rl::Summary> {
                $crate::rl::algorithm::check(self)?;
                $train(self).map_err(|error| self.explain(error))
            }

            $(fn policy(
                &self,
                model: &$crate::rl::checkpoint::Checkpoint,
            ) -> $crate::Result<$crate::rl::Policy> {
                $policy(self, model)
            })?

            $(fn play(
                &self,
                model: &$crate::rl::checkpoint::Checkpoint,
                evaluation: &mut $crate::rl::Evaluation,
            ) -> $crate::Result<()> {
                $play(self, model, evaluation)
            })?
        }
    };
}

/// Checks that a run with these settings is possible: names stay within the run's folder, numbers
/// are in range, settings are consistent, and the memory suffices. Starts nothing.
///
/// # Errors
/// [`Error::Config`] that names the flag.
pub fn check<A: Algorithm>(args: &A) -> Result<()> {
    check_names_and_ranges(args)?;
    if args.options().cuda == Some(false) && RuntimeOptions::default().uses_gpus() {
        return Err(Error::Config(
            "--no-cuda: PODRACER_PLATFORM chooses a GPU; unset it to train on the CPU".into(),
        ));
    }
    args.check()?;
    memory::ensure_room(args.env_id(), &settings(args)?)
}

/// Parses a command line, whose first word is the program's name, and returns all settings with the
/// digits of their text, as in `2.5e-4`. Names and ranges are checked; nothing is started.
///
/// # Errors
/// [`Error::Config`] that names the flag.
pub(crate) fn settings_of<A: Algorithm>(args: Vec<OsString>) -> Result<Map<String, Value>> {
    let args = parse::<A>(args).map_err(|error| Error::Config(error.to_string()))?;
    check_names_and_ranges(&args)?;
    // A JSON value keeps the digits of an f32 as those of an f64.
    let text = serde_json::to_string(&args).and_then(|text| serde_json::from_str(&text));
    text.map_err(|error| Error::Config(format!("the settings of {}: {error}", A::NAME)))
}

/// Does the part of [`check`] that needs no environment.
pub(in crate::rl) fn check_names_and_ranges<A: Algorithm>(args: &A) -> Result<()> {
    check_names(args.options(), args.env_id())?;
    ranges::ensure(&settings(args)?, &A::command())
}

fn check_names(options: &RunOptions, env_id: &str) -> Result<()> {
    let name = &options.exp_name;
    files::ensure_plain_name("exp-name", name)?;
    files::ensure_env_id(env_id)?;
    options.set_env_options(env_id)?;
    if CHECKPOINT.strip_suffix(MODEL) == Some(name) {
        return Err(Error::Config(format!(
            "--exp-name {name}: the model would take the place of the checkpoint {CHECKPOINT}"
        )));
    }
    Ok(())
}

/// Parses a command line, whose first word is the program's name. With `--resume` the settings are
/// those of the resumed run, overridden by the other flags.
///
/// # Errors
/// Returns clap's errors, and errors of the checkpoint.
pub fn parse<A: Algorithm>(
    args: impl IntoIterator<Item = OsString>,
) -> std::result::Result<A, clap::Error> {
    parse_with(ranged_command::<A>, args.into_iter().collect())
}

/// Returns the command of `A`; `--exp-name` has the algorithm's name as its default.
fn command<A: Algorithm>() -> Command {
    flags::command::<A>().mut_arg("exp_name", |arg| arg.default_value(A::NAME))
}

/// Returns the command of `A` with the ranges of its flags.
pub(crate) fn ranged_command<A: Algorithm>() -> Command {
    ranges::ranged(command::<A>())
}

fn parse_with<A: Algorithm>(
    command: fn() -> Command,
    args: Vec<OsString>,
) -> std::result::Result<A, clap::Error> {
    let args = match A::VECTOR_DEFAULTS {
        [] => args,
        flags => {
            let ids = [self::command::<A>(), command()].map(|command| default_env(&command));
            with_vector_defaults(flags, ids, args)
        }
    };
    let parsed: A = flags::parse_with(command(), args.clone())?;
    let Some(run) = &parsed.options().resume else { return Ok(parsed) };
    let refused = |error| resume_refused(command(), &args, &error);
    let path = checkpoint_in(run);
    let metadata = saved_by(A::NAME, &path).map_err(refused)?;
    let resumed: A = flags::parse_with(command(), with_saved_flags(&args, &metadata))?;
    settings(&resumed).and_then(|known| metadata.ensure_known(&known, &path)).map_err(refused)?;
    // Python code that the settings name is named by the command line, or permitted by it. A file cannot set
    // the flag.
    let env = EnvSettings::new(resumed.env_id(), resumed.options());
    let is_trusted = parsed.options().trust_remote_code
        || env == EnvSettings::new(parsed.env_id(), parsed.options());
    env.ensure_trusted(&path, is_trusted).map_err(refused)?;
    Ok(resumed)
}

/// Returns the command line with the flags of the run that it resumes before its own.
fn with_saved_flags(args: &[OsString], metadata: &SavedMetadata) -> Vec<OsString> {
    let (name, given) = args.split_first().expect("the program's name comes first");
    let saved = metadata.flags();
    [name].into_iter().chain(&saved).chain(given).cloned().collect()
}

/// Returns the error of a command line whose run cannot be resumed.
fn resume_refused(command: Command, args: &[OsString], error: &Error) -> clap::Error {
    let name = args.first().map(|name| name.to_string_lossy().into_owned());
    let mut command = command.bin_name(name.unwrap_or_default());
    command.error(ClapErrorKind::ValueValidation, format!("--resume: {error}"))
}

/// Returns the default of `--env-id`.
fn default_env(command: &Command) -> String {
    let env_id = command.get_arguments().find(|arg| arg.get_id() == "env_id");
    let id = env_id.and_then(|arg| arg.get_default_values().first());
    id.map(|id| id.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Inserts `defaults` before the given flags if the environment, which is `default` unless they name
/// one, has vector observations; not if a run is resumed, which has settings. `images` is an
/// environment with images: finding out what it observes would fetch its native parts.
fn with_vector_defaults(
    defaults: &[&str],
    [images, default]: [String; 2],
    mut args: Vec<OsString>,
) -> Vec<OsString> {
    let words: Vec<String> = args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let shows_vectors = |id: String| {
        let peek = |name| flags::peek_in(words.clone(), name);
        let (kwargs, wrappers) = (peek("env-kwargs"), peek("env-wrappers"));
        let timeout = peek("env-timeout").and_then(|seconds| seconds.parse().ok());
        let options = EnvOptions {
            kwargs: kwargs.as_deref(),
            wrappers: wrappers.as_deref(),
            timeout: timeout.unwrap_or(ENV_TIMEOUT),
        };
        // Parsing reports errors of the options.
        options.set(&id).is_ok()
            && envs::spec(&id)
                .is_ok_and(|spec| ObsKind::of(&spec.observation) == Some(ObsKind::Vector))
    };
    let resumed = flags::peek_in(words.clone(), "resume").is_some();
    let env_id = flags::peek_in(words.clone(), "env-id").unwrap_or(default);
    if !resumed && env_id != images && shows_vectors(env_id) {
        args.splice(1..1, defaults.iter().map(OsString::from));
    }
    args
}

/// Returns the environment id of a command line before it is parsed: the value of `--env-id`,
/// otherwise that of the run that `--resume` names.
pub fn env_id_in(args: impl IntoIterator<Item = String>) -> Option<String> {
    let args: Vec<String> = args.into_iter().collect();
    flags::peek_in(args.clone(), "env-id").or_else(|| {
        let run = flags::peek_in(args, "resume")?;
        // Parsing reports errors of the checkpoint.
        let metadata = SavedMetadata::read(&checkpoint_in(Path::new(&run))).ok()?;
        Some(metadata.settings.get("env_id")?.as_str()?.to_string())
    })
}

/// Reads the metadata of a file, which the algorithm of this name saved.
fn saved_by(algorithm: &str, path: &Path) -> Result<SavedMetadata> {
    let metadata = SavedMetadata::read(path)?;
    metadata.ensure_algorithm(algorithm, path)?;
    Ok(metadata)
}

/// Reads the metadata of the run that `args` resume from the checkpoint `path`, and checks that their
/// settings are those with which it began. A setting that the file lacks had no flag yet and counts as the
/// default.
///
/// # Errors
/// Returns errors of the file, and [`Error::Config`] that names the first flag that differs.
pub(in crate::rl) fn resumed_metadata<A: Algorithm>(
    args: &A,
    path: &Path,
) -> Result<SavedMetadata> {
    let metadata = saved_by(A::NAME, path)?;
    let words = with_saved_flags(&[A::NAME.into()], &metadata);
    let began: A = flags::parse_with(ranged_command::<A>(), words)
        .map_err(|error| Error::Config(format!("the settings of {}: {error}", path.display())))?;
    ensure_same_settings(&settings(args)?, &settings(&began)?, path)?;
    Ok(metadata)
}

/// Evaluates a model that `A` saved, with the settings of its run.
///
/// # Errors
/// [`Error::Argument`] for the model of another algorithm, and the errors of [`Algorithm::play`].
pub(crate) fn play_saved<A: Algorithm>(
    path: &Path,
    metadata: &SavedMetadata,
    evaluation: &mut Evaluation,
) -> Result<()> {
    saved_settings::<A>(path, metadata)?.play(&checkpoint::load(path)?, evaluation)
}

/// Returns the policy of a model that `A` saved, for a program that does not train.
///
/// # Errors
/// As [`policy_of`]; [`Error::Argument`] for a recurrent policy.
pub(crate) fn trained_policy<A: Algorithm>(
    path: &Path,
    metadata: &SavedMetadata,
) -> Result<TrainedPolicy> {
    TrainedPolicy::new(A::NAME, policy_of::<A>(path, metadata)?)
}

impl TrainedPolicy {
    /// Loads a policy that the algorithm `A` saved, one of another crate: what
    /// [`load`](TrainedPolicy::load) does for those of this crate.
    ///
    /// # Errors
    /// As [`load`](TrainedPolicy::load).
    pub fn load_as<A: Algorithm>(run: impl AsRef<Path>) -> Result<TrainedPolicy> {
        let (path, metadata) = saved_model(run.as_ref(), false)?;
        trained_policy::<A>(&path, &metadata)
    }
}

/// Returns the policy of a model that `A` saved. The model says which spaces the environment has, so that
/// none is made.
///
/// # Errors
/// [`Error::Argument`] for the model of another algorithm, and for one without the spaces; errors of
/// [`Algorithm::policy`].
pub(crate) fn policy_of<A: Algorithm>(path: &Path, metadata: &SavedMetadata) -> Result<Policy> {
    let args: A = parse_saved(path, metadata)?;
    // Options for Python in the file do not become those of this process.
    files::ensure_env_id(args.env_id())?;
    ranges::ensure(&settings(&args)?, &A::command())?;
    args.check()?;
    let recorded = args.options().recorded_spec.set(metadata.spec(path)?);
    recorded.expect("it is empty after parsing");
    let spaces = metadata.env_spec.as_ref().and_then(|saved| saved.gymnasium.clone());
    Ok(args.policy(&checkpoint::load(path)?)?.with_gymnasium_spaces(spaces))
}

/// Parses the settings of the run that saved a model.
fn parse_saved<A: Algorithm>(path: &Path, metadata: &SavedMetadata) -> Result<A> {
    metadata.ensure_algorithm(A::NAME, path)?;
    let words = with_saved_flags(&[A::NAME.into()], metadata);
    let args: A = flags::parse_with(ranged_command::<A>(), words)
        .map_err(|error| Error::File(format!("the settings in {}: {error}", path.display())))?;
    metadata.ensure_known(&settings(&args)?, path)?;
    Ok(args)
}

/// Returns the settings of the run that saved a model, which name an environment of trusted code.
fn saved_settings<A: Algorithm>(path: &Path, metadata: &SavedMetadata) -> Result<A> {
    let args: A = parse_saved(path, metadata)?;
    let env = EnvSettings::new(args.env_id(), args.options());
    env.ensure_trusted(path, metadata.is_trusted())?;
    check(&args)?;
    Ok(args)
}

/// Runs `eval` of a program that has the one algorithm `A`; `args` follow the word `eval`.
///
/// # Errors
/// Returns clap's errors as the outer result, those of the evaluation as the inner one.
pub(in crate::rl) fn eval_own<A: Algorithm>(
    program: &OsStr,
    args: &[OsString],
) -> std::result::Result<Result<String>, clap::Error> {
    let command = flags::parse_from::<EvalCommand>(words(program, "eval", args))?;
    Ok(command.options.evaluate(play_saved::<A>))
}

/// Runs `export` of a program that has the one algorithm `A`; `args` follow the word `export`.
///
/// # Errors
/// Returns clap's errors as the outer result, those of the export as the inner one.
fn export_own<A: Algorithm>(
    program: &OsStr,
    args: &[OsString],
) -> std::result::Result<Result<String>, clap::Error> {
    let command = flags::parse_from::<ExportCommand>(words(program, "export", args))?;
    Ok(command.options.export(policy_of::<A>))
}

/// Returns the command line of a program's subcommand.
fn words(program: &OsStr, subcommand: &str, args: &[OsString]) -> Vec<OsString> {
    let file = Path::new(program).file_name().unwrap_or(program).display();
    [format!("{file} {subcommand}").into()].into_iter().chain(args.iter().cloned()).collect()
}

/// Help of an algorithm's program on the words that it takes in place of flags.
const SUBCOMMANDS: &str = "\
In place of flags:
  eval --run RUN    Evaluate a saved model; `eval --help` lists its flags
  export --run RUN  Write its policy for other programs; `export --help` lists its flags
";

/// Entry point of an algorithm's program: trains with the flags of the command line, or with the
/// word `eval` evaluates a saved model, with `export` writes its policy, and prints the result or the
/// error. The default of `--env-id` is the environment that the program has registered, if it is one.
pub fn main<A: Algorithm>() -> ExitCode {
    interrupt::handle_until_exit();
    let command =
        || with_default_env(ranged_command::<A>(), envs::only_registered()).after_help(SUBCOMMANDS);
    run_as::<A>(command, std::env::args_os().collect())
}

/// Makes the environment `id`, if there is one, the default of `--env-id`.
pub(crate) fn with_default_env(command: Command, id: Option<&'static str>) -> Command {
    match id {
        Some(id) => command.mut_arg("env_id", |arg| arg.default_value(id)),
        None => command,
    }
}

/// Like [`main`], with the given command line.
pub fn run<A: Algorithm>(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    run_as::<A>(ranged_command::<A>, args.into_iter().collect())
}

fn run_as<A: Algorithm>(command: fn() -> Command, mut args: Vec<OsString>) -> ExitCode {
    if args.is_empty() {
        args.push(A::NAME.into());
    }
    match args.get(1).and_then(|word| word.to_str()) {
        Some("eval") => print(eval_own::<A>(&args[0], &args[2..]), false),
        Some("export") => print(export_own::<A>(&args[0], &args[2..]), false),
        _ => print(parse_with(command, args).map(|args: A| trained(&args)), true),
    }
}

/// Prints the text of a result, or the error. `trains` if a run was trained.
fn print(outcome: std::result::Result<Result<String>, clap::Error>, trains: bool) -> ExitCode {
    let text = match outcome {
        Ok(text) => text,
        Err(error) => exit_with(&error),
    };
    let full_disk = trains
        && matches!(&text, Err(Error::Io { source, .. }) if source.kind() == ErrorKind::StorageFull);
    match text.and_then(|text| output::print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::stderr_line(format_args!("error: {}{error}", process_prefix()));
            if full_disk {
                output::stderr_line(
                    "once there is room, `--resume RUN` continues from the last checkpoint; with \
                     `--on-write-error continue` a run goes on without the files",
                );
            }
            ExitCode::FAILURE
        }
    }
}

/// Prints an error of the command line and exits. Of several processes, it names this one.
fn exit_with(error: &clap::Error) -> ! {
    let (prefix, text) = (process_prefix(), error.to_string());
    let is_plain = matches!(output::escaped(&text), Cow::Borrowed(_));
    if !error.use_stderr() || (prefix.is_empty() && is_plain) {
        error.exit();
    }
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    output::stderr_line(format_args!("error: {prefix}{}", text.trim_end()));
    std::process::exit(error.exit_code())
}

/// Trains and returns the text of the result.
fn trained<A: Algorithm>(args: &A) -> Result<String> {
    Ok(text_of(&args.train()?, args.options().json))
}

fn text_of(summary: &Summary, json: bool) -> String {
    match json {
        // Only the first process prints the result.
        _ if summary.rank > 0 => String::new(),
        true => format!("{summary}\n"),
        false => format!("{}\n", summary.in_words()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_of_vectors_get_the_defaults_for_them() {
        let line_of = |default: &str, words: &str| {
            let args = words.split(' ').map(OsString::from).collect();
            let ids = ["Breakout-v5", default].map(String::from);
            let args = with_vector_defaults(&["--a=1"], ids, args).into_iter();
            args.map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let line = |words| line_of("Breakout-v5", words);
        assert_eq!(line("x --env-id CartPole-v1 --a=2"), "x --a=1 --env-id CartPole-v1 --a=2");
        assert_eq!(line("x --env_id CartPole-v1"), "x --a=1 --env_id CartPole-v1");
        assert_eq!(line("x --env-id=Pong-v5"), "x --env-id=Pong-v5");
        assert_eq!(line("x --env-id none"), "x --env-id none");
        assert_eq!(line("x"), "x");
        // A program with an environment of its own has it as the default.
        assert_eq!(line_of("CartPole-v1", "x"), "x --a=1");
        assert_eq!(line_of("CartPole-v1", "x --env-id Breakout-v5"), "x --env-id Breakout-v5");
    }
}

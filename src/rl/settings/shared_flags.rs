//! Rules of the flags that algorithms share: their group in the help, and what happens to them in saved
//! and distributed runs. The flags themselves are in [`options`](crate::rl::settings::options).

/// Description of a flag. Flags without one are specific to an algorithm: a saved run keeps their
/// values, and all processes of a run have the same.
pub(in crate::rl) struct SharedFlag {
    /// Name of the setting, with underscores.
    name: &'static str,
    /// Heading in the help, of a flag that every algorithm has.
    heading: Option<&'static str>,
    saved: Saved,
    /// True if the processes of a run may have different values.
    differs_by_process: bool,
}

/// Part of a flag in a run that is resumed or evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// It affects what is learned: a resumed run has the saved value.
    Fixed,
    /// A resumed run has the saved value unless the flag is given.
    Overridable,
    /// It affects output only: the saved value is not used.
    NotRestored,
}

use Saved::{Fixed, NotRestored, Overridable};

/// Heading of the first block of CleanRL's `Args`.
pub(in crate::rl) const EXPERIMENT: &str = "Experiment";
/// Heading of the flags of every algorithm that CleanRL does not have.
pub(in crate::rl) const RUN: &str = "Run";

const fn experiment(name: &'static str, saved: Saved, differs_by_process: bool) -> SharedFlag {
    SharedFlag { name, heading: Some(EXPERIMENT), saved, differs_by_process }
}

const fn run(name: &'static str, saved: Saved, differs_by_process: bool) -> SharedFlag {
    SharedFlag { name, heading: Some(RUN), saved, differs_by_process }
}

const fn distributed(name: &'static str, saved: Saved, differs_by_process: bool) -> SharedFlag {
    SharedFlag { name, heading: None, saved, differs_by_process }
}

const FLAGS: [SharedFlag; 28] = [
    experiment("exp_name", Fixed, false),
    experiment("seed", Fixed, false),
    experiment("torch_deterministic", NotRestored, false),
    experiment("cuda", NotRestored, false),
    experiment("track", NotRestored, true),
    experiment("wandb_project_name", NotRestored, true),
    experiment("wandb_entity", NotRestored, true),
    experiment("wandb_group", NotRestored, true),
    experiment("capture_video", Overridable, true),
    experiment("save_model", Overridable, true),
    experiment("upload_model", NotRestored, true),
    experiment("hf_entity", NotRestored, true),
    run("env_kwargs", Fixed, false),
    run("env_wrappers", Fixed, false),
    run("env_timeout", Overridable, false),
    run("mode", Fixed, false),
    run("json", NotRestored, true),
    run("eval_episodes", Overridable, false),
    run("check_nans", Overridable, false),
    run("timeline", NotRestored, true),
    run("runs_dir", NotRestored, true),
    run("num_threads", Overridable, true),
    run("checkpoint_frequency", Overridable, false),
    run("on_write_error", Overridable, false),
    run("resume", NotRestored, false),
    run("trust_remote_code", NotRestored, true),
    distributed("live_view", Overridable, true),
    distributed("join_timeout", Overridable, true),
];

fn flag(setting: &str) -> Option<&'static SharedFlag> {
    FLAGS.iter().find(|flag| flag.name == setting)
}

/// Returns the heading in the help of a flag that every algorithm has.
pub(in crate::rl) fn heading(setting: &str) -> Option<&'static str> {
    flag(setting)?.heading
}

/// Returns true for a setting that may differ when a run is resumed: it does not affect what was learned
/// so far.
pub(in crate::rl) fn is_overridable(setting: &str) -> bool {
    flag(setting).is_some_and(|flag| flag.saved != Fixed)
}

/// Returns true for a setting that a saved file brings back.
pub(in crate::rl) fn is_restored(setting: &str) -> bool {
    flag(setting).is_none_or(|flag| flag.saved != NotRestored)
}

/// Returns true for a setting that may differ between the processes of a run.
pub(in crate::rl) fn differs_by_process(setting: &str) -> bool {
    flag(setting).is_some_and(|flag| flag.differs_by_process)
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::rl::settings::options::RunOptions;

    /// A flag without a description would be shown among those of the algorithm, and a resumed run would
    /// refuse another value.
    #[test]
    fn every_flag_of_every_algorithm_has_a_description() {
        let command = RunOptions::augment_args(clap::Command::new("test"));
        for arg in command.get_arguments() {
            assert!(heading(arg.get_id().as_str()).is_some(), "{}", arg.get_id());
        }
    }

    #[test]
    fn names_are_unique() {
        for (k, flag) in FLAGS.iter().enumerate() {
            assert!(FLAGS[..k].iter().all(|other| other.name != flag.name), "{}", flag.name);
        }
    }
}

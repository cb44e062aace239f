//! Host side of a training loop: events, progress, checkpoints, interruption, result.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::array::Array;
use crate::envs::EnvSpec;
use crate::error::{Error, Result};
use crate::jit::cache::SharedStats;
use crate::jit::{Jit, Mode, jit};
use crate::output;
use crate::pmap::{Pmap, pmap_with_mode};
use crate::rl::algorithm::{self, Algorithm};
use crate::rl::checkpoint;
use crate::rl::checkpoint::saved::{self, CHECKPOINT, Envs, MODEL, SavedMetadata, checkpoint_in};
use crate::rl::files;
use crate::rl::interrupt::{self, Interruptible};
use crate::rl::logging::tensorboard::continues;
use crate::rl::logging::track::Tracker;
use crate::rl::logging::training_video::{self, TrainingVideos};
use crate::rl::logging::{ffmpeg, hub};
use crate::rl::policy::evaluation::Evaluation;
use crate::rl::run::Run;
use crate::rl::run::episodes::EpisodeRecord;
use crate::rl::run::progress::{Above, Progress};
use crate::rl::settings::options::{OnWriteError, RunOptions};
use crate::rl::settings::trust::EnvSettings;
use crate::rl::summary::Summary;
use crate::runtime::Runtime;
use crate::timeline::{self, Timeline};
use crate::trace::{Axis, Tensor};
use crate::tree::{self, Tree};

/// Minimum number of timesteps between two entries of one tag, where a call returns many values.
const LOG_INTERVAL: u64 = 100;
/// Exit code with which the Python package of Weights & Biases marks interrupted runs.
const INTERRUPTED: i32 = 255;

/// Host side of an algorithm's training loop: the run folder, logs, checkpoints, and the decision
/// when to stop.
///
/// ```
/// use clap::Parser;
/// use podracer::rl::checkpoint::Checkpoint;
/// use podracer::rl::{Evaluation, RunOptions, Summary, Trainer};
/// use podracer::{Array, Result, Tensor, Tree, algorithm};
///
/// /// Halves a number until the timesteps are used up
/// #[derive(Debug, Parser, serde::Serialize)]
/// struct Args {
///     #[arg(long, default_value = "CartPole-v1")]
///     env_id: String,
///     #[arg(long, default_value = "100")]
///     total_timesteps: u64,
///     #[command(flatten)]
///     #[serde(flatten)]
///     run: RunOptions,
/// }
///
/// algorithm!(Args, "halve", train, play = play);
///
/// #[derive(Tree)]
/// struct Metrics<T> {
///     loss: T, // logged as losses/loss
/// }
///
/// fn train(args: &Args) -> Result<Summary> {
///     let mut trainer = Trainer::start(args, 20)?; // 20 timesteps an iteration
///     let halve = trainer.jit("step", |x: Tensor| (x / 2.0, Metrics { loss: x }));
///     // With --resume: the state of the checkpoint. There are no environments here.
///     let mut state = trainer.init_or_resume(Array::from(8.0f32), ())?;
///     while trainer.should_continue() {
///         let (next_state, metrics) = halve.call(state)?;
///         state = next_state;
///         trainer.record(&[], Some(&metrics))?;
///         trainer.checkpoint_if_due(&state, ())?;
///     }
///     trainer.finish(&state)
/// }
///
/// fn play(_: &Args, _: &Checkpoint, _: &mut Evaluation) -> Result<()> {
///     Ok(())
/// }
///
/// # fn main() -> Result<()> {
/// # use podracer::rl::Algorithm;
/// # let folder = tempfile::tempdir().unwrap();
/// # let runs = folder.path().to_str().unwrap();
/// # let args = Args::from_flags(["--json", "--runs-dir", runs]).unwrap();
/// let summary = args.train()?;
/// assert_eq!(summary.global_step, 100);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Trainer<'a, A> {
    args: &'a A,
    /// The run: its folder, its event file, its returns.
    pub run: Run,
    progress: Progress,
    timeline: Option<Timeline>,
    /// Number of timesteps of all environments so far.
    global_step: u64,
    /// Number of timesteps of the next iteration, all environments together.
    pub iteration_steps: u64,
    /// Timestep at which the run ends at the latest.
    end: u64,
    /// Decision of this iteration whether to stop, which several processes make together. A request
    /// that comes later counts in the next iteration.
    stop: Option<bool>,
    /// True once the run has stopped before its end.
    stopped: bool,
    /// Timestep at which `--resume` continued.
    resumed_at: Option<u64>,
    /// Timestep of the last checkpoint.
    last_checkpoint: u64,
    /// Time and timestep of the last speed measurement.
    window: (Instant, u64),
    /// Additional host state of the algorithm's loop; checkpoints save it.
    pub extra_state: Value,
    /// Compilation times of the programs that [`jit`](Trainer::jit) and [`pmap`](Trainer::pmap) made.
    programs: Vec<SharedStats>,
    /// Seconds of compilation of other programs.
    other_compile_s: f64,
    /// Learning rate of this iteration, not logged yet.
    learning_rate: Option<f64>,
    /// Number of devices used.
    pub devices: usize,
    /// Rank of this process: only the first process saves checkpoints and the model.
    rank: usize,
    /// True once a write error was reported; it is reported once.
    write_failed: bool,
    /// Videos of training episodes, with `--capture-video`.
    videos: Option<TrainingVideos>,
    /// False if the environment is known not to render.
    renders: bool,
    /// Specification of the environments, which the model records.
    pub(in crate::rl) env_spec: Option<EnvSpec>,
    _interruptible: Interruptible,
}

impl<'a, A: Algorithm> Trainer<'a, A> {
    /// Creates the run's folder and its event file; with `--resume` opens the existing ones. Each
    /// iteration of the training loop takes `iteration_steps` timesteps, all environments together.
    ///
    /// # Errors
    /// Returns the errors of [`Run::create`], and errors of the checkpoint.
    pub fn start(args: &'a A, iteration_steps: u64) -> Result<Trainer<'a, A>> {
        Trainer::start_rank(args, iteration_steps, 0)
    }

    /// Like [`start`](Trainer::start), for process `rank` of a run. All processes but the first
    /// have a folder of their own for their events, display nothing, and save nothing else.
    ///
    /// # Errors
    /// Returns the same errors as [`start`](Trainer::start).
    pub(crate) fn start_rank(
        args: &'a A,
        iteration_steps: u64,
        rank: usize,
    ) -> Result<Trainer<'a, A>> {
        algorithm::check_names_and_ranges(args)?;
        let options = args.options();
        let timeline = options.timeline.as_ref().map(timeline::start).transpose()?;
        let interruptible = Interruptible::start()?;
        let mut run = match &options.resume {
            _ if rank > 0 => {
                let exp_name = format!("{}_process{rank}", options.exp_name);
                Run::create(&options.runs_dir, &exp_name, args.env_id(), options.seed, args)?
            }
            None => {
                let exp_name = &options.exp_name;
                Run::create(&options.runs_dir, exp_name, args.env_id(), options.seed, args)?
            }
            Some(run) => {
                let path = checkpoint_in(run);
                // Without a checkpoint there is no run to lock.
                SavedMetadata::read(&path)?;
                let lock = Run::lock(&path)?;
                let metadata = SavedMetadata::read(&path)?;
                metadata.ensure_algorithm(A::NAME, &path)?;
                let run_state = metadata.checked_run_state(&path)?;
                let run_state = (&run_state, lock);
                Run::reopen(&path, &options.exp_name, args.env_id(), options.seed, run_state)?
            }
        };
        if options.on_write_error == OnWriteError::Continue {
            run.events.ignore_errors();
        }
        if rank == 0 {
            EnvSettings::new(args.env_id(), options).remember();
            options.report_flags_without_effect();
            if options.track {
                let settings = saved::settings(args)?;
                let tracker = Tracker::start((&run.name, &run.dir), options, settings);
                tracker.into_iter().for_each(|tracker| run.events.track(tracker));
            }
        }
        let end = args.total_timesteps();
        Ok(Trainer {
            args,
            run,
            progress: match rank {
                0 => Progress::new(end, options.json),
                _ => Progress::quiet(),
            },
            timeline,
            global_step: 0,
            iteration_steps,
            end,
            stop: None,
            stopped: false,
            resumed_at: None,
            last_checkpoint: 0,
            window: (Instant::now(), 0),
            extra_state: Value::Null,
            programs: Vec::new(),
            other_compile_s: 0.0,
            learning_rate: None,
            devices: 1,
            rank,
            write_failed: false,
            videos: None,
            renders: true,
            env_spec: None,
            _interruptible: interruptible,
        })
    }

    /// Makes a program of the training loop, as [`jit`](jit()) does: in the mode of `--mode`, with the name
    /// `{algorithm}_{name}`, and with `--check-nans` searched for NaNs. The result of the run includes its
    /// compilation time.
    #[track_caller]
    pub fn jit<X, Y, F>(&mut self, name: &str, f: F) -> Jit<X, Y, F>
    where
        X: Tree<Tensor>,
        Y: Tree<Tensor>,
        F: Fn(X) -> Y,
    {
        let RunOptions { mode, check_nans, .. } = *self.args.options();
        let program = jit(f).named(format!("{}_{name}", A::NAME));
        self.programs.push(program.shared_stats());
        program.with_mode(mode).check_nans(check_nans)
    }

    /// Makes a program of several devices, as [`pmap`](crate::pmap()) does: like [`jit`](Trainer::jit).
    /// `--check-nans` has no effect on it.
    #[track_caller]
    pub fn pmap<X, Y, F>(&mut self, name: &str, axis: &'static str, f: F) -> Pmap<X, Y, F>
    where
        X: Tree<Tensor>,
        Y: Tree<Tensor>,
        F: Fn(Axis, X) -> Y,
    {
        let program = pmap_with_mode(self.args.options().mode, axis, f);
        self.programs.push(program.shared_stats());
        program.named(format!("{}_{name}", A::NAME))
    }

    /// Adds the compilation time, in seconds, of a program that the trainer did not make.
    pub fn add_compile_seconds(&mut self, seconds: f64) {
        self.other_compile_s += seconds;
    }

    /// Returns the number of iterations so far, if all are of the same size.
    pub fn iteration(&self) -> u64 {
        self.global_step / self.iteration_steps
    }

    /// Returns the learning rate of this iteration, `f32[]`: `initial`, or with `anneal` a fraction of it
    /// that falls linearly to 0. [`record`](Trainer::record) logs it as `charts/learning_rate`.
    pub fn learning_rate(&mut self, initial: f64, anneal: bool) -> Array {
        let num_iterations = self.end / self.iteration_steps;
        let rate = match anneal {
            true => initial * (1.0 - self.iteration() as f64 / num_iterations as f64),
            false => initial,
        };
        self.learning_rate = Some(rate);
        Array::from(rate as f32)
    }

    /// Returns the area for lines above the progress bar, if there is a bar.
    pub fn above(&self) -> Option<Above> {
        self.progress.above()
    }

    /// Returns the number of timesteps of all environments so far.
    pub fn global_step(&self) -> u64 {
        self.global_step
    }

    /// Returns true if the run is resumed from a checkpoint.
    pub fn is_resuming(&self) -> bool {
        self.args.options().resume.is_some()
    }

    /// Returns the initial state: `init`, or with `--resume` the saved state; then the environments
    /// are restored too.
    ///
    /// # Errors
    /// Returns errors of the checkpoint.
    pub fn init_or_resume<S: Tree<Array>>(&mut self, init: S, mut envs: impl Envs) -> Result<S> {
        self.env_spec = envs.spec();
        self.film(&mut envs)?;
        self.announce_end();
        let Some(run) = &self.args.options().resume else { return Ok(init) };
        let path = checkpoint_in(run);
        let metadata = algorithm::resumed_metadata(self.args, &path)?;
        let total = self.args.total_timesteps();
        let is_longer = metadata.settings.get("total_timesteps") != Some(&total.into());
        let (state, run_state) = saved::read(&path, metadata, init, envs)?;
        // Only now is the checkpoint known to fit: `written` cuts the event file after its last event.
        self.run.events.written()?;
        if is_longer {
            self.run.log_settings(self.args, run_state.global_step)?;
        }
        self.global_step = run_state.global_step;
        self.last_checkpoint = run_state.global_step;
        self.extra_state = run_state.extra_state;
        self.window.1 = self.global_step;
        self.resumed_at = Some(self.global_step);
        Ok(state)
    }

    /// Reports the end of a run whose iterations do not fill `--total-timesteps`.
    pub(in crate::rl) fn announce_end(&mut self) {
        let (last, total) = (self.last_timestep(), self.args.total_timesteps());
        self.progress.set_total(last);
        if 0 < last && last < total {
            self.progress.note(&format!(
                "ends at {last} of {total} timesteps, after the last whole iteration"
            ));
        }
    }

    /// With `--capture-video` films training episodes of the first environment.
    ///
    /// # Errors
    /// Returns errors of the environments and of file I/O.
    pub(in crate::rl) fn film(&mut self, envs: &mut impl Envs) -> Result<()> {
        if self.rank > 0 || !self.args.options().capture_video {
            return Ok(());
        }
        let id = self.args.env_id();
        let problem = match envs.renders() {
            Ok(true) => None,
            Ok(false) => Some(Error::Env(format!("{id} draws no pictures"))),
            Err(error) => Some(error),
        };
        self.renders = problem.is_none();
        if let Some(problem) = problem {
            training_video::report(&problem);
            return Ok(());
        }
        let started = TrainingVideos::start(&self.videos_dir()?, ffmpeg::program());
        let started = started.map(|(videos, camera)| {
            self.videos = Some(videos);
            envs.film(camera)
        });
        match started {
            Ok(filming) => filming,
            Err(error) => self.allow(Err(error)),
        }
    }

    /// Returns the folder of the videos.
    ///
    /// # Errors
    /// [`Error::Io`] if it is a link, which may lead out of the run's folder.
    fn videos_dir(&self) -> Result<PathBuf> {
        let videos = self.run.dir.join("videos");
        files::not_a_link(&videos).map_err(Error::io("cannot write into", &videos))?;
        Ok(videos)
    }

    /// Passes completed videos of training to Weights & Biases.
    fn track_videos(&self) {
        let Some(tracker) = self.run.events.tracker() else { return };
        for path in self.videos.iter().flat_map(TrainingVideos::completed) {
            tracker.video("videos", &path, self.global_step);
        }
    }

    /// Ends the run at this timestep, if that is before `--total-timesteps`: for algorithms whose
    /// last phase must be whole.
    pub fn end_at(&mut self, timestep: u64) {
        self.end = self.end.min(timestep);
    }

    /// Returns true while another iteration fits into `--total-timesteps` and no interruption is
    /// requested.
    pub fn should_continue(&mut self) -> bool {
        let stopped = self.stop.take().unwrap_or_else(interrupt::requested);
        let over = self.is_over();
        let dir = self.run.dir.display();
        self.stopped = stopped && !over;
        if self.stopped {
            let has_checkpoint = self.checkpoint_frequency() > 0 && self.last_checkpoint > 0;
            let advice = match has_checkpoint {
                true => format!("continue with --resume {dir}"),
                false => format!("the events so far are in {dir}"),
            };
            self.progress.note(&format!("stopped: {advice}"));
        }
        if over && self.resumed_at == Some(self.global_step) {
            output::stderr_line(format_args!(
                "nothing to resume: the run in {dir} ended at {} of --total-timesteps {}; a larger \
                 number trains for longer",
                self.global_step,
                self.args.total_timesteps()
            ));
        }
        !stopped && !over
    }

    /// Sets the decision of this iteration whether to stop, which several processes have made.
    pub(in crate::rl) fn decide(&mut self, stop: bool) {
        self.stop = Some(stop);
    }

    /// Writes a checkpoint of the state and the environments if `--checkpoint-frequency` timesteps
    /// have passed since the last one, or if the run ends here.
    ///
    /// # Errors
    /// Returns errors of the environments and of file I/O.
    pub fn checkpoint_if_due<S: Tree<Array>>(&mut self, state: &S, envs: impl Envs) -> Result<()> {
        if self.checkpoint_is_due() {
            let written = self.checkpoint(state, envs);
            self.allow(written)?;
            self.last_checkpoint = self.global_step;
        }
        Ok(())
    }

    /// Returns true if [`checkpoint_if_due`](Trainer::checkpoint_if_due) will write a checkpoint.
    pub(crate) fn checkpoint_is_due(&mut self) -> bool {
        let stopped = *self.stop.get_or_insert_with(interrupt::requested);
        let frequency = self.checkpoint_frequency();
        let passed = self.global_step - self.last_checkpoint;
        frequency > 0 && passed > 0 && (passed >= frequency || stopped || self.is_over())
    }

    /// Returns the timestep after the last whole iteration: a run of 500,000 timesteps has 976 rollouts
    /// of 512.
    fn last_timestep(&self) -> u64 {
        self.end - self.end.checked_rem(self.iteration_steps).unwrap_or(0)
    }

    /// Returns true if no further iteration fits.
    fn is_over(&self) -> bool {
        let next = self.global_step.saturating_add(self.iteration_steps);
        next > self.end
    }

    /// Returns the timesteps between checkpoints; 0 if this process writes none.
    fn checkpoint_frequency(&self) -> u64 {
        if self.rank == 0 { self.args.options().checkpoint_frequency } else { 0 }
    }

    fn checkpoint<S: Tree<Array>>(&mut self, state: &S, envs: impl Envs) -> Result<()> {
        let _span = timeline::span("checkpoint");
        let run_state = self.run.run_state(self.global_step, self.extra_state.clone())?;
        let metadata = SavedMetadata::of(A::NAME, self.args, Some(run_state))?;
        saved::write(&self.run.dir.join(CHECKPOINT), state, envs, &metadata)
    }

    /// Ignores a write error if the user chose so; the first one is reported.
    fn allow(&mut self, written: Result<()>) -> Result<()> {
        match (written, self.args.options().on_write_error) {
            (Err(error @ Error::Io { .. }), OnWriteError::Continue) => {
                let reported = self.write_failed || self.run.events.has_failed();
                if !reported {
                    output::stderr_line(continues(&error));
                }
                self.write_failed = true;
                Ok(())
            }
            (written, _) => written,
        }
    }

    /// Records the results of an iteration: the episodes that ended in it, and the metrics if it
    /// learned. Advances the timestep by [`iteration_steps`](Trainer::iteration_steps).
    ///
    /// Metrics are logged as `losses/` and the name of their field. Metrics that are vectors `[K]`
    /// belong to K updates, evenly spaced in the iteration, of which one is logged every 100
    /// timesteps.
    ///
    /// # Errors
    /// [`Error::Nan`] if a loss is not finite, [`Error::Io`] if the event file cannot be written.
    pub fn record<M: Tree<Array>>(
        &mut self,
        episodes: &[EpisodeRecord],
        metrics: Option<&M>,
    ) -> Result<()> {
        for episode in episodes {
            let step = self.global_step + episode.step;
            self.run.episode(episode.episodic_return, episode.length, step)?;
        }
        if let Some(metrics) = metrics {
            self.record_metrics(metrics)?;
        }
        self.advance(self.iteration_steps)?;
        match self.learning_rate.take() {
            Some(rate) => self.log(&[("charts/learning_rate", rate)]),
            None => Ok(()),
        }
    }

    /// Logs additional scalars of an algorithm at the current timestep.
    ///
    /// # Errors
    /// [`Error::Io`] if the event file cannot be written.
    pub fn log(&mut self, scalars: &[(&str, f64)]) -> Result<()> {
        self.run.events.scalars(scalars, self.global_step)
    }

    /// Logs additional scalars at `steps` timesteps after the current one.
    ///
    /// # Errors
    /// Returns the errors of [`log`](Trainer::log).
    pub fn log_after(&mut self, steps: u64, scalars: &[(&str, f64)]) -> Result<()> {
        self.run.events.scalars(scalars, self.global_step + steps)
    }

    /// Advances the timestep by `steps`, and periodically logs the speed. [`record`](Trainer::record)
    /// calls it; only an algorithm that does its own logging calls it directly.
    ///
    /// # Errors
    /// [`Error::Io`] if the event file cannot be written.
    pub fn advance(&mut self, steps: u64) -> Result<()> {
        self.global_step += steps;
        let (since, from) = self.window;
        if since.elapsed().as_millis() > 200 {
            let rate = (self.global_step - from) as f64 / since.elapsed().as_secs_f64();
            self.window = (Instant::now(), self.global_step);
            self.update_progress();
            self.run.events.scalar("charts/SPS_update", rate.floor(), self.global_step)?;
            self.run.events.check_present()?;
            self.track_videos();
        }
        Ok(())
    }

    fn update_progress(&mut self) {
        let (speed, mean) = (self.run.sps(self.global_step), self.run.returns.mean());
        self.progress.update(self.global_step, speed, mean);
    }

    fn record_metrics<M: Tree<Array>>(&mut self, metrics: &M) -> Result<()> {
        let steps = self.iteration_steps;
        let mut columns = Vec::new();
        for (path, values) in tree::paths(metrics).iter().zip(tree::leaves(metrics)) {
            let name = path.rsplit('.').next().expect("a split has a last part");
            columns.push((format!("losses/{name}"), values.to_vec::<f32>()?));
        }
        let updates = columns.iter().map(|(_, values)| values.len()).max().unwrap_or(0) as u64;
        for k in 0..updates {
            let after = |k: u64| self.global_step + k * steps / updates;
            let (before, step) = (after(k), after(k + 1));
            let mut values: Vec<(&str, f64)> = Vec::new();
            for (tag, column) in &columns {
                let Some(&value) = column.get(k as usize) else { continue };
                if tag.ends_with("loss") && !value.is_finite() {
                    self.run.events.flush()?;
                    return Err(Error::Nan(format!(
                        "{tag} is {value} at step {step}; run again with --check-nans to see which \
                         operation made it"
                    )));
                }
                values.push((tag, value.into()));
            }
            if updates == 1 || before / LOG_INTERVAL != step / LOG_INTERVAL {
                values.push(("charts/SPS", self.run.sps(step).floor()));
                self.run.events.scalars(&values, step)?;
            }
        }
        Ok(())
    }

    /// Ends the run: saves and evaluates the model, if requested, and returns the result.
    ///
    /// # Errors
    /// Returns errors of file I/O and of [`Algorithm::play`].
    pub fn finish<M: Tree<Array>>(mut self, model: &M) -> Result<Summary> {
        let options = self.args.options();
        let programs = self.programs.iter().map(|stats| stats.get().seconds());
        let compile_s = programs.sum::<f64>() + self.other_compile_s;
        self.update_progress();
        self.run.events.flush()?;
        let platform = match options.mode {
            Mode::Interpret => "host".to_string(),
            Mode::Jit | Mode::Eager => Runtime::get()?.client.platform_name().to_string(),
        };
        let mode = options.mode.to_string();
        // Measured before the evaluation, which is not training time.
        let mut summary =
            self.run.summary(&mode, &platform, self.devices, self.global_step, compile_s);
        summary.rank = self.rank;
        summary.interrupted = self.stopped;
        self.progress = Progress::quiet();
        self.videos.as_mut().into_iter().for_each(TrainingVideos::finish);
        self.track_videos();
        let keeps_model = options.save_model || options.upload_model || options.capture_video;
        if self.rank == 0 && keeps_model {
            let path = self.run.dir.join(format!("{}{MODEL}", self.args.options().exp_name));
            let metadata =
                SavedMetadata::of(A::NAME, self.args, None)?.with_spec(self.env_spec.as_ref());
            let saved = checkpoint::save_tree(&path, model, &metadata);
            let there = saved.is_ok();
            self.allow(saved)?;
            if there {
                if let Some(tracker) = self.run.events.tracker() {
                    tracker.file(&path, &self.run.dir);
                }
                summary.model_path = Some(path.to_string_lossy().into_owned());
                let evaluation = self.evaluate(&path)?;
                let (mean, std) = evaluation.mean_and_std().unzip();
                summary.eval_episodic_return = mean;
                summary.eval_spread = std.map(|std| (std, evaluation.returns.len()));
                self.run.events.flush()?;
                if options.upload_model && !summary.interrupted {
                    self.upload(&path, &evaluation.returns)?;
                }
            }
        }
        self.run.events.finish_tracking(if summary.interrupted { INTERRUPTED } else { 0 });
        self.run.events.flush()?;
        if let Some(timeline) = self.timeline.take() {
            let written = timeline.finish();
            self.allow(written)?;
        }
        Ok(summary)
    }

    /// Evaluates the saved model. Does nothing in an interrupted run.
    fn evaluate(&mut self, model: &Path) -> Result<Evaluation> {
        let options = self.args.options();
        let mut evaluation = Evaluation::new(options.eval_episodes);
        if self.stopped || interrupt::requested() {
            return Ok(evaluation);
        }
        if options.capture_video && self.renders {
            evaluation = evaluation.filmed(&self.videos_dir()?)?.with_optional_video();
        }
        self.args.play(&checkpoint::load(model)?, &mut evaluation)?;
        for (k, episodic_return) in evaluation.returns.iter().enumerate() {
            self.run.events.scalar("eval/episodic_return", *episodic_return, k as u64)?;
        }
        if let Some(tracker) = self.run.events.tracker() {
            for path in evaluation.videos() {
                tracker.video("eval/videos", path, self.global_step);
            }
        }
        Ok(evaluation)
    }

    /// Uploads the saved model; a failure is printed and does not end the run.
    fn upload(&self, path: &Path, returns: &[f64]) -> Result<()> {
        let model = hub::SavedModel {
            algorithm: A::NAME,
            exp_name: &self.args.options().exp_name,
            env_id: self.args.env_id(),
            run: &self.run.name,
            path,
            returns,
        };
        hub::upload(&model, self.args.options(), saved::settings(self.args)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! The host's side of a training loop: events, progress, checkpoints, interruption, the result.

use std::time::Instant;

use serde_json::Value;

use super::algorithm::Algorithm;
use super::evaluation::Evaluation;
use super::saved::{self, CHECKPOINT, Envs, Origin, checkpoint_in};
use super::{Game, Progress, Run, Summary, checkpoint, interrupt};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::jit::Mode;
use crate::runtime::Runtime;
use crate::timeline::{self, Timeline};
use crate::tree::{self, Tree};

/// Timesteps between two entries of one tag, where a call gives many.
const LOG_INTERVAL: u64 = 100;

/// Runs the loop of an algorithm.
///
/// ```text
/// let mut trainer = Trainer::start(args)?;
/// let mut state = trainer.state(init.call(seed)?, &envs)?;
/// while trainer.goes_on(steps, &state, &envs)? {
///     let (next, games, metrics) = learn.call(state)?;
///     state = next;
///     trainer.tell(steps, &games.list()?, Some(&metrics))?;
/// }
/// trainer.finish(&model_of(state), learn.stats().seconds())
/// ```
#[derive(Debug)]
pub struct Trainer<'a, A> {
    args: &'a A,
    /// The run: its folder, its event file, its returns.
    pub run: Run,
    progress: Progress,
    timeline: Option<Timeline>,
    step: u64,
    /// Where the last checkpoint was.
    kept: u64,
    /// The time and the step of the last speed.
    window: (Instant, u64),
    /// What the loop of this algorithm keeps on the host beside the state; in checkpoints too.
    pub notes: Value,
}

impl<'a, A: Algorithm> Trainer<'a, A> {
    /// Makes the run's folder and its event file; with `--resume` opens those there are.
    ///
    /// # Errors
    /// As [`Run::create`], and what is wrong with the checkpoint.
    pub fn start(args: &'a A) -> Result<Trainer<'a, A>> {
        let options = args.options();
        let timeline = options.timeline.as_ref().map(timeline::start).transpose()?;
        interrupt::install()?;
        let run = match &options.resume {
            None => {
                let (exp_name, env_id) = (args.exp_name(), args.env_id());
                Run::create(&options.runs_dir, exp_name, env_id, options.seed, args)?
            }
            Some(run) => {
                let path = checkpoint_in(run);
                let origin = Origin::read(&path)?;
                origin.expect(A::NAME, &path)?;
                let place = origin.place(&path)?;
                Run::reopen(&path, args.exp_name(), args.env_id(), options.seed, &place)?
            }
        };
        Ok(Trainer {
            args,
            run,
            progress: Progress::new(args.total_timesteps(), options.json),
            timeline,
            step: 0,
            kept: 0,
            window: (Instant::now(), 0),
            notes: Value::Null,
        })
    }

    /// Timesteps so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The state to begin with: `fresh`, or with `--resume` the saved one, and then the environments
    /// are as they were.
    ///
    /// # Errors
    /// What is wrong with the checkpoint.
    pub fn state<S: Tree<Array>>(&mut self, fresh: S, envs: impl Envs) -> Result<S> {
        let Some(run) = &self.args.options().resume else { return Ok(fresh) };
        let (state, place) = saved::read(&checkpoint_in(run), A::NAME, self.args, fresh, envs)?;
        (self.step, self.kept, self.notes) = (place.global_step, place.global_step, place.notes);
        self.window.1 = self.step;
        Ok(state)
    }

    /// Whether `steps` more timesteps are to come. Before it says so it writes the checkpoint that
    /// is due.
    ///
    /// # Errors
    /// What the environments and the file system say of a checkpoint.
    pub fn goes_on<S: Tree<Array>>(
        &mut self,
        steps: u64,
        state: &S,
        envs: impl Envs,
    ) -> Result<bool> {
        let stopped = interrupt::requested();
        let over = self.step + steps > self.args.total_timesteps();
        let frequency = self.args.options().checkpoint_frequency;
        let due = self.step >= self.kept + frequency || stopped || over;
        if frequency > 0 && due && self.step > self.kept {
            self.keep(state, envs)?;
        }
        if stopped && !over {
            let goes_on = match frequency {
                0 => "the events and the model so far are kept".to_string(),
                _ => format!("go on with --resume {}", self.run.dir.display()),
            };
            self.progress.note(&format!("stopped: {goes_on}"));
        }
        Ok(!stopped && !over)
    }

    fn keep<S: Tree<Array>>(&mut self, state: &S, envs: impl Envs) -> Result<()> {
        let _span = timeline::span("checkpoint");
        let place = self.run.place(self.step, self.notes.clone())?;
        let origin = Origin::of(A::NAME, self.args, Some(place))?;
        saved::write(&self.run.dir.join(CHECKPOINT), state, envs, &origin)?;
        self.kept = self.step;
        Ok(())
    }

    /// Takes note of a call of `steps` timesteps: of the episodes that ended in it, and of what was
    /// learned, if anything was.
    ///
    /// Metrics are logged as `losses/` and the name of their field. Those that are vectors `[K]` are
    /// of K updates, evenly in the call, of which one is logged every 100 timesteps.
    ///
    /// # Errors
    /// [`Error::Nan`] if a loss is not finite, [`Error::Io`] if the event file cannot be written.
    pub fn tell<M: Tree<Array>>(
        &mut self,
        steps: u64,
        games: &[Game],
        metrics: Option<&M>,
    ) -> Result<()> {
        for game in games {
            self.run.episode(game.episodic_return, game.length, self.step + game.after)?;
        }
        if let Some(metrics) = metrics {
            self.log(steps, metrics)?;
        }
        self.advance(steps)
    }

    /// Goes `steps` timesteps on, and tells the speed now and then. [`tell`](Trainer::tell) does it;
    /// only an algorithm that logs by itself calls this.
    ///
    /// # Errors
    /// [`Error::Io`] if the event file cannot be written.
    pub fn advance(&mut self, steps: u64) -> Result<()> {
        self.step += steps;
        let (since, from) = self.window;
        if since.elapsed().as_millis() > 200 {
            let rate = (self.step - from) as f64 / since.elapsed().as_secs_f64();
            self.run.events.scalar("charts/SPS_update", rate.floor(), self.step)?;
            self.window = (Instant::now(), self.step);
            self.progress.update(self.step, self.run.sps(self.step), self.run.returns.mean());
        }
        Ok(())
    }

    fn log<M: Tree<Array>>(&mut self, steps: u64, metrics: &M) -> Result<()> {
        let mut columns = Vec::new();
        for (path, values) in tree::paths(metrics).iter().zip(tree::leaves(metrics)) {
            let name = path.rsplit('.').next().expect("a split has a last part");
            columns.push((format!("losses/{name}"), values.to_vec::<f32>()?));
        }
        let updates = columns.iter().map(|(_, values)| values.len()).max().unwrap_or(0) as u64;
        for k in 0..updates {
            let after = |k: u64| self.step + k * steps / updates;
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

    /// Ends the run: saves the model and lets it play, if asked for, and gives the result.
    ///
    /// # Errors
    /// What the file system and [`Algorithm::play`] say.
    pub fn finish<M: Tree<Array>>(mut self, model: &M, compile_s: f64) -> Result<Summary> {
        let options = self.args.options();
        self.progress.update(self.step, self.run.sps(self.step), self.run.returns.mean());
        self.progress.finish();
        if options.save_model {
            let path = self.run.dir.join(format!("{}.safetensors", self.args.exp_name()));
            checkpoint::save_tree(&path, model, &Origin::of(A::NAME, self.args, None)?)?;
            let mut evaluation = Evaluation::new(options.eval_episodes);
            self.args.play(&checkpoint::load(&path)?, &mut evaluation)?;
            for (k, episodic_return) in evaluation.returns.iter().enumerate() {
                self.run.events.scalar("eval/episodic_return", *episodic_return, k as u64)?;
            }
        }
        self.run.events.flush()?;
        if let Some(timeline) = self.timeline {
            timeline.finish()?;
        }
        let platform = match options.mode {
            Mode::Interpret => "host".to_string(),
            Mode::Jit | Mode::Eager => Runtime::get()?.client.platform_name().to_string(),
        };
        Ok(self.run.summary(&options.mode.to_string(), &platform, 1, self.step, compile_s))
    }
}

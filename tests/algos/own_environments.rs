//! Environments that a program registers: traced functions, and keyword arguments.

use podracer::algos::{dqn, ppo, ppo_anakin, registry};
use podracer::envs::traced::{self, TracedEnv, TracedStep};
use podracer::envs::{self, EnvPool, EnvSpec, PoolOptions, Space};
use podracer::prelude::*;
use podracer::rl::checkpoint::saved::SavedMetadata;
use podracer::rl::{Algorithm, Evaluation, TrainedPolicy};

/// A corridor of ten cells, whose end is at the right.
struct Corridor {
    id: &'static str,
    /// Element type of the reward, which must be f32.
    reward: DType,
}

#[derive(Tree, Clone)]
struct State<T> {
    cell: T,
}

fn observe(cell: Tensor) -> Tensor {
    (cell.to(DType::F32) / 9.0).reshape([1])
}

impl TracedEnv for Corridor {
    type State = State<Tensor>;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: self.id.into(),
            observation: Space::f32([1], 0.0, 1.0),
            action: Space::Discrete { n: 2 },
            max_episode_steps: Some(50),
            reward_threshold: None,
        }
    }

    fn reset(&self, key: Key<Tensor>) -> (State<Tensor>, Tensor) {
        let cell = random::randint(key, [], 0, 5, DType::I32);
        (State { cell }, observe(cell))
    }

    fn step(
        &self,
        state: State<Tensor>,
        action: Tensor,
        _key: Key<Tensor>,
    ) -> TracedStep<Tensor, State<Tensor>> {
        let cell = (state.cell + action * 2 - 1).clamp(0, 9);
        let terminated = cell.eq(9);
        let reward = terminated.to(self.reward);
        let state = State { cell };
        TracedStep { state, obs: observe(cell), reward, terminated, truncated: constant(false) }
    }
}

#[test]
fn traced_environments_of_ones_own_are_trained_on() {
    let id = "OwnCorridor-v0";
    traced::register(&Corridor { id, reward: DType::F32 }).unwrap();
    let mut pool = EnvPool::make(id, PoolOptions { num_envs: 2, ..Default::default() }).unwrap();
    let starts = pool.reset().unwrap().obs::<f32>().to_vec();
    assert!(starts.iter().all(|x| *x < 0.5));
    for _ in 0..9 {
        pool.step(&[1, 1]).unwrap();
    }
    let finished = pool.take_finished();
    assert!(!finished.is_empty() && finished.iter().all(|episode| episode.episodic_return == 1.0));

    let runs = tempfile::tempdir().unwrap();
    let flags = ["--env-id=OwnCorridor-v0", "--eval-episodes=3", "--save-model"];
    let more = ["--total-timesteps=8192", "--num-steps=32"];
    let args: ppo_anakin::Args = super::cases::args(runs.path(), &flags, &more);
    let trained = args.train().unwrap();
    assert!(trained.avg_episodic_return.unwrap() > 0.9, "{trained:?}");
    let model = trained.model_path.unwrap();
    assert_eq!(TrainedPolicy::load(&model).unwrap().spec().id, id);
    // Algorithms whose environments are in a pool take them as part of the program too.
    let more = ["--total-timesteps=1024", "--num-steps=64"];
    super::cases::args::<ppo::Args>(runs.path(), &flags, &more).train().unwrap();
    let more = ["--total-timesteps=1000", "--learning-starts=100"];
    super::cases::args::<dqn::Args>(runs.path(), &flags, &more).train().unwrap();

    let again = traced::register(&Corridor { id, reward: DType::F32 }).unwrap_err().to_string();
    assert!(again.contains("cannot register \"OwnCorridor-v0\""), "{again}");
    let other = Corridor { id: "OtherCorridor-v0", reward: DType::I32 };
    let wrong = traced::register(&other).unwrap_err().to_string();
    let expected =
        "step of OtherCorridor-v0: it returns reward as i32[], and must have f32[] there";
    assert!(wrong.contains(expected), "{wrong}");
}

#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Kwargs {
    long: bool,
}

#[test]
fn keyword_arguments_are_settings_of_a_run() {
    let make = |kwargs: Kwargs| envs::make(if kwargs.long { "CartPole-v1" } else { "CartPole-v0" });
    envs::register_with("OwnPole-v0", make).unwrap();
    let steps = || envs::spec("OwnPole-v0").unwrap().max_episode_steps;
    assert_eq!(steps(), Some(200));

    let runs = tempfile::tempdir().unwrap();
    let flags = ["--env-id=OwnPole-v0", "--eval-episodes=0", "--save-model"];
    let more = ["--total-timesteps=256", "--num-steps=32", "--env-kwargs={\"long\": true}"];
    let args: ppo::Args = super::cases::args(runs.path(), &flags, &more);
    let model = args.train().unwrap().model_path.unwrap();
    assert_eq!(steps(), Some(500));

    // An evaluation has those of the run.
    envs::set_env_kwargs("OwnPole-v0", Default::default()).unwrap();
    let metadata = SavedMetadata::read(model.as_ref()).unwrap();
    let mut evaluation = Evaluation::new(2);
    registry::play(model.as_ref(), &metadata, &mut evaluation).unwrap();
    assert_eq!(steps(), Some(500));

    // So does a run that resumes.
    let args: ppo::Args = super::cases::args(
        runs.path(),
        &flags,
        &[&more[..], &["--checkpoint-frequency=128"]].concat(),
    );
    let run = args.train().unwrap().run_dir;
    envs::set_env_kwargs("OwnPole-v0", Default::default()).unwrap();
    let more = [&format!("--resume={run}")[..], "--total-timesteps=512"];
    super::cases::args::<ppo::Args>(runs.path(), &flags, &more).train().unwrap();
    assert_eq!(steps(), Some(500));

    for (kwargs, part) in [
        ("{\"lon\": true}", "the keyword arguments of OwnPole-v0: unknown field `lon`"),
        ("[]", "expected a JSON object"),
    ] {
        let more = [&format!("--env-kwargs={kwargs}")[..], "--total-timesteps=512"];
        let args = super::cases::args::<ppo::Args>(runs.path(), &flags, &more);
        let error = args.train().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let more = ["--env-id=CartPole-v1", "--env-kwargs={}"];
    let args = super::cases::args::<ppo::Args>(runs.path(), &["--total-timesteps=512"], &more);
    let error = args.train().unwrap_err().to_string();
    assert!(error.contains("those of `envs::register_with`"), "{error}");
}

//! Which algorithms are said to fit an environment: all that there are, and none that refuses it.

use std::collections::BTreeSet;

use podracer::algos::registry::{ALGORITHMS, fitting};
use podracer::algos::*;
use podracer::envs::{self, Action, Bound, Env, EnvRng, EnvSpec, ObsMut, Space, StepOutcome};
use podracer::error::Result;
use podracer::rl::Algorithm;
use podracer::{DType, Error};

#[test]
fn every_algorithm_fits_something_and_is_known() {
    let mut named = BTreeSet::new();
    for id in envs::list_envs() {
        match envs::spec(id) {
            Ok(spec) => named.extend(fitting(&spec)),
            // A part that is not here, such as MuJoCo's library.
            Err(Error::Native { .. }) => {}
            Err(error) => panic!("{id}: {error}"),
        }
    }
    let known: BTreeSet<&str> = ALGORITHMS.iter().map(|entry| entry.name).collect();
    assert_eq!(named, known);
}

/// What an algorithm says of an environment that it cannot act in, before anything of a run is made.
fn refused<A: Algorithm>(id: &str) -> String {
    let runs = tempfile::tempdir().unwrap();
    let folder = runs.path().to_str().unwrap();
    let args = A::from_flags(["--env-id", id, "--json", "--runs-dir", folder]).unwrap();
    let message = match args.train() {
        Err(Error::Config(message) | Error::Env(message)) => message,
        other => panic!("{} on {id}: {other:?}", A::NAME),
    };
    assert_eq!(std::fs::read_dir(runs.path()).unwrap().count(), 0, "a run was begun");
    message
}

#[test]
fn what_does_not_fit_is_refused_with_what_does() {
    let check = |id: &str| {
        let spec = envs::spec(id).unwrap();
        let fits = fitting(&spec);
        let list = match fits.as_slice() {
            [] => "no algorithm here takes it".to_string(),
            fits => format!("what fits it: {}", fits.join(", ")),
        };
        let mut names = BTreeSet::new();
        macro_rules! look {
            ($($algorithm:ident),*) => {
                $(names.insert(stringify!($algorithm));
                if !fits.contains(&stringify!($algorithm)) {
                    let message = refused::<$algorithm::Args>(id);
                    assert!(message.contains(id), "{message}");
                    // Those that take a list of their own, and those of players, say so.
                    let own = [
                        "dpo_anakin",
                        "dqn_anakin",
                        "ppo_anakin",
                        "ppo_anakin_gru",
                        "ppo_atari_envpool",
                        "ppo_masked",
                        "ppo_self_play",
                    ];
                    let ends = own.contains(&stringify!($algorithm)) || message.ends_with(&list);
                    assert!(ends, "{} on {id}: {message}", stringify!($algorithm));
                })*
            };
        }
        look!(a2c, a2c_continuous_action, c51, c51_atari, crossq_continuous_action);
        look!(ddpg_continuous_action, dpo_anakin, dqn, dqn_anakin, dqn_atari);
        look!(fast_sac, fast_td3);
        look!(iqn, qrdqn, ppg, ppo, ppo_anakin, ppo_anakin_gru);
        look!(ppo_atari, ppo_atari_envpool, ppo_atari_lstm, ppo_continuous_action);
        look!(ppo_continuous_action_lstm, ppo_masked);
        look!(
            ppo_pettingzoo_ma_atari,
            ppo_rnd_envpool,
            ppo_self_play,
            ppo_trxl,
            pqn,
            pqn_atari_envpool
        );
        look!(pqn_atari_envpool_lstm, qdagger_dqn_atari);
        look!(rainbow_atari, rpo_continuous_action, sac_atari, sac_continuous_action);
        look!(cleanba_impala, cleanba_ppo, ppo_atari_multigpu);
        look!(sebulba_sac, simba_sac, td3_continuous_action);
        assert_eq!(names, ALGORITHMS.iter().map(|entry| entry.name).collect());
    };
    // A choice, numbers, masks, two players, numbers as observations.
    for id in ["CartPole-v1", "Pendulum-v1", "Harvest-v0", "ConnectFour-v0", "FrozenLake-v1"] {
        check(id);
    }
}

/// Episodes of five steps on observations of this shape and dtype.
struct Images {
    shape: [usize; 3],
    dtype: DType,
    step: u8,
}

impl Env for Images {
    fn spec(&self) -> EnvSpec {
        let (low, high) = (Bound::All(0.0), Bound::All(1.0));
        let (shape, dtype) = (self.shape.into(), self.dtype);
        EnvSpec {
            id: "Images".into(),
            observation: Space::Box { low, high, shape, dtype },
            action: Space::Discrete { n: 2 },
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, _: &mut EnvRng, mut obs: ObsMut<'_>) -> Result<()> {
        self.step = 0;
        obs.write(&vec![0u8; self.shape.iter().product()]);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut EnvRng, mut obs: ObsMut<'_>) -> Result<StepOutcome> {
        self.step += 1;
        obs.write(&vec![self.step % 2; self.shape.iter().product()]);
        Ok(StepOutcome::new(1.0, self.step == 5))
    }
}

#[test]
fn algorithms_on_images_take_registered_ones() {
    let register = |id: &str, shape: [usize; 3], dtype: DType| {
        let make =
            move || -> Result<Box<dyn Env>> { Ok(Box::new(Images { shape, dtype, step: 0 })) };
        envs::register(id, make).unwrap();
    };
    register("SmallBoard-v0", [6, 5, 2], DType::Bool);
    register("RegisteredFrames-v0", [4, 84, 84], DType::U8);
    register("Colors-v0", [3, 84, 84], DType::U8);
    fn trains<A: Algorithm>(id: &str, mode: &str) {
        let runs = tempfile::tempdir().unwrap();
        let folder = runs.path().to_str().unwrap();
        let flags = ["--env-id", id, "--mode", mode, "--json", "--runs-dir", folder];
        let small = [
            "--total-timesteps=48",
            "--target-network-frequency=16",
            "--learning-starts=16",
            "--batch-size=2",
            "--buffer-size=64",
        ];
        assert!(fitting(&envs::spec(id).unwrap()).contains(&A::NAME), "{}", A::NAME);
        let summary = A::from_flags(flags.into_iter().chain(small)).unwrap().train().unwrap();
        assert_eq!(summary.global_step, 48, "{} on {id}", A::NAME);
    }
    trains::<dqn_atari::Args>("SmallBoard-v0", "interpret");
    trains::<c51_atari::Args>("SmallBoard-v0", "interpret");
    trains::<sac_atari::Args>("SmallBoard-v0", "interpret");
    trains::<rainbow_atari::Args>("SmallBoard-v0", "interpret");
    trains::<dqn_atari::Args>("RegisteredFrames-v0", "jit");
    register("SmallColors-v0", [3, 40, 36], DType::U8);
    register("TooSmall-v0", [3, 36, 35], DType::U8);
    for (id, fits) in [("Colors-v0", true), ("SmallColors-v0", true), ("TooSmall-v0", false)] {
        let names = fitting(&envs::spec(id).unwrap());
        for name in ["ppo_atari", "ppg", "cleanba_ppo", "ppo_trxl", "pqn_atari_envpool_lstm"] {
            assert_eq!(names.contains(&name), fits, "{name} on {id}");
        }
    }
    // A buffer that stores single frames cannot rebuild other images.
    assert!(!fitting(&envs::spec("Colors-v0").unwrap()).contains(&"dqn_atari"));
    let message = refused::<dqn_atari::Args>("Colors-v0");
    assert!(message.contains("dqn_atari takes images u8[4, 84, 84]"), "{message}");
}

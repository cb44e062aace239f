//! PPO by self-play: its runs against each other, its win rate, errors about bad settings.

use std::path::Path;

use podracer::algos::ppo_self_play::Args;
use podracer::algos::{ppo_masked, ppo_self_play};
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::rl::environments::spaces::Masked;
use podracer::trace::ops::{concatenate, constant, ones};
use podracer::{Array, DType, Tensor, jit, tree};

use super::fixture::{dense, floats, ints, wave};
use super::{message, scalars};

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--total-timesteps=768",
        "--num-envs=8",
        "--num-steps=32",
        "--num-minibatches=2",
        "--update-epochs=2",
        "--snapshot-frequency=1",
        "--eval-frequency=2",
        "--json",
        &runs,
    ];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

/// The update is that of `ppo_masked`: advantages by the sample deviation, PyTorch's clip.
#[test]
fn a_gradient_step_is_that_of_ppo_masked() {
    let args = Args::from_flags(["--max-grad-norm=0.1"]).unwrap();
    let masked = ppo_masked::Args::from_flags(["--max-grad-norm=0.1", "--clip-coef=0.2"]).unwrap();
    let sizes = Masked { features: 3, nvec: vec![2] };
    macro_rules! samples {
        ($algorithm:ident) => {
            $algorithm::Samples {
                obs: concatenate(&[wave([6, 3], 1.0), ones([6, 2], DType::F32)], 1),
                actions: ints([6, 1], &[0, 1, 1, 0, 1, 0]),
                logprobs: floats([6], &[-0.7; 6]),
                advantages: wave([6], 6.0),
                returns: wave([6], 7.0),
                values: wave([6], 8.0),
            }
        };
    }
    let layers =
        || ([dense([3, 4], 0.1), dense([4, 4], 0.2)], dense([4, 2], 0.3), dense([4, 1], 1.3));
    let rate = || constant(0.1f32);
    let ours = jit(|_: Tensor| {
        let (hidden, actor, critic) = layers();
        let agent = ppo_self_play::Agent { hidden, actor, critic, sizes: sizes.clone() };
        let state = ppo_self_play::TrainState { opt_state: Adam::default().init(&agent), agent };
        ppo_self_play::gradient_step(state, &samples!(ppo_self_play), rate(), &args).0.agent
    });
    let theirs = jit(|_: Tensor| {
        let (hidden, actor, critic) = layers();
        let agent = ppo_masked::Agent { hidden, actor, critic, sizes: sizes.clone() };
        let state = ppo_masked::TrainState { opt_state: Adam::default().init(&agent), agent };
        ppo_masked::gradient_step(state, &samples!(ppo_masked), rate(), &masked).0.agent
    });
    let [ours, theirs] = [
        tree::leaves(&ours.call(Array::from(0.0f32)).unwrap()),
        tree::leaves(&theirs.call(Array::from(0.0f32)).unwrap()),
    ]
    .map(|leaves| leaves.iter().map(|x| x.to_vec::<f32>().unwrap()).collect::<Vec<_>>());
    assert_eq!(ours, theirs);
}

#[test]
fn opponents_are_logged() {
    let runs = tempfile::tempdir().unwrap();
    for opponents in ["3", "0"] {
        let flags = ["--save-model", "--eval-episodes=7", "--num-opponents", opponents];
        let summary = args(runs.path(), &flags).train().unwrap();
        let logged = scalars(&summary.run_dir);
        let count = |tag: &str| logged.keys().filter(|(name, _)| name == tag).count();
        assert_eq!(count("eval/win_rate_random"), 1);
        assert_eq!(count("eval/episodic_return"), 7);
        assert_eq!(count("charts/win_rate_past"), if opponents == "0" { 0 } else { 3 });
        let won = logged.iter().find(|((tag, _), _)| tag == "eval/win_rate_random").unwrap().1[0];
        assert!((0.2..=0.8).contains(&won), "an agent that learned nothing wins {won}");
    }
}

/// PGX's connect four is part of the compiled program, and resumes from its handle.
#[test]
fn a_game_of_pgx_has_two_players() {
    let runs = tempfile::tempdir().unwrap();
    let id = "--env-id=jax:tests/fixtures/envs/jax/connect_four";
    let flags = ["--save-model", "--eval-episodes=4", "--num-opponents=1", id];
    let summary = args(runs.path(), &flags).train().unwrap();
    let logged = scalars(&summary.run_dir);
    assert_eq!(logged.keys().filter(|(name, _)| name == "eval/episodic_return").count(), 4);
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    assert_eq!(
        error(&["--num-opponents=2"]),
        "--num-envs 8: must be a multiple of --num-opponents plus one, 3"
    );
    let one = error(&["--env-id=Harvest-v0"]);
    assert!(one.contains("ppo_self_play is for 2 players, and this environment has 1"), "{one}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was begun");
}

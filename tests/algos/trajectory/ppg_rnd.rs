//! PPG and PPO with curiosity: `tests/fixtures/algos/cleanrl/ppg_rnd.py` recorded CleanRL's
//! `ppg_procgen.py` and `ppo_rnd_envpool.py`.

use podracer::algos::{ppg, ppo_rnd_envpool};
use podracer::envs::ObsKind;
use podracer::nn::Dense;
use podracer::rl::environments::spaces::Sizes;
use podracer::rl::{Algorithm, ImageNetwork, gather_minibatch, merge_time_and_env};
use podracer::tree::Tree;
use podracer::{Array, DType, Tensor, jit};

use super::{
    Trajectory, UPDATES, adam_state, choices, flags, floats, integers, minibatches, noise,
    permutation, start,
};

const ACTIONS: usize = 3;
const STEPS: usize = 4;
const ENVS: usize = 4;

fn frames(name: &str, shape: &[usize]) -> Array {
    let bytes: Vec<u8> =
        integers(name, 256, shape.iter().product()).into_iter().map(|x| x as u8).collect();
    Array::new(shape.to_vec(), &bytes).unwrap()
}

/// Observations, actions, rewards, ends of episodes and last observations of a rollout with
/// observations of this shape; names end with `suffix`.
fn rollout(suffix: &str, obs: &[usize]) -> [Array; 5] {
    let named = |name: &str| format!("{name}{suffix}");
    let shape = [STEPS, ENVS];
    [
        frames(&named("obs"), &[&shape, obs].concat()),
        choices(&named("actions"), ACTIONS as u32, shape),
        floats(&named("rewards"), shape),
        flags(&named("ends"), 4, shape),
        frames(&named("next_obs"), &[&[ENVS], obs].concat()),
    ]
}

fn logprobs(suffix: &str) -> Array {
    let values = noise(&format!("logprobs{suffix}"), STEPS * ENVS);
    let values: Vec<f32> = values.iter().map(|x| x * 0.5 - 1.0).collect();
    Array::new([STEPS, ENVS], &values).unwrap()
}

/// Stacks arrays of one shape along a new first axis.
fn stacked<T: podracer::trace::Element>(arrays: &[Array]) -> Array {
    let values: Vec<T> = arrays.iter().flat_map(|x| x.to_vec::<T>().unwrap()).collect();
    Array::new([&[arrays.len()], &arrays[0].shape()[..]].concat(), &values).unwrap()
}

/// Makes orders of indices one array, with a row for each minibatch.
fn index_array(orders: Vec<Vec<i32>>, size: usize) -> Array {
    let indices = orders.concat();
    Array::new([indices.len() / size, size], &indices).unwrap()
}

// ------------------------------------------------------------------------------------------- PPG

/// Two rollouts with four minibatches each, then six epochs of two minibatches of whole rollouts.
#[test]
fn ppg_follows_cleanrl() {
    use ppg::{
        Agent, Args, AuxSamples, AuxStorage, Rollout, Samples, TrainState, aux_loss, gradient_step,
        make_samples, ppo_loss, run_aux_epochs,
    };
    const SIZE: [usize; 3] = [3, 16, 16];
    let flags = ["--network=impala", "--learning-rate=0.0001", "--num-envs=4", "--num-steps=4"];
    let args = Args::from_flags(flags).unwrap();
    let learning_rate = || Array::from(args.learning_rate as f32);
    let samples_of = jit(|(agent, rollout): (Agent<Tensor>, Rollout<Tensor>)| {
        make_samples(&agent, rollout, &args).0
    });
    type Step<T> = (TrainState<T>, Samples<T>, T, T);
    let step = jit(|(state, samples, indices, rate): Step<Tensor>| {
        let batch = gather_minibatch(samples, indices);
        let loss = |agent: &Agent<Tensor>| ppo_loss(agent, &batch, &args);
        gradient_step(state, loss, (rate, false), &args).0
    });
    let sizes = Sizes { obs_kind: ObsKind::Image, shape: SIZE.into(), num_actions: ACTIONS };
    let agent = start("", |key| Agent::init(key, ImageNetwork::Impala, &sizes));
    let (opt_state, aux_opt_state) = (adam_state(&agent), adam_state(&agent.aux_critic));
    let mut state = TrainState { agent, opt_state, aux_opt_state };
    let recorded = Trajectory::of("ppg");

    let (mut update, mut all_obs, mut returns) = (0, Vec::new(), Vec::new());
    for k in 0..2 {
        let suffix = format!(" {k}");
        let [obs, actions, rewards, dones, next_obs] = rollout(&suffix, &SIZE);
        all_obs.push(obs.clone());
        let values = floats(&format!("values {k}"), [STEPS, ENVS]);
        let logprobs = logprobs(&suffix);
        let rollout = Rollout { obs, actions, logprobs, values, rewards, dones, next_obs };
        let samples = samples_of.call((state.agent.clone(), rollout)).unwrap();
        returns.push(samples.returns.clone());
        for indices in permutation(&format!("order {k}"), STEPS * ENVS).chunks(4) {
            let indices = Array::new([4], indices).unwrap();
            state = step.call((state, samples.clone(), indices, learning_rate())).unwrap();
            recorded.check(update, &state.agent);
            update += 1;
        }
    }

    let returns: Vec<f32> = returns.iter().flat_map(|x| x.to_vec::<f32>().unwrap()).collect();
    let returns = Array::new([2, STEPS, ENVS], &returns).unwrap();
    let storage = AuxStorage { obs: stacked::<u8>(&all_obs), returns };
    let orders: Vec<Vec<i32>> =
        (0..6).map(|k| permutation(&format!("aux order {k}"), 2 * ENVS)).collect();
    type Aux<T> = (TrainState<T>, AuxStorage<T>, T, T);
    let auxiliary = jit(|(state, storage, learning_rate, indices): Aux<Tensor>| {
        run_aux_epochs(state, &storage, indices, learning_rate, &args).0
    });
    let indices = index_array(orders.clone(), 4);
    let input = (state.clone(), storage.clone(), learning_rate(), indices);
    let whole = auxiliary.call(input).unwrap();

    // The same steps one by one.
    let old_agent = state.agent.clone();
    type AuxStep<T> = (TrainState<T>, Agent<T>, AuxStorage<T>, T, T);
    let step = jit(|(state, old_agent, storage, learning_rate, envs): AuxStep<Tensor>| {
        let take =
            |x: Tensor| merge_time_and_env(merge_time_and_env(x.swapaxes(1, 2)).take(envs, 0));
        let (obs, returns) = (take(storage.obs), take(storage.returns));
        let batch = AuxSamples { obs, returns, logits: old_agent.logits(obs) };
        let loss = |agent: &Agent<Tensor>| aux_loss(agent, &batch, &args);
        gradient_step(state, loss, (learning_rate, true), &args).0
    });
    for envs in orders.iter().flat_map(|order| order.chunks(4)) {
        let envs = Array::new([4], envs).unwrap();
        let input = (state, old_agent.clone(), storage.clone(), learning_rate(), envs);
        state = step.call(input).unwrap();
        recorded.check(update, &state.agent);
        update += 1;
    }
    assert_eq!(update, UPDATES);
    recorded.check(UPDATES - 1, &whole.agent);
}

// ------------------------------------------------------------------------------------------- RND

/// Initial networks. The fixture names parameters by these paths.
#[derive(Tree)]
struct Initial<T> {
    agent: ppo_rnd_envpool::Agent<T>,
    curiosity: ppo_rnd_envpool::RndModel<T>,
}

/// Parameters that gradient steps change.
#[derive(Tree)]
struct Trained<T> {
    agent: ppo_rnd_envpool::Agent<T>,
    curiosity: Predictor<T>,
}

#[derive(Tree)]
struct Predictor<T> {
    predictor: ppo_rnd_envpool::Features<T>,
    head: [Dense<T>; 2],
}

#[test]
fn ppo_rnd_envpool_follows_cleanrl() {
    use ppo_rnd_envpool::{
        Agent, Args, Moments, Networks, RndModel, Rollout, Samples, TrainState, gradient_step,
        make_samples, rnd_input,
    };
    const SIZE: [usize; 3] = [4, 84, 84];
    let args = Args::from_flags([""; 0]).unwrap();
    let prepare = jit(|(agent, rollout): (Agent<Tensor>, Rollout<Tensor>)| {
        let samples = make_samples(&agent, rollout, &args).0;
        let obs_rms = Moments::new(&[1, 84, 84]).update(rnd_input(samples.obs, ObsKind::Image));
        (samples, obs_rms, Moments::new(&[]))
    });
    type Step<T> = (TrainState<T>, Samples<T>, (T, T), T);
    let step = jit(|(state, samples, (indices, mask), rate): Step<Tensor>| {
        gradient_step(state, &gather_minibatch(samples, indices), mask, rate, &args).0
    });
    let sizes = Sizes { obs_kind: ObsKind::Image, shape: SIZE.into(), num_actions: ACTIONS };
    let initial = start("", |key| {
        let (agent, rnd) = key.split();
        Initial { agent: Agent::init(agent, &sizes), curiosity: RndModel::init(rnd, &sizes) }
    });
    let networks = Networks { agent: initial.agent, rnd: initial.curiosity };
    let curiosity: Vec<f32> = noise("curiosity", STEPS * ENVS).iter().map(|x| x.abs()).collect();
    let curiosity_rewards = Array::new([STEPS, ENVS], &curiosity).unwrap();
    let values = ["ext values", "int values"].map(|name| floats(name, [STEPS, ENVS]));
    let ([obs, actions, rewards, dones, next_obs], logprobs) = (rollout("", &SIZE), logprobs(""));
    let rollout =
        Rollout { obs, actions, logprobs, values, rewards, curiosity_rewards, dones, next_obs };
    let (samples, obs_rms, reward_rms) = prepare.call((networks.agent.clone(), rollout)).unwrap();
    let opt_state = adam_state(&networks);
    let discounted_reward = Array::zeros([ENVS], DType::F32);
    let mut state = TrainState { networks, opt_state, obs_rms, reward_rms, discounted_reward };

    let rate = Array::from(args.learning_rate as f32);
    let recorded = Trajectory::of("ppo_rnd_envpool");
    for (update, indices) in minibatches(5, 4, STEPS * ENVS).into_iter().enumerate() {
        let mask = noise(&format!("mask {update}"), 4);
        let mask = mask.iter().map(|x| f32::from(x.abs() < args.update_proportion as f32));
        let mask = Array::new([4], &mask.collect::<Vec<f32>>()).unwrap();
        state = step.call((state, samples.clone(), (indices, mask), rate.clone())).unwrap();
        let Networks { agent, rnd } = state.networks.clone();
        let RndModel { predictor, head, .. } = rnd;
        recorded.check(update, &Trained { agent, curiosity: Predictor { predictor, head } });
    }
}

//! PPG and PPO with curiosity: `tests/fixtures/algos/cleanrl/ppg_rnd.py` recorded CleanRL's
//! `ppg_procgen.py` and `ppo_rnd_envpool.py`.

use podracer::algos::{ppg, ppo_rnd_envpool};
use podracer::nn::{Dense, View};
use podracer::rl::Algorithm;
use podracer::rl::on_policy::{Acted, Minibatch, Rollout, Samples, flat};
use podracer::rl::spaces::Sizes;
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

/// A rollout with observations of this shape; names end with `suffix`.
fn rollout(suffix: &str, obs: &[usize]) -> Rollout<Array> {
    let named = |name: &str| format!("{name}{suffix}");
    let shape = [STEPS, ENVS];
    Rollout {
        obs: frames(&named("obs"), &[&shape, obs].concat()),
        actions: choices(&named("actions"), ACTIONS as u32, shape),
        rewards: floats(&named("rewards"), shape),
        ends: flags(&named("ends"), 4, shape),
        next_obs: frames(&named("next_obs"), &[&[ENVS], obs].concat()),
    }
}

fn logprobs(suffix: &str) -> Array {
    let values = noise(&format!("logprobs{suffix}"), STEPS * ENVS);
    let values: Vec<f32> = values.iter().map(|x| x * 0.5 - 1.0).collect();
    Array::new([STEPS, ENVS], &values).unwrap()
}

/// Arrays of one shape as one, with an axis before the others.
fn stacked<T: podracer::trace::Element>(arrays: &[Array]) -> Array {
    let values: Vec<T> = arrays.iter().flat_map(|x| x.to_vec::<T>().unwrap()).collect();
    Array::new([&[arrays.len()], &arrays[0].shape()[..]].concat(), &values).unwrap()
}

/// Orders of indices as an array, one row for each minibatch.
fn rows(orders: Vec<Vec<i32>>, size: usize) -> Array {
    let indices = orders.concat();
    Array::new([indices.len() / size, size], &indices).unwrap()
}

// ------------------------------------------------------------------------------------------- PPG

/// Two rollouts with four minibatches each, then six epochs of two minibatches of whole rollouts.
#[test]
fn ppg_follows_cleanrl() {
    use ppg::{Agent, Args, AuxSamples, Network, Phase, TrainState};
    const SIZE: [usize; 3] = [3, 16, 16];
    let flags = ["--network=impala", "--learning-rate=0.0001", "--num-envs=4", "--num-steps=4"];
    let args = Args::from_flags(flags).unwrap();
    let learning_rate = || Array::from(args.learning_rate as f32);
    type Input<T> = (Agent<T>, Rollout<T>, Acted<T>);
    let prepare = jit(|(agent, rollout, acted): Input<Tensor>| {
        let (_, next_value) = agent.apply(rollout.next_obs);
        ppg::samples(rollout, acted, next_value, &args).0
    });
    type Step<T> = (TrainState<T>, Minibatch<T, Samples<T>>);
    let step = jit(|(state, batch): Step<Tensor>| ppg::minibatch_step(state, batch, &args).0);
    let sizes = Sizes { view: View::Frames, shape: SIZE.into(), num_actions: ACTIONS };
    let agent = start("", |key| Agent::init(key, Network::Impala, &sizes));
    let (optimizer, aux_optimizer) = (adam_state(&agent), adam_state(&agent.aux_critic));
    let mut state = TrainState { agent, optimizer, aux_optimizer };
    let recorded = Trajectory::of("ppg");

    let (mut update, mut obs, mut returns) = (0, Vec::new(), Vec::new());
    for k in 0..2 {
        let suffix = format!(" {k}");
        let rollout = rollout(&suffix, &SIZE);
        obs.push(rollout.obs.clone());
        let values = floats(&format!("values {k}"), [STEPS, ENVS]);
        let acted = Acted { logprobs: logprobs(&suffix), values };
        let samples = prepare.call((state.agent.clone(), rollout, acted)).unwrap();
        returns.push(samples.returns.clone());
        let orders = rows(vec![permutation(&format!("order {k}"), STEPS * ENVS)], 4);
        let turn = Array::from(0i32);
        let batch = Minibatch { samples, orders, turn, learning_rate: learning_rate() };
        for turn in 0..4 {
            state = step.call((state, batch.at(turn))).unwrap();
            recorded.check(update, &state.agent);
            update += 1;
        }
    }

    let returns: Vec<f32> = returns.iter().flat_map(|x| x.to_vec::<f32>().unwrap()).collect();
    let returns = Array::new([2, STEPS, ENVS], &returns).unwrap();
    let phase = Phase { obs: stacked::<u8>(&obs), returns };
    let orders: Vec<Vec<i32>> =
        (0..6).map(|k| permutation(&format!("aux order {k}"), 2 * ENVS)).collect();
    type Aux<T> = (TrainState<T>, Phase<T>, T, T);
    let auxiliary = jit(|(state, phase, learning_rate, orders): Aux<Tensor>| {
        ppg::auxiliary(state, &phase, learning_rate, orders, &args).0
    });
    let input = (state.clone(), phase.clone(), learning_rate(), rows(orders.clone(), 4));
    let whole = auxiliary.call(input).unwrap();

    // The same steps one by one.
    let old_policy = state.agent.clone();
    type AuxStep<T> = (TrainState<T>, Agent<T>, Phase<T>, T, T);
    let step = jit(|(state, old_policy, phase, learning_rate, envs): AuxStep<Tensor>| {
        let take = |x: Tensor| flat(flat(x.swapaxes(1, 2)).take(envs, 0));
        let (obs, returns) = (take(phase.obs), take(phase.returns));
        let batch = AuxSamples { obs, returns, logits: old_policy.logits(obs) };
        ppg::aux_minibatch_step(state, &batch, learning_rate, &args).0
    });
    for envs in orders.iter().flat_map(|order| order.chunks(4)) {
        let envs = Array::new([4], envs).unwrap();
        let input = (state, old_policy.clone(), phase.clone(), learning_rate(), envs);
        state = step.call(input).unwrap();
        recorded.check(update, &state.agent);
        update += 1;
    }
    assert_eq!(update, UPDATES);
    recorded.check(UPDATES - 1, &whole.agent);
}

// ------------------------------------------------------------------------------------------- RND

/// The parameters that gradient steps change.
#[derive(Tree)]
struct Learned<T> {
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
        Agent, Args, Curiosity, Moments, Networks, Samples, TrainState, minibatch_step, newest,
        samples,
    };
    const SIZE: [usize; 3] = [4, 84, 84];
    let args = Args::from_flags([""; 0]).unwrap();
    type Input<T> = (Agent<T>, Rollout<T>, (T, T), [T; 2]);
    let prepare = jit(|(agent, rollout, given, values): Input<Tensor>| {
        let (_, next_values) = agent.apply(rollout.next_obs);
        let samples = samples(rollout, given, values, next_values, &args);
        let seen = Moments::new(&[1, 84, 84]).update(newest(samples.obs, View::Frames));
        (samples, seen, Moments::new(&[]))
    });
    type Step<T> = (TrainState<T>, (Minibatch<T, Samples<T>>, T));
    let step = jit(|(state, batch): Step<Tensor>| minibatch_step(state, batch, &args).0);
    let sizes = Sizes { view: View::Frames, shape: SIZE.into(), num_actions: ACTIONS };
    let learner = start("", |key| {
        let (agent, curiosity) = key.split();
        Networks {
            agent: Agent::init(agent, &sizes),
            curiosity: Curiosity::init(curiosity, &sizes),
        }
    });
    let curiosity: Vec<f32> = noise("curiosity", STEPS * ENVS).iter().map(|x| x.abs()).collect();
    let given = (logprobs(""), Array::new([STEPS, ENVS], &curiosity).unwrap());
    let values = ["ext values", "int values"].map(|name| floats(name, [STEPS, ENVS]));
    let input = (learner.agent.clone(), rollout("", &SIZE), given, values);
    let (samples, seen, returns) = prepare.call(input).unwrap();
    let optimizer = adam_state(&learner);
    let running = Array::zeros([ENVS], DType::F32);
    let mut state = TrainState { learner, optimizer, seen, returns, running };

    let learns: Vec<f32> = (0..UPDATES)
        .flat_map(|k| noise(&format!("mask {k}"), 4))
        .map(|x| f32::from(x.abs() < args.update_proportion as f32))
        .collect();
    let learns = Array::new([UPDATES, 4], &learns).unwrap();
    let orders: Vec<Vec<i32>> = minibatches(5, 4, STEPS * ENVS)
        .iter()
        .map(|indices| indices.to_vec::<i32>().unwrap())
        .collect();
    let learning_rate = Array::from(args.learning_rate as f32);
    let turn = Array::from(0i32);
    let batch = Minibatch { samples, orders: rows(orders, 4), turn, learning_rate };
    let recorded = Trajectory::of("ppo_rnd_envpool");
    for update in 0..UPDATES {
        state = step.call((state, (batch.at(update), learns.clone()))).unwrap();
        let Networks { agent, curiosity } = state.learner.clone();
        let Curiosity { predictor, head, .. } = curiosity;
        recorded.check(update, &Learned { agent, curiosity: Predictor { predictor, head } });
    }
}

//! REINFORCE (Williams 1992) from scratch on CartPole, with a TensorBoard event file.
//!
//! You learn how an algorithm is put together: a pool of environments that compiled code steps, a policy,
//! a loss, Adam, and one compiled function that collects episodes and takes a gradient step.
//!
//! ```sh
//! cargo run --release --example custom_algorithm
//! tensorboard --logdir runs
//! ```

use clap::Parser;
use podracer::distributions::Categorical;
use podracer::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use podracer::nn::{Activation, Mlp, init};
use podracer::prelude::*;
use podracer::rl::logging::tensorboard::EventWriter;
use podracer::trace::ops;

/// Command line.
#[derive(Parser)]
struct Args {
    /// Gradient steps, each on one episode of every environment
    #[arg(long, default_value = "100")]
    iterations: u64,
    /// Number of environments
    #[arg(long, default_value = "16")]
    num_envs: usize,
    /// Learning rate of Adam
    #[arg(long, default_value = "1e-2")]
    learning_rate: f64,
    /// Discount factor gamma
    #[arg(long, default_value = "0.99")]
    gamma: f64,
    /// Seed of the policy, its actions and the environments
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Folder of the event file
    #[arg(long, default_value = "runs/reinforce")]
    log_dir: String,
}

/// CartPole-v1 truncates episodes at this length.
const MAX_EPISODE_STEPS: usize = 500;

/// One episode of every environment, `[time, env]`. `mask` is 0 after the end of the episode.
#[derive(Tree, Clone)]
struct Episodes<T> {
    obs: T,
    actions: T,
    rewards: T,
    mask: T,
}

/// Resets the environments and takes `MAX_EPISODE_STEPS` steps; `mask` is 0 after the first episode of
/// each environment.
fn collect(
    policy: &Mlp<Tensor>,
    envs: &XlaPool,
    handle: Handle<Tensor>,
    key: Key<Tensor>,
) -> (Handle<Tensor>, Episodes<Tensor>) {
    let (handle, first) = envs.reset(handle);
    let mask = ops::ones([envs.rows()], DType::F32);
    // Passing the handle on orders the calls. It cannot be used twice: that does not compile.
    let step = |(handle, obs, mask): (Handle<Tensor>, Tensor, Tensor), key: Key<Tensor>| {
        let actions = Categorical::new(policy.apply(obs)).sample(key);
        let (handle, step) = envs.step(handle, actions);
        let next_mask = where_(step.done(), ops::zeros_like(mask), mask);
        ((handle, step.obs, next_mask), Episodes { obs, actions, rewards: step.reward, mask })
    };
    let keys = key.split_batch(MAX_EPISODE_STEPS);
    let ((handle, ..), episodes) = scan(step, (handle, first.obs, mask), keys);
    (handle, episodes)
}

/// Discounted return of each step to the end of its episode, `[time, env]`.
fn returns_to_go(episodes: &Episodes<Tensor>, gamma: f64) -> Tensor {
    let rewards = episodes.rewards * episodes.mask;
    let step = |next: Tensor, reward: Tensor| {
        let sum = reward + gamma * next;
        (sum, sum)
    };
    let zero = ops::zeros_like(rewards.index_axis(0, 0));
    scan_with(step, zero, rewards, ScanOptions::reversed()).1
}

/// Policy gradient loss: its gradient is `-E[advantage * grad(log_prob)]`.
fn policy_loss(policy: &Mlp<Tensor>, episodes: &Episodes<Tensor>, advantages: Tensor) -> Tensor {
    let log_probs = Categorical::new(policy.apply(episodes.obs)).log_prob(episodes.actions);
    -(log_probs * advantages * episodes.mask).sum(..) / episodes.mask.sum(..)
}

/// State carried between iterations.
#[derive(Tree)]
struct TrainState<T> {
    policy: Mlp<T>,
    opt_state: AdamState<T, Mlp<T>>,
    handle: Handle<T>,
    key: Key<T>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let options = PoolOptions { num_envs: args.num_envs, seed: args.seed, ..Default::default() };
    let (handle, envs) = EnvPool::make("CartPole-v1", options)?.xla()?;
    let adam = Adam { learning_rate: args.learning_rate, ..Adam::default() };

    let init = jit(|(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (init_key, key) = key.split();
        let (hidden, head) = (init::orthogonal(2f64.sqrt()), init::orthogonal(0.01));
        let policy = Mlp::init_with(init_key, &[4, 64, 2], Activation::Tanh, hidden, head);
        TrainState { opt_state: adam.init(&policy), policy, handle, key }
    });
    let iterate = jit(|state: TrainState<Tensor>| {
        let TrainState { policy, opt_state, handle, key } = state;
        let (collect_key, key) = key.split();
        let (handle, episodes) = collect(&policy, &envs, handle, collect_key);
        let (returns, mask) = (returns_to_go(&episodes, args.gamma), episodes.mask);
        let mean = |x: Tensor| (x * mask).sum(..) / mask.sum(..);
        let centered = returns - mean(returns);
        let advantages = centered / (mean(centered.square()).sqrt() + 1e-8);
        let loss = |policy: Mlp<Tensor>| policy_loss(&policy, &episodes, advantages);
        let (loss, grads) = value_and_grad(loss)(policy.clone());
        let (policy, opt_state) = adam.step(policy, grads, opt_state);
        let episodic_return = (episodes.rewards * mask).sum(0).mean(..);
        (TrainState { policy, opt_state, handle, key }, (loss, episodic_return, mask.sum(..)))
    });

    let mut writer = EventWriter::create(&args.log_dir)?;
    let mut state = init.call((handle, Key::new(args.seed)))?;
    let mut global_step = 0;
    for i in 1..=args.iterations {
        let metrics;
        (state, metrics) = iterate.call(state)?;
        let (loss, episodic_return) = (metrics.0.item::<f32>()?, metrics.1.item::<f32>()?);
        global_step += metrics.2.item::<f32>()? as u64;
        writer.scalar("charts/episodic_return", episodic_return.into(), global_step)?;
        writer.scalar("losses/policy_loss", loss.into(), global_step)?;
        if i == 1 || i % 10 == 0 {
            println!("iteration {i:4}  step {global_step:7}  mean return {episodic_return:6.1}");
        }
    }
    println!("event file: {}", writer.path().display());
    writer.close()
}

#!/usr/bin/env python3
"""PPO on CartPole as one jax program, in the shape of PureJaxRL's ppo.py: the peer of benches/anakin.rs.

The same loops in the same order (a key split for every step, value and log probability in the
rollout, every leaf permuted by sorting), the same sizes and settings; layers, Adam, CartPole and
its log of episodes are written out in jnp, so that jax is all it needs.

Reads AGENTSxENVS on a line, the number of agents and of the environments of each, launches a program
that trains each of them on from where it was, and answers microseconds per update of an agent. After
"processor" it answers the processor time of the last launch, also per update of an agent.
By hand: echo 1x4 | python benches/peers/purejaxrl_cartpole.py
"""
import functools
import sys
import time

import jax
import jax.numpy as jnp
from jax import lax

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM, RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 2.5e-4
UPDATES = 976  # of a run of 5e5 steps: what the learning rate falls over


def reset(key):
    state = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return (state, jnp.int32(0), jnp.float32(0), jnp.int32(0), jnp.float32(0), jnp.int32(0)), state


def step(key, game, action):
    """gymnax's step with reset, and the log of episodes around it."""
    (s, t, total, length, last_total, last_length) = game
    x, x_dot, theta, theta_dot = s
    force = 10.0 * action - 10.0 * (1 - action)
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cos / 1.1
    s = jnp.stack([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc])
    t = t + 1
    done = (jnp.abs(s[0]) > 2.4) | (jnp.abs(s[2]) > 12 * 2 * jnp.pi / 360) | (t >= 500)
    fresh = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    s = jnp.where(done, fresh, s)
    total, length = total + 1.0, length + 1
    last_total, last_length = jnp.where(done, total, last_total), jnp.where(done, length, last_length)
    game = (s, jnp.where(done, 0, t), jnp.where(done, 0.0, total), jnp.where(done, 0, length), last_total, last_length)
    return game, s, jnp.float32(1), done, (last_total, last_length, done)


def network(p, x):
    dense = lambda layer, x: x @ layer[0] + layer[1]
    a = jnp.tanh(dense(p[1], jnp.tanh(dense(p[0], x))))
    c = jnp.tanh(dense(p[4], jnp.tanh(dense(p[3], x))))
    return jax.nn.log_softmax(dense(p[2], a)), dense(p[5], c)[..., 0]


def taken(logp, action):
    return jnp.take_along_axis(logp, action[..., None], -1)[..., 0]


def start(envs, key):
    key, *keys = jax.random.split(key, 8)
    sizes = [(4, 64, 2**0.5), (64, 64, 2**0.5), (64, 2, 0.01), (4, 64, 2**0.5), (64, 64, 2**0.5), (64, 1, 1.0)]
    init = lambda k, i, o, gain: (jax.nn.initializers.orthogonal(gain)(k, (i, o)), jnp.zeros(o))
    p = [init(k, *size) for k, size in zip(keys, sizes)]
    zeros = lambda: jax.tree.map(jnp.zeros_like, p)
    games, obs = jax.vmap(reset)(jax.random.split(keys[6], envs))
    return ((p, jnp.int32(0), zeros(), zeros()), games, obs, key)


def loss(p, batch, gae, targets):
    obs, action, _, value_before, logp_before = batch
    logp, value = network(p, obs)
    near = value_before + (value - value_before).clip(-CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - targets) ** 2, (near - targets) ** 2).mean()
    ratio = jnp.exp(taken(logp, action) - logp_before)
    gae = (gae - gae.mean()) / (gae.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * gae, ratio.clip(1 - CLIP, 1 + CLIP) * gae).mean()
    entropy = -(jnp.exp(logp) * logp).sum(-1).mean()
    return policy_loss + VALUE * value_loss - ENTROPY * entropy, (value_loss, policy_loss, entropy)


def adam(train, g):
    p, count, m, v = train
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g)))
    g = jax.tree.map(lambda x: jnp.where(norm < MAX_NORM, x, x / norm * MAX_NORM), g)
    rate = RATE * (1.0 - (count // (MINIBATCHES * EPOCHS)) / UPDATES)
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.1 * g + 0.9 * m, m, g)
    v = jax.tree.map(lambda v, g: 0.001 * g * g + 0.999 * v, v, g)
    cm, cv = 1 - 0.9 ** count.astype(jnp.float32), 1 - 0.999 ** count.astype(jnp.float32)
    p = jax.tree.map(lambda p, m, v: p - rate * (m / cm / (jnp.sqrt(v / cv) + 1e-5)), p, m, v)
    return p, count, m, v


def update(state, _):
    def env_step(carry, _):
        train, games, obs, key = carry
        key, draw = jax.random.split(key)
        logp, value = network(train[0], obs)
        action = jax.random.categorical(draw, logp)
        key, draw = jax.random.split(key)
        keys = jax.random.split(draw, len(obs))
        games, after, reward, done, info = jax.vmap(step)(keys, games, action)
        return (train, games, after, key), (obs, action, (reward, done), value, taken(logp, action), info)

    state, (obs, action, (reward, done), value, logp, info) = lax.scan(env_step, state, None, STEPS)
    train, games, last_obs, key = state
    _, last_value = network(train[0], last_obs)

    def advantage(carry, now):
        gae, after = carry
        reward, done, value = now
        delta = reward + GAMMA * after * (1 - done) - value
        gae = delta + GAMMA * LAMBDA * (1 - done) * gae
        return (gae, value), gae

    _, gae = lax.scan(advantage, (jnp.zeros_like(last_value), last_value), (reward, done, value), reverse=True, unroll=16)
    targets = gae + value

    def epoch(carry, _):
        train, key = carry
        key, draw = jax.random.split(key)
        samples = gae.size
        order = jax.random.permutation(draw, samples)
        batch = ((obs, action, reward, value, logp), gae, targets)
        mixed = jax.tree.map(lambda x: jnp.take(x.reshape(samples, *x.shape[2:]), order, axis=0), batch)
        parts = jax.tree.map(lambda x: x.reshape(MINIBATCHES, -1, *x.shape[1:]), mixed)

        def minibatch(train, part):
            value, g = jax.value_and_grad(loss, has_aux=True)(train[0], *part)
            return adam(train, g), value

        train, losses = lax.scan(minibatch, train, parts)
        return (train, key), losses

    (train, key), _ = lax.scan(epoch, (train, key), None, EPOCHS)
    return (train, games, last_obs, key), info


def main():
    live, used = {}, 0.0
    for line in sys.stdin:
        if line.strip() == "processor":
            print(used, flush=True)
            continue
        agents, envs = map(int, line.split("x"))
        updates = 64 if agents * envs <= 4 else 16 if agents * envs <= 32 else 4
        if line not in live:
            begin = functools.partial(start, envs)
            run = lambda state: lax.scan(update, state, None, updates)
            many = (begin, run) if agents == 1 else (jax.vmap(begin), jax.vmap(run))
            key = jax.random.PRNGKey(30)
            state = jax.jit(many[0])(key if agents == 1 else jax.random.split(key, agents))
            launch = jax.jit(many[1], donate_argnums=0)
            live[line] = [launch, jax.block_until_ready(launch(state))[0]]
        launch, state = live[line]
        begin, busy = time.perf_counter(), time.process_time()
        state, _ = jax.block_until_ready(launch(state))
        seconds, used = time.perf_counter() - begin, time.process_time() - busy
        live[line][1] = state
        used *= 1e6 / (agents * updates)
        print(seconds * 1e6 / (agents * updates), flush=True)


main()

"""C51 on CartPole-v1 in JAX alone, many seeds at once: what the formulas do, whoever computes them.

usage: jax_c51.py SEEDS, with jax and optax. Prints the mean return of each seed's last 100 episodes.

The formulas and numbers are those of CleanRL's `c51_jax.py`. The projection onto the atoms is written
as each atom's share by its distance, which is the same sum in another order.
"""
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_cartpole import move, reset

TOTAL, START, EVERY, SYNC = 500_000, 10_000, 10, 500
BUFFER, BATCH, GAMMA, RATE = 10_000, 128, 0.99, 2.5e-4
ATOMS = jnp.linspace(-100.0, 100.0, 101)
GAP = ATOMS[1] - ATOMS[0]
OPTIMIZER = optax.adam(RATE, eps=0.01 / BATCH)


def init(key):
    start = jax.nn.initializers.lecun_normal()
    sizes = [(4, 120), (120, 84), (84, 2 * len(ATOMS))]
    return [(start(k, s), jnp.zeros(s[1])) for k, s in zip(jax.random.split(key, 3), sizes)]


def logits(params, x):
    for kernel, bias in params[:-1]:
        x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = params[-1]
    return (x @ kernel + bias).reshape(*x.shape[:-1], 2, len(ATOMS))


def best(params, x):
    chances = jax.nn.softmax(logits(params, x))
    return (chances * ATOMS).sum(-1).argmax(-1), chances


def target(params, after, rewards, fell):
    action, chances = best(params, after)
    chances = jnp.take_along_axis(chances, action[:, None, None], 1)[:, 0]
    where = jnp.clip(rewards[:, None] + GAMMA * (1 - fell[:, None]) * ATOMS, ATOMS[0], ATOMS[-1])
    near = jnp.clip(1 - jnp.abs(where[:, :, None] - ATOMS) / GAP, 0, 1)
    return (chances[:, :, None] * near).sum(1)


def loss(params, obs, actions, goals):
    chances = jax.nn.softmax(logits(params, obs))
    chances = jnp.take_along_axis(chances, actions[:, None, None], 1)[:, 0]
    return -(goals * jnp.log(jnp.clip(chances, 1e-5, 1 - 1e-5))).sum(-1).mean()


def play(carry, time):
    """One step of the environment, stored."""
    params, (obs, age), memory, (lengths, ended), key = carry
    key, explore, draw, new = jax.random.split(key, 4)
    epsilon = jnp.maximum((0.05 - 1.0) / (0.5 * TOTAL) * time + 1.0, 0.05)
    chance = jax.random.randint(draw, (), 0, 2)
    action = jnp.where(jax.random.uniform(explore) < epsilon, chance, best(params, obs)[0])
    after, fell = move(obs, action)
    over = fell | (age + 1 >= 500)
    row = obs, after, action, fell.astype(jnp.float32)
    memory = tuple(all.at[time % BUFFER].set(one) for all, one in zip(memory, row))
    lengths = jnp.where(over, lengths.at[ended % 100].set(age + 1), lengths)
    envs = jnp.where(over, reset(new), after), jnp.where(over, 0, age + 1)
    return (params, envs, memory, (lengths, ended + over), key), None


def run(seed):
    key, start, first = jax.random.split(jax.random.key(seed), 3)
    params = init(start)
    memory = (
        jnp.zeros((BUFFER, 4)),
        jnp.zeros((BUFFER, 4)),
        jnp.zeros(BUFFER, jnp.int32),
        jnp.zeros(BUFFER),
    )
    told = jnp.zeros(100, jnp.int32), jnp.int32(0)

    def iteration(carry, number):
        params, frozen, moments, envs, memory, told, key = carry
        time = number * EVERY
        (_, envs, memory, told, key), _ = play((params, envs, memory, told, key), time)
        key, draw = jax.random.split(key)
        rows = jax.random.randint(draw, (BATCH,), 0, jnp.minimum(time + 1, BUFFER))
        obs, after, actions, fell = (all[rows] for all in memory)
        goals = target(frozen, after, jnp.ones(BATCH), fell)
        grads = jax.grad(loss)(params, obs, actions, goals)
        updates, moved = OPTIMIZER.update(grads, moments, params)
        learns = time > START
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(learns, a, b), new, old)
        params, moments = pick(optax.apply_updates(params, updates), params), pick(moved, moments)
        sync = learns & (time % SYNC == 0)
        frozen = jax.tree.map(lambda a, b: jnp.where(sync, a, b), params, frozen)
        rest = time + 1 + jnp.arange(EVERY - 1)
        (_, envs, memory, told, key), _ = jax.lax.scan(play, (params, envs, memory, told, key), rest)
        return (params, frozen, moments, envs, memory, told, key), None

    envs = reset(first), jnp.int32(0)
    carry = params, params, OPTIMIZER.init(params), envs, memory, told, key
    carry, _ = jax.lax.scan(iteration, carry, jnp.arange(TOTAL // EVERY))
    return carry[5][0].mean()


means = np.array(jax.jit(jax.vmap(run))(jnp.arange(int(sys.argv[1]))))
print(" ".join(f"{mean:.1f}" for mean in np.sort(means)))
print(f"mean {means.mean():.1f}, deviation {means.std():.1f}, below 475: {(means < 475).sum()}")

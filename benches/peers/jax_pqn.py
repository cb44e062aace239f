"""PQN on CartPole-v1 in JAX alone, many seeds at once: what the formulas do, whoever computes them.

usage: jax_pqn.py SEEDS, with jax and optax. Prints the mean return of each seed's last 100 episodes.

The formulas and numbers are those of CleanRL's `pqn.py`: Q(lambda) targets, layer normalization,
RAdam (its factors in double precision, as PyTorch has them), a learning rate that falls to 0.
"""
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_cartpole import move, reset

ENVS, STEPS, MINIBATCHES, EPOCHS = 4, 128, 4, 4
TOTAL = 500_000
ITERATIONS = TOTAL // (ENVS * STEPS)
GAMMA, LAMBDA, RATE, MAX_NORM = 0.99, 0.65, 2.5e-4, 10.0


def env_step(state, age, action, key):
    """A step; the length of the episode where it ended, else -1."""
    state, fell = move(state, action)
    age = age + 1
    done = fell | (age >= 500)
    return jnp.where(done, reset(key), state), jnp.where(done, 0, age), done, jnp.where(done, age, -1)


def layer_norm(params, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * params[0] + params[1]


def init(key):
    start = jax.nn.initializers.orthogonal(np.sqrt(2))
    sizes = [(4, 120), (120, 84), (84, 2)]
    dense = [(start(k, s), jnp.zeros(s[1])) for k, s in zip(jax.random.split(key, 3), sizes)]
    return dense, [(jnp.ones(n), jnp.zeros(n)) for n in (120, 84)]


def network(params, x):
    dense, norms = params
    for (kernel, bias), norm in zip(dense, norms):
        x = jax.nn.relu(layer_norm(norm, x @ kernel + bias))
    return x @ dense[-1][0] + dense[-1][1]


counts = np.arange(1, ITERATIONS * EPOCHS * MINIBATCHES + 1, dtype=np.float64)
limit = 2 / (1 - 0.999) - 1
length = limit - 2 * counts * 0.999**counts / (1 - 0.999**counts)
inner = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
RECTIFIED = jnp.array(length > 5)
FACTOR = jnp.array(np.sqrt(np.where(length > 5, inner, 1) * (1 - 0.999**counts)), jnp.float32)
FIRST = jnp.array(1 - 0.9**counts, jnp.float32)


def radam(params, grads, state, rate):
    count, first, second = state
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)

    def move(p, m, v):
        m = m / FIRST[count]
        return p - rate * jnp.where(RECTIFIED[count], m * FACTOR[count] / (jnp.sqrt(v) + 1e-8), m)

    return jax.tree.map(move, params, first, second), (count + 1, first, second)


def run(seed):
    key, start, first = jax.random.split(jax.random.key(seed), 3)
    params = init(start)
    zeros = jax.tree.map(jnp.zeros_like, params)
    envs = jax.vmap(reset)(jax.random.split(first, ENVS)), jnp.zeros(ENVS, jnp.int32)
    ended = jnp.zeros(100, jnp.int32), jnp.int32(0)

    def iteration(carry, number):
        params, moments, envs, ended, key = carry

        def step(carry, turn):
            (obs, age), (lengths, count), key = carry
            key, which, draw, new = jax.random.split(key, 4)
            done = (number * STEPS + turn + 1) * ENVS
            epsilon = jnp.maximum((0.05 - 1.0) / (0.5 * TOTAL) * done + 1.0, 0.05)
            values = network(params, obs)
            chance = jax.random.randint(draw, (ENVS,), 0, 2)
            explore = jax.random.uniform(which, (ENVS,)) < epsilon
            action = jnp.where(explore, chance, values.argmax(-1))
            keys = jax.random.split(new, ENVS)
            after, age, over, told = jax.vmap(env_step)(obs, age, action, keys)
            for env in range(ENVS):
                kept = lengths.at[count % 100].set(told[env])
                lengths, count = jnp.where(over[env], kept, lengths), count + over[env]
            row = obs, action, over.astype(jnp.float32), values.max(-1)
            return ((after, age), (lengths, count), key), row

        (envs, ended, key), (obs, actions, dones, values) = jax.lax.scan(
            step, (envs, ended, key), jnp.arange(STEPS)
        )
        last = network(params, envs[0]).max(-1)

        def back(carry, row):
            goal, value = carry
            done, here = row
            goal = 1.0 + GAMMA * (1 - done) * (LAMBDA * goal + (1 - LAMBDA) * value)
            return (goal, here), goal

        _, goals = jax.lax.scan(back, (last, last), (dones, values), reverse=True)
        obs, actions, goals = obs.reshape(-1, 4), actions.reshape(-1), goals.reshape(-1)
        key, order = jax.random.split(key)
        orders = [jax.random.permutation(k, len(goals)) for k in jax.random.split(order, EPOCHS)]
        rate = (1 - number / ITERATIONS) * RATE

        def update(carry, rows):
            params, moments = carry

            def loss(params):
                values = network(params, obs[rows])
                taken = jnp.take_along_axis(values, actions[rows][:, None], 1)[:, 0]
                return ((taken - goals[rows]) ** 2).mean()

            grads = jax.grad(loss)(params)
            scale = jnp.minimum(1, MAX_NORM / (optax.global_norm(grads) + 1e-6))
            return radam(params, jax.tree.map(lambda g: g * scale, grads), moments, rate), None

        rows = jnp.concatenate([order.reshape(MINIBATCHES, -1) for order in orders])
        (params, moments), _ = jax.lax.scan(update, (params, moments), rows)
        return (params, moments, envs, ended, key), None

    carry = params, (jnp.int32(0), zeros, zeros), envs, ended, key
    (_, _, _, (lengths, _), _), _ = jax.lax.scan(iteration, carry, jnp.arange(ITERATIONS))
    return lengths.mean()


means = np.array(jax.jit(jax.vmap(run))(jnp.arange(int(sys.argv[1]))))
print(" ".join(f"{mean:.1f}" for mean in np.sort(means)))
print(f"mean {means.mean():.1f}, deviation {means.std():.1f}, below 475: {(means < 475).sum()}")

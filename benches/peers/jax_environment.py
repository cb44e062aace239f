"""Steps per second of an environment in JAX: vmap of it, in a scan, with random actions.

Reads `ID NUM_ENVS NUM_STEPS` on a line and answers with a number on a line. An id is one of
`tools/jax_to_podracer.py`, such as gymnax:CartPole-v1.
"""

import contextlib
import sys
import time
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import jax
from jax import lax
from jax import numpy as jnp

from jax_environments import make, observed


@cache
def program(id, num_envs, num_steps):
    with contextlib.redirect_stdout(sys.stderr):  # Brax prints when it is imported.
        env = make(id)
    space, limit = env["action"], env.get("max_episode_steps")

    def sample(key):
        if space["kind"] == "discrete":
            return jax.random.randint(key, (), 0, space["n"])
        return jax.random.uniform(key, space["shape"], minval=-1.0, maxval=1.0)

    def one(carry, key):
        state, elapsed, _ = carry
        action_key, step_key, reset_key = jax.random.split(key, 3)
        obs, next_state, reward, terminated, *truncated = env["step"](step_key, state, sample(action_key))
        done = jnp.logical_or(terminated, truncated[0] if truncated else False)
        done = jnp.logical_or(done, elapsed + 1 >= limit) if limit else done
        first, start = env["reset"](reset_key)
        obs = jnp.where(done, observed(first), observed(obs))
        state = jax.tree.map(lambda a, b: jnp.where(done, a, b), start, next_state)
        return (state, jnp.where(done, 0, elapsed + 1), obs), reward

    @jax.jit
    def run(key):
        first, rest = jax.random.split(key)
        obs, states = jax.vmap(env["reset"])(jax.random.split(first, num_envs))
        carry = states, jnp.zeros(num_envs, jnp.int32), jax.vmap(observed)(obs)
        keys = jax.random.split(rest, num_steps)

        def step(carry, key):
            carry, rewards = jax.vmap(one)(carry, jax.random.split(key, num_envs))
            return carry, rewards.sum()

        # The last observations are part of the result, so that those of all steps are computed.
        (_, _, obs), rewards = lax.scan(step, carry, keys)
        return rewards.sum() + 0.0 * obs.astype(jnp.float32).sum()

    jax.block_until_ready(run(jax.random.PRNGKey(0)))
    return run


for line in sys.stdin:
    id, num_envs, num_steps = line.split()
    num_envs, num_steps = int(num_envs), int(num_steps)
    run = program(id, num_envs, num_steps)
    began = time.perf_counter()
    jax.block_until_ready(run(jax.random.PRNGKey(1)))
    print(num_envs * num_steps / (time.perf_counter() - began), flush=True)

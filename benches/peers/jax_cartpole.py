"""Gymnasium's CartPole-v1 in JAX, for the scripts beside it."""
import jax
import jax.numpy as jnp
import numpy as np


def reset(key):
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def move(state, action):
    """What follows, and whether it fell."""
    x, x_dot, theta, theta_dot = state
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    push = (force + 0.05 * theta_dot**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pull = push - 0.05 * turn * cos / 1.1
    state = state + 0.02 * jnp.array([x_dot, pull, theta_dot, turn])
    fell = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * 2 * np.pi / 360)
    return state, fell

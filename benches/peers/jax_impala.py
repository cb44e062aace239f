#!/usr/bin/env python3
"""The gradients of benches/impala.rs on jax alone. Reads names of measurements, answers milliseconds.

Needs: jax and numpy. By hand: echo network | python benches/peers/jax_impala.py
"""
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BATCH, FEATURES, UNITS = 128, (16, 32, 32), 256


def parameters(rng):
    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[:-1])))

    convs, inputs = [], 4
    for outputs in FEATURES:
        sizes = [(3, 3, inputs, outputs)] + [(3, 3, outputs, outputs)] * 4
        convs.append([dict(w=normal(*size), b=jnp.zeros(outputs)) for size in sizes])
        inputs = outputs
    hidden = dict(w=normal(11 * 11 * inputs, UNITS), b=jnp.zeros(UNITS))
    return dict(convs=convs, hidden=hidden)


def conv(layer, x):
    return lax.conv_general_dilated(x, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + layer["b"]


def max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def loss(p, images):
    x = images.astype(jnp.float32) / 255.0
    for first, a, b, c, d in p["convs"]:
        x = max_pool(conv(first, x))
        x = x + conv(b, jax.nn.relu(conv(a, jax.nn.relu(x))))
        x = x + conv(d, jax.nn.relu(conv(c, jax.nn.relu(x))))
    x = jax.nn.relu(x).reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ p["hidden"]["w"] + p["hidden"]["b"])
    return jnp.mean(x**2)


numbers = (np.arange(BATCH * 84 * 84 * 16) * 7919 % 251).astype(np.float32) / 251
pictures = jnp.asarray(numbers.reshape(BATCH, 84, 84, 16))
weights = jnp.asarray(numbers[: BATCH * 42 * 42 * 16].reshape(BATCH, 42, 42, 16))
images = jnp.asarray((np.arange(BATCH * 84 * 84 * 4) * 7919 % 251).astype(np.uint8).reshape(BATCH, 84, 84, 4))
state = parameters(np.random.default_rng(0))
network = jax.jit(jax.grad(loss))
pooling = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x) * weights)))
runs = dict(network=lambda: network(state, images), pooling=lambda: pooling(pictures))
for run in runs.values():
    jax.block_until_ready(run())
for line in sys.stdin:
    start = time.perf_counter()
    jax.block_until_ready(runs[line.strip()]())
    print((time.perf_counter() - start) * 1e3, flush=True)

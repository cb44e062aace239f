#!/usr/bin/env python3
"""The step of benches/pmap.rs by jax.pmap. Reads numbers of devices, answers milliseconds.

Needs: jax and numpy. By hand: echo 4 | python benches/peers/jax_pmap.py
"""
import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np

BATCH, SIZES = 4096, [(32, 256), (256, 256), (256, 8)]
rng = np.random.default_rng(0)


def apply(p, x):
    for w, b in p[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ p[-1][0] + p[-1][1]


def step(state, batch):
    p, m, v, count = state
    x, y = batch
    loss, g = jax.value_and_grad(lambda p: ((apply(p, x) - y) ** 2).mean())(p)
    loss, g = jax.lax.pmean((loss, g), "devices")
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.1 * g + 0.9 * m, m, g)
    v = jax.tree.map(lambda v, g: 0.001 * g * g + 0.999 * v, v, g)
    cm, cv = 1 - 0.9 ** count.astype(jnp.float32), 1 - 0.999 ** count.astype(jnp.float32)
    p = jax.tree.map(lambda p, m, v: p - 1e-3 * (m / cm / (jnp.sqrt(v / cv) + 1e-3)), p, m, v)
    return (p, m, v, count), loss


def normal(*shape):
    return rng.standard_normal(shape, np.float32) * 0.1


def prepare(n):
    f = jax.pmap(step, axis_name="devices", devices=jax.devices()[:n], donate_argnums=0)
    p = [(normal(*s), np.zeros(s[1], np.float32)) for s in SIZES]
    zeros = lambda: jax.tree.map(np.zeros_like, p)
    state = (p, zeros(), zeros(), np.int32(0))
    state = jax.tree.map(lambda x: np.stack([x] * n), state)
    batch = (normal(n, BATCH // n, 32), normal(n, BATCH // n, 8))
    ready = [f, f(state, batch)[0], batch]
    # The batch stays on its devices.
    same = jax.pmap(lambda x: x, devices=jax.devices()[:n])
    ready[2] = same(batch)
    return ready


ready = {}
for line in sys.stdin:
    n = int(line)
    if n not in ready:
        ready[n] = prepare(n)
    f, state, batch = ready[n]
    for _ in range(2):
        state, loss = f(state, batch)
    jax.block_until_ready(loss)
    start = time.perf_counter()
    for _ in range(10):
        state, loss = f(state, batch)
        jax.block_until_ready(loss)
    print((time.perf_counter() - start) / 10 * 1e3, flush=True)
    ready[n][1] = state

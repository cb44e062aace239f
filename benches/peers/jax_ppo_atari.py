#!/usr/bin/env python3
"""The step of benches/ppo_atari.rs on jax alone. Reads names of measurements, answers milliseconds.

Needs: jax and numpy. By hand: echo step | python benches/peers/jax_ppo_atari.py
"""
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BATCH, ACTIONS, CLIP = 256, 4, 0.1
CONVS = ((8, 4, 32, 4), (4, 32, 64, 2), (3, 64, 64, 1))


def parameters(rng):
    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[:-1])))

    convs = [dict(w=normal(k, k, i, o), b=jnp.zeros(o)) for k, i, o, _ in CONVS]
    sizes = dict(hidden=(3136, 512), actor=(512, ACTIONS), critic=(512, 1))
    return dict(convs=convs, **{n: dict(w=normal(*s), b=jnp.zeros(s[1])) for n, s in sizes.items()})


def network(p, x):
    x = x.transpose(0, 2, 3, 1).astype(jnp.float32) / 255.0
    for layer, (_, _, _, stride) in zip(p["convs"], CONVS):
        x = lax.conv_general_dilated(x, layer["w"], (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + layer["b"])
    dense = lambda n, x: x @ p[n]["w"] + p[n]["b"]
    x = jax.nn.relu(dense("hidden", x.reshape(x.shape[0], -1)))
    return dense("actor", x), dense("critic", x)[:, 0]


def loss(p, b):
    logits, value = network(p, b["observations"])
    logp = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(logp, b["actions"][:, None], 1)[:, 0]
    entropy = -(jnp.exp(logp) * logp).sum(1).mean()
    ratio = jnp.exp(taken - b["log_probs"])
    adv = (b["advantages"] - b["advantages"].mean()) / (b["advantages"].std() + 1e-8)
    policy = jnp.maximum(-adv * ratio, -adv * jnp.clip(ratio, 1 - CLIP, 1 + CLIP)).mean()
    near = b["values"] + jnp.clip(value - b["values"], -CLIP, CLIP)
    errors = jnp.maximum((value - b["returns"]) ** 2, (near - b["returns"]) ** 2)
    return policy - 0.01 * entropy + 0.5 * (0.5 * errors.mean())


def step(state, b):
    p, count, m, v = state
    value, g = jax.value_and_grad(loss)(p, b)
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g)))
    g = jax.tree.map(lambda x: jnp.where(norm < 0.5, x, x / norm * 0.5), g)
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.1 * g + 0.9 * m, m, g)
    v = jax.tree.map(lambda v, g: 0.001 * g * g + 0.999 * v, v, g)
    cm, cv = 1 - 0.9 ** count.astype(jnp.float32), 1 - 0.999 ** count.astype(jnp.float32)
    p = jax.tree.map(lambda p, m, v: p - 2.5e-4 * (m / cm / (jnp.sqrt(v / cv) + 1e-5)), p, m, v)
    return (p, count, m, v), value


def minibatch(rng, *rows):
    floats = lambda offset=0.0, scale=1.0: jnp.asarray(rng.normal(offset, scale, (*rows, BATCH)).astype(np.float32))
    return dict(
        observations=jnp.asarray(rng.integers(0, 256, (*rows, BATCH, 4, 84, 84), np.uint8)),
        actions=jnp.asarray(rng.integers(0, ACTIONS, (*rows, BATCH)).astype(np.int32)),
        log_probs=floats(-1.386, 0.05), advantages=floats(), returns=floats(), values=floats())


def main():
    rng = np.random.default_rng(0)
    p = parameters(rng)
    zeros = jax.tree.map(jnp.zeros_like, p)
    state = (p, jnp.int32(0), zeros, jax.tree.map(jnp.zeros_like, p))
    batch = minibatch(rng)
    jitted = jax.jit(step, donate_argnums=0)
    four = jax.jit(lambda state, b: lax.scan(step, state, b), donate_argnums=0)
    copy = lambda t: jax.tree.map(jnp.copy, t)
    live = dict(state=copy(state), lowered=None, batches=None)

    def lower():
        jax.clear_caches()
        start = time.perf_counter()
        live["lowered"] = jitted.lower(state, batch)
        return time.perf_counter() - start

    def compile_():
        lower()
        start = time.perf_counter()
        live["lowered"].compile()
        return time.perf_counter() - start

    def run(f, b):
        start, used = time.perf_counter(), time.process_time()
        live["state"], value = f(live["state"], b)
        jax.block_until_ready((live["state"], value))
        live["processor"] = time.process_time() - used
        return time.perf_counter() - start

    def scan():
        batches = minibatch(rng, 4)
        run(four, batches)
        return run(four, batches) / 4

    warm = False
    for line in sys.stdin:
        what = line.strip()
        if what == "step" and not warm:
            run(jitted, batch)
            warm = True
        seconds = {"lower": lower, "compile": compile_, "step": lambda: run(jitted, batch), "scan": scan,
                   "processor": lambda: live["processor"]}[what]()
        warm = warm and what not in ("lower", "compile")
        print(seconds * 1e3, flush=True)


if __name__ == "__main__":
    main()

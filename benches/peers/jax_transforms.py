#!/usr/bin/env python3
"""The functions of benches/transforms.rs on jax alone. Reads names of measurements, answers
milliseconds, or bytes of scratch memory for names that end in " bytes".

Needs: jax and numpy. By hand: echo lstm | python benches/peers/jax_transforms.py
"""
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

T, BATCH, HIDDEN = 128, 64, 128
SEEDS, ROWS, WIDTH = 64, 128, 64
rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape, np.float32) * 0.1)


def lstm_loss(cell, xs):
    w_i, w_h, b = cell

    def turn(state, x):
        c, h = state
        gates = x @ w_i + (h @ w_h + b)
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    zeros = jnp.zeros((BATCH, HIDDEN))
    _, hs = lax.scan(turn, (zeros, zeros), xs)
    return (hs * hs).mean()


def mlp(p, x):
    for w, b in p[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = p[-1]
    return x @ w + b


def update(state, batch):
    p, m, v, count = state
    x, y = batch
    loss, g = jax.value_and_grad(lambda p: ((mlp(p, x) - y) ** 2).mean())(p)
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.1 * g + 0.9 * m, m, g)
    v = jax.tree.map(lambda v, g: 0.001 * g * g + 0.999 * v, v, g)
    cm, cv = 1 - 0.9 ** count.astype(jnp.float32), 1 - 0.999 ** count.astype(jnp.float32)
    p = jax.tree.map(lambda p, m, v: p - 1e-3 * (m / cm / (jnp.sqrt(v / cv) + 1e-5)), p, m, v)
    return (p, m, v, count), loss


def mlp_arguments():
    sizes = [(4, WIDTH), (WIDTH, WIDTH), (WIDTH, 2)]
    p = [(normal(SEEDS, *s), jnp.zeros((SEEDS, s[1]))) for s in sizes]
    zeros = lambda: jax.tree.map(jnp.zeros_like, p)
    state = (p, zeros(), zeros(), jnp.zeros(SEEDS, jnp.int32))
    return state, (normal(SEEDS, ROWS, 4), normal(SEEDS, ROWS, 2))


# A function, its first arguments, and those of the next call by these and the result. States are
# donated.
CASES = {
    "lstm": (
        jax.jit(jax.value_and_grad(lstm_loss)),
        lambda: ((normal(HIDDEN, 4 * HIDDEN), normal(HIDDEN, 4 * HIDDEN), jnp.zeros(4 * HIDDEN)), normal(T, BATCH, HIDDEN)),
        lambda arguments, result: arguments,
    ),
    "mlps": (
        jax.jit(jax.vmap(update), donate_argnums=0),
        mlp_arguments,
        lambda arguments, result: (result[0], arguments[1]),
    ),
}
ready = {}


class Case:
    def __init__(self, name):
        f, arguments, self.after = CASES[name]
        self.arguments = arguments()
        self.compiled = f.lower(*self.arguments).compile()
        self.call(3)

    def call(self, times):
        for _ in range(times):
            result = jax.block_until_ready(self.compiled(*self.arguments))
            self.arguments = self.after(self.arguments, result)


for line in sys.stdin:
    name, _, what = line.strip().partition(" ")
    if name not in ready:
        ready[name] = Case(name)
    case = ready[name]
    if what == "bytes":
        print(case.compiled.memory_analysis().temp_size_in_bytes, flush=True)
        continue
    start = time.perf_counter()
    case.call(5)
    print((time.perf_counter() - start) / 5 * 1e3, flush=True)

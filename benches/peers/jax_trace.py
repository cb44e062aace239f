#!/usr/bin/env python3
"""The functions of benches/trace.rs on jax: tracing and lowering to StableHLO text. Reads names of
measurements, answers milliseconds.

Needs: jax. By hand: echo flat | python benches/peers/jax_trace.py
"""
import sys
import time

import jax
import jax.numpy as jnp
from jax import lax


def flat(x, y):
    for i in range(1250):
        scale = jnp.tanh(x * (1.0 + i / 1e4))
        mean = scale.sum(0) / 32.0
        x = jnp.maximum(scale - mean, y) + x
        x = x.T
    return x


def cell(p, x, carry):
    c, h = carry
    i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def lstm(p, xs):
    def loss(p):
        def turn(carry, x):
            c, h = cell(p, x, carry)
            return (c, h), h

        start = jnp.zeros((16, 32)), jnp.zeros((16, 32))
        return jnp.square(lax.scan(turn, start, xs)[1]).mean()

    return jax.grad(loss)(p)


def apply(net, x):
    for w, b in net[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ net[-1][0] + net[-1][1]


def updates(nets, xs, ys):
    def one(net, x, y):
        grads = jax.grad(lambda net: jnp.square(apply(net, x) - y).mean())(net)
        return jax.tree.map(lambda w, g: w - 0.01 * g, net, grads)

    return jax.vmap(one)(nets, xs, ys)


def main():
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    sizes = [8, 64, 64, 2]
    nets = [(f32(64, i, o), f32(64, o)) for i, o in zip(sizes, sizes[1:])]
    calls = {
        "flat": (flat, (f32(32, 32), f32(32, 32))),
        "grad of scan of lstm": (
            lstm,
            ({"wx": f32(8, 128), "wh": f32(32, 128), "b": f32(128)}, f32(64, 16, 8)),
        ),
        "vmap of 64 updates": (updates, (nets, f32(64, 32, 8), f32(64, 32, 2))),
    }

    def run(f, args):
        # A function of its own each time: nothing of it is in JAX's caches.
        return jax.jit(lambda *args: f(*args)).lower(*args).as_text()

    for f, args in calls.values():
        run(f, args)
    for line in sys.stdin:
        f, args = calls[line.strip()]
        start = time.perf_counter()
        run(f, args)
        print((time.perf_counter() - start) * 1e3, flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The calls of benches/dispatch.rs on jax. Reads names of measurements, answers microseconds a call.

Needs: jax and numpy. By hand: echo "add of 8 floats" | python benches/peers/jax_dispatch.py
"""
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def main():
    x = jnp.ones(8, jnp.float32)
    add = jax.jit(lambda x, y: x + y)
    tree = [dict(w=jnp.zeros((4, 4)), b=jnp.zeros(4), s=jnp.zeros(())) for _ in range(10)]
    plus_one = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t))
    donating = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_argnums=0)
    rng = np.random.default_rng(0)
    net = lambda *s: [(jnp.asarray(rng.normal(size=(i, o)).astype(np.float32)), jnp.zeros(o)) for i, o in zip(s, s[1:])]
    agent = (net(4, 64, 64, 2), net(4, 64, 64, 1))

    def mlp(layers, x):
        for w, b in layers[:-1]:
            x = jnp.tanh(x @ w + b)
        return x @ layers[-1][0] + layers[-1][1]

    def act(agent, x, key):
        now, key = jax.random.split(key)
        logits = mlp(agent[0], x)
        action = jax.random.categorical(now, logits)
        logp = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        return action, logp, mlp(agent[1], x)[:, 0], key

    act = jax.jit(act)
    observations = np.full((4, 4), 0.1, np.float32)
    live = dict(state=jax.tree.map(jnp.copy, tree), key=jax.random.key(0))

    def donated():
        live["state"] = donating(live["state"])
        jax.block_until_ready(live["state"])

    def policy():
        action, _, _, live["key"] = act(agent, observations, live["key"])
        np.asarray(action)

    calls = {
        "add of 8 floats": (3000, lambda: jax.block_until_ready(add(x, x))),
        "30 leaves in and out": (500, lambda: jax.block_until_ready(plus_one(tree))),
        "30 leaves in and out, donated": (500, donated),
        "policy of 4": (500, policy),
    }
    for _, f in calls.values():
        f()
    for line in sys.stdin:
        n, f = calls[line.strip()]
        start = time.perf_counter()
        for _ in range(n):
            f()
        print((time.perf_counter() - start) / n * 1e6, flush=True)


if __name__ == "__main__":
    main()

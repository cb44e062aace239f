#!/usr/bin/env python3
"""The JAX side of tests/interop/main.rs.

    peer.py write DIR    exports a PPO minibatch update written here: theirs.jaxexport, theirs.json
    peer.py check DIR    runs ours.jaxexport on the arguments in ours.json, compares with the results
                         there, and writes it as bytecode: bytecode.jaxexport

Needs: jax, numpy, flatbuffers.
"""
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

CLIP, ENTROPY, VALUE, MAX_NORM, RATE = 0.2, 0.01, 0.5, 0.5, 2.5e-4


def leaves(tree):
    return [np.asarray(x).astype(np.float64).ravel().tolist() for x in jax.tree.leaves(tree)]


def network(layers, x):
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def loss(agent, batch):
    """PPO's clipped losses over a minibatch, as CleanRL writes them."""
    logits = network(agent["actor"], batch["obs"])
    logprobs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(logprobs, batch["actions"][:, None], axis=1)[:, 0]
    logratio = taken - batch["logprobs"]
    ratio = jnp.exp(logratio)
    advantages = batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy = jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, 1 - CLIP, 1 + CLIP)).mean()
    value = network(agent["critic"], batch["obs"])[:, 0]
    near = batch["values"] + jnp.clip(value - batch["values"], -CLIP, CLIP)
    errors = jnp.maximum((value - batch["returns"]) ** 2, (near - batch["returns"]) ** 2)
    entropy = -(jnp.exp(logprobs) * logprobs).sum(1).mean()
    return policy - ENTROPY * entropy + VALUE * 0.5 * errors.mean(), ((ratio - 1) - logratio).mean()


def update(agent, moments, count, batch):
    """One gradient step: the gradient clipped by its global norm, then Adam."""
    (value, kl), grads = jax.value_and_grad(loss, has_aux=True)(agent, batch)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: jnp.where(norm < MAX_NORM, g, g / norm * MAX_NORM), grads)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    nu = jax.tree.map(lambda n, g: 0.999 * n + 0.001 * g**2, moments[1], grads)
    count = count + 1
    right = lambda m, decay: m / (1 - decay ** count.astype(jnp.float32))
    step = lambda p, m, n: p - RATE * right(m, 0.9) / (jnp.sqrt(right(n, 0.999)) + 1e-5)
    return jax.tree.map(step, agent, mu, nu), (mu, nu), count, {"loss": value, "approx_kl": kl}


def write(folder):
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))

    def layers(*sizes):
        return [{"w": normal(i, o) / np.sqrt(i), "b": normal(o) * 0.1} for i, o in zip(sizes, sizes[1:])]

    agent = {"actor": layers(4, 64, 64, 2), "critic": layers(4, 64, 64, 1)}
    zeros = jax.tree.map(jnp.zeros_like, agent)
    batch = {
        "obs": normal(32, 4),
        "actions": jnp.asarray(rng.integers(0, 2, 32), jnp.int32),
        "logprobs": -jnp.abs(normal(32)),
        "advantages": normal(32),
        "returns": normal(32),
        "values": normal(32),
    }
    args = (agent, (zeros, zeros), jnp.asarray(0), batch)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    artifact = export.export(jax.jit(update))(*shapes).serialize()
    (folder / "theirs.jaxexport").write_bytes(artifact)
    values = {"in": leaves(args), "out": leaves(jax.jit(update)(*args))}
    (folder / "theirs.json").write_text(json.dumps(values))


def check(folder):
    exported = export.deserialize((folder / "ours.jaxexport").read_bytes())
    values = json.loads((folder / "ours.json").read_text())
    assert len(values["in"]) == len(exported.in_avals), exported
    flat = [
        np.asarray(x, np.float64).astype(aval.dtype).reshape(aval.shape)
        for x, aval in zip(values["in"], exported.in_avals)
    ]
    args, kwargs = jax.tree.unflatten(exported.in_tree, flat)
    results = leaves(exported.call(*args, **kwargs))
    assert len(results) == len(values["out"])
    worst = 0.0
    for ours, theirs in zip(values["out"], results):
        error = np.abs(np.subtract(ours, theirs)) / np.maximum(np.abs(theirs), 1.0)
        worst = max(worst, error.max(initial=0.0))
    print(f"ours on JAX: {len(results)} results, largest difference {worst:.1e}")
    assert worst <= 1e-5, worst
    # The same function in the dialect that has promises.
    again = export.export(jax.jit(exported.call))(*args, **kwargs).serialize()
    (folder / "bytecode.jaxexport").write_bytes(again)


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))

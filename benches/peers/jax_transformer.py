#!/usr/bin/env python3
"""The model and the training step of examples/transformer.rs in jax and optax.

Reads names of measurements of benches/transformer.rs, such as "f32 2 devices remat", and answers
milliseconds a step. `tests/fixtures/transformer/make.py` imports the model.

Needs: jax, numpy and optax. By hand: echo "f32 1 device" | python benches/peers/jax_transformer.py
"""
import os
import sys
import time
from typing import Any, NamedTuple

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


HEADS = 4


class Args(NamedTuple):
    """Flags of the example, with its defaults."""

    steps: int = 1000
    batch_size: int = 16
    length: int = 64
    layers: int = 2
    features: int = 64
    dropout: float = 0.05
    learning_rate: float = 6e-3
    dtype: Any = jnp.float32
    remat: bool = False


# Trees of parameters, with the leaves in the order of the Rust structs.


class Dense(NamedTuple):
    kernel: Any
    bias: Any


class LayerNorm(NamedTuple):
    scale: Any
    bias: Any


class Block(NamedTuple):
    norm1: LayerNorm
    attention: tuple[Dense, ...]  # query, key, value, out
    norm2: LayerNorm
    up: Dense
    down: Dense


class Transformer(NamedTuple):
    embed: Any
    positions: Any
    blocks: Block
    norm: LayerNorm


def init_norm(features):
    return LayerNorm(jnp.ones(features), jnp.zeros(features))


def init_dense(key, inputs, outputs):
    """A kernel with axes of sizes `inputs` and `outputs`, drawn as a matrix, as by flax."""
    kernel = jax.nn.initializers.lecun_normal()(key, (int(np.prod(inputs)), int(np.prod(outputs))))
    return Dense(kernel.reshape(*inputs, *outputs), jnp.zeros(outputs))


def init_block(key, args):
    features, heads = args.features, (HEADS, args.features // HEADS)
    attention, up, down = random.split(key, 3)
    q, k, v, out = random.split(attention, 4)
    return Block(
        init_norm(features),
        (*(init_dense(key, (features,), heads) for key in (q, k, v)), init_dense(out, heads, (features,))),
        init_norm(features),
        init_dense(up, (features,), (4 * features,)),
        init_dense(down, (4 * features,), (features,)),
    )


def init_model(key, args):
    embed, positions, blocks = random.split(key, 3)
    init_embed = jax.nn.initializers.normal(args.features**-0.5)
    return Transformer(
        init_embed(embed, (256, args.features)),
        init_embed(positions, (args.length, args.features)),
        jax.vmap(lambda key: init_block(key, args))(random.split(blocks, args.layers)),
        init_norm(args.features),
    )


def layer_norm(p, x):
    """Normalizes in float32, as flax."""
    wide = x.astype(jnp.float32)
    centered = wide - wide.mean(-1, keepdims=True)
    variance = (centered * centered).mean(-1, keepdims=True)
    y = centered * (lax.rsqrt(variance + 1e-6) * p.scale.astype(jnp.float32)) + p.bias.astype(jnp.float32)
    return y.astype(x.dtype)


def dropout(x, key, args):
    if key is None or args.dropout == 0:
        return x
    keep = random.bernoulli(key, 1 - args.dropout, x.shape)
    return jnp.where(keep, x / (1 - args.dropout), jnp.zeros_like(x))


def attention(p, x, mask, key, args):
    """flax.linen.MultiHeadDotProductAttention with its default `broadcast_dropout=True`."""
    q, k, v = (jnp.einsum("btf,fhd->bthd", x, p[i].kernel) + p[i].bias for i in range(3))
    weights = jnp.einsum("bqhd,bkhd->bhqk", q / jnp.sqrt(q.shape[-1]).astype(q.dtype), k)
    weights = jnp.where(mask, weights, jnp.finfo(x.dtype).min)
    weights = jax.nn.softmax(weights)
    if key is not None and args.dropout > 0:
        keep = random.bernoulli(key, 1 - args.dropout, (1, 1, *weights.shape[-2:]))
        weights = weights * (keep.astype(x.dtype) / jnp.asarray(1 - args.dropout, x.dtype))
    y = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return jnp.einsum("bthd,hdf->btf", y, p[3].kernel) + p[3].bias


def apply_block(p, x, mask, key, args):
    weights_key, attention_key, mlp_key = (None,) * 3 if key is None else random.split(key, 3)
    y = attention(p.attention, layer_norm(p.norm1, x), mask, weights_key, args)
    x = x + dropout(y, attention_key, args)
    y = jax.nn.gelu(layer_norm(p.norm2, x) @ p.up.kernel + p.up.bias)
    return x + dropout(y @ p.down.kernel + p.down.bias, mlp_key, args)


def apply(model, tokens, key, args):
    model = jax.tree.map(lambda p: p.astype(args.dtype), model)
    index = jnp.arange(tokens.shape[1])
    mask = index[:, None] >= index[None, :]
    x = model.embed[tokens] + model.positions[index]
    block = lambda x, p, key: apply_block(p, x, mask, key, args)
    if args.remat:
        block = jax.checkpoint(block, prevent_cse=False)  # as its documentation says for a scan
    keys = None if key is None else random.split(key, args.layers)
    x, _ = lax.scan(lambda x, layer: (block(x, *layer), None), x, (model.blocks, keys))
    return (layer_norm(model.norm, x) @ model.embed.T).astype(jnp.float32)


def loss(model, tokens, key, args):
    logits = apply(model, tokens[:, :-1], key, args)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def optimizer(args):
    peak = args.learning_rate
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, args.steps // 10, args.steps, 0.1 * peak)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))


def init_state(key, args):
    model_key, key = random.split(key)
    model = init_model(model_key, args)
    return model, optimizer(args).init(model), key


def train_step(state, tokens, args):
    model, opt_state, key = state
    dropout_key, key = random.split(key)
    dropout_key = random.fold_in(dropout_key, lax.axis_index("data"))
    value, grads = lax.pmean(jax.value_and_grad(loss)(model, tokens, dropout_key, args), "data")
    updates, opt_state = optimizer(args).update(grads, opt_state, model)
    return (optax.apply_updates(model, updates), opt_state, key), value


def make_step(devices, args):
    """The compiled step on a mesh of `devices`, and the mesh."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    step = jax.shard_map(
        lambda state, tokens: train_step(state, tokens, args),
        mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False,
    )
    return jax.jit(step, donate_argnums=0), mesh


class Case:
    def __init__(self, name):
        words = name.split()
        dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16}[words[0]]
        args = Args(dtype=dtype, remat="remat" in words)
        if "no-dropout" in words:
            args = args._replace(dropout=0.0)
        step, mesh = make_step(int(words[1]), args)
        state = init_state(random.key(1), args)
        self.state = jax.device_put(state, NamedSharding(mesh, P()))
        tokens = random.randint(random.key(2), (args.batch_size, args.length + 1), 0, 256)
        self.tokens = jax.device_put(tokens, NamedSharding(mesh, P("data")))
        self.step = step.lower(self.state, self.tokens).compile()
        self.call(3)

    def call(self, times):
        for _ in range(times):
            self.state, value = self.step(self.state, self.tokens)
            jax.block_until_ready(value)


def main():
    ready = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in ready:
            ready[name] = Case(name)
        start = time.perf_counter()
        ready[name].call(3)
        print((time.perf_counter() - start) / 3 * 1e3, flush=True)


if __name__ == "__main__":
    main()

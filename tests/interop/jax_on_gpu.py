#!/usr/bin/env python3
"""Prints JAX's values of functions whose values differ between CPUs and GPUs: the table of docs/gpus.md.

    python3 tests/interop/jax_on_gpu.py                       on a GPU
    JAX_PLATFORMS=cpu python3 tests/interop/jax_on_gpu.py     on the CPU, to compare

Each line has the values of the function under jit, then those of the same function without it.
Needs: jax with its plugin for GPUs, numpy.
"""
import jax
import jax.numpy as jnp
import numpy as np


def show(name, f, *args):
    try:
        values = [np.asarray(g(*args)).ravel().tolist() for g in (jax.jit(f), f)]
    except Exception as error:
        values = [str(error).strip().split("\n")[0][:100]]
    print(f"{name}:", *values)


def convolution(dtype):
    x, kernel = jnp.full((1, 1, 4), 100, dtype), jnp.full((1, 1, 2), 3, dtype)
    return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID")


def main():
    print(jax.__version__, jax.devices())
    show("NaN, 0, -1: abs(x) >= 0", lambda x: jnp.abs(x) >= 0, jnp.array([jnp.nan, 0.0, -1.0]))
    for dtype in (jnp.float8_e4m3fn, jnp.float16, jnp.bfloat16):
        back = lambda x: x.astype(dtype).astype(jnp.float32)
        show(f"1.3, 1e10 as {dtype.__name__} and back", back, jnp.array([1.3, 1e10]))
    for dtype in (jnp.int8, jnp.int16, jnp.int32):
        show(f"convolution of {dtype.__name__}, 600 modulo 2^bits", lambda: convolution(dtype))
    twice = lambda x: jnp.zeros(3).at[jnp.array([1, 1, 1])].set(x)
    show("1, 2, 3 written to one element", twice, jnp.array([1.0, 2.0, 3.0]))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((256, 256)), jnp.float32)
    exact = np.asarray(x, np.float64) @ np.asarray(x, np.float64)
    for precision in ("default", "highest"):
        with jax.default_matmul_precision(precision):
            error = np.abs(np.asarray(jax.jit(lambda x: x @ x)(x)) - exact).max()
        print(f"largest error of a 256 by 256 product, precision {precision}: {error:.2g}")


if __name__ == "__main__":
    main()

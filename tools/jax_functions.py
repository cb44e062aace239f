"""JAX's primitives that are functions of many operations here: special functions, reductions of windows,
factorizations and draws.

As in `jax_primitives.py`, which has the others, `RULES` gets a function for each.
"""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend import core

from jax_primitives import apply_of, expansion, in_total_order, out, rule, rule_bodies
from jax_to_podracer import Unsupported, physical


def own_derivative(t, eqn, xs, f):
    """The results of `f`, with the derivative that JAX has for the primitive."""
    if not t.derivatives:
        return t.expand(f, xs)
    float0 = jax.dtypes.float0

    def tangent_of(x, given):
        return given if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, float0)

    def rule(*args):
        half = len(args) // 2
        given = tuple(tangent_of(*pair) for pair in zip(args[:half], args[half:]))
        results, tangents = jax.jvp(apply_of(eqn), args[:half], given)
        tangents = [jnp.zeros_like(y) if ty.dtype == float0 else ty for y, ty in zip(results, tangents)]
        return [*results, *tangents]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    call, jvp = jax.make_jaxpr(f)(*avals), jax.make_jaxpr(rule)(*avals, *avals)
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    return t.emit("custom_jvp[consts=0]", xs, types, rule_bodies(t, {"call": call, "jvp": jvp}))


# ---- Elementwise -----------------------------------------------------------------------------------


def bits_set(x):
    """The number of bits that are set, of unsigned integers."""
    width = 8 * x.dtype.itemsize

    def word(digit):
        return jnp.asarray(sum(digit << i for i in range(0, width, 8)), x.dtype)

    x = x - ((x >> 1) & word(0x55))
    x = (x & word(0x33)) + ((x >> 2) & word(0x33))
    x = (x + (x >> 4)) & word(0x0F)
    total = jnp.zeros_like(x)
    for shift in range(0, width, 8):
        total = total + ((x >> shift) & jnp.asarray(0xFF, x.dtype))
    return total


def as_unsigned(x):
    return lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


@expansion("population_count")
def population_count(x):
    return bits_set(as_unsigned(x)).astype(x.dtype)


@expansion("clz")
def clz(x):
    width, bits = 8 * x.dtype.itemsize, as_unsigned(x)
    shift = 1
    while shift < width:
        bits = bits | (bits >> shift)
        shift *= 2
    return (jnp.asarray(width, bits.dtype) - bits_set(bits)).astype(x.dtype)


def jax_special(name):
    """JAX's own implementation of this name by other primitives."""

    def implementation(*xs, **_):
        from jax._src.lax import special

        return getattr(special, name)(*xs, dtype=xs[0].dtype)

    return implementation


@rule("igamma", "igammac")
def incomplete(t, eqn, xs):
    return own_derivative(t, eqn, xs, jax_special(f"{eqn.primitive.name}_impl"))


@rule("igamma_grad_a", "regularized_incomplete_beta")
def without_derivative(t, eqn, xs):
    """Of functions that have no derivative in JAX, or not by all operands."""
    return t.expand(jax_special(f"{eqn.primitive.name}_impl"), xs)


# B(2k) / (2k)!, from k = 1.
BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
             1 / 74724249600, -3617 / 10670622842880000)


def hurwitz(x, q):
    """The sum of (q + k)^-x, by the formula of Euler and Maclaurin."""
    good = (x > 1) & (q > 0)
    s, a = jnp.where(good, x, 2), jnp.where(good, q, 1)
    total = sum((a + k) ** -s for k in range(10))
    w = a + 10
    power = w**-s
    total = total + power * w / (s - 1) + power / 2
    term = power / w * s
    for k, factor in enumerate(BERNOULLI):
        total = total + term * factor
        term = term * (s + 2 * k + 1) * (s + 2 * k + 2) / w**2
    pole = (x == 1) | ((q <= 0) & (q == jnp.floor(q)))
    return jnp.where(good, total, jnp.where(pole & (x >= 1), jnp.inf, jnp.nan)).astype(x.dtype)


@expansion("zeta")
def zeta(x, q):
    return hurwitz(x, q)


@expansion("polygamma")
def polygamma(m, x):
    sign = jnp.where(m % 2 == 0, -1, 1).astype(x.dtype)
    order = jnp.where(m > 0, m, 1)
    value = sign * jnp.exp(lax.lgamma(order + 1)) * hurwitz(order + 1, x)
    value = jnp.where(m == 0, lax.digamma(x), value)
    return jnp.where((m < 0) | (m != jnp.floor(m)), jnp.nan, value).astype(x.dtype)


# ---- Reductions ------------------------------------------------------------------------------------


@expansion("approx_top_k")
def approx_top_k(x, *, k, reduction_dimension, is_max_k, aggregate_to_topk, **_):
    """The exact ones: the recall is 1."""
    if not aggregate_to_topk:
        raise Unsupported("approx_top_k with aggregate_to_topk=False is not supported")
    axis = reduction_dimension % x.ndim
    key = in_total_order(x)
    _, *sorted_ = lax.sort((~key if is_max_k else key, x, lax.broadcasted_iota(jnp.int32, x.shape, axis)),
                           dimension=axis, num_keys=1)
    return [lax.slice_in_dim(y, 0, k, axis=axis) for y in sorted_]


def windows(xs, inits, combine, p):
    """Reductions of windows, along one axis after the other."""
    config = [(low, high, base - 1) for (low, high), base in zip(p["padding"], p["base_dilation"])]
    xs = [lax.pad(x, init, config) for x, init in zip(xs, inits)]
    for axis in range(xs[0].ndim):
        size, stride = p["window_dimensions"][axis], p["window_strides"][axis]
        step = p["window_dilation"][axis]
        last = xs[0].shape[axis] - (size - 1) * step
        parts = [[lax.slice_in_dim(x, i * step, i * step + last, stride, axis) for x in xs]
                 for i in range(size)]
        xs = [jnp.broadcast_to(init, x.shape) for init, x in zip(inits, parts[0])]
        for part in parts:
            xs = combine(xs, part)
    return xs


def window_rule(combine, init_of):
    def f(x, **p):
        init = jnp.asarray(init_of(x.dtype), x.dtype)
        return windows([x], [init], lambda a, b: [combine(a[0], b[0])], p)[0]

    return f


def extreme(end):
    """The least or the largest element of a type."""
    def of(dtype):
        if dtype == np.bool_:
            return end > 0
        if jnp.issubdtype(dtype, jnp.floating):
            return end * np.inf
        return jnp.iinfo(dtype).max if end > 0 else jnp.iinfo(dtype).min

    return of


expansion("reduce_window_sum")(window_rule(lax.add, lambda dtype: 0))
expansion("reduce_window_max")(window_rule(lax.max, extreme(-1)))
expansion("reduce_window_min")(window_rule(lax.min, extreme(1)))


@expansion("reduce_window")
def reduce_window(*args, jaxpr, consts, **p):
    half = len(args) // 2
    scalar = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, consts))

    def combine(xs, ys):
        flat = jax.vmap(lambda *pair: scalar(*pair))(*(x.reshape(-1) for x in (*xs, *ys)))
        return [y.reshape(x.shape) for x, y in zip(xs, flat)]

    return windows(list(args[:half]), list(args[half:]), combine, p)


# ---- Systems of equations and draws ----------------------------------------------------------------


def batched(rank, f):
    for _ in range(rank):
        f = jax.vmap(f)
    return f


@rule("lu")
def lu(t, eqn, xs):
    from jax._src.lax import linalg

    return own_derivative(t, eqn, xs, lambda x: linalg._lu_python(x))


@expansion("lu_pivots_to_permutation")
def lu_pivots_to_permutation(swaps, *, permutation_size):
    def one(swaps):
        def exchange(i, order):
            j = swaps[i]
            return order.at[i].set(order[j]).at[j].set(order[i])

        order = jnp.arange(permutation_size, dtype=jnp.int32)
        return lax.fori_loop(0, swaps.shape[0], exchange, order)

    return batched(swaps.ndim - 1, one)(swaps)


@expansion("tridiagonal_solve")
def tridiagonal_solve(dl, d, du, b, **params):
    from jax._src.lax import linalg

    return linalg._tridiagonal_solve_jax(dl, d, du, b, **params)


@rule("random_gamma")
def random_gamma(t, eqn, xs):
    physical(eqn.invars[0].aval)  # refuses other generators
    from jax._src.random import core as sampling

    log_space = eqn.params["log_space"]

    def draw(words, a):
        key = jax.random.wrap_key_data(words)
        return sampling._gamma_impl(key, a, log_space=log_space, use_vmap=True)

    return t.expand(draw, xs)

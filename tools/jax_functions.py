"""JAX's primitives that are functions of many operations here: special functions, reductions of windows,
factorizations and draws.

As in `jax_primitives.py`, which has the others, `RULES` gets a function for each.
"""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend import core

from jax_control import lowered_function, own_derivative
from jax_primitives import expansion, in_total_order, rule
from jax_to_podracer import Unsupported


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


@expansion("mulhi")
def mulhi(x, y):
    """By products of halves."""
    width = 8 * x.dtype.itemsize // 2
    (a, b), (c, d) = [(z >> width, z & (2**width - 1)) for z in map(as_unsigned, (x, y))]
    middle = (b * d >> width) + (a * d & (2**width - 1)) + b * c
    high = a * c + (a * d >> width) + (middle >> width)
    # Of negative numbers the unsigned ones are larger by 2^bits.
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        high = high - jnp.where(x < 0, as_unsigned(y), 0) - jnp.where(y < 0, as_unsigned(x), 0)
    return lax.bitcast_convert_type(high, x.dtype)


@rule("reduce_precision")
def reduce_precision(t, eqn, xs):
    kept = {"f32": (8, 23), "f64": (11, 52), "f16": (5, 10), "bf16": (8, 7)}[xs[0].dtype]
    exponent, mantissa = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    if exponent >= kept[0] and mantissa >= kept[1]:
        return xs

    def rounded(x):
        bits, dropped = as_unsigned(x), max(kept[1] - mantissa, 0)
        one = jnp.asarray(1, bits.dtype)
        # To the nearest, of two the one whose last bit is 0.
        if dropped:
            odd = (bits >> dropped) & one
            bits = (bits + odd + ((one << (dropped - 1)) - 1)) & ~((one << dropped) - 1)
        y = lax.bitcast_convert_type(bits, x.dtype)
        if exponent < kept[0]:
            largest = 2 ** (exponent - 1) - 1
            size = jnp.abs(y)
            y = jnp.where(size >= jnp.asarray(2.0 ** (largest + 1), x.dtype), jnp.sign(y) * jnp.inf, y)
            y = jnp.where(size < jnp.asarray(2.0 ** (1 - largest), x.dtype), y * 0, y)
        return jnp.where(jnp.isnan(x) | jnp.isinf(x), x, y).astype(x.dtype)

    return t.expand(rounded, xs)


@rule("regularized_incomplete_beta")
def regularized_incomplete_beta(t, eqn, xs):
    return own_derivative(t, eqn, xs, lowered_function(eqn.primitive), fixed=2)


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
    for axis in reversed(range(xs[0].ndim)):
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


def elementwise(closed):
    """A jaxpr of scalars, two of each kind, as a function of lists of arrays."""
    scalar = core.jaxpr_as_fun(closed)

    def combine(xs, ys):
        flat = jax.vmap(lambda *pair: scalar(*pair))(*(x.reshape(-1) for x in (*xs, *ys)))
        return [y.reshape(x.shape) for x, y in zip(xs, flat)]

    return combine


@expansion("reduce_window")
def reduce_window(*args, jaxpr, consts, **p):
    half = len(args) // 2
    return windows(list(args[:half]), list(args[half:]), elementwise(core.ClosedJaxpr(jaxpr, consts)), p)


@expansion("reduce")
def reduce(*args, jaxpr, dimensions, **_):
    """By halves, as for an associative function."""
    half, combine = len(args) // 2, elementwise(jaxpr)
    kept = [axis for axis in range(args[0].ndim) if axis not in dimensions]
    shape = [args[0].shape[axis] for axis in kept]
    results = [jnp.broadcast_to(init, shape) for init in args[half:]]
    rest = [lax.transpose(x, [*dimensions, *kept]).reshape(-1, *shape) for x in args[:half]]
    while size := rest[0].shape[0]:
        if size % 2:
            results = combine(results, [x[-1] for x in rest])
        if size == 1:
            break
        rest = combine([x[:size // 2] for x in rest], [x[size // 2:size - size % 2] for x in rest])
    return results


@expansion("select_and_scatter")
def select_and_scatter(operand, source, init, *, select_jaxpr, select_consts, scatter_jaxpr,
                       scatter_consts, window_dimensions, window_strides, padding):
    """The transpose of what takes the selected element of each window."""
    if [str(eqn.primitive) for eqn in scatter_jaxpr.eqns] != ["add"]:
        raise Unsupported("select_and_scatter with another function than a sum is not supported")
    select = elementwise(core.ClosedJaxpr(select_jaxpr, select_consts))
    ones = [1] * operand.ndim
    p = {"window_dimensions": window_dimensions, "window_strides": window_strides, "padding": padding,
         "base_dilation": ones, "window_dilation": ones}

    def chosen(xs, ys):
        # Elements of the padding are never selected.
        first = xs[1] & (~ys[1] | select([xs[0]], [ys[0]])[0])
        return [jnp.where(first, x, y) for x, y in zip(xs, ys)]

    numbers = jnp.arange(operand.size, dtype=jnp.int32).reshape(operand.shape)
    inside = jnp.ones(operand.shape, bool)
    zeros = [jnp.zeros((), x.dtype) for x in (operand, inside, numbers)]
    _, inside, at = windows([operand, inside, numbers], zeros, chosen, p)
    flat = jnp.full(operand.size, init)
    return flat.at[at.reshape(-1)].add(jnp.where(inside, source, 0).reshape(-1)).reshape(operand.shape)


# ---- Draws -----------------------------------------------------------------------------------------


def batched(rank, f):
    for _ in range(rank):
        f = jax.vmap(f)
    return f

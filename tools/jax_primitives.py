"""JAX's primitives by Podracer's operations.

`RULES` has a function for each: it takes the translator, the equation and its operands, and returns
the results. Primitives without an operation of the same meaning are composed: by operations, or by a
JAX function of other primitives (`expand`). Operands that are typed keys are u32[..., 2].

Calls, control flow, and what becomes of primitives without a rule: `jax_control.py`.
"""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from jax_refused import advice
from jax_to_podracer import FLOATS, Unsupported, is_key, list_text, physical, shape_text

RULES = {}


def rule(*names):
    def register(f):
        RULES.update(dict.fromkeys(names, f))
        return f

    return register


def expansion(*names):
    """A rule by a JAX function of the operands, which gets the parameters by keyword."""

    def register(f):
        def expanded(t, eqn, xs):
            return t.expand(lambda *args: f(*args, **eqn.params), xs)

        RULES.update(dict.fromkeys(names, expanded))
        return f

    return register


def out(eqn, i=0):
    """The type of a result."""
    return physical(eqn.outvars[i].aval)


def trailing(eqn, i=0):
    """1 if operand `i` is an array of typed keys, which have an axis of words at the end."""
    return int(is_key(eqn.invars[i].aval.dtype))


# ---- Elementwise -------------------------------------------------------------------------------

UNARY = """abs acos acosh asin asinh atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erfc
erf_inv exp expm1 floor imag is_finite lgamma log log1p logistic neg not real rsqrt sign sin sinh sqrt tan
tanh"""
BINARY = """add sub mul div rem max min atan2 complex and or xor shift_left shift_right_logical
shift_right_arithmetic"""
COMPARE = "eq ne lt le gt ge"


@rule(*UNARY.split())
def unary(t, eqn, xs):
    name = eqn.primitive.name
    if name in ("abs", "sign") and xs[0].dtype.startswith("u"):
        one = t.constant(np.ones((), eqn.invars[0].aval.dtype))
        return xs[0] if name == "abs" else binary_op(t, "min", [xs[0], one], out(eqn))
    return t.one(name, xs, *out(eqn))


@rule("conj")
def conj(t, eqn, xs):
    dtype, shape = out(eqn)
    return t.one("conj", [t.convert(xs[0], dtype)], dtype, shape)


@rule("fft")
def fft(t, eqn, xs):
    kind, lengths = eqn.params["fft_type"].name.lower(), eqn.params["fft_lengths"]
    return t.one(f"{kind}[lengths={list_text(lengths)}]", xs, *out(eqn))


def binary_op(t, name, xs, ty):
    return t.one(name, [t.broadcast(x, ty[1]) for x in xs], *ty)


@rule(*BINARY.split(), *COMPARE.split(), "add_any", "pow")
def binary(t, eqn, xs):
    name = {"add_any": "add"}.get(eqn.primitive.name, eqn.primitive.name)
    ty = out(eqn)
    if xs[0].dtype == "bool":
        name = {"max": "or", "min": "and", "add": "or", "mul": "and"}.get(name, name)
    if name == "pow":
        xs = [t.convert(x, ty[0]) for x in xs]
    return binary_op(t, name, xs, ty)


@rule("square")
def square(t, eqn, xs):
    return t.one("mul", [xs[0], xs[0]], *out(eqn))


@expansion("integer_pow")
def integer_pow(x, *, y):
    # The order of the products is that of JAX's lowering.
    if y == 0:
        return jnp.ones_like(x)
    power, result = abs(y), None
    while power > 0:
        if power & 1:
            result = x if result is None else result * x
        power >>= 1
        if power > 0:
            x = x * x
    return lax.div(jnp.ones_like(result), result) if y < 0 else result


@expansion("exp2")
def exp2(x, **_):
    return lax.exp(x * jnp.asarray(np.log(2.0), x.dtype))


@expansion("atan")
def atan(x, **_):
    return lax.atan2(x, jnp.ones_like(x))


@rule("round")
def round_(t, eqn, xs):
    if eqn.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return t.one("round", xs, *out(eqn))

    def away_from_zero(x):
        size = lax.abs(x)
        whole = lax.floor(size)
        half = jnp.asarray(0.5, x.dtype)
        return lax.sign(x) * jnp.where(size - whole >= half, whole + 1, whole)

    return t.expand(away_from_zero, xs)


@rule("select_n")
def select_n(t, eqn, xs):
    which, *cases = xs
    dtype, shape = out(eqn)
    key = trailing(eqn, 1)
    if len(cases) == 1:
        return cases[0]
    axes = range(len(which.shape)) if which.shape else ()
    if which.dtype == "bool":
        cases = cases[::-1]
        return t.one("select", [t.broadcast(which, shape, axes), *cases], dtype, shape)
    which = t.broadcast(which, shape, axes) if key or which.shape != shape else which
    result = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        bound = t.broadcast(t.constant(np.int32(i + 1)), shape)
        below = t.one("lt", [t.convert(which, "i32"), bound], "bool", shape)
        result = t.one("select", [below, cases[i], result], dtype, shape)
    return result


@rule("clamp")
def clamp(t, eqn, xs):
    return binary_op(t, "clamp", xs, out(eqn))


@rule("convert_element_type")
def convert_element_type(t, eqn, xs):
    return t.convert(xs[0], out(eqn)[0])


@rule("bitcast_convert_type")
def bitcast_convert_type(t, eqn, xs):
    dtype, shape = out(eqn)
    return xs[0] if dtype == xs[0].dtype else t.one(f"bitcast[dtype={dtype}]", xs, dtype, shape)


@rule("copy", "device_put", "optimization_barrier", "sharding_constraint", "pvary", "layout_constraint",
      "reshard", "name", "tie", "shard_alike", "xla_metadata_value")
def identity(t, eqn, xs):
    # A tie gives its second operand back.
    return xs[len(xs) - len(eqn.outvars):]


@rule("stop_gradient")
def stop_gradient(t, eqn, xs):
    return t.one("stop_gradient", xs, *out(eqn)) if xs[0].dtype in FLOATS else xs


@rule("zeros_like", "empty", "empty2")
def zeros(t, eqn, xs):
    aval = eqn.outvars[0].aval
    return t.constant(np.zeros(aval.shape, aval.dtype))


def in_total_order(x):
    """Integers in the total order of floats: -NaN, -inf, .., -0, 0, .., inf, NaN."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    width = 8 * x.dtype.itemsize
    bits = lax.bitcast_convert_type(x, f"int{width}")
    flip = lax.shift_right_arithmetic(bits, jnp.asarray(width - 1, bits.dtype))
    return bits ^ (flip & jnp.asarray(2 ** (width - 1) - 1, bits.dtype))


@expansion("le_to")
def le_to(x, y):
    return in_total_order(x) <= in_total_order(y)


@expansion("lt_to")
def lt_to(x, y):
    return in_total_order(x) < in_total_order(y)


@expansion("eq_to")
def eq_to(x, y):
    return in_total_order(x) == in_total_order(y)


@expansion("nextafter")
def nextafter(x, y):
    bits = lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")
    away = jnp.where((y > x) == (x > 0), bits + 1, bits - 1)
    least = jnp.where(y > 0, 1, jnp.iinfo(bits.dtype).min + 1).astype(bits.dtype)
    moved = lax.bitcast_convert_type(jnp.where(x == 0, least, away), x.dtype)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), x + y, jnp.where(x == y, y, moved))


# ---- Shapes ------------------------------------------------------------------------------------


@rule("broadcast_in_dim")
def broadcast_in_dim(t, eqn, xs):
    if len(xs) > 1:
        raise Unsupported("broadcast_in_dim to a shape that is not constant is not supported")
    shape = out(eqn)[1]
    axes = list(eqn.params["broadcast_dimensions"])
    return t.broadcast(xs[0], shape, axes + [len(shape) - 1] * trailing(eqn))


@rule("reshape", "squeeze")
def reshape(t, eqn, xs):
    order = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
    if order is not None:
        xs = [permute(t, xs[0], [*order, *[len(xs[0].shape) - 1] * trailing(eqn)])]
    return t.reshape(xs[0], out(eqn)[1])


def permute(t, x, permutation):
    if list(permutation) == sorted(permutation):
        return x
    shape = [x.shape[axis] for axis in permutation]
    return t.one(f"transpose[permutation={list_text(permutation)}]", [x], x.dtype, shape)


@rule("transpose")
def transpose(t, eqn, xs):
    return permute(t, xs[0], [*eqn.params["permutation"], *[len(xs[0].shape) - 1] * trailing(eqn)])


@rule("rev")
def rev(t, eqn, xs):
    return t.one(f"reverse[axes={list_text(eqn.params['dimensions'])}]", xs, *out(eqn))


def concat(t, xs, axis, ty):
    xs = [x for x in xs if x.shape[axis] > 0] or xs[:1]
    return xs[0] if len(xs) == 1 else t.one(f"concat[axis={axis}]", xs, *ty)


@rule("concatenate")
def concatenate(t, eqn, xs):
    return concat(t, xs, eqn.params["dimension"], out(eqn))


@rule("stack")
def stack(t, eqn, xs):
    axis, ty = eqn.params["axis"], out(eqn)
    one = (*ty[1][:axis], 1, *ty[1][axis + 1:])
    return concat(t, [t.reshape(x, one) for x in xs], axis, ty)


def slice_op(t, x, start, limit, stride=None):
    stride = stride or [1] * len(start)
    shape = [max(0, -(-(b - a) // s)) for a, b, s in zip(start, limit, stride)]
    if tuple(shape) == x.shape:
        return x
    op = f"slice[start={list_text(start)} limit={list_text(limit)}"
    op += f" stride={list_text(stride)}]" if any(s != 1 for s in stride) else "]"
    return t.one(op, [x], x.dtype, shape)


@rule("slice")
def slice_(t, eqn, xs):
    p, more = eqn.params, trailing(eqn)
    stride = p["strides"] and [*p["strides"], *[1] * more]
    return slice_op(t, xs[0], [*p["start_indices"], *[0] * more],
                    [*p["limit_indices"], *[2] * more], stride)


def along(t, x, axis, start, size):
    begin, end = [0] * len(x.shape), list(x.shape)
    begin[axis], end[axis] = start, start + size
    return slice_op(t, x, begin, end)


@rule("split")
def split(t, eqn, xs):
    starts = np.cumsum([0, *eqn.params["sizes"]])
    sizes = zip(starts, eqn.params["sizes"])
    return [along(t, xs[0], eqn.params["axis"], int(start), size) for start, size in sizes]


@rule("unstack")
def unstack(t, eqn, xs):
    axis = eqn.params["axis"]
    each = [along(t, xs[0], axis, i, 1) for i in range(xs[0].shape[axis])]
    return [t.reshape(x, out(eqn, i)[1]) for i, x in enumerate(each)]


@rule("tile")
def tile(t, eqn, xs):
    reps, x = eqn.params["reps"], xs[0]
    rank = len(x.shape)
    both = [size for pair in zip(reps, x.shape) for size in pair]
    wide = t.broadcast(x, both, range(1, 2 * rank, 2))
    return t.reshape(wide, out(eqn)[1])


@rule("pad")
def pad(t, eqn, xs):
    low, high, interior = zip(*eqn.params["padding_config"]) if xs[0].shape else ((), (), ())
    if not any((*low, *high, *interior)):
        return xs[0]
    op = f"pad[low={list_text(low)} high={list_text(high)} interior={list_text(interior)}]"
    return t.one(op, xs, *out(eqn))


@rule("iota")
def iota(t, eqn, xs):
    return t.one(f"iota[axis={eqn.params['dimension']}]", [], *out(eqn))


@expansion("iota_2x32_shape")
def iota_2x32_shape(*, shape):
    count = int(np.prod(shape))
    if count >= 2**32:
        raise Unsupported("random bits of 2^32 elements and more are not supported")
    return jnp.zeros(shape, jnp.uint32), lax.iota(jnp.uint32, count).reshape(shape)


# ---- Products and reductions -------------------------------------------------------------------


def precision_of(p):
    """Podracer's name of a precision; both operands have the higher one."""
    given = p["precision"]
    names = [str(getattr(x, "name", x)).lower() for x in given or ()]
    for level in ("highest", "high"):
        if level in names:
            return f" precision={level}"
    if any(name not in ("default", "none") for name in names):
        raise Unsupported(f"the precision {given} is not supported")
    return ""


@rule("dot_general")
def dot_general(t, eqn, xs):
    (lhs, rhs), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    dtype, shape = out(eqn)
    # Of bools: true where a pair of both is.
    inner = "f32" if dtype == "bool" else dtype
    xs = [t.convert(x, inner) for x in xs]
    op = f"dot[contract={list_text(lhs)}/{list_text(rhs)}"
    if lhs_batch:
        op += f" batch={list_text(lhs_batch)}/{list_text(rhs_batch)}"
    return t.convert(t.one(op + precision_of(eqn.params) + "]", xs, inner, shape), dtype)


@rule("conv_general_dilated")
def conv_general_dilated(t, eqn, xs):
    p = eqn.params
    spec = p["dimension_numbers"]
    dtype, shape = out(eqn)
    xs = [t.convert(x, dtype) for x in xs]
    padding = ",".join(f"{low}:{high}" for low, high in p["padding"])
    op = (f"conv[lhs={list_text(spec.lhs_spec)} rhs={list_text(spec.rhs_spec)}"
          f" out={list_text(spec.out_spec)} strides={list_text(p['window_strides'])}"
          f" padding=({padding})")
    if any(d != 1 for d in (*p["lhs_dilation"], *p["rhs_dilation"])):
        op += f" dilation={list_text(p['lhs_dilation'])}/{list_text(p['rhs_dilation'])}"
    for key, ours in (("feature_group_count", "feature_groups"), ("batch_group_count", "batch_groups")):
        if p[key] != 1:
            op += f" {ours}={p[key]}"
    return t.one(op + precision_of(p) + "]", xs, dtype, shape)


@rule("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or")
def reduce(t, eqn, xs):
    name, axes = eqn.primitive.name, eqn.params["axes"]
    if xs[0].dtype == "bool":
        name = {"reduce_max": "reduce_or", "reduce_min": "reduce_and"}.get(name, name)
    return t.one(f"{name}[axes={list_text(sorted(axes))}]", xs, *out(eqn)) if axes else xs


@rule("psum", "pmax", "pmin")
def reduce_over_batch(t, eqn, xs):
    """Along axes of a vmap, which have become axes of the operands."""
    name, axes = eqn.primitive.name, eqn.params["axes"]
    if eqn.params["axis_index_groups"] is not None or not all(isinstance(axis, int) for axis in axes):
        raise Unsupported(f"the primitive {name} is not supported{advice('all_gather')}")
    name = f"reduce_{name[1:]}[axes={list_text(sorted(axes))}]"
    return [t.one(name, [x], *out(eqn, i)) for i, x in enumerate(xs)]


@expansion("reduce_xor")
def reduce_xor(x, *, axes, **_):
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in kept]
    x = lax.transpose(x, [*kept, *axes]).reshape(*shape, -1)
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = jnp.concatenate([x, jnp.zeros((*shape, 1), x.dtype)], -1)
        half = x.shape[-1] // 2
        x = x[..., :half] ^ x[..., half:]
    return x[..., 0] if x.shape[-1] else jnp.zeros(shape, x.dtype)


@rule("argmax", "argmin")
def arg_reduce(t, eqn, xs):
    dtype, shape = out(eqn)
    x = t.convert(xs[0], "i32") if xs[0].dtype == "bool" else xs[0]
    (axis,) = eqn.params["axes"]
    return t.convert(t.one(f"{eqn.primitive.name}[axis={axis}]", [x], "i32", shape), dtype)


def cumulative(combine):
    def prefix(x, *, axis, reverse):
        return lax.associative_scan(combine, x, reverse=reverse, axis=axis)

    return prefix


expansion("cumsum")(cumulative(lax.add))
expansion("cumprod")(cumulative(lax.mul))
expansion("cummax")(cumulative(lax.max))
expansion("cummin")(cumulative(lax.min))
expansion("cumlogsumexp")(cumulative(jnp.logaddexp))


@rule("sort")
def sort(t, eqn, xs):
    """By each key, the least significant first: every sort is stable."""
    axis = eqn.params["dimension"]
    for key in reversed(range(eqn.params["num_keys"])):
        order = [key, *(i for i in range(len(xs)) if i != key)]
        operands = [xs[i] for i in order]
        types = [(x.dtype, x.shape) for x in operands]
        results = t.emit(f"sort[axis={axis}]", operands, types)
        xs = [results[order.index(i)] for i in range(len(xs))]
    return xs


@expansion("top_k")
def top_k(x, *, k, axis=-1, **_):
    axis = axis % x.ndim
    # The greatest first, and the first of equal ones.
    _, *sorted_ = lax.sort((~in_total_order(x), x, lax.broadcasted_iota(jnp.int32, x.shape, axis)),
                           dimension=axis, num_keys=1)
    return [lax.slice_in_dim(y, 0, k, axis=axis) for y in sorted_]


# ---- Systems of equations ----------------------------------------------------------------------


@rule("cholesky")
def cholesky(t, eqn, xs):
    return t.one("cholesky", xs, *out(eqn))


@rule("triangular_solve")
def triangular_solve(t, eqn, xs):
    p = eqn.params  # floats are their own conjugates
    op = "left" if p["left_side"] else "right"
    op += " lower" if p["lower"] else " upper"
    op += " transpose_a" if p["transpose_a"] else ""
    op += " unit_diagonal" if p["unit_diagonal"] else ""
    return t.one(f"triangular_solve[{op}]", xs, *out(eqn))


# ---- Indexing ----------------------------------------------------------------------------------


def start_indices(t, starts):
    """Starts as i32. Those beyond its range stay beyond every axis."""
    result = []
    for x in starts:
        if x.dtype in ("u32", "u64", "i64"):
            largest = {"u32": np.uint32, "u64": np.uint64, "i64": np.int64}[x.dtype](2**31 - 1)
            x = binary_op(t, "min", [x, t.constant(largest)], (x.dtype, x.shape))
        result.append(t.convert(x, "i32"))
    return result


@rule("dynamic_slice")
def dynamic_slice(t, eqn, xs):
    x, *starts = xs
    dtype, shape = out(eqn)
    if shape == x.shape:
        return x
    starts = start_indices(t, starts) + [t.constant(np.int32(0))] * trailing(eqn)
    return t.one(f"dynamic_slice[sizes={shape_text(shape)}]", [x, *starts], dtype, shape)


@rule("dynamic_update_slice")
def dynamic_update_slice(t, eqn, xs):
    x, update, *starts = xs
    starts = start_indices(t, starts) + [t.constant(np.int32(0))] * trailing(eqn)
    return t.one("dynamic_update_slice", [x, update, *starts], *out(eqn))


def index_vectors(t, x):
    return x if x.dtype in ("i32", "i64", "u32") else t.convert(x, "i32")


def windows_inside(operand, sizes, indices, axes):
    """True for each index vector whose window fits."""
    bounds = [operand[axis] - sizes[axis] for axis in axes]
    indices = indices.astype(jnp.int32) if indices.dtype.itemsize < 4 else indices
    inside = jnp.logical_and(indices >= 0, indices <= jnp.asarray(bounds, indices.dtype))
    return jnp.all(inside, axis=-1)


@rule("gather")
def gather(t, eqn, xs):
    p, more = eqn.params, trailing(eqn)
    dims, mode = p["dimension_numbers"], p["mode"]
    x, indices = xs
    dtype, shape = out(eqn)
    if mode not in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP,
                    lax.GatherScatterMode.PROMISE_IN_BOUNDS):
        raise Unsupported(f"gather with the mode {mode} is not supported")
    offset = [*dims.offset_dims, *[len(shape) - 1] * more]
    sizes = [*p["slice_sizes"], *[2] * more]
    op = (f"gather[offset={list_text(offset)} collapsed={list_text(dims.collapsed_slice_dims)}"
          f" batching={list_text(dims.operand_batching_dims)}/"
          f"{list_text(dims.start_indices_batching_dims)}"
          f" map={list_text(dims.start_index_map)} sizes={shape_text(sizes)}]")
    found = t.one(op, [x, index_vectors(t, indices)], dtype, shape)
    if mode != lax.GatherScatterMode.FILL_OR_DROP:
        return found
    inside = t.expand(
        lambda i: windows_inside(x.shape, sizes, i, dims.start_index_map), [indices])[0]
    batch = [axis for axis in range(len(shape)) if axis not in offset]
    inside = t.broadcast(inside, shape, batch)
    fill = p["fill_value"]
    element = np.uint32(2**32 - 1) if more else np.asarray(fill, eqn.outvars[0].aval.dtype)
    outside = t.broadcast(t.constant(element), shape)
    return t.one("select", [inside, found, outside], dtype, shape)


def sets(update):
    """True if the function that combines elements of a scatter takes the new one."""
    return update is None or (not update.eqns and update.outvars[0] is update.invars[1])


@rule("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
def scatter(t, eqn, xs):
    p, more = eqn.params, trailing(eqn)
    dims, name = p["dimension_numbers"], eqn.primitive.name.replace("-", "_")
    x, indices, updates = xs
    if name == "scatter" and not sets(p["update_jaxpr"]):
        raise Unsupported("scatter_apply is not supported")
    window = [*dims.update_window_dims, *[len(updates.shape) - 1] * more]
    if p["mode"] == lax.GatherScatterMode.CLIP:
        absent = (*dims.inserted_window_dims, *dims.operand_batching_dims)
        left = iter(window)
        sizes = [1 if i in absent else updates.shape[next(left)] for i in range(len(x.shape))]
        bounds = [x.shape[i] - sizes[i] for i in dims.scatter_dims_to_operand_dims]
        indices = index_vectors(t, indices)
        indices = t.expand(
            lambda i: jnp.clip(i, jnp.zeros_like(i), jnp.asarray(bounds, i.dtype)), [indices])[0]
    if name == "scatter_sub":
        name, updates = "scatter_add", t.one("neg", [updates], updates.dtype, updates.shape)
    op = (f"{name}[window={list_text(window)} inserted={list_text(dims.inserted_window_dims)}"
          f" batching={list_text(dims.operand_batching_dims)}/"
          f"{list_text(dims.scatter_indices_batching_dims)}"
          f" map={list_text(dims.scatter_dims_to_operand_dims)}]")
    return t.one(op, [x, index_vectors(t, indices), updates], *out(eqn))


# ---- Random numbers ----------------------------------------------------------------------------


@rule("random_wrap", "random_unwrap", "random_clone")
def random_wrap(t, eqn, xs):
    return xs


def per_key(rank, f):
    for _ in range(rank):
        f = jax.vmap(f)
    return f


@rule("random_bits", "random_split", "random_seed")
def random(t, eqn, xs):
    p, aval = eqn.params, eqn.invars[0].aval
    impl = (eqn.outvars[0].aval if eqn.primitive.name == "random_seed" else aval).dtype._impl
    physical(eqn.outvars[0].aval)  # refuses other generators
    one = {
        "random_bits": lambda key: impl.random_bits(key, p["bit_width"], p["shape"]),
        "random_split": lambda key: impl.split(key, p["shape"]),
        "random_seed": impl.seed,
    }[eqn.primitive.name]
    return t.expand(per_key(len(aval.shape), one), xs)


@rule("random_fold_in")
def random_fold_in(t, eqn, xs):
    keys, data = xs
    impl = eqn.invars[0].aval.dtype._impl
    batch = eqn.outvars[0].aval.shape
    keys = t.broadcast(keys, (*batch, 2)) if keys.shape != (*batch, 2) else keys
    data = t.broadcast(data, batch)
    return t.expand(per_key(len(batch), impl.fold_in), [keys, data])


@rule("threefry2x32")
def threefry2x32(t, eqn, xs):
    dtype, shape = out(eqn)
    return t.emit("threefry2x32", [t.broadcast(x, shape) for x in xs], [(dtype, shape)] * 2)


@rule("platform_index")
def platform_index(t, eqn, xs):
    for i, platforms in enumerate(eqn.params["platforms"]):
        if platforms is None or "cpu" in platforms:
            return t.constant(np.int32(i))
    raise Unsupported("platform_dependent without a branch for cpu is not supported")

"""JAX's calls, control flow and functions with derivatives of their own.

As in `jax_primitives.py`, `RULES` gets a function for each. A primitive without a rule becomes the function
of others that JAX compiles for it, if there is one (`by_lowering`).
"""

import inspect
import warnings

import jax
import numpy as np
from jax import numpy as jnp
from jax._src.dispatch import jaxpr_has_primitive
from jax._src.interpreters import mlir
from jax.extend import core

from jax_primitives import out, rule
from jax_to_podracer import FLOATS, physical, place


def closed(jaxpr):
    return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())


@rule("jit", "closed_call", "call", "remat2", "custom_vmap_call", "composite", "custom_partitioning",
      "compute_on", "eval_jaxpr", "custom_jvp_call_jaxpr")
def call(t, eqn, xs):
    keys = ("jaxpr", "call_jaxpr", "call", "fun_jaxpr")
    inner = next(eqn.params[key] for key in keys if key in eqn.params)
    return t.call(closed(inner), xs)


@rule("custom_jvp_call")
def custom_jvp_call(t, eqn, xs):
    function = eqn.params["call_jaxpr"]
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    floats = all(dtype in FLOATS for dtype in [x.dtype for x in xs] + [ty[0] for ty in types])
    # Derivatives are those of JAX's rule. Inside a rule, and for functions of integers, they are
    # those of the function's body.
    if not t.derivatives or not floats or not xs:
        return t.call(function, xs)

    def rule(*args):
        half = len(args) // 2
        results, tangents = jax.jvp(apply_of(eqn), args[:half], args[half:])
        return [*results, *tangents]

    avals = operand_types(eqn)
    jvp = jax.make_jaxpr(rule)(*avals, *avals)
    return t.emit("custom_jvp[consts=0]", xs, types, rule_bodies(t, {"call": function, "jvp": jvp}))


def apply_of(eqn):
    """The function that the equation applies to its operands."""

    def apply(*primals):
        results = eqn.primitive.bind(*primals, **eqn.primitive.get_bind_params(eqn.params))
        return results if eqn.primitive.multiple_results else [results]

    return apply


def operand_types(eqn):
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]


def rule_bodies(t, jaxprs):
    """Programs of a function and of its derivative, inside of which functions have no own derivatives."""
    before, t.derivatives = t.derivatives, False
    try:
        return [(label, t.program(jaxpr)) for label, jaxpr in jaxprs.items()]
    finally:
        t.derivatives = before


def own_derivative(t, eqn, xs, f, fixed=0):
    """The results of `f`, with the derivative that JAX has for the primitive, if it has one. There is none
    by the first operands, as many as `fixed`: it is an error to ask for it."""
    avals = operand_types(eqn)
    if not t.derivatives or not xs:
        return t.expand(f, xs, avals)
    float0 = jax.dtypes.float0

    def tangent_of(x, given):
        return given if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, float0)

    def rule(*args):
        consts, args = args[:fixed], args[fixed:]
        half = len(args) // 2
        given = tuple(tangent_of(*pair) for pair in zip(args[:half], args[half:]))
        moved = lambda *args: apply_of(eqn)(*consts, *args)
        results, tangents = jax.jvp(moved, args[:half], given)
        tangents = [jnp.zeros_like(y) if ty.dtype == float0 else ty for y, ty in zip(results, tangents)]
        return [*results, *tangents]

    try:
        jvp = jax.make_jaxpr(rule)(*avals, *avals[fixed:])
    except (NotImplementedError, TypeError):  # JAX has none, or none for a batch
        return t.expand(f, xs, avals)
    call = jax.make_jaxpr(f)(*avals)
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    return t.emit(f"custom_jvp[consts={fixed}]", xs, types, rule_bodies(t, {"call": call, "jvp": jvp}))


def lowered_function(primitive):
    """The function of other primitives that JAX compiles for this one, if that is what it does."""
    for rules in (mlir._platform_specific_lowerings["cpu"], mlir._lowerings):
        lowering = getattr(rules.get(primitive), "rule", None)
        if getattr(lowering, "__qualname__", "").startswith("lower_fun."):
            return inspect.getclosurevars(lowering).nonlocals["fun"]
    return None


def by_lowering(t, eqn, xs):
    """The results of a primitive that JAX compiles as a function of others; None of another one."""
    f = lowered_function(eqn.primitive)
    if f is None:
        return None
    for var in eqn.invars:
        physical(var.aval)  # refuses other generators
    return own_derivative(t, eqn, xs, lambda *args: f(*args, **eqn.params))


@rule("custom_vjp_call")
def custom_vjp_call(t, eqn, xs):
    function = eqn.params["call_jaxpr"]
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    floats = all(dtype in FLOATS for dtype in [x.dtype for x in xs] + [ty[0] for ty in types])
    if not t.derivatives or not floats or not xs:
        return t.call(function, xs)
    return own_pullback(t, eqn, xs, function)


def own_pullback(t, eqn, xs, function):
    """The results of a jaxpr, with the pullback that JAX has for the primitive."""
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    pullback = {}

    def fwd(*args):
        results, pull = jax.vjp(apply_of(eqn), *args)
        residuals, pullback["structure"] = jax.tree_util.tree_flatten(pull)
        return [*results, *residuals]

    def bwd(*args):
        known, cotangents = args[:len(args) - len(types)], args[len(args) - len(types):]
        return jax.tree_util.tree_unflatten(pullback["structure"], known)(list(cotangents))

    forward = jax.make_jaxpr(fwd)(*operand_types(eqn))
    given = [*forward.out_avals[len(types):], *forward.out_avals[:len(types)]]
    backward = jax.make_jaxpr(bwd)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in given))
    bodies = rule_bodies(t, {"call": function, "fwd": forward, "bwd": backward})
    return t.emit("custom_vjp[consts=0]", xs, types, bodies)


@rule("linear_call")
def linear_call(t, eqn, xs):
    fixed = eqn.params["num_callee_consts"] + eqn.params["num_res"]
    callee = core.jaxpr_as_fun(eqn.params["callee"])
    return own_derivative(t, eqn, xs, callee, fixed)


@rule("custom_linear_solve")
def custom_linear_solve(t, eqn, xs):
    # A loop of unknown length has derivatives forwards only; its pullback is another solution.
    if t.derivatives and jaxpr_has_primitive(eqn.params["jaxprs"].solve.jaxpr, "while"):
        solve = lowered_function(eqn.primitive)
        function = jax.make_jaxpr(lambda *args: solve(*args, **eqn.params))(*operand_types(eqn))
        return own_pullback(t, eqn, xs, function)
    return by_lowering(t, eqn, xs)


@rule("debug_callback", "debug_print", "inspect_sharding", "dce_sink")
def debugging(t, eqn, xs):
    if eqn.primitive.name != "dce_sink":
        warnings.warn(f"{eqn.primitive.name} is left out of the program: {place(eqn)}", stacklevel=2)
    return []


@rule("cond")
def cond(t, eqn, xs):
    index, *operands = xs
    branches = eqn.params["branches"]
    if index.splat is not None:
        return t.call(branches[int(np.clip(index.splat, 0, len(branches) - 1))], operands)
    bodies = [(f"branch {i}", t.program(branch)) for i, branch in enumerate(branches)]
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    return t.emit("cond", [t.convert(index, "i32"), *operands], types, bodies)


@rule("scan")
def scan(t, eqn, xs):
    p = eqn.params
    body = t.program(p["jaxpr"])
    op = f"scan[length={p['length']} consts={p['num_consts']} carry={p['num_carry']}"
    op += " reverse" if p["reverse"] else ""
    op += f" unroll={p['unroll']}" if p["unroll"] != 1 else ""
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    return t.emit(op + "]", xs, types, [("body", body)])


@rule("while")
def while_(t, eqn, xs):
    p = eqn.params
    condition, body = p["cond_jaxpr"], p["body_jaxpr"]
    num_cond, num_body = p["cond_nconsts"], p["body_nconsts"]
    if not eqn.outvars:
        return []
    if condition.out_avals[0].shape:
        # A batch of loops: each runs until its own condition fails.
        batch, one = len(condition.out_avals[0].shape), condition

        def any_left(*args):
            return jnp.any(core.jaxpr_as_fun(one)(*args)[0])

        def step(*args):
            consts, rest = args[:num_cond], args[num_cond:]
            carry = rest[num_body:]
            going = core.jaxpr_as_fun(one)(*consts, *carry)[0]
            nexts = core.jaxpr_as_fun(p["body_jaxpr"])(*rest)
            widened = [going.reshape(*going.shape, *[1] * (c.ndim - batch)) for c in carry]
            return [jnp.where(w, a, b) for w, a, b in zip(widened, nexts, carry)]

        avals = operand_types(eqn)
        consts, rest = avals[:num_cond], avals[num_cond:]
        condition = jax.make_jaxpr(any_left)(*consts, *rest[num_body:])
        body = jax.make_jaxpr(step)(*consts, *rest)
        num_body += num_cond
        xs = [*xs[:num_cond], *xs]
    bodies = [("cond", t.program(condition)), ("body", t.program(body))]
    types = [out(eqn, i) for i in range(len(eqn.outvars))]
    return t.emit(f"while[consts={num_cond}/{num_body}]", xs, types, bodies)

#!/usr/bin/env python3
"""The JAX side of tests/interop/primitives.rs.

    primitives.py check        holds every primitive of JAX to be converted by tools/jax_to_podracer.py, or to
                               be refused with advice; and every rule to be met by a function
    primitives.py write DIR    writes functions of f64 as programs, with JAX's values: NAME.txt, values.json

Needs: jax, numpy.
"""
import importlib
import json
import os
import pathlib
import pkgutil
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax import scipy as jsp

jax.config.update("jax_enable_x64", True)

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/jax"
sys.path[:0] = [str(ROOT / "tools"), str(FIXTURES / "programs"), str(FIXTURES)]

import jax_control
import jax_functions
import jax_linalg
import jax_to_podracer
from jax._src import core
from jax._src.lax.lax import tie_p
from jax._src.shard_alike import shard_alike
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.xla_metadata import set_xla_metadata
from jax_primitives import RULES
from jax_refused import DISCHARGED, REFUSED

# ---- Functions -------------------------------------------------------------------------------------

rng = np.random.default_rng(3)
CASES = {}


def case(*args, grad=False):
    def register(f):
        CASES[f.__name__] = (f, args, grad)
        return f

    return register


def normal(*shape):
    return rng.standard_normal(shape)


def adjoint(a):
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def parts(*xs):
    return [part for x in xs for part in ((jnp.real(x), jnp.imag(x)) if jnp.iscomplexobj(x) else (x,))]


A, B = normal(4, 4), normal(4, 4)
TALL, WIDE = normal(5, 3), normal(3, 5)
BATCH = normal(2, 3, 3)
BAD = np.array([[1, np.nan], [0, 1]])
POSITIVE = np.array([0.3, 1.0, 2.5, 7.0])
WHOLE = rng.integers(-(2**31), 2**31, 6).astype(np.int32)
IMAGE = np.round(normal(5, 6))  # with equal elements


@case(A, BATCH, BAD)
def eigenvalues_of_hermitian_matrices(a, batch, bad):
    v, w = lax.linalg.eigh(a, lower=False, symmetrize_input=False)
    full = jnp.triu(a) + jnp.triu(a, 1).T
    c = a + 1j * a.T[::-1]
    vc, wc = lax.linalg.eigh(c)
    vb, wb = lax.linalg.eigh(batch)
    return parts(w, full @ v - v * w, jnp.abs(v), wc, (c + adjoint(c)) / 2 @ vc - vc * wc, wb, jnp.abs(vb),
                 jnp.linalg.eigvalsh(bad), jnp.linalg.eigvalsh(a[:1, :1]))


@case(A, grad=True)
def derivatives_of_eigh(a):
    w, v = jnp.linalg.eigh(a)
    return w**2, jnp.abs(v[:, 0]) ** 3


@case(TALL, WIDE, BATCH, BAD)
def singular_values(tall, wide, batch, bad):
    results = []
    for a in (tall, wide, batch, tall + 1j * wide.T):
        for full in (True, False):
            u, s, vt = jnp.linalg.svd(a, full_matrices=full)
            k = s.shape[-1]
            results += [s, jnp.abs(u[..., :k]), u[..., :k] * s[..., None, :] @ vt[..., :k, :] - a,
                        adjoint(u) @ u, vt @ adjoint(vt)]
    return parts(*results, jnp.linalg.svd(tall, compute_uv=False), jnp.linalg.svd(bad)[1],
                 jnp.linalg.matrix_rank(jnp.outer(tall[0], tall[0])), jnp.linalg.pinv(wide))


@case(TALL, grad=True)
def derivatives_of_svd(a):
    u, s, vt = jnp.linalg.svd(a, full_matrices=False)
    return s**2, jnp.abs(u[:, 0]) ** 3, jnp.abs(vt) ** 3


@case(TALL, WIDE, BATCH)
def reflections(tall, wide, batch):
    results = []
    for a in (tall, wide, batch, tall + 1j * wide.T):
        results += [*jnp.linalg.qr(a), *jnp.linalg.qr(a, "complete"), *jnp.linalg.qr(a, "raw"),
                    *lax.linalg.qr(a, pivoting=True, full_matrices=False)]
    h, taus = jnp.linalg.qr(tall, mode="raw")
    square = batch[0]
    return parts(*results, lax.linalg.ormqr(h.T, taus, wide.T), lax.linalg.householder_product(h.T, taus),
                 *jsp.linalg.hessenberg(square, calc_q=True), *lax.linalg.hessenberg(square + 1j * batch[1]),
                 *lax.linalg.tridiagonal(square + square.T), *lax.linalg.tridiagonal(square, lower=False),
                 *lax.linalg.tridiagonal(square + 1j * batch[1]))


@case(TALL, grad=True)
def derivatives_of_qr(a):
    q, r = jnp.linalg.qr(a)
    return q**2, r**3


@case(A + np.diag([9.0, 3, -4, 0]), BAD)
def eigenvalues(a, bad):
    w, vl, vr = lax.linalg.eig(a)
    t, q = jsp.linalg.schur(a, output="complex")
    return parts(jnp.sort(w.real), jnp.sort(w.imag), a @ vr - vr * w, adjoint(vl) @ a - w[:, None] * adjoint(vl),
                 q @ t @ adjoint(q), q @ adjoint(q), jnp.tril(t, -1), jnp.isnan(jnp.linalg.eigvals(bad)),
                 jnp.sum(jnp.linalg.eigvals(a[None])).real, jnp.linalg.eigvals(a[:1, :1]))


@case(A, grad=True)
def derivatives_of_eigvals(a):
    w = jnp.linalg.eigvals(a)
    return jnp.sum(w**3).real, jnp.prod(w).real


@case(A, B, grad=True)
def functions_of_matrices(a, b):
    positive = a @ a.T + jnp.eye(4)
    return (jsp.linalg.solve(positive, b, assume_a="pos"), jnp.linalg.solve(a, b), jnp.linalg.inv(a),
            jnp.linalg.det(a), jnp.linalg.slogdet(a)[1], jsp.linalg.expm(a / 9), jnp.linalg.pinv(a),
            jnp.linalg.lstsq(a, b)[0], *jsp.linalg.lu(a), jnp.linalg.cholesky(positive),
            lax.linalg.tridiagonal_solve(a[0], a[1] + 9, a[2], b), jsp.linalg.lu_solve(jsp.linalg.lu_factor(a), b))


@case(A, B)
def updates_of_factors(a, b):
    factor = jnp.linalg.cholesky(a @ a.T + jnp.eye(4)).T
    return (lax.linalg.cholesky_update(factor, b[0]), lax.linalg.symmetric_product(a, b + b.T),
            *parts(jsp.linalg.sqrtm(a @ a.T)), jsp.linalg.polar(a)[1])


@case(A, B[0], grad=True)
def conjugate_gradients(a, b):
    positive = a @ a.T + jnp.eye(4)
    return jsp.sparse.linalg.cg(lambda x: positive @ x, b, tol=1e-12)[0]


@case(WHOLE, WHOLE[::-1].copy())
def products_of_integers(x, y):
    types = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
    large = x.astype(np.int64) * y.astype(np.int64)
    return [lax.mulhi(large.astype(ty), large[::-1].astype(ty)) for ty in types]


@case(A, B)
def reductions(a, b):
    def larger(x, y):
        keep = x[0] >= y[0]
        return jnp.where(keep, x[0], y[0]), jnp.where(keep, x[1], y[1])

    least = jnp.float64(-np.inf)
    return (lax.reduce(a, jnp.float64(0), lambda x, y: jnp.hypot(x, y), [0]),
            lax.reduce(a[:3], jnp.float64(1), lambda x, y: x * y, [0, 1]),
            lax.reduce((a, b), (least, jnp.float64(0)), larger, [1]),
            lax.reduce_xor(jnp.arange(7), [0]), lax.reduce_and(jnp.arange(9, 11), [0]),
            [lax.reduce_precision(a * scale, e, m) for scale in (1e-4, 1, 300, 1e30)
             for e, m in ((5, 10), (8, 7), (4, 3), (11, 52))])


@case(normal(6, 3), normal(2, 3, 4), np.array([3, 2]), grad=True)
def ragged_products(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


def max_pool(x, **kw):
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 2), "SAME", **kw)


@case(IMAGE, normal(5, 3), normal(5, 6), normal(5, 6))
def pooling(x, ct, distinct, t):
    # Of equal elements the first takes the gradient; JAX's own jvp takes another, and so is not its transpose.
    _, back = jax.vjp(max_pool, x)
    least = lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (2, 2), "VALID")
    return (back(ct), jax.jvp(max_pool, (distinct,), (t,)), jax.grad(lambda x: least(x).sum())(x),
            jax.vmap(jax.grad(lambda x: max_pool(x).sum()))(x[None]),
            jax.jvp(lambda x: max_pool(x, window_dilation=(2, 1)), (distinct,), (t,))[1])


@case(normal(5, 6), grad=True)
def derivatives_of_pooling(x):
    return max_pool(x) ** 2, jax.grad(lambda x: (max_pool(x) ** 3).sum())(x)


@case(POSITIVE, POSITIVE[::-1].copy(), np.array([0.1, 0.5, 0.7, 0.95]))
def special(a, x, u):
    orders = jnp.array([0.0, 1.0, 2.0, 3.0])
    return (lax.igamma(a, x), lax.igammac(a, x), lax.igamma_grad_a(a, x), lax.betainc(a, x, u),
            lax.zeta(a + 1, x), lax.polygamma(orders, x), lax.bessel_i0e(x), lax.bessel_i1e(x))


@case(POSITIVE, POSITIVE[::-1].copy(), grad=True)
def derivatives_of_special(x, a):
    return lax.betainc(a, a, x / 9), lax.igamma(a, x), lax.igammac(x, a), lax.digamma(x), lax.lgamma(x)


@case(POSITIVE, np.array([3, 4], np.uint32), grad=True)
def draws(a, words):
    key = jax.random.wrap_key_data(words)
    return (jax.random.gamma(key, a), jax.random.loggamma(key, a), jax.random.beta(key, a, 2.0),
            jax.random.dirichlet(key, a), jax.random.t(key, a))


@case(A[0], grad=True)
def references(x):
    first = jax.new_ref(x)
    first[0] = 3.0 * x[1]
    first[1] += x[2]

    def body(i, total):
        first[i] = first[i] * 2
        return total + first[i]

    total = lax.fori_loop(0, 3, body, 0.0)
    return total, jax.freeze(first)


@case(A[0], grad=True)
def calls(x):
    twice = lambda r, x: jax.tree.map(lambda y: y * r, x)
    jax.debug.print("left out {}", x)
    return (jax.custom_derivatives.linear_call(twice, twice, 2.0, x), jnp.zeros_like(x), jax.checkpoint(jnp.sin)(x),
            lax.optimization_barrier(x), jax.named_call(jnp.cos, name="cos")(x))


@case(A, B)
def collectives_of_batches(a, b):
    def each(x, y):
        total = lax.psum({"x": x, "y": y * x}, "batch")
        permuted = lax.ppermute(x, "batch", [(0, 1), (1, 2), (2, 3), (3, 0)])
        return (total, lax.pmean(x, "batch"), lax.pmax(x, "batch"), lax.pmin(y, "batch"), lax.all_gather(x, "batch"),
                permuted, lax.all_to_all(x, "batch", 0, 0), lax.psum_scatter(x, "batch"), x * lax.axis_index("batch"))

    return jax.vmap(each, axis_name="batch")(a, b)


@jax.custom_batching.custom_vmap
def unbatched(x):
    return jnp.sin(x)


@unbatched.def_vmap
def batched(size, in_batched, x):
    return jnp.sin(x), in_batched[0]


@case(A[0] + 5, np.array([3, 4], np.uint32))
def rarities(x, words):
    jax.debug.callback(print, x)
    jax.debug.inspect_array_sharding(x, callback=print)
    lax.dce_sink(x)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    cloned = jax.random.clone(jax.random.wrap_key_data(words))
    alike, _ = shard_alike(x, x)
    return (jnp.arccosh(x), jnp.arcsinh(x), lax.erfc(x / 9), lax.cumlogsumexp(x), *lax.unstack(x, 0),
            lax.composite(jnp.cos, "test.cosine")(x), unbatched(x), checkpoint_name(x, "x"), tie_p.bind(words, x),
            jax.lax.with_sharding_constraint(x, here), alike, set_xla_metadata(x, k="v") * 2.0,
            lax.eq_to_p.bind(x, x), jax.random.key_data(cloned), lax.empty((2,), x.dtype) * 0.0)


# In no jaxpr of a function: JAX makes them while it transforms or compiles, or for several devices.
INNER = "call compute_on custom_jvp_call_jaxpr custom_partitioning empty2 eval_jaxpr layout_constraint pvary reshard \
zeros_like".split()

# ---- What is known ---------------------------------------------------------------------------------


def primitives():
    """Every primitive of JAX, by name."""
    for module in pkgutil.walk_packages(jax._src.__path__, "jax._src."):
        # These need a backend of their own; the primitives are in modules that others import.
        if not any(part in module.name for part in ("tpu", "test", "gpu", "triton", "tensorflow")):
            importlib.import_module(module.name)
    found = {}
    for module in [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == "jax"]:
        for value in list(vars(module).values()):
            if isinstance(value, core.Primitive):
                found[value.name] = value
    return found


def check():
    found = primitives()
    lowered = {name for name, primitive in found.items() if jax_control.lowered_function(primitive)}
    refused = {name for names in REFUSED.values() for name in names.split()}
    known = {*RULES, *refused, *DISCHARGED}
    faults = [f"{name}: neither converted nor refused" for name in sorted({*found} - known - lowered)]
    faults += [f"{name}: no such primitive" for name in sorted(known - {*found})]
    faults += [f"{name}: converted and refused" for name in sorted(refused & ({*RULES} | lowered))]

    met, equation = set(), jax_to_podracer.Translator.equation

    def recorded(self, eqn, inputs):
        met.add(eqn.primitive.name)
        return equation(self, eqn, inputs)

    jax_to_podracer.Translator.equation = recorded
    import make

    for wide, cases in ((True, CASES), (False, make.CASES)):
        with jax.enable_x64(wide):
            for f, args, *_ in cases.values():
                jax_to_podracer.text(f, *args)
    faults += [f"{name}: no function here has it" for name in sorted({*RULES} - met - {*INNER})]
    print(f"{len(found)} primitives: {len(RULES)} by rules, {len(lowered - {*RULES})} as JAX lowers them, "
          f"{len(DISCHARGED)} references, {len(refused)} refused")
    sys.exit("\n".join(faults) or None)


def write(folder):
    values = {}
    for name, (f, args, grad) in CASES.items():
        jax_to_podracer.save(folder / f"{name}.txt", f, *args)
        flat = lambda tree: [[*map(repr, np.asarray(x, np.float64).ravel().tolist())] for x in jax.tree.leaves(tree)]
        values[name] = {"in": flat(args), "out": flat(jax.jit(f)(*args)), "grad": []}
        if grad:
            total = lambda *args: sum(jnp.sum(y) for y in jax.tree.leaves(f(*args)))
            values[name]["grad"] = flat(jax.jit(jax.grad(total))(*args))
    (folder / "values.json").write_text(json.dumps(values))


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[2])) if sys.argv[1] == "write" else check()

"""JAX's factorizations of matrices by other primitives: LAPACK's routines, or others with its results.

Reflections are LAPACK's to rounding. Eigenvalues and singular values come from Jacobi's rotations and the
QR algorithm, as in `src/trace/numpy/eigen.rs` and `nonsymmetric.rs`, which explain them: signs of vectors
may differ from LAPACK's, and so may the order of the eigenvalues of general matrices.

As in `jax_primitives.py`, `RULES` gets a function for each.
"""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from jax_control import own_derivative
from jax_functions import batched
from jax_primitives import rule
from jax_to_podracer import Unsupported

# As in eigen.rs and nonsymmetric.rs.
MAX_SWEEPS = 15
MAX_STEPS_PER_ROW = 30
EXCEPTIONAL = 10


def product(a, b):
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def adjoint(a):
    return jnp.conj(a.T)


def squared(x):
    return jnp.real(x * jnp.conj(x))


def norm(x):
    """The norm of all elements, without overflow."""
    size = jnp.max(jnp.abs(x), initial=0)
    size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
    return size * jnp.sqrt(jnp.sum(squared(x / size)))


def sign_of(x):
    """x / |x|, and 1 at 0."""
    size = jnp.abs(x)
    return jnp.where(size == 0, 1, x / jnp.where(size == 0, 1, size)).astype(x.dtype)


def of_matrices(f):
    """`f`, a function of matrices and of vectors for them, for batches of these."""

    def mapped(*xs, **params):
        return batched(xs[0].ndim - 2, lambda *xs: f(*xs, **params))(*xs)

    return mapped


def factorization(name):
    """A rule by a function of one matrix, with the derivative that JAX has, if any."""

    def register(f):
        def factorized(t, eqn, xs):
            return own_derivative(t, eqn, xs, lambda *xs: of_matrices(f)(*xs, **eqn.params))

        rule(name)(factorized)
        return f

    return register


# ---- Reflections -----------------------------------------------------------------------------------


def reflection(column, i):
    """LAPACK's `larfg`: `v`, `tau` and `beta`, so that `(1 - tau v v*)*` maps the elements of `column` from
    `i` on to `beta` and zeros."""
    rows = jnp.arange(column.shape[0])
    alpha = column[i]
    size = norm(jnp.where(rows >= i, column, 0))
    nothing = (norm(jnp.where(rows > i, column, 0)) == 0) & (jnp.imag(alpha) == 0)
    beta = jnp.where(jnp.real(alpha) >= 0, -size, size)
    beta = jnp.where(nothing, 1, beta).astype(column.dtype)
    tau = jnp.where(nothing, 0, (beta - alpha) / beta)
    below = jnp.where(nothing, 0, column / jnp.where(nothing, 1, alpha - beta))
    v = jnp.where(rows > i, below, rows == i).astype(column.dtype)
    return v, tau, jnp.where(nothing, alpha, beta)


def packed(column, v, beta, i):
    """The column after the reflection, with `v` where it has zeros."""
    rows = jnp.arange(column.shape[0])
    return jnp.where(rows < i, column, jnp.where(rows == i, beta, v))


def reflect_from_left(x, v, tau, columns):
    """`(1 - tau v v*)*` times the columns of `x` that are marked."""
    change = jnp.conj(tau) * v[:, None] * product(jnp.conj(v), x)[None]
    return jnp.where(columns, x - change, x)


def factorized(a, choose):
    """Upper triangular by reflections, after an exchange of columns that `choose` names at each step."""
    m, n = a.shape
    columns = jnp.arange(n)

    def step(i, state):
        a, order, taus = state
        j = choose(a, i)
        exchange = columns.at[i].set(j).at[j].set(i)
        a, order = a[:, exchange], order[exchange]
        v, tau, beta = reflection(a[:, i], i)
        column = packed(a[:, i], v, beta, i)
        a = reflect_from_left(a, v, tau, columns > i).at[:, i].set(column)
        return a, order, taus.at[i].set(tau)

    return lax.fori_loop(0, min(m, n), step, (a, columns, jnp.zeros(min(m, n), a.dtype)))


@factorization("geqrf")
def geqrf(a):
    a, _, taus = factorized(a, lambda a, i: i)
    return [a, taus]


@rule("geqp3")
def geqp3(t, eqn, xs):
    if xs[1].splat != 0:
        raise Unsupported("geqp3 with columns that stay first is not supported")

    def largest(a, i):
        m, n = a.shape
        left = jnp.where(jnp.arange(m)[:, None] >= i, squared(a), 0).sum(0)
        return jnp.argmax(jnp.where(jnp.arange(n) >= i, left, -1))

    def pivoted(a):
        a, order, taus = factorized(a, largest)
        return [a, (order + 1).astype(eqn.outvars[1].aval.dtype), taus]

    return t.expand(lambda a, _: of_matrices(pivoted)(a), xs)


@factorization("householder_product")
def householder_product(a, taus):
    m, n = a.shape
    k = taus.shape[0]
    vs = jnp.tril(a[:, :k], -1) + jnp.eye(m, k, dtype=a.dtype)

    def step(i, q):
        j = k - 1 - i
        return q - taus[j] * vs[:, j, None] * product(jnp.conj(vs[:, j]), q)[None]

    return lax.fori_loop(0, k, step, jnp.eye(m, n, dtype=a.dtype))


@factorization("hessenberg")
def hessenberg(a):
    n = a.shape[0]

    def step(i, state):
        a, taus = state
        v, tau, beta = reflection(a[:, i], i + 1)
        column = packed(a[:, i], v, beta, i + 1)
        after = jnp.arange(n) > i
        a = a - tau * product(a, v)[:, None] * jnp.conj(v)[None]
        a = reflect_from_left(a, v, tau, after).at[:, i].set(column)
        return a, taus.at[i].set(tau)

    return list(lax.fori_loop(0, max(n - 1, 0), step, (a, jnp.zeros(max(n - 1, 0), a.dtype))))


@factorization("tridiagonal")
def tridiagonal(a, *, lower):
    if not lower:
        # The same from the other end.
        reversed_ = tridiagonal(a[::-1, ::-1], lower=True)
        return [jnp.flip(x) for x in reversed_]
    n, given = a.shape[0], a
    a = hermitian(a, lower)

    def step(i, state):
        a, stored, off, taus = state
        v, tau, beta = reflection(a[:, i], i + 1)
        x = tau * product(a, v)
        w = x - 0.5 * tau * jnp.sum(jnp.conj(x) * v) * v
        changed = a - v[:, None] * jnp.conj(w)[None] - w[:, None] * jnp.conj(v)[None]
        stored = stored.at[:, i].set(packed(a[:, i], v, beta, i + 1))
        return changed, stored, off.at[i].set(jnp.real(beta)), taus.at[i].set(tau)

    none = jnp.zeros(n - 1, a.dtype)
    a, stored, off, taus = lax.fori_loop(0, n - 1, step, (a, a, jnp.real(none), none))
    stored = stored.at[n - 1, n - 1].set(a[n - 1, n - 1])
    return [jnp.tril(stored) + jnp.triu(given, 1), jnp.real(jnp.diagonal(stored)), off, taus]


# ---- Eigenvalues and singular values by rotations --------------------------------------------------


def scaled(a):
    """`a` divided by a power of 2 near its largest element, and this power."""
    size = jnp.max(jnp.maximum(jnp.abs(jnp.real(a)), jnp.abs(jnp.imag(a))))
    exponent = 0x7FF << 52 if size.dtype == np.float64 else 0xFF << 23
    bits = f"int{8 * size.dtype.itemsize}"
    power = lax.bitcast_convert_type(size, bits) & jnp.asarray(exponent, bits)
    power = lax.bitcast_convert_type(power, size.dtype)
    power = jnp.where((power > 0) & jnp.isfinite(size), power, 1)
    return a / power, power


def known(a, x, converged=True):
    """`x` if all of `a` is finite, else NaN."""
    nan = jnp.full(x.shape, jnp.nan, jnp.real(x).dtype)
    nan = lax.complex(nan, nan) if jnp.iscomplexobj(x) else nan
    return jnp.where(jnp.all(jnp.isfinite(a)) & converged, x, nan)


def hermitian(a, lower):
    """The matrix of which `a` has the lower triangle, or the upper one."""
    half = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    return half + adjoint(half) + jnp.diag(jnp.real(jnp.diagonal(a))).astype(a.dtype)


def rotation(a, b, d):
    """The cosine and the sine that make `b` of `[[a, b], [b*, d]]` zero."""
    size = jnp.abs(b)
    none = size == 0
    tau = (d - a) / (2 * jnp.where(none, 1, size))
    tangent = jnp.where(tau >= 0, 1, -1) / (jnp.abs(tau) + jnp.sqrt(1 + tau * tau))
    tangent = jnp.where(none, 0, tangent)
    cosine = lax.rsqrt(1 + tangent * tangent)
    return cosine.astype(b.dtype), (tangent * cosine).astype(b.dtype) * sign_of(b)


def rotate_rows(x, cosine, sine):
    """Rotates the first half of the rows against the second."""
    top, bottom = jnp.split(x, 2)
    c, s = cosine[:, None], sine[:, None]
    return jnp.concatenate([c * top - s * bottom, jnp.conj(s) * top + c * bottom])


def next_round(rows):
    """The next round of a tournament: the first row stays, the others move one place around the circle."""
    circle = [*range(rows // 2), *reversed(range(rows // 2, rows))]
    order = np.zeros(rows, np.int32)
    for i in range(1, rows):
        order[circle[i]] = circle[-1] if i == 1 else circle[i - 1]
    return order


def eigh_of_matrix(a):
    n = a.shape[0]
    if n < 2:
        return jnp.eye(n, dtype=a.dtype), jnp.real(jnp.diagonal(a))
    rows = n + n % 2
    given = a
    a, power = scaled(a)
    full = jnp.pad(a, ((0, rows - n), (0, rows - n)))
    epsilon, order = jnp.finfo(a.dtype).eps, next_round(rows)
    bound = 0.5 * epsilon * norm(full)

    def step(_, state):
        a, v = state
        first, last = jnp.split(jnp.real(jnp.diagonal(a)), 2)
        c, s = rotation(first, jnp.diagonal(a[:, rows // 2:]), last)
        a = rotate_rows(adjoint(rotate_rows(a, c, s)), c, s)
        return a[order][:, order], rotate_rows(v, c, s)[order]

    def sweep(state):
        count, a, v = state
        return count + 1, *lax.fori_loop(0, rows - 1, step, (a, v))

    def continues(state):
        count, a, _ = state
        return (count < MAX_SWEEPS) & (norm(a * (1 - jnp.eye(rows, dtype=a.dtype))) > bound)

    _, a, v = lax.while_loop(continues, sweep, (0, full, jnp.eye(rows, dtype=a.dtype)))
    values, vectors = jnp.real(jnp.diagonal(a))[:n], adjoint(v[:n, :n])
    order = jnp.argsort(values)
    return known(given, vectors[:, order]), known(given, values[order] * power)


@factorization("eigh")
def eigh(a, *, lower, subset_by_index, **_):
    vectors, values = eigh_of_matrix(hermitian(a, lower))
    kept = slice(*(subset_by_index or (0, a.shape[0])))
    return [vectors[:, kept], values[kept]]


def completed(u, columns):
    """An orthogonal matrix whose first columns are those of `u`, where these are not zeros."""
    m, k = u.shape
    reflected, taus = geqrf(u)
    q = householder_product(jnp.pad(reflected, ((0, 0), (0, columns - k))), taus)
    return q * jnp.pad(sign_of(jnp.diagonal(reflected)), (0, columns - k), constant_values=1)


def svd_of_tall(a, full):
    m, n = a.shape
    a, power = scaled(a)
    rows = max(n + n % 2, 2)
    columns = jnp.pad(a.T, ((0, rows - n), (0, 0)))
    epsilon, order = jnp.finfo(a.dtype).eps, next_round(rows)
    floor = jnp.sum(squared(columns)) * epsilon**2

    def step(_, state):
        x, v, active = state
        top, bottom = jnp.split(x, 2)
        aa, bb = squared(top).sum(1), squared(bottom).sum(1)
        ab = (top * jnp.conj(bottom)).sum(1)
        small = (jnp.minimum(aa, bb) <= floor) | (jnp.abs(ab) <= epsilon * jnp.sqrt(aa * bb))
        c, s = rotation(aa, jnp.where(small, 0, ab), bb)
        active = active | ~jnp.all(small)
        return rotate_rows(x, c, s)[order], rotate_rows(v, c, s)[order], active

    def sweep(state):
        count, x, v, _ = state
        return count + 1, *lax.fori_loop(0, rows - 1, step, (x, v, False))

    def continues(state):
        return (state[0] < MAX_SWEEPS) & state[-1]

    start = (0, columns, jnp.eye(rows, dtype=a.dtype), jnp.isfinite(floor))
    _, x, v, _ = lax.while_loop(continues, sweep, start)
    x, vt = x[:n], jnp.conj(v[:n, :n])
    s = jnp.sqrt(squared(x).sum(1))
    order = jnp.argsort(-s)
    x, s, vt = x[order], s[order], vt[order]
    known_ = (s > jnp.max(s, initial=0) * epsilon * m) & (s > 0)
    u = jnp.where(known_[:, None], x / jnp.where(known_, s, 1)[:, None], 0).T
    return s * power, completed(u, m if full else n), vt


@factorization("svd")
def svd(a, *, full_matrices, compute_uv, subset_by_index, **_):
    if a.shape[0] >= a.shape[1]:
        s, u, vt = svd_of_tall(a, full_matrices)
    else:
        s, v, ut = svd_of_tall(a.T, full_matrices)
        u, vt = ut.T, v.T
    if subset_by_index is not None:
        kept = slice(*subset_by_index)
        s = s[kept]
        u, vt = (u, vt) if full_matrices else (u[:, kept], vt[kept])
    return [known(a, x) for x in ((s, u, vt) if compute_uv else (s,))]


# ---- General matrices by the QR algorithm ----------------------------------------------------------


def deflate(z):
    """`z`, whose first rows are a Hessenberg matrix, without the elements of the subdiagonal that are
    rounding; the first row of the last block between such elements, and its last row but one or -1."""
    n = z.shape[1]
    h = z[:n]
    diagonal = jnp.abs(jnp.diagonal(h))
    sizes = diagonal[:-1] + diagonal[1:]
    sizes = jnp.where(sizes == 0, norm(h), sizes)
    active = jnp.abs(jnp.diagonal(h, -1)) > sizes * jnp.finfo(z.dtype).eps
    numbers = jnp.arange(n - 1, dtype=jnp.int32)
    last = jnp.max(jnp.where(active, numbers, -1))
    first = jnp.max(jnp.where(~active & (numbers < last), numbers, -1)) + 1
    row, column = jnp.arange(z.shape[0])[:, None], jnp.arange(n)
    small = jnp.pad(~active, (1, z.shape[0] - n))[:, None]
    lost = (row > column + 1) | ((row == column + 1) & small)
    return jnp.where(lost & (row < n), 0, z), first, last


def shift_of(z, last, exceptional):
    """Wilkinson's shift, or LAPACK's for a block that does not converge."""
    (a, b), (c, d) = lax.dynamic_slice(z, (last, last), (2, 2))
    half = (a - d) * 0.5
    root = jnp.sqrt(half * half + b * c)
    larger = jnp.where(jnp.abs(half + root) >= jnp.abs(half - root), half + root, half - root)
    none = larger == 0
    step = jnp.where(none, 0, b * c / jnp.where(none, 1, larger))
    return jnp.where(exceptional, d + jnp.abs(c) * 0.75, d - step)


def qr_step(z, first, last, shift):
    n = z.shape[1]
    shift = jnp.where(jnp.arange(2) == 0, shift, 0)

    def rotate(k, z):
        rows = lax.dynamic_slice(z, (k, 0), (2, n))
        pair = jnp.where(k == first, rows[:, k] - shift, rows[:, jnp.maximum(k - 1, 0)])
        size = norm(pair)
        active = (k >= first) & (k <= last) & (size > 0)
        c, s = jnp.where(active, pair / jnp.where(active, size, 1), jnp.array([1, 0]))
        x, y = rows
        rows = jnp.stack([jnp.conj(c) * x + jnp.conj(s) * y, c * y - s * x])
        z = lax.dynamic_update_slice(z, rows, (k, 0))
        x, y = lax.dynamic_slice(z, (0, k), (z.shape[0], 2)).T
        columns = jnp.stack([c * x + s * y, jnp.conj(c) * y - jnp.conj(s) * x], 1)
        return lax.dynamic_update_slice(z, columns, (0, k))

    return lax.fori_loop(0, n - 1, rotate, z)


def schur_of_matrix(a):
    """`t` and `q` of the complex `a = q t q*`."""
    n, given = a.shape[0], a
    if n < 2:
        return known(a, a), known(a, jnp.eye(n, dtype=a.dtype))
    a, power = scaled(a)
    reflected, taus = hessenberg(a)
    q = jnp.eye(n, dtype=a.dtype).at[1:, 1:].set(householder_product(reflected[1:, :-1], taus))
    z, first, last = deflate(jnp.concatenate([jnp.triu(reflected, -1), q]))
    last = jnp.where(jnp.all(jnp.isfinite(given)), last, -1)

    def step(state):
        count, since, z, first, last = state
        exceptional = since % EXCEPTIONAL == EXCEPTIONAL - 1
        z, first, new_last = deflate(qr_step(z, first, last, shift_of(z, last, exceptional)))
        return count + 1, jnp.where(new_last == last, since + 1, 0), z, first, new_last

    def continues(state):
        return (state[0] < MAX_STEPS_PER_ROW * max(n, 10)) & (state[-1] >= 0)

    *_, z, _, last = lax.while_loop(continues, step, (0, 0, z, first, last))
    t = jnp.triu(z[:n]) * power
    return known(given, t, last < 0), known(given, z[n:], last < 0)


@rule("schur")
def schur(t, eqn, xs):
    if not xs[0].dtype.startswith("c"):
        raise Unsupported("the Schur form of a real matrix is not supported; use that of a complex one")
    count = len(eqn.outvars)
    return t.expand(lambda a: batched(a.ndim - 2, schur_of_matrix)(a)[:count], xs)


def triangular_eigenvectors(t):
    """The eigenvectors of an upper triangular matrix, columns, by substitution for all of them at once."""
    n, values = t.shape[0], jnp.diagonal(t)
    least = norm(t) * jnp.finfo(t.dtype).eps
    least = jnp.where(least == 0, 1, least)
    numbers, strict = jnp.arange(n), jnp.triu(t, 1)

    def step(i, x):
        row = n - 1 - i
        distance = values - values[row]
        distance = jnp.where(jnp.abs(distance) < least, least, distance)
        found = jnp.where(numbers > row, product(strict[row], x) / distance, 0)
        x = x.at[row].set(jnp.where(numbers == row, 1, found))
        # Without this, vectors of defective matrices overflow.
        return x / jnp.maximum(jnp.abs(found), 1)

    return lax.fori_loop(0, n, step, jnp.zeros_like(t))


def normalized(v):
    """Columns of norm 1, whose largest elements are real and positive."""
    v = v / jnp.sqrt(squared(v).sum(0))
    largest = jnp.argmax(jnp.abs(v), 0)
    return v * jnp.conj(sign_of(v[largest, jnp.arange(v.shape[1])]))


@factorization("eig")
def eig(a, *, compute_left_eigenvectors, compute_right_eigenvectors, **_):
    t, q = schur_of_matrix(a.astype(jnp.result_type(a, jnp.complex64)))
    results = [jnp.diagonal(t)]
    vectors = normalized(product(q, triangular_eigenvectors(t)))
    if compute_left_eigenvectors:
        results.append(known(t, normalized(adjoint(jnp.linalg.inv(vectors)))))
    if compute_right_eigenvectors:
        results.append(known(t, vectors))
    return results

//! Dense factorizations of column-major matrices, in `f64`, with LAPACK's conventions: pivots and
//! `info` count from 1, reflectors are stored below the diagonal.

/// Position of the element in row `i`, column `j` of a column-major matrix of `rows` rows.
fn at(rows: usize, i: usize, j: usize) -> usize {
    i + j * rows
}

/// `potrf`: the Cholesky factor of a symmetric matrix, in its lower or upper triangle. The other
/// triangle stays as it is. Returns 0, or the order of the first minor that is not positive.
pub(super) fn cholesky(a: &mut [f64], n: usize, lower: bool) -> i32 {
    let at = |i: usize, j: usize| if lower { at(n, i, j) } else { at(n, j, i) };
    for j in 0..n {
        let squares: f64 = (0..j).map(|k| a[at(j, k)] * a[at(j, k)]).sum();
        let pivot = a[at(j, j)] - squares;
        if pivot.is_nan() || pivot <= 0.0 {
            return j as i32 + 1;
        }
        let pivot = pivot.sqrt();
        a[at(j, j)] = pivot;
        for i in j + 1..n {
            let products: f64 = (0..j).map(|k| a[at(i, k)] * a[at(j, k)]).sum();
            a[at(i, j)] = (a[at(i, j)] - products) / pivot;
        }
    }
    0
}

/// `getrf`: the factors L and U with partial pivoting, in place. Returns the pivots, and 0 or the
/// number of the first pivot that is zero.
pub(super) fn lu(a: &mut [f64], rows: usize, cols: usize) -> (Vec<i32>, i32) {
    let at = |i: usize, j: usize| at(rows, i, j);
    let (mut pivots, mut info) = (Vec::new(), 0);
    for k in 0..rows.min(cols) {
        let mut pivot = k;
        for i in k + 1..rows {
            if a[at(i, k)].abs() > a[at(pivot, k)].abs() {
                pivot = i;
            }
        }
        pivots.push(pivot as i32 + 1);
        if a[at(pivot, k)] == 0.0 {
            if info == 0 {
                info = k as i32 + 1;
            }
            continue;
        }
        if pivot != k {
            (0..cols).for_each(|j| a.swap(at(k, j), at(pivot, j)));
        }
        for i in k + 1..rows {
            a[at(i, k)] /= a[at(k, k)];
        }
        for j in k + 1..cols {
            let top = a[at(k, j)];
            for i in k + 1..rows {
                a[at(i, j)] -= a[at(i, k)] * top;
            }
        }
    }
    (pivots, info)
}

/// A triangular matrix as `trsm` takes it.
#[derive(Clone, Copy)]
pub(super) struct Triangle<'a> {
    pub(super) a: &'a [f64],
    pub(super) n: usize,
    pub(super) lower: bool,
    pub(super) transposed: bool,
    pub(super) unit_diagonal: bool,
}

impl Triangle<'_> {
    /// Solves for one vector, whose element `i` is at `start + i * stride` of `b`.
    fn solve(self, b: &mut [f64], start: usize, stride: usize) {
        let Triangle { a, n, lower, transposed, unit_diagonal } = self;
        let element = |i: usize, j: usize| if transposed { a[at(n, j, i)] } else { a[at(n, i, j)] };
        let forward = lower != transposed;
        for step in 0..n {
            let i = if forward { step } else { n - 1 - step };
            let known = if forward { 0..i } else { i + 1..n };
            let products: f64 = known.map(|j| element(i, j) * b[start + j * stride]).sum();
            let rest = b[start + i * stride] - products;
            b[start + i * stride] = if unit_diagonal { rest } else { rest / element(i, i) };
        }
    }
}

/// `trsm`: solves `op(A) X = B` (`left`) or `X op(A) = B` for X, which overwrites B.
pub(super) fn solve_triangular(
    triangle: Triangle<'_>,
    left: bool,
    b: &mut [f64],
    rows: usize,
    cols: usize,
) {
    if left {
        (0..cols).for_each(|j| triangle.solve(b, at(rows, 0, j), 1));
        return;
    }
    // Each row of X solves the transposed system.
    let triangle = Triangle { transposed: !triangle.transposed, ..triangle };
    (0..rows).for_each(|i| triangle.solve(b, i, rows));
}

/// Applies the reflector `1 - tau v v^T`, whose `v` is 1 at row `k` and stored below it in column
/// `k`, to the columns `from..to` of `a`.
fn reflect(a: &mut [f64], rows: usize, k: usize, tau: f64, from: usize, to: usize) {
    let at = |i: usize, j: usize| at(rows, i, j);
    for j in from..to {
        let below: f64 = (k + 1..rows).map(|i| a[at(i, k)] * a[at(i, j)]).sum();
        let scaled = tau * (a[at(k, j)] + below);
        a[at(k, j)] -= scaled;
        for i in k + 1..rows {
            a[at(i, j)] -= scaled * a[at(i, k)];
        }
    }
}

/// `geqrf`: R in the upper triangle, the reflectors below it. Returns their factors `tau`.
pub(super) fn qr(a: &mut [f64], rows: usize, cols: usize) -> Vec<f64> {
    let at = |i: usize, j: usize| at(rows, i, j);
    let mut taus = Vec::new();
    for k in 0..rows.min(cols) {
        let norm = (k + 1..rows).fold(0.0, |norm: f64, i| norm.hypot(a[at(i, k)]));
        let alpha = a[at(k, k)];
        if norm == 0.0 {
            taus.push(0.0);
            continue;
        }
        let beta = -alpha.hypot(norm).copysign(alpha);
        let tau = (beta - alpha) / beta;
        for i in k + 1..rows {
            a[at(i, k)] /= alpha - beta;
        }
        reflect(a, rows, k, tau, k + 1, cols);
        a[at(k, k)] = beta;
        taus.push(tau);
    }
    taus
}

/// `orgqr`: the first `cols` columns of the product of the reflectors, which they overwrite.
pub(super) fn q_of_reflectors(a: &mut [f64], rows: usize, cols: usize, taus: &[f64]) {
    let at = |i: usize, j: usize| at(rows, i, j);
    for j in taus.len()..cols {
        (0..rows).for_each(|i| a[at(i, j)] = f64::from(u8::from(i == j)));
    }
    for k in (0..taus.len()).rev() {
        let tau = taus[k];
        reflect(a, rows, k, tau, k + 1, cols);
        (0..k).for_each(|i| a[at(i, k)] = 0.0);
        a[at(k, k)] = 1.0 - tau;
        (k + 1..rows).for_each(|i| a[at(i, k)] *= -tau);
    }
}

/// Most sweeps of a Jacobi iteration; matrices of any condition need about ten.
const MAX_SWEEPS: usize = 60;

/// Cosine and sine of the rotation that makes the off-diagonal element of `[[p, r], [r, q]]` zero.
fn rotation(p: f64, q: f64, r: f64) -> (f64, f64) {
    let theta = (q - p) / (2.0 * r);
    let t = theta.signum() / (theta.abs() + theta.hypot(1.0));
    let c = 1.0 / t.hypot(1.0);
    (c, t * c)
}

/// Rotates columns `p` and `q` of a matrix of `rows` rows.
fn rotate_columns(a: &mut [f64], rows: usize, [p, q]: [usize; 2], (c, s): (f64, f64)) {
    for i in 0..rows {
        let (x, y) = (a[at(rows, i, p)], a[at(rows, i, q)]);
        a[at(rows, i, p)] = c * x - s * y;
        a[at(rows, i, q)] = s * x + c * y;
    }
}

/// `syevd`: eigenvalues of a symmetric matrix in ascending order, and its eigenvectors as columns
/// that overwrite it, by Jacobi's method. Only one triangle is read. Returns `None` if an element
/// is not finite.
pub(super) fn eigh(a: &mut [f64], n: usize, lower: bool) -> Option<Vec<f64>> {
    for j in 0..n {
        for i in j + 1..n {
            let (low, high) = (at(n, i, j), at(n, j, i));
            if lower { a[high] = a[low] } else { a[low] = a[high] }
        }
    }
    if a.iter().any(|x| !x.is_finite()) {
        return None;
    }
    // Off-diagonal elements this small change no eigenvalue.
    let negligible = a.iter().fold(0.0, |most: f64, x| most.max(x.abs())) * 1e-19;
    let mut vectors = vec![0.0; n * n];
    (0..n).for_each(|i| vectors[at(n, i, i)] = 1.0);
    for _ in 0..MAX_SWEEPS {
        let mut rotated = false;
        for p in 0..n {
            for q in p + 1..n {
                let (x, y, r) = (a[at(n, p, p)], a[at(n, q, q)], a[at(n, p, q)]);
                let small = f64::EPSILON * 0.5 * (x.abs() * y.abs()).sqrt();
                if r.abs() <= small.max(negligible) {
                    continue;
                }
                rotated = true;
                let givens = rotation(x, y, r);
                rotate_columns(a, n, [p, q], givens);
                for j in 0..n {
                    let (x, y) = (a[at(n, p, j)], a[at(n, q, j)]);
                    a[at(n, p, j)] = givens.0 * x - givens.1 * y;
                    a[at(n, q, j)] = givens.1 * x + givens.0 * y;
                }
                (a[at(n, p, q)], a[at(n, q, p)]) = (0.0, 0.0);
                rotate_columns(&mut vectors, n, [p, q], givens);
            }
        }
        if !rotated {
            break;
        }
    }
    let values: Vec<f64> = (0..n).map(|i| a[at(n, i, i)]).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    for (to, &from) in order.iter().enumerate() {
        a[at(n, 0, to)..][..n].copy_from_slice(&vectors[at(n, 0, from)..][..n]);
    }
    Some(order.into_iter().map(|i| values[i]).collect())
}

/// A singular value decomposition: `u` has `rows` rows, `vt` is the transpose of V.
pub(super) struct Svd {
    pub(super) values: Vec<f64>,
    pub(super) u: Vec<f64>,
    pub(super) vt: Vec<f64>,
}

/// `gesdd`: singular values in descending order with their vectors, `rows` of them on the left
/// and `cols` on the right if `full`, else as many as there are values; by one-sided Jacobi.
/// Returns nothing where an element is not finite.
pub(super) fn svd(a: &[f64], rows: usize, cols: usize, full: bool) -> Option<Svd> {
    if a.iter().any(|x| !x.is_finite()) {
        return None;
    }
    if rows < cols {
        let Svd { values, u, vt } = svd(&transposed(a, rows, cols), cols, rows, full)?;
        let (wide, few) = (if full { cols } else { rows }, rows);
        return Some(Svd { values, u: transposed(&vt, few, few), vt: transposed(&u, cols, wide) });
    }
    let mut a = a.to_vec();
    // Products of columns this small are rounding errors.
    let negligible = a.iter().map(|x| x * x).sum::<f64>() * 1e-34;
    let mut v = vec![0.0; cols * cols];
    (0..cols).for_each(|i| v[at(cols, i, i)] = 1.0);
    for _ in 0..MAX_SWEEPS {
        let mut rotated = false;
        for p in 0..cols {
            for q in p + 1..cols {
                let product = |j: usize, k: usize| -> f64 {
                    (0..rows).map(|i| a[at(rows, i, j)] * a[at(rows, i, k)]).sum()
                };
                let (x, y, r) = (product(p, p), product(q, q), product(p, q));
                if r.abs() <= (f64::EPSILON * (x * y).sqrt()).max(negligible) {
                    continue;
                }
                rotated = true;
                let givens = rotation(x, y, r);
                rotate_columns(&mut a, rows, [p, q], givens);
                rotate_columns(&mut v, cols, [p, q], givens);
            }
        }
        if !rotated {
            break;
        }
    }
    let norm = |j: usize| (0..rows).fold(0.0, |norm: f64, i| norm.hypot(a[at(rows, i, j)]));
    let norms: Vec<f64> = (0..cols).map(norm).collect();
    let mut order: Vec<usize> = (0..cols).collect();
    order.sort_by(|&i, &j| norms[j].total_cmp(&norms[i]));
    let values: Vec<f64> = order.iter().map(|&j| norms[j]).collect();
    let (mut u, mut vt) = (Vec::new(), vec![0.0; cols * cols]);
    for (to, &from) in order.iter().enumerate() {
        (0..cols).for_each(|i| vt[at(cols, to, i)] = v[at(cols, i, from)]);
        // Vectors of zeros have no direction: they are completed below.
        if norms[from] > values[0] * f64::EPSILON * 0.01 {
            u.extend(a[at(rows, 0, from)..][..rows].iter().map(|x| x / norms[from]));
        }
    }
    complete(&mut u, rows, if full { rows } else { cols });
    Some(Svd { values, u, vt })
}

fn transposed(a: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|i| a[at(rows, i / cols, i % cols)]).collect()
}

/// Extends orthonormal columns of `rows` elements to `count` columns.
fn complete(columns: &mut Vec<f64>, rows: usize, count: usize) {
    let mut unit = 0;
    while columns.len() < rows * count && unit < rows {
        let mut column = vec![0.0; rows];
        column[unit] = 1.0;
        unit += 1;
        // Twice, so that rounding of the first time is taken out as well.
        for _ in 0..2 {
            for other in columns.chunks_exact(rows) {
                let along: f64 = other.iter().zip(&column).map(|(x, y)| x * y).sum();
                column.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
            }
        }
        let norm = column.iter().fold(0.0, |norm: f64, &x| norm.hypot(x));
        // One of the unit vectors left has at least this much outside of the columns so far.
        if norm > 0.5 / (rows as f64).sqrt() {
            columns.extend(column.iter().map(|x| x / norm));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements that look random, in -1 to 1.
    fn numbers(count: usize) -> Vec<f64> {
        (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f64 / 5003.5 - 1.0).collect()
    }

    /// `x y` of matrices of `m` by `k` and `k` by `n`.
    fn product(x: &[f64], y: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
        let element = |i: usize, j: usize| (0..k).map(|l| x[at(m, i, l)] * y[at(k, l, j)]).sum();
        (0..m * n).map(|at| element(at % m, at / m)).collect()
    }

    #[track_caller]
    fn near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (x, y) in found.iter().zip(expected) {
            assert!((x - y).abs() < 1e-12, "{found:?}\n{expected:?}");
        }
    }

    fn identity(n: usize) -> Vec<f64> {
        (0..n * n).map(|i| f64::from(u8::from(i % n == i / n))).collect()
    }

    #[test]
    fn singular_vectors_give_the_matrix_back() {
        let mut deficient = numbers(20);
        deficient.copy_within(0..5, 15);
        deficient[5..10].fill(0.0);
        let matrices =
            [(4, 4, numbers(16)), (5, 4, deficient), (3, 7, numbers(21)), (4, 2, vec![0.0; 8])];
        for (m, n, a) in matrices {
            let few = m.min(n);
            for full in [false, true] {
                let (left, right) = if full { (m, n) } else { (few, few) };
                let Svd { values, u, vt } = svd(&a, m, n, full).unwrap();
                assert!(values.windows(2).all(|pair| pair[0] >= pair[1]), "{values:?}");
                near(&product(&transposed(&u, m, left), &u, left, m, left), &identity(left));
                near(&product(&vt, &transposed(&vt, right, n), right, n, right), &identity(right));
                let mut middle = vec![0.0; left * right];
                (0..few).for_each(|i| middle[at(left, i, i)] = values[i]);
                near(&product(&product(&u, &middle, m, left, right), &vt, m, right, n), &a);
            }
        }
        assert!(svd(&[f64::NAN], 1, 1, true).is_none());
    }

    #[test]
    fn eigenvectors_give_the_matrix_back() {
        for n in [1, 2, 5, 16] {
            let half = numbers(n * n);
            let sum = half.iter().zip(transposed(&half, n, n)).map(|(x, y)| x + y);
            let matrix: Vec<f64> = sum.collect();
            for lower in [false, true] {
                let mut a = matrix.clone();
                // The other triangle is not read.
                for (i, element) in a.iter_mut().enumerate() {
                    let (row, column) = (i % n, i / n);
                    if row != column && lower != (row > column) {
                        *element = f64::NAN;
                    }
                }
                let values = eigh(&mut a, n, lower).unwrap();
                assert!(values.windows(2).all(|pair| pair[0] <= pair[1]), "{values:?}");
                let mut scaled = a.clone();
                (0..n * n).for_each(|i| scaled[i] *= values[i / n]);
                near(&product(&scaled, &transposed(&a, n, n), n, n, n), &matrix);
                near(&product(&transposed(&a, n, n), &a, n, n, n), &identity(n));
            }
        }
    }
}

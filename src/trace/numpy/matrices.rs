//! Products and norms of matrices.

use super::eigen::svdvals;
use super::linalg::{inv, solve};
use crate::trace::op::DotDims;
use crate::trace::ops::{axis_of, broadcast_shapes, dot_general, expect_square, eye, where_};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::Shape;

/// Order of [`matrix_norm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatrixNorm {
    /// Root of the sum of squares: NumPy's default.
    #[default]
    Frobenius,
    /// Largest sum of absolute values of a column: order 1.
    One,
    /// Largest sum of absolute values of a row: order infinity.
    Infinity,
    /// Least sum of absolute values of a column: order -1.
    LeastColumn,
    /// Least sum of absolute values of a row: order -infinity.
    LeastRow,
    /// Largest singular value: order 2.
    Spectral,
    /// Least singular value: order -2.
    LeastSingular,
    /// Sum of singular values: order "nuc".
    Nuclear,
}

/// `jnp.kron`: the Kronecker product.
#[op(at_line)]
pub fn kron(x: Tensor, y: Tensor) -> Tensor {
    let rank = x.rank().max(y.rank());
    let raised = |x: Tensor| -> Tensor {
        let shape = x.shape();
        x.reshape([&vec![1; rank - shape.rank()][..], &shape[..]].concat())
    };
    let (x, y) = (raised(x), raised(y));
    let (left, right) = (x.shape(), y.shape());
    // Axes of both in turn.
    let pairs = |first: bool| -> Vec<usize> {
        let sizes = left.iter().zip(right.iter());
        sizes.flat_map(|(&a, &b)| if first { [a, 1] } else { [1, b] }).collect()
    };
    let product = x.reshape(pairs(true)) * y.reshape(pairs(false));
    let sizes: Vec<usize> = left.iter().zip(right.iter()).map(|(a, b)| a * b).collect();
    product.reshape(sizes)
}

/// `jnp.matvec`: matrices times vectors; axes before them broadcast.
#[op]
pub fn matvec(a: Tensor, x: Tensor) -> Tensor {
    a.matmul(x.expand_dims(-1)).squeeze(-1)
}

/// `jnp.vecmat`: vectors, conjugated if they are complex, times matrices; axes before them broadcast.
#[op]
pub fn vecmat(x: Tensor, a: Tensor) -> Tensor {
    x.conj().expand_dims(-2).matmul(a).squeeze(-2)
}

/// `jnp.vecdot`: the products of vectors along the last axis, the first ones conjugated if they are
/// complex; axes before it broadcast.
#[op(at_line)]
pub fn vecdot(x: Tensor, y: Tensor) -> Tensor {
    let (left, right) = (x.shape(), y.shape());
    if left.rank() == 0 || right.rank() == 0 || left.last() != right.last() {
        let problem = format!(
            "takes vectors of one size along the last axis; was given {} and {}",
            x.ty(),
            y.ty()
        );
        fail_op("vecdot", problem);
    }
    let full = broadcast_shapes("vecdot", &[left, right]);
    let last = full.rank() - 1;
    let batch: crate::trace::op::Axes = (0..last).collect();
    let dims = DotDims {
        lhs_batch: batch.clone(),
        rhs_batch: batch,
        lhs_contract: [last].as_slice().into(),
        rhs_contract: [last].as_slice().into(),
        ..DotDims::default()
    };
    dot_general(x.conj().broadcast_to(&full), y.broadcast_to(&full), dims)
}

/// `jnp.linalg.matrix_power`: a square matrix to a whole power; negative powers are those of the
/// inverse.
#[op(at_line)]
pub fn matrix_power(a: Tensor, n: i32) -> Tensor {
    let shape = a.shape();
    let rank = shape.rank();
    if rank < 2 || shape[rank - 1] != shape[rank - 2] {
        fail_op("matrix_power", format!("takes square matrices, and was given {}", a.ty()));
    }
    let mut power = if n < 0 { inv(a) } else { a };
    let mut product: Option<Tensor> = None;
    let mut bits = n.unsigned_abs();
    while bits > 0 {
        if bits & 1 == 1 {
            product = Some(product.map_or(power, |product| product.matmul(power)));
        }
        bits >>= 1;
        if bits > 0 {
            power = power.matmul(power);
        }
    }
    product.unwrap_or_else(|| eye(shape[rank - 1], a.dtype()).broadcast_to(&shape))
}

/// `jnp.linalg.multi_dot`: the product of matrices in the order that takes fewest multiplications.
/// The first and the last may be vectors.
#[op(at_line)]
pub fn multi_dot(matrices: &[Tensor]) -> Tensor {
    if matrices.len() < 2 {
        fail_op(
            "multi_dot",
            format!("takes two tensors at least, and was given {}", matrices.len()),
        );
    }
    let count = matrices.len();
    let mut chain = matrices.to_vec();
    let (first, last) = (chain[0].rank() == 1, chain[count - 1].rank() == 1);
    if first {
        chain[0] = chain[0].expand_dims(0);
    }
    if last {
        chain[count - 1] = chain[count - 1].expand_dims(1);
    }
    if let Some(other) = chain.iter().map(|x| x.ty()).find(|ty| ty.rank() != 2) {
        fail_op("multi_dot", format!("takes matrices, and was given {other}"));
    }
    let product = chain_product(&chain);
    match (first, last) {
        (false, false) => product,
        (true, false) => product.squeeze(0),
        (false, true) => product.squeeze(1),
        (true, true) => product.reshape([]),
    }
}

/// The product of a chain, divided where it is cheapest.
fn chain_product(chain: &[Tensor]) -> Tensor {
    let count = chain.len();
    let mut sizes: Vec<usize> = chain.iter().map(|x| x.dim(0)).collect();
    sizes.push(chain[count - 1].dim(1));
    // Costs of the parts from i to j, and where they divide.
    let mut cost = vec![vec![0u128; count]; count];
    let mut cut = vec![vec![0usize; count]; count];
    for length in 1..count {
        for i in 0..count - length {
            let j = i + length;
            let products = |k: usize| {
                cost[i][k]
                    + cost[k + 1][j]
                    + sizes[i] as u128 * sizes[k + 1] as u128 * sizes[j + 1] as u128
            };
            let best = (i..j).min_by_key(|&k| products(k)).expect("a chain of two at least");
            (cost[i][j], cut[i][j]) = (products(best), best);
        }
    }
    fn product(chain: &[Tensor], cut: &[Vec<usize>], i: usize, j: usize) -> Tensor {
        if i == j {
            return chain[i];
        }
        let k = cut[i][j];
        product(chain, cut, i, k).matmul(product(chain, cut, k + 1, j))
    }
    product(chain, &cut, 0, count - 1)
}

/// `jnp.linalg.matrix_norm`, over the last two axes, which vanish.
#[op(at_line)]
pub fn matrix_norm(a: Tensor, order: MatrixNorm) -> Tensor {
    let a = a.to_inexact();
    if a.rank() < 2 {
        fail_op("matrix_norm", format!("takes matrices, and was given {}", a.ty()));
    }
    match order {
        MatrixNorm::Frobenius => a.squared_size().sum([-2, -1]).sqrt(),
        MatrixNorm::One => a.abs().sum(-2).max(-1),
        MatrixNorm::Infinity => a.abs().sum(-1).max(-1),
        MatrixNorm::LeastColumn => a.abs().sum(-2).min(-1),
        MatrixNorm::LeastRow => a.abs().sum(-1).min(-1),
        MatrixNorm::Spectral => svdvals(a).max(-1),
        MatrixNorm::LeastSingular => svdvals(a).min(-1),
        MatrixNorm::Nuclear => svdvals(a).sum(-1),
    }
}

/// `jnp.linalg.cond`: the condition numbers of matrices `a: [.., m, n]` of f32, f64, c64 or c128. The order is
/// JAX's `p`, `Spectral` by default: the ratio of the largest to the least singular value. Other orders
/// than `Spectral` and `LeastSingular` take square matrices.
///
/// # Errors
/// Ends the trace at other types, at empty matrices, and where the matrices must be square.
#[op(at_line)]
pub fn cond(a: Tensor, order: MatrixNorm) -> Tensor {
    let of_inverse = match order {
        MatrixNorm::Spectral | MatrixNorm::LeastSingular => {
            let s = svdvals(a);
            let (first, last) = (s.index_axis(-1, 0), s.index_axis(-1, -1));
            if order == MatrixNorm::Spectral {
                return first / last;
            }
            last / first
        }
        _ => {
            expect_square("cond", a);
            matrix_norm(a, order) * matrix_norm(inv(a), order)
        }
    };
    let known = !a.is_nan().any([-2, -1]);
    where_(of_inverse.is_nan() & known, f64::INFINITY, of_inverse)
}

/// `jnp.linalg.tensorinv`: the inverse of `a` for [`tensordot`](super::tensordot) over the first `ind` axes, whose sizes
/// multiply to the product of the others.
#[op]
pub fn tensorinv(a: Tensor, ind: usize) -> Tensor {
    let shape = a.shape();
    let (left, right) = shape.split_at(ind.min(shape.rank()));
    let (n, m) = (Shape::from(left).numel(), Shape::from(right).numel());
    if n != m || ind == 0 || ind >= shape.rank() {
        let problem = format!("takes axes whose products are equal; {} at {ind} are not", a.ty());
        fail_op("tensorinv", problem);
    }
    inv(a.reshape([n, m])).reshape([right, left].concat())
}

/// `jnp.linalg.tensorsolve`: the `x` with `tensordot(a, x, x.rank()) = b`; the first axes of `a` are
/// those of `b`.
#[op]
pub fn tensorsolve(a: Tensor, b: Tensor) -> Tensor {
    let (shape, right) = (a.shape(), b.shape());
    let count = right.numel();
    let fits = shape.rank() >= right.rank() && shape[..right.rank()] == right[..];
    if !fits || shape.numel() != count * count {
        let problem = format!("{} is no square system for {}", a.ty(), b.ty());
        fail_op("tensorsolve", problem);
    }
    let inner = &shape[right.rank()..];
    solve(a.reshape([count, count]), b.reshape([count])).reshape(inner)
}

impl Tensor {
    /// `jnp.linalg.vector_norm` along `axis`: [`Tensor::norm_along`]. Order 0 counts the elements that
    /// are not 0; negative infinity gives the least absolute value.
    #[op]
    pub fn vector_norm(self, order: f64, axis: isize) -> Tensor {
        axis_of("vector_norm", axis, self.rank());
        if order == 0.0 {
            let x = self.to_inexact();
            return x.ne(0.0).to(x.dtype()).sum(axis);
        }
        if order == f64::NEG_INFINITY {
            return self.to_inexact().abs().min(axis);
        }
        self.norm_along(order, axis)
    }
}

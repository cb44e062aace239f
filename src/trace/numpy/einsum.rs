//! [`einsum`], and the products that NumPy has names for.

use crate::trace::op::{Axes, DotDims, ReduceOp};
use crate::trace::ops::{axis_of, dot_general, full_like, iota, where_, zeros, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::{DType, Shape};

/// A tensor whose axes have letters.
struct Term {
    tensor: Tensor,
    letters: Vec<char>,
}

/// `jnp.einsum`: sums of products by Einstein's convention: `"ij,jk->ik"` multiplies matrices,
/// `"bij->bji"` transposes, `"ii"` is a trace, `"...i,i->..."` contracts after any axes. Without
/// `->` the result has the letters that occur once, in alphabetical order. Several operands are
/// contracted from left to right.
///
/// ```
/// use podracer::trace::numpy::einsum;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|(a, b): (Tensor, Tensor)| einsum("ij,j->i", &[a, b]));
/// let a = Array::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
/// assert_eq!(f.call((a, Array::from([1.0f32, 10.0])))?.to_vec::<f32>()?, [21.0, 43.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn einsum(formula: &str, operands: &[Tensor]) -> Tensor {
    let (mut terms, output) = parse(formula, operands);
    let mut all = terms.drain(..).map(diagonals);
    let mut result = all.next().expect("there is an operand");
    let mut rest: Vec<Term> = all.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let wanted = |letter: char| {
            output.contains(&letter) || rest.iter().any(|term| term.letters.contains(&letter))
        };
        result =
            product(summed(result, &|l| wanted(l) || next.letters.contains(&l)), next, &wanted);
    }
    let result = summed(result, &|letter| output.contains(&letter));
    let permutation: Vec<usize> = output
        .iter()
        .map(|letter| result.letters.iter().position(|l| l == letter).expect("checked"))
        .collect();
    result.tensor.transpose(&permutation)
}

/// Letters beyond Unicode's letters represent the axes of `...`.
fn hidden(i: usize) -> char {
    char::from_u32(0xE000 + i as u32).expect("a private character")
}

fn parse(formula: &str, operands: &[Tensor]) -> (Vec<Term>, Vec<char>) {
    let wrong = |problem: String| -> ! { fail_op("einsum", format!("`{formula}`: {problem}")) };
    let text: String = formula.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left.to_string(), Some(right.to_string())),
        None => (text.clone(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != operands.len() {
        wrong(format!("names {} operands, and was given {}", parts.len(), operands.len()));
    }
    let mut terms = Vec::new();
    let mut most = 0;
    for (part, &tensor) in parts.iter().zip(operands) {
        let named = part.replacen("...", "", 1);
        if let Some(odd) = named.chars().find(|c| !c.is_ascii_alphabetic()) {
            wrong(format!("`{odd}` in `{part}` is no letter"));
        }
        let rank = tensor.rank();
        let dots = part.contains("...");
        if named.len() > rank || (!dots && named.len() != rank) {
            wrong(format!("`{part}` has {} letters for {}", named.len(), tensor.ty()));
        }
        let count = rank - named.len();
        most = most.max(count);
        let mut letters = Vec::new();
        for (i, piece) in part.split("...").enumerate() {
            if i > 0 {
                // Aligned at the right, as in broadcasting.
                letters.extend((0..count).rev().map(hidden));
            }
            letters.extend(piece.chars());
        }
        terms.push(Term { tensor, letters });
    }
    let dots: Vec<char> = (0..most).rev().map(hidden).collect();
    let output: Vec<char> = match right {
        Some(right) => {
            let mut letters = Vec::new();
            for (i, piece) in right.split("...").enumerate() {
                if i > 0 {
                    letters.extend(&dots);
                }
                letters.extend(piece.chars());
            }
            letters
        }
        None => {
            let mut all: Vec<char> = terms.iter().flat_map(|term| term.letters.clone()).collect();
            all.sort_unstable();
            let once = |c: &char| all.iter().filter(|other| *other == c).count() == 1;
            let mut letters: Vec<char> =
                all.iter().copied().filter(|c| c.is_ascii_alphabetic() && once(c)).collect();
            letters.splice(0..0, dots);
            letters
        }
    };
    for (i, letter) in output.iter().enumerate() {
        if output[..i].contains(letter) {
            wrong(format!("`{letter}` stands twice in the result"));
        }
        if !terms.iter().any(|term| term.letters.contains(letter)) {
            wrong(format!("`{letter}` of the result is in no operand"));
        }
    }
    same_sizes(formula, &mut terms);
    (terms, output)
}

/// One letter has one size; size 1 is repeated where `...` represents it.
fn same_sizes(formula: &str, terms: &mut [Term]) {
    let mut sizes: Vec<(char, usize)> = Vec::new();
    for term in terms.iter() {
        let shape = term.tensor.shape();
        for (&letter, &size) in term.letters.iter().zip(shape.iter()) {
            match sizes.iter_mut().find(|(there, _)| *there == letter) {
                None => sizes.push((letter, size)),
                Some((_, there)) if *there == size => {}
                Some((_, there)) if !letter.is_ascii_alphabetic() && (*there == 1 || size == 1) => {
                    *there = (*there).max(size);
                }
                Some((_, there)) => {
                    let problem = format!("`{formula}`: `{letter}` has sizes {there} and {size}");
                    fail_op("einsum", problem)
                }
            }
        }
    }
    for term in terms {
        let shape: Vec<usize> = term
            .letters
            .iter()
            .map(|letter| sizes.iter().find(|(there, _)| there == letter).expect("collected").1)
            .collect();
        if term.tensor.shape()[..] != shape[..] {
            term.tensor = term.tensor.broadcast_to(shape);
        }
    }
}

/// A letter that occurs twice in an operand is its diagonal.
fn diagonals(term: Term) -> Term {
    let Term { mut tensor, mut letters } = term;
    while let Some((first, second)) = repeated(&letters) {
        let shape = tensor.shape();
        let [i, j] = [first, second].map(|axis| iota(&shape, axis as isize, DType::I32));
        let kept = where_(i.eq(j), tensor, zeros_like(tensor));
        tensor = kept.reduce(ReduceOp::Sum, [second].as_slice().into());
        letters.remove(second);
    }
    Term { tensor, letters }
}

fn repeated(letters: &[char]) -> Option<(usize, usize)> {
    let second = (0..letters.len()).find(|&i| letters[..i].contains(&letters[i]))?;
    let first = letters.iter().position(|letter| *letter == letters[second])?;
    Some((first, second))
}

/// Sums over the letters that are not `wanted`.
fn summed(term: Term, wanted: &dyn Fn(char) -> bool) -> Term {
    let axes: Axes = (0..term.letters.len()).filter(|&i| !wanted(term.letters[i])).collect();
    if axes.is_empty() {
        return term;
    }
    let letters = term.letters.iter().copied().filter(|&letter| wanted(letter)).collect();
    Term { tensor: term.tensor.reduce(ReduceOp::Sum, axes), letters }
}

fn product(lhs: Term, rhs: Term, wanted: &dyn Fn(char) -> bool) -> Term {
    let rhs = summed(rhs, &|letter| wanted(letter) || lhs.letters.contains(&letter));
    let mut dims = DotDims::default();
    let mut letters = Vec::new();
    for (i, &letter) in lhs.letters.iter().enumerate() {
        let Some(j) = rhs.letters.iter().position(|l| *l == letter) else { continue };
        if wanted(letter) {
            dims.lhs_batch.push(i);
            dims.rhs_batch.push(j);
            letters.push(letter);
        } else {
            dims.lhs_contract.push(i);
            dims.rhs_contract.push(j);
        }
    }
    let free = |own: &Term, other: &Term| -> Vec<char> {
        own.letters.iter().copied().filter(|letter| !other.letters.contains(letter)).collect()
    };
    letters.extend(free(&lhs, &rhs));
    letters.extend(free(&rhs, &lhs));
    Term { tensor: dot_general(lhs.tensor, rhs.tensor, dims), letters }
}

/// `jnp.tensordot`: contracts the last `axes` axes of `lhs` with the first of `rhs`.
#[op]
pub fn tensordot(lhs: Tensor, rhs: Tensor, axes: usize) -> Tensor {
    let rank = lhs.rank();
    if axes > rank || axes > rhs.rank() {
        let problem = format!("{} and {} do not have {axes} axes each", lhs.ty(), rhs.ty());
        fail_op("tensordot", problem);
    }
    let dims = DotDims {
        lhs_contract: (rank - axes..rank).collect(),
        rhs_contract: (0..axes).collect(),
        ..DotDims::default()
    };
    dot_general(lhs, rhs, dims)
}

impl Tensor {
    /// `jnp.inner`: contracts the last axes.
    #[op(at_line)]
    pub fn inner(self, rhs: Tensor) -> Tensor {
        let (left, right) = (self.rank(), rhs.rank());
        if left == 0 || right == 0 {
            fail_op("inner", format!("takes no scalars; was given {} and {}", self.ty(), rhs.ty()));
        }
        let dims = DotDims {
            lhs_contract: [left - 1].as_slice().into(),
            rhs_contract: [right - 1].as_slice().into(),
            ..DotDims::default()
        };
        dot_general(self, rhs, dims)
    }

    /// `jnp.vdot`: the sum of all products of elements, in their own type; complex elements of
    /// `self` are conjugated.
    #[op]
    pub fn vdot(self, rhs: Tensor) -> Tensor {
        self.ravel().conj().inner(rhs.ravel())
    }

    /// `jnp.cross` of vectors of three along the last axis.
    #[op]
    pub fn cross(self, rhs: Tensor) -> Tensor {
        if self.dim(-1) != 3 || rhs.dim(-1) != 3 {
            let problem =
                format!("takes vectors of three; was given {} and {}", self.ty(), rhs.ty());
            fail_op("cross", problem);
        }
        // (a1 b2 - a2 b1, a2 b0 - a0 b2, a0 b1 - a1 b0)
        self.roll(-1, -1) * rhs.roll(-2, -1) - self.roll(-2, -1) * rhs.roll(-1, -1)
    }

    /// `jnp.diagonal` of the last two axes, as a last axis. (`jnp.diagonal` takes the first two by
    /// default: [`Tensor::diagonal_of`] with its arguments.)
    #[op]
    pub fn diagonal(self) -> Tensor {
        self.diagonal_of(0, -2, -1)
    }

    /// `jnp.diagonal(x, offset, axis1, axis2)`, as a last axis. A positive `offset` is above the
    /// main diagonal.
    #[op]
    pub fn diagonal_of(self, offset: i32, axis1: isize, axis2: isize) -> Tensor {
        let ty = self.ty();
        let rank = ty.rank();
        if rank < 2 {
            fail_op("diagonal", format!("takes a matrix, and was given {ty}"));
        }
        let [first, second] = [axis1, axis2].map(|axis| axis_of("diagonal", axis, rank));
        if first == second {
            let problem = format!("takes two axes of {ty}, and was given {axis1} and {axis2}");
            fail_op("diagonal", problem);
        }
        let others = (0..rank).filter(|&axis| axis != first && axis != second);
        let permutation: Vec<usize> = others.chain([first, second]).collect();
        let x = self.transpose(&permutation);
        let (rows, columns) = (ty.shape[first], ty.shape[second]);
        let skip = offset.unsigned_abs() as usize;
        let (row, column) = if offset < 0 { (skip, 0) } else { (0, skip) };
        let size = rows.saturating_sub(row).min(columns.saturating_sub(column));
        let batch: Shape = x.shape()[..rank - 2].into();
        if size == 0 {
            return zeros(batch.with_axis(rank - 2, 0), ty.dtype);
        }
        let square = x.slice_axis(-2, row, row + size).slice_axis(-1, column, column + size);
        // One element more a row moves the diagonal into the first column.
        let flat = square.reshape(batch.with_axis(rank - 2, size * size));
        let mut high = vec![0; rank - 1];
        high[rank - 2] = size as i64;
        let filler = zeros([], ty.dtype);
        let wider = flat.pad_with(&vec![0; rank - 1], &high, &vec![0; rank - 1], filler);
        let table = batch.with_axis(rank - 2, size).with_axis(rank - 1, size + 1);
        wider.reshape(table).slice_axis(-1, 0, 1).squeeze(-1)
    }

    /// `jnp.trace`: the sum of the diagonal of the last two axes. Types as [`Tensor::sum`].
    #[op]
    pub fn trace(self) -> Tensor {
        self.diagonal().sum([-1])
    }

    /// `jnp.trace(x, offset, axis1, axis2)`: the sum of [`Tensor::diagonal_of`].
    #[op]
    pub fn trace_of(self, offset: i32, axis1: isize, axis2: isize) -> Tensor {
        self.diagonal_of(offset, axis1, axis2).sum([-1])
    }

    /// `jnp.diag` of a vector: the matrix with it as its diagonal.
    #[op]
    pub fn diag(self) -> Tensor {
        let size = self.dim(-1);
        if self.rank() != 1 {
            fail_op("diag", format!("takes a vector, and was given {}", self.ty()));
        }
        let rows = self.broadcast_in_dim([size, size], &[0]);
        let [i, j] = [0, 1].map(|axis| iota([size, size], axis, DType::I32));
        where_(i.eq(j), rows, zeros_like(rows))
    }

    /// `jnp.linalg.norm` along `axis`, which vanishes: the `p`-norm of each vector; 1, 2 and
    /// infinity are usual.
    #[op]
    pub fn norm_along(self, p: f64, axis: isize) -> Tensor {
        let x = self.to_inexact();
        if p == f64::INFINITY && x.dim(axis) > 0 {
            return x.abs().max([axis]);
        }
        if p == 1.0 || p == f64::INFINITY {
            return x.abs().sum([axis]);
        }
        if p == 2.0 {
            return x.squared_size().sum([axis]).sqrt();
        }
        if p <= 0.0 || p.is_nan() {
            fail_op("norm", format!("takes a positive order, and was given {p}"));
        }
        let sizes = x.abs();
        let sum = sizes.pow(full_like(sizes, p)).sum([axis]);
        sum.pow(full_like(sum, 1.0 / p))
    }
}

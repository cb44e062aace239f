//! Order: sorting by several keys, the largest, searching, counting.

use crate::trace::control::fori_loop;
use crate::trace::ops::{
    IndexMode, arange, axis_of, constant, full_like, where_, wide, zeros, zeros_like,
};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// `jnp.lexsort`: the indices (i32) that sort by the last of `keys`, where equal by the one before
/// it, and so on; equal elements keep their order. Keys are of one shape.
#[op(at_line)]
pub fn lexsort(keys: &[Tensor], axis: isize) -> Tensor {
    let Some((first, rest)) = keys.split_first() else { fail_op("lexsort", "there are no keys") };
    // Stable sorts, the least important key first.
    rest.iter().fold(first.argsort(axis), |order, key| {
        let next = key.take_along_axis_mode(order, axis, IndexMode::Clip).argsort(axis);
        order.take_along_axis_mode(next, axis, IndexMode::Clip)
    })
}

impl Tensor {
    /// `jnp.sort` with `descending=True`; NaN comes first.
    #[op]
    pub fn sort_descending(self, axis: isize) -> Tensor {
        self.sort(axis).flip(axis)
    }

    /// `jnp.argsort` with `descending=True`: the indices (i32); equal elements keep their order.
    #[op]
    pub fn argsort_descending(self, axis: isize) -> Tensor {
        // Sorted and read in reverse, equal elements keep their order.
        let last = self.dim(axis) as i32 - 1;
        last - self.flip(axis).argsort(axis).flip(axis)
    }

    /// `lax.top_k`: the `k` largest elements along the last axis, in descending order, and their
    /// indices (i32). Among equal elements the one with the lower index comes first; NaN is
    /// largest.
    #[op(at_line)]
    pub fn top_k(self, k: usize) -> (Tensor, Tensor) {
        let ty = self.ty();
        if ty.rank() == 0 || ty.shape[ty.rank() - 1] < k {
            fail_op("top_k", format!("{ty} does not have {k} elements along its last axis"));
        }
        let order = self.argsort_descending(-1).slice_axis(-1, 0, k);
        (self.take_along_axis_mode(order, -1, IndexMode::Clip), order)
    }

    /// `jnp.searchsorted`: for each of `values` the index (i32) in this sorted vector at which it
    /// would be inserted: before equal elements, or after them if `right`. NaN is greater than all
    /// numbers, and equal to itself. A binary search: `log2(n)` steps.
    #[op(at_line)]
    pub fn searchsorted(self, values: Tensor, right: bool) -> Tensor {
        let ty = self.ty();
        if ty.rank() != 1 || values.dtype() != ty.dtype {
            let problem = format!(
                "takes a vector and values of one type; was given {ty} and {}",
                values.ty()
            );
            fail_op("searchsorted", problem);
        }
        let size = ty.shape[0];
        let low = zeros(values.shape(), DType::I32);
        if size == 0 {
            return low;
        }
        let num_steps = usize::BITS - size.leading_zeros();
        let is_nan = ty.dtype.is_float().then(|| values.is_nan());
        let before = |x: Tensor| match (is_nan, right) {
            (None, true) => x.le(values),
            (None, false) => x.lt(values),
            (Some(is_nan), true) => x.le(values) | is_nan,
            (Some(is_nan), false) => x.lt(values) | (is_nan & !x.is_nan()),
        };
        let step = |_: Tensor, (low, high): (Tensor, Tensor)| {
            let middle = low + ((high - low) >> 1);
            let there = self.take_mode(middle, 0, IndexMode::Clip);
            // A search that is over stays where it is.
            let beyond = before(there) & low.lt(high);
            (where_(beyond, middle + 1, low), where_(beyond, high, middle))
        };
        fori_loop(0, num_steps as usize, step, (low, low + size as i32)).0
    }

    /// `jnp.isin`: true for each element that is one of `values`, a vector.
    #[op]
    pub fn isin(self, values: Tensor) -> Tensor {
        let rank = self.rank() as isize;
        self.expand_dims(rank).eq(values.ravel()).any([rank])
    }

    /// `jnp.nonzero` with `size`: the indices (i32) of the first `size` elements that are not zero
    /// (true), one tensor for each axis; where there are fewer, `fill`.
    #[op(at_line)]
    pub fn nonzero(self, size: usize, fill: i32) -> Vec<Tensor> {
        let ty = self.ty();
        let zero = zeros_like(self);
        let set = if ty.dtype == DType::Bool { self } else { self.ne(zero) };
        let flat = set.ravel();
        let count = ty.numel();
        // The indices of the nonzero elements come first, in order: a stable sort of flags.
        let order = (!flat).to(DType::I32).argsort(0);
        let order = match size <= count {
            true => order.slice_axis(0, 0, size),
            false => order.pad(&[0], &[(size - count) as i64], 0.0),
        };
        let there = arange(size, DType::I32).lt(flat.to(DType::I32).sum(..));
        let mut below = 1;
        let mut indices = Vec::new();
        for &axis in ty.shape.iter().rev() {
            let index = order.floor_div(below.max(1) as i32).modulo(axis.max(1) as i32);
            indices.push(where_(there, index, constant(fill)));
            below *= axis;
        }
        indices.reverse();
        indices
    }

    /// `jnp.bincount` with `length`: number of times that each of `0..length` occurs in this
    /// integer vector. Negative numbers count as 0; numbers past the end are not counted.
    #[op(at_line)]
    pub fn bincount(self, length: usize) -> Tensor {
        let x = if self.dtype() == DType::Bool { self.to(DType::I32) } else { self };
        let x = wide("bincount", x.ravel()).maximum(0);
        zeros([length], DType::I32).at(&[x]).add(1)
    }

    /// `jnp.quantile` with linear interpolation, along `axis`, which vanishes: the value below
    /// which the fraction `q` (0 to 1) of the elements lies. NaN if any element is NaN.
    #[op(at_line)]
    pub fn quantile(self, q: f64, axis: isize) -> Tensor {
        let ty = self.ty();
        let place = axis_of("quantile", axis, ty.rank());
        let size = ty.shape[place];
        if size == 0 || !(0.0..=1.0).contains(&q) {
            let problem =
                format!("takes at least one element and a part of 0 to 1; was given {ty} and {q}");
            fail_op("quantile", problem);
        }
        let sorted = self.to_inexact().sort(axis);
        let exact = q * (size - 1) as f64;
        let (low, high) = (exact.floor() as usize, exact.ceil() as usize);
        let weight = exact - low as f64;
        let at_low = sorted.index_axis(axis, low as isize);
        let at_high = sorted.index_axis(axis, high as isize);
        let value = at_low * (1.0 - weight) + at_high * weight;
        // NaN comes last, and makes the result NaN, as in NumPy.
        let last = sorted.index_axis(axis, -1);
        where_(last.eq(last), value, full_like(last, f64::NAN))
    }

    /// `jnp.median` along `axis`, which vanishes. NaN if there is one.
    #[op]
    pub fn median(self, axis: isize) -> Tensor {
        self.quantile(0.5, axis)
    }
}

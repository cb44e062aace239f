//! Bits of integers.

use super::logic::unsigned_of;
use crate::trace::literal::Literal;
use crate::trace::ops::{axis_of, constant, ones_like, where_};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// Order of bits in the bytes of [`Tensor::packbits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BitOrder {
    /// The first bit is the highest: NumPy's default.
    #[default]
    Big,
    /// The first bit is the lowest.
    Little,
}

impl BitOrder {
    /// Distance of each of eight bits from the lowest.
    fn shifts(self) -> [u8; 8] {
        match self {
            BitOrder::Big => [7, 6, 5, 4, 3, 2, 1, 0],
            BitOrder::Little => [0, 1, 2, 3, 4, 5, 6, 7],
        }
    }
}

/// The bits of integers, as unsigned numbers of the same size.
#[track_caller]
fn bits_of(op: &str, x: Tensor) -> Tensor {
    if !x.dtype().is_int() {
        fail_op(op, format!("takes integers, and was given {}", x.ty()));
    }
    if x.dtype().is_unsigned() { x } else { x.bitcast(unsigned_of(x.dtype())) }
}

/// Number of ones of unsigned numbers, in their type.
#[track_caller]
fn count_ones(x: Tensor) -> Tensor {
    let width = 8 * x.dtype().size() as u32;
    let ones = u64::MAX >> (64 - width);
    // Sums of neighboring bits, pairs and nibbles; then of bytes, at the top of a product.
    let x = x - ((x >> 1) & (ones / 3));
    let x = (x & (ones / 15 * 3)) + ((x >> 2) & (ones / 15 * 3));
    let x = (x + (x >> 4)) & (ones / 255 * 15);
    (x * (ones / 255)) >> (width - 8)
}

impl Tensor {
    /// `lax.population_count`: number of bits that are set, in the type of the tensor.
    #[op(at_line)]
    pub fn population_count(self) -> Tensor {
        let dtype = self.dtype();
        count_ones(bits_of("population_count", self)).to(dtype)
    }

    /// `jnp.bitwise_count`: number of bits that are set in the absolute value, as u8.
    #[op(at_line)]
    pub fn bitwise_count(self) -> Tensor {
        let bits = bits_of("bitwise_count", self);
        let negative = self.lt(0);
        let size = match self.dtype().is_unsigned() {
            true => bits,
            false => where_(negative, !bits + 1, bits),
        };
        count_ones(size).to(DType::U8)
    }

    /// `lax.clz`: number of zeros above the highest bit that is set, in the type of the tensor.
    #[op(at_line)]
    pub fn clz(self) -> Tensor {
        let dtype = self.dtype();
        let mut filled = bits_of("clz", self);
        let width = 8 * dtype.size();
        let mut shift = 1;
        while shift < width {
            filled = filled | (filled >> shift);
            shift *= 2;
        }
        count_ones(!filled).to(dtype)
    }

    /// `jnp.packbits` along `axis`: eight elements (zero or not) a byte, u8; zeros fill the last one.
    #[op(at_line)]
    pub fn packbits(self, axis: isize, order: BitOrder) -> Tensor {
        let shape = self.shape();
        let place = axis_of("packbits", axis, shape.rank());
        if self.dtype().is_float() {
            fail_op("packbits", format!("takes integers or bools; was given {}", self.ty()));
        }
        let set = if self.dtype() == DType::Bool { self } else { self.ne(0) };
        let bytes = shape[place].div_ceil(8);
        let (low, mut high) = (vec![0; shape.rank()], vec![0; shape.rank()]);
        high[place] = (8 * bytes - shape[place]) as i64;
        let padded = set.to(DType::U8).pad(&low, &high, 0.0).moveaxis(place as isize, -1);
        let outer = padded.shape();
        let split: Vec<usize> =
            outer[..outer.rank() - 1].iter().copied().chain([bytes, 8]).collect();
        let shifts = constant(Literal::new([8], &order.shifts()));
        let eights = padded.reshape(split) << shifts;
        // The bits of a byte are disjoint.
        eights.reduce_or(-1).moveaxis(-1, place as isize)
    }

    /// `jnp.unpackbits` along `axis`: the eight bits of each byte (u8), 0 or 1.
    #[op(at_line)]
    pub fn unpackbits(self, axis: isize, order: BitOrder) -> Tensor {
        let shape = self.shape();
        let place = axis_of("unpackbits", axis, shape.rank());
        if self.dtype() != DType::U8 {
            fail_op("unpackbits", format!("takes u8, and was given {}", self.ty()));
        }
        let shifts = constant(Literal::new([8], &order.shifts()));
        let bits = self.moveaxis(place as isize, -1).expand_dims(-1) >> shifts;
        let bits = bits & ones_like(bits);
        bits.flatten_from(-2).moveaxis(-1, place as isize)
    }
}

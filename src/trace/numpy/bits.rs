//! Bits of integers.

use crate::trace::literal::Literal;
use crate::trace::ops::{axis_of, constant, ones_like};
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

impl Tensor {
    /// `jnp.bitwise_count`: number of bits that are set in the absolute value, as u8.
    #[op(at_line)]
    pub fn bitwise_count(self) -> Tensor {
        let size = if self.dtype().is_unsigned() { self } else { self.abs() };
        size.population_count().to(DType::U8)
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

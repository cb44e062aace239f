//! The random number generator: one private function per shape, called where it is needed.

use std::fmt;

use super::mlir::{List, Ty, Value};
use super::stablehlo::{Emitter, Values};
use crate::trace::literal::Literal;
use crate::trace::op::BinaryOp;
use crate::trace::types::{DType, Shape, TensorType};

/// By how many bits the second word turns in each round; the two rows alternate.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// `@threefry2x32_4x8`.
struct Name<'a>(&'a Shape);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("@threefry2x32")?;
        for (i, dim) in self.0.iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { '_' } else { 'x' })?;
        }
        Ok(())
    }
}

impl Emitter<'_> {
    pub(super) fn threefry(&mut self, x: &[Value], ty: &TensorType) -> Values {
        if !self.threefry_shapes.contains(&ty.shape) {
            self.threefry_shapes.push(ty.shape.clone());
        }
        let results = self.begin(2);
        self.write(format_args!(
            "func.call {}({}) : ({2}, {2}, {2}, {2}) -> ({2}, {2})",
            Name(&ty.shape),
            List(x),
            Ty(ty)
        ));
        self.end();
        results
    }

    /// The functions that were called.
    pub(super) fn threefry_functions(&mut self) {
        for shape in std::mem::take(&mut self.threefry_shapes) {
            let ty = TensorType::new(DType::U32, shape);
            let [k0, k1, x0, x1] = std::array::from_fn(|_| self.new_argument());
            self.write(format_args!(
                "  func.func private {}({k0}: {1}, {k1}: {1}, {x0}: {1}, {x1}: {1}) -> ({1}, {1}) \
                 {{\n",
                Name(&ty.shape),
                Ty(&ty)
            ));
            self.open();
            let (a, b) = self.rounds([k0, k1], [x0, x1], &ty);
            self.margin();
            self.write(format_args!("return {a}, {b} : {0}, {0}\n", Ty(&ty)));
            self.close();
            self.out.push_str("  }\n");
        }
    }

    fn rounds(&mut self, key: [Value; 2], x: [Value; 2], ty: &TensorType) -> (Value, Value) {
        let number = |n: u32| Literal::splat(ty.shape.clone(), n);
        let parity = self.constant(&number(0x1BD1_1BDA));
        let both = self.binary(BinaryOp::Xor, key[0], key[1], ty);
        let third = self.binary(BinaryOp::Xor, both, parity, ty);
        let keys = [key[0], key[1], third];
        let mut a = self.binary(BinaryOp::Add, x[0], keys[0], ty);
        let mut b = self.binary(BinaryOp::Add, x[1], keys[1], ty);
        for group in 0..5 {
            for bits in ROTATIONS[group % 2] {
                a = self.binary(BinaryOp::Add, a, b, ty);
                let (left, right) =
                    (self.constant(&number(bits)), self.constant(&number(32 - bits)));
                let high = self.binary(BinaryOp::ShiftLeft, b, left, ty);
                let low = self.binary(BinaryOp::ShiftRightLogical, b, right, ty);
                b = self.binary(BinaryOp::Or, high, low, ty);
                b = self.binary(BinaryOp::Xor, a, b, ty);
            }
            a = self.binary(BinaryOp::Add, a, keys[(group + 1) % 3], ty);
            let count = self.constant(&number(group as u32 + 1));
            let salted = self.binary(BinaryOp::Add, keys[(group + 2) % 3], count, ty);
            b = self.binary(BinaryOp::Add, b, salted, ty);
        }
        (a, b)
    }
}

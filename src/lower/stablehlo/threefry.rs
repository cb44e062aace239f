//! The random number generator: our native function for few elements, as keys are; else a private
//! function per shape, called where it is needed.
//!
//! The native function takes no time to compile, and keeps loops short that draw at every
//! iteration: DQN on CartPole needs 24% less processor time with it than with a loop of the
//! compiler's.
//!
//! If the native function is not available, there are two forms of the 20 rounds. Measured on the
//! CPU plugin (two busy cores; 40 chained calls, or one call of a million elements), written out
//! against a loop of 5 times 4 rounds:
//!
//! | elements  | compile, per call | run, per call    |
//! |-----------|-------------------|------------------|
//! | 2         | 133 ms, 64 ms     | 2.9 us, 3.2 us   |
//! | 1,000     | 83 ms, 18 ms      | 9 us, 13 us      |
//! | 1,000,000 | 0.20 s, 0.33 s    | 1.0 ms, 11.5 ms  |
//!
//! So few elements take the loop, as keys do; many are written out, as the compiler then fuses all
//! rounds with what uses the bits. On other platforms a loop would cost a launch for every
//! iteration.

use std::fmt;

use super::emitter::{Emitter, Slot, Values};
use super::mlir::{List, Ty, Value};
use crate::trace::literal::Literal;
use crate::trace::op::{BinaryOp, CompareOp};
use crate::trace::types::{DType, Shape, TensorType};

/// Number of bits by which the second word rotates in each round; the two rows alternate.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// Up to this many elements take the native function or the loop, on CPU.
const MAX_NATIVE_ELEMENTS: usize = 1024;

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
        if self.options.native_calls && ty.numel() <= MAX_NATIVE_ELEMENTS {
            return self.bits(x, ty);
        }
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
            let cheap_loops = self.options.platform.facts().loops_cost_no_launch;
            let rolled = cheap_loops && ty.numel() <= MAX_NATIVE_ELEMENTS;
            let rounds = if rolled { Emitter::looped } else { Emitter::written_out };
            let [a, b] = rounds(self, [k0, k1], [x0, x1], &ty);
            self.margin();
            self.write(format_args!("return {a}, {b} : {0}, {0}\n", Ty(&ty)));
            self.close();
            self.out.push_str("  }\n");
        }
    }

    /// The words after the key is first added, and the three words of the key.
    fn injected(
        &mut self,
        key: [Value; 2],
        x: [Value; 2],
        ty: &TensorType,
    ) -> ([Value; 2], [Value; 3]) {
        let parity = self.constant(&number(ty, 0x1BD1_1BDA));
        let both = self.binary(BinaryOp::Xor, key[0], key[1], ty);
        let third = self.binary(BinaryOp::Xor, both, parity, ty);
        let a = self.binary(BinaryOp::Add, x[0], key[0], ty);
        let b = self.binary(BinaryOp::Add, x[1], key[1], ty);
        ([a, b], [key[0], key[1], third])
    }

    /// One round: the second word rotates left by `left` bits, which is right by `right`.
    fn round(&mut self, x: [Value; 2], left: Value, right: Value, ty: &TensorType) -> [Value; 2] {
        let a = self.binary(BinaryOp::Add, x[0], x[1], ty);
        let high = self.binary(BinaryOp::ShiftLeft, x[1], left, ty);
        let low = self.binary(BinaryOp::ShiftRightLogical, x[1], right, ty);
        let turned = self.binary(BinaryOp::Or, high, low, ty);
        [a, self.binary(BinaryOp::Xor, a, turned, ty)]
    }

    /// Key injection after every four rounds: adds two words of the key, and a count.
    fn inject(
        &mut self,
        x: [Value; 2],
        key: [Value; 2],
        count: Value,
        ty: &TensorType,
    ) -> [Value; 2] {
        let a = self.binary(BinaryOp::Add, x[0], key[0], ty);
        let salted = self.binary(BinaryOp::Add, key[1], count, ty);
        [a, self.binary(BinaryOp::Add, x[1], salted, ty)]
    }

    fn written_out(&mut self, key: [Value; 2], x: [Value; 2], ty: &TensorType) -> [Value; 2] {
        let (mut x, key) = self.injected(key, x, ty);
        for group in 0..5 {
            for bits in ROTATIONS[group % 2] {
                let left = self.constant(&number(ty, bits));
                let right = self.constant(&number(ty, 32 - bits));
                x = self.round(x, left, right, ty);
            }
            let words = [key[(group + 1) % 3], key[(group + 2) % 3]];
            let count = self.constant(&number(ty, group as u32 + 1));
            x = self.inject(x, words, count, ty);
        }
        x
    }

    fn looped(&mut self, key: [Value; 2], x: [Value; 2], ty: &TensorType) -> [Value; 2] {
        let (x, key) = self.injected(key, x, ty);
        let rotations = ROTATIONS.map(|bits| self.constant(&Literal::from(bits)));
        let scalar = TensorType::scalar(DType::U32);
        let row = TensorType::new(DType::U32, [4]);
        let first = self.constant(&Literal::scalar(1u32));
        let initial = [first, x[0], x[1], key[1], key[2], key[0], rotations[0], rotations[1]];
        let types = [&scalar, ty, ty, ty, ty, ty, &row, &row];
        let (results, state) = self.open_while(&initial, &types);
        let [group, a, b, k0, k1, k2, now, then] = std::array::from_fn(|i| state[i]);
        let last = self.constant(&Literal::scalar(5u32));
        let more = self.compare(CompareOp::Le, group, last, &scalar);
        self.begin_while_body(Slot::Value(more));
        let width = self.constant(&Literal::scalar(32u32));
        let mut x = [a, b];
        for i in 0..4 {
            let left = self.fixed_row(now, &row, i);
            let right = self.binary(BinaryOp::Sub, width, left, &scalar);
            let left = self.broadcast(left, &scalar, &[], ty);
            let right = self.broadcast(right, &scalar, &[], ty);
            x = self.round(x, left, right, ty);
        }
        let count = self.broadcast(group, &scalar, &[], ty);
        let [a, b] = self.inject(x, [k0, k1], count, ty);
        let one = self.constant(&Literal::scalar(1u32));
        let group = self.binary(BinaryOp::Add, group, one, &scalar);
        let next = [group, a, b, k1, k2, k0, then, now].map(Slot::Value);
        self.close_while(&next, &types);
        [results[1], results[2]]
    }
}

/// The word `n` in every element.
fn number(ty: &TensorType, n: u32) -> Literal {
    Literal::splat(ty.shape.clone(), n)
}

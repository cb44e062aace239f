//! Steps that move elements about.

use podracer::Shape;
use podracer::trace::Var;
use podracer::trace::op::{Amounts, Axes, Op};

use crate::recipes::cook::Cook;
use crate::recipes::recipe::Salt;

impl Cook {
    pub(super) fn shape_step(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let x = self.pick(p[0], |_, _| true)?;
        let shape = self.shape(x);
        let rank = shape.rank();
        let made = match p[1] % 8 {
            0 => self.broadcast(x, salt),
            1 => {
                let new = reshaped(&shape, salt);
                self.moved(Op::Reshape { shape: new }, &[x])
            }
            2 => {
                let mut permutation: Axes = (0..rank).collect();
                for i in (1..rank).rev() {
                    permutation.swap(i, salt.below(i + 1));
                }
                self.moved(Op::Transpose { permutation }, &[x])
            }
            3 => {
                let axes: Axes = (0..rank).filter(|_| salt.once_in(2)).collect();
                self.moved(Op::Reverse { axes }, &[x])
            }
            4 if rank > 0 => self.concat(x, p, salt),
            5 => self.pad(x, p, salt),
            _ => {
                let start: Axes =
                    shape.iter().map(|&n| salt.below(n + 1).min(salt.below(3))).collect();
                let start: Axes = start.iter().zip(shape.iter()).map(|(&s, &n)| s.min(n)).collect();
                let limit: Axes = start
                    .iter()
                    .zip(shape.iter())
                    .map(|(&s, &n)| n - salt.below(n - s + 1).min(1))
                    .collect();
                let stride: Axes = (0..rank).map(|_| 1 + salt.below(2)).collect();
                self.moved(Op::Slice { start, limit, stride }, &[x])
            }
        };
        made.map(drop)
    }

    /// `x` with a new axis, or along an axis of size 1.
    fn broadcast(&mut self, x: Var, salt: &mut Salt) -> Option<Var> {
        let shape = self.shape(x);
        let mut axes: Axes = (0..shape.rank()).collect();
        let mut sizes: Vec<usize> = shape.to_vec();
        for size in &mut sizes {
            if *size == 1 && salt.once_in(2) {
                *size = self.sizes[salt.below(3)] as usize;
            }
        }
        if shape.rank() < 3 {
            let at = salt.below(shape.rank() + 1);
            sizes.insert(at, self.sizes[salt.below(3)] as usize);
            axes.iter_mut().filter(|axis| **axis >= at).for_each(|axis| *axis += 1);
        }
        self.moved(Op::Broadcast { shape: Shape::from(sizes), axes }, &[x])
    }

    fn concat(&mut self, x: Var, p: [u8; 4], salt: &mut Salt) -> Option<Var> {
        let ty = self.ty(x);
        let axis = salt.below(ty.rank());
        let fits = |c: &Cook, var: Var| {
            let other = c.program.ty(var);
            other.dtype == ty.dtype
                && other.rank() == ty.rank()
                && other.shape.without_axis(axis) == ty.shape.without_axis(axis)
        };
        let mut operands = vec![x];
        let mut info = self.info(x);
        for &choice in &p[2..2 + salt.below(3)] {
            let other = self.pick(choice, fits)?;
            info = info.or(self.info(other));
            operands.push(other);
        }
        self.op(Op::Concat { axis }, &operands, info)
    }

    fn pad(&mut self, x: Var, p: [u8; 4], salt: &mut Salt) -> Option<Var> {
        let ty = self.ty(x);
        let scalar = podracer::TensorType::scalar(ty.dtype);
        let value = match self.pick_type(p[2], &scalar) {
            Some(value) => value,
            None => self.noise(scalar, salt),
        };
        let mut amounts = || -> Amounts { (0..ty.rank()).map(|_| salt.within(-1, 2)).collect() };
        let (low, high) = (amounts(), amounts());
        let interior: Axes = (0..ty.rank()).map(|_| salt.below(4) / 2).collect();
        let info = self.info(x).or(self.info(value));
        self.op(Op::Pad { low, high, interior }, &[x, value], info)
    }
}

/// Another shape of as many elements.
fn reshaped(shape: &Shape, salt: &mut Salt) -> Shape {
    let mut sizes: Vec<usize> = shape.to_vec();
    match salt.below(4) {
        0 => sizes = vec![shape.numel()],
        1 if sizes.len() < 3 => sizes.insert(salt.below(sizes.len() + 1), 1),
        2 if sizes.len() > 1 => {
            let at = salt.below(sizes.len() - 1);
            let size = sizes.remove(at);
            sizes[at] *= size;
        }
        _ => {
            let even = sizes.iter().position(|&n| n > 1 && n % 2 == 0);
            match even {
                Some(at) if sizes.len() < 3 => {
                    sizes[at] /= 2;
                    sizes.insert(at, 2);
                }
                _ => sizes.retain(|&n| n != 1),
            }
        }
    }
    Shape::from(sizes)
}

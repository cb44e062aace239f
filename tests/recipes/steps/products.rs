//! Products and convolutions.

use podracer::trace::Var;
use podracer::trace::op::{Axes, ConvDims, DotDims, Op, Precision};
use podracer::{DType, Shape, TensorType};

use crate::recipes::cook::{Cook, Info};
use crate::recipes::recipe::Salt;

impl Cook {
    pub(super) fn dot(&mut self, p: [u8; 4]) -> Option<()> {
        let numbers = |c: &Cook, var: Var| c.dtype(var) != DType::Bool && c.is_number(var);
        let x = self.pick(p[0], numbers)?;
        let dtype = self.dtype(x);
        let y = self.pick(p[1], |c, var| numbers(c, var) && c.dtype(var) == dtype)?;
        let (a, b) = (self.shape(x), self.shape(y));
        // Axes of equal sizes are contracted or paired, as the salt says.
        let mut salt = Salt(u64::from(p[2]) << 8 | u64::from(p[3]));
        let precision = Precision::ALL[salt.below(3)];
        let mut dims = DotDims { precision, ..DotDims::default() };
        let mut taken = Vec::new();
        let mut n = 1;
        for i in 0..a.rank() {
            let partner =
                (0..b.rank()).filter(|j| a[i] == b[*j] && !taken.contains(j)).collect::<Vec<_>>();
            let Some(&j) = partner.get(salt.below(partner.len())) else { continue };
            match salt.below(4) {
                0 => {
                    dims.lhs_batch.push(i);
                    dims.rhs_batch.push(j);
                }
                1 | 2 => {
                    dims.lhs_contract.push(i);
                    dims.rhs_contract.push(j);
                    n *= a[i];
                }
                _ => continue,
            }
            taken.push(j);
        }
        self.product(Op::Dot(dims), x, y, n as f64)
    }

    /// Whether the value is an integer, or a float that is finite.
    fn is_number(&self, var: Var) -> bool {
        !self.dtype(var).is_float() || self.is_finite(var)
    }

    /// A sum of `n` products of elements of `x` and `y`.
    fn product(&mut self, op: Op, x: Var, y: Var, n: f64) -> Option<()> {
        if !self.dtype(x).is_float() {
            let info = Info::of(self.dtype(x));
            return self.op(op, &[x, y], info).map(drop);
        }
        let (a, b) = (self.info(x), self.info(y));
        let most = n * a.size() * b.size();
        let error = n * (a.size() * b.error + b.size() * a.error);
        self.rounding(op, &[x, y], (-most, most), error, n + 2.0).map(drop)
    }

    pub(super) fn conv(&mut self, p: [u8; 4], salt: &mut Salt) -> Option<()> {
        let x = self.pick(p[0], |c, var| {
            let ty = c.program.ty(var);
            ty.rank() == 3 && ty.dtype != DType::Bool && c.is_number(var)
        })?;
        let shape = self.shape(x);
        let mut spec = || {
            let mut spec: Axes = (0..3).collect();
            for i in (1..3).rev() {
                spec.swap(i, salt.below(i + 1));
            }
            spec
        };
        let (lhs_spec, rhs_spec, out_spec) = (spec(), spec(), spec());
        let (batch, features) = (shape[lhs_spec[0]], shape[lhs_spec[1]]);
        let groups =
            |n: usize, salt: &mut Salt| if n == 2 || n == 4 { 1 + salt.below(2) } else { 1 };
        let feature_groups = groups(features, salt);
        let batch_groups = if feature_groups == 1 { groups(batch, salt) } else { 1 };
        let mut kernel = [0; 3];
        kernel[rhs_spec[0]] = (1 + salt.below(2)) * feature_groups * batch_groups;
        kernel[rhs_spec[1]] = features / feature_groups;
        kernel[rhs_spec[2]] = 1 + salt.below(3);
        let ty = TensorType::new(self.dtype(x), kernel);
        // A kernel from the Program, or a constant with something of the Program in it.
        let y = match self.pick_type(p[1], &ty) {
            Some(y) if self.is_number(y) => y,
            _ => {
                let noise = self.noise(ty.clone(), salt);
                let scalar = TensorType::scalar(ty.dtype);
                match self.pick(p[2], |c, var| *c.program.ty(var) == scalar && c.is_finite(var)) {
                    Some(scalar) if ty.dtype.is_float() => {
                        let shape = Shape::from(kernel);
                        let op = Op::Broadcast { shape, axes: Axes::new() };
                        let factor = self.moved(op, &[scalar])?;
                        self.binary(podracer::trace::op::BinaryOp::Mul, noise, factor)?
                    }
                    _ => noise,
                }
            }
        };
        let n = kernel[rhs_spec[1]] * kernel[rhs_spec[2]];
        let conv = Op::Conv(ConvDims {
            lhs_spec,
            rhs_spec,
            out_spec,
            strides: [1 + salt.below(2)].as_slice().into(),
            padding: [(salt.within(-1, 2), salt.within(-1, 2))].as_slice().into(),
            lhs_dilation: [1 + salt.below(2)].as_slice().into(),
            rhs_dilation: [1 + salt.below(2)].as_slice().into(),
            feature_groups,
            batch_groups,
            precision: Precision::ALL[salt.below(3)],
        });
        self.product(conv, x, y, n as f64)
    }
}

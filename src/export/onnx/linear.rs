//! Products and convolutions.

use super::proto::AttributeProto;
use super::{Emitter, Value};
use crate::error::Result;
use crate::trace::op::{ConvDims, DotDims};
use crate::trace::program::Equation;
use crate::trace::types::Shape;

impl Emitter<'_> {
    /// Writes a product as `MatMul`, which multiplies matrices in the last two axes.
    pub(super) fn dot(&mut self, equation: &Equation, dims: &DotDims) -> Result<()> {
        let [left, right] = [equation.inputs[0], equation.inputs[1]];
        let [lhs, rhs] = [left, right].map(|var| self.program.ty(var).shape.clone());
        let (mut x, mut y) = (self.exact(left)?, self.exact(right)?);
        let plain = dims.lhs_batch.is_empty()
            && lhs.rank() >= 2
            && dims.lhs_contract[..] == [lhs.rank() - 1]
            && rhs.rank() == 2
            && dims.rhs_contract[..] == [0];
        if plain {
            let name = self.node("MatMul", &[&x, &y], vec![]);
            self.define_exact(equation, name);
            return Ok(());
        }
        let free = |shape: &Shape, contract: &[usize], batch: &[usize]| -> Vec<usize> {
            let used = |axis: &usize| contract.contains(axis) || batch.contains(axis);
            (0..shape.rank()).filter(|axis| !used(axis)).collect()
        };
        let lhs_free = free(&lhs, &dims.lhs_contract, &dims.lhs_batch);
        let rhs_free = free(&rhs, &dims.rhs_contract, &dims.rhs_batch);
        let merged = |shape: &Shape, axes: &[usize]| -> usize {
            axes.iter().map(|&axis| shape[axis]).product()
        };
        let batch = dims.lhs_batch.iter().map(|&axis| lhs[axis]);
        let matrices = |rows: usize, columns: usize| -> Shape {
            batch.clone().chain([rows, columns]).collect::<Vec<_>>().into()
        };
        let contracted = merged(&lhs, &dims.lhs_contract);

        let order = [&dims.lhs_batch[..], &lhs_free, &dims.lhs_contract[..]].concat();
        let to = matrices(merged(&lhs, &lhs_free), contracted);
        x = self.arranged(x, &lhs, &order, &to)?;
        let order = [&dims.rhs_batch[..], &dims.rhs_contract[..], &rhs_free].concat();
        let to = matrices(contracted, merged(&rhs, &rhs_free));
        y = self.arranged(y, &rhs, &order, &to)?;

        let name = self.node("MatMul", &[&x, &y], vec![]);
        let product = matrices(merged(&lhs, &lhs_free), merged(&rhs, &rhs_free));
        let result = self.program.ty(equation.outputs[0]).shape.clone();
        let name = self.reshaped(&Value { name, shape: product }, &result)?;
        self.define_exact(equation, name);
        Ok(())
    }

    /// Transposes a value of this shape to the order of its axes, then reshapes it.
    fn arranged(
        &mut self,
        name: String,
        shape: &Shape,
        order: &[usize],
        to: &Shape,
    ) -> Result<String> {
        let name = self.transposed(name, order);
        let shape: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        self.reshaped(&Value { name, shape: shape.into() }, to)
    }

    /// Writes a convolution as `Conv`, whose axes are batch, features and space.
    pub(super) fn conv(&mut self, equation: &Equation, dims: &ConvDims) -> Result<()> {
        if dims.lhs_dilation.iter().any(|&n| n != 1) || dims.batch_groups != 1 {
            return Err(self.refused("a transposed or batch-grouped `conv` has no form there"));
        }
        if dims.padding.iter().any(|&(low, high)| low < 0 || high < 0) {
            return Err(self.refused("a `conv` with negative padding has no form there"));
        }
        let kernel = self.program.ty(equation.inputs[1]).shape.clone();
        let (x, w) = (self.exact(equation.inputs[0])?, self.exact(equation.inputs[1])?);
        let x = self.transposed(x, &dims.lhs_spec);
        let w = self.transposed(w, &dims.rhs_spec);
        let numbers = |sizes: &[usize]| sizes.iter().map(|&n| n as i64).collect::<Vec<i64>>();
        let window: Vec<i64> = dims.rhs_spec[2..].iter().map(|&axis| kernel[axis] as i64).collect();
        let (low, high): (Vec<i64>, Vec<i64>) = dims.padding.iter().copied().unzip();
        let attributes = vec![
            AttributeProto::ints("dilations", numbers(&dims.rhs_dilation)),
            AttributeProto::int("group", dims.feature_groups as i64),
            AttributeProto::ints("kernel_shape", window),
            AttributeProto::ints("pads", [low, high].concat()),
            AttributeProto::ints("strides", numbers(&dims.strides)),
        ];
        let y = self.node("Conv", &[&x, &w], attributes);
        // Axis `out_spec[i]` of the result is axis `i` there.
        let mut order = vec![0; dims.out_spec.len()];
        for (i, &axis) in dims.out_spec.iter().enumerate() {
            order[axis] = i;
        }
        let name = self.transposed(y, &order);
        self.define_exact(equation, name);
        Ok(())
    }
}

//! Layers of a Program: a convolution with what one call computes beside it while the tensors are in
//! the cache: the conversion of images of bytes before it, bias and ReLU after it.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{Graph, Role};
use crate::lower::custom_calls::onednn::{Algorithm, Epilogue, Kind, Problem, by_onednn};
use crate::trace::op::{BinaryOp, CompareOp, ConvDims, Op};
use crate::trace::program::{Equation, Program, Var};
use crate::trace::types::DType;

/// A convolution, perhaps of bytes, and perhaps with a bias and a ReLU.
#[derive(Clone, Copy)]
pub struct ConvLayer<'a> {
    pub dims: &'a ConvDims,
    pub image: Var,
    /// The factor of the image's elements, if they are bytes.
    pub byte_scale: Option<f32>,
    /// The kernel; for its gradient, the gradient of the result.
    pub other: Var,
    pub bias: Option<Var>,
    pub result: Var,
    pub epilogue: Epilogue,
}

impl ConvLayer<'_> {
    pub fn operands(&self) -> SmallVec<[Var; 3]> {
        [self.image, self.other].into_iter().chain(self.bias).collect()
    }
}

/// Finds the layers of convolutions that oneDNN computes with this number of threads.
pub(super) fn add_roles<'a>(
    program: &'a Program,
    threads: usize,
    roles: &mut HashMap<Var, Role<'a>>,
) {
    if !program.equations.iter().any(|equation| matches!(equation.op, Op::Conv(_))) {
        return;
    }
    let graph = Graph::of(program);
    for equation in &program.equations {
        let Op::Conv(dims) = &equation.op else { continue };
        let ty = |i: usize| program.ty(equation.inputs[i]);
        let Some(problem) = by_onednn(dims, ty(0), ty(1), threads) else { continue };
        let layer = graph.layer(equation, dims, &problem);
        if let Some((sum, bias)) = graph.sum_with_bias(equation, dims, &problem) {
            graph.add_layer(equation, ConvLayer { bias: Some(bias), ..layer }, sum, roles);
        } else if layer.byte_scale.is_some() {
            roles.insert(layer.result, Role::Result(layer));
        }
    }
}

impl<'a> Graph<'a> {
    /// A convolution alone, of bytes if its image is one of bytes.
    fn layer(&self, conv: &'a Equation, dims: &'a ConvDims, problem: &Problem) -> ConvLayer<'a> {
        let takes_bytes =
            problem.algorithm == Algorithm::Winograd && problem.kind != Kind::BackwardData;
        let bytes = takes_bytes.then(|| self.bytes(conv.inputs[0])).flatten();
        ConvLayer {
            dims,
            image: bytes.map_or(conv.inputs[0], |(image, _)| image),
            byte_scale: bytes.map(|(_, scale)| scale),
            other: conv.inputs[1],
            bias: None,
            result: conv.outputs[0],
            epilogue: Epilogue::None,
        }
    }

    /// The bytes that an f32 tensor is made of, and the number that each is multiplied with.
    fn bytes(&self, var: Var) -> Option<(Var, f32)> {
        let equation = self.maker(var)?;
        let (converted, scale) = match (&equation.op, &equation.inputs[..]) {
            (Op::Binary(BinaryOp::Div), &[x, divisor]) => (x, 1.0 / self.splat(divisor)? as f32),
            (Op::Binary(BinaryOp::Mul), &[x, factor]) => match self.splat(factor) {
                Some(scale) => (x, scale as f32),
                None => (factor, self.splat(x)? as f32),
            },
            _ => (var, 1.0),
        };
        let conversion = self.maker(converted)?;
        let bytes = conversion.inputs.first().copied()?;
        let is_conversion = matches!(conversion.op, Op::Convert { .. })
            && self.program.ty(bytes).dtype == DType::U8
            && self.program.ty(converted).dtype == DType::F32;
        (is_conversion && scale.is_normal() && scale > 0.0).then_some((bytes, scale))
    }

    /// The sum of a convolution and its bias, and the bias: if the sum is the convolution's only
    /// use, and oneDNN computes it forward.
    fn sum_with_bias(
        &self,
        conv: &'a Equation,
        dims: &ConvDims,
        problem: &Problem,
    ) -> Option<(&'a Equation, Var)> {
        let product = conv.outputs[0];
        let sum = self.only_user(product)?;
        if !matches!(sum.op, Op::Binary(BinaryOp::Add)) {
            return None;
        }
        let spread = sum.inputs.iter().copied().find(|&var| var != product)?;
        let broadcast = self.maker(spread)?;
        let Op::Broadcast { axes, .. } = &broadcast.op else { return None };
        let bias = broadcast.inputs[0];
        let sizes = &self.program.ty(product).shape;
        let channel = dims.out_spec[1];
        if axes[..] != [channel] || self.program.ty(bias).shape[..] != [sizes[channel]] {
            return None;
        }
        (problem.kind == Kind::Forward).then_some((sum, bias))
    }

    fn add_layer(
        &self,
        conv: &'a Equation,
        layer: ConvLayer<'a>,
        sum: &'a Equation,
        roles: &mut HashMap<Var, Role<'a>>,
    ) {
        let sum = sum.outputs[0];
        roles.insert(conv.outputs[0], Role::Absorbed);
        let layer = |result, epilogue| ConvLayer { result, epilogue, ..layer };
        match self.relu(sum) {
            None => {
                roles.insert(sum, Role::Result(layer(sum, Epilogue::Bias)));
            }
            Some((mask, result)) => {
                let layer = layer(result, Epilogue::BiasRelu);
                roles.insert(sum, Role::Absorbed);
                roles.insert(mask, Role::Mask(layer));
                roles.insert(result, Role::Result(layer));
            }
        }
    }

    /// The variables `sum <= 0` and `where(sum <= 0, 0, sum)`, if nothing else uses the sum.
    fn relu(&self, sum: Var) -> Option<(Var, Var)> {
        let (&[first, second], false) = (&self.users[sum.index()][..], self.is_output[sum.index()])
        else {
            return None;
        };
        let (mask, select) = match (&first.op, &second.op) {
            (Op::Compare(CompareOp::Le), Op::Select) => (first, second),
            (Op::Select, Op::Compare(CompareOp::Le)) => (second, first),
            _ => return None,
        };
        let fits = mask.inputs[0] == sum
            && self.is_zero(mask.inputs[1])
            && select.inputs[0] == mask.outputs[0]
            && self.is_zero(select.inputs[1])
            && select.inputs[2] == sum;
        fits.then_some((mask.outputs[0], select.outputs[0]))
    }

    fn is_zero(&self, var: Var) -> bool {
        self.splat(var) == Some(0.0)
    }

    /// The value of a constant whose elements are equal.
    fn splat(&self, var: Var) -> Option<f64> {
        match self.maker(var)? {
            Equation { op: Op::Constant(literal), .. } => literal.splat_value(),
            Equation { op: Op::Broadcast { .. }, inputs, .. } => self.splat(inputs[0]),
            _ => None,
        }
    }
}

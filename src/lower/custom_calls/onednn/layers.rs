//! Layers of a Program: a convolution, its bias and a ReLU, which one call computes while the
//! result is in the cache.

use std::collections::HashMap;

use super::{Epilogue, by_onednn};
use crate::trace::op::{BinaryOp, CompareOp, ConvDims, Op};
use crate::trace::program::{Equation, Program, Var};

/// Layers of a Program, by the variables that their equations define.
pub(in crate::lower) struct Layers<'a> {
    roles: HashMap<Var, Role<'a>>,
}

/// Role of an equation in a layer.
#[derive(Clone, Copy)]
pub(in crate::lower) enum Role<'a> {
    /// Its result is used inside the layer alone.
    Absorbed,
    /// Its result is the layer's.
    Result(Layer<'a>),
    /// The comparison of the sum with zero, for the ReLU and its derivative. The result's, which
    /// is positive in the same places, gives the same.
    Mask(Layer<'a>),
}

/// A convolution with a bias, and perhaps a ReLU.
#[derive(Clone, Copy)]
pub(in crate::lower) struct Layer<'a> {
    pub dims: &'a ConvDims,
    /// Image, kernel and bias.
    pub operands: [Var; 3],
    pub result: Var,
    pub epilogue: Epilogue,
}

/// The equations of a Program around its variables.
struct Graph<'a> {
    program: &'a Program,
    maker: Vec<Option<&'a Equation>>,
    users: Vec<Vec<&'a Equation>>,
    is_output: Vec<bool>,
}

impl<'a> Layers<'a> {
    /// Finds the layers of a Program without those of its sub-Programs.
    pub fn of(program: &'a Program, threads: usize) -> Layers<'a> {
        let mut roles = HashMap::new();
        if threads == 0 || !program.equations.iter().any(|e| matches!(e.op, Op::Conv(_))) {
            return Layers { roles };
        }
        let graph = Graph::of(program);
        for equation in &program.equations {
            let Op::Conv(dims) = &equation.op else { continue };
            if let Some((sum, bias)) = graph.sum_with_bias(equation, dims, threads) {
                graph.add_layer(equation, dims, sum, bias, &mut roles);
            }
        }
        Layers { roles }
    }

    /// The role of the equation that defines a variable, if it is part of a layer.
    pub fn role(&self, output: Option<&Var>) -> Option<Role<'a>> {
        self.roles.get(output?).copied()
    }
}

impl<'a> Graph<'a> {
    fn of(program: &'a Program) -> Graph<'a> {
        let count = program.types.len();
        let (mut maker, mut users) = (vec![None; count], vec![Vec::new(); count]);
        let mut is_output = vec![false; count];
        for equation in &program.equations {
            equation.outputs.iter().for_each(|var| maker[var.index()] = Some(equation));
            equation.inputs.iter().for_each(|var| users[var.index()].push(equation));
        }
        program.outputs.iter().for_each(|var| is_output[var.index()] = true);
        Graph { program, maker, users, is_output }
    }

    /// The sum of a convolution and its bias, and the bias: if the sum is the convolution's only
    /// use, and oneDNN computes it forward.
    fn sum_with_bias(
        &self,
        conv: &'a Equation,
        dims: &ConvDims,
        threads: usize,
    ) -> Option<(&'a Equation, Var)> {
        let product = conv.outputs[0];
        let &[sum] = &self.users[product.index()][..] else { return None };
        if self.is_output[product.index()] || !matches!(sum.op, Op::Binary(BinaryOp::Add)) {
            return None;
        }
        let spread = sum.inputs.iter().copied().find(|&var| var != product)?;
        let broadcast = self.maker[spread.index()]?;
        let Op::Broadcast { axes, .. } = &broadcast.op else { return None };
        let bias = broadcast.inputs[0];
        let sizes = &self.program.ty(product).shape;
        let channel = dims.out_spec[1];
        if axes[..] != [channel] || self.program.ty(bias).shape[..] != [sizes[channel]] {
            return None;
        }
        let ty = |i: usize| self.program.ty(conv.inputs[i]);
        let problem = by_onednn(dims, ty(0), ty(1), threads)?;
        (problem.kind == super::Kind::Forward).then_some((sum, bias))
    }

    fn add_layer(
        &self,
        conv: &'a Equation,
        dims: &'a ConvDims,
        sum: &'a Equation,
        bias: Var,
        roles: &mut HashMap<Var, Role<'a>>,
    ) {
        let sum = sum.outputs[0];
        let operands = [conv.inputs[0], conv.inputs[1], bias];
        roles.insert(conv.outputs[0], Role::Absorbed);
        let layer = |result, epilogue| Layer { dims, operands, result, epilogue };
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
        match self.maker[var.index()] {
            Some(Equation { op: Op::Constant(literal), .. }) => literal.splat_value() == Some(0.0),
            Some(Equation { op: Op::Broadcast { .. }, inputs, .. }) => self.is_zero(inputs[0]),
            _ => false,
        }
    }
}

//! Dense layers of a Program so small that it runs inline: [`Dense`] computes each.

use std::collections::HashMap;

use super::{Graph, Layer, Role};
use crate::lower::cost::{inline_operations, operations};
#[cfg(doc)]
use crate::lower::custom_calls::native_calls::Dense;
use crate::lower::custom_calls::native_calls::is_dense;
use crate::trace::op::{BinaryOp, Op};
use crate::trace::program::{Program, Var};
use crate::trace::types::TensorType;

/// The most arithmetic in products for which running inline is worth one thread and simple code:
/// about 10 microseconds.
const MAX_INLINE_PRODUCTS: usize = 1 << 18;

/// The runtime's limit for running inline, less a margin for the error of our estimate.
const MAX_INLINE_OTHERS: usize = 800;

/// A product of matrices and a bias.
#[derive(Clone, Copy)]
pub struct DenseLayer {
    pub input: Var,
    pub weight: Var,
    pub bias: Var,
    pub result: Var,
}

/// The dense layers of a Program small enough to run inline.
pub struct DenseLayers {
    layers: Vec<DenseLayer>,
    /// Products and spread biases that are used in those sums alone.
    absorbed: Vec<Var>,
}

impl DenseLayers {
    /// Decides for a Program: its products must be small layers, and all else so little that the
    /// runtime runs it inline.
    pub fn of(program: &Program) -> Option<DenseLayers> {
        let mut products = 0;
        for equation in &program.equations {
            if equation.op.subprograms().next().is_some() {
                return None;
            }
            if let Op::Dot(dims) = &equation.op {
                let tys: Vec<&TensorType> =
                    equation.inputs.iter().map(|&var| program.ty(var)).collect();
                if !is_dense(dims, &tys) {
                    return None;
                }
                products += operations(program, equation);
            }
        }
        if products == 0 || products > MAX_INLINE_PRODUCTS {
            return None;
        }
        let graph = Graph::of(program);
        let mut found = DenseLayers { layers: Vec::new(), absorbed: Vec::new() };
        let mut sums = 0;
        for equation in &program.equations {
            let (Op::Binary(BinaryOp::Add), &[product, spread]) =
                (&equation.op, &equation.inputs[..])
            else {
                continue;
            };
            let (Some(dot), Some(bias)) = (graph.maker(product), graph.maker(spread)) else {
                continue;
            };
            let row = matches!(&bias.op, Op::Broadcast { axes, .. } if axes[..] == [1])
                && program.ty(bias.inputs[0]).shape[..] == program.ty(product).shape[1..];
            if matches!(dot.op, Op::Dot(_)) && row && graph.only_user(product).is_some() {
                found.layers.push(DenseLayer {
                    input: dot.inputs[0],
                    weight: dot.inputs[1],
                    bias: bias.inputs[0],
                    result: equation.outputs[0],
                });
                found.absorbed.push(product);
                found.absorbed.extend(graph.only_user(spread).map(|_| spread));
                sums += program.ty(product).numel();
            }
        }
        (inline_operations(program) <= MAX_INLINE_OTHERS + sums).then_some(found)
    }

    pub(super) fn add_roles(&self, roles: &mut HashMap<Var, Role<'_>>) {
        let results = self.layers.iter().map(|layer| (layer.result, Layer::Dense(*layer)));
        roles.extend(self.absorbed.iter().map(|&var| (var, Role::Absorbed)));
        roles.extend(results.map(|(var, layer)| (var, Role::Result(layer))));
    }
}

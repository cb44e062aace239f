//! Matrix factorizations and solutions of systems.

use super::emitter::Emitter;
use super::mlir::{Ty, Value, predicate, signature};
use crate::trace::literal::Literal;
use crate::trace::op::{CompareOp, TriangularSolveOp};
use crate::trace::types::{DType, TensorType};

impl Emitter<'_> {
    pub(super) fn cholesky(&mut self, x: Value, ty: &TensorType) -> Value {
        if ty.numel() == 0 {
            return x;
        }
        let l = self.op(format_args!("stablehlo.cholesky {x}, lower = true : {}", Ty(ty)));
        // StableHLO leaves the upper triangle undefined; we promise zeros.
        let places = TensorType::new(DType::I32, &ty.shape);
        let rank = ty.rank();
        let [row, column] = [rank - 2, rank - 1]
            .map(|axis| self.op(format_args!("stablehlo.iota dim = {axis} : {}", Ty(&places))));
        let kept = self.compare(CompareOp::Ge, row, column, &places);
        let zero = self.constant(&Literal::filled(ty.clone(), 0.0));
        self.select(kept, l, zero, &predicate(ty), ty)
    }

    pub(super) fn triangular_solve(
        &mut self,
        op: &TriangularSolveOp,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        if result.numel() == 0 {
            return x[1];
        }
        self.op(format_args!(
            "\"stablehlo.triangular_solve\"({}, {}) {{left_side = {}, lower = {}, unit_diagonal = \
             {}, transpose_a = #stablehlo<transpose {}>}} : {}",
            x[0],
            x[1],
            op.left_side,
            op.lower,
            op.unit_diagonal,
            if op.transpose_a { "TRANSPOSE" } else { "NO_TRANSPOSE" },
            signature(tys, &[result])
        ))
    }
}

//! Gathers and scatters: attributes with many lists of axes.

use super::emitter::Emitter;
use super::mlir::{List, Value, signature};
use crate::trace::literal::Literal;
use crate::trace::op::{Axes, BinaryOp, GatherDims, ScatterDims, ScatterKind};
use crate::trace::types::TensorType;

impl Emitter<'_> {
    pub(super) fn gather(
        &mut self,
        dims: &GatherDims,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        let GatherDims { offset_dims, collapsed_slice_dims, .. } = dims;
        self.op(format_args!(
            "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = \
             [{}], collapsed_slice_dims = [{}], operand_batching_dims = [{}], \
             start_indices_batching_dims = [{}], start_index_map = [{}], index_vector_dim = {}>, \
             indices_are_sorted = false, slice_sizes = array<i64{}{}>}}> : {}",
            x[0],
            x[1],
            List(offset_dims),
            List(collapsed_slice_dims),
            List(&dims.operand_batching_dims),
            List(&dims.start_indices_batching_dims),
            List(&dims.start_index_map),
            tys[1].rank() - 1,
            if dims.slice_sizes.rank() > 0 { ": " } else { "" },
            List(&dims.slice_sizes),
            signature(tys, &[result])
        ))
    }

    pub(super) fn scatter(
        &mut self,
        dims: &ScatterDims,
        x: &[Value],
        tys: &[&TensorType],
    ) -> Value {
        if dims.scatter_dims_to_operand_dims.is_empty() {
            return self.scatter_nowhere(dims, x, tys);
        }
        let result = self.begin(1)[0];
        self.write(format_args!(
            "\"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, \
             scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [{}], \
             inserted_window_dims = [{}], input_batching_dims = [{}], \
             scatter_indices_batching_dims = [{}], scatter_dims_to_operand_dims = [{}], \
             index_vector_dim = {}>, unique_indices = false}}> ({{\n",
            x[0],
            x[1],
            x[2],
            List(&dims.update_window_dims),
            List(&dims.inserted_window_dims),
            List(&dims.operand_batching_dims),
            List(&dims.scatter_indices_batching_dims),
            List(&dims.scatter_dims_to_operand_dims),
            tys[1].rank() - 1
        ));
        let scalar = TensorType::scalar(tys[0].dtype);
        let [old, new] = std::array::from_fn(|_| self.new_argument());
        self.margin();
        self.write(format_args!("^bb0({old}: {0}, {new}: {0}):\n", super::mlir::Ty(&scalar)));
        self.open();
        let combined = match dims.kind {
            ScatterKind::Set => new,
            ScatterKind::Add => self.binary(BinaryOp::Add, old, new, &scalar),
            ScatterKind::Mul => self.binary(BinaryOp::Mul, old, new, &scalar),
            ScatterKind::Max => self.binary(BinaryOp::Max, old, new, &scalar),
            ScatterKind::Min => self.binary(BinaryOp::Min, old, new, &scalar),
        };
        self.return_values(&[combined], &[&scalar]);
        self.close();
        self.margin();
        self.write(format_args!("}}) : {}", signature(tys, &[tys[0]])));
        self.end();
        result
    }

    /// A scatter whose index vectors are empty, which the compiler's simplifier breaks: every
    /// window is the whole operand. The operand gets an axis of size 1, and all indices are 0.
    fn scatter_nowhere(&mut self, dims: &ScatterDims, x: &[Value], tys: &[&TensorType]) -> Value {
        let wide = TensorType::new(tys[0].dtype, tys[0].shape.with_axis(0, 1));
        let operand = self.reshape(x[0], tys[0], &wide);
        let last = tys[1].rank() - 1;
        let shape = tys[1].shape.without_axis(last).with_axis(last, 1);
        let indices = Literal::splat(&shape, 0i32);
        let indices_ty = indices.ty().clone();
        let indices = self.constant(&indices);
        let moved = |axes: &Axes| -> Axes { axes.iter().map(|axis| axis + 1).collect() };
        let mut inserted = moved(&dims.inserted_window_dims);
        inserted.insert(0, 0);
        let dims = ScatterDims {
            inserted_window_dims: inserted,
            operand_batching_dims: moved(&dims.operand_batching_dims),
            scatter_dims_to_operand_dims: [0].as_slice().into(),
            ..dims.clone()
        };
        let result = self.scatter(&dims, &[operand, indices, x[2]], &[&wide, &indices_ty, tys[2]]);
        self.reshape(result, &wide, tys[0])
    }
}

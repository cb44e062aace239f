//! Convolutions.

use smallvec::SmallVec;

use super::emitter::{Emitter, Values};
use super::mlir::{List, Ty, Types, Value, precision, row_major, signature};
use crate::lower::custom_calls::Kernel;
use crate::lower::custom_calls::onednn::{Convolution, Epilogue, Kind, Problem, by_onednn};
use crate::lower::fusion::ConvLayer;
use crate::trace::op::{Axes, ConvDims};
use crate::trace::types::{DType, TensorType};

impl Emitter<'_> {
    pub(super) fn conv(
        &mut self,
        dims: &ConvDims,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        if let Some(problem) = by_onednn(dims, tys[0], tys[1], self.options.conv_threads) {
            return self.conv_call(&problem, dims, x, tys, result);
        }
        if self.options.platform.facts().small_int_convolutions_in_f64
            && result.dtype.is_int()
            && result.dtype.size() < 4
        {
            return self.conv_in_f64(dims, x, tys, result);
        }
        let lhs = if result.dtype.is_int() {
            // Folded by the compiler, sums of integers saturate at the type's limits; at run time
            // they wrap. The compiler does not fold an operand behind a barrier.
            self.op(format_args!("stablehlo.optimization_barrier {} : {}", x[0], Ty(tys[0])))
        } else {
            x[0]
        };
        let padding: Vec<String> =
            dims.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        let reverse = vec![false; dims.strides.len()];
        let precision = precision(dims.precision);
        self.op(format_args!(
            "stablehlo.convolution({}, {}) dim_numbers = [{}]x[{}]->[{}], window = {{stride = \
             [{}], pad = [{}], lhs_dilate = [{}], rhs_dilate = [{}], reverse = [{}]}} \
             {{batch_group_count = {} : i64, feature_group_count = {} : i64, precision_config = \
             [#stablehlo<precision {precision}>, #stablehlo<precision {precision}>]}} : {}",
            lhs,
            x[1],
            layout(&dims.lhs_spec, ["b", "f"]),
            layout(&dims.rhs_spec, ["o", "i"]),
            layout(&dims.out_spec, ["b", "f"]),
            List(&dims.strides),
            List(&padding),
            List(&dims.lhs_dilation),
            List(&dims.rhs_dilation),
            List(&reverse),
            dims.batch_groups,
            dims.feature_groups,
            signature(tys, &[result])
        ))
    }

    /// A convolution of integers of at most 16 bits, computed in f64 and rounded. f64 represents sums
    /// up to 2^53: those of 2^23 products. cuDNN has no convolution of integers of 16 bits, and the
    /// sums of its convolutions of 8 bits saturate instead of wrapping.
    fn conv_in_f64(
        &mut self,
        dims: &ConvDims,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        let as_f64 = |ty: &TensorType| TensorType::new(DType::F64, &ty.shape);
        let operands: Values = (0..2).map(|i| self.convert(x[i], tys[i], DType::F64)).collect();
        let wide = as_f64(result);
        let sums = self.conv(dims, &operands, &[&as_f64(tys[0]), &as_f64(tys[1])], &wide);
        // cuDNN may choose an algorithm with rounding errors, such as Winograd's.
        let sums = self.op(format_args!("stablehlo.round_nearest_even {sums} : {}", Ty(&wide)));
        let long = self.convert(sums, &wide, DType::I64);
        self.convert(long, &TensorType::new(DType::I64, &result.shape), result.dtype)
    }

    /// A convolution with what belongs to its layer, as one call.
    pub(super) fn conv_layer(
        &mut self,
        layer: &ConvLayer<'_>,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        let image = match layer.byte_scale {
            Some(_) => &TensorType::new(DType::F32, &tys[0].shape),
            None => tys[0],
        };
        let problem = by_onednn(layer.dims, image, tys[1], self.options.conv_threads);
        let problem = Problem {
            epilogue: layer.epilogue,
            byte_scale: layer.byte_scale.map(f32::to_bits),
            ..problem.expect("asked before")
        };
        self.conv_call(&problem, layer.dims, x, tys, result)
    }

    /// A convolution as a call of oneDNN. The images of its operands and result are brought to
    /// batch first and channels last; weights are read and written as they are.
    fn conv_call(
        &mut self,
        problem: &Problem,
        dims: &ConvDims,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        let (lhs_spec, rhs_spec) = (&dims.lhs_spec, &dims.rhs_spec);
        let (lhs, rhs) = match problem.kind {
            Kind::Forward => (self.channels_last(x[0], tys[0], lhs_spec), (x[1], tys[1].clone())),
            Kind::BackwardData => {
                let turned = self.op(format_args!(
                    "stablehlo.reverse {}, dims = [{}] : {}",
                    x[1],
                    List(&rhs_spec[2..]),
                    Ty(tys[1])
                ));
                (self.channels_last(x[0], tys[0], lhs_spec), (turned, tys[1].clone()))
            }
            // The batch is the features of one operand and the input features of the other.
            Kind::BackwardWeights => (
                self.channels_last(x[0], tys[0], &exchanged(lhs_spec)),
                self.channels_last(x[1], tys[1], &exchanged(rhs_spec)),
            ),
        };
        let order = match problem.kind {
            Kind::BackwardWeights => (0..result.rank()).collect(),
            Kind::Forward | Kind::BackwardData => last_order(&dims.out_spec),
        };
        let native = permuted(result, &order);
        let mut values: Values = SmallVec::from_slice(&[lhs.0, rhs.0]);
        let mut operands: SmallVec<[&TensorType; 3]> = SmallVec::from_slice(&[&lhs.1, &rhs.1]);
        if problem.epilogue != Epilogue::None {
            values.push(x[2]);
            operands.push(tys[2]);
        }
        let value = self.op(format_args!(
            "stablehlo.custom_call @{}({}) {{api_version = 4 : i32, backend_config = {{problem \
             = array<i64: {}>}}, operand_layouts = [{}], result_layouts = [{}]}} : ({}) -> {}",
            Convolution::TARGET,
            List(&values),
            List(&problem.encode()),
            row_major(&operands),
            row_major(&[&native]),
            Types(&operands),
            Ty(&native)
        ));
        let mut back: Axes = order.clone();
        order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
        self.transposed(value, &native, &back).0
    }

    /// Images with these axes (batch, features, then the spatial ones) as batch, spatial axes,
    /// features.
    fn channels_last(&mut self, x: Value, ty: &TensorType, spec: &Axes) -> (Value, TensorType) {
        self.transposed(x, ty, &last_order(spec))
    }

    pub(super) fn transposed(
        &mut self,
        x: Value,
        ty: &TensorType,
        order: &Axes,
    ) -> (Value, TensorType) {
        if order.iter().enumerate().all(|(i, &axis)| i == axis) {
            return (x, ty.clone());
        }
        let result = permuted(ty, order);
        let value = self.op(format_args!(
            "stablehlo.transpose {x}, dims = [{}] : ({}) -> {}",
            List(order),
            Ty(ty),
            Ty(&result)
        ));
        (value, result)
    }
}

/// The order of axes that puts the batch first and the features last.
fn last_order(spec: &Axes) -> Axes {
    [spec[0]].into_iter().chain(spec[2..].iter().copied()).chain([spec[1]]).collect()
}

/// Axes with batch and features exchanged.
fn exchanged(spec: &Axes) -> Axes {
    let mut spec = spec.clone();
    spec.swap(0, 1);
    spec
}

fn permuted(ty: &TensorType, order: &Axes) -> TensorType {
    let shape: SmallVec<[usize; 6]> = order.iter().map(|&axis| ty.shape[axis]).collect();
    TensorType::new(ty.dtype, &shape[..])
}

/// `b, 0, 1, f` of an operand whose axes are listed as batch, features, spatial ones.
fn layout(spec: &[usize], letters: [&str; 2]) -> String {
    let mut names = vec![String::new(); spec.len()];
    for (i, &axis) in spec.iter().enumerate() {
        names[axis] = if i < 2 { letters[i].into() } else { (i - 2).to_string() };
    }
    names.join(", ")
}

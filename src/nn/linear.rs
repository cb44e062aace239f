//! Linear layers of any number of axes, embeddings, and dropout.

use std::hash::{Hash, Hasher};

use super::init::{self, Init};
use crate::random::{self, Key};
use crate::trace::numpy::einsum;
use crate::trace::op::{Axes, DotDims};
use crate::trace::ops::{self, AxisList};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// A linear layer that contracts several axes and gives several: flax's `DenseGeneral`.
#[derive(Debug, Clone, Tree)]
pub struct DenseGeneral<T> {
    /// Kernel, `[*batch, *inputs, *features]`.
    pub kernel: T,
    /// Bias, `[*batch, *features]`.
    pub bias: Option<T>,
    /// Axes of the input that are contracted, in the order of the kernel's.
    pub axis: Vec<isize>,
    /// Number of leading axes of the input that have a kernel each.
    pub batch_dims: usize,
}

impl DenseGeneral<Tensor> {
    /// Initializes a layer in f32 that contracts the last axes, of sizes `inputs`, to `features`,
    /// with a kernel sampled from `kernel` and a zero bias.
    #[op("DenseGeneral::init")]
    pub fn init(
        key: Key<Tensor>,
        inputs: &[usize],
        features: &[usize],
        kernel: Init,
    ) -> DenseGeneral<Tensor> {
        DenseGeneral::init_batched(key, &[], inputs, features, kernel)
    }

    /// [`DenseGeneral::init`] with a kernel for each position of the leading axes, of sizes `batch`:
    /// flax's `batch_dims`.
    #[op("DenseGeneral::init_batched")]
    pub fn init_batched(
        key: Key<Tensor>,
        batch: &[usize],
        inputs: &[usize],
        features: &[usize],
        kernel: Init,
    ) -> DenseGeneral<Tensor> {
        // As in flax, the kernel is sampled as a matrix.
        let rows: usize = batch.iter().chain(inputs).product();
        let matrix = kernel.draw(key, [rows, features.iter().product()], DType::F32);
        let bias = ops::zeros([batch, features].concat(), DType::F32);
        DenseGeneral {
            kernel: matrix.reshape([batch, inputs, features].concat()),
            bias: Some(bias),
            axis: (-(inputs.len() as isize)..0).collect(),
            batch_dims: batch.len(),
        }
    }

    /// Returns the layer with these contracted axes: flax's `axis`.
    #[track_caller]
    pub fn with_axis(self, axis: &[isize]) -> DenseGeneral<Tensor> {
        DenseGeneral { axis: axis.to_vec(), ..self }
    }

    /// Maps `x` to `[*batch, *others, *features]`, where `others` are the axes that are neither
    /// batch axes nor contracted.
    #[op("DenseGeneral::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let axes = self.axis[..].axes("DenseGeneral", x.rank());
        let batch: Axes = (0..self.batch_dims).collect();
        let fits = self.kernel.rank() >= self.batch_dims + axes.len()
            && self.batch_dims <= x.rank()
            && axes.iter().all(|&axis| axis >= self.batch_dims);
        if !fits {
            let problem = format!(
                "axes {:?} and {} batch axes of {} do not fit the kernel {}",
                self.axis,
                self.batch_dims,
                x.ty(),
                self.kernel.ty()
            );
            fail_op("DenseGeneral", problem);
        }
        let dims = DotDims {
            rhs_contract: (self.batch_dims..self.batch_dims + axes.len()).collect(),
            lhs_contract: axes.clone(),
            lhs_batch: batch.clone(),
            rhs_batch: batch,
            ..DotDims::default()
        };
        let y = ops::dot_general(x, self.kernel, dims);
        let Some(bias) = self.bias else { return y };
        let shape = bias.shape();
        let (batch, features) = shape.split_at(self.batch_dims.min(shape.rank()));
        let others = vec![1; y.rank().saturating_sub(shape.rank())];
        y + bias.reshape([batch, &others, features].concat())
    }
}

/// A linear layer by Einstein's convention: flax's `Einsum`.
///
/// ```
/// use podracer::nn::{Einsum, init};
/// use podracer::{Array, DType, Key, Tensor, interpret};
/// let f = interpret(|(key, x): (Key<Tensor>, Tensor)| {
///     Einsum::init(key, &[3, 4, 5], "abc,cde->abde", init::lecun_normal()).apply(x)
/// });
/// let y = f.call((Key::new(0), Array::zeros([1, 2, 3], DType::F32)))?;
/// assert_eq!(y.shape().to_vec(), [1, 2, 4, 5]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, Tree)]
pub struct Einsum<T> {
    /// Kernel, the second operand of the formula.
    pub kernel: T,
    /// Bias: an axis for each letter of the result that the kernel has.
    pub bias: Option<T>,
    /// Formula, such as `"abc,cd->abd"`, with two operands and a result.
    pub einsum_str: String,
}

impl Einsum<Tensor> {
    /// Initializes a layer in f32 with a kernel of `shape` sampled from `kernel` and a zero bias.
    #[op("Einsum::init")]
    pub fn init(
        key: Key<Tensor>,
        shape: &[usize],
        einsum_str: &str,
        kernel: Init,
    ) -> Einsum<Tensor> {
        let (letters, result) = operands(einsum_str);
        if letters.len() != shape.len() {
            let problem = format!("`{einsum_str}` does not fit a kernel of shape {shape:?}");
            fail_op("Einsum", problem);
        }
        let sizes = result.iter().filter_map(|c| letters.iter().position(|l| l == c));
        let bias: Vec<usize> = sizes.map(|at| shape[at]).collect();
        let kernel = kernel.draw(key, shape, DType::F32);
        let bias = Some(ops::zeros(bias, DType::F32));
        Einsum { kernel, bias, einsum_str: einsum_str.into() }
    }

    /// Applies the formula to `x` and the kernel, and adds the bias.
    #[op("Einsum::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let (letters, result) = operands(&self.einsum_str);
        let y = einsum(&self.einsum_str, &[x, self.kernel]);
        let Some(bias) = self.bias else { return y };
        let dots = (y.rank() + 1).saturating_sub(result.len());
        let kernel = self.kernel.shape();
        let mut shape = Vec::new();
        for letter in result {
            match letters.iter().position(|&l| l == letter) {
                _ if letter == '.' => shape.extend(vec![1; dots]),
                Some(at) => shape.push(kernel[at]),
                None => shape.push(1),
            }
        }
        y + bias.reshape(shape)
    }
}

/// Returns the letters of the kernel and of the result; a dot stands for `...`.
#[track_caller]
fn operands(formula: &str) -> (Vec<char>, Vec<char>) {
    let text: String = formula.chars().filter(|c| !c.is_whitespace()).collect();
    let text = text.replace("...", ".");
    let parts = text.split_once("->").and_then(|(left, result)| {
        let (_, kernel) = left.split_once(',')?;
        Some((kernel.to_string(), result.to_string()))
    });
    match parts {
        Some((kernel, result)) if !kernel.contains([',', '.']) => {
            (kernel.chars().collect(), result.chars().collect())
        }
        _ => {
            let problem = format!(
                "takes a formula of the input, the kernel and the result, such as `abc,cd->abd`; \
                 was given `{formula}`"
            );
            fail_op("Einsum", problem)
        }
    }
}

/// An embedding: flax's `Embed`, PyTorch's `Embedding`.
#[derive(Debug, Clone, Tree)]
pub struct Embed<T> {
    /// Embeddings, `[num_embeddings, features]`.
    pub embedding: T,
}

impl Embed<Tensor> {
    /// Initializes embeddings in f32 from flax's default: normal numbers of variance
    /// `1 / features`.
    #[op("Embed::init")]
    pub fn init(key: Key<Tensor>, num_embeddings: usize, features: usize) -> Embed<Tensor> {
        let stddev = (1.0 / features as f32).sqrt();
        let shape = [num_embeddings, features];
        Embed { embedding: init::normal(stddev.into()).draw(key, shape, DType::F32) }
    }

    /// Maps integers `ids: [..]` to `[.., features]`. An index out of range gives NaN, as in flax.
    #[op("Embed::apply")]
    pub fn apply(&self, ids: Tensor) -> Tensor {
        if ids.dtype().is_float() || ids.dtype() == DType::Bool {
            fail_op("Embed", format!("takes integers, and was given {}", ids.ty()));
        }
        if self.embedding.dim(0) == 1 {
            let shape = [&ids.shape()[..], &[self.embedding.dim(-1)]].concat();
            return self.embedding.broadcast_to(shape);
        }
        self.embedding.take(ids, 0)
    }

    /// Maps `query: [.., features]` to its product with every embedding, `[.., num_embeddings]`:
    /// logits of a language model that shares its embeddings.
    #[op("Embed::attend")]
    pub fn attend(&self, query: Tensor) -> Tensor {
        query.matmul(self.embedding.t())
    }
}

/// Dropout (Srivastava et al. 2014): flax's `Dropout`. It has no parameters, so that it can be a
/// static field.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropout {
    /// Probability of an element to become 0.
    pub rate: f64,
    /// Axes along which all elements share their fate: flax's `broadcast_dims`.
    pub broadcast_dims: Vec<isize>,
}

impl Hash for Dropout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rate.to_bits().hash(state);
        self.broadcast_dims.hash(state);
    }
}

impl Dropout {
    /// Returns a layer that drops each element with probability `rate`.
    pub fn new(rate: f64) -> Dropout {
        Dropout { rate, broadcast_dims: Vec::new() }
    }

    /// Sets elements of `x` to 0 and divides the others by `1 - rate`. Without a key it returns `x`:
    /// flax's `deterministic=True`.
    #[op("Dropout::apply")]
    pub fn apply(&self, x: Tensor, key: Option<Key<Tensor>>) -> Tensor {
        let mut shape = x.shape();
        expect_rate("Dropout", self.rate);
        let Some(key) = key else { return x };
        if self.rate == 0.0 {
            return x;
        }
        if self.rate == 1.0 {
            return ops::zeros_like(x);
        }
        for axis in self.broadcast_dims[..].axes("Dropout", shape.rank()) {
            shape = shape.without_axis(axis).with_axis(axis, 1);
        }
        let keep = random::bernoulli(key, 1.0 - self.rate, shape).broadcast_to(x.shape());
        ops::where_(keep, x / (1.0 - self.rate), ops::zeros_like(x))
    }
}

/// Checks a probability of dropout.
#[track_caller]
pub(super) fn expect_rate(op: &str, rate: f64) {
    if !(0.0..=1.0).contains(&rate) {
        fail_op(op, format!("the rate is a probability from 0 to 1, and is {rate}"));
    }
}

/// Parametric rectifier (He et al. 2015): flax's `PReLU`.
#[derive(Debug, Clone, Tree)]
pub struct PReLU<T> {
    /// Slope of negative inputs, a scalar.
    pub negative_slope: T,
}

impl PReLU<Tensor> {
    /// Initializes a layer in f32 with flax's slope of 0.01.
    #[op("PReLU::init")]
    pub fn init() -> PReLU<Tensor> {
        PReLU { negative_slope: ops::constant(0.01f32) }
    }

    /// Maps `x` to `x` where it is not negative, and else to `negative_slope * x`.
    #[op("PReLU::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        ops::where_(x.ge(0.0), x, self.negative_slope.to(x.dtype()) * x)
    }
}

//! Products of large matrices, such as those of a dense layer after convolutions.

use std::sync::Arc;

use half::bf16;
use smallvec::SmallVec;

use super::library::{Handle, Library, Primitive, Tensor, role};
use super::plan::{Parallel, Shared, Task, Value};
use super::{Plans, library};
use crate::lower::custom_calls::call::Call;
use crate::lower::custom_calls::{Kernel, KernelError};
use crate::trace::op::DotDims;
use crate::trace::types::{DType, TensorType};

/// The product of two matrices, `[rows, inner]` and `[inner, columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lower) struct Product {
    rows: usize,
    inner: usize,
    columns: usize,
    /// Element type of all three matrices: f32 or bf16.
    dtype: DType,
    /// True if the memory of `lhs` has the shape `[inner, rows]`.
    lhs_transposed: bool,
    /// True if the memory of `rhs` has the shape `[columns, inner]`.
    rhs_transposed: bool,
    /// Number of parts that are computed apart: parts of the rows or, if there are more columns,
    /// parts of the columns.
    parts: usize,
}

/// Number of arithmetic operations below which XLA computes a product.
const MIN_OPERATIONS: usize = 1 << 22;
/// Sizes are below this limit, so that products of two of them fit an index.
const SIZE_LIMIT: usize = 1 << 31;

/// The product that oneDNN computes, if the operation is one and large enough, and oneDNN has a fast
/// implementation and may use `threads`. It is then ready to run.
pub(in crate::lower) fn product_by_onednn(
    dims: &DotDims,
    lhs: &TensorType,
    rhs: &TensorType,
    threads: usize,
) -> Option<Product> {
    let product = Product::of(dims, lhs, rhs, threads)?;
    plan(&product).is_ok_and(|plan| plan.fast).then_some(product)
}

fn plan(product: &Product) -> Result<Arc<Plan>, String> {
    static PLANS: Plans<Product, Plan> = Plans::new();
    PLANS.get_or_make(product, || Plan::new(library()?, product))
}

impl Product {
    fn of(dims: &DotDims, lhs: &TensorType, rhs: &TensorType, threads: usize) -> Option<Product> {
        let (&[l], &[r]) = (&dims.lhs_contract[..], &dims.rhs_contract[..]) else { return None };
        let dtype = lhs.dtype;
        let matrices = [lhs, rhs].iter().all(|ty| ty.dtype == dtype && ty.rank() == 2);
        let supported = matches!(dtype, DType::F32 | DType::BF16);
        if threads == 0 || !matrices || !supported || !dims.lhs_batch.is_empty() {
            return None;
        }
        let (rows, inner, columns) = (lhs.shape[1 - l], lhs.shape[l], rhs.shape[1 - r]);
        if [rows, inner, columns].into_iter().any(|size| size >= SIZE_LIMIT) {
            return None;
        }
        let operations = [rows, inner, columns].into_iter().try_fold(2, usize::checked_mul)?;
        (operations >= MIN_OPERATIONS).then(|| Product {
            rows,
            inner,
            columns,
            dtype,
            lhs_transposed: l == 0,
            rhs_transposed: r == 1,
            parts: threads.min(rows.max(columns)),
        })
    }

    /// Strides of `lhs`: between its rows and along `inner`.
    fn lhs_strides(&self) -> [usize; 2] {
        if self.lhs_transposed { [1, self.rows] } else { [self.inner, 1] }
    }

    /// Strides of `rhs`: along `inner` and between its columns.
    fn rhs_strides(&self) -> [usize; 2] {
        if self.rhs_transposed { [1, self.inner] } else { [self.columns, 1] }
    }

    /// Returns true if a part is a number of rows, and false if it is a number of columns.
    fn by_rows(&self) -> bool {
        self.rows >= self.columns
    }

    /// Rows or columns of a part, except the last.
    fn part_size(&self) -> usize {
        self.rows.max(self.columns).div_ceil(self.parts)
    }

    /// The numbers of the call's attribute.
    pub fn encode(&self) -> [i64; 7] {
        let Product { rows, inner, columns, lhs_transposed, rhs_transposed, parts, .. } = *self;
        let [dtype, lhs, rhs] =
            [self.dtype == DType::BF16, lhs_transposed, rhs_transposed].map(usize::from);
        [rows, inner, columns, dtype, lhs, rhs, parts].map(|number| number as i64)
    }

    /// The product that [`Product::encode`] wrote.
    fn decode(numbers: &[i64]) -> Result<Product, String> {
        let wrong = || format!("attribute `product` describes no product: {numbers:?}");
        let fits = |&number: &i64| usize::try_from(number).ok().filter(|&n| n < SIZE_LIMIT);
        let all: Option<SmallVec<[usize; 7]>> = numbers.iter().map(fits).collect();
        let all = all.ok_or_else(wrong)?;
        let &[rows, inner, columns, dtype, lhs, rhs, parts] = &all[..] else { return Err(wrong()) };
        let positive = [rows, inner, columns, parts].into_iter().all(|size| size > 0);
        if !positive || dtype > 1 || lhs > 1 || rhs > 1 || parts > rows.max(columns) {
            return Err(wrong());
        }
        let (lhs_transposed, rhs_transposed) = (lhs == 1, rhs == 1);
        let dtype = if dtype == 1 { DType::BF16 } else { DType::F32 };
        Ok(Product { rows, inner, columns, dtype, lhs_transposed, rhs_transposed, parts })
    }
}

/// The primitives of a product.
struct Plan {
    /// Primitives for a whole part and, if the last is smaller, for that one.
    whole: Step,
    last: Option<Step>,
    fast: bool,
}

/// The primitive for some rows or columns.
struct Step {
    primitive: Primitive,
    lhs: Handle,
    rhs: Handle,
    result: Handle,
}

impl Plan {
    fn new(library: &'static Library, product: &Product) -> Result<Plan, String> {
        let _guard = library.one_thread();
        let size = product.part_size();
        let (whole, fast) = Step::new(library, product, size)?;
        let (last, last_fast) = match product.rows.max(product.columns) % size {
            0 => (None, true),
            rest => {
                let (step, fast) = Step::new(library, product, rest)?;
                (Some(step), fast)
            }
        };
        Ok(Plan { whole, last, fast: fast && last_fast })
    }

    fn run<T: Value>(
        &self,
        product: &Product,
        [lhs, rhs]: [&[T]; 2],
        result: &mut [T],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let size = product.part_size();
        let parts = product.rows.max(product.columns).div_ceil(size);
        let start = Shared::new(result.as_mut_ptr());
        parallel(parts, &|part| {
            let step = match &self.last {
                Some(last) if part + 1 == parts => last,
                _ => &self.whole,
            };
            let first = part * size;
            let (lhs_offset, rhs_offset, result_offset) = match product.by_rows() {
                true => (first * product.lhs_strides()[0], 0, first * product.columns),
                false => (0, first * product.rhs_strides()[1], first),
            };
            let tensor = |role, desc, memory| Tensor { role, desc, memory };
            // SAFETY: the offset is within the result, and this part's elements, which start there,
            // are no other part's.
            let to = unsafe { start.get().add(result_offset) };
            let tensors = [
                tensor(role::SOURCE, &step.lhs, lhs[lhs_offset..].as_ptr().cast_mut().cast()),
                tensor(role::WEIGHTS, &step.rhs, rhs[rhs_offset..].as_ptr().cast_mut().cast()),
                tensor(role::DESTINATION, &step.result, to.cast()),
            ];
            // SAFETY: the matrices have the sizes of the product, which `multiply` checked, and so the
            // rows or columns of this part from its offset on.
            unsafe { step.primitive.run_with_scratchpad(&tensors) }
        })
    }
}

impl Step {
    /// The primitive for a part of this size; also returns true if it is fast.
    fn new(
        library: &'static Library,
        product: &Product,
        size: usize,
    ) -> Result<(Step, bool), String> {
        let (rows, columns) = match product.by_rows() {
            true => (size, product.columns),
            false => (product.rows, size),
        };
        let matrix = |sizes: [usize; 2], strides: [usize; 2]| {
            let [sizes, strides] = [sizes, strides].map(|pair| pair.map(|number| number as i64));
            library.strided(product.dtype, &sizes, &strides)
        };
        let lhs = matrix([rows, product.inner], product.lhs_strides())?;
        let rhs = matrix([product.inner, columns], product.rhs_strides())?;
        let result = matrix([rows, columns], [product.columns, 1])?;
        let description = library.matmul([&lhs, &rhs, &result], false)?;
        let fast = !library.implementation(&description)?.starts_with("ref");
        let primitive = library.primitive(description)?;
        Ok((Step { primitive, lhs, rhs, result }, fast))
    }
}

/// A product of two matrices, as the attribute `product` says.
pub(crate) struct Matmul;

impl Kernel for Matmul {
    const TARGET: &'static str = "podracer.onednn.3.2.matmul.1";

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        let product = Product::decode(&call.array::<i64>("product")?)?;
        match product.dtype {
            DType::BF16 => multiply::<bf16>(&product, call),
            _ => multiply::<f32>(&product, call),
        }
    }
}

fn multiply<T: Value>(product: &Product, call: &mut Call<'_>) -> Result<(), KernelError> {
    let (lhs, rhs) = (call.operand::<T>(0)?.data, call.operand::<T>(1)?.data);
    let result = call.result::<T>(0)?;
    let Product { rows, inner, columns, .. } = *product;
    if [lhs.len(), rhs.len(), result.len()] != [rows * inner, inner * columns, rows * columns] {
        return Err(format!("the matrices do not fit {product:?}").into());
    }
    let plan = plan(product)?;
    let parallel = |count, task: Task<'_>| call.parallel(count, task);
    Ok(plan.run(product, [lhs, rhs], result, &parallel)?)
}

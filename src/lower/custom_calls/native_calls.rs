//! Native functions for programs so small that handing them to a thread costs more than running
//! them.
//!
//! XLA's CPU runtime runs a program on the caller's thread only if its cost model counts fewer than
//! 1000 operations; waking a thread otherwise takes 10 to 100 microseconds, many times the time of
//! a policy of a few thousand products. A call of a native function counts as nothing. So in a
//! small program layers are lowered to calls of [`Dense`] and random bits to calls of [`Bits`], and
//! the program runs inline.

use super::{Kernel, KernelError};
use crate::lower::custom_calls::call::Call;
use crate::trace::eval::threefry2x32;
use crate::trace::op::DotDims;
use crate::trace::types::{DType, TensorType};

/// `x w + b` for `x: f32[m,k]`, `w: f32[k,n]`, and optionally `b: f32[n]`.
pub struct Dense;

impl Kernel for Dense {
    const TARGET: &'static str = "podracer.dense.1";

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, w) = (call.operand::<f32>(0)?, call.operand::<f32>(1)?);
        let bias = match call.num_operands() {
            3 => Some(call.operand::<f32>(2)?.data),
            _ => None,
        };
        let (&[m, k], &[k2, n]) = (x.dims, w.dims) else {
            let text = format!("takes two matrices, and was given {:?} and {:?}", x.dims, w.dims);
            return Err(text.into());
        };
        let y = call.result::<f32>(0)?;
        if k != k2 || y.len() as i64 != m * n || bias.is_some_and(|b| b.len() as i64 != n) {
            return Err(format!("{m}x{k} by {k2}x{n} does not fit the result or the bias").into());
        }
        dense(x.data, w.data, bias, y, k as usize, n as usize);
        Ok(())
    }
}

/// Returns true if a product is a matrix by a matrix as [`Dense`] takes them.
pub(in crate::lower) fn is_dense(dims: &DotDims, tys: &[&TensorType]) -> bool {
    tys.iter().all(|ty| ty.dtype == DType::F32 && ty.rank() == 2)
        && dims.lhs_batch.is_empty()
        && dims.lhs_contract[..] == [1]
        && dims.rhs_contract[..] == [0]
}

/// Threefry-2x32 over four tensors of u32 of one shape; two results.
pub struct Bits;

impl Kernel for Bits {
    const TARGET: &'static str = "podracer.threefry2x32.1";

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        let (k0, k1) = (call.operand::<u32>(0)?, call.operand::<u32>(1)?);
        let (c0, c1) = (call.operand::<u32>(2)?, call.operand::<u32>(3)?);
        let (first, second) = (call.result::<u32>(0)?, call.result::<u32>(1)?);
        let keys = k0.data.iter().zip(k1.data);
        let counters = c0.data.iter().zip(c1.data);
        let results = first.iter_mut().zip(second.iter_mut());
        for ((key, counter), result) in keys.zip(counters).zip(results) {
            let [a, b] = threefry2x32([*key.0, *key.1], [*counter.0, *counter.1]);
            (*result.0, *result.1) = (a, b);
        }
        Ok(())
    }
}

/// The widest instructions that this processor has.
fn dense(x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32], k: usize, n: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has the instructions that the function is compiled for.
        return unsafe { dense_avx2(x, w, bias, y, k, n) };
    }
    dense_rows(x, w, bias, y, k, n);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn dense_avx2(x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32], k: usize, n: usize) {
    dense_rows(x, w, bias, y, k, n);
}

/// Columns computed together: as many as fit the registers.
const BLOCK: usize = 32;

#[inline(always)]
fn dense_rows(x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32], k: usize, n: usize) {
    if n == 0 {
        return;
    }
    if k == 0 {
        for row in y.chunks_exact_mut(n) {
            match bias {
                Some(bias) => row.copy_from_slice(bias),
                None => row.fill(0.0),
            }
        }
        return;
    }
    for (row, x) in y.chunks_exact_mut(n).zip(x.chunks_exact(k)) {
        let mut from = 0;
        while from + BLOCK <= n {
            let mut sums = [0.0f32; BLOCK];
            for (row, x) in x.iter().enumerate() {
                let start = row * n + from;
                let w: &[f32; BLOCK] = w[start..start + BLOCK].try_into().expect("a whole block");
                // No iterator: without link-time optimization its calls keep the sums in memory.
                for i in 0..BLOCK {
                    sums[i] += x * w[i];
                }
            }
            row[from..from + BLOCK].copy_from_slice(&sums);
            from += BLOCK;
        }
        for column in from..n {
            row[column] = x.iter().zip(w[column..].iter().step_by(n)).map(|(x, w)| x * w).sum();
        }
        if let Some(bias) = bias {
            row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_the_sum_of_its_products() {
        for (m, k, n) in [(1, 1, 1), (4, 4, 64), (3, 17, 70), (2, 5, 31), (1, 3, 0), (2, 0, 3)] {
            let value = |i: usize| ((i * 7919) % 23) as f32 - 11.0;
            let x: Vec<f32> = (0..m * k).map(value).collect();
            let w: Vec<f32> = (0..k * n).map(value).collect();
            let b: Vec<f32> = (0..n).map(value).collect();
            for bias in [None, Some(&b[..])] {
                let mut y = vec![f32::NAN; m * n];
                dense(&x, &w, bias, &mut y, k, n);
                for i in 0..m {
                    for j in 0..n {
                        let sum: f32 = (0..k).map(|p| x[i * k + p] * w[p * n + j]).sum();
                        assert_eq!(y[i * n + j], sum + bias.map_or(0.0, |b| b[j]));
                    }
                }
            }
        }
    }
}

//! Vector instructions.
//!
//! A function that is generic over [`Vector`] is compiled for each kind of vectors, and
//! [`with_vectors`] calls it for those that the processor has. It must be `inline(always)`: what is not
//! inlined is compiled for every processor.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each function's contract is that of its trait"
)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch, _mm256_add_ps,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_loadu_ps, _mm256_max_ps, _mm256_mul_ps,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm256_sub_ps, _mm512_add_ps,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_loadu_ps, _mm512_max_ps, _mm512_mul_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_sub_ps,
};

/// Elements of the longest vectors.
pub const LANES: usize = 16;

/// Bytes of a line of the cache.
pub const CACHE_LINE: usize = 64;

/// Kind of SIMD instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimdKind {
    /// 16 lanes of f32.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 8 lanes of f32.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// One element at a time, for tests.
    #[cfg_attr(not(test), allow(dead_code, reason = "it is slower than convolutions by oneDNN"))]
    Scalar,
}

/// SIMD instructions that this processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simd(SimdKind);

impl Simd {
    /// The vector instructions of this processor, widest first.
    pub fn available() -> impl Iterator<Item = Simd> {
        #[cfg(target_arch = "x86_64")]
        let kinds = [
            (SimdKind::Avx512, is_x86_feature_detected!("avx512f")),
            (SimdKind::Avx2, is_x86_feature_detected!("avx2")),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let kinds: [(SimdKind, bool); 0] = [];
        kinds.into_iter().filter_map(|(kind, present)| present.then_some(Simd(kind)))
    }

    /// The widest vector instructions of this processor, if it has any.
    pub fn widest() -> Option<Simd> {
        Simd::available().next()
    }

    /// One element at a time, which each processor has.
    #[cfg(test)]
    pub fn scalar() -> Simd {
        Simd(SimdKind::Scalar)
    }

    pub fn get(self) -> SimdKind {
        self.0
    }
}

/// Vector of f32.
///
/// # Safety
/// The processor has the instructions of the type, and pointers are valid for `LEN` elements.
pub trait Vector: Copy {
    const LEN: usize;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_bytes(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn splat(value: f32) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// Zero in place of numbers that are at most zero; NaN stays.
    unsafe fn relu(self) -> Self;
}

impl Vector for f32 {
    const LEN: usize = 1;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> f32 {
        unsafe { *from }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> f32 {
        unsafe { f32::from(*from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { *to = self }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    unsafe fn add(self, other: f32) -> f32 {
        self + other
    }

    #[inline(always)]
    unsafe fn sub(self, other: f32) -> f32 {
        self - other
    }

    #[inline(always)]
    unsafe fn mul(self, other: f32) -> f32 {
        self * other
    }

    #[inline(always)]
    unsafe fn relu(self) -> f32 {
        if self <= 0.0 { 0.0 } else { self }
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($ty:ty, $len:literal, $load:ident, $bytes:ident, $widen:ident, $convert:ident, $store:ident,
     $splat:ident, $zero:ident, $add:ident, $sub:ident, $mul:ident, $max:ident) => {
        impl Vector for $ty {
            const LEN: usize = $len;

            #[inline(always)]
            unsafe fn load(from: *const f32) -> $ty {
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn load_bytes(from: *const u8) -> $ty {
                unsafe { $convert($widen($bytes(from.cast()))) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn splat(value: f32) -> $ty {
                unsafe { $splat(value) }
            }

            #[inline(always)]
            unsafe fn add(self, other: $ty) -> $ty {
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            unsafe fn sub(self, other: $ty) -> $ty {
                unsafe { $sub(self, other) }
            }

            #[inline(always)]
            unsafe fn mul(self, other: $ty) -> $ty {
                unsafe { $mul(self, other) }
            }

            #[inline(always)]
            unsafe fn relu(self) -> $ty {
                // The maximum is the second operand if one is NaN or both are zeros. Adding zero changes
                // -0.0 to 0.0.
                unsafe { $add($max($zero(), self), $zero()) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector!(
    __m256,
    8,
    _mm256_loadu_ps,
    _mm_loadl_epi64,
    _mm256_cvtepu8_epi32,
    _mm256_cvtepi32_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_setzero_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_max_ps
);

#[cfg(target_arch = "x86_64")]
vector!(
    __m512,
    16,
    _mm512_loadu_ps,
    _mm_loadu_si128,
    _mm512_cvtepu8_epi32,
    _mm512_cvtepi32_ps,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    _mm512_setzero_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_max_ps
);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
pub fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Calls an unsafe function for the vectors of a [`Simd`]: it is generic over [`Vector`], and perhaps
/// over another type or number.
macro_rules! with_vectors {
    ($simd:expr, $function:ident ( $($argument:expr),* $(,)? ) $(, $other:tt)?) => {
        match $simd.get() {
            #[cfg(target_arch = "x86_64")]
            super::vector::SimdKind::Avx512 => super::vector::with_avx512(|| {
                $function::<std::arch::x86_64::__m512 $(, $other)?>($($argument),*)
            }),
            #[cfg(target_arch = "x86_64")]
            super::vector::SimdKind::Avx2 => super::vector::with_avx2(|| {
                $function::<std::arch::x86_64::__m256 $(, $other)?>($($argument),*)
            }),
            super::vector::SimdKind::Scalar => $function::<f32 $(, $other)?>($($argument),*),
        }
    };
}

pub(super) use with_vectors;

/// Brings memory that will be read soon into the cache.
#[inline(always)]
pub fn prefetch<T>(soon: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..soon.len()).step_by(CACHE_LINE / size_of::<T>()) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(soon.as_ptr().add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = soon;
}

/// A matrix of 4 by 4 vectors.
pub type Square<V> = [[V; 4]; 4];

/// Makes a square by row and column. Its loops have no iterators over the vectors: at level 2 and
/// without link-time optimization those stay calls, around which the vectors are in memory.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "the doc comment says why")]
pub fn square<V: Copy>(initial: V, f: impl Fn(usize, usize) -> V) -> Square<V> {
    let mut x = [[initial; 4]; 4];
    for i in 0..4 {
        for j in 0..4 {
            x[i][j] = f(i, j);
        }
    }
    x
}

/// Calls `f` with row, column and vector of each place; like [`square`] without iterators.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "as in `square`")]
pub fn for_each<V: Copy>(x: Square<V>, mut f: impl FnMut(usize, usize, V)) {
    for i in 0..4 {
        for j in 0..4 {
            f(i, j, x[i][j]);
        }
    }
}

/// Applies a one-dimensional transform to the rows, then to the columns.
#[inline(always)]
pub unsafe fn both_axes<V: Vector>(x: Square<V>, f: impl Fn([V; 4]) -> [V; 4]) -> Square<V> {
    let rows = [f(x[0]), f(x[1]), f(x[2]), f(x[3])];
    let column = |j: usize| f([rows[0][j], rows[1][j], rows[2][j], rows[3][j]]);
    let columns = [column(0), column(1), column(2), column(3)];
    let row = |i: usize| [columns[0][i], columns[1][i], columns[2][i], columns[3][i]];
    [row(0), row(1), row(2), row(3)]
}

/// Loads a vector of each of 16 matrices; `matrix` is their distance in elements.
#[inline(always)]
pub unsafe fn load_square<V: Vector>(from: *const f32, matrix: usize) -> Square<V> {
    square(unsafe { V::splat(0.0) }, |i, j| unsafe { V::load(from.add((4 * i + j) * matrix)) })
}

/// Stores a vector into each of 16 matrices; `matrix` is their distance in elements.
#[inline(always)]
pub unsafe fn store_square<V: Vector>(x: Square<V>, to: *mut f32, matrix: usize) {
    for_each(x, |i, j, x| unsafe { x.store(to.add((4 * i + j) * matrix)) });
}

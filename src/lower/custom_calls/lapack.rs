//! LAPACK routines that modules exported by JAX call on CPU, computed here: the names are those of
//! JAX's foreign functions, and so are operands, results and attributes.
//!
//! JAX registers these functions from `jaxlib`, which is not here. Matrices are column-major, in
//! batches; computation is in `f64` for both element types.

mod matrix;

use std::sync::OnceLock;

use bytemuck::Pod;

use self::matrix::{Triangle, cholesky, eigh, lu, q_of_reflectors, qr, solve_triangular, svd};
use super::{Kernel, KernelError, register};
use crate::error::{Error, Result};
use crate::lower::custom_calls::call::Call;
use crate::lower::pjrt::Plugin;
use crate::trace::literal::Element;

/// An element type of the routines.
trait Real: Element + Pod {
    fn to_f64(self) -> f64;
    fn from_f64(x: f64) -> Self;
}

impl Real for f32 {
    fn to_f64(self) -> f64 {
        self.into()
    }
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
}

impl Real for f64 {
    fn to_f64(self) -> f64 {
        self
    }
    fn from_f64(x: f64) -> f64 {
        x
    }
}

/// An operand: a batch of matrices, or of vectors, which are matrices of one column.
struct Batch {
    elements: Vec<f64>,
    rows: usize,
    cols: usize,
}

impl Batch {
    /// A copy of operand `i`: results may share its memory.
    fn read<T: Real>(call: &Call<'_>, i: usize, axes: usize) -> Result<Batch, String> {
        let (dims, elements) = call.operand_to_vec::<T>(i)?;
        let Some(split) = dims.len().checked_sub(axes) else {
            return Err(format!("operand {i} has {} axes", dims.len()));
        };
        let sizes: Vec<usize> = dims[split..].iter().map(|&size| size as usize).collect();
        let elements = elements.iter().map(|x| x.to_f64()).collect();
        Ok(Batch { elements, rows: sizes[0], cols: sizes.get(1).copied().unwrap_or(1) })
    }

    fn square<T: Real>(call: &Call<'_>, i: usize) -> Result<Batch, String> {
        let batch = Batch::read::<T>(call, i, 2)?;
        if batch.rows == batch.cols {
            return Ok(batch);
        }
        Err(format!("operand {i} has matrices of {} by {}", batch.rows, batch.cols))
    }

    /// The matrices; of empty ones there is none to compute.
    fn matrices(&mut self) -> impl ExactSizeIterator<Item = &mut [f64]> {
        self.elements.chunks_exact_mut((self.rows * self.cols).max(1))
    }

    /// The number of matrices, which empty ones do not show: `result` is one value for each.
    fn infos(call: &Call<'_>, result: usize) -> Result<Vec<i32>, String> {
        Ok(vec![0; call.result_type(result)?.numel()])
    }
}

fn write<T: Real>(call: &mut Call<'_>, i: usize, elements: &[f64]) -> Result<(), String> {
    let elements: Vec<T> = elements.iter().map(|&x| T::from_f64(x)).collect();
    call.write(i, &elements)
}

/// A letter among `letters`, LAPACK's way to choose.
fn letter(call: &Call<'_>, name: &str, letters: &[u8]) -> Result<u8, String> {
    let given = call.attribute::<u8>(name)?;
    match letters.contains(&given) {
        true => Ok(given),
        false => Err(format!("attribute `{name}` is {:?}", given as char)),
    }
}

fn potrf<T: Real>(call: &mut Call<'_>) -> Result<(), KernelError> {
    let lower = letter(call, "uplo", b"LU")? == b'L';
    let mut a = Batch::square::<T>(call, 0)?;
    let mut infos = Batch::infos(call, 1)?;
    let n = a.rows;
    for (matrix, info) in a.matrices().zip(&mut infos) {
        *info = cholesky(matrix, n, lower);
    }
    write::<T>(call, 0, &a.elements)?;
    Ok(call.write(1, &infos)?)
}

fn getrf<T: Real>(call: &mut Call<'_>) -> Result<(), KernelError> {
    let mut a = Batch::read::<T>(call, 0, 2)?;
    let mut infos = Batch::infos(call, 2)?;
    let (rows, cols) = (a.rows, a.cols);
    let mut pivots = Vec::new();
    for (matrix, info) in a.matrices().zip(&mut infos) {
        let (rows_exchanged, zero) = lu(matrix, rows, cols);
        pivots.extend(rows_exchanged);
        *info = zero;
    }
    write::<T>(call, 0, &a.elements)?;
    call.write(1, &pivots)?;
    Ok(call.write(2, &infos)?)
}

fn trsm<T: Real>(call: &mut Call<'_>) -> Result<(), KernelError> {
    let left = letter(call, "side", b"LR")? == b'L';
    let lower = letter(call, "uplo", b"LU")? == b'L';
    let transposed = letter(call, "trans_x", b"NTC")? != b'N';
    let unit_diagonal = letter(call, "diag", b"NU")? == b'U';
    let mut a = Batch::square::<T>(call, 0)?;
    let mut b = Batch::read::<T>(call, 1, 2)?;
    let (n, rows, cols) = (a.rows, b.rows, b.cols);
    if n != if left { rows } else { cols } {
        return Err(format!("matrices of {n} by {n} do not fit {rows} by {cols}").into());
    }
    for (a, b) in a.matrices().zip(b.matrices()) {
        let triangle = Triangle { a, n, lower, transposed, unit_diagonal };
        solve_triangular(triangle, left, b, rows, cols);
    }
    Ok(write::<T>(call, 0, &b.elements)?)
}

fn geqrf<T: Real>(call: &mut Call<'_>) -> Result<(), KernelError> {
    let mut a = Batch::read::<T>(call, 0, 2)?;
    let (rows, cols) = (a.rows, a.cols);
    let taus: Vec<f64> = a.matrices().flat_map(|matrix| qr(matrix, rows, cols)).collect();
    write::<T>(call, 0, &a.elements)?;
    Ok(write::<T>(call, 1, &taus)?)
}

fn orgqr<T: Real>(call: &mut Call<'_>) -> Result<(), KernelError> {
    let mut a = Batch::read::<T>(call, 0, 2)?;
    let taus = Batch::read::<T>(call, 1, 1)?;
    let (rows, cols, count) = (a.rows, a.cols, taus.rows);
    if rows < cols || cols < count {
        return Err(format!("{count} reflectors do not fit {rows} by {cols}").into());
    }
    let mut taus = taus.elements.chunks_exact(count.max(1));
    for matrix in a.matrices() {
        q_of_reflectors(matrix, rows, cols, taus.next().unwrap_or(&[]));
    }
    Ok(write::<T>(call, 0, &a.elements)?)
}

fn syevd<T: Real>(call: &mut Call<'_>) -> Result<(), KernelError> {
    letter(call, "mode", b"NV")?;
    let lower = letter(call, "uplo", b"LU")? == b'L';
    let mut a = Batch::square::<T>(call, 0)?;
    let mut infos = Batch::infos(call, 2)?;
    let n = a.rows;
    let mut values = Vec::new();
    for (matrix, info) in a.matrices().zip(&mut infos) {
        let found = eigh(matrix, n, lower);
        *info = i32::from(found.is_none());
        values.extend(found.unwrap_or(vec![f64::NAN; n]));
    }
    write::<T>(call, 0, &a.elements)?;
    write::<T>(call, 1, &values)?;
    Ok(call.write(2, &infos)?)
}

fn gesdd<T: Real>(call: &mut Call<'_>) -> Result<(), KernelError> {
    let mode = letter(call, "mode", b"ASN")?;
    let mut a = Batch::read::<T>(call, 0, 2)?;
    let mut infos = Batch::infos(call, 4)?;
    let (rows, cols) = (a.rows, a.cols);
    let (mut values, mut u, mut vt) = (Vec::new(), Vec::new(), Vec::new());
    let few = rows.min(cols);
    let (left, right) = if mode == b'A' { (rows, cols) } else { (few, few) };
    for (matrix, info) in a.matrices().zip(&mut infos) {
        match svd(matrix, rows, cols, mode == b'A') {
            Some(found) => {
                values.extend(found.values);
                u.extend(found.u);
                vt.extend(found.vt);
            }
            None => {
                *info = 1;
                values.extend(vec![f64::NAN; few]);
                u.extend(vec![f64::NAN; rows * left]);
                vt.extend(vec![f64::NAN; right * cols]);
            }
        }
    }
    write::<T>(call, 0, &a.elements)?;
    write::<T>(call, 1, &values)?;
    // Without vectors their buffers are present, and are not read.
    if mode == b'N' {
        u = vec![0.0; call.result_type(2)?.numel()];
        vt = vec![0.0; call.result_type(3)?.numel()];
    }
    write::<T>(call, 2, &u)?;
    write::<T>(call, 3, &vt)?;
    Ok(call.write(4, &infos)?)
}

macro_rules! routines {
    ($($f32:ident $name32:literal $f64:ident $name64:literal $run:ident;)*) => {
        $(
            struct $f32;
            impl Kernel for $f32 {
                const TARGET: &'static str = $name32;
                fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
                    $run::<f32>(call)
                }
            }
            struct $f64;
            impl Kernel for $f64 {
                const TARGET: &'static str = $name64;
                fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
                    $run::<f64>(call)
                }
            }
        )*

        /// Names of the routines that are computed here.
        const PROVIDED: &[&str] = &[$($name32, $name64),*];

        fn register_all(plugin: &Plugin) -> Result<()> {
            $(
                register::<$f32>(plugin)?;
                register::<$f64>(plugin)?;
            )*
            Ok(())
        }
    };
}

routines! {
    Spotrf "lapack_spotrf_ffi" Dpotrf "lapack_dpotrf_ffi" potrf;
    Sgetrf "lapack_sgetrf_ffi" Dgetrf "lapack_dgetrf_ffi" getrf;
    Strsm "lapack_strsm_ffi" Dtrsm "lapack_dtrsm_ffi" trsm;
    Sgeqrf "lapack_sgeqrf_ffi" Dgeqrf "lapack_dgeqrf_ffi" geqrf;
    Sorgqr "lapack_sorgqr_ffi" Dorgqr "lapack_dorgqr_ffi" orgqr;
    Ssyevd "lapack_ssyevd_ffi" Dsyevd "lapack_dsyevd_ffi" syevd;
    Sgesdd "lapack_sgesdd_ffi" Dgesdd "lapack_dgesdd_ffi" gesdd;
}

/// Returns true if the routine of this name is computed here.
pub(crate) fn provides(name: &str) -> bool {
    PROVIDED.contains(&name)
}

/// The routines that are computed here, by LAPACK's names: `spotrf` of `lapack_spotrf_ffi`.
pub(crate) fn names() -> String {
    let short =
        |name: &&str| name.trim_start_matches("lapack_").trim_end_matches("_ffi").to_string();
    PROVIDED.iter().map(short).collect::<Vec<_>>().join(", ")
}

/// Makes the routines known to the plugin.
///
/// # Errors
/// Returns errors from the plugin.
pub(crate) fn provide(plugin: &Plugin) -> Result<()> {
    static REGISTERED: OnceLock<Result<(), String>> = OnceLock::new();
    REGISTERED
        .get_or_init(|| register_all(plugin).map_err(|error| error.to_string()))
        .clone()
        .map_err(Error::Argument)
}

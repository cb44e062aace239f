//! Names of `jax.numpy` and `jax.numpy.linalg`.

use podracer::trace::numpy::{BitOrder, Closeness};
use podracer::trace::{numpy, ops};
use podracer::{DType, Tensor};

use super::{Row, calls, items};

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    items!(rows, "jax.numpy", ops: arange, array = constant, asarray = constant, broadcast_shapes,
        concat = concatenate, concatenate, eye, full, full_like, identity = eye, linspace, logaddexp,
        matmul, ones, ones_like, stack, zeros, zeros_like);
    items!(rows, "jax.numpy", numpy: array_equal, array_equiv, bartlett, blackman, block, broadcast_arrays,
        choose, column_stack, convolve, correlate, diag_indices, digitize, dstack, einsum, fromfunction,
        geomspace, hamming, hanning, histogram, histogram2d, histogram_bin_edges, histogramdd, hstack,
        i0, indices, interp, intersect1d, ix_, kaiser, kron, lexsort, logaddexp2, logspace, matvec,
        meshgrid, piecewise, poly, polyadd, polyder, polydiv, polyfit, polyint, polymul, polysub, polyval,
        ravel_multi_index, roots, select, setdiff1d, setxor1d, tensordot, tri, tril_indices, triu_indices,
        union1d, unique_all, unravel_index, vecdot, vecmat, vstack);
    items!(rows, "jax.numpy.linalg", ops: cholesky);
    items!(rows, "jax.numpy.linalg", numpy: cond, eig, eigh, eigvals, eigvalsh, lstsq, matrix_rank, pinv, svd, svdvals, det, inv, matrix_norm, matrix_power, multi_dot, qr,
        slogdet, solve, tensordot, tensorinv, tensorsolve, vecdot);
    items!(rows, "jax.numpy.fft", numpy: fft, fft2, fftfreq, fftn, hfft, ifft, ifft2, ifftn, ihfft, irfft, irfft2,
        irfftn, rfft, rfft2, rfftfreq, rfftn);
    calls!(rows, "jax.numpy.fft":
        fftshift => |x| x.fftshift(..),
        ifftshift => |x| x.ifftshift(..),
    );
    elementwise(&mut rows);
    reductions(&mut rows);
    shapes(&mut rows);
    calls!(rows, "jax.numpy.linalg":
        cross => |x, y| x.cross(y),
        diagonal => |x| x.diagonal(),
        matmul => |x, y| x.matmul(y),
        norm => |x| (x.norm(), x.norm_along(1.0, 0)),
        outer => |x, y| x.outer(y),
        trace => |x| x.trace(),
        matrix_transpose => |x| x.matrix_transpose(),
        vector_norm => |x| x.vector_norm(2.0, 0),
    );
    rows
}

fn elementwise(rows: &mut Vec<Row>) {
    calls!(rows, "jax.numpy":
        abs => |x| x.abs(), absolute => |x| x.abs(), fabs => |x| x.abs(),
        acos => |x| x.acos(), arccos => |x| x.acos(),
        acosh => |x| x.acosh(), arccosh => |x| x.acosh(),
        add => |x, y| x + y,
        angle => |x| x.angle(),
        conj => |x| x.conj(), conjugate => |x| x.conj(),
        imag => |x| x.imag(), real => |x| x.real(),
        iscomplex => |x| x.iscomplex(), isreal => |x| x.isreal(),
        iscomplexobj => |x| x.dtype().is_complex(), isrealobj => |x| !x.dtype().is_complex(),
        sort_complex => |x| x.sort_complex(),
        asin => |x| x.asin(), arcsin => |x| x.asin(),
        asinh => |x| x.asinh(), arcsinh => |x| x.asinh(),
        atan => |x| x.atan(), arctan => |x| x.atan(),
        atan2 => |x, y| x.atan2(y), arctan2 => |x, y| x.atan2(y),
        atanh => |x| x.atanh(), arctanh => |x| x.atanh(),
        astype => |x| x.to(DType::F32),
        bitwise_and => |x, y| x & y,
        bitwise_invert => |x| !x, bitwise_not => |x| !x, invert => |x| !x,
        bitwise_left_shift => |x, y| x << y, left_shift => |x, y| x << y,
        bitwise_or => |x, y| x | y,
        bitwise_right_shift => |x, y| x >> y, right_shift => |x, y| x >> y,
        bitwise_xor => |x, y| x ^ y,
        cbrt => |x| x.cbrt(), ceil => |x| x.ceil(),
        clip => |x, low, high| x.clip(low, high),
        cos => |x| x.cos(), cosh => |x| x.cosh(),
        divide => |x, y| x / y, true_divide => |x, y| x / y,
        equal => |x, y| x.eq(y), exp => |x| x.exp(), exp2 => |x| x.exp2(), expm1 => |x| x.expm1(),
        floor => |x| x.floor(), floor_divide => |x, y| x.floor_div(y),
        greater => |x, y| x.gt(y), greater_equal => |x, y| x.ge(y),
        hypot => |x, y| x.hypot(y),
        isfinite => |x| x.is_finite(), isinf => |x| x.is_inf(), isnan => |x| x.is_nan(),
        less => |x, y| x.lt(y), less_equal => |x, y| x.le(y),
        log => |x| x.log(), log10 => |x| x.log10(), log1p => |x| x.log1p(), log2 => |x| x.log2(),
        logical_and => |x, y| x & y, logical_not => |x| !x,
        logical_or => |x, y| x | y, logical_xor => |x, y| x ^ y,
        maximum => |x, y| x.maximum(y), minimum => |x, y| x.minimum(y),
        mod => |x, y| x.modulo(y), remainder => |x, y| x.modulo(y),
        multiply => |x, y| x * y, negative => |x| -x, not_equal => |x, y| x.ne(y),
        pow => |x, y| x.pow(y), power => |x, y| x.pow(y),
        reciprocal => |x| x.reciprocal(), rint => |x| x.round(), round => |x| x.round(), around => |x| x.round(),
        sign => |x| x.sign(), sin => |x| x.sin(), sinh => |x| x.sinh(),
        sqrt => |x| x.sqrt(), square => |x| x.square(), subtract => |x, y| x - y,
        tan => |x| x.tan(), tanh => |x| x.tanh(), trunc => |x| x.trunc(),
        where => |p, x, y| ops::where_(p, x, y),
        allclose => |x, y| x.allclose(y, Closeness::default()),
        bitwise_count => |x| x.bitwise_count(), copysign => |x, y| x.copysign(y),
        deg2rad => |x| x.deg2rad(), radians => |x| x.deg2rad(),
        degrees => |x| x.rad2deg(), rad2deg => |x| x.rad2deg(),
        divmod => |x, y| x.divmod(y), float_power => |x, y| x.pow(y), fmax => |x, y| x.fmax(y),
        fmin => |x, y| x.fmin(y), fmod => |x, y| x % y, frexp => |x| x.frexp(),
        gcd => |x, y| x.gcd(y), heaviside => |x, y| x.heaviside(y),
        isclose => |x, y| x.isclose(y, Closeness::default()),
        isneginf => |x| x.is_neginf(), isposinf => |x| x.is_posinf(),
        lcm => |x, y| x.lcm(y), ldexp => |x, i| x.ldexp(i), modf => |x| x.modf(),
        spacing => |x| x.spacing(), nan_to_num => |x| x.nan_to_num(0.0), nextafter => |x, y| x.nextafter(y),
        packbits => |x| x.packbits(0, BitOrder::Big), positive => |x| x, signbit => |x| x.signbit(),
        sinc => |x| x.sinc(), unpackbits => |x| x.unpackbits(0, BitOrder::Big),
    );
}

fn reductions(rows: &mut Vec<Row>) {
    calls!(rows, "jax.numpy":
        all => |x| x.all(..), amax => |x| x.max(..), amin => |x| x.min(..), any => |x| x.any(..),
        argmax => |x| x.argmax(0), argmin => |x| x.argmin(0), argsort => |x| x.argsort(0),
        average => |x, w| x.average(w, ..), bincount => |x| x.bincount(3),
        count_nonzero => |x| x.count_nonzero(..),
        cumprod => |x| x.cumprod(0), cumsum => |x| x.cumsum(0), diff => |x| x.diff(0),
        isin => |x, y| x.isin(y), max => |x| x.max(..), mean => |x| x.mean(..),
        median => |x| x.median(0), min => |x| x.min(..), nanmax => |x| x.nanmax(..),
        nanmean => |x| x.nanmean(..), nanmin => |x| x.nanmin(..), nansum => |x| x.nansum(..),
        nonzero => |x| x.nonzero(3, 0), prod => |x| x.prod(..), ptp => |x| x.ptp(..),
        quantile => |x| x.quantile(0.5, 0), searchsorted => |x, v| x.searchsorted(v, false),
        sort => |x| x.sort(0), std => |x| x.std(..), sum => |x| x.sum(..), var => |x| x.var(..),
        argpartition => |x| x.argpartition(1, 0), argwhere => |x| x.argwhere(3, 0),
        corrcoef => |x| x.corrcoef(), cov => |x| x.cov(1),
        cumulative_prod => |x| x.cumulative_prod(0), cumulative_sum => |x| x.cumulative_sum(0),
        ediff1d => |x| x.ediff1d(), flatnonzero => |x| x.flatnonzero(3, 0),
        gradient => |x| x.gradient(1.0, 0), nanargmax => |x| x.nanargmax(0),
        nanargmin => |x| x.nanargmin(0), nancumprod => |x| x.nancumprod(0),
        nancumsum => |x| x.nancumsum(0), nanmedian => |x| x.nanmedian(0),
        nanpercentile => |x| x.nanpercentile(50.0, 0), nanprod => |x| x.nanprod(..),
        nanquantile => |x| x.nanquantile(0.5, 0), nanstd => |x| x.nanstd(.., 0),
        nanvar => |x| x.nanvar(.., 0), partition => |x| x.partition(1, 0),
        percentile => |x| x.percentile(50.0, 0), trapezoid => |x| x.trapezoid(1.0, 0),
        unique => |x| x.unique(3), unique_counts => |x| numpy::unique_all(x, 3).counts,
        unique_inverse => |x| numpy::unique_all(x, 3).inverse,
        unique_values => |x| numpy::unique_all(x, 3).values, unwrap => |x| x.unwrap(0),
    );
}

fn shapes(rows: &mut Vec<Row>) {
    calls!(rows, "jax.numpy":
        array_split => |x| x.array_split(3, 0), broadcast_to => |x| x.broadcast_to([2, 3]),
        copy => |x| Tensor::clone(&x), cross => |x, y| x.cross(y), diag => |x| x.diag(),
        diagonal => |x| x.diagonal_of(0, 0, 1), dot => |x, y| x.matmul(y),
        expand_dims => |x| x.expand_dims(0), flip => |x| x.flip(0), inner => |x, y| x.inner(y),
        moveaxis => |x| x.moveaxis(0, 1), ndim => |x| x.rank(), outer => |x, y| x.outer(y),
        pad => |x| x.pad(&[1], &[1], 0.0), permute_dims => |x| x.transpose(&[1, 0]),
        ravel => |x| x.ravel(), repeat => |x| x.repeat(2, 0), reshape => |x| x.reshape([2, 3]),
        roll => |x| x.roll(1, 0), rot90 => |x| x.rot90(1, 0, 1), shape => |x| x.shape(),
        size => |x| x.numel(), split => |x| x.split(2, 0), squeeze => |x| x.squeeze(0),
        swapaxes => |x| x.swapaxes(0, 1), take => |x, i| x.take(i, 0),
        take_along_axis => |x, i| x.take_along_axis(i, 0), tile => |x| x.tile(2, 0),
        trace => |x| x.trace_of(0, 0, 1), transpose => |x| x.t(), tril => |x| x.tril(0),
        triu => |x| x.triu(0), vdot => |x, y| x.vdot(y),
        append => |x, y| x.append(y, 0),
        apply_along_axis => |x| x.apply_along_axis(0, |v| v * v),
        apply_over_axes => |x| x.apply_over_axes(.., |x, axis| x.sum(axis)),
        atleast_1d => |x| x.atleast_1d(), atleast_2d => |x| x.atleast_2d(),
        atleast_3d => |x| x.atleast_3d(), compress => |x, p| x.compress(p, 0, 3, 0.0),
        delete => |x| x.delete(&[1], 0), diag_indices_from => |x| x.diag_indices_from(),
        diagflat => |x| x.diagflat(0), dsplit => |x| x.dsplit(2),
        empty => |_x| ops::zeros([2, 3], DType::F32), empty_like => |x| ops::zeros_like(x),
        extract => |x, p| x.extract(p, 3, 0.0), fill_diagonal => |x| x.fill_diagonal(0.0),
        fliplr => |x| x.fliplr(), flipud => |x| x.flipud(), hsplit => |x| x.hsplit(2),
        insert => |x, y| x.insert(1, y, 0), matrix_transpose => |x| x.matrix_transpose(),
        place => |x, p, v| x.place(p, v), put => |x, i, v| x.put(i, v),
        put_along_axis => |x, i, v| x.put_along_axis(i, v, 0), resize => |x| x.resize([2, 3]),
        rollaxis => |x| x.rollaxis(1, 0), tril_indices_from => |x| x.tril_indices_from(0),
        triu_indices_from => |x| x.triu_indices_from(0), unstack => |x| x.unstack(0),
        vander => |x| x.vander(3), vsplit => |x| x.vsplit(2),
    );
}

//! Names of `jax.lax`.

use podracer::DType;
use podracer::trace::op::ReduceOp;
use podracer::trace::{control, numpy, ops, remat};

use super::{Row, calls, items};

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    items!(rows, "jax.lax", ops: all_gather, all_to_all, axis_index, axis_size, broadcast_shapes, complex, concatenate,
        conv_general_dilated, conv_transpose, div, dot_general, fft, full, full_like, gather, pmax, pmean,
        pmin, polygamma, stack, ppermute, psum, psum_scatter, scatter, select = where_, select_n = where_, sort_key_val = sort_by);
    items!(rows, "jax.lax", numpy: mulhi, ragged_dot, reduce, betainc, igamma = gammainc, igamma_grad_a, igammac = gammaincc,
        random_gamma_grad, zeta);
    items!(rows, "jax.lax", podracer: associative_scan, with_sharding_constraint);
    items!(rows, "jax.lax", remat: optimization_barrier);
    items!(rows, "jax.lax", ops: pshuffle = ppermute, pswapaxes = all_to_all);
    items!(rows, "jax.lax", control: cond, fori_loop, map, scan, switch, while_loop);
    elementwise(&mut rows);
    shapes(&mut rows);
    rows
}

fn elementwise(rows: &mut Vec<Row>) {
    calls!(rows, "jax.lax":
        abs => |x| x.abs(),
        acos => |x| x.acos(),
        acosh => |x| x.acosh(),
        add => |x, y| x + y,
        asin => |x| x.asin(),
        asinh => |x| x.asinh(),
        atan => |x| x.atan(),
        atan2 => |x, y| x.atan2(y),
        atanh => |x| x.atanh(),
        bessel_i0e => |x| x.bessel_i0e(),
        bessel_i1e => |x| x.bessel_i1e(),
        bitcast_convert_type => |x| x.bitcast(DType::U32),
        bitwise_and => |x, y| x & y,
        bitwise_not => |x| !x,
        bitwise_or => |x, y| x | y,
        bitwise_xor => |x, y| x ^ y,
        cbrt => |x| x.cbrt(),
        ceil => |x| x.ceil(),
        clz => |x| x.clz(),
        clamp => |x, low, high| x.clamp(low, high),
        convert_element_type => |x| x.to(DType::F32),
        conj => |x| x.conj(),
        cos => |x| x.cos(),
        cosh => |x| x.cosh(),
        digamma => |x| x.digamma(),
        eq => |x, y| x.eq(y),
        erf => |x| x.erf(),
        erf_inv => |x| x.erf_inv(),
        erfc => |x| x.erfc(),
        exp => |x| x.exp(),
        exp2 => |x| x.exp2(),
        expm1 => |x| x.expm1(),
        floor => |x| x.floor(),
        ge => |x, y| x.ge(y),
        gt => |x, y| x.gt(y),
        imag => |x| x.imag(),
        integer_pow => |x| x.powi(3),
        is_finite => |x| x.is_finite(),
        le => |x, y| x.le(y),
        lgamma => |x| x.lgamma(),
        log => |x| x.log(),
        log1p => |x| x.log1p(),
        logistic => |x| x.sigmoid(),
        lt => |x, y| x.lt(y),
        max => |x, y| x.maximum(y),
        min => |x, y| x.minimum(y),
        mul => |x, y| x * y,
        ne => |x, y| x.ne(y),
        neg => |x| -x,
        nextafter => |x, y| x.nextafter(y),
        population_count => |x| x.population_count(),
        pow => |x, y| x.pow(y),
        real => |x| x.real(),
        reciprocal => |x| x.reciprocal(),
        rem => |x, y| x % y,
        round => |x| x.round(),
        rsqrt => |x| x.rsqrt(),
        shift_left => |x, y| x << y,
        shift_right_arithmetic => |x, y| x >> y,
        shift_right_logical => |x, y| x.shift_right_logical(y),
        sign => |x| x.sign(),
        sin => |x| x.sin(),
        sinh => |x| x.sinh(),
        sqrt => |x| x.sqrt(),
        square => |x| x.square(),
        stop_gradient => |x| x.stop_gradient(),
        sub => |x, y| x - y,
        tan => |x| x.tan(),
        tanh => |x| x.tanh(),
    );
}

fn shapes(rows: &mut Vec<Row>) {
    calls!(rows, "jax.lax":
        argmax => |x| x.argmax(0),
        argmin => |x| x.argmin(0),
        broadcast => |x| x.broadcast_to([2, 3]),
        broadcast_in_dim => |x| x.broadcast_in_dim([2, 3], &[1]),
        broadcasted_iota => |_x| ops::iota([2, 3], 1, DType::I32),
        conv => |x, w| ops::conv_general_dilated(x, w, &ops::ConvGeneralDilated::default()),
        conv_with_general_padding => |x, w| {
            ops::conv_general_dilated(x, w, &ops::ConvGeneralDilated::default())
        },
        cumlogsumexp => |x| x.cumlogsumexp(0),
        cummax => |x| x.cummax(0),
        cummin => |x| x.cummin(0),
        cumprod => |x| x.cumprod(0),
        cumsum => |x| x.cumsum(0),
        dot => |x, y| x.matmul(y),
        batch_matmul => |x, y| x.matmul(y),
        dynamic_index_in_dim => |x, i| x.dynamic_index(0, i),
        dynamic_slice => |x, i| x.dynamic_slice(&[i], [2]),
        dynamic_slice_in_dim => |x, i| x.dynamic_slice_axis(0, i, 2),
        dynamic_update_index_in_dim => |x, i, y| x.dynamic_update_index(0, i, y),
        dynamic_update_slice => |x, i, y| x.dynamic_update_slice(y, &[i]),
        expand_dims => |x| x.expand_dims(0),
        index_in_dim => |x| x.index_axis(0, 1),
        iota => |_x| ops::arange(3, DType::I32),
        pad => |x| x.pad_interior(&[1], &[1], &[0], 0.0),
        reduce_and => |x| x.reduce_and(0),
        reduce_max => |x| x.max(0),
        reduce_min => |x| x.min(0),
        reduce_or => |x| x.reduce_or(0),
        reduce_prod => |x| x.prod(0),
        reduce_sum => |x| x.sum(0),
        reduce_xor => |x| x.reduce_xor(0),
        reduce_window => |x| x.reduce_window(ReduceOp::Sum, &numpy::WindowOptions::new(&[2])),
        reshape => |x| x.reshape([2, 3]),
        rev => |x| x.flip(0),
        scatter_add => |x, i, v| x.at(&[i]).add(v),
        scatter_max => |x, i, v| x.at(&[i]).max(v),
        scatter_min => |x, i, v| x.at(&[i]).min(v),
        scatter_mul => |x, i, v| x.at(&[i]).multiply(v),
        scatter_sub => |x, i, v| x.at(&[i]).add(-v),
        slice => |x| x.strided_slice(&[0], &[4], &[2]),
        slice_in_dim => |x| x.slice_axis(0, 1, 3),
        sort => |x| x.sort(0),
        squeeze => |x| x.squeeze(0),
        tile => |x| x.tile(2, 0),
        top_k => |x| x.top_k(2),
        transpose => |x| x.transpose(&[1, 0]),
        approx_max_k => |x| x.top_k(2),
        approx_min_k => |x| (-x).top_k(2),
        broadcast_like => |x, y| x.broadcast_to(y.shape()),
        broadcast_to_rank => |x| x.expand_dims(0),
        collapse => |x| x.flatten_from(1),
        dtype => |x| x.dtype(),
        dynamic_update_slice_in_dim => |x, i, y| x.dynamic_update_slice(y, &[i]),
        empty => |_x| ops::zeros([2, 3], DType::F32),
        index_take => |x, i| x.at(&[i]).get(),
        split => |x| x.split_at(&[1, 3], 0),
        unstack => |x| x.unstack(0),
    );
}

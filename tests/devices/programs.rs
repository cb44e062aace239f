//! Random Programs on many devices: `pmap`, and the mean over the devices, is `vmap` and the mean
//! over the examples.

use podracer::{Array, DType, Literal, Mode, Program, Sharded, Tensor, jit, pmap, pmean, vmap};

use super::devices;
use crate::recipes::cook::{Info, epsilon};
use crate::recipes::recipe::Salt;
use crate::recipes::values::stacked;
use crate::recipes::{Check, arrays, cases, hold_together, near};

fn text(error: podracer::Error) -> String {
    error.to_string()
}

/// Whether a result of every device becomes a mean: it is a float of a known size, on which the
/// rounding of sums depends, and the sum of `n` of its kind is one too.
fn averaged(dtype: DType, info: &Info, n: usize) -> bool {
    let most = if dtype == DType::F16 { 6e4 } else { 1e6 };
    dtype.is_float() && info.size() * (n as f64) < most
}

/// What is known of a mean of `n`.
fn of_mean(dtype: DType, info: &Info, n: usize) -> Info {
    if !averaged(dtype, info, n) {
        return *info;
    }
    Info { error: info.error + (n + 1) as f64 * epsilon(dtype) * info.size(), ..*info }
}

/// That `program` gives the same on `n` devices as for a batch of `n`.
fn as_a_batch(
    program: &Program,
    infos: &[Info],
    inputs: &dyn Fn(u64) -> Vec<Literal>,
    n: usize,
) -> Check {
    let devices = devices(n);
    let parts: Vec<Vec<Literal>> = (0..n as u64).map(|i| inputs(1 + i)).collect();
    let count = parts[0].len();
    // Some inputs are the same for all.
    let mut salt = Salt(program.size() as u64);
    let differs: Vec<bool> = (0..count).map(|i| i == 0 || !salt.once_in(4)).collect();
    let of = |i: usize, part: usize| &parts[if differs[i] { part } else { 0 }][i];
    let dtypes: Vec<DType> = program.output_types().map(|ty| ty.dtype).collect();
    let is_mean: Vec<bool> = dtypes.iter().zip(infos).map(|(&d, i)| averaged(d, i, n)).collect();

    let on_devices = pmap("devices", |axis, x: Vec<Tensor>| {
        let each = program.apply(&x).into_iter().zip(&is_mean);
        each.map(|(y, &mean)| if mean { pmean(y, axis) } else { y }).collect::<Vec<Tensor>>()
    });
    let args: Vec<Sharded> = (0..count)
        .map(|i| {
            let parts: Vec<Array> = (0..n).map(|part| of(i, part).clone().into()).collect();
            if differs[i] {
                Sharded::from_shards(&parts, &devices)
            } else {
                podracer::replicate(&parts[0], &devices)
            }
        })
        .collect::<podracer::Result<_>>()
        .map_err(text)?;
    let found: Vec<Literal> = on_devices
        .call(args)
        .and_then(|ys| ys.iter().map(|y| y.stack()?.to_literal()).collect())
        .map_err(text)?;

    let batch: Vec<Literal> = (0..count)
        .map(|i| match differs[i] {
            true => stacked(&(0..n).map(|part| of(i, part)).collect::<Vec<_>>()),
            false => of(i, 0).clone(),
        })
        .collect();
    let of_batch = |x: Vec<Tensor>| {
        let mapped = (0..count).filter(|&i| differs[i]).map(|i| x[i]).collect();
        let each = vmap(|mapped: Vec<Tensor>| {
            let mut mapped = mapped.into_iter();
            let of = |i: usize| if differs[i] { mapped.next().expect("one each") } else { x[i] };
            program.apply(&(0..count).map(of).collect::<Vec<_>>())
        })(mapped);
        let each = each.into_iter().zip(&is_mean);
        each.map(|(y, &mean)| if mean { y.mean([0]) } else { y }).collect::<Vec<Tensor>>()
    };
    let infos: Vec<Info> = dtypes.iter().zip(infos).map(|(&d, info)| of_mean(d, info, n)).collect();
    for mode in [Mode::Jit, Mode::Interpret] {
        let expected: Vec<Array> =
            jit(of_batch).with_mode(mode).call(arrays(&batch)).map_err(text)?;
        let expected: Vec<Literal> = expected
            .iter()
            .zip(&is_mean)
            .map(|(y, &mean)| {
                let y = y.to_literal()?;
                // Every device has the mean.
                Ok(if mean { stacked(&vec![&y; n]) } else { y })
            })
            .collect::<podracer::Result<_>>()
            .map_err(text)?;
        near(&found, &expected, &infos).map_err(|fault| format!("{n} devices, {mode}: {fault}"))?;
    }
    Ok(())
}

#[test]
fn random_programs_on_many_devices() {
    for (stream, n) in [(11, 2), (12, 4), (13, 8)] {
        hold_together("pmap", stream, cases().div_ceil(3), &|program, infos, inputs| {
            as_a_batch(program, infos, inputs, n)
        });
    }
}

use smallvec::SmallVec;

use super::super::problem::{Algorithm, Epilogue, Kind, Problem, Window};
use super::images::{OutputEpilogue, Transforms};
use super::kernel::{kernel_gradient, transform_kernel};
use super::tiling::Tiling;
use super::vector::Simd;
use crate::trace::types::DType;

/// The tiling of a convolution of images with 16 channels, to 32 features.
fn tiling(kind: Kind, source: usize, kernel: usize, stride: usize, low: usize) -> Tiling {
    let end = source + 2 * low;
    let destination = (end - kernel) / stride + 1;
    let window = Window { source, kernel, destination, stride, dilation: 1, low, high: low };
    let problem = Problem {
        kind,
        epilogue: Epilogue::None,
        algorithm: Algorithm::Winograd,
        dtype: DType::F32,
        byte_scale: None,
        parts: 1,
        batch: 1,
        groups: 1,
        channels: 16,
        features: 32,
        windows: SmallVec::from_slice(&[window; 2]),
        weights_strides: SmallVec::from_slice(&[0, 1, 32, kernel * 16 * 32, 16 * 32]),
    };
    Tiling::of(&problem).expect("it has tiles")
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5).collect()
}

/// The results of all transforms of an image and a kernel, one after another.
fn all(tiling: Tiling, simd: Simd) -> Vec<f32> {
    let count = tiling.tile_count();
    // The tiles of another image are before this one's.
    let transforms = Transforms { tiling, simd, rows: 2 * count, byte_scale: 0.1 };
    let [source, destination] =
        [tiling.depth(), tiling.features].map(|width| numbers(16 * transforms.rows * width));
    let (mut inputs, mut products) = (source.clone(), destination.clone());
    let next = numbers(100);
    transforms.input(&numbers(tiling.source_len()), &next, &mut inputs, count);
    transforms.output_transposed(&numbers(tiling.destination_len()), &next, &mut products, count);
    let mut image = numbers(tiling.source_len());
    transforms.input_transposed(&source, &mut image, count);
    let mut results = [&inputs[..], &products, &image].concat();
    let bytes: Vec<u8> = (0..tiling.source_len()).map(|i| (i * 7919 % 251) as u8).collect();
    transforms.input(&bytes, &[7; 100], &mut inputs, count);
    results.extend(inputs);
    let bias = numbers(tiling.features);
    for epilogue in [
        OutputEpilogue { bias: None, relu: false },
        OutputEpilogue { bias: Some(&bias), relu: true },
    ] {
        let mut image = numbers(tiling.destination_len());
        transforms.output(&destination, epilogue, &mut image, count);
        results.extend(image);
    }
    let mut kernel = numbers(tiling.kernel_span());
    for transposed in [false, true] {
        let mut to = vec![0.0; tiling.kernel_transform_len()];
        transform_kernel(&tiling, simd, &kernel, transposed, &mut to);
        results.extend(to);
    }
    let parts = [numbers(tiling.kernel_transform_len()), vec![0.25; tiling.kernel_transform_len()]];
    kernel_gradient(&tiling, simd, &[&parts[0], &parts[1]], &mut kernel);
    results.extend(kernel);
    results
}

/// One number at a time gives the same bits.
#[test]
fn all_vectors_give_the_same() {
    let cases = [
        tiling(Kind::Forward, 20, 4, 2, 0),
        tiling(Kind::Forward, 11, 3, 1, 1),
        tiling(Kind::Forward, 7, 3, 1, 2),
        tiling(Kind::BackwardData, 12, 2, 1, 0),
    ];
    for tiling in cases {
        let expected = all(tiling, Simd::scalar());
        for simd in Simd::available() {
            let got = all(tiling, simd);
            let differ = got.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differ, None, "{simd:?} {tiling:?}");
        }
    }
}

/// A negative zero becomes zero; NaN stays.
#[test]
fn relu_of_special_values() {
    let tiling = tiling(Kind::Forward, 11, 3, 1, 1);
    for simd in Simd::available().chain([Simd::scalar()]) {
        let transforms = Transforms { tiling, simd, rows: tiling.tile_count(), byte_scale: 1.0 };
        for (value, expected) in [(-0.0f32, 0.0f32), (f32::NAN, f32::NAN), (-1.0, 0.0), (2.0, 2.0)]
        {
            let bias = vec![value; tiling.features];
            let zeros = vec![-0.0; 16 * transforms.rows * tiling.features];
            let mut image = vec![9.0; tiling.destination_len()];
            transforms.output(
                &zeros,
                OutputEpilogue { bias: Some(&bias), relu: true },
                &mut image,
                0,
            );
            assert!(image.iter().all(|x| x.to_bits() == expected.to_bits()), "{simd:?} {value}");
        }
    }
}

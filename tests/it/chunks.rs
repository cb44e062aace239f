//! Many cases from a file of JAX's numbers: arrays packed in one, and programs that run several at once.

use podracer::trace::literal::AlignedBytes;
use podracer::{DType, Literal, TensorType};

/// The arrays in a vector of bytes, as the scripts write them: each has its element type, its rank and
/// sizes in a byte each, and its elements.
pub fn unpack(bytes: &Literal) -> Vec<Literal> {
    let bytes = bytes.to_vec::<u8>().unwrap();
    let (mut rest, mut arrays) = (&bytes[..], Vec::new());
    while let [dtype, rank, tail @ ..] = rest {
        let (sizes, tail) = tail.split_at(usize::from(*rank));
        let sizes: Vec<usize> = sizes.iter().map(|&size| size.into()).collect();
        let ty = TensorType::new(DType::ALL[usize::from(*dtype)], &sizes[..]);
        let (data, tail) = tail.split_at(ty.bytes());
        arrays.push(Literal::from_bytes(ty, AlignedBytes::copy_of(data)));
        rest = tail;
    }
    arrays
}

/// Runs cases many at a time, and alone those of a chunk that ends with an error. Returns the faults
/// that `run` adds, and the errors by the name of the case.
pub fn in_chunks<C>(
    cases: &[C],
    size: usize,
    name: impl Fn(&C) -> &'static str,
    run: impl Fn(&[C], &mut Vec<String>) -> podracer::Result<()>,
) -> Vec<String> {
    let mut faults = Vec::new();
    for chunk in cases.chunks(size) {
        if run(chunk, &mut faults).is_ok() {
            continue;
        }
        for case in chunk {
            if let Err(error) = run(std::slice::from_ref(case), &mut faults) {
                faults.push(format!("{}: {error}", name(case)));
            }
        }
    }
    faults
}

//! Operations that refuse the types for storage; their arrays on devices, and their text.

use podracer::random::{Key, randint};
use podracer::trace::ops::{arange, constant};
use podracer::{
    Array, DType, F8E4M3FN, F8E5M2, I4, Literal, Program, Tensor, TensorType, U4, grad, interpret,
    jit, make_program, pure_callback, vmap,
};

/// The first line of the error of a function of three numbers.
fn message(dtype: DType, f: impl Fn(Tensor) -> Tensor) -> String {
    let error = make_program(f, &Array::zeros([3], dtype)).expect_err("it is refused");
    error.to_string().lines().next().unwrap_or_default().to_string()
}

#[test]
fn arithmetic_is_refused_with_advice() {
    let advice = |dtype: DType| {
        format!(
            "is not defined for {dtype}[3]: {dtype} is for storage; convert from or to another \
             type with .to(dtype)"
        )
    };
    for dtype in [DType::F8E4M3FN, DType::F8E5M2, DType::I4, DType::U4] {
        let refused = |name: &str, f: fn(Tensor) -> Tensor| {
            assert_eq!(message(dtype, f), format!("{name}: {}", advice(dtype)));
        };
        refused("add", |x| x + x);
        refused("maximum", |x| x.maximum(1));
        refused("neg", |x| -x);
        refused("lt", |x| x.lt(x));
        refused("sum", |x| x.sum(..));
        refused("sort", |x| x.sort(0));
        refused("argmax", |x| x.argmax(0));
        refused("clamp", |x| x.clamp(0, 1));
        refused("matmul", |x| x.matmul(x));
        let text = message(dtype, |x| x.at(&[constant([0])]).add(x.slice_axis(0, 0, 1)));
        assert!(text.contains(&advice(dtype)), "{text}");
        let text = message(dtype, move |_| arange(3, dtype));
        assert!(text.ends_with(&advice(dtype)), "{text}");
    }
    let text = message(DType::I4, |x| x.bitcast(DType::U8));
    assert!(text.contains("not defined between i4[3] and u8"), "{text}");
    let same = TensorType::new(DType::I4, [3]);
    let text = message(DType::I4, |x| pure_callback(|x: Literal| Ok(x), same.clone(), x));
    assert!(text.contains("takes no 4-bit integers, got i4[3]"), "{text}");
    let text = message(DType::I4, |x| x.take(constant([0]), 0).maximum(9));
    assert!(text.contains("9 is out of range for i4"), "{text}");
}

#[test]
fn sums_of_cotangents_round_once() {
    // JAX adds in 8 bits, and has 32 here.
    let f = |x: Tensor| x.broadcast_to([100]).to(DType::F32).sum(..);
    let x = Array::from(F8E5M2::from_f32(0.5));
    for compiled in [true, false] {
        let gradient = match compiled {
            true => jit(grad(f)).call(x.clone()).unwrap(),
            false => interpret(grad(f)).call(x.clone()).unwrap(),
        };
        assert_eq!(gradient.item::<F8E5M2>().unwrap().to_f64(), 96.0);
    }
}

#[test]
fn arrays_travel_between_devices_of_every_size() {
    for size in [3, 5000, 200_001] {
        let elements: Vec<i64> = (0..size).map(|i| i * 7 % 16 - 8).collect();
        let signed: Vec<I4> = elements.iter().map(|&x| I4::wrapping(x)).collect();
        let unsigned: Vec<U4> = elements.iter().map(|&x| U4::wrapping(x)).collect();
        let floats: Vec<F8E4M3FN> =
            elements.iter().map(|&x| F8E4M3FN::from_f64(x as f64)).collect();
        let shape = [elements.len()];
        let i4 = Array::new(shape, &signed).unwrap().to_device().unwrap();
        assert_eq!(i4.to_vec::<I4>().unwrap(), signed);
        let u4 = Array::new(shape, &unsigned).unwrap().to_device().unwrap();
        assert_eq!(u4.to_vec::<U4>().unwrap(), unsigned);
        let f8 = Array::new(shape, &floats).unwrap().to_device().unwrap();
        assert_eq!(f8.to_vec::<F8E4M3FN>().unwrap(), floats);
        let mut copy = vec![I4::MAX; elements.len()];
        i4.copy_to(&mut copy).unwrap();
        assert_eq!(copy, signed);
        let wide = jit(|(i, u): (Tensor, Tensor)| (i.to(DType::I32), u.to(DType::I32)));
        let (i, u) = wide.call((i4, u4)).unwrap();
        assert_eq!(
            i.to_vec::<i32>().unwrap(),
            elements.iter().map(|&x| x as i32).collect::<Vec<_>>()
        );
        assert_eq!(
            u.to_vec::<i32>().unwrap(),
            elements.iter().map(|&x| x as i32 & 15).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_batch_of_conversions_is_one_conversion() {
    let f = |x: Tensor| x.to(DType::F8E5M2).to(DType::I4);
    let x = Array::from([[1.0f32, 2.6, -9.0], [0.4, 7.9, 3.0]]);
    let (one, batched) = (jit(f).call(x.clone()).unwrap(), jit(vmap(f)).call(x).unwrap());
    assert_eq!(one.to_literal().unwrap(), batched.to_literal().unwrap());
    let expected = [1, 2, -8, 0, 7, 3].map(I4::wrapping);
    assert_eq!(one.to_vec::<I4>().unwrap(), expected);
}

#[test]
fn drawn_integers_stay_within_four_bits() {
    let draw = |low: i32, high: i32, dtype| -> Vec<i32> {
        let f = move |key: Key<Tensor>| randint(key, [64], low, high, dtype).to(DType::I32);
        interpret(f).call(Key::new(0)).unwrap().to_vec().unwrap()
    };
    assert_eq!(draw(-100, 100, DType::I4), draw(-8, 8, DType::I32));
    assert_eq!(draw(-100, 100, DType::U4), draw(0, 16, DType::I32));
}

#[test]
fn numbers_print_and_read_back() {
    let floats = [0.1, -0.0, f64::INFINITY, 2f64.powi(-16)].map(F8E5M2::from_f64);
    assert_eq!(format!("{}", Literal::from(floats)), "f8_e5m2[4] [0.09, -0, inf, 0.00002]");
    let nan = Literal::from([0x7f, 0xff, 0x7e].map(F8E4M3FN::from_bits));
    assert_eq!(format!("{nan}"), "f8_e4m3fn[3] [NaN, NaN(0xff), 450]");
    assert_eq!(format!("{}", Literal::from([-3, 7].map(I4::wrapping))), "i4[2] [-3, 7]");
    assert_eq!(format!("{}", Array::from([U4::MAX])), "[15]");
    let bits: Vec<F8E5M2> = (0..=255).map(F8E5M2::from_bits).collect();
    let fours: Vec<U4> = (0..100).map(U4::wrapping).collect();
    let tables = [Literal::from(bits), nan, Literal::from(fours), I4::MIN.into()];
    let f = |x: Tensor| -> Vec<Tensor> {
        let wide = tables.iter().map(|table| constant(table.clone()).to(DType::F32));
        wide.chain([x.to(DType::F8E4M3FN)]).collect()
    };
    let program = make_program(f, &Array::from([1.0f32])).unwrap();
    let text = program.to_text();
    assert!(text.contains("convert[dtype=f8_e4m3fn]"), "{text}");
    assert_eq!(Program::parse(&text).unwrap(), program);
    for wrong in ["i4[] 8", "u4[] 16", "u4[] -1", "f8_e5m2[] nan"] {
        let (ty, _) = wrong.split_once(' ').unwrap();
        let text = format!("{{ lambda ; . let a:{ty} = constant {wrong} in (a) }}");
        assert!(Program::parse(&text).is_err(), "{wrong}");
    }
}

#[test]
fn literals_are_equal_by_their_four_bits() {
    let from = |byte: u8| {
        let bytes = podracer::trace::literal::AlignedBytes::copy_of(&[byte]);
        Literal::from_bytes(TensorType::new(DType::I4, [1]), bytes)
    };
    assert_eq!(from(0x0f), Literal::from([I4::wrapping(-1)]));
    assert_eq!((*from(0x0f).bytes()).as_ref(), [0xff]);
}

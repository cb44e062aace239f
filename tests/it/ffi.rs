//! Native kernels: operands, results and attributes are what they are asked for as, or an error is
//! reported with its code.

use std::fmt::Write;
use std::sync::Once;

use podracer::lower::cache::Cache;
use podracer::lower::custom_calls::callbacks::callback_ids;
use podracer::lower::custom_calls::{Call, Kernel, KernelError, register};
use podracer::lower::pjrt::{Buffer, Client, Code, CompileOptions, Executable};
use podracer::runtime::Runtime;
use podracer::{
    Array, DType, Error, Literal, Result, Tensor, TensorType, jit, make_program, pure_callback,
};

fn client() -> &'static Client {
    &Runtime::get().unwrap().client
}

fn text(call: &str, operands: &[&str], results: &[&str]) -> String {
    let mut text = "module @m {\n  func.func public @main(".to_string();
    let names: Vec<String> = (0..operands.len()).map(|i| format!("%a{i}")).collect();
    let typed: Vec<String> =
        names.iter().zip(operands).map(|(name, ty)| format!("{name}: {ty}")).collect();
    let (count, list) = (results.len(), results.join(", "));
    let outputs: Vec<String> =
        (0..count).map(|i| if count == 1 { "%r".to_string() } else { format!("%r#{i}") }).collect();
    write!(
        text,
        "{}) -> ({list}) {{\n    %r:{count} = stablehlo.custom_call @{}({}) {{api_version = 4 : i32, \
         {}}} : ({}) -> ({list})\n    return {} : {list}\n  }}\n}}\n",
        typed.join(", "),
        call.split_once(' ').unwrap().0,
        names.join(", "),
        call.split_once(' ').unwrap().1,
        operands.join(", "),
        outputs.join(", "),
    )
    .unwrap();
    if count == 1 { text.replace("%r:1", "%r") } else { text }
}

fn run(executable: &Executable, inputs: &[Literal]) -> Result<Vec<Vec<u8>>> {
    let buffers = inputs
        .iter()
        .map(|x| client().buffer_from_host((*x.bytes()).as_ref(), x.ty(), 0))
        .collect::<Result<Vec<Buffer>>>()?;
    let mut outputs = Vec::new();
    executable.execute(&buffers, &[], &mut outputs)?;
    let read = |buffer: &Buffer| {
        let mut bytes = vec![0; buffer.ty().bytes()];
        buffer.copy_to_host(&mut bytes).map(|()| bytes)
    };
    outputs.iter().map(read).collect()
}

/// Does what the attribute `what` says.
struct Everything;

impl Kernel for Everything {
    const TARGET: &'static str = "test.everything.1";

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        match call.text("what")? {
            "attributes" => {
                assert_eq!(call.attribute::<i64>("i")?, -7);
                assert_eq!(call.attribute::<i32>("small")?, 7);
                assert_eq!(call.attribute::<f32>("f")?, 0.5);
                assert_eq!(call.attribute::<f64>("d")?, 0.25);
                assert!(call.attribute::<bool>("b")?);
                assert_eq!(call.array::<i64>("list")?, [3, -4]);
                assert_eq!(call.array::<f32>("floats")?, [1.5, 2.0]);
                call.write(0, &[1.0f32])?;
            }
            "several" => {
                assert_eq!((call.num_operands(), call.num_results()), (3, 3));
                let x = call.operand::<f32>(0)?;
                let flags = call.operand::<bool>(1)?.data;
                assert_eq!((x.dims, flags), (&[2i64, 2][..], &[true, false][..]));
                assert_eq!(call.raw_operand(2)?.ty, TensorType::new(DType::BF16, [1]));
                assert_eq!(call.raw_operand(2)?.bytes.len(), 2);
                for (y, x) in call.result::<f32>(0)?.iter_mut().zip(x.data) {
                    *y = 2.0 * x;
                }
                call.write(1, &[!flags[0], !flags[1]])?;
                let scalar = call.raw_result(2)?;
                assert_eq!(scalar.ty, TensorType::scalar(DType::I64));
                scalar.bytes.copy_from_slice(&(-5i64).to_ne_bytes());
            }
            "empty" => {
                assert_eq!(call.operand::<f32>(0)?.dims, [2, 0]);
                assert_eq!(call.operand::<f64>(1)?.dims, [0]);
                call.result::<f64>(0)?.fill(1.0);
            }
            "code" => return Err(KernelError::new(Code::OutOfRange, "nothing is in range")),
            "panic" => panic!("this is {}", "the end"),
            "zero" => return Err("a\0b".into()),
            "operand type" => _ = call.operand::<i32>(0)?,
            "result type" => _ = call.result::<i32>(0)?,
            "no operand" => _ = call.operand::<f32>(1)?,
            "no result" => _ = call.result::<f32>(1)?,
            "twice" => {
                let first = call.result::<f32>(0)?;
                first.fill(0.0);
                call.result::<f32>(0)?.fill(first[0]);
            }
            "two results" => {
                let first = call.result::<f32>(0)?;
                let second = call.result::<f32>(1)?;
                first.fill(1.0);
                second.fill(2.0);
            }
            "no bool" => call.raw_result(1)?.bytes.fill(2),
            "too few" => call.write(0, &[] as &[f32])?,
            "no attribute" => _ = call.attribute::<i64>("none")?,
            "attribute type" => _ = call.attribute::<f32>("i")?,
            "attribute kind" => _ = call.attribute::<i64>("list")?,
            "array kind" => _ = call.array::<i64>("what")?,
            "text kind" => _ = call.text("i")?,
            other => return Err(format!("no such case: {other}").into()),
        }
        Ok(())
    }
}

fn everything(what: &str, operands: &[&str], results: &[&str]) -> Executable {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| assert!(register::<Everything>(client().plugin()).unwrap()));
    let config = format!(
        "test.everything.1 has_side_effect = true, backend_config = {{what = \"{what}\", i = -7 : i64, \
         small = 7 : i32, f = 0.5 : f32, d = 0.25 : f64, b = true, list = array<i64: 3, -4>, floats = \
         array<f32: 1.5, 2.0>}}"
    );
    client().compile(&text(&config, operands, results), &CompileOptions::default()).unwrap()
}

#[test]
fn attributes_are_read_by_name() {
    let executable = everything("attributes", &["tensor<f32>"], &["tensor<f32>"]);
    assert_eq!(run(&executable, &[0.0f32.into()]).unwrap(), [1.0f32.to_ne_bytes()]);
}

#[test]
fn several_operands_and_results() {
    let executable = everything(
        "several",
        &["tensor<2x2xf32>", "tensor<2xi1>", "tensor<1xbf16>"],
        &["tensor<2x2xf32>", "tensor<2xi1>", "tensor<i64>"],
    );
    let inputs = [
        Literal::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0]),
        [true, false].into(),
        [half::bf16::ONE].into(),
    ];
    let outputs = run(&executable, &inputs).unwrap();
    assert_eq!(outputs[0], bytemuck::bytes_of(&[2.0f32, 4.0, 6.0, 8.0]));
    assert_eq!(outputs[1], [0, 1]);
    assert_eq!(outputs[2], (-5i64).to_ne_bytes());
}

#[test]
fn tensors_may_be_empty() {
    let executable = everything("empty", &["tensor<2x0xf32>", "tensor<0xf64>"], &["tensor<0xf64>"]);
    let inputs = [Literal::new([2, 0], &[] as &[f32]), Literal::new([0], &[] as &[f64])];
    assert_eq!(run(&executable, &inputs).unwrap(), [Vec::<u8>::new()]);
}

#[test]
fn faults_are_errors_with_codes() {
    let fault = |what: &str| {
        let executable = everything(what, &["tensor<f32>"], &["tensor<f32>"]);
        match run(&executable, &[0.0f32.into()]).unwrap_err() {
            // Where it was met stands before it, if the run was not over when it was asked for.
            Error::Pjrt { code, message, .. } => {
                let own = message.find(Everything::TARGET).expect("the kernel is named");
                (code, message[own..].to_string())
            }
            other => panic!("{what}: {other}"),
        }
    };
    let message = [
        ("panic", "panicked: this is the end"),
        ("zero", "a\\0b"),
        ("operand type", "operand 0 is f32[], and was asked for as i32"),
        ("result type", "result 0 is f32[], and was asked for as i32"),
        ("no operand", "there is no operand 1: the call has 1"),
        ("no result", "there is no result 1: the call has 1"),
        ("twice", "result 0 was asked for twice"),
        ("too few", "result 0 is f32[], and 0 elements were given for it"),
        ("no attribute", "there is no attribute `none`"),
        ("attribute type", "attribute `i` is one i64, and was asked for as one f32"),
        ("attribute kind", "attribute `list` is an array of i64, and was asked for as one i64"),
        ("array kind", "attribute `what` is a text, and was asked for as an array of i64"),
        ("text kind", "attribute `i` is one i64, and was asked for as a text"),
    ];
    for (what, expected) in message {
        let (code, message) = fault(what);
        assert_eq!((code, &*message), (13, &*format!("test.everything.1: {expected}")), "{what}");
    }
    let expected = (11, "test.everything.1: nothing is in range".to_string());
    assert_eq!(fault("code"), expected);
}

/// Safe code would get two exclusive references to one tensor.
#[test]
fn two_results_in_one_operands_memory_are_refused() {
    let alias = |result: usize| {
        format!(
            "#stablehlo.output_operand_alias<output_tuple_indices = [{result}], operand_index = 0, \
             operand_tuple_indices = []>"
        )
    };
    everything("code", &["tensor<f32>"], &["tensor<f32>"]);
    let config = format!(
        "test.everything.1 has_side_effect = true, output_operand_aliases = [{}, {}], backend_config \
         = {{what = \"two results\"}}",
        alias(0),
        alias(1)
    );
    let text = text(&config, &["tensor<4xf32>"], &["tensor<4xf32>", "tensor<4xf32>"]);
    let executable = client().compile(&text, &CompileOptions::default()).unwrap();
    let error = run(&executable, &[Literal::from([1.0f32; 4])]).unwrap_err().to_string();
    assert!(error.contains("result 1 has the memory of result 0, which was asked for"), "{error}");
}

#[test]
fn bytes_that_are_no_bools_are_refused() {
    let executable = everything("no bool", &["tensor<f32>"], &["tensor<f32>", "tensor<3xi1>"]);
    let error = run(&executable, &[0.0f32.into()]).unwrap_err().to_string();
    assert!(error.contains("result 1 has bytes other than 0 and 1 as bools"), "{error}");
}

#[test]
fn a_cached_executable_calls_the_function_of_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path(), 1 << 20);
    let double = |x: Tensor| {
        let f = |x: Literal| Ok(Literal::from(2.0 * x.to_vec::<f32>()?[0]));
        pure_callback(f, x.ty(), x)
    };
    // Each time another function, of another number, and the same text.
    let lowered = || jit(double).lower(&Array::from(1.0f32)).unwrap();
    let (one, other) = (lowered(), lowered());
    let options = CompileOptions::default();
    let (_, first) = cache.compile(client(), one.stablehlo(), &options).unwrap();
    let (executable, second) = cache.compile(client(), other.stablehlo(), &options).unwrap();
    assert_eq!((first.hit, second.hit), (false, true));
    let of_other = callback_ids(other.program());
    assert_ne!(of_other, callback_ids(one.program()));
    let inputs = || [Literal::from(21.0f32), Literal::from(&of_other[..])];
    assert_eq!(run(&executable, &inputs()).unwrap(), [42.0f32.to_ne_bytes()]);
    // Without its function it says so.
    drop(other);
    let error = run(&executable, &inputs()).unwrap_err();
    assert!(error.to_string().contains("is no longer there"), "{error}");
}

#[test]
fn numbers_of_functions_are_not_given_twice() {
    let id = |program: podracer::Program| program.callbacks()[0].f.id();
    let one = || {
        let f = |x: Tensor| pure_callback(Ok, x.ty(), x);
        make_program(f, &Array::from(1.0f32)).unwrap()
    };
    let (a, b) = (one(), one());
    assert!(a != b && a == a.clone());
    let before = id(b).max(id(a));
    assert!(id(one()) > before);
}

//! Exported functions: what JAX wrote runs here, what is written here is read back, and what is no
//! usable artifact is refused. `tests/interop` shows that JAX reads what is written here.

use std::collections::BTreeMap;

use podracer::export::Exported;
use podracer::export::artifact::{Artifact, PyTree};
use podracer::lower::stablehlo::Platform;
use podracer::trace::control::scan;
use podracer::trace::numpy::{self, FftNorm};
use podracer::{Array, Complex, DType, Literal, Tensor, TensorType, Tree, grad, jit};

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("tests/fixtures/export/{name}.jaxexport")).unwrap()
}

fn import(name: &str) -> Exported {
    Exported::from_bytes(&fixture(name)).unwrap()
}

/// What JAX was given and gave, leaf by leaf.
#[derive(serde::Deserialize)]
struct Values {
    r#in: Vec<Vec<f64>>,
    out: Vec<Vec<f64>>,
}

fn values() -> BTreeMap<String, Values> {
    let text = std::fs::read_to_string("tests/fixtures/export/values.json").unwrap();
    serde_json::from_str(&text).unwrap()
}

fn array(ty: &TensorType, values: &[f64]) -> Array {
    if ty.dtype == DType::C64 {
        let parts = values.chunks_exact(2);
        let elements: Vec<Complex<f32>> =
            parts.map(|z| Complex::new(z[0] as f32, z[1] as f32)).collect();
        return Array::from(Literal::new(ty.shape.clone(), &elements));
    }
    fn of<T: podracer::trace::literal::Element>(ty: &TensorType, values: &[f64]) -> Array {
        let one = |&x: &f64| {
            Literal::filled(TensorType::scalar(T::DTYPE), x).as_splat::<T>().expect("of this type")
        };
        let elements: Vec<T> = values.iter().map(one).collect();
        Array::from(Literal::new(ty.shape.clone(), &elements))
    }
    podracer::with_element!(ty.dtype, T => of::<T>(ty, values))
}

#[test]
fn what_jax_exports_runs_here() {
    for (name, values) in values() {
        let exported = import(&name);
        assert_eq!(exported.in_types().len(), values.r#in.len(), "{name}");
        let args: Vec<Array> =
            exported.in_types().iter().zip(&values.r#in).map(|(ty, x)| array(ty, x)).collect();
        let results = exported.call(&args).unwrap();
        assert_eq!(results.len(), values.out.len(), "{name}");
        for (i, (result, expected)) in results.iter().zip(&values.out).enumerate() {
            assert_eq!(result.ty(), &exported.out_types()[i]);
            let got = result.to_literal().unwrap().to_f64_vec();
            assert_eq!(got.len(), expected.len());
            for (g, e) in got.iter().zip(expected) {
                assert!((g - e).abs() <= 1e-5 * e.abs().max(1.0), "{name} {i}: {g} {e}");
            }
        }
    }
}

#[test]
fn routines_that_are_not_provided_are_refused_by_name() {
    let error = Exported::from_bytes(&fixture("hessenberg")).unwrap_err().to_string();
    assert!(error.contains("calls lapack_sgehrd_ffi (LAPACK), not provided here"), "{error}");
    assert!(error.contains("spotrf, dpotrf, sgetrf"), "{error}");
    assert!(error.contains("trace::numpy has eig"), "{error}");
}

/// The file of a function of one `f32[4]` with this module.
fn with_module(module: &str) -> Exported {
    let bytes = jit(|x: Tensor| x.sin()).export(&Array::zeros([4], DType::F32)).unwrap().to_bytes();
    let artifact = Artifact { module: module.into(), ..Artifact::decode(&bytes).unwrap() };
    Exported::from_bytes(&artifact.encode()).unwrap()
}

/// Modules that fail a check of XLA's: the process that compiles them ends.
#[test]
fn modules_that_end_the_compiler_are_errors() {
    let zeros = [Array::zeros([4], DType::F32)];
    let topk = "module @m { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { \
                %y = stablehlo.custom_call @mhlo.topk(%x) : (tensor<4xf32>) -> tensor<4xf32> \
                return %y : tensor<4xf32> } }";
    let endless = "module @m { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { \
                   %y = call @main(%x) : (tensor<4xf32>) -> tensor<4xf32> \
                   return %y : tensor<4xf32> } }";
    for module in [topk, endless, "module @main {", "@main"] {
        let error = with_module(module).call(&zeros).unwrap_err().to_string();
        assert!(!error.is_empty());
    }
    // The compiler still works here.
    let same = "module @m { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { \
                return %x : tensor<4xf32> } }";
    assert_eq!(with_module(same).call(&zeros).unwrap()[0].to_vec::<f32>().unwrap(), [0.0; 4]);
    let trusted = with_module(same).trusted();
    assert_eq!(trusted.call(&zeros).unwrap()[0].to_vec::<f32>().unwrap(), [0.0; 4]);
}

/// A structure without the pair of positional and keyword arguments, which all files have.
#[test]
fn functions_of_any_structure_are_printed() {
    let bytes = jit(|x: Tensor| x.sin()).export(&Array::zeros([4], DType::F32)).unwrap().to_bytes();
    for in_tree in [PyTree::Leaf, PyTree::Tuple(vec![PyTree::Leaf])] {
        let artifact = Artifact { in_tree, ..Artifact::decode(&bytes).unwrap() };
        let exported = Exported::from_bytes(&artifact.encode()).unwrap();
        assert!(exported.to_string().contains("\n  takes $ f32[4]"), "{exported}");
        let wrong = exported.call(&[Array::zeros([4], DType::I32)]).unwrap_err().to_string();
        assert!(wrong.contains("takes f32[4] at $"), "{wrong}");
        let x = Array::zeros([4], DType::F32);
        assert!(exported.call_tree::<usize, _, _>(&(x.clone(), x), &0usize).is_err());
    }
}

#[test]
fn other_files_than_regular_ones_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, std::path::Path::new("/dev/zero"), dir.path()] {
        let errors = [
            Exported::load(path).unwrap_err().to_string(),
            podracer::Program::load(path).unwrap_err().to_string(),
        ];
        for error in errors {
            assert!(error.ends_with("it is not a regular file"), "{error}");
        }
    }
}

#[derive(Tree, Clone)]
struct Params<T> {
    // Another order than that of Python's keys.
    w2: T,
    w1: T,
    b1: T,
}

#[test]
fn trees_are_matched_by_path() {
    let (exported, values) = (import("learn"), values().remove("learn").unwrap());
    let leaf = |i: usize| array(&exported.in_types()[i], &values.r#in[i]);
    // Mixed positional and keyword arguments have no tree here: a function of one keyword only.
    let [b1, w1, w2, x] = [0, 1, 2, 3].map(leaf);
    let params = Params { w2, w1, b1 };
    let error = exported.call_tree::<usize, _, _>(&(params, x), &0usize).unwrap_err().to_string();
    assert_eq!(
        error,
        "learn takes the leaves $[0].b1, $[0].w1, $[0].w2, $[1], $.target, and the tree has \
         $[0].w2, $[0].w1, $[0].b1, $[1]"
    );
    let unused = import("unused");
    let [a, b, c] = [2, 3, 2].map(|n| Array::from(vec![1.5f32; n].as_slice()));
    let (sum, ()) = unused.call_tree::<usize, _, _>(&(a, b, c), &(0usize, ())).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0, 3.0]);
}

#[test]
fn what_is_exported_here_is_read_back() {
    let update = jit(|(params, xs): (Params<Tensor>, Tensor)| {
        let loss = |p: Params<Tensor>| {
            let (last, _) = scan(|h, x| ((h.matmul(p.w1) + x).tanh(), ()), p.b1, xs);
            last.matmul(p.w2).sum(..).square()
        };
        let grads = grad(loss)(params.clone());
        (podracer::tree::zip_map(params, grads, |p: Tensor, g: Tensor| p - 0.1 * g), xs.erf())
    })
    .named("update");
    let ramp = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| 0.1 * i as f32 - 0.3).collect();
        Array::new(shape, &values).unwrap()
    };
    let args = || {
        let params = Params { w2: ramp(&[3]), w1: ramp(&[3, 3]), b1: ramp(&[3]) };
        (params, ramp(&[4, 3]))
    };
    let exported = update.export(&args()).unwrap();
    assert_eq!(exported.platforms(), ["cpu"]);
    assert_eq!(
        exported.to_string(),
        "update for cpu\n  takes $[0].b1 f32[3]\n  takes $[0].w1 f32[3,3]\n  takes $[0].w2 f32[3]\n  \
         takes $[1] f32[4,3]\n  gives $[0].b1 f32[3]\n  gives $[0].w1 f32[3,3]\n  gives $[0].w2 \
         f32[3]\n  gives $[1] f32[4,3]"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("update.jaxexport");
    exported.save(&file).unwrap();
    let loaded = Exported::load(&file).unwrap();
    assert_eq!(loaded.to_bytes(), exported.to_bytes());
    assert_eq!(loaded.in_tree(), exported.in_tree());
    assert!(matches!(loaded.in_tree(), PyTree::Tuple(both) if both.len() == 2));
    let (expected, erf) = update.call(args()).unwrap();
    let (params, other) =
        loaded.call_tree::<Array, _, _>(&args(), &(expected.clone(), erf)).unwrap();
    for (a, b) in [(params.w1, expected.w1), (params.w2, expected.w2), (params.b1, expected.b1)] {
        assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    }
    assert_eq!(other.shape().to_string(), "[4,3]");
    let lowered = update.lower(&args()).unwrap();
    assert_eq!(lowered.export().unwrap().to_bytes(), exported.to_bytes());
}

/// `earlier.jaxexport` was written by the version of before `flatbuffers`, whose layout was another: the
/// function of `what_is_exported_here_is_read_back`.
#[test]
fn files_of_earlier_versions_are_read_and_run() {
    let bytes = fixture("earlier");
    let artifact = Artifact::decode(&bytes).unwrap();
    assert_eq!(artifact.name, "update");
    assert_eq!(Artifact::decode(&artifact.encode()).unwrap(), artifact);
    let exported = Exported::from_bytes(&bytes).unwrap();
    assert_eq!(
        exported.to_string(),
        "update for cpu\n  takes $[0].b1 f32[3]\n  takes $[0].w1 f32[3,3]\n  takes $[0].w2 f32[3]\n  \
         takes $[1] f32[4,3]\n  gives $[0].b1 f32[3]\n  gives $[0].w1 f32[3,3]\n  gives $[0].w2 \
         f32[3]\n  gives $[1] f32[4,3]"
    );
    let zeros: Vec<Array> =
        exported.in_types().iter().map(|ty| Array::zeros(&ty.shape[..], DType::F32)).collect();
    for result in exported.call(&zeros).unwrap() {
        assert!(result.to_vec::<f32>().unwrap().iter().all(|x| *x == 0.0));
    }
}

#[test]
fn a_function_for_several_platforms_takes_its_place_among_them() {
    let f = jit(|x: Tensor| x * 2.0);
    let x = Array::from([1.0f32, 2.0]);
    let exported = f.export_for(&x, &[Platform::Tpu, Platform::Cpu, Platform::Cuda]).unwrap();
    let exported = Exported::from_bytes(&exported.to_bytes()).unwrap();
    assert_eq!(exported.platforms(), ["tpu", "cpu", "cuda"]);
    assert_eq!(
        exported.call(std::slice::from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap(),
        [2.0, 4.0]
    );
    let elsewhere = f.export_for(&x, &[Platform::Rocm]).unwrap();
    assert_eq!(
        elsewhere.call(&[x]).unwrap_err().to_string(),
        "program was exported for rocm, and this is cpu: export it for cpu too (platforms=[..] in \
         jax.export, Jit::export_for here)"
    );
    let none = f.export_for(&Array::from([1.0f32]), &[]).unwrap_err().to_string();
    assert!(none.contains("cannot be exported for 0 platforms"), "{none}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let exported = import("unused");
    let zeros = |n: usize| Array::zeros([n], DType::F32);
    assert_eq!(
        exported.call(&[zeros(2)]).unwrap_err().to_string(),
        "<lambda> takes 3 arrays, and 1 were given"
    );
    assert_eq!(
        exported.call(&[zeros(2), zeros(2), zeros(2)]).unwrap_err().to_string(),
        "<lambda> takes f32[3] at $[1], and f32[2] was given; an exported function has the one \
         signature that it was exported for"
    );
    let error = import("cuda").call(&[zeros(3)]).unwrap_err().to_string();
    assert!(error.starts_with("sin was exported for cuda, and this is cpu"), "{error}");
}

#[test]
fn complex_functions_are_read_back() {
    let f = |z: Tensor| (z * z.conj(), numpy::fft(z, None, -1, FftNorm::Backward).abs());
    let z = Array::from([Complex::new(1.0f32, 2.0), Complex::new(-0.5, 0.0)]);
    let bytes = jit(f).export(&z).unwrap().to_bytes();
    let results = Exported::from_bytes(&bytes).unwrap().call(&[z]).unwrap();
    let squares = results[0].to_vec::<Complex<f32>>().unwrap();
    assert_eq!(squares, [Complex::new(5.0, 0.0), Complex::new(0.25, 0.0)]);
    let sizes = results[1].to_vec::<f32>().unwrap();
    assert!((sizes[0] - 4.25f32.sqrt()).abs() < 1e-6 && (sizes[1] - 2.5).abs() < 1e-6, "{sizes:?}");
}

#[test]
fn what_needs_more_than_is_here_is_refused() {
    let cases = [
        ("symbolic", "it is for shapes with variables (f32[n,4]): export it for constant shapes"),
        ("effect", "sin has the effect "),
        (
            "small",
            "it takes or gives floats of 8 or fewer bits other than e4m3fn and e5m2, which are not",
        ),
        ("key", "it takes or gives typed PRNG keys (pass jax.random.key_data instead)"),
        ("devices", "sin was exported for 2 devices, and only functions of one device run here"),
    ];
    for (name, expected) in cases {
        let error = Exported::from_bytes(&fixture(name)).unwrap_err().to_string();
        let expected = format!("not a usable exported function: {expected}");
        assert!(error.starts_with(&expected), "{name}: {error}");
    }
}

#[test]
fn damaged_artifacts_are_refused() {
    let ours = jit(|x: Tensor| x.sin()).export(&Array::from([1.0f32; 3])).unwrap().to_bytes();
    let refused = |bytes: &[u8]| Exported::from_bytes(bytes).unwrap_err().to_string();
    for bytes in [ours.clone(), fixture("unused")] {
        for length in (0..bytes.len() - 60).step_by(7) {
            let error = refused(&bytes[..length]);
            assert!(error.starts_with("not a usable exported function: "), "{error}");
        }
    }
    for at in (0..ours.len()).step_by(11) {
        let mut bytes = ours.clone();
        bytes[at] ^= 0x10;
        let _ = Exported::from_bytes(&bytes).map(|_| assert!(at >= ours.len() - 48, "{at}"));
    }
    // JAX's files carry no checksum; damage must not do worse than an error.
    let theirs = fixture("unused");
    for at in (0..theirs.len()).step_by(3) {
        let mut bytes = theirs.clone();
        bytes[at] ^= 0x55;
        if let Ok(exported) = Exported::from_bytes(&bytes) {
            let _ = exported.to_string();
        }
    }
    assert!(refused(b"").contains("cut short or damaged"));
    let other = std::fs::read("tests/fixtures/jax/functions.safetensors").unwrap();
    assert!(refused(&other).starts_with("not a usable exported function: "));
    let error = Exported::load("no/such/file").unwrap_err().to_string();
    assert!(error.starts_with("cannot read no/such/file: "), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("damaged");
    std::fs::write(&file, &theirs[..200]).unwrap();
    let error = Exported::load(&file).unwrap_err().to_string();
    assert!(error.contains("damaged: not a usable exported function: "), "{error}");
}

#[test]
fn a_newer_version_is_refused() {
    let theirs = fixture("unused");
    // The calling convention is the only u16 of its value: the one field with a 10 in two bytes.
    let mut found = 0;
    for at in 0..theirs.len() - 1 {
        if theirs[at..at + 2] == [10, 0] {
            let mut bytes = theirs.clone();
            bytes[at] = 11;
            if let Err(error) = Exported::from_bytes(&bytes)
                && error
                    .to_string()
                    .contains("it is of a newer version (schema 3, calling convention 11;")
            {
                found += 1;
            }
        }
    }
    assert_eq!(found, 1);
    // A module of a newer dialect is tried, and runs if it uses nothing new. Where it does, the
    // versions are reported: here, an addition of a version to come.
    let add = b"add_v1";
    let at = theirs.windows(add.len()).position(|window| window == add).unwrap();
    let mut bytes = theirs.clone();
    bytes[at + 5] = b'9';
    let exported = Exported::from_bytes(&bytes).unwrap();
    let zeros = |n: usize| Array::zeros([n], DType::F32);
    let error = exported.call(&[zeros(2), zeros(3), zeros(2)]).unwrap_err().to_string();
    // Where the compiler is older, the versions are reported.
    let message =
        ["<lambda> was written in StableHLO 1.15.0, and the compiler here", "cannot compile"];
    assert!(message.iter().any(|message| error.starts_with(message)), "{error}");
    assert!(error.contains("add_v9"), "{error}");
}

#[test]
fn what_contradicts_itself_is_refused() {
    let f = jit(|(x, y): (Tensor, Tensor)| x + y).named("add");
    let x = Array::from([1.0f32, 2.0]);
    let bytes = f.export(&(x.clone(), x.clone())).unwrap().to_bytes();
    let changed = |change: &dyn Fn(&mut Artifact)| {
        let mut artifact = Artifact::decode(&bytes).unwrap();
        change(&mut artifact);
        Exported::from_bytes(&artifact.encode())
    };
    type Change<'a> = &'a dyn Fn(&mut Artifact);
    let cases: [(Change<'_>, &str); 4] = [
        (
            &|a| drop(a.in_types.pop()),
            "its structures and types do not have the same number of leaves",
        ),
        (&|a| a.kept.push(2), "it uses an argument that it does not have"),
        (&|a| a.platforms.clear(), "add names no platform"),
        (
            &|a| a.module = b"module".to_vec(),
            "it holds no MLIR module: was it written by jax.export or here?",
        ),
    ];
    for (change, expected) in cases {
        let error = changed(change).unwrap_err().to_string();
        assert_eq!(error, format!("not a usable exported function: {expected}"));
    }
    let other = changed(&|a| a.out_types[0].dtype = DType::I32).unwrap();
    assert_eq!(
        other.call(&[x.clone(), x.clone()]).unwrap_err().to_string(),
        "add says that it gives (i32[2]), but its module gives (f32[2]): the artifact is damaged"
    );
    // JAX's DisabledSafetyCheck.platform(): it may run elsewhere than where it was made for.
    let anywhere = changed(&|a| {
        a.platforms = vec!["tpu".into()];
        a.any_platform = true;
    });
    let sum = anywhere.unwrap().call(&[x.clone(), x]).unwrap();
    assert_eq!(sum[0].to_vec::<f32>().unwrap(), [2.0, 4.0]);
    // An old calling convention: the one 9 in two bytes at an even place that is read as one.
    let old = (0..bytes.len() - 60).filter(|&at| bytes[at..at + 2] == [9, 0]).filter(|&at| {
        let mut old = bytes[..bytes.len() - 48].to_vec();
        old[at] = 8;
        let message =
            "its calling convention is 8, and the oldest that is read is 9: export it again";
        Exported::from_bytes(&old).is_err_and(|error| error.to_string().contains(message))
    });
    assert_eq!(old.count(), 1);
}

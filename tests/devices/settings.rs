//! Settings of a function: each has its effect, however they are combined, or is refused.

use podracer::{Array, Jit, Mode, NamedSharding, P, Tensor, device_put, jit, make_mesh};

use super::{count, devices, error};

fn double(x: Tensor) -> Tensor {
    x * 2.0
}

#[test]
fn settings_outlive_the_shardings() {
    devices(8);
    let mesh = make_mesh(&[2], &["data"]).unwrap();
    let rows = || NamedSharding::new(&mesh, P("data"));
    let x = || device_put(&count(&[4]), rows()).unwrap();
    let f = jit(double).named("double").cache_capacity(1).assert_max_traces(1).in_shardings(rows());
    assert_eq!(f.name(), "double");
    f.call(x()).unwrap();
    let text = error(f.call(device_put(&count(&[8]), rows()).unwrap()));
    assert!(text.contains("assert_max_traces(1) does not allow"), "{text}");

    type Setting = (
        &'static str,
        fn(Jit<Tensor, Tensor, fn(Tensor) -> Tensor>) -> Jit<Tensor, Tensor, fn(Tensor) -> Tensor>,
    );
    let settings: [Setting; 5] = [
        ("no_such_flag", |f| f.compiler_option("no_such_flag", true)),
        ("mode eager", |f| f.with_mode(Mode::Eager)),
        ("mode interpret", |f| f.with_mode(Mode::Interpret)),
        ("on(1)", |f| f.on(1)),
        ("check_nans(true)", |f| f.check_nans(true)),
    ];
    for (name, set) in settings {
        let plain = || set(jit(double as fn(Tensor) -> Tensor).named("double"));
        for f in [plain().in_shardings(rows()), plain().out_shardings(rows())] {
            let text = error(f.call(x()));
            assert!(text.contains(name), "{name}: {text}");
            assert!(name == "no_such_flag" || text.contains("settings.rs"), "{text}");
        }
    }
}

#[test]
fn one_mesh_for_arguments_and_results() {
    devices(8);
    let two = make_mesh(&[2], &["data"]).unwrap();
    let four = make_mesh(&[4], &["data"]).unwrap();
    let f = jit(double)
        .in_shardings(NamedSharding::new(&two, P("data")))
        .out_shardings(NamedSharding::new(&four, P("data")));
    let x = device_put(&count(&[4]), NamedSharding::new(&two, P("data"))).unwrap();
    let text = error(f.call(x));
    assert!(text.contains("in_shardings and out_shardings of the function at"), "{text}");
    assert!(text.contains("must be for one mesh"), "{text}");
}

#[test]
fn eager_functions_run_on_the_chosen_device() {
    devices(8);
    let f = |x: Tensor| podracer::fori_loop(0, 2, |i, x: Tensor| x * 2.0 + i.to(x.dtype()), x);
    let eager = jit(f).with_mode(Mode::Eager).on(3);
    let y = eager.call(Array::from([1.0f32, 2.0])).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [5.0, 9.0]);
    // The result is where a compiled function on that device takes it.
    let y = jit(f).on(3).call(y).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [21.0, 37.0]);
    assert_eq!(eager.call(y).unwrap().to_vec::<f32>().unwrap(), [85.0, 149.0]);
    let text = error(jit(f).with_mode(Mode::Eager).on(8).call(Array::from(1.0f32)));
    assert!(text.contains("device 8 does not exist"), "{text}");
}

#[test]
fn a_lowered_function_is_compiled_for_its_device() {
    devices(8);
    let x = Array::from(1.0f32);
    jit(double).on(5).lower(&x).unwrap().compile().unwrap();
    let Err(text) = jit(double).on(8).lower(&x).unwrap().compile() else { panic!("no device 8") };
    assert!(text.to_string().contains("device 8 does not exist"), "{text}");
    let flag = jit(double).compiler_option("no_such_flag", true);
    let Err(text) = flag.lower(&x).unwrap().compile() else { panic!("no such flag") };
    assert!(text.to_string().contains("no_such_flag"), "{text}");
}

//! Time that our binding adds to a raw PJRT call: launch, wait for the first result, drop the results.
//!
//! `cargo bench --bench dispatch_raw`. Prints microseconds per call (the best of several rounds)
//! and the ratio of our call to the raw one. The raw side calls the C functions with prepared
//! argument structs, as a C program would.

mod raw;

use std::sync::Arc;
use std::time::Instant;

use podracer::error::Result;
use podracer::lower::cache::Cache;
use podracer::lower::pjrt::{Buffer, Client, CompileOptions, Executable, OptionValue, Plugin};
use podracer::native::locate_cpu_plugin;
use podracer::trace::literal::AlignedBytes;
use podracer::trace::types::{DType, TensorType};
use raw::Raw;

const ROUNDS: usize = 15;

/// Microseconds of one call, the best mean of several rounds.
fn time(calls: usize, mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..calls {
            f();
        }
        best = best.min(start.elapsed().as_secs_f64() / calls as f64 * 1e6);
    }
    best
}

/// One row of the table: raw, ours, ratio.
fn compare(name: &str, executable: &Executable, args: &[Buffer], calls: usize) -> Result<()> {
    let mut raw = Raw::new(executable, args);
    let mut outputs = Vec::new();
    let mut ours = || {
        outputs.clear();
        executable.execute(args, &[], &mut outputs).unwrap();
        outputs[0].wait().unwrap();
    };
    // Interleaved, so that both sides see the same machine.
    let (mut raw_best, mut ours_best) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        raw_best = raw_best.min(time(calls, || raw.call()));
        ours_best = ours_best.min(time(calls, &mut ours));
    }
    println!("{name:<34} {raw_best:>9.2} {ours_best:>9.2} {:>7.2}", ours_best / raw_best);
    Ok(())
}

fn zeros(client: &Client, ty: &TensorType) -> Result<Buffer> {
    client.buffer_from_shared(Arc::new(AlignedBytes::zeroed(ty.bytes())), ty, 0)
}

/// An actor-critic on 4 observations: the policy of CartPole, `batch` environments.
fn policy(batch: usize) -> (String, Vec<TensorType>) {
    let f32s = |dims: &[usize]| TensorType::new(DType::F32, dims);
    let mut types = vec![f32s(&[batch, 4])];
    let mut body = String::new();
    let mut results = Vec::new();
    let text = |dims: &[usize]| {
        format!("tensor<{}xf32>", dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x"))
    };
    for (net, heads) in [("p", 2), ("v", 1)] {
        let mut x = "%a0".to_string();
        let sizes = [4, 64, 64, heads];
        for layer in 0..3 {
            let (n, m) = (sizes[layer], sizes[layer + 1]);
            let (w, b) = (types.len(), types.len() + 1);
            types.push(f32s(&[n, m]));
            types.push(f32s(&[m]));
            let (i, k, o) = (text(&[batch, n]), text(&[n, m]), text(&[batch, m]));
            let id = format!("%{net}{layer}");
            body += &format!(
                "{id}d = stablehlo.dot_general {x}, %a{w}, contracting_dims = [1] x [0] : ({i}, {k}) -> {o}\n\
                 {id}b = stablehlo.broadcast_in_dim %a{b}, dims = [1] : ({}) -> {o}\n\
                 {id}s = stablehlo.add {id}d, {id}b : {o}\n",
                text(&[m])
            );
            x = format!("{id}s");
            if layer < 2 {
                body += &format!("{id}t = stablehlo.tanh {x} : {o}\n");
                x = format!("{id}t");
            }
        }
        results.push((x, text(&[batch, heads])));
    }
    let params: Vec<String> =
        types.iter().enumerate().map(|(i, ty)| format!("%a{i}: {}", text(&ty.shape))).collect();
    let module = format!(
        "func.func public @main({}) -> ({}, {}) {{\n{body}return {}, {} : {}, {}\n}}\n",
        params.join(", "),
        results[0].1,
        results[1].1,
        results[0].0,
        results[1].0,
        results[0].1,
        results[1].1
    );
    (module, types)
}

/// `n` independent additions of one to f32[64,64].
fn leaves(n: usize) -> String {
    let ty = "tensor<64x64xf32>";
    let params: Vec<String> = (0..n).map(|i| format!("%a{i}: {ty}")).collect();
    let mut body = format!("%one = stablehlo.constant dense<1.0> : {ty}\n");
    for i in 0..n {
        body += &format!("%r{i} = stablehlo.add %a{i}, %one : {ty}\n");
    }
    let results: Vec<String> = (0..n).map(|i| format!("%r{i}")).collect();
    let types = vec![ty; n].join(", ");
    format!(
        "func.func public @main({}) -> ({types}) {{\n{body}return {} : {types}\n}}\n",
        params.join(", "),
        results.join(", ")
    )
}

fn add(n: usize) -> String {
    let ty = format!("tensor<{n}xf32>");
    format!(
        "func.func public @main(%a: {ty}, %b: {ty}) -> {ty} {{\n\
         %0 = stablehlo.add %a, %b : {ty}\nreturn %0 : {ty}\n}}\n"
    )
}

fn main() -> Result<()> {
    let start = Instant::now();
    let plugin = Plugin::load(locate_cpu_plugin()?)?;
    println!("plugin located and loaded in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let client = Client::cpu(plugin, 1)?;
    let options = CompileOptions::default();
    // Twice in a fresh folder: compiled, then from the cache.
    let folder = std::env::temp_dir().join(format!("podracer-bench-{}", std::process::id()));
    let cache = Cache::at(&folder, 1 << 30);
    for name in ["first compilation of the process", "add f32[8]", "actor-critic"] {
        let text = if name == "add f32[8]" { add(8) } else { policy(name.len()).0 };
        let (_, miss) = cache.compile(&client, &text, &options)?;
        let (_, hit) = cache.compile(&client, &text, &options)?;
        let (miss, hit) = (miss.seconds * 1e3, hit.seconds * 1e3);
        println!("{name}: compiled in {miss:.1} ms, from the cache in {hit:.1} ms");
    }
    let _ = std::fs::remove_dir_all(folder);
    println!("{:<34} {:>9} {:>9} {:>7}", "program", "raw us", "ours us", "ratio");
    for n in [8, 900, 1100] {
        let executable = client.compile(&add(n), &options)?;
        let ty = TensorType::new(DType::F32, [n]);
        let args = [zeros(&client, &ty)?, zeros(&client, &ty)?];
        compare(&format!("add f32[{n}]"), &executable, &args, 5000)?;
    }
    let executable = client.compile(&leaves(30), &options)?;
    let ty = TensorType::new(DType::F32, [64, 64]);
    let args = (0..30).map(|_| zeros(&client, &ty)).collect::<Result<Vec<_>>>()?;
    compare("30 x (f32[64,64] + 1)", &executable, &args, 500)?;
    for batch in [1, 4, 32] {
        for eigen in [true, false] {
            let (text, types) = policy(batch);
            let flag = ("xla_cpu_multi_thread_eigen".to_string(), OptionValue::Bool(eigen));
            let options = CompileOptions { env_option_overrides: vec![flag], ..options.clone() };
            let executable = client.compile(&text, &options)?;
            let args = types.iter().map(|ty| zeros(&client, ty)).collect::<Result<Vec<_>>>()?;
            let name = format!("actor-critic f32[{batch},4] eigen={eigen}");
            compare(&name, &executable, &args, 2000)?;
            for pause in [0, 20, 200] {
                let (median, best) = paused(&executable, &args, pause);
                println!("    {pause:>3} us after the last: median {median:>6.2}, 5% {best:>6.2}");
            }
        }
    }
    Ok(())
}

/// Microseconds from launch to result with a busy pause between calls, as when an environment
/// steps: the median and the fastest twentieth. After a pause the runtime's threads sleep, and a
/// program above the inline limit pays for waking one.
fn paused(executable: &Executable, args: &[Buffer], pause_us: u64) -> (f64, f64) {
    let mut outputs = Vec::new();
    let mut samples: Vec<f64> = (0..2000)
        .map(|_| {
            let pause = Instant::now();
            while pause.elapsed().as_micros() < u128::from(pause_us) {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            outputs.clear();
            executable.execute(args, &[], &mut outputs).unwrap();
            outputs[0].wait().unwrap();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    (samples[samples.len() / 2], samples[samples.len() / 20])
}

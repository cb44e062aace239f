//! The runtime binding against the CPU plugin.

use podracer::lower::pjrt::*;
use podracer::trace::types::{DType, TensorType};
use std::path::PathBuf;

const ADD: &str = r#"module @add {
  func.func public @main(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.add %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
"#;

#[test]
fn add() {
    let p = PathBuf::from("/tmp/xcp/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
    let plugin = Plugin::load(p).unwrap();
    println!("{plugin:?} {:?}", plugin.attributes());
    let client = Client::cpu(plugin, 2).unwrap();
    println!("{client:?} {} {:?}", client.platform_version(), client.devices());
    let exe = client.compile(ADD, &CompileOptions::default()).unwrap();
    println!("{exe:?} {:?} {:?} {:?}", exe.outputs(), exe.memory_stats(), exe.cost_analysis());
    let ty = TensorType::new(DType::F32, [8]);
    let x: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let a = client.buffer_from_host(bytemuck::cast_slice(&x), &ty, 0).unwrap();
    let mut out = Vec::new();
    exe.execute([&a, &a], &[], &mut out).unwrap();
    let mut y = vec![0f32; 8];
    out[0].copy_to_host(bytemuck::cast_slice_mut(&mut y)).unwrap();
    assert_eq!(y, x.iter().map(|v| v * 2.).collect::<Vec<_>>());
    let (f, b) = exe.optimized_program().unwrap();
    println!("{f} {} {:?} {}", b.len(), exe.fingerprint(), exe.name().unwrap());
    println!(
        "{}",
        client
            .compile(
                &ADD.replace("stablehlo.add %a", "stablehlo.addd %a"),
                &CompileOptions::default()
            )
            .unwrap_err()
    );
    println!(
        "{}",
        client
            .compile(
                &ADD.replace("-> tensor<8xf32> {", "-> tensor<9xf32> {"),
                &CompileOptions::default()
            )
            .unwrap_err()
    );
}

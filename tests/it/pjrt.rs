//! The runtime binding, native parts and the executable cache, against the CPU plugin.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use podracer::doctor::{Report, State};
use podracer::error::Error;
use podracer::lower::cache::Cache;
use podracer::lower::pjrt::{Buffer, Client, CompileOptions, HostSemantics, OptionValue, Plugin};
use podracer::native::{Lock, Origin, Settings, locate_cpu_plugin};
use podracer::trace::literal::AlignedBytes;
use podracer::trace::types::{DType, TensorType};
use pretty_assertions::assert_eq;

const ADD: &str = "module @add {
  func.func public @main(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.add %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
";

/// Adds one in the memory of its argument.
const INCREMENT: &str = "module @increment {
  func.func public @main(%a: tensor<8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<8xf32>
    %0 = stablehlo.add %a, %one : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
";

/// The client of these tests: two devices, one client for all of them.
fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT
        .get_or_init(|| {
            let plugin = Plugin::load(locate_cpu_plugin().unwrap()).unwrap();
            Client::cpu(plugin, 2).unwrap()
        })
        .clone()
}

fn f32x8() -> TensorType {
    TensorType::new(DType::F32, [8])
}

fn iota() -> Vec<f32> {
    (0..8).map(|i| i as f32).collect()
}

fn to_device(client: &Client, data: &[f32], device: usize) -> Buffer {
    let ty = TensorType::new(DType::F32, [data.len()]);
    client.buffer_from_host(bytemuck::cast_slice(data), &ty, device).unwrap()
}

fn to_host(buffer: &Buffer) -> Vec<f32> {
    let mut data = vec![0f32; buffer.ty().numel()];
    buffer.copy_to_host(bytemuck::cast_slice_mut(&mut data)).unwrap();
    data
}

#[test]
fn a_module_adds_two_buffers() {
    let client = client();
    let executable = client.compile(ADD, &CompileOptions::default()).unwrap();
    assert_eq!(executable.outputs(), [f32x8()]);
    assert_eq!(executable.devices(), [0]);
    assert_eq!(executable.name().unwrap(), "add");
    assert_eq!(executable.replicas_and_partitions().unwrap(), (1, 1));
    let a = to_device(&client, &iota(), 0);
    let mut outputs = Vec::new();
    executable.execute([&a, &a], &[], &mut outputs).unwrap();
    assert_eq!(to_host(&outputs[0]), iota().iter().map(|x| x + x).collect::<Vec<_>>());
    let copy = outputs[0].copy_to_host_async().unwrap().wait().unwrap();
    let copy: &[u8] = copy.as_ref();
    assert_eq!(bytemuck::cast_slice::<u8, f32>(copy)[7], 14.0);

    let event = executable.execute_with_event([&a, &a], &[], &mut outputs).unwrap();
    event.wait().unwrap();
    assert!(outputs[1].is_ready().unwrap());
    assert_eq!(outputs[1].device().unwrap(), 0);
    assert_eq!(outputs[1].on_device_size().unwrap(), 32);
}

#[test]
fn executables_describe_themselves() {
    let executable = client().compile(ADD, &CompileOptions::default()).unwrap();
    match executable.cost_analysis() {
        Ok(costs) => assert!(costs.contains(&("flops".to_string(), 8.0)), "{costs:?}"),
        Err(error) => assert!(error.to_string().contains("is not implemented"), "{error}"),
    }
    assert_eq!(executable.memory_stats().unwrap().outputs, 32);
    let (format, program) = executable.optimized_program().unwrap();
    assert_eq!(format, "hlo_with_config");
    assert!(program.windows(3).any(|window| window == b"add"));
    assert!(!executable.fingerprint().unwrap().is_empty());
}

#[test]
fn every_dtype_travels() {
    let client = client();
    for dtype in DType::ALL {
        let ty = TensorType::new(dtype, [3, 2]);
        let data: Vec<u8> = (0..ty.bytes()).map(|i| (i % 2) as u8).collect();
        let buffer = client.buffer_from_host(&data, &ty, 1).unwrap();
        assert_eq!((buffer.device().unwrap(), buffer.ty()), (1, &ty));
        let mut back = vec![9; data.len()];
        buffer.copy_to_host(&mut back).unwrap();
        assert_eq!(back, data, "{dtype}");
    }
    // No elements, and one.
    for shape in [vec![0, 3], vec![]] {
        let ty = TensorType::new(DType::F32, shape);
        let data = vec![0; ty.bytes()];
        let mut back = data.clone();
        client.buffer_from_host(&data, &ty, 0).unwrap().copy_to_host(&mut back).unwrap();
    }
}

#[test]
fn wrong_calls_are_errors() {
    let client = client();
    let executable = client.compile(ADD, &CompileOptions::default()).unwrap();
    let a = to_device(&client, &iota(), 0);
    let short = to_device(&client, &[1.0], 0);
    let mut outputs = Vec::new();
    assert!(executable.execute([&a], &[], &mut outputs).is_err());
    assert!(executable.execute([&a, &short], &[], &mut outputs).is_err());
    assert!(outputs.is_empty());
    let error = client.buffer_from_host(&[0; 31], &f32x8(), 0).unwrap_err();
    assert_eq!(error.to_string(), "f32[8] takes 32 bytes, got 31");
    let error = client.buffer_from_host(&[0; 32], &f32x8(), 7).unwrap_err();
    assert_eq!(error.to_string(), "device 7 does not exist: the cpu client has 2 devices");
    assert!(a.copy_to_host(&mut [0; 3]).is_err());
    a.delete().unwrap();
    assert!(a.is_deleted());
    assert!(a.copy_to_host(&mut [0; 32]).is_err());
    let error = Client::cpu(client.plugin().clone(), 0).unwrap_err();
    assert_eq!(error.to_string(), "a CPU client needs at least one device, got 0");
}

#[test]
fn compile_errors_show_the_line() {
    let text = ADD.replace("stablehlo.add", "stablehlo.ad");
    let error = client().compile(&text, &CompileOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("cannot compile the program: "), "{error}");
    assert!(error.contains("custom op 'stablehlo.ad' is unknown"), "{error}");
    let line = "  line 3 of the program:\n  |     %0 = stablehlo.ad %a, %b : tensor<8xf32>\n";
    assert!(error.contains(line), "{error}");

    let flag = ("xla_no_such_flag".to_string(), OptionValue::Bool(true));
    let options = CompileOptions { env_option_overrides: vec![flag], ..CompileOptions::default() };
    let error = client().compile(ADD, &options).unwrap_err().to_string();
    assert!(error.contains("xla_no_such_flag"), "{error}");
}

/// Two operands of one exchange, which the partitioner refuses.
const REFUSED: &str = "module attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%a: tensor<f32> {mhlo.sharding = \"{replicated}\"}) -> tensor<f32> {
    %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = \"{replicated}\"}
      : (tensor<f32>) -> tensor<f32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = \"{manual}\"}
      : (tensor<f32>) -> tensor<f32>
    %2:2 = \"stablehlo.all_reduce\"(%1, %1) <{
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %3 = stablehlo.custom_call @Sharding(%2#0) {mhlo.sharding = \"{manual}\"}
      : (tensor<f32>) -> tensor<f32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = \"{replicated}\"}
      : (tensor<f32>) -> tensor<f32>
    return %4 : tensor<f32>
  }
}
";

#[test]
#[ignore = "run by failed_checks_of_the_compiler_are_one_line"]
fn print_a_failed_check() {
    let options = CompileOptions { num_partitions: 2, ..CompileOptions::default() };
    eprintln!("{}", client().compile(REFUSED, &options).unwrap_err());
}

#[test]
fn failed_checks_of_the_compiler_are_one_line() {
    let run = |level: Option<&str>| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "--ignored", "pjrt::print_a_failed_check", "--nocapture"]);
        child.env_remove("TF_CPP_MIN_LOG_LEVEL");
        child.envs(level.map(|level| ("TF_CPP_MIN_LOG_LEVEL", level)));
        let output = child.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = run(None);
    assert!(text.starts_with("cannot compile the program: RET_CHECK failure"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(run(Some("2")).contains("stack trace"), "the documented way to see it");
}

#[test]
fn donated_arguments_are_gone() {
    let client = client();
    let executable = client.compile(INCREMENT, &CompileOptions::default()).unwrap();
    let mut outputs = Vec::new();
    let a = to_device(&client, &iota(), 0);
    a.wait().unwrap();
    let address = a.unsafe_pointer().unwrap();

    // Kept for this call: the program works in a copy.
    executable.execute([&a], &[0], &mut outputs).unwrap();
    assert!(!a.is_deleted());
    assert_eq!(to_host(&a), iota());

    executable.execute([&a], &[], &mut outputs).unwrap();
    assert!(a.is_deleted());
    let b = outputs.pop().unwrap();
    b.wait().unwrap();
    assert_eq!(b.unsafe_pointer().unwrap(), address);
    let error = executable.execute([&a], &[], &mut outputs).unwrap_err().to_string();
    assert!(error.contains("donated") || error.contains("deleted"), "{error}");
    drop(a);
    assert_eq!(to_host(&b)[7], 8.0);
}

#[test]
fn zero_copy_shares_memory_and_keeps_it() {
    let client = client();
    let data = Arc::new(AlignedBytes::copy_of(bytemuck::cast_slice(&iota())));
    let bytes: &[u8] = (*data).as_ref();
    let address = bytes.as_ptr();
    let buffer = client.buffer_from_shared(data.clone(), &f32x8(), 0).unwrap();
    buffer.wait().unwrap();
    assert_eq!(buffer.unsafe_pointer().unwrap(), address);
    assert_eq!(Arc::strong_count(&data), 2);
    let executable = client.compile(ADD, &CompileOptions::default()).unwrap();
    let mut outputs = Vec::new();
    executable.execute([&buffer, &buffer], &[], &mut outputs).unwrap();
    assert_eq!(to_host(&outputs[0])[7], 14.0);
    drop((buffer, outputs));
    // The release comes on a thread of the runtime, at a time of its own.
    while Arc::strong_count(&data) > 1 {
        std::thread::yield_now();
    }

    // Misaligned memory is copied, under every semantics.
    for semantics in [
        HostSemantics::OnlyDuringCall,
        HostSemantics::UntilTransferCompletes,
        HostSemantics::ImmutableZeroCopy,
        HostSemantics::MutableZeroCopy,
    ] {
        let data = Arc::new(AlignedBytes::zeroed(36));
        let bytes: &[u8] = (*data).as_ref();
        let start = bytes[4..].as_ptr();
        // SAFETY: 32 bytes follow, and `data` is kept by the buffer.
        let buffer =
            unsafe { client.buffer_from_raw(start, &f32x8(), 0, semantics, Some(data.clone())) }
                .unwrap();
        buffer.wait().unwrap();
        assert_ne!(buffer.unsafe_pointer().unwrap(), start);
        assert_eq!(to_host(&buffer), [0.0; 8]);
    }
}

#[test]
fn replicas_add_up_their_shares() {
    let client = client();
    let text = "module attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {
    %0 = \"stablehlo.all_reduce\"(%a) ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
";
    for assignment in [None, Some(vec![0, 1])] {
        let options =
            CompileOptions { device_assignment: assignment, ..CompileOptions::replicas(2) };
        let executable = client.compile(text, &options).unwrap();
        assert_eq!(executable.devices(), [0, 1]);
        let a = to_device(&client, &[1.0, 2.0], 0);
        let b = to_device(&client, &[10.0, 20.0], 1);
        let mut outputs = [Vec::new(), Vec::new()];
        executable.execute_sharded(&[vec![&a], vec![&b]], &[], &mut outputs).unwrap();
        for (device, outputs) in outputs.iter().enumerate() {
            assert_eq!(to_host(&outputs[0]), [11.0, 22.0]);
            assert_eq!(outputs[0].device().unwrap(), device);
        }
        let error = executable.execute_sharded(&[vec![&a]], &[], &mut [vec![]]).unwrap_err();
        assert!(error.to_string().starts_with("the program runs on 2 devices"), "{error}");
    }
}

#[test]
fn portable_programs_run_anywhere() {
    let client = client();
    let executable = client.compile(ADD, &CompileOptions::portable()).unwrap();
    let a = to_device(&client, &iota(), 0);
    let error = executable.execute([&a, &a], &[], &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("execute_on"), "{error}");
    for device in 0..2 {
        let b = a.copy_to_device(device).unwrap();
        let mut outputs = Vec::new();
        executable.execute_on(device, [&b, &b], &[], &mut outputs).unwrap();
        assert_eq!((to_host(&outputs[0])[3], outputs[0].device().unwrap()), (6.0, device));
    }
}

#[test]
fn buffers_of_another_client_are_refused() {
    let other = Client::cpu(client().plugin().clone(), 1).unwrap();
    let executable = client().compile(ADD, &CompileOptions::default()).unwrap();
    let (ours, theirs) = (to_device(&client(), &iota(), 0), to_device(&other, &iota(), 0));
    let mut outputs = Vec::new();
    let error = executable.execute([&ours, &theirs], &[], &mut outputs).unwrap_err().to_string();
    assert!(error.contains("a buffer of another client than the program's"), "{error}");
    let lists = [vec![&theirs, &ours]];
    let error = executable.execute_sharded(&lists, &[], &mut [vec![]]).unwrap_err().to_string();
    assert!(error.contains("a buffer of another client than the program's"), "{error}");
}

#[test]
fn shared_memory_is_not_donated() {
    let client = client();
    let wide = INCREMENT.replace("8xf32", "65536xf32");
    let executable = client.compile(&wide, &CompileOptions::default()).unwrap();
    let a = Arc::new(to_device(&client, &vec![1.0; 1 << 16], 0));
    // Both devices of a CPU have one memory, so this is no copy.
    let b = a.on_device(1).unwrap();
    b.wait().unwrap();
    assert_eq!(b.unsafe_pointer().unwrap(), a.unsafe_pointer().unwrap());
    let mut outputs = Vec::new();
    let result = executable.execute([&*a], &[], &mut outputs);
    // Refused, or done in a copy; never in the memory that `b` shows.
    if result.is_ok() {
        assert_eq!(to_host(&outputs[0])[0], 2.0);
    }
    assert_eq!(to_host(&b)[0], 1.0);
}

#[test]
fn threads_share_everything() {
    let client = client();
    let executable = client.compile(ADD, &CompileOptions::default()).unwrap();
    let a = to_device(&client, &iota(), 0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut outputs = Vec::new();
                for _ in 0..200 {
                    outputs.clear();
                    executable.execute([&a, &a], &[], &mut outputs).unwrap();
                    assert_eq!(to_host(&outputs[0])[1], 2.0);
                }
            });
        }
    });
}

#[test]
#[cfg(all(
    feature = "malloc-hook",
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64"
))]
fn results_lie_in_kept_blocks() {
    Plugin::load(locate_cpu_plugin().unwrap()).unwrap().keep_freed_memory();
    let client = client();
    for len in [8, 1 << 23] {
        let add = ADD.replace("8xf32", &format!("{len}xf32"));
        let executable = client.compile(&add, &CompileOptions::default()).unwrap();
        let a = to_device(&client, &vec![1.5; len], 0);
        for _ in 0..3 {
            let mut outputs = Vec::new();
            executable.execute([&a, &a], &[], &mut outputs).unwrap();
            let host = to_host(&outputs[0]);
            assert_eq!((host[0], host[host.len() - 1]), (3.0, 3.0));
            let result = outputs[0].unsafe_pointer().unwrap() as *const std::ffi::c_void;
            assert!(podracer_malloc::owns(result), "{len}");
        }
    }
    let own = vec![0u8; 1 << 10];
    assert!(!podracer_malloc::owns(own.as_ptr().cast()));
}

#[test]
fn the_client_outlives_its_handles() {
    let client = Client::cpu(client().plugin().clone(), 1).unwrap();
    let executable = client.compile(ADD, &CompileOptions::default()).unwrap();
    let a = to_device(&client, &iota(), 0);
    drop(client);
    let mut outputs = Vec::new();
    executable.execute([&a, &a], &[], &mut outputs).unwrap();
    drop((executable, a));
    assert_eq!(to_host(&outputs[0])[1], 2.0);
}

/// A shared library that calls itself a plugin of this version, with a table of so many functions,
/// none of which can be called.
fn foreign_plugin(dir: &Path, name: &str, (major, minor): (i32, i32), entries: usize) -> PathBuf {
    let source = dir.join(format!("{name}.rs"));
    let library = dir.join(format!("lib{name}.so"));
    let text = format!(
        "#[repr(C)]
        pub struct Api {{ header: [usize; 4], version: [i32; 2], table: [usize; {entries}] }}
        static API: Api = Api {{
            header: [size_of::<Api>(), 0, 24, 0],
            version: [{major}, {minor}],
            table: [1; {entries}],
        }};
        #[unsafe(no_mangle)]
        pub extern \"C\" fn GetPjrtApi() -> *const Api {{ &API }}"
    );
    fs::write(&source, text).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&library, &source])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

#[test]
fn each_kind_of_wrong_plugin_has_its_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let load = |path: &Path| match Plugin::load(path) {
        Err(Error::Native { problem, help }) => {
            assert!(help.contains("PODRACER_PJRT_PLUGIN"), "{help}");
            problem
        }
        other => panic!("{other:?}"),
    };
    let missing = load(&dir.path().join("none.so"));
    assert!(missing.starts_with("no PJRT plugin at "), "{missing}");
    assert!(load(dir.path()).ends_with("is a folder, not a PJRT plugin"));
    let text = dir.path().join("text.so");
    fs::write(&text, "not a library").unwrap();
    assert!(load(&text).contains("cannot be loaded as a shared library"), "{}", load(&text));
    let libm = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    if let Some(libm) = libm {
        let problem = load(Path::new(libm));
        assert!(problem.contains("no PJRT plugin: it exports no GetPjrtApi"), "{problem}");
    }
    let old = foreign_plugin(dir.path(), "old", (0, 40), 80);
    let problem = load(&old);
    assert!(problem.contains("is too old: it speaks PJRT C API 0.40, which lacks "), "{problem}");
    let problem = load(&foreign_plugin(dir.path(), "new", (1, 0), 200));
    assert!(problem.contains("speaks PJRT C API 1.0; this build of podracer speaks 0.x"));
    let plugin = locate_cpu_plugin().unwrap();
    let again = Plugin::load(&plugin).unwrap();
    assert!(Arc::ptr_eq(&again, client().plugin()));
}

#[test]
fn the_cache_hits_and_heals() {
    let client = client();
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::at(dir.path().join("executables"), 1 << 30);
    let run = |text: &str, options: &CompileOptions| {
        let (executable, outcome) = cache.compile(&client, text, options).unwrap();
        assert!(outcome.seconds > 0.0);
        let a = to_device(&client, &iota(), 0);
        let mut outputs = Vec::new();
        executable.execute([&a], &[], &mut outputs).unwrap();
        assert_eq!(to_host(&outputs[0])[7], 8.0);
        // Donation survives serialization.
        assert!(a.is_deleted());
        assert_eq!(executable.outputs(), [f32x8()]);
        outcome.hit
    };
    let options = CompileOptions::default();
    assert!(!run(INCREMENT, &options));
    assert!(run(INCREMENT, &options));
    // Another program, other options.
    assert!(!run(&INCREMENT.replace("@increment", "@other"), &options));
    let flag = ("xla_cpu_enable_fast_math".to_string(), OptionValue::Bool(false));
    let other = CompileOptions { env_option_overrides: vec![flag], ..options.clone() };
    assert!(!run(INCREMENT, &other));

    let entries = || fs::read_dir(dir.path().join("executables")).unwrap().flatten();
    let entries = || entries().filter(|entry| entry.file_name() != ".key");
    assert_eq!(entries().count(), 3);
    for (damage, keep) in [("cut", 10), ("flip", usize::MAX)] {
        for entry in entries() {
            let mut bytes = fs::read(entry.path()).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 0x55;
            bytes.truncate(keep);
            fs::write(entry.path(), bytes).unwrap();
        }
        assert!(!run(INCREMENT, &options), "{damage}");
        assert!(run(INCREMENT, &options), "{damage}");
    }

    // A folder where an entry should be: it can neither be read nor replaced.
    for entry in entries() {
        fs::remove_file(entry.path()).unwrap();
        fs::create_dir(entry.path()).unwrap();
    }
    assert!(!run(INCREMENT, &options));
    assert!(!run(INCREMENT, &options));

    let (_, outcome) = Cache::off().compile(&client, INCREMENT, &options).unwrap();
    assert!(!outcome.hit);
    // A folder that cannot be is a warning.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let cache = Cache::at(file.join("below"), 1 << 30);
    assert!(!cache.compile(&client, INCREMENT, &options).unwrap().1.hit);
}

/// Settings that see nothing of this machine.
fn bare(dir: &Path) -> Settings {
    Settings {
        plugin: None,
        mpi: None,
        home: dir.join("home"),
        path: dir.join("bin").into(),
        python_prefix: None,
        own_prefix: None,
        user_home: None,
        python_packages: true,
        fetch: true,
        quiet: true,
    }
}

/// A `python3` in the settings' path that runs a shell script instead.
fn fake_python(settings: &Settings, script: &str) {
    let bin = Path::new(&settings.path);
    fs::create_dir_all(bin).unwrap();
    let python = bin.join("python3");
    // Asked for its folders it says nothing.
    let text = format!("#!/bin/sh\n[ \"$1\" = -c ] && exit 0\n{script}\n");
    fs::write(&python, text).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
}

fn native_error(settings: &Settings) -> String {
    match settings.locate_cpu_plugin() {
        Err(error @ Error::Native { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_explicit_plugin_is_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = bare(dir.path());
    settings.plugin = Some(dir.path().join("none.so"));
    let error = native_error(&settings);
    assert!(error.starts_with("PODRACER_PJRT_PLUGIN is "), "{error}");
    assert!(error.contains("cannot be read"), "{error}");
    settings.plugin = Some(dir.path().to_path_buf());
    assert!(native_error(&settings).contains("is no file"));
    settings.plugin = Some(locate_cpu_plugin().unwrap());
    assert_eq!(settings.locate_cpu_plugin().unwrap(), locate_cpu_plugin().unwrap());
}

#[test]
fn fetch_errors_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let settings = bare(dir.path());
    let offline = Settings { fetch: false, ..settings.clone() };
    assert!(native_error(&offline).contains("PODRACER_OFFLINE forbids"));

    let error = native_error(&settings);
    assert!(error.contains("there is no python3 on PATH"), "{error}");

    for (script, expected) in [
        ("echo 'No module named pip' >&2; exit 1", "has no pip, which fetches lammps-jax-pjrt-cpu 0.11.2"),
        (
            "echo 'Retrying (Retry(total=0)) after connection broken' >&2
             echo 'ERROR: No matching distribution found for lammps-jax-pjrt-cpu==0.11.2' >&2; exit 1",
            "pip could not fetch lammps-jax-pjrt-cpu 0.11.2; pip said:\n    Retrying",
        ),
        (
            "echo 'ERROR: No matching distribution found for lammps-jax-pjrt-cpu==0.11.2' >&2; exit 1",
            "pip finds no lammps-jax-pjrt-cpu 0.11.2 for this machine",
        ),
        (
            "echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES' >&2; exit 1",
            "is not the pinned file (sha256 1319390d",
        ),
        ("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "no space left"),
        ("exit 0", "cannot be read"),
    ] {
        fake_python(&settings, script);
        let error = native_error(&settings);
        assert!(error.contains(expected), "{script}\n{error}");
        assert!(error.contains("help: "), "{error}");
        // Nothing half-made stays.
        let left: Vec<_> = fs::read_dir(settings.home.join("parts"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(left.iter().all(|name| name.to_string_lossy().ends_with(".lock")), "{left:?}");
    }

    // A pip that installs a file of the wrong size, then one of the right size with other bytes.
    let member = "$target/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so";
    for (size, expected) in [("10", "it has 10 bytes instead of"), ("201600336", "its sha256 is")] {
        fake_python(
            &settings,
            &format!(
                "while [ \"$1\" != --target ]; do shift; done; target=$2
                 /bin/mkdir -p $target/lammps_jax_pjrt_cpu
                 /usr/bin/truncate -s {size} {member}"
            ),
        );
        let error = native_error(&settings);
        assert!(error.contains("is damaged") && error.contains(expected), "{error}");
    }

    // A folder that cannot be: a file is in its place (which stops root too).
    fs::remove_dir_all(&settings.home).unwrap();
    fs::write(&settings.home, "").unwrap();
    let error = native_error(&settings);
    assert!(error.starts_with("cannot write ") && error.contains("PODRACER_HOME"), "{error}");
}

#[test]
fn parts_in_place_are_found_and_damage_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let settings = bare(dir.path());
    let part = Lock::get().part("xla-cpu").unwrap();
    let wheel = part.wheel().unwrap();
    assert_eq!(settings.find(part).unwrap(), None);

    // As another process would have left it; sparse, so it takes no space.
    let root = settings.install_dir(part, wheel);
    let member = root.join(&wheel.members[0].path);
    fs::create_dir_all(member.parent().unwrap()).unwrap();
    fs::File::create(&member).unwrap().set_len(wheel.members[0].bytes).unwrap();
    let error = settings.find(part).unwrap_err().to_string();
    assert!(error.contains("is damaged: its sha256 is"), "{error}");
    assert_eq!(native_error(&settings), error);
    let report = Report::of(&Ok(settings.clone()));
    assert!(!report.is_ok());
    let text = report.to_string();
    assert!(text.contains("BROKEN   xla-cpu") && text.contains("its sha256 is"), "{text}");
    assert!(text.contains("podracer fetch xla-cpu"), "{text}");
    // The loader would have called it no shared library.
    assert!(text.contains("BROKEN   XLA plugin") && text.contains("not loaded"), "{text}");

    // Asked to, it is fetched anew, though its size is right.
    let error = settings.install(part).unwrap_err().to_string();
    assert!(error.contains("there is no python3 on PATH"), "{error}");
    let offline = Settings { fetch: false, ..settings.clone() };
    let error = offline.install(part).unwrap_err().to_string();
    assert!(error.contains("is damaged, and PODRACER_OFFLINE forbids"), "{error}");

    fs::File::create(&member).unwrap().set_len(7).unwrap();
    let error = native_error(&settings);
    assert!(error.contains("it has 7 bytes instead of 201600336"), "{error}");

    // An installed package comes first.
    let site = dir.path().join("env/lib/python3.12/site-packages");
    fs::create_dir_all(site.join("lammps_jax_pjrt_cpu")).unwrap();
    let installed = site.join(&wheel.members[0].path);
    fs::copy(locate_cpu_plugin().unwrap(), &installed).unwrap();
    let settings = Settings { python_prefix: Some(dir.path().join("env")), ..settings };
    assert_eq!(settings.locate_cpu_plugin().unwrap(), installed);
    assert_eq!(settings.install(part).unwrap().origin, Origin::Python);

    // The environment that pip installed this program into comes before the active one.
    let own = Settings {
        own_prefix: settings.python_prefix.clone(),
        python_prefix: Some(dir.path().join("active")),
        ..settings.clone()
    };
    assert_eq!(own.locate_cpu_plugin().unwrap(), installed);
    // So does its Python.
    let bin = dir.path().join("env/bin");
    fake_python(&Settings { path: bin.clone().into(), ..own.clone() }, "exit 1");
    assert_eq!(own.python(), Some(bin.join("python3")));

    // One byte of it changed: no code of it runs, whoever asks.
    let mut file = fs::File::options().write(true).open(&installed).unwrap();
    std::io::Write::write_all(&mut file, b"\x7fElf").unwrap();
    drop(file);
    let text = Report::of(&Ok(settings.clone())).to_string();
    for error in [
        native_error(&settings),
        settings.install(part).unwrap_err().to_string(),
        settings.find(part).unwrap_err().to_string(),
        text,
    ] {
        assert!(
            error.contains(&format!("{} is damaged: its sha256", installed.display())),
            "{error}"
        );
        assert!(
            error.contains("pip install --force-reinstall --no-deps lammps-jax-pjrt-cpu==0.11.2"),
            "{error}"
        );
    }
    // Chosen by the user, it is the loader that refuses it.
    let chosen = Settings { plugin: Some(installed.clone()), ..settings };
    let text = Report::of(&Ok(chosen)).to_string();
    assert!(text.contains("cannot be loaded as a shared library"), "{text}");
}

#[test]
fn the_plugin_for_gpus_is_that_of_an_installed_package() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = bare(dir.path());
    let error = settings.locate_cuda_plugin().unwrap_err().to_string();
    assert!(error.contains("no XLA plugin for NVIDIA GPUs"), "{error}");
    assert!(error.contains("pip install 'jax-cuda13-plugin[with-cuda]'"), "{error}");

    settings.python_prefix = Some(dir.path().join("env"));
    let site = dir.path().join("env/lib/python3.12/site-packages/jax_plugins");
    let put = |cuda: &str| {
        let folder = site.join(cuda);
        fs::create_dir_all(&folder).unwrap();
        let plugin = folder.join("xla_cuda_plugin.so");
        fs::write(&plugin, "").unwrap();
        plugin
    };
    let older = put("xla_cuda12");
    assert_eq!(settings.locate_cuda_plugin().unwrap(), older);
    let newer = put("xla_cuda13");
    assert_eq!(settings.locate_cuda_plugin().unwrap(), newer);
    settings.plugin = Some(older.clone());
    assert_eq!(settings.locate_cuda_plugin().unwrap(), older);
    settings.plugin = Some(dir.path().join("none.so"));
    let error = settings.locate_cuda_plugin().unwrap_err().to_string();
    assert!(error.starts_with("PODRACER_PJRT_PLUGIN is "), "{error}");
}

#[test]
fn doctor_reports() {
    // The plugin of this machine is there after this.
    locate_cpu_plugin().unwrap();
    let report = podracer::doctor::doctor();
    assert!(report.is_ok(), "{report}");
    let plugin = report.checks.iter().find(|check| check.name == "XLA plugin").unwrap();
    assert!(plugin.state == State::Ok && plugin.detail.contains("PJRT C API 0."), "{report}");

    let dir = tempfile::tempdir().unwrap();
    let report = Report::of(&Ok(bare(dir.path()))).to_string();
    assert!(report.contains("missing  python3"), "{report}");
    assert!(report.contains("-> podracer fetch xla-cpu"), "{report}");
}

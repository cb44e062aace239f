//! Modules as files, to be read or given to other tools: `PODRACER_DUMP_IR_TO=DIR`, JAX's
//! `JAX_DUMP_IR_TO`.
//!
//! Every function that is compiled writes its StableHLO text there, as `NAME-HASH.mlir`. With
//! `PODRACER_DUMP_IR_FOR=cuda` it is the text that a GPU would get, while the run itself stays on
//! its platform: `tests/interop/compile_for_gpu.py` compiles such texts on a machine without one.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

use super::stablehlo::{LowerOptions, Platform, stablehlo};
use crate::files::hex;
use crate::output;
use crate::trace::program::Program;

/// Folder for dumped modules, and the platform that they are lowered for.
#[derive(Debug, PartialEq, Eq)]
struct Dump {
    dir: PathBuf,
    platform: Option<Platform>,
}

/// Returns the text of a module, and also writes it to a file if the user asks for it.
pub fn lowered(program: &Program, options: &LowerOptions) -> String {
    static DUMP: OnceLock<Option<Dump>> = OnceLock::new();
    let text = stablehlo(program, options);
    if let Some(dump) = DUMP.get_or_init(|| Dump::asked_for(|name| std::env::var(name).ok())) {
        dump.keep(program, options, &text);
    }
    text
}

impl Dump {
    /// Returns the dump that the environment asks for; `variable` reads the environment.
    fn asked_for(variable: impl Fn(&str) -> Option<String>) -> Option<Dump> {
        let dir = variable("PODRACER_DUMP_IR_TO").filter(|dir| !dir.is_empty())?;
        let platform = variable("PODRACER_DUMP_IR_FOR").filter(|name| !name.is_empty());
        let platform = platform.and_then(|name| {
            let known = Platform::named(&name);
            if known.is_none() {
                warn(&format!("PODRACER_DUMP_IR_FOR={name} is no platform: cpu, cuda, rocm, tpu"));
            }
            known
        });
        Some(Dump { dir: dir.into(), platform })
    }

    /// Writes a file. A failure is a warning: nothing depends on the file.
    fn keep(&self, program: &Program, options: &LowerOptions, text: &str) {
        let other = self.platform.filter(|&platform| platform != options.platform);
        let other = other.map(|platform| {
            stablehlo(program, &LowerOptions { platform, native_calls: false, ..options.clone() })
        });
        let text = other.as_deref().unwrap_or(text);
        let known = |c: char| if c.is_alphanumeric() || c == '_' { c } else { '-' };
        let name: String = options.name.chars().map(known).take(100).collect();
        let hash = hex(&Sha256::digest(text)[..6]);
        let file = self.dir.join(format!("{name}-{hash}.mlir"));
        // Whole or not at all, whenever the process ends and however many write the same.
        let unfinished = file.with_extension(format!("{}.tmp", std::process::id()));
        let kept = fs::create_dir_all(&self.dir)
            .and_then(|()| fs::write(&unfinished, text))
            .and_then(|()| fs::rename(&unfinished, &file));
        if let Err(error) = kept {
            static WARNED: AtomicBool = AtomicBool::new(false);
            if !WARNED.swap(true, Ordering::Relaxed) {
                warn(&format!("cannot write {} (PODRACER_DUMP_IR_TO): {error}", file.display()));
            }
        }
    }
}

fn warn(text: &str) {
    output::stderr_line(format_args!("podracer: warning: {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_kept_for_the_platform_that_is_asked_for() {
        let text = "{ lambda a:f32[256,101]. let b:f32[256] = reduce_sum[axes=(1)] a\n in (b) }";
        let program = Program::parse(text).unwrap();
        let options = LowerOptions { name: "a/row sum".into(), ..LowerOptions::default() };
        let dir = tempfile::tempdir().unwrap();
        let text = stablehlo(&program, &options);
        for platform in [None, Some(Platform::Cpu), Some(Platform::Cuda)] {
            let dir = dir.path().join(platform.map_or("own", Platform::name));
            Dump { dir: dir.clone(), platform }.keep(&program, &options, &text);
            let files: Vec<PathBuf> =
                fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path()).collect();
            let [file] = &files[..] else { panic!("{files:?}") };
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(name.starts_with("a-row-sum-") && name.ends_with(".mlir"), "{name}");
            // Sums of rows are products on CPU alone.
            let kept = fs::read_to_string(file).unwrap();
            assert_eq!(kept == text, platform != Some(Platform::Cuda));
            assert_eq!(kept.contains("stablehlo.reduce"), platform == Some(Platform::Cuda));
        }
    }

    #[test]
    fn what_is_asked_for_is_read() {
        let ask = |to: Option<&str>, of: Option<&str>| {
            Dump::asked_for(|name| {
                let value = if name == "PODRACER_DUMP_IR_TO" { to } else { of };
                value.map(String::from)
            })
        };
        assert_eq!(ask(None, Some("cuda")), None);
        assert_eq!(ask(Some(""), None), None);
        let dump = |platform| Some(Dump { dir: "there".into(), platform });
        assert_eq!(ask(Some("there"), None), dump(None));
        assert_eq!(ask(Some("there"), Some("cuda")), dump(Some(Platform::Cuda)));
        assert_eq!(ask(Some("there"), Some("gpu")), dump(None));
    }
}

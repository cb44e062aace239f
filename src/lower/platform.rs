//! Platforms: kinds of device, with one row of facts for each. Other modules ask the row.

use std::path::PathBuf;

use strum::{EnumCount, IntoStaticStr, VariantArray};

use super::custom_calls::KernelPlatform;
use crate::error::{Error, Result};
use crate::native::Settings;

/// Kind of device that a module is for. Some operations are written differently.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, EnumCount, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum Platform {
    /// The host's processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// An AMD GPU.
    Rocm,
    /// A tensor processing unit.
    Tpu,
}

/// Facts about a platform.
pub(crate) struct Facts {
    /// Name in messages, with the devices unless the name says them.
    title: &'static str,
    /// Function that finds the plugin. Without it, Programs are only lowered for the platform.
    locate_plugin: Option<fn(&Settings) -> Result<PathBuf>>,
    /// Part of `native.lock.json` with the plugin, which is fetched; others are never fetched.
    pub(crate) plugin_part: Option<&'static str>,
    /// Location of the programs that call functions of this library, if they can.
    pub(crate) kernels: Option<KernelPlatform>,
    /// True for the host's cores and memory, and XLA's compiler for them.
    is_host: bool,
    /// Compiler flags that results depend on.
    pub(crate) semantics_flags: &'static [(&'static str, bool)],
    /// Convolutions are written as operations that are faster.
    pub(crate) rewrites_convolutions: bool,
    /// The compiler reduces one element after the other: large reductions are written in parts.
    pub(crate) splits_reductions: bool,
    /// The compiler replaces `atan2(x, 1)` by `atan`, which some plugins compute wrongly in vectors
    /// of more than 128 bits.
    pub(crate) atan_is_wrong: bool,
    /// An iteration of a loop costs no launch: few random bits are computed by a loop.
    pub(crate) loops_cost_no_launch: bool,
    /// Comparisons with -0.0 are not simplified as those with 0.0 are, which loses NaNs.
    pub(crate) compares_with_negative_zero: bool,
    /// The inverse real Fourier transform of several axes takes all to be halves of something
    /// symmetric.
    pub(crate) irfft_is_symmetric: bool,
    /// Convolutions of integers of 8 and 16 bits are computed in `f64`.
    pub(crate) small_int_convolutions_in_f64: bool,
}

impl Facts {
    /// The facts of a platform without a runtime, with each operation in its plain form.
    const fn plain(title: &'static str) -> Facts {
        Facts {
            title,
            locate_plugin: None,
            plugin_part: None,
            kernels: None,
            is_host: false,
            semantics_flags: &[],
            rewrites_convolutions: false,
            splits_reductions: false,
            atan_is_wrong: false,
            loops_cost_no_launch: false,
            compares_with_negative_zero: false,
            irfft_is_symmetric: false,
            small_int_convolutions_in_f64: false,
        }
    }
}

static CPU: Facts = Facts {
    locate_plugin: Some(Settings::locate_cpu_plugin),
    plugin_part: Some("xla-cpu"),
    kernels: Some(KernelPlatform::Host),
    is_host: true,
    semantics_flags: &[
        // Otherwise `maximum(x, NaN)` is `x`, and reductions by it lose NaNs.
        ("xla_cpu_enable_fast_min_max", false),
        // Otherwise products by an argument, on processors where XLA finds XNNPACK fastest, are
        // with the numbers that were at its address in an earlier call: weights that an
        // optimizer updates in place stay the old ones. See decision 0007.
        ("xla_cpu_use_xnnpack", false),
    ],
    rewrites_convolutions: true,
    splits_reductions: true,
    atan_is_wrong: true,
    loops_cost_no_launch: true,
    compares_with_negative_zero: true,
    ..Facts::plain("cpu")
};

static CUDA: Facts = Facts {
    locate_plugin: Some(Settings::locate_cuda_plugin),
    kernels: Some(KernelPlatform::Cuda),
    irfft_is_symmetric: true,
    small_int_convolutions_in_f64: true,
    ..Facts::plain("cuda (NVIDIA GPUs)")
};

static ROCM: Facts = Facts { irfft_is_symmetric: true, ..Facts::plain("rocm (AMD GPUs)") };

static TPU: Facts = Facts::plain("tpu");

impl Platform {
    /// All platforms.
    pub const ALL: [Platform; Platform::COUNT] =
        *Platform::VARIANTS.first_chunk().expect("all of them");

    /// A platform with each operation in its plain form, which runs on the others too.
    pub(super) const PORTABLE: Platform = Platform::Tpu;

    pub(crate) fn facts(self) -> &'static Facts {
        match self {
            Platform::Cpu => &CPU,
            Platform::Cuda => &CUDA,
            Platform::Rocm => &ROCM,
            Platform::Tpu => &TPU,
        }
    }

    /// Returns the platform with this [name](Platform::name).
    pub fn named(name: &str) -> Option<Platform> {
        Platform::ALL.into_iter().find(|platform| platform.name() == name)
    }

    /// The platform that `PODRACER_PLATFORM` names; the CPU without it.
    ///
    /// # Errors
    /// [`Error::Config`] for names of platforms that have no runtime, and other names.
    pub(crate) fn from_env() -> Result<Platform> {
        Platform::chosen_by(std::env::var("PODRACER_PLATFORM").ok().as_deref())
    }

    /// The platform that a user chooses by this value of `PODRACER_PLATFORM`.
    fn chosen_by(name: Option<&str>) -> Result<Platform> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or(Platform::default().name());
        Platform::named(name).filter(|platform| platform.has_runtime()).ok_or_else(|| {
            let there: Vec<_> = Platform::with_runtime().map(|p| p.facts().title).collect();
            let there = there.join(" and ");
            Error::Config(format!("PODRACER_PLATFORM is `{name}`; there are {there}"))
        })
    }

    /// JAX's name of it, as exported functions have it.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns true for the host's cores and memory, and XLA's compiler for them.
    pub(crate) fn is_host(self) -> bool {
        self.facts().is_host
    }

    fn has_runtime(self) -> bool {
        self.facts().locate_plugin.is_some()
    }

    fn with_runtime() -> impl Iterator<Item = Platform> {
        Platform::ALL.into_iter().filter(|platform| platform.has_runtime())
    }

    /// The file of the plugin.
    ///
    /// # Errors
    /// [`Error::Native`] if it is not there; [`Platform::no_runtime`].
    pub(crate) fn locate_plugin(self, settings: &Settings) -> Result<PathBuf> {
        self.facts().locate_plugin.ok_or_else(|| self.no_runtime())?(settings)
    }

    /// The error for Programs that cannot run on this platform.
    pub(crate) fn no_runtime(self) -> Error {
        let names: Vec<_> = Platform::with_runtime().map(Platform::name).collect();
        let names = names.join(" or ");
        Error::Config(format!("there is no runtime for {}: choose {names}", self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_platforms_are_those_of_jax() {
        assert_eq!(Platform::ALL.map(Platform::name), ["cpu", "cuda", "rocm", "tpu"]);
        assert_eq!(Platform::named("rocm"), Some(Platform::Rocm));
        assert_eq!(Platform::named("gpu"), None);
    }

    #[test]
    fn the_environment_chooses_the_platform() {
        assert_eq!(Platform::chosen_by(None).unwrap(), Platform::Cpu);
        assert_eq!(Platform::chosen_by(Some("cuda")).unwrap(), Platform::Cuda);
        assert_eq!(Platform::chosen_by(Some("")).unwrap(), Platform::Cpu);
        for name in ["gpu", "rocm"] {
            let error = Platform::chosen_by(Some(name)).unwrap_err().to_string();
            let text = "; there are cpu and cuda (NVIDIA GPUs)";
            assert!(error.contains(&format!("PODRACER_PLATFORM is `{name}`{text}")), "{error}");
        }
    }
}

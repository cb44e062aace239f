//! Options that a Program is lowered with.

use strum::{EnumCount, IntoStaticStr, VariantArray};

use crate::error::{Error, Result};
use crate::trace::axis::AxisVec;

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

impl Platform {
    /// All platforms.
    pub const ALL: [Platform; Platform::COUNT] =
        *Platform::VARIANTS.first_chunk().expect("all of them");

    /// Returns the platform with this [name](Platform::name).
    pub fn named(name: &str) -> Option<Platform> {
        Platform::ALL.into_iter().find(|platform| platform.name() == name)
    }

    /// The platform that `PODRACER_PLATFORM` names; the CPU without it.
    ///
    /// # Errors
    /// [`Error::Config`] for other names than `cpu` and `cuda`.
    pub(crate) fn from_env() -> Result<Platform> {
        Platform::chosen_by(std::env::var("PODRACER_PLATFORM").ok().as_deref())
    }

    /// The platform that a user chooses by this value of `PODRACER_PLATFORM`.
    fn chosen_by(name: Option<&str>) -> Result<Platform> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("cpu");
        match Platform::named(name) {
            Some(platform @ (Platform::Cpu | Platform::Cuda)) => Ok(platform),
            _ => Err(Error::Config(format!(
                "PODRACER_PLATFORM is `{name}`; there are cpu and cuda (NVIDIA GPUs)"
            ))),
        }
    }

    /// JAX's name of it, as exported functions have it.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Library that computes convolutions on CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ConvLibrary {
    /// oneDNN where it implements a convolution. It is fetched when the first of these is compiled.
    /// If it cannot be fetched or loaded, XLA, after a warning on standard error.
    #[default]
    Auto,
    /// XLA's own kernels.
    Xla,
    /// oneDNN where it implements a convolution, XLA for the others. It is an error if oneDNN cannot
    /// be fetched or loaded.
    OneDnn,
}

/// Options that a Program is lowered with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LowerOptions {
    /// The module's name, seen in profiles and dumps.
    pub name: String,
    /// The kind of device.
    pub platform: Platform,
    /// Number of devices that run the whole Program, each on its own data.
    pub num_replicas: usize,
    /// Number of devices that share one run of the Program.
    pub num_partitions: usize,
    /// Donations: the buffer of an input, by position, becomes that of an output.
    pub aliases: Vec<(usize, usize)>,
    /// Inputs whose memory the compiler may use for any result that fits.
    pub donors: Vec<usize>,
    /// With several partitions: the division of each input, as text of XLA. Empty otherwise.
    pub in_shardings: Vec<String>,
    /// With several partitions: the division of each result. The compiler chooses those that are
    /// `None` or missing.
    pub out_shardings: Vec<Option<String>>,
    /// The axes of the mesh that the partitions form, in row-major order.
    pub mesh: AxisVec,
    /// If true, operations carry the user's source lines.
    pub locations: bool,
    /// True if the plugin can call the functions that this library adds to compiled programs.
    pub native_calls: bool,
    /// Largest number of threads with which oneDNN computes one convolution; 0 if XLA computes all
    /// of them.
    pub conv_threads: usize,
}

impl Default for LowerOptions {
    fn default() -> LowerOptions {
        LowerOptions {
            name: "program".into(),
            platform: Platform::default(),
            num_replicas: 1,
            num_partitions: 1,
            aliases: Vec::new(),
            donors: Vec::new(),
            in_shardings: Vec::new(),
            out_shardings: Vec::new(),
            mesh: AxisVec::new(),
            locations: true,
            native_calls: false,
            conv_threads: 0,
        }
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
        let error = Platform::chosen_by(Some("gpu")).unwrap_err().to_string();
        assert!(error.contains("PODRACER_PLATFORM is `gpu`; there are cpu and cuda"), "{error}");
    }
}

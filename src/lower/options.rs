//! Options that a Program is lowered with.

/// Kind of device that a module is for. Some operations are written differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
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
    pub const ALL: [Platform; 4] = [Platform::Cpu, Platform::Cuda, Platform::Rocm, Platform::Tpu];

    /// Returns the platform with this [name](Platform::name).
    pub fn named(name: &str) -> Option<Platform> {
        Platform::ALL.into_iter().find(|platform| platform.name() == name)
    }

    /// JAX's name of it, as exported functions have it.
    pub fn name(self) -> &'static str {
        match self {
            Platform::Cpu => "cpu",
            Platform::Cuda => "cuda",
            Platform::Rocm => "rocm",
            Platform::Tpu => "tpu",
        }
    }
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
    /// With several partitions: which inputs are divided along their first axis; the others are
    /// copied to all. Empty otherwise.
    pub divided: Vec<bool>,
    /// If true, operations carry the user's source lines.
    pub locations: bool,
    /// True if the plugin knows our native functions; see [`native_calls`](super::native_calls).
    pub native_calls: bool,
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
            divided: Vec::new(),
            locations: true,
            native_calls: false,
        }
    }
}

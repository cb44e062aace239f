//! Options that a Program is lowered with.

use super::platform::Platform;
use crate::trace::axis::AxisVec;

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

impl LowerOptions {
    /// Options for a module that runs on all of these platforms. The form of an operation that is best
    /// on one may not be on another: for several, each is in its plain form.
    pub(crate) fn for_platforms(platforms: &[Platform]) -> LowerOptions {
        let platform = match platforms {
            [platform] => *platform,
            _ => Platform::PORTABLE,
        };
        LowerOptions { platform, ..LowerOptions::default() }
    }
}

//! A peer library measured alternately with ours: a script that takes the name of a measurement on a
//! line and answers with a number on a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running script of `benches/peers`, or nothing where `PODRACER_PEER_PYTHON` is not set.
pub struct Peer {
    running: Option<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Peer {
    /// No peer, for rows without a comparison.
    #[allow(dead_code)] // Not every benchmark has such rows.
    pub fn none() -> Peer {
        Peer { running: None }
    }

    /// Starts a script.
    pub fn start(script: &str) -> Peer {
        let Ok(python) = std::env::var("PODRACER_PEER_PYTHON") else {
            println!("PODRACER_PEER_PYTHON is not set: no comparison");
            return Peer { running: None };
        };
        // Relative to the root of the repository, where Cargo and `benches/gpu/run` start benchmarks.
        let path = format!("benches/peers/{script}");
        // Both sides use the same kind of device.
        let platform = std::env::var("PODRACER_PLATFORM").unwrap_or("cpu".into());
        let mut child = Command::new(python)
            .arg(path)
            .env("JAX_PLATFORMS", platform)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("PODRACER_PEER_PYTHON can be run");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = BufReader::new(stdout.expect("piped"));
        Peer { running: Some((child, stdin.expect("piped"), stdout)) }
    }

    /// One measurement.
    pub fn ask(&mut self, what: &str) -> Option<f64> {
        let (_, stdin, stdout) = self.running.as_mut()?;
        writeln!(stdin, "{what}").expect("the peer runs");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("the peer answers");
        Some(line.trim().parse().unwrap_or_else(|_| panic!("the peer answers {line:?}")))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some((mut child, stdin, _)) = self.running.take() {
            drop(stdin); // The script ends with its input.
            let _ = child.wait();
        }
    }
}

/// One line of the table.
pub struct Row {
    name: String,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

fn low_and_median(samples: &mut [f64]) -> (f64, f64) {
    samples.sort_by(f64::total_cmp);
    (samples[0], samples[samples.len() / 2])
}

impl Row {
    /// The head of the table.
    pub fn header() {
        println!(
            "{:<44} {:>9} {:>9} {:>9} {:>9} {:>12}",
            "", "min", "median", "peer min", "median", "peer / ours"
        );
    }

    /// An empty row.
    pub fn new(name: impl Into<String>) -> Row {
        Row { name: name.into(), ours: vec![], theirs: vec![] }
    }

    /// A sample of ours.
    pub fn ours(&mut self, sample: f64) {
        self.ours.push(sample);
    }

    /// A sample of the peer's, taken before.
    #[allow(dead_code)] // Not every benchmark has one.
    pub fn theirs(&mut self, sample: f64) {
        self.theirs.push(sample);
    }

    /// A sample of the peer's, taken now.
    pub fn peer(&mut self, peer: &mut Peer, what: &str) {
        self.theirs.extend(peer.ask(what));
    }

    /// The median of ours.
    #[allow(dead_code)] // Not every benchmark adds rows.
    pub fn median(&mut self) -> f64 {
        low_and_median(&mut self.ours).1
    }

    /// Prints minimums, medians, and the ratio of the medians.
    pub fn print(&mut self) {
        let (min, median) = low_and_median(&mut self.ours);
        print!("{:<44} {min:>9.2} {median:>9.2}", self.name);
        if !self.theirs.is_empty() {
            let (peer_min, peer_median) = low_and_median(&mut self.theirs);
            print!(" {peer_min:>9.2} {peer_median:>9.2}");
            // Too little processor time for its clock has no ratio.
            if median > 0.0 {
                print!(" {:>11.2}x", peer_median / median);
            }
        }
        println!();
    }
}

/// Processor time of this process so far, all threads, in seconds: steady where the machine is
/// shared. Zero where `/proc` does not say.
#[allow(dead_code)] // Not every benchmark looks at it.
pub fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold spaces: user and system time, in ticks of 10 ms.
    let fields = text.rsplit(')').next().unwrap_or("").split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

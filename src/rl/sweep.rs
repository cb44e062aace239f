//! Sweeps of hyperparameters that one program trains at once: the values of `--sweep`, the agents of
//! their grid, and the results as a table, as JSON lines and as a figure.

mod plot;
mod scalar;

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Serialize, Serializer};

use crate::error::{Error, Result};
use crate::rl::returns::{RETURN_WINDOW, Returns};
use crate::rl::settings::ranges::{Range, range_of};

pub use scalar::Scalar;

/// Name of the file of results in the run's folder: a line of JSON for each point of the grid.
pub const RESULTS: &str = "sweep.jsonl";
/// Name of the figure in the run's folder.
pub const FIGURE: &str = "sweep.svg";
/// Maximum number of values of a sweep.
const MAX_VALUES: usize = 4096;
/// Maximum number of agents of a run.
const MAX_AGENTS: usize = 1 << 16;
const FORMS: &str = "NAME=log:LOW:HIGH:COUNT, NAME=linear:LOW:HIGH:COUNT or NAME=VALUE,VALUE,..";

/// Values of one hyperparameter: `learning-rate=log:1e-4:1e-2:64`, `gamma=linear:0.9:0.99:4` or
/// `gamma=0.9,0.99,0.999`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    text: String,
    /// Name of the flag.
    pub name: String,
    /// Values, in the order of the text.
    pub values: Vec<f64>,
    /// True if the values are evenly spaced on a logarithmic axis.
    pub log: bool,
}

impl Sweep {
    /// Parses the text of `--sweep`; `names` are the flags that can be swept.
    ///
    /// # Errors
    /// Returns the problem, with the expected form, names or range.
    pub fn parse(text: &str, names: &[&str]) -> std::result::Result<Sweep, String> {
        let (name, values) = text
            .split_once('=')
            .ok_or_else(|| format!("expected {FORMS}; NAME is one of {}", names.join(", ")))?;
        let name = name.replace('_', "-");
        let range = range_of(&name).filter(|_| names.contains(&name.as_str()));
        let Some(range) = range else {
            return Err(format!(
                "{name} is no hyperparameter of a sweep; expected one of {}",
                names.join(", ")
            ));
        };
        let log = values.starts_with("log:");
        let values = match values.split(':').collect::<Vec<_>>()[..] {
            [list] => list
                .split(',')
                .map(|x| number(&name, x, range))
                .collect::<std::result::Result<_, _>>()?,
            [scale @ ("log" | "linear"), low, high, count] => {
                let (low, high) = (number(&name, low, range)?, number(&name, high, range)?);
                spaced(&name, scale == "log", low, high, count)?
            }
            _ => return Err(format!("{name}={values}: expected {FORMS}")),
        };
        Ok(Sweep { text: text.to_string(), name, values, log })
    }
}

impl fmt::Display for Sweep {
    /// Writes the text that was parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn number(name: &str, text: &str, range: Range) -> std::result::Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| range.has_float(*value));
    value.ok_or_else(|| format!("{name}: {text} must be a number from {range}"))
}

/// Returns values from `low` to `high`, both included.
fn spaced(
    name: &str,
    log: bool,
    low: f64,
    high: f64,
    count: &str,
) -> std::result::Result<Vec<f64>, String> {
    let number: Option<usize> = count.parse().ok();
    let Some(number) = number.filter(|count| (2..=MAX_VALUES).contains(count)) else {
        return Err(format!("{name}: {count} must be a number of values from 2 to {MAX_VALUES}"));
    };
    if low >= high {
        return Err(format!("{name}: {low} must be less than {high}"));
    }
    if log && low <= 0.0 {
        return Err(format!("{name}: {low} must be more than 0 on a logarithmic scale"));
    }
    let last = (number - 1) as f64;
    let at = |k: usize| match k as f64 / last {
        0.0 => low,
        1.0 => high,
        part if log => rounded(low * (high / low).powf(part)),
        part => rounded(low + (high - low) * part),
    };
    Ok((0..number).map(at).collect())
}

/// Rounds to six significant digits, with which a value can be given as a flag.
fn rounded(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

/// Serializes sweeps as one string, separated by spaces, that the flag takes again; null if there is
/// none.
///
/// # Errors
/// Returns errors of the serializer.
pub fn as_words<S: Serializer>(sweeps: &[Sweep], to: S) -> std::result::Result<S::Ok, S::Error> {
    let words: Vec<&str> = sweeps.iter().map(|sweep| sweep.text.as_str()).collect();
    let text = Some(words.join(" ")).filter(|text| !text.is_empty());
    text.serialize(to)
}

/// Agents of a run: `num_seeds` for each point of the grid of `sweeps`. The first sweep varies
/// slowest, the seed fastest.
#[derive(Debug, Clone, Copy)]
pub struct Grid<'a> {
    sweeps: &'a [Sweep],
    num_seeds: usize,
}

impl<'a> Grid<'a> {
    /// Creates the grid of at most two sweeps.
    pub fn new(sweeps: &'a [Sweep], num_seeds: usize) -> Grid<'a> {
        Grid { sweeps, num_seeds }
    }

    /// Checks the number of sweeps and of agents.
    ///
    /// # Errors
    /// [`Error::Config`] for more than two sweeps, for two of the same flag, and for too many agents.
    pub fn check(&self) -> Result<()> {
        let problem = match self.sweeps {
            [a, b] if a.name == b.name => format!("{} is given twice", a.name),
            [_, _, _, ..] => format!("{} are given; at most two make a grid", self.sweeps.len()),
            _ if self.num_agents() > MAX_AGENTS => format!(
                "{} agents, {} for each seed; must be at most {MAX_AGENTS}",
                self.num_agents(),
                self.num_points()
            ),
            _ => return Ok(()),
        };
        Err(Error::Config(format!("--sweep: {problem}")))
    }

    /// Returns the number of points of the grid: 1 without a sweep.
    pub fn num_points(&self) -> usize {
        self.sweeps.iter().map(|sweep| sweep.values.len()).fold(1, usize::saturating_mul)
    }

    /// Returns the number of agents.
    pub fn num_agents(&self) -> usize {
        self.num_points().saturating_mul(self.num_seeds)
    }

    /// Returns the values of a point, one for each sweep.
    pub fn point(&self, mut index: usize) -> Vec<f64> {
        let mut values = Vec::new();
        for sweep in self.sweeps.iter().rev() {
            values.push(sweep.values[index % sweep.values.len()]);
            index /= sweep.values.len();
        }
        values.reverse();
        values
    }

    /// Returns the name of a point: `learning-rate=0.001,gamma=0.99`.
    pub fn label(&self, index: usize) -> String {
        let pairs = self.sweeps.iter().zip(self.point(index));
        pairs.map(|(sweep, value)| format!("{}={value}", sweep.name)).collect::<Vec<_>>().join(",")
    }

    /// Returns the values of a sweep for all agents.
    pub fn values_of_agents(&self, sweep: usize) -> Vec<f32> {
        (0..self.num_agents())
            .map(|agent| self.point(agent / self.num_seeds)[sweep] as f32)
            .collect()
    }

    /// Returns the results of the points, from the returns of all agents. Of an agent that
    /// `diverged` is true of, no return counts.
    pub fn results(&self, returns: &[Returns], diverged: &[bool]) -> Vec<PointResult> {
        let result = |point: usize| {
            let agents = point * self.num_seeds..(point + 1) * self.num_seeds;
            let returns: Vec<Option<f64>> = agents
                .clone()
                .map(|agent| returns[agent].mean().filter(|_| !diverged[agent]))
                .collect();
            let known: Vec<f64> = returns.iter().flatten().copied().collect();
            let mean = known.iter().sum::<f64>() / known.len() as f64;
            let variance =
                known.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / known.len() as f64;
            let finite = |x: f64| Some(x).filter(|x| x.is_finite());
            PointResult {
                values: self.point(point),
                returns,
                diverged: diverged[agents].iter().filter(|diverged| **diverged).count(),
                mean_return: finite(mean),
                std_return: finite(variance.sqrt()),
            }
        };
        (0..self.num_points()).map(result).collect()
    }

    /// Returns a table with a line for each point, and a last line with the best point.
    pub fn table(&self, results: &[PointResult]) -> String {
        let heading = format!("mean return of the last {RETURN_WINDOW}");
        let mut rows = vec![
            self.sweeps
                .iter()
                .map(|sweep| sweep.name.clone())
                .chain(["seeds".into(), heading])
                .collect(),
        ];
        for result in results {
            let mut row: Vec<String> = result.values.iter().map(f64::to_string).collect();
            row.push(result.returns.len().to_string());
            row.push(result.in_words());
            rows.push(row);
        }
        let mut text = aligned(&rows);
        let best =
            results.iter().enumerate().filter_map(|(k, result)| Some((k, result.mean_return?)));
        if let Some((best, mean)) = best.max_by(|a, b| a.1.total_cmp(&b.1)) {
            text.push_str(&format!("best: {}, mean return {mean:.1}\n", self.label(best)));
        }
        text
    }

    /// Writes [`RESULTS`] and [`FIGURE`] into the folder of a run.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be written.
    pub fn write(&self, folder: &Path, results: &[PointResult]) -> Result<()> {
        let path = folder.join(RESULTS);
        let names: Vec<&str> = self.sweeps.iter().map(|sweep| sweep.name.as_str()).collect();
        let mut text = String::new();
        for result in results {
            let values: serde_json::Map<_, _> = names
                .iter()
                .zip(&result.values)
                .map(|(name, value)| (name.replace('-', "_"), (*value).into()))
                .collect();
            let line = serde_json::json!({
                "values": values,
                "returns": result.returns,
                "diverged": result.diverged,
                "mean_return": result.mean_return,
                "std_return": result.std_return,
            });
            text.push_str(&format!("{line}\n"));
        }
        let mut file = File::create(&path).map_err(Error::io("cannot write", &path))?;
        file.write_all(text.as_bytes()).map_err(Error::io("cannot write", &path))?;
        plot::draw(&folder.join(FIGURE), self.sweeps, results)
    }
}

/// Result of the agents of one point of a grid.
#[derive(Debug, Clone, PartialEq)]
pub struct PointResult {
    /// Values of the hyperparameters, one for each sweep.
    pub values: Vec<f64>,
    /// Mean return of the last episodes of each seed; `None` if none ended or the agent diverged.
    pub returns: Vec<Option<f64>>,
    /// Number of agents whose loss was not finite.
    pub diverged: usize,
    /// Mean over the seeds; `None` without a return.
    pub mean_return: Option<f64>,
    /// Population standard deviation over the seeds.
    pub std_return: Option<f64>,
}

impl PointResult {
    fn in_words(&self) -> String {
        let mut text = match (self.mean_return, self.std_return) {
            (Some(mean), Some(std)) if self.returns.len() > 1 => format!("{mean:.1} +- {std:.1}"),
            (Some(mean), _) => format!("{mean:.1}"),
            (None, _) if self.diverged == self.returns.len() => String::new(),
            (None, _) => "none ended".to_string(),
        };
        if self.diverged > 0 {
            let gap = if text.is_empty() { "" } else { "; " };
            text.push_str(&format!("{gap}{} diverged", self.diverged));
        }
        text
    }
}

/// Formats rows in columns aligned to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |k: usize| rows.iter().map(|row| row[k].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["learning-rate", "gamma"];

    fn sweep(text: &str) -> Sweep {
        Sweep::parse(text, &NAMES).unwrap()
    }

    #[test]
    fn values_are_lists_or_ranges() {
        let log = sweep("learning_rate=log:1e-4:1e-2:3");
        assert_eq!((log.name.as_str(), log.log), ("learning-rate", true));
        assert_eq!(log.values, [1e-4, 1e-3, 1e-2]);
        assert_eq!(sweep("gamma=linear:0.9:1:3").values, [0.9, 0.95, 1.0]);
        assert_eq!(sweep("gamma=0.9,0.5").values, [0.9, 0.5]);
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, part) in [
            ("gamma", "expected NAME=log:LOW:HIGH:COUNT"),
            (
                "gama=0.9",
                "gama is no hyperparameter of a sweep; expected one of learning-rate, gamma",
            ),
            ("gamma=", "gamma:  must be a number from 0 to 1"),
            ("gamma=0.9,1.5", "gamma: 1.5 must be a number from 0 to 1"),
            ("gamma=nan", "gamma: nan must be a number from 0 to 1"),
            ("gamma=log:0:1:4", "gamma: 0 must be more than 0 on a logarithmic scale"),
            ("gamma=linear:0.9:0.8:4", "gamma: 0.9 must be less than 0.8"),
            ("gamma=linear:0.8:0.9:1", "gamma: 1 must be a number of values from 2 to 4096"),
            ("gamma=linear:0.8:0.9:9999999999999999999999", "must be a number of values"),
            ("gamma=cube:0.8:0.9:4", "gamma=cube:0.8:0.9:4: expected NAME=log"),
        ] {
            let error = Sweep::parse(text, &NAMES).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let one = sweep("gamma=0.9,0.99");
        for (sweeps, seeds, part) in [
            (vec![one.clone(), one.clone()], 1, "--sweep: gamma is given twice"),
            (vec![one.clone(); 3], 1, "--sweep: 3 are given; at most two"),
            (vec![one], 65_536, "--sweep: 131072 agents, 2 for each seed; must be at most 65536"),
        ] {
            let error = Grid::new(&sweeps, seeds).check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_grid_has_an_agent_for_each_pair_and_seed() {
        let sweeps = [sweep("learning-rate=0.1,0.2"), sweep("gamma=0.9,0.8,0.7")];
        let grid = Grid::new(&sweeps, 2);
        assert_eq!((grid.num_points(), grid.num_agents()), (6, 12));
        assert_eq!(grid.point(4), [0.2, 0.8]);
        assert_eq!(grid.label(4), "learning-rate=0.2,gamma=0.8");
        assert_eq!(grid.values_of_agents(0)[4..8], [0.1, 0.1, 0.2, 0.2]);
        let mut returns = vec![Returns::default(); 12];
        returns[8].push(1.0);
        returns[9].push(3.0);
        returns[10].push(9.0);
        let mut diverged = [false; 12];
        diverged[10] = true;
        let results = grid.results(&returns, &diverged);
        assert_eq!((results[4].mean_return, results[4].std_return), (Some(2.0), Some(1.0)));
        assert_eq!((results[5].mean_return, results[5].diverged), (None, 1));
        let table = grid.table(&results);
        assert!(table.starts_with("learning-rate  gamma  seeds  mean return of the last 100\n"));
        assert!(
            table.contains("          0.2    0.8      2                   2.0 +- 1.0\n"),
            "{table}"
        );
        assert!(table.contains("none ended; 1 diverged"), "{table}");
        assert!(table.ends_with("best: learning-rate=0.2,gamma=0.8, mean return 2.0\n"), "{table}");

        let folder = tempfile::tempdir().unwrap();
        grid.write(folder.path(), &results).unwrap();
        let text = std::fs::read_to_string(folder.path().join(RESULTS)).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().nth(4).unwrap()).unwrap();
        assert_eq!(line["values"]["learning_rate"], 0.2);
        assert_eq!(line["returns"][1], 3.0);
        let svg = std::fs::read_to_string(folder.path().join(FIGURE)).unwrap();
        assert!(svg.contains("gamma") && svg.contains("learning-rate 0.2"), "{svg}");
    }
}

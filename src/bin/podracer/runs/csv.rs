//! Runs of .csv files: tables of one row a value, and the downloads of TensorBoard and of Weights &
//! Biases.

use std::collections::BTreeMap;
use std::path::Path;

use podracer::error::{Error, Result};
use podracer::rl::read_regular;

use super::read::{RunName, final_score};
use super::{Run, Sample};
use crate::benchmark::results::line_error;

const STEPS: &[&str] = &["step", "global_step", "steps", "timesteps"];
const VALUES: &[&str] = &["value", "return", "episodic_return", "charts/episodic_return"];
const ENV_IDS: &[&str] = &["env_id", "env", "environment"];
const ALGORITHMS: &[&str] = &["algorithm", "algo", "exp_name"];
const SEEDS: &[&str] = &["seed"];
const HOURS: &[&str] = &["hours"];

/// Reads the runs of a file; `tag` chooses the columns of a download of Weights & Biases.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, and [`Error::Argument`] that names line and columns.
pub fn read(path: &Path, tag: &str) -> Result<Vec<Run>> {
    let bytes = read_regular(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let header = cells(lines.next().map_or("", |(line, _)| line));
    let table = Table { path, header: &header };
    let Some(step) = table.column(STEPS) else { return Err(table.unknown()) };
    let series = match table.column(VALUES) {
        Some(value) => vec![(value, None)],
        None => table.named_columns(tag),
    };
    if series.is_empty() {
        return Err(table.unknown());
    }
    let [env_id, algorithm, seed, hours] =
        [ENV_IDS, ALGORITHMS, SEEDS, HOURS].map(|names| table.column(names));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // TensorBoard names a file after its run and tag.
    let run_name = stem.strip_prefix("run-").unwrap_or(&stem);
    let run_name = run_name.split("-tag-").next().unwrap_or(run_name);
    let mut runs: BTreeMap<(String, String, Option<String>), Vec<Sample>> = BTreeMap::new();
    for (line, number) in lines {
        let cells = cells(line);
        let number_in = |column: usize| -> Result<Option<f64>> {
            match cells.get(column).map_or("", |cell| cell.trim()) {
                "" => Ok(None),
                cell => match cell.parse::<f64>() {
                    Ok(x) if x.is_finite() && (x >= 0.0 || column != step) => Ok(Some(x)),
                    _ => Err(line_error(
                        path,
                        number,
                        format!("`{}` is {cell}; expected a number", header[column]),
                    )),
                },
            }
        };
        let Some(step) = number_in(step)? else { continue };
        let hours = hours.map(number_in).transpose()?.flatten();
        for (column, name) in &series {
            let Some(value) = number_in(*column)? else { continue };
            let name = name.as_deref().unwrap_or(run_name);
            let parsed = RunName::of(Path::new(name));
            let cell = |column: Option<usize>| {
                column.and_then(|column| cells.get(column).map(|cell| cell.trim().to_string()))
            };
            let Some(env_id) = cell(env_id).or(parsed.as_ref().map(|x| x.env_id.clone())) else {
                return Err(table.unknown());
            };
            let of_name = || parsed.as_ref().map_or(name, |x| &x.algorithm).to_string();
            let algorithm = cell(algorithm).unwrap_or_else(of_name);
            let seed = cell(seed).or(parsed.as_ref().and_then(|x| x.seed.clone()));
            let samples = runs.entry((env_id, algorithm, seed)).or_default();
            samples.push(Sample { step, hours, value });
        }
    }
    let run = |((env_id, algorithm, seed), mut curve): (
        (String, String, Option<String>),
        Vec<Sample>,
    )| {
        curve.sort_by(|a, b| a.step.total_cmp(&b.step));
        Run {
            source: path.display().to_string(),
            env_id,
            algorithm,
            flags: Vec::new(),
            seed,
            settings: BTreeMap::new(),
            steps: curve.last().map_or(0, |last| last.step as u64),
            total_timesteps: None,
            started: 0.0,
            score: final_score(&curve),
            curve,
        }
    };
    Ok(runs.into_iter().map(run).collect())
}

struct Table<'a> {
    path: &'a Path,
    header: &'a [String],
}

impl Table<'_> {
    fn column(&self, names: &[&str]) -> Option<usize> {
        let is = |cell: &String| names.contains(&cell.trim().to_lowercase().as_str());
        self.header.iter().position(is)
    }

    /// Returns the columns of runs, named `{run} - {tag}`.
    fn named_columns(&self, tag: &str) -> Vec<(usize, Option<String>)> {
        let columns = self.header.iter().enumerate();
        columns
            .filter_map(|(k, cell)| {
                let (name, own) = cell.rsplit_once(" - ")?;
                (own == tag).then(|| (k, Some(name.to_string())))
            })
            .collect()
    }

    fn unknown(&self) -> Error {
        line_error(
            self.path,
            1,
            format!(
                "the columns are `{}`; expected env_id, algorithm, seed, step, value, or a file \
                 that TensorBoard or Weights & Biases wrote of runs named \
                 ENV_ID__EXP_NAME__SEED__TIME",
                self.header.join(",")
            ),
        )
    }
}

/// Returns the cells of a line; in quotes a comma is a part of a cell, and two quotes are one.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    let mut letters = line.trim_end_matches('\r').chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => {
                cells.last_mut().expect("one cell or more").push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            letter => cells.last_mut().expect("one cell or more").push(letter),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Environment, algorithm, seed, and length of the curve of a run.
    type Parts = (String, String, Option<String>, usize);

    fn runs(name: &str, text: &str) -> Result<Vec<Parts>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let runs = read(&path, "charts/episodic_return")?;
        let parts = |run: Run| (run.env_id, run.algorithm, run.seed, run.curve.len());
        Ok(runs.into_iter().map(parts).collect())
    }

    #[test]
    fn tables_and_downloads_are_runs() {
        let run = |env_id: &str, algorithm: &str, seed: &str, count| {
            (env_id.to_string(), algorithm.to_string(), Some(seed.to_string()), count)
        };
        let text = "env_id,algorithm,seed,global_step,episodic_return\nA,\"ppo, ours\",1,5,2.5\n\
                    A,\"ppo, ours\",1,9,3\nA,\"ppo, ours\",2,5,1\r\n";
        let expected = [run("A", "ppo, ours", "1", 2), run("A", "ppo, ours", "2", 1)];
        assert_eq!(runs("a.csv", text).unwrap(), expected);
        let name = "run-A__ppo__3__17-tag-charts_episodic_return.csv";
        let text = "Wall time,Step,Value\n1.5,5,2\n1.6,6,2\n";
        assert_eq!(runs(name, text).unwrap(), [run("A", "ppo", "3", 2)]);
        let text = "\"Step\",\"A__ppo__1__17 - charts/episodic_return\",\
                    \"A__ppo__1__17 - charts/episodic_return__MIN\",\"A__ppo__2__17 - charts/SPS\"\n\
                    5,2,1,4\n6,,,\n";
        assert_eq!(runs("w.csv", text).unwrap(), [run("A", "ppo", "1", 1)]);
    }

    #[test]
    fn problems_name_line_and_columns() {
        for (text, part) in [
            ("a,b\n1,2\n", "a.csv:1: the columns are `a,b`; expected env_id, algorithm"),
            ("step,value\n1,2\n", "a.csv:1: the columns are `step,value`; expected"),
            ("env_id,step,value\nA,1,x\n", "a.csv:2: `value` is x; expected a number"),
            ("env_id,step,value\nA,-1,1\n", "a.csv:2: `step` is -1"),
            ("", "a.csv:1: the columns are ``"),
        ] {
            let error = runs("a.csv", text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

//! `podracer benchmark --write-docs`: tables and figures of the documentation from the results file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use podracer::error::{Error, Result};
use podracer::rl::read_regular;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::job::{self, Job};
use super::results::{self, Record, RunRecord, SummaryRecord, flag_words, read_lines};
use crate::plot::bands::Measure;
use crate::plot::{self, Look, NamedBand, figure};

/// Flag whose effect has a table of its own.
const TIME_LIMITS: &str = "bootstrap_truncated";

/// Line of the notes file: published return and remarks of one row of the table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    algorithm: String,
    env_id: String,
    #[serde(default)]
    flags: Map<String, Value>,
    #[serde(default)]
    published: Option<Published>,
    /// Reason for which the row has one seed; shown as long as it has.
    #[serde(default)]
    one_seed: Option<String>,
    /// Remark.
    #[serde(default)]
    note: Option<String>,
}

/// Return that CleanRL publishes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    mean: f64,
    std: f64,
    /// Number of timesteps, if it differs from the row's.
    #[serde(default)]
    total_timesteps: Option<u64>,
}

/// Properties that the runs of a row share.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    algorithm: String,
    env_id: String,
    flags: Map<String, Value>,
    metric: Option<String>,
    total_timesteps: u64,
}

/// Row of the table: lines of the results file with the same key, in the order of the file.
#[derive(Debug)]
struct Row {
    key: Key,
    runs: Vec<RunRecord>,
    summaries: Vec<SummaryRecord>,
    /// Measurements of CleanRL's script.
    peers: Vec<SummaryRecord>,
}

/// Statistics over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Statistics {
    num_seeds: u64,
    mean: f64,
    /// Population standard deviation, where it is known.
    std: Option<f64>,
}

/// Writes the tables between the markers of `docs/results.md` and the figures.
///
/// # Errors
/// Returns errors of the files in `docs/results`, [`Error::Argument`] for rows of one seed without a
/// note and for pages without markers, and [`Error::Io`] if a file cannot be written.
pub fn write(docs: &Path) -> Result<String> {
    let folder = docs.join("results");
    let path = folder.join("runs.jsonl");
    let records = results::read(&path)?;
    let rows = rows(&records);
    let notes_path = folder.join("notes.jsonl");
    let notes = notes(&notes_path, &rows)?;
    let page_path = docs.join("results.md");
    let mut page = String::from_utf8_lossy(&read_regular(&page_path)?).into_owned();
    let figures = figures(&rows);
    let blocks = [
        ("results", table(docs, &rows, &notes, &notes_path)?),
        ("time limits", time_limits(&rows)),
        ("figures", figures.iter().map(Figure::markdown).collect::<Vec<_>>().join("\n")),
        ("queue", queue(&folder.join("queue.jsonl"), &records)?),
    ];
    for (name, text) in blocks {
        page = replaced(&page, name, &text)
            .map_err(|problem| Error::Argument(format!("{}: {problem}", page_path.display())))?;
    }
    fs::write(&page_path, page).map_err(Error::io("cannot write", &page_path))?;
    write_figures(&docs.join("figures/results"), &figures)?;
    Ok(format!(
        "{}: {} lines of {}, {} figures\n",
        page_path.display(),
        records.len(),
        path.display(),
        figures.len()
    ))
}

/// Replaces the text between `<!-- begin NAME -->` and `<!-- end NAME -->`.
fn replaced(page: &str, name: &str, text: &str) -> std::result::Result<String, String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let parts = page.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    let Some((before, after)) = parts else {
        return Err(format!(
            "expected the lines {} and {}, between which the table is written",
            begin.trim_end(),
            end.trim_end()
        ));
    };
    // Markdown needs an empty line between a comment and a table.
    let text = match text.trim_end() {
        "" => String::new(),
        text => format!("\n{text}\n\n"),
    };
    Ok(format!("{before}{begin}{text}{end}{after}"))
}

/// Groups the lines by their keys. Algorithms are in the order of their first lines, rows of an
/// algorithm too.
fn rows(records: &[Record]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for record in records {
        let key = key_of(record);
        let at = rows.iter().position(|row| row.key == key).unwrap_or_else(|| {
            let last = rows.iter().rposition(|row| row.key.algorithm == key.algorithm);
            let at = last.map_or(rows.len(), |last| last + 1);
            rows.insert(at, Row { key, runs: vec![], summaries: vec![], peers: vec![] });
            at
        });
        match record {
            Record::Run(run) => rows[at].runs.push((**run).clone()),
            Record::Summary(summary) if summary.program.is_some() => {
                rows[at].peers.push((**summary).clone());
            }
            Record::Summary(summary) => rows[at].summaries.push((**summary).clone()),
        }
    }
    rows.iter_mut().for_each(Row::keep_newest);
    rows
}

fn key_of(record: &Record) -> Key {
    match record {
        Record::Run(run) => {
            let mut flags = run.flags.clone();
            // The number of agents is in the column of seeds.
            flags.remove("num_seeds");
            Key {
                algorithm: run.algorithm.clone(),
                env_id: run.env_id.clone(),
                flags,
                metric: None,
                total_timesteps: run.total_timesteps(),
            }
        }
        Record::Summary(summary) => Key {
            algorithm: summary.algorithm.clone(),
            env_id: summary.env_id.clone(),
            flags: summary.flags.clone(),
            metric: summary.metric.clone(),
            total_timesteps: summary.total_timesteps,
        },
    }
}

impl Row {
    /// Leaves the runs with the settings of the newest one, and of each seed the newest run.
    fn keep_newest(&mut self) {
        let Some(newest) = self.runs.last().cloned() else { return };
        let same = |run: &RunRecord| {
            let differs = |name: &String, value: &Value| {
                name != "seed"
                    && podracer::rl::checkpoint::saved::affects_training(name)
                    && newest.settings.get(name).is_some_and(|own| own != value)
            };
            !run.settings.iter().any(|(name, value)| differs(name, value))
        };
        let mut seeds = BTreeSet::new();
        let mut kept: Vec<RunRecord> = Vec::new();
        for run in std::mem::take(&mut self.runs).into_iter().rev() {
            if same(&run) && seeds.insert(run.seed) {
                kept.insert(0, run);
            }
        }
        self.runs = kept;
    }

    /// Returns the statistics of runs, or those of summaries as long as these have more seeds.
    /// `commits` restricts the summaries to those of one of these commits, if there are any.
    fn statistics(&self, commits: &[String]) -> Option<Statistics> {
        let runs = self.runs.iter().filter_map(|run| {
            let num_seeds = run.num_seeds();
            let std = (num_seeds == 1).then_some(0.0);
            Some(Statistics { num_seeds, mean: run.mean_return?, std })
        });
        let runs = pooled(runs.collect());
        let of_commits = |summary: &&SummaryRecord| {
            summary.commits.iter().any(|commit| commits.contains(commit))
        };
        let restricted = self.summaries.iter().any(|summary| of_commits(&summary));
        let summaries = self.summaries.iter().filter(|x| !restricted || of_commits(x));
        let summaries = pooled(summaries.map(SummaryRecord::as_statistics).collect());
        let count = |x: &Option<Statistics>| x.map_or(0, |x| x.num_seeds);
        if count(&runs) >= count(&summaries) { runs } else { summaries }
    }

    fn commits(&self) -> Vec<String> {
        self.summaries.iter().flat_map(|summary| summary.commits.clone()).collect()
    }

    /// Returns the flags in which this row differs from others of its algorithm and environment,
    /// and whether it has more flags than these.
    fn distinctive_flags(&self, rows: &[Row]) -> (Map<String, Value>, bool) {
        let mut flags = self.key.flags.clone();
        let of_both = |row: &&Row| {
            row.key.algorithm == self.key.algorithm && row.key.env_id == self.key.env_id
        };
        let others: Vec<&Row> = rows.iter().filter(of_both).collect();
        let shared = |name: &String, value: &Value| {
            others.iter().all(|row| row.key.flags.get(name) == Some(value))
        };
        flags.retain(|name, value| !shared(name, value));
        let has_more = flags.len() < self.key.flags.len();
        (flags, has_more)
    }

    /// Returns the cell of the environment: id, flags, and a reported number of another kind.
    fn environment(&self, rows: &[Row]) -> String {
        let (flags, has_more) = self.distinctive_flags(rows);
        let mut text = self.key.env_id.clone();
        for word in flag_words(&flags) {
            let _ = write!(text, " `{word}`");
        }
        if has_more {
            text.push_str(" (f)");
        }
        if let Some(metric) = &self.key.metric {
            let _ = write!(text, ", {metric}");
        }
        text
    }

    fn steps(&self) -> String {
        let total = thousands(self.key.total_timesteps);
        let stopped = self.summaries.iter().find_map(|summary| summary.stopped_at);
        match stopped.filter(|_| self.runs.is_empty()) {
            Some(steps) => format!("{} of {total}", thousands(steps)),
            None => total,
        }
    }
}

impl SummaryRecord {
    fn as_statistics(&self) -> Statistics {
        let (num_seeds, mean, std) = self.statistics();
        Statistics { num_seeds, mean, std }
    }
}

/// Returns the statistics of all seeds of disjoint groups.
fn pooled(groups: Vec<Statistics>) -> Option<Statistics> {
    let num_seeds: u64 = groups.iter().map(|group| group.num_seeds).sum();
    let count = num_seeds as f64;
    let weighted = |f: &dyn Fn(&Statistics) -> f64| -> f64 {
        groups.iter().map(|group| group.num_seeds as f64 * f(group)).sum::<f64>() / count
    };
    let mean = weighted(&|group| group.mean);
    let known = groups.iter().all(|group| group.std.is_some());
    let variance =
        weighted(&|group| group.std.unwrap_or(0.0).powi(2) + (group.mean - mean).powi(2));
    let std = known.then(|| variance.sqrt());
    (num_seeds > 0).then_some(Statistics { num_seeds, mean, std })
}

impl std::fmt::Display for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.std.filter(|_| self.num_seeds > 1) {
            Some(std) => write!(f, "{:.1} +- {std:.1}", self.mean),
            None if self.mean.abs() < 2.0 => write!(f, "{:.2}", self.mean),
            None => write!(f, "{:.1}", self.mean),
        }
    }
}

/// Returns the number with commas.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (k, digit) in digits.chars().enumerate() {
        if k > 0 && (digits.len() - k).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Reads the notes. Each remark belongs to a row.
fn notes(path: &Path, rows: &[Row]) -> Result<Vec<Note>> {
    let expected = "a note in JSON, as in {\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \
                    \"published\": {\"mean\": 490.0, \"std\": 6.1}, \"note\": \"TEXT\"}";
    let lines: Vec<(usize, Note)> = read_lines(path, expected)?;
    let mut seen: Vec<&Note> = Vec::new();
    for (line, note) in &lines {
        let wrong = |problem: &str| {
            Err(results::line_error(path, *line, format!("{problem}; expected {expected}")))
        };
        if seen.iter().any(|other| other.is_of(&note.algorithm, &note.env_id, &note.flags)) {
            return wrong("a second note of the same row");
        }
        if note.note.is_some() && !rows.iter().any(|row| note.is_of_row(row)) {
            return wrong("no result has this algorithm, environment and flags");
        }
        seen.push(note);
    }
    Ok(lines.into_iter().map(|(_, note)| note).collect())
}

impl Note {
    fn is_of(&self, algorithm: &str, env_id: &str, flags: &Map<String, Value>) -> bool {
        self.algorithm == algorithm && self.env_id == env_id && self.flags == *flags
    }

    fn is_of_row(&self, row: &Row) -> bool {
        self.is_of(&row.key.algorithm, &row.key.env_id, &row.key.flags)
    }
}

/// Returns the main table.
fn table(docs: &Path, rows: &[Row], notes: &[Note], notes_path: &Path) -> Result<String> {
    let mut text = "| algorithm | environment | steps | seeds | podracer | CleanRL | note |\n\
                    |---|---|---:|---:|---:|---:|---|\n"
        .to_string();
    let mut before = String::new();
    for row in rows.iter().filter(|row| !row.key.flags.contains_key(TIME_LIMITS)) {
        let Some(statistics) = row.statistics(&[]) else { continue };
        let note = notes.iter().find(|note| note.is_of_row(row));
        let remark = remark(row, note, statistics.num_seeds, notes_path)?;
        let name = match before == row.key.algorithm {
            true => String::new(),
            false => algorithm_link(docs, &row.key.algorithm),
        };
        before.clone_from(&row.key.algorithm);
        let line = format!(
            "| {name} | {} | {} | {} | {statistics} | {} | {remark} |",
            row.environment(rows),
            row.steps(),
            statistics.num_seeds,
            cleanrl(row, note)
        );
        let _ = writeln!(text, "{}", line.replace("|  |", "| |").replace("|  |", "| |"));
    }
    Ok(text)
}

/// Returns the cell of remarks. A row of one seed has the reason for it.
fn remark(row: &Row, note: Option<&Note>, num_seeds: u64, notes_path: &Path) -> Result<String> {
    let mut remarks = Vec::new();
    if num_seeds == 1 {
        let Some(reason) = note.and_then(|note| note.one_seed.as_ref()) else {
            let words = flag_words(&row.key.flags);
            return Err(Error::Argument(format!(
                "{}: expected a line with `one_seed` for {} on {}{}: the reason for which this row \
                 has one seed",
                notes_path.display(),
                row.key.algorithm,
                row.key.env_id,
                words.iter().map(|word| format!(" {word}")).collect::<String>()
            )));
        };
        remarks.push(format!("one seed: {reason}"));
    }
    remarks.extend(note.and_then(|note| note.note.clone()));
    Ok(remarks.join("; "))
}

fn algorithm_link(docs: &Path, algorithm: &str) -> String {
    match docs.join(format!("algos/{algorithm}.md")).exists() {
        true => format!("[`{algorithm}`](algos/{algorithm}.md)"),
        false => format!("`{algorithm}`"),
    }
}

/// Returns the cell of CleanRL's returns: published, and measured here.
fn cleanrl(row: &Row, note: Option<&Note>) -> String {
    let mut cells = Vec::new();
    if let Some(published) = note.and_then(|note| note.published.as_ref()) {
        let steps = published
            .total_timesteps
            .map_or(String::new(), |steps| format!(" ({})", thousands(steps)));
        cells.push(format!("{:.1} +- {:.1}{steps}", published.mean, published.std));
    }
    if let Some(here) = pooled(row.peers.iter().map(SummaryRecord::as_statistics).collect()) {
        cells.push(format!("here {here} of {}", here.num_seeds));
    }
    cells.join("; ")
}

/// Returns the table of runs with and without `--bootstrap-truncated`, of the same commits.
fn time_limits(rows: &[Row]) -> String {
    let mut text =
        "| `podracer train` | environment | steps | seeds | without (CleanRL) | with |\n\
                    |---|---|---:|---:|---:|---:|\n"
            .to_string();
    for row in rows.iter().filter(|row| row.key.flags.get(TIME_LIMITS) == Some(&true.into())) {
        let Some(with) = row.statistics(&[]) else { continue };
        let mut key = row.key.clone();
        key.flags.remove(TIME_LIMITS);
        let without = rows.iter().find(|other| other.key == key);
        let without = without.and_then(|other| other.statistics(&row.commits()));
        let mut flags = row.distinctive_flags(rows).0;
        flags.remove(TIME_LIMITS);
        let words = flag_words(&flags);
        let command = std::iter::once(key.algorithm).chain(words).collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            text,
            "| `{command}` | {} | {} | {} | {} | {with} |",
            key.env_id,
            thousands(key.total_timesteps),
            with.num_seeds,
            without.map_or("not measured".to_string(), |without| without.to_string())
        );
    }
    text
}

/// Returns the table of the rows of the queue file whose runs are not all in the results file.
fn queue(path: &Path, records: &[Record]) -> Result<String> {
    let jobs = super::missing(job::read_queue(path, &[])?, records)?;
    let mut text = "| algorithm | environment | steps | seeds | hours for each |\n\
                    |---|---|---:|---:|---:|\n"
        .to_string();
    let mut hours = 0.0;
    let of_one_row =
        |a: &Job, b: &Job| (&a.algo, &a.env_id, &a.flags) == (&b.algo, &b.env_id, &b.flags);
    for row in jobs.chunk_by(of_one_row) {
        let (first, estimate) = (&row[0], row[0].hours);
        hours += estimate.unwrap_or(0.0) * row.len() as f64;
        let settings = first.settings()?;
        let seeds: Vec<u64> = row.iter().map(|job| job.seed).collect();
        let _ = writeln!(
            text,
            "| `{}` | {}{} | {} | {} | {} |",
            first.algo,
            first.env_id,
            if settings.flags.is_empty() { "" } else { " (f)" },
            settings
                .all
                .get("total_timesteps")
                .and_then(Value::as_u64)
                .map_or_else(String::new, thousands),
            span(&seeds),
            estimate.map_or("not known".to_string(), |hours| hours.to_string())
        );
    }
    let _ = write!(text, "\n{} runs, about {hours:.0} hours.", jobs.len());
    Ok(text)
}

/// Returns numbers as `1 to 3` if each is one more than the number before it.
fn span(numbers: &[u64]) -> String {
    match numbers {
        [first, .., last] if numbers.windows(2).all(|pair| pair[1] == pair[0] + 1) => {
            format!("{first} to {last}")
        }
        _ => numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Figure of the learning curves of one row.
struct Figure {
    file: String,
    title: String,
    figure: figure::Figure,
}

impl Figure {
    fn markdown(&self) -> String {
        format!("![{}](figures/results/{})\n", self.title, self.file)
    }
}

/// Returns the figures of rows whose runs have curves.
fn figures(rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in rows {
        let mut points: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (step, value) in row.runs.iter().flat_map(|run| &run.curve) {
            points.entry(*step).or_default().push(*value);
        }
        if points.is_empty() {
            continue;
        }
        let words = flag_words(&row.key.flags);
        let all = [&row.key.algorithm, &row.key.env_id].into_iter().chain(&words);
        let all: Vec<&str> = all.map(String::as_str).collect();
        let count = row.runs.len();
        let seeds = if count == 1 { "seed" } else { "seeds" };
        let title = all.join(" ");
        let (measure, env_id) = (Measure::MEAN, row.key.env_id.clone());
        let point = |(step, values): (u64, Vec<f64>)| measure.point(step as f64, &values);
        let curve = NamedBand {
            name: title.replacen(&format!(" {env_id}"), "", 1),
            runs: count,
            band: points.into_iter().filter_map(point).collect(),
        };
        figures.push(Figure {
            file: figure_file(&all, row.key.total_timesteps),
            title: format!("{title} ({count} {seeds})"),
            figure: plot::figure(
                [(env_id, vec![curve])].into(),
                ("timesteps", "mean return of 100 episodes"),
                &measure.in_words(),
                Some("seed"),
                &Look::default(),
            ),
        });
    }
    figures
}

/// Returns the name of a figure's file, of algorithm, environment and flags. Many flags are
/// represented by a digest, since names of files have at most 255 bytes.
fn figure_file(words: &[&str], total_timesteps: u64) -> String {
    const MAX_NAME: usize = 110;
    let name = |words: &[&str]| {
        let words = format!("{} {total_timesteps}", words.join(" ")).to_ascii_lowercase();
        let parts = words.split(|c: char| !c.is_ascii_alphanumeric());
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
    };
    let whole = name(words);
    if whole.len() <= MAX_NAME {
        return format!("{whole}.svg");
    }
    format!("{}-{}.svg", name(&words[..2]), job::short_hash(&whole, 4))
}

/// Writes the figures into the folder, which has no other files.
fn write_figures(folder: &Path, figures: &[Figure]) -> Result<()> {
    let old: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(files) => files.filter_map(|file| Some(file.ok()?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(Error::io("cannot read", folder)(error)),
    };
    let names: BTreeSet<PathBuf> = figures.iter().map(|figure| folder.join(&figure.file)).collect();
    for path in old {
        if path.extension().is_some_and(|x| x == "svg") && !names.contains(&path) {
            fs::remove_file(&path).map_err(Error::io("cannot remove", &path))?;
        }
    }
    if !figures.is_empty() {
        fs::create_dir_all(folder).map_err(Error::io("cannot create", folder))?;
    }
    for figure in figures {
        let path = folder.join(&figure.file);
        figure.figure.picture().write(&path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_seeds_are_pooled() {
        let values: [&[f64]; 2] = [&[1.0, 2.0, 6.0], &[4.0, 8.0]];
        let groups = values.map(|values| {
            let (mean, std) = crate::mean_and_std(values);
            Statistics { num_seeds: values.len() as u64, mean, std: Some(std) }
        });
        let all = pooled(groups.to_vec()).unwrap();
        let (mean, std) = crate::mean_and_std(&values.concat());
        assert_eq!(all.num_seeds, 5);
        assert!((all.mean - mean).abs() < 1e-12 && (all.std.unwrap() - std).abs() < 1e-12);
        let unknown = Statistics { std: None, ..groups[0] };
        assert_eq!(pooled(vec![unknown, groups[1]]).unwrap().std, None);
        assert_eq!(pooled(vec![]), None);
    }

    #[test]
    fn text_outside_of_the_markers_stays() {
        let page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        let new = replaced(page, "x", "new").unwrap();
        assert_eq!(new, "a\n<!-- begin x -->\n\nnew\n\n<!-- end x -->\nb\n");
        assert_eq!(replaced(&new, "x", "new").unwrap(), new);
        assert!(replaced(page, "y", "new").unwrap_err().contains("<!-- begin y -->"));
    }

    #[test]
    fn names_of_figures_are_short() {
        let name = |flags: &[&str]| figure_file(&[&["ppo", "Pong-v5"], flags].concat(), 100);
        assert_eq!(name(&["--gamma 0.9"]), "ppo-pong-v5-gamma-0-9-100.svg");
        let [a, b] = ["a", "b"].map(|last| name(&[&["--num-envs 16"; 20][..], &[last]].concat()));
        assert!(a.starts_with("ppo-pong-v5-100-") && a.len() < 40 && a != b, "{a} {b}");
    }

    #[test]
    fn large_numbers_have_commas() {
        let numbers = [0, 999, 1000, 1_599_488].map(thousands);
        assert_eq!(numbers, ["0", "999", "1,000", "1,599,488"]);
    }
}

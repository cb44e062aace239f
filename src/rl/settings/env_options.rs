//! Options of environments in Python, as flags.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::envs::{
    GymnasiumOptions, is_python, set_env_kwargs, set_gymnasium_options, takes_kwargs,
};
use crate::error::{Error, Result};

/// Text of the flags.
pub(in crate::rl) struct EnvOptions<'a> {
    /// `--env-kwargs`.
    pub(in crate::rl) kwargs: Option<&'a str>,
    /// `--env-wrappers`.
    pub(in crate::rl) wrappers: Option<&'a str>,
    /// `--env-timeout`, in seconds.
    pub(in crate::rl) timeout: u64,
}

impl EnvOptions<'_> {
    /// Sets the options with which the environment `env_id` is made from now on.
    ///
    /// # Errors
    /// [`Error::Config`] for text that is not of the expected form, and for options of environments
    /// that are not in Python.
    pub(in crate::rl) fn set(&self, env_id: &str) -> Result<()> {
        if is_python(env_id) {
            set_gymnasium_options(env_id, self.parse()?);
            return Ok(());
        }
        let refused = |flag: &str, others: &str| {
            Err(Error::Config(format!(
                "--{flag}: only for environments in Python, as in --env-id gymnasium:{env_id}{others}"
            )))
        };
        if self.wrappers.is_some() {
            return refused("env-wrappers", "");
        }
        if takes_kwargs(env_id) {
            return set_env_kwargs(env_id, self.parse()?.kwargs);
        }
        match self.kwargs {
            Some(_) => refused("env-kwargs", ", and for those of `envs::register_with`"),
            None => Ok(()),
        }
    }

    /// Parses the flags.
    ///
    /// # Errors
    /// [`Error::Config`] for text that is not of the expected form.
    pub(super) fn parse(&self) -> Result<GymnasiumOptions> {
        Ok(GymnasiumOptions {
            kwargs: self.kwargs.map_or(Ok(Map::new()), |text| {
                serde_json::from_str(text).map_err(|error| {
                    Error::Config(format!(
                        "--env-kwargs '{text}': {error}; expected a JSON object, as in \
                         '{{\"continuous\": true}}'"
                    ))
                })
            })?,
            wrappers: self.wrappers.map_or(Ok(Vec::new()), wrappers)?,
            timeout: Duration::from_secs(self.timeout),
            ..Default::default()
        })
    }
}

/// Wrapper: import path and keyword arguments.
type Wrapper = (String, Map<String, Value>);

/// Parses import paths separated by commas, or a JSON array of paths and of pairs of a path and
/// keyword arguments.
fn wrappers(text: &str) -> Result<Vec<Wrapper>> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Row {
        Path(String),
        WithArguments(String, Map<String, Value>),
    }
    if !text.trim_start().starts_with('[') {
        let paths = text.split(',').map(str::trim).filter(|path| !path.is_empty());
        return Ok(paths.map(|path| (path.to_string(), Map::new())).collect());
    }
    let rows: Vec<Row> = serde_json::from_str(text).map_err(|error| {
        Error::Config(format!(
            "--env-wrappers '{text}': {error}; expected an array of import paths and of pairs, as \
             in '[\"gymnasium.wrappers.FlattenObservation\", [\"gymnasium.wrappers.TimeLimit\", \
             {{\"max_episode_steps\": 100}}]]'"
        ))
    })?;
    Ok(rows
        .into_iter()
        .map(|row| match row {
            Row::Path(path) => (path, Map::new()),
            Row::WithArguments(path, kwargs) => (path, kwargs),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(kwargs: &str, wrappers: &str) -> Result<GymnasiumOptions> {
        EnvOptions { kwargs: Some(kwargs), wrappers: Some(wrappers), timeout: 7 }.parse()
    }

    #[test]
    fn flags_become_options() {
        let options = parsed(r#"{"map": [1, 2]}"#, "a.B, c.d:E").unwrap();
        assert_eq!(Value::from(options.kwargs), serde_json::json!({ "map": [1, 2] }));
        let none = Map::new;
        assert_eq!(options.wrappers, [("a.B".to_string(), none()), ("c.d:E".to_string(), none())]);
        assert_eq!(options.timeout, Duration::from_secs(7));
        let options = parsed("{}", r#"["a.B", ["c.D", {"n": 4}]]"#).unwrap();
        let four = [("n".to_string(), 4.into())].into_iter().collect();
        assert_eq!(options.wrappers, [("a.B".to_string(), none()), ("c.D".to_string(), four)]);
    }

    #[test]
    fn other_text_is_refused_with_the_expected_form() {
        for (kwargs, wrappers, part) in [
            ("[]", "", "--env-kwargs '[]'"),
            ("{", "", "expected a JSON object"),
            ("{}", "[1]", "--env-wrappers '[1]'"),
            ("{}", r#"[["a.B"]]"#, "expected an array of import paths"),
        ] {
            let error = parsed(kwargs, wrappers).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let flags = EnvOptions { kwargs: Some("{}"), wrappers: None, timeout: 300 };
        let error = flags.set("CartPole-v1").unwrap_err().to_string();
        assert!(error.contains("--env-id gymnasium:CartPole-v1"), "{error}");
    }
}

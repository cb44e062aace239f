//! The memory of GPUs, chosen by JAX's environment variables.

use crate::error::{Error, Result};
use crate::lower::pjrt::CreateOption;

/// Allocators of the plugin that JAX documents.
const ALLOCATORS: [&str; 5] = ["default", "platform", "bfc", "cuda_async", "address"];

/// The options of a GPU client that JAX's environment variables choose: without them it takes three
/// quarters of each GPU's memory at its start.
///
/// `var` reads a variable: `XLA_PYTHON_CLIENT_PREALLOCATE`, `XLA_CLIENT_MEM_FRACTION` or its older
/// name `XLA_PYTHON_CLIENT_MEM_FRACTION`, `XLA_PYTHON_CLIENT_ALLOCATOR`. Empty ones are as if unset.
///
/// # Errors
/// If a value is none of its variable's.
pub(super) fn client_options(
    var: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(&'static str, CreateOption)>> {
    let set = |name| var(name).filter(|value| !value.is_empty());
    let mut options = Vec::new();
    if let Some(value) = set("XLA_PYTHON_CLIENT_ALLOCATOR") {
        let allocator = value.to_lowercase();
        if !ALLOCATORS.contains(&allocator.as_str()) {
            let known = ALLOCATORS.join(", ");
            return Err(wrong("XLA_PYTHON_CLIENT_ALLOCATOR", &value, &known));
        }
        options.push(("allocator", CreateOption::String(allocator)));
    }
    if let Some(value) = set("XLA_PYTHON_CLIENT_PREALLOCATE") {
        let preallocate = match value.to_lowercase().as_str() {
            "true" | "1" => true,
            "false" | "0" => false,
            _ => return Err(wrong("XLA_PYTHON_CLIENT_PREALLOCATE", &value, "true and false")),
        };
        options.push(("preallocate", CreateOption::Bool(preallocate)));
    }
    for name in ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"] {
        let Some(value) = set(name) else { continue };
        let fraction = value.parse().ok().filter(|fraction| *fraction > 0.0 && *fraction <= 1.0);
        let Some(fraction) = fraction else {
            return Err(wrong(name, &value, "numbers above 0 and up to 1, such as .75"));
        };
        options.push(("memory_fraction", CreateOption::Float(fraction)));
        break;
    }
    Ok(options)
}

fn wrong(name: &str, value: &str, known: &str) -> Error {
    Error::Config(format!("{name} is `{value}`; there are {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(vars: &[(&str, &str)]) -> Result<Vec<(&'static str, CreateOption)>> {
        client_options(|name| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn variables_of_jax_choose_the_memory() {
        assert_eq!(options(&[("XLA_PYTHON_CLIENT_ALLOCATOR", "")]).unwrap(), []);
        let chosen = options(&[
            ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
            ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".10"),
            ("XLA_PYTHON_CLIENT_ALLOCATOR", "Platform"),
        ]);
        let expected = [
            ("allocator", CreateOption::String("platform".into())),
            ("preallocate", CreateOption::Bool(false)),
            ("memory_fraction", CreateOption::Float(0.1)),
        ];
        assert_eq!(chosen.unwrap(), expected);
        let both = options(&[
            ("XLA_CLIENT_MEM_FRACTION", "0.5"),
            ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.25"),
        ]);
        assert_eq!(both.unwrap(), [("memory_fraction", CreateOption::Float(0.5))]);
    }

    #[test]
    fn values_that_no_variable_has_are_errors() {
        for (name, value) in [
            ("XLA_PYTHON_CLIENT_PREALLOCATE", "maybe"),
            ("XLA_CLIENT_MEM_FRACTION", "75%"),
            ("XLA_CLIENT_MEM_FRACTION", "1.5"),
            ("XLA_CLIENT_MEM_FRACTION", "NaN"),
            ("XLA_PYTHON_CLIENT_ALLOCATOR", "malloc"),
        ] {
            let error = options(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} is `{value}`; there are")), "{error}");
        }
    }
}

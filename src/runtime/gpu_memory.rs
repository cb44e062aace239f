//! Memory options of the GPU client, read from JAX's environment variables.

use crate::error::{Error, Result};
use crate::lower::pjrt::CreateOption;

/// Allocators of the plugin of JAX 0.11.2.
const ALLOCATORS: [&str; 6] = ["default", "platform", "bfc", "cuda_async", "vmm", "address"];
/// The variable of the fraction of memory, and its older name.
const FRACTION: [&str; 2] = ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"];

/// Returns the options that JAX's environment variables choose. `var` reads a variable; an empty one
/// is as if unset. Without options the client takes three quarters of each GPU's memory when it
/// starts.
///
/// The variables are `XLA_PYTHON_CLIENT_PREALLOCATE`, `XLA_CLIENT_MEM_FRACTION` (or its older name
/// `XLA_PYTHON_CLIENT_MEM_FRACTION`) and `XLA_PYTHON_CLIENT_ALLOCATOR`. JAX takes every other text
/// than `false` and `0` as true; here it must be `true` or `1`.
///
/// # Errors
/// Returns [`Error::Config`] if a variable has an invalid value, or both names of the fraction are set.
pub(super) fn client_options(
    var: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(&'static str, CreateOption)>> {
    let var = |name| var(name).filter(|value| !value.is_empty());
    let mut options = Vec::new();
    if let Some(value) = var("XLA_PYTHON_CLIENT_ALLOCATOR") {
        let allocator = value.to_lowercase();
        if !ALLOCATORS.contains(&allocator.as_str()) {
            return Err(invalid("XLA_PYTHON_CLIENT_ALLOCATOR", &value, &ALLOCATORS.join(", ")));
        }
        options.push(("allocator", CreateOption::String(allocator)));
    }
    if let Some(value) = var("XLA_PYTHON_CLIENT_PREALLOCATE") {
        let preallocate = match value.to_lowercase().as_str() {
            "true" | "1" => true,
            "false" | "0" => false,
            _ => return Err(invalid("XLA_PYTHON_CLIENT_PREALLOCATE", &value, "true, false")),
        };
        options.push(("preallocate", CreateOption::Bool(preallocate)));
    }
    let (name, value) = match FRACTION.map(|name| (name, var(name))) {
        [(name, Some(_)), (older, Some(_))] => {
            return Err(Error::Config(format!("{name} and {older} are both set; unset {older}")));
        }
        [(name, Some(value)), _] | [_, (name, Some(value))] => (name, value),
        [(_, None), (_, None)] => return Ok(options),
    };
    // Above 1 with TF_FORCE_UNIFIED_MEMORY.
    let Some(fraction) = value.parse::<f32>().ok().filter(|x| *x > 0.0 && x.is_finite()) else {
        return Err(invalid(name, &value, "numbers above 0, such as .75"));
    };
    options.push(("memory_fraction", CreateOption::Float(fraction)));
    Ok(options)
}

fn invalid(name: &str, value: &str, allowed: &str) -> Error {
    Error::Config(format!("{name} is `{value}`; allowed are {allowed}"))
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
        let fraction = options(&[("XLA_CLIENT_MEM_FRACTION", "0.5")]);
        assert_eq!(fraction.unwrap(), [("memory_fraction", CreateOption::Float(0.5))]);
    }

    #[test]
    fn invalid_values_are_errors() {
        for (name, value) in [
            ("XLA_PYTHON_CLIENT_PREALLOCATE", "maybe"),
            ("XLA_CLIENT_MEM_FRACTION", "75%"),
            ("XLA_PYTHON_CLIENT_MEM_FRACTION", "-1"),
            ("XLA_CLIENT_MEM_FRACTION", "NaN"),
            ("XLA_PYTHON_CLIENT_ALLOCATOR", "malloc"),
        ] {
            let error = options(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} is `{value}`; allowed are")), "{error}");
        }
        let both = FRACTION.map(|name| (name, ".5"));
        let error = options(&both).unwrap_err().to_string();
        assert!(error.contains("are both set; unset XLA_PYTHON_CLIENT_MEM_FRACTION"), "{error}");
    }
}

//! Native functions that a module from outside may call: those that are safe with any operands.

use super::{BYTECODE, bytecode};
use crate::lower::custom_calls::lapack;

/// Custom calls that call no function: the compiler replaces them by operations of its own, or by
/// their operand.
const REPLACED: [&str; 4] = ["Sharding", "annotate_device_placement", "mhlo.erf", "mhlo.topk"];

/// Beginnings of the names of operations that wait for other devices, processes or the host.
const WAITING: [&str; 9] = [
    "infeed",
    "outfeed",
    "send",
    "recv",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_",
    "reduce_scatter",
];

/// The names of the functions that a module calls.
///
/// # Errors
/// Returns a description if the module is damaged, or calls a function that is not here.
pub(super) fn allowed(module: &[u8]) -> Result<Vec<String>, String> {
    let calls = match std::str::from_utf8(module) {
        _ if module.starts_with(BYTECODE) => bytecode::calls(module, refuse_operation)?,
        Ok(text) => calls_of_text(text)?,
        Err(_) => return Err("its module is neither bytecode nor text".into()),
    };
    match calls.iter().find(|name| !(REPLACED.contains(&name.as_str()) || lapack::provides(name))) {
        None => Ok(calls),
        Some(name) if name.starts_with("lapack_") => Err(format!(
            "it calls {name} (LAPACK), not provided here; provided are {}. Export it without the \
             function that needs it (eig, schur, hessenberg, tridiagonal or complex routines), and \
             compute that part here: podracer::trace::numpy has eig and eigvals",
            lapack::names()
        )),
        Some(name) => Err(format!(
            "it calls the native function {}, which is not provided here: export it without, or for \
             the platform cpu",
            name.escape_debug()
        )),
    }
}

/// Refuses an operation by its name, without the dialect's.
fn refuse_operation(name: &[u8]) -> Result<(), String> {
    match WAITING.iter().find(|start| name.starts_with(start.as_bytes())) {
        None => Ok(()),
        Some(_) => Err(format!(
            "its module has the operation {}, which waits for the host or for other devices: only \
             functions of one device run here",
            name.escape_ascii()
        )),
    }
}

/// The names after `custom_call` in the text of a module, in the one form that is written here: in
/// quotation marks, custom calls and attributes could name a function in other ways.
fn calls_of_text(text: &str) -> Result<Vec<String>, String> {
    let in_quotes =
        || Err("its module has a custom call or an attribute in quotation marks".into());
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '-');
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if c == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let end = 1 + end.ok_or("its module is damaged: a text has no end")?;
            let quoted = &rest[1..end];
            rest = &rest[end + 1..];
            if rest.trim_start().starts_with('=') {
                return in_quotes();
            }
            if rest.trim_start().starts_with('(') {
                let operation =
                    quoted.strip_prefix("stablehlo.").filter(|name| name.chars().all(word));
                match operation {
                    None | Some("custom_call") => return in_quotes(),
                    Some(operation) => refuse_operation(operation.as_bytes())?,
                }
            }
        } else if word(c) {
            let (found, after) = rest.split_at(rest.find(|c| !word(c)).unwrap_or(rest.len()));
            rest = after;
            let (_, operation) = found.split_once('.').unwrap_or(("", found));
            if operation == "custom_call" {
                let name =
                    after.trim_start().strip_prefix('@').ok_or("a custom call has no name")?;
                let end = name.find(|c| !word(c)).unwrap_or(name.len());
                if end == 0 {
                    return in_quotes();
                }
                calls.push(name[..end].to_string());
            } else if found == "call_target_name" {
                return Err(
                    "its module has a custom call with its name among the attributes".into()
                );
            } else if found != operation {
                refuse_operation(operation.as_bytes())?;
            }
        } else {
            rest = &rest[c.len_utf8()..];
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_text_are_found_however_they_are_written() {
        let calls = |text: &str| calls_of_text(text);
        let one = "// stablehlo.custom_call @c(\n%1 = stablehlo.custom_call @a.b(%0) {x = \"custom_call @d\"}";
        assert_eq!(calls(one).unwrap(), ["a.b"]);
        assert_eq!(calls("\"stablehlo.sort\"(%0)").unwrap(), [""; 0]);
        assert_eq!(calls("mhlo.custom_call\n @f(%0)").unwrap(), ["f"]);
        for text in [
            "\"stablehlo.custom_call\"(%0)",
            "\"stablehlo.cust\\6fm_call\" (%0)",
            "stablehlo.custom_call @\"f\"(%0)",
            "stablehlo.custom_call @a(%0) {call_target_name = \"f\"}",
            "stablehlo.custom_call @a(%0) {\"call\\5ftarget_name\" = \"f\"}",
            "stablehlo.infeed",
            "\"stablehlo.infeed\"(%0)",
            "\"mhlo.custom_call\"(%0)",
            "\"no end",
        ] {
            assert!(calls(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_functions_that_are_known_are_allowed() {
        let of = |name: &str| allowed(format!("stablehlo.custom_call @{name}(%0)").as_bytes());
        assert_eq!(of("lapack_spotrf_ffi").unwrap(), ["lapack_spotrf_ffi"]);
        assert_eq!(of("mhlo.erf").unwrap(), ["mhlo.erf"]);
        for name in ["TopK", "SliceToDynamic", "__onednn$matmul", "podracer.callback.2"] {
            let error = of(name).unwrap_err();
            assert!(error.contains(&format!("calls the native function {name}, which")), "{error}");
        }
        let error = of("lapack_sgees_ffi").unwrap_err();
        assert!(error.contains("lapack_sgees_ffi (LAPACK), not provided here"), "{error}");
    }
}

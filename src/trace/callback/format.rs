//! The format strings of [`debug_print`](super::debug_print).

use crate::trace::literal::{Literal, with_element};

/// A piece of a format string.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A value, and the number of digits after the point if the format sets one.
    Value(Option<usize>),
}

/// A format string taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Format(Vec<Piece>);

impl Format {
    /// Takes a string apart: `{}` is a value, `{:.3}` one with three digits after the point, `{{`
    /// and `}}` are braces.
    pub(super) fn parse(text: &str) -> Result<Format, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let from = &rest[at..];
            if from.starts_with("{{") || from.starts_with("}}") {
                plain.push_str(&from[..1]);
                rest = &from[2..];
                continue;
            }
            let inside = from.strip_prefix('{').and_then(|inside| inside.split_once('}'));
            let Some((spec, after)) = inside else {
                return Err(format!("{text:?} has a single `{}`; write it twice", &from[..1]));
            };
            let digits = match spec {
                "" => None,
                _ => match spec.strip_prefix(":.").map(str::parse) {
                    Some(Ok(digits)) => Some(digits),
                    _ => {
                        return Err(format!(
                            "`{{{spec}}}` in {text:?} is not a placeholder; write {{}}, or \
                             {{:.3}} for three digits after the point"
                        ));
                    }
                },
            };
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
            pieces.push(Piece::Value(digits));
            rest = after;
        }
        plain.push_str(rest);
        pieces.push(Piece::Text(plain));
        Ok(Format(pieces))
    }

    /// Number of values that the format takes.
    pub(super) fn places(&self) -> usize {
        self.0.iter().filter(|piece| matches!(piece, Piece::Value(_))).count()
    }

    /// The text with the values inserted, tensors as `ndarray` writes them.
    pub(super) fn write(&self, values: &[Literal]) -> String {
        let mut values = values.iter();
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Value(digits) => {
                    text.push_str(&shown(values.next().expect("one a place"), *digits));
                }
            }
        }
        text
    }
}

fn shown(value: &Literal, digits: Option<usize>) -> String {
    with_element!(value.ty().dtype, T => {
        let array = value.to_ndarray::<T>().expect("the element type is this one");
        match (digits, array.first()) {
            (Some(digits), Some(x)) if value.ty().rank() == 0 => format!("{x:.digits$}"),
            (None, Some(x)) if value.ty().rank() == 0 => format!("{x}"),
            (Some(digits), _) => format!("{array:.digits$}"),
            (None, _) => format!("{array}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_go_to_their_places() {
        let write = |text: &str, values: &[Literal]| Format::parse(text).unwrap().write(values);
        let values = [0.25f32.into(), [1i32, -2].into(), true.into()];
        assert_eq!(write("loss {} at {}: {}", &values), "loss 0.25 at [1, -2]: true");
        assert_eq!(write("{:.3}{{}}", &[0.25f32.into()]), "0.250{}");
        let rows = Literal::new([2, 2], &[1.0f64, 2.5, 3.0, 4.0]);
        assert_eq!(write("{:.1}", &[rows]), "[[1.0, 2.5],\n [3.0, 4.0]]");
        assert_eq!(write("}}", &[]), "}");
        assert_eq!(write("{}", &[Literal::new::<f32>([0], &[])]), "[]");
    }

    #[test]
    fn faults_are_told() {
        let fault = |text: &str| Format::parse(text).unwrap_err();
        assert_eq!(fault("a {"), "\"a {\" has a single `{`; write it twice");
        assert_eq!(fault("} b"), "\"} b\" has a single `}`; write it twice");
        assert_eq!(
            fault("{x}"),
            "`{x}` in \"{x}\" is not a placeholder; write {}, or {:.3} for three digits after \
             the point"
        );
        assert_eq!(Format::parse("{} {{}} {:.2}").unwrap().places(), 2);
    }
}

//! A position in a text, and the readers of its basic elements.

use std::cell::Cell;
use std::rc::Rc;

use super::super::types::{DType, Shape, TensorType};
use crate::error::{Error, Result};

pub(super) struct Reader<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    /// End of the text to read.
    end: usize,
    /// Name of the text's kind, for messages.
    what: &'static str,
    /// Number of variables that the text can still have.
    variables_left: Rc<Cell<usize>>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str, what: &'static str) -> Reader<'t> {
        let variables_left = Rc::new(Cell::new(super::MAX_VARIABLES as usize));
        Reader { text, at: 0, end: text.len(), what, variables_left }
    }

    /// A reader of a part of the text.
    pub(super) fn part(&self, start: usize, end: usize) -> Reader<'t> {
        let variables_left = self.variables_left.clone();
        Reader { text: self.text, at: start, end, what: self.what, variables_left }
    }

    /// Counts `more` variables. Returns false if the text has too many.
    pub(super) fn count_variables(&self, more: usize) -> bool {
        let left = self.variables_left.get().checked_sub(more);
        self.variables_left.set(left.unwrap_or(0));
        left.is_some()
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..self.end]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self, keep: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// An error message about offset `at`.
    pub(super) fn fault(&self, at: usize, problem: &str) -> Error {
        let before = &self.text[..at];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[start..].lines().next().unwrap_or("");
        let number = before.matches('\n').count() + 1;
        let column = before[start..].chars().count() + 1;
        // A long line is shown from shortly before the offset.
        let shown: String = line.chars().skip(column.saturating_sub(60)).take(100).collect();
        let margin = " ".repeat((column - 1).min(59));
        Error::Argument(format!(
            "{}, line {number}, column {column}: {problem}\n  {shown}\n  {margin}^",
            self.what
        ))
    }

    /// An error message that names the expected and the found text at this offset.
    pub(super) fn expected(&self, what: &str) -> Error {
        self.fault(self.at, &format!("expected {what}, found {}", self.found()))
    }

    fn found(&self) -> String {
        let rest = self.rest();
        let ends = |c: char| !(c.is_alphanumeric() || c == '_');
        match rest.chars().next() {
            None if self.end < self.text.len() => "the end of the parameters".into(),
            None => "the end of the text".into(),
            Some('\n' | '\r') => "the end of the line".into(),
            Some(first) => {
                let length = rest.find(ends).unwrap_or(rest.len()).max(first.len_utf8());
                format!("`{}`", rest[..length].chars().take(30).collect::<String>())
            }
        }
    }

    pub(super) fn eat(&mut self, token: &str) -> bool {
        let here = self.rest().starts_with(token);
        if here {
            self.at += token.len();
        }
        here
    }

    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("`{token}`"))) }
    }

    pub(super) fn ensure_end(&self) -> Result<()> {
        if self.rest().is_empty() { Ok(()) } else { Err(self.expected("the end")) }
    }

    /// Past spaces.
    pub(super) fn skip_blanks(&mut self) {
        self.take(|c| c == ' ' || c == '\t');
    }

    /// Past spaces, ends of lines and comments.
    pub(super) fn skip_lines(&mut self) {
        loop {
            self.take(char::is_whitespace);
            if self.peek() != Some('#') {
                break;
            }
            self.take(|c| c != '\n');
        }
    }

    pub(super) fn at_line_end(&self) -> bool {
        matches!(self.peek(), None | Some('\n' | '\r' | '#'))
    }

    /// The `in (` that ends the equations; `in` alone may be a variable.
    pub(super) fn eat_in(&mut self) -> bool {
        let start = self.at;
        if self.letters() == "in" {
            self.skip_blanks();
            if self.eat("(") {
                return true;
            }
        }
        self.at = start;
        false
    }

    /// Small letters.
    pub(super) fn letters(&mut self) -> &'t str {
        self.take(|c| c.is_ascii_lowercase())
    }

    pub(super) fn word(&mut self) -> &'t str {
        self.take(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// A name of the user's, as `encoded` in `print` writes it. Kept for good: names are few.
    pub(super) fn name(&mut self) -> Result<&'static str> {
        let start = self.at;
        let word = self.take(|c| c.is_ascii_alphanumeric() || c == '_' || c == '%');
        let mut bytes = Vec::with_capacity(word.len());
        let mut rest = word.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let digits = [rest.next(), rest.next()]
                .map(|digit| (digit.unwrap_or(b'?') as char).to_digit(16));
            let [Some(high), Some(low)] = digits else {
                return Err(self.fault(start, "`%` must be followed by two hexadecimal digits"));
            };
            bytes.push((high * 16 + low) as u8);
        }
        match String::from_utf8(bytes) {
            Ok(name) => Ok(super::super::axis::interned(&name)),
            Err(_) => Err(self.fault(start, "this name is not UTF-8")),
        }
    }

    /// Skips an element of a tensor: `-2.5e-3`, `true`, `NaN(0x7fc00001)`, `1-2j`.
    pub(super) fn skip_number(&mut self) -> bool {
        let start = self.at;
        let digits = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        self.take(digits);
        while self.rest().starts_with("(0x") {
            self.at += 1;
            self.take(|c| c.is_ascii_alphanumeric());
            self.eat(")");
            self.take(digits);
        }
        self.at > start
    }

    /// Reads a bracketed text: returns its start and end, and moves past it. Returns `None` if
    /// there is no bracket here.
    pub(super) fn bracketed(&mut self) -> Result<Option<(usize, usize)>> {
        let open = self.at;
        if !self.eat("[") {
            return Ok(None);
        }
        let mut depth = 1;
        for (i, c) in self.rest().char_indices() {
            match c {
                '[' => depth += 1,
                ']' => depth -= 1,
                '\n' => break,
                _ => {}
            }
            if depth == 0 {
                let inside = (self.at, self.at + i);
                self.at = inside.1 + 1;
                return Ok(Some(inside));
            }
        }
        Err(self.fault(open, "this bracket is not closed on its line"))
    }

    /// `body: ` or `branch 2: `, if a Program follows; else nothing is read.
    pub(super) fn label(&mut self) -> Option<(usize, &'t str)> {
        let before = self.at;
        self.skip_lines();
        let start = self.at;
        self.word();
        self.skip_blanks();
        self.take(|c| c.is_ascii_digit());
        let label = &self.text[start..self.at];
        if !label.is_empty() && self.eat(":") {
            self.skip_blanks();
            if self.peek() == Some('{') {
                return Some((start, label));
            }
        }
        self.at = before;
        None
    }

    /// A whole number of at most 31 bits: sums and products of two such numbers do not overflow.
    pub(super) fn number<N: TryFrom<i64>>(&mut self) -> Result<N> {
        let start = self.at;
        self.eat("-");
        self.take(|c| c.is_ascii_digit());
        let text = &self.text[start..self.at];
        if text.is_empty() || text == "-" {
            return Err(self.part(start, self.end).expected("a number"));
        }
        let number = text.parse().ok().filter(|n: &i64| n.unsigned_abs() < 1 << 31);
        number
            .and_then(|n| N::try_from(n).ok())
            .ok_or_else(|| self.fault(start, "this number is out of range"))
    }

    /// Items between `open` and `close`, with commas.
    pub(super) fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        self.skip_blanks();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            self.skip_blanks();
            items.push(item(self)?);
            self.skip_blanks();
            if self.eat(close) {
                return Ok(items);
            }
            if !self.eat(",") {
                return Err(self.expected(&format!("`,` or `{close}`")));
            }
        }
    }

    pub(super) fn dtype(&mut self) -> Result<DType> {
        let start = self.at;
        let name = self.word();
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| self.part(start, self.end).expected("an element type, as in `f32`"))
    }

    pub(super) fn shape(&mut self) -> Result<Shape> {
        let start = self.at;
        let sizes = self.list("[", "]", Reader::number::<usize>)?;
        // Room for 16 bytes an element, and for the arithmetic of shapes.
        let room = sizes.iter().map(|&size| size.max(1)).try_fold(1usize, usize::checked_mul);
        match room {
            Some(room) if room < 1 << 48 => Ok(Shape::from(sizes)),
            _ => Err(self.fault(start, "a shape of more elements than any memory has")),
        }
    }

    pub(super) fn tensor_type(&mut self) -> Result<TensorType> {
        let dtype = self.dtype()?;
        Ok(TensorType::new(dtype, self.shape()?))
    }
}

//! The terminal below a progress bar.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use console::Term;
use indicatif::TermLike;

/// Standard error as a bar sees it. Between two drawings the cursor stands at the start of the row
/// below, so that what others write, and the `^C` that a terminal writes by itself, neither shifts
/// what is drawn next nor stays on the screen.
#[derive(Debug, Default)]
pub(super) struct Screen(Mutex<Drawing>);

#[derive(Debug, Default)]
struct Drawing {
    /// What is not written yet.
    text: String,
    /// Whether something was drawn, so that the cursor is one row below it.
    below: bool,
    /// Whether this drawing has written something.
    drew: bool,
}

impl Screen {
    fn drawing(&self) -> MutexGuard<'_, Drawing> {
        let mut drawing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut drawing.below) {
            drawing.text.push_str("\r\x1b[2K\x1b[1A");
        }
        drawing
    }

    fn move_by(&self, n: usize, to: char) -> io::Result<()> {
        let mut drawing = self.drawing();
        if n > 0 {
            let _ = write!(drawing.text, "\x1b[{n}{to}");
        }
        Ok(())
    }
}

impl Drawing {
    /// All of the drawing, and the step to the row below.
    fn take(&mut self) -> String {
        self.below = std::mem::take(&mut self.drew);
        if self.below {
            self.text.push_str("\r\n");
        }
        std::mem::take(&mut self.text)
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        Term::stderr().size().1
    }

    fn height(&self) -> u16 {
        Term::stderr().size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_by(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_by(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_by(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_by(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.drawing().text.push_str("\r\n");
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut drawing = self.drawing();
        // What only moves is nothing that is seen.
        drawing.drew |= !text.trim_start_matches('\r').is_empty();
        drawing.text.push_str(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.drawing().text.push_str("\r\x1b[2K");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let text = self.drawing().take();
        // As one piece. What a terminal that is gone does not show is no failure.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_waits_below_what_is_drawn() {
        let screen = Screen::default();
        let flushed = || screen.drawing().take();
        screen.write_str("one").unwrap();
        assert_eq!(flushed(), "one\r\n");
        // Back up, past what a terminal echoed.
        screen.move_cursor_up(0).unwrap();
        screen.clear_line().unwrap();
        screen.write_str("two").unwrap();
        assert_eq!(flushed(), "\r\x1b[2K\x1b[1A\r\x1b[2Ktwo\r\n");
        // Nothing is drawn any more: the cursor stays where that was.
        screen.clear_line().unwrap();
        assert_eq!(flushed(), "\r\x1b[2K\x1b[1A\r\x1b[2K");
        screen.write_line("a line").unwrap();
        assert_eq!(flushed(), "a line\r\n\r\n");
    }
}

//! Terminal output of a progress bar.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use console::Term;
use indicatif::TermLike;

/// Standard error as the terminal of a progress bar. Between two redraws the cursor is at the start
/// of the row below, so that other output, and the `^C` that a terminal echoes, neither shifts the
/// next redraw nor stays on the screen.
#[derive(Debug, Default)]
pub(in crate::rl) struct Screen(Mutex<Drawing>);

#[derive(Debug, Default)]
struct Drawing {
    /// Output that is not written yet.
    text: String,
    /// True if something is displayed, so that the cursor is one row below it.
    below: bool,
    /// True if the current redraw has written something.
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
    /// Returns all output of the redraw, and the move to the row below.
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
        // Cursor movement alone displays nothing.
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
        // Written in one piece. An error is ignored: the terminal may be gone.
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
        // Back up, past the text that a terminal echoed.
        screen.move_cursor_up(0).unwrap();
        screen.clear_line().unwrap();
        screen.write_str("two").unwrap();
        assert_eq!(flushed(), "\r\x1b[2K\x1b[1A\r\x1b[2Ktwo\r\n");
        // Nothing is displayed any more: the cursor stays in its row.
        screen.clear_line().unwrap();
        assert_eq!(flushed(), "\r\x1b[2K\x1b[1A\r\x1b[2K");
        screen.write_line("a line").unwrap();
        assert_eq!(flushed(), "a line\r\n\r\n");
    }
}

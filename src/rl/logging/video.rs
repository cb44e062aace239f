//! Videos of episodes, with the agent's values beside the frame.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use gif::{DisposalMethod, Repeat};

use super::ffmpeg::{self, Ffmpeg};
use crate::envs::Frame;
use crate::error::{Error, Result};
use crate::rl::files;

/// Most frames per second that programs show of a GIF.
const MAX_GIF_FPS: u32 = 50;
const PAPER: [u8; 3] = [250, 250, 250];
const BAR: [u8; 3] = [120, 160, 210];
const HIGHEST: [u8; 3] = [210, 90, 60];
const ZERO: [u8; 3] = [60, 60, 60];

/// Writer of videos, one for each episode: `episode-0.mp4` and so on, or animated GIFs where there is
/// no ffmpeg.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    /// Program that encodes; `None` for GIFs.
    ffmpeg: Option<PathBuf>,
    video: Option<Video>,
    videos: usize,
    /// Videos that are complete.
    written: Vec<PathBuf>,
}

/// Video under way.
pub(in crate::rl) struct Video {
    path: PathBuf,
    size: (usize, usize),
    encoder: Encoder,
}

enum Encoder {
    Gif(Gif),
    Mp4(Ffmpeg),
}

/// Animated GIF under way.
struct Gif {
    encoder: gif::Encoder<BufWriter<File>>,
    /// Time of a picture in hundredths of a second.
    delay: u16,
    /// One of this many frames is a picture.
    every: usize,
    frames: usize,
}

impl Gif {
    fn new(encoder: gif::Encoder<BufWriter<File>>, fps: u32) -> Gif {
        let every = fps.div_ceil(MAX_GIF_FPS).max(1);
        let delay = (f64::from(100 * every) / f64::from(fps.max(1))).round() as u16;
        Gif { encoder, delay, every: every as usize, frames: 0 }
    }
}

/// Extensions of the files of videos.
pub(super) const EXTENSIONS: [&str; 2] = ["mp4", "gif"];

impl std::fmt::Debug for Video {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Video").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Creates a recorder that writes to `folder`, which is created if necessary.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be created.
    pub fn new(folder: &Path) -> Result<Recorder> {
        Recorder::with_ffmpeg(folder, ffmpeg::program())
    }

    fn with_ffmpeg(folder: &Path, ffmpeg: Option<&Path>) -> Result<Recorder> {
        fs::create_dir_all(folder).map_err(Error::io("cannot create", folder))?;
        let (folder, ffmpeg) = (folder.to_path_buf(), ffmpeg.map(PathBuf::from));
        Ok(Recorder { folder, ffmpeg, video: None, videos: 0, written: Vec::new() })
    }

    /// Adds a frame to the video of the current episode. `rows` are rows of numbers, such as
    /// the value of each action, which are drawn as bars beside the frame; each row has its own
    /// scale.
    ///
    /// # Errors
    /// [`Error::Io`] if the video cannot be written; [`Error::Env`] if ffmpeg fails, and for a frame
    /// whose size differs from that of the first frame of the episode.
    pub fn show(&mut self, frame: &Frame, rows: &[&[f32]]) -> Result<()> {
        let video = match &mut self.video {
            Some(video) => video,
            None => {
                let path = self.folder.join(format!("episode-{}", self.videos));
                self.video.insert(Video::create(self.ffmpeg.as_deref(), &path, frame, rows)?)
            }
        };
        video.show(frame, rows)
    }

    /// Ends the episode and completes its video.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written.
    pub fn cut(&mut self) -> Result<()> {
        let Some(video) = self.video.take() else { return Ok(()) };
        self.videos += 1;
        self.written.push(video.close()?);
        Ok(())
    }

    /// Returns the paths of the videos that are complete.
    pub fn written(&self) -> &[PathBuf] {
        &self.written
    }
}

impl Video {
    /// Creates the file of a video with frames of this size. `path` lacks its extension: `.mp4` with an
    /// `ffmpeg`, otherwise `.gif`.
    ///
    /// # Errors
    /// Returns the errors of [`Recorder::show`].
    pub(in crate::rl) fn create(
        ffmpeg: Option<&Path>,
        path: &Path,
        frame: &Frame,
        rows: &[&[f32]],
    ) -> Result<Video> {
        let (width, height, _) = beside(frame, rows);
        let size = (width, height);
        let path = path.with_extension(EXTENSIONS[usize::from(ffmpeg.is_none())]);
        if let Some(program) = ffmpeg {
            let process = Ffmpeg::start(program, path.clone(), size, frame.fps)?;
            return Ok(Video { path, size, encoder: Encoder::Mp4(process) });
        }
        let sides = u16::try_from(width).ok().zip(u16::try_from(height).ok());
        let (w, h) =
            sides.ok_or_else(|| Error::Env(format!("a picture of {width} by {height}")))?;
        let file = files::create(&path).map_err(Error::io("cannot create", &path))?;
        let mut encoder = gif::Encoder::new(BufWriter::new(file), w, h, &[])
            .map_err(|error| encoding(error, &path))?;
        encoder.set_repeat(Repeat::Infinite).map_err(|error| encoding(error, &path))?;
        Ok(Video { path, size, encoder: Encoder::Gif(Gif::new(encoder, frame.fps)) })
    }

    /// Adds a frame; see [`Recorder::show`].
    ///
    /// # Errors
    /// Returns the errors of [`Recorder::show`].
    pub(in crate::rl) fn show(&mut self, frame: &Frame, rows: &[&[f32]]) -> Result<()> {
        let (width, height, pixels) = beside(frame, rows);
        if self.size != (width, height) {
            return Err(Error::Env(format!(
                "a picture of {width} by {height} in a video of {} by {}",
                self.size.0, self.size.1
            )));
        }
        let gif = match &mut self.encoder {
            Encoder::Mp4(process) => return process.write(&pixels),
            Encoder::Gif(gif) => gif,
        };
        gif.frames += 1;
        if (gif.frames - 1) % gif.every != 0 {
            return Ok(());
        }
        let mut picture = gif::Frame::from_rgb_speed(width as u16, height as u16, &pixels, 20);
        picture.delay = gif.delay;
        picture.dispose = DisposalMethod::Any;
        gif.encoder.write_frame(&picture).map_err(|error| encoding(error, &self.path))
    }

    /// Completes the video and returns its path.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written.
    pub(in crate::rl) fn close(self) -> Result<PathBuf> {
        let Video { path, encoder, .. } = self;
        let encoder = match encoder {
            Encoder::Mp4(process) => return process.close(),
            Encoder::Gif(gif) => gif.encoder,
        };
        let file = encoder.into_inner().map_err(|error| encoding(error, &path))?;
        file.into_inner().map_err(|error| Error::io("cannot write", &path)(error.into_error()))?;
        Ok(path)
    }
}

fn encoding(error: gif::EncodingError, path: &Path) -> Error {
    match error {
        gif::EncodingError::Io(error) => Error::io("cannot write", path)(error),
        other => Error::Env(format!("cannot write the video {}: {other}", path.display())),
    }
}

/// Returns the frame with bars to the right of it: width, height, RGB.
fn beside<'a>(frame: &'a Frame, rows: &[&[f32]]) -> (usize, usize, Cow<'a, [u8]>) {
    let Frame { height, width, rgb, .. } = frame;
    let (height, width) = (*height, *width);
    if rows.is_empty() {
        return (width, height, Cow::Borrowed(rgb));
    }
    let bars = rows.iter().map(|row| row.len()).max().unwrap_or(1).max(1);
    let panel = (height / 2).max(bars.min(height)).max(8);
    let whole = width + panel;
    let mut pixels = PAPER.repeat(whole * height);
    for (row, line) in rgb.chunks_exact(3 * width).enumerate() {
        pixels[3 * whole * row..][..3 * width].copy_from_slice(line);
    }
    let mut paint = |x: usize, y: usize, color: [u8; 3]| {
        pixels[3 * (whole * y + x)..][..3].copy_from_slice(&color);
    };
    let strip = height / rows.len();
    for (k, values) in rows.iter().enumerate().filter(|_| strip >= 4) {
        let finite = || values.iter().copied().filter(|x| x.is_finite());
        let (low, high) = finite().fold((0.0f32, 0.0f32), |(a, b), x| (a.min(x), b.max(x)));
        let (top, room) = (k * strip + 1, strip - 2);
        let level = |x: f32| {
            let part = (x - low) / (high - low).max(f32::MIN_POSITIVE);
            top + ((1.0 - part) * (room - 1) as f32) as usize
        };
        let best = finite().fold(f32::NEG_INFINITY, f32::max);
        for x in 0..panel.saturating_sub(4) {
            let place = x * values.len() / (panel - 4);
            let Some(&value) = values.get(place).filter(|value| value.is_finite()) else {
                continue;
            };
            let (a, b) = (level(value), level(0.0));
            let color = if value == best { HIGHEST } else { BAR };
            // Bars that are wide enough are separated by a gap.
            let gap = panel / values.len() > 4 && (x + 1) * values.len() / (panel - 4) != place;
            for y in (a.min(b)..=a.max(b)).filter(|_| !gap) {
                paint(width + 2 + x, y, color);
            }
            paint(width + 2 + x, b, ZERO);
        }
    }
    (whole, height, Cow::Owned(pixels))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(value: u8) -> Frame {
        Frame { height: 32, width: 16, fps: 20, rgb: vec![value; 32 * 16 * 3] }
    }

    #[test]
    fn episodes_become_films() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::with_ffmpeg(folder.path(), None).unwrap();
        for episode in 0..2u8 {
            for step in 0..3 {
                recorder.show(&frame(40 * step + episode), &[&[0.1, -0.5, 0.9]]).unwrap();
            }
            recorder.cut().unwrap();
        }
        let rows: [&[f32]; 2] = [&[1.0], &[2.0]];
        let error = (0..2).try_for_each(|k| recorder.show(&frame(0), &rows[..k]));
        assert!(error.unwrap_err().to_string().contains("a video of 16 by 32"));
        for k in 0..2 {
            let file = File::open(folder.path().join(format!("episode-{k}.gif"))).unwrap();
            let mut gif = gif::DecodeOptions::new().read_info(file).unwrap();
            assert_eq!((gif.width(), gif.height()), (32, 32));
            let delays = std::iter::from_fn(|| gif.read_next_frame().unwrap().map(|f| f.delay));
            assert_eq!(delays.collect::<Vec<_>>(), [5; 3]);
        }
    }

    #[test]
    fn fast_films_leave_pictures_out() {
        let folder = tempfile::tempdir().unwrap();
        for (fps, delay, pictures) in [(1, 100, 12), (30, 3, 12), (50, 2, 12), (125, 2, 4)] {
            let name = folder.path().join(fps.to_string());
            let frame = Frame { fps, ..frame(0) };
            let mut video = Video::create(None, &name, &frame, &[]).unwrap();
            (0..12).try_for_each(|_| video.show(&frame, &[])).unwrap();
            let file = File::open(video.close().unwrap()).unwrap();
            let mut gif = gif::DecodeOptions::new().read_info(file).unwrap();
            let delays = std::iter::from_fn(|| gif.read_next_frame().unwrap().map(|f| f.delay));
            assert_eq!(delays.collect::<Vec<_>>(), vec![delay; pictures], "{fps}");
        }
    }

    #[test]
    fn bars_stand_on_zero_and_the_highest_is_marked() {
        let picture = frame(7);
        let (width, height, pixels) = beside(&picture, &[&[1.0, 2.0, f32::NAN, -1.0]]);
        assert_eq!((width, height), (32, 32));
        let color = |x: usize, y: usize| -> [u8; 3] {
            pixels[3 * (width * y + x)..][..3].try_into().unwrap()
        };
        assert_eq!(color(3, 3), [7; 3]);
        let column = |x: usize| (0..height).map(|y| color(x, y)).collect::<Vec<_>>();
        let heights: Vec<usize> = [18, 21, 24, 27]
            .map(|x| column(x).iter().filter(|&&c| c == BAR || c == HIGHEST).count())
            .to_vec();
        assert!(heights[0] > 5 && heights[1] > heights[0] + 5, "{heights:?}");
        assert!(heights[2] == 0 && heights[3] > 5, "{heights:?}");
        assert!(column(21).contains(&HIGHEST) && !column(18).contains(&HIGHEST));
    }
}

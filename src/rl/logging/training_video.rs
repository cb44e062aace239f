//! Videos of training episodes, as `gymnasium.wrappers.RecordVideo` makes them for CleanRL.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::video::{EXTENSIONS, Video};
use crate::envs::{Camera, Frame};
use crate::error::{Error, Result};
use crate::output;
use crate::rl::files;

/// Number of frames that wait for the thread that encodes them.
const QUEUED_FRAMES: usize = 64;
/// Beginning of the names of the files, as in `rl-video-episode-8.mp4`.
const PREFIX: &str = "rl-video-episode-";

/// Returns true for the episodes that Gymnasium films: the cubes below 1,000, and each thousandth.
fn is_filmed(episode: u64) -> bool {
    if episode >= 1000 {
        return episode.is_multiple_of(1000);
    }
    (0..10u64).any(|root| root.pow(3) == episode)
}

enum Message {
    Begin(u64),
    Frame(Frame),
    End,
}

/// Sender of the frames; `None` once the run has ended.
type Sender = Arc<Mutex<Option<SyncSender<Message>>>>;

fn lock(sender: &Sender) -> MutexGuard<'_, Option<SyncSender<Message>>> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Videos of a run's training episodes, encoded by a thread of their own.
#[derive(Debug)]
pub(in crate::rl) struct TrainingVideos {
    sender: Sender,
    written: Receiver<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

/// Camera of the environment that is filmed.
struct EpisodeCamera {
    sender: Sender,
    /// Number of the next episode.
    episode: u64,
}

impl TrainingVideos {
    /// Starts the thread. Videos are written into `folder` by `ffmpeg`, or as GIFs; a resumed run
    /// continues the numbers of the episodes that are there.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be created.
    pub(in crate::rl) fn start(
        folder: &Path,
        ffmpeg: Option<&'static Path>,
    ) -> Result<(TrainingVideos, Box<dyn Camera>)> {
        fs::create_dir_all(folder).map_err(Error::io("cannot create", folder))?;
        files::not_a_link(folder).map_err(Error::io("cannot write into", folder))?;
        let episode = next_episode(folder);
        let (sender, frames) = sync_channel(QUEUED_FRAMES);
        let sender = Arc::new(Mutex::new(Some(sender)));
        let (done, written) = channel();
        let folder = folder.to_path_buf();
        let thread = thread::spawn(move || {
            let encoded = encode(&folder, ffmpeg, &frames, |path| drop(done.send(path)));
            if let Err(error) = encoded {
                report(&error);
            }
        });
        let camera = Box::new(EpisodeCamera { sender: Arc::clone(&sender), episode });
        Ok((TrainingVideos { sender, written, thread: Some(thread) }, camera))
    }

    /// Returns the videos that were completed since the last call.
    pub(in crate::rl) fn completed(&self) -> Vec<PathBuf> {
        self.written.try_iter().collect()
    }

    /// Completes the video of the episode under way, and ends the thread.
    pub(in crate::rl) fn finish(&mut self) {
        drop(lock(&self.sender).take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Prints the reason why there are no videos.
pub(in crate::rl) fn report(error: &Error) {
    output::stderr_line(format_args!("--capture-video: {error}; the run continues without videos"));
}

impl Drop for TrainingVideos {
    fn drop(&mut self) {
        self.finish();
    }
}

impl EpisodeCamera {
    /// Sends a message, and waits while the queue is full. After an error there is no receiver.
    fn send(&self, message: Message) -> bool {
        let mut sender = lock(&self.sender);
        let sent = sender.as_ref().is_some_and(|sender| sender.send(message).is_ok());
        if !sent {
            *sender = None;
        }
        sent
    }
}

impl Camera for EpisodeCamera {
    fn begin(&mut self) -> bool {
        let episode = self.episode;
        self.episode += 1;
        is_filmed(episode) && self.send(Message::Begin(episode))
    }

    fn frame(&mut self, frame: Frame) {
        self.send(Message::Frame(frame));
    }

    fn end(&mut self) {
        self.send(Message::End);
    }

    fn fail(&mut self, error: Error) {
        self.end();
        report(&error);
    }
}

/// Returns the number after that of the last video in `folder`; 0 without one.
fn next_episode(folder: &Path) -> u64 {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| {
        let (number, extension) = name.to_str()?.strip_prefix(PREFIX)?.split_once('.')?;
        EXTENSIONS.contains(&extension).then(|| number.parse::<u64>().ok())?
    };
    let last = names.filter_map(|entry| number(entry.file_name())).max();
    last.map_or(0, |last| last.saturating_add(1))
}

/// Writes the videos until there are no further frames.
fn encode(
    folder: &Path,
    ffmpeg: Option<&Path>,
    frames: &Receiver<Message>,
    done: impl Fn(PathBuf),
) -> Result<()> {
    let (mut episode, mut video) = (0, None);
    for message in frames {
        match message {
            Message::Begin(number) => episode = number,
            Message::Frame(frame) => {
                let video: &mut Video = match &mut video {
                    Some(video) => video,
                    None => {
                        let path = folder.join(format!("{PREFIX}{episode}"));
                        video.insert(Video::create(ffmpeg, &path, &frame, &[])?)
                    }
                };
                video.show(&frame, &[])?;
            }
            Message::End => video.take().map(Video::close).transpose()?.into_iter().for_each(&done),
        }
    }
    video.map(Video::close).transpose()?.into_iter().for_each(done);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(folder: &Path) -> Vec<u64> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let number = |name: std::ffi::OsString| -> u64 {
            let name = name.into_string().unwrap();
            name.strip_prefix(PREFIX).unwrap().strip_suffix(".gif").unwrap().parse().unwrap()
        };
        let mut numbers: Vec<u64> = names.map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn frame() -> Frame {
        Frame { height: 2, width: 2, fps: Frame::FPS, rgb: vec![7; 12] }
    }

    /// Gymnasium's `capped_cubic_video_schedule`.
    #[test]
    fn episodes_are_chosen_as_in_gymnasium() {
        let filmed: Vec<u64> = (0..3001).filter(|&episode| is_filmed(episode)).collect();
        assert_eq!(filmed, [0, 1, 8, 27, 64, 125, 216, 343, 512, 729, 1000, 2000, 3000]);
    }

    #[test]
    fn a_resumed_run_continues_the_numbers() {
        let folder = tempfile::tempdir().unwrap();
        for last in [1, 8] {
            let (mut videos, mut camera) = TrainingVideos::start(folder.path(), None).unwrap();
            for _ in 0..7 {
                if camera.begin() {
                    camera.frame(frame());
                    camera.end();
                }
            }
            videos.finish();
            assert_eq!(videos.completed().len(), if last == 1 { 2 } else { 1 });
            assert_eq!(numbers(folder.path()).last(), Some(&last));
        }
    }

    #[test]
    fn an_episode_under_way_is_completed_and_later_frames_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let (mut videos, mut camera) = TrainingVideos::start(folder.path(), None).unwrap();
        assert!(camera.begin());
        (0..3 * QUEUED_FRAMES).for_each(|_| camera.frame(frame()));
        videos.finish();
        camera.frame(frame());
        assert!(!camera.begin());
        let path = folder.path().join("rl-video-episode-0.gif");
        assert_eq!(videos.completed(), std::slice::from_ref(&path));
        let mut gif = gif::DecodeOptions::new().read_info(fs::File::open(path).unwrap()).unwrap();
        let frames = std::iter::from_fn(|| gif.read_next_frame().unwrap().map(|_| ())).count();
        assert_eq!(frames, 3 * QUEUED_FRAMES);
    }

    #[test]
    fn a_video_that_cannot_be_written_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut videos, mut camera) = TrainingVideos::start(folder.path(), None).unwrap();
        fs::remove_dir(folder.path()).unwrap();
        assert!(camera.begin());
        (0..3 * QUEUED_FRAMES).for_each(|_| camera.frame(frame()));
        videos.finish();
        assert_eq!(videos.completed(), Vec::<PathBuf>::new());
    }
}

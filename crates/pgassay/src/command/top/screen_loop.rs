//! The loop: keys, readings from the watching thread, and drawing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use pgassay_lab::Interrupt;
use pgassay_lab::system_env::unix_us;
use ratatui::crossterm::event::{Event, KeyEventKind, poll, read};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::columns::TopView;
use super::feed::{ActivityFeed, FeedRequest};
use super::keys::TopAction;
use super::state::{TopReading, TopServer, TopState};
use super::terminal::TopTerminal;
use super::{draw, saving, terminal};
use crate::command::profile::overhead::OverheadExceeded;
use crate::exit;

/// How long the loop waits for a key before it asks for readings and signals.
const KEY_LIMIT: Duration = Duration::from_millis(50);
/// Keys that are handled at once.
const KEYS_MAX: usize = 1000;
/// The first readings come sooner, so that an outage shows within a second.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);
/// A reading that is this much overdue is said to be missing.
const OVERDUE: Duration = Duration::from_secs(2);
/// The pause before the first attempt to connect again, which doubles from attempt to attempt, and the longest.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const REOPEN_PAUSE_MAX: Duration = Duration::from_mins(1);
/// Time for the watch to end and to close its connection.
const END_LIMIT: Duration = Duration::from_millis(500);

/// What the watching thread sends.
enum WatchMessage {
    /// It has connected.
    Opened(TopServer),
    /// A reading.
    Seen(Box<TopReading>),
    /// The server is away, or still away. It connects again.
    Lost(anyhow::Error),
    /// It uses more CPU time than permitted, and has ended.
    Stopped(OverheadExceeded),
    /// It could not connect at all.
    Failed(anyhow::Error),
}

/// What both threads share.
#[derive(Clone)]
struct Shared {
    /// Set by the user and by signals.
    interrupt: Interrupt,
    /// Ends the interval in progress.
    interval_end: Interrupt,
    interval_ms: Arc<AtomicU64>,
    /// The length of the interval in progress.
    running_ms: Arc<AtomicU64>,
    wants_tables: Arc<AtomicBool>,
    wants_findings: Arc<AtomicBool>,
    /// Before the first attempt to connect again.
    reopen_pause: Duration,
}

impl Shared {
    fn new(interrupt: Interrupt, interval: Duration) -> Self {
        Self {
            interrupt,
            interval_end: Interrupt::default(),
            interval_ms: Arc::new(AtomicU64::new(interval.as_millis() as u64)),
            running_ms: Arc::default(),
            wants_tables: Arc::default(),
            wants_findings: Arc::default(),
            reopen_pause: REOPEN_PAUSE,
        }
    }

    /// What the watching thread is to do, so long after the last reading. An interval that became shorter ends when it
    /// would have, instead of after a minute without news.
    fn pass_on(&self, state: &TopState, since_reading: Duration) {
        let interval_ms = state.interval.as_millis() as u64;
        self.interval_ms.store(interval_ms, Ordering::Relaxed);
        let wants_findings = state.view == TopView::Findings;
        let wants_tables = wants_findings || state.view == TopView::Tables;
        self.wants_tables.store(wants_tables, Ordering::Relaxed);
        self.wants_findings.store(wants_findings, Ordering::Relaxed);
        let is_shorter = interval_ms < self.running_ms.load(Ordering::Relaxed);
        if is_shorter && since_reading >= state.interval {
            self.interval_end.flag().store(true, Ordering::Relaxed);
        }
    }

    /// Another interval begins.
    fn begin(&self, length: Duration) {
        let length_ms = length.as_millis() as u64;
        self.running_ms.store(length_ms, Ordering::Relaxed);
        let is_over = self.interrupt.is_requested();
        self.interval_end.flag().store(is_over, Ordering::Relaxed);
    }

    fn end(&self) {
        self.interrupt.flag().store(true, Ordering::Relaxed);
        self.interval_end.flag().store(true, Ordering::Relaxed);
    }
}

/// Connects with `open`, and shows what its feed sees until the user quits or a signal comes.
pub fn run<F>(state: &mut TopState, open: F) -> Result<()>
where
    F: FnMut() -> Result<(TopServer, ActivityFeed)> + Send,
{
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .context("cannot install a handler for Ctrl-C")?;
    }
    let shared = Shared::new(Interrupt::of(flag), state.interval);
    let (sender, messages) = sync_channel(1);
    std::thread::scope(|scope| {
        let of_thread = shared.clone();
        let watching = std::thread::Builder::new()
            .spawn_scoped(scope, move || watch(open, &of_thread, &sender))
            .context("cannot start a thread")?;
        let result = show(state, &messages, &shared);
        shared.end();
        drop(messages);
        let limit = Instant::now() + END_LIMIT;
        while !watching.is_finished() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !watching.is_finished() {
            // It waits for a server that does not answer. The terminal is restored.
            let code = result.as_ref().err().map_or(exit::OK, exit::report_code);
            std::process::exit(i32::from(code));
        }
        result
    })
}

/// The watching thread. If the server goes away, it connects again until the user quits.
fn watch<F>(mut open: F, shared: &Shared, sender: &SyncSender<WatchMessage>)
where
    F: FnMut() -> Result<(TopServer, ActivityFeed)>,
{
    // Sending fails once the user has quit.
    let (server, mut feed) = match open() {
        Ok(opened) => opened,
        Err(error) => {
            let _ = sender.send(WatchMessage::Failed(error));
            return;
        }
    };
    if sender.send(WatchMessage::Opened(server)).is_err() {
        return;
    }
    let mut next = FIRST_INTERVAL;
    while !shared.interrupt.is_requested() {
        shared.begin(next);
        let request = FeedRequest {
            length: next,
            wants_tables: &shared.wants_tables,
            wants_findings: &shared.wants_findings,
            interrupt: &shared.interval_end,
        };
        let message = match feed(request) {
            Ok(reading) => WatchMessage::Seen(Box::new(reading)),
            Err(error) if error.is::<OverheadExceeded>() => {
                drop(feed);
                stop(&error, (shared, sender));
                return;
            }
            Err(error) => match reopen(&mut open, error, (shared, sender)) {
                Some((server, opened)) => {
                    feed = opened;
                    WatchMessage::Opened(server)
                }
                None => return,
            },
        };
        if sender.send(message).is_err() {
            return;
        }
        next = Duration::from_millis(shared.interval_ms.load(Ordering::Relaxed));
    }
}

/// Says why there are no more readings, and waits for the user to quit.
fn stop(error: &anyhow::Error, (shared, sender): (&Shared, &SyncSender<WatchMessage>)) {
    let exceeded = error.downcast_ref::<OverheadExceeded>();
    if exceeded.is_some_and(|it| sender.send(WatchMessage::Stopped(*it)).is_ok()) {
        while !shared.interrupt.is_requested() {
            std::thread::sleep(KEY_LIMIT);
        }
    }
}

/// Connects again, and says why it is not connected; `None` if the user quits.
fn reopen<F>(
    open: &mut F,
    mut error: anyhow::Error,
    (shared, sender): (&Shared, &SyncSender<WatchMessage>),
) -> Option<(TopServer, ActivityFeed)>
where
    F: FnMut() -> Result<(TopServer, ActivityFeed)>,
{
    let mut pause = shared.reopen_pause;
    loop {
        sender.send(WatchMessage::Lost(error)).ok()?;
        let until = Instant::now() + pause;
        while Instant::now() < until && !shared.interrupt.is_requested() {
            std::thread::sleep(KEY_LIMIT.min(pause));
        }
        if shared.interrupt.is_requested() {
            return None;
        }
        match open() {
            Ok(opened) => return Some(opened),
            Err(refused) => error = refused,
        }
        pause = REOPEN_PAUSE_MAX.min(2 * pause);
    }
}

/// The main thread. The terminal is opened only once the server has answered, so that errors of
/// connecting are printed as usual.
fn show(state: &mut TopState, messages: &Receiver<WatchMessage>, shared: &Shared) -> Result<()> {
    state.server = opened(messages, shared)?;
    let mut screen = TopTerminal::open()?;
    let mut heard = Instant::now();
    // With thousands of sessions, drawing takes milliseconds.
    let mut has_changed = true;
    loop {
        let silence = heard.elapsed();
        let is_overdue = silence > state.interval + OVERDUE && state.stopped.is_none();
        let silent_for = is_overdue.then_some(silence);
        let seconds = |it: Option<Duration>| it.map(|it| it.as_secs());
        has_changed |= seconds(silent_for) != seconds(state.silent_for);
        state.silent_for = silent_for;
        if has_changed {
            screen
                .inner
                .draw(|frame| draw::draw(frame, state))
                .context("cannot draw on the terminal")?;
            has_changed = false;
        }
        if shared.interrupt.is_requested() {
            return Ok(());
        }
        let message = messages.try_recv();
        has_changed |= message.is_ok();
        match message {
            Ok(WatchMessage::Seen(reading)) => {
                heard = Instant::now();
                state.update(*reading, unix_us());
                continue;
            }
            Ok(WatchMessage::Failed(error)) => return Err(error),
            Ok(WatchMessage::Stopped(exceeded)) => state.stopped = Some(exceeded.brief()),
            Ok(WatchMessage::Lost(error)) => state.lost = Some(exit::text_of(&error)),
            Ok(WatchMessage::Opened(server)) => {
                state.server = server;
                state.lost = None;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) if shared.interrupt.is_requested() => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err(ended()),
        }
        // All keys that have arrived: a text that is pasted is not drawn after each letter.
        let mut wait = KEY_LIMIT;
        let mut left = KEYS_MAX;
        while left > 0 && poll(wait).context("cannot read keys")? {
            wait = Duration::ZERO;
            left -= 1;
            // Also another size.
            has_changed = true;
            let Event::Key(key) = read().context("cannot read keys")? else {
                continue;
            };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            match state.press(key) {
                TopAction::Quit => return Ok(()),
                TopAction::Save => save(state),
                TopAction::Redraw => {
                    terminal::draw_anew(&mut screen.inner)
                        .context("cannot draw on the terminal")?;
                }
                TopAction::Draw => {}
            }
        }
        shared.pass_on(state, heard.elapsed());
    }
}

/// Waits until the watch has connected.
fn opened(messages: &Receiver<WatchMessage>, shared: &Shared) -> Result<TopServer> {
    loop {
        match messages.recv_timeout(KEY_LIMIT) {
            Ok(WatchMessage::Opened(server)) => return Ok(server),
            Ok(WatchMessage::Failed(error)) => return Err(error),
            Ok(WatchMessage::Seen(_) | WatchMessage::Lost(_) | WatchMessage::Stopped(_)) => {}
            Err(RecvTimeoutError::Timeout) => shared.interrupt.check()?,
            Err(RecvTimeoutError::Disconnected) => return Err(ended()),
        }
    }
}

fn ended() -> anyhow::Error {
    anyhow!("watching the server ended unexpectedly; please report it")
}

/// Saves what is shown into the working directory; the screen says where, or why not.
fn save(state: &mut TopState) {
    let Some(activity) = &state.shown else {
        state.message = Some("nothing to save yet".to_owned());
        return;
    };
    let saved = std::env::current_dir()
        .map_err(anyhow::Error::from)
        .and_then(|directory| saving::save(activity, &state.origin, &directory));
    state.message = Some(match saved {
        Ok(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            format!("saved; to print it: pgassay show {name}")
        }
        Err(error) => exit::text_of(&error),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::profile::overhead::OverheadGuard;

    /// The time until a hang is a failure.
    const HANG: Duration = Duration::from_mins(1);

    /// Regression: `top` ended if a server was away for more than 20 s.
    #[test]
    fn a_server_that_stays_away_is_connected_to_until_the_user_quits() {
        let mut shared = Shared::new(Interrupt::default(), Duration::from_secs(1));
        shared.reopen_pause = Duration::from_millis(1);
        let (sender, messages) = sync_channel(1);
        let of_thread = shared.clone();
        let watching = std::thread::spawn(move || {
            let mut attempts = 0;
            let open = move || {
                attempts += 1;
                // It restarts, and later goes for good.
                if (2..=6).contains(&attempts) || attempts > 7 {
                    return Err(anyhow!("attempt {attempts}"));
                }
                let feed = |_: FeedRequest<'_>| Err(anyhow!("lost"));
                Ok((TopServer::default(), Box::new(feed) as ActivityFeed))
            };
            watch(open, &of_thread, &sender);
        });
        let mut lost = Vec::new();
        let mut opened = 0;
        while lost.len() < 8 {
            match messages.recv_timeout(HANG).unwrap() {
                WatchMessage::Opened(_) => opened += 1,
                WatchMessage::Lost(error) => lost.push(error.to_string()),
                WatchMessage::Seen(_) | WatchMessage::Failed(_) | WatchMessage::Stopped(_) => {
                    panic!("nothing to see")
                }
            }
        }
        let attempts = (2..=6).map(|it| format!("attempt {it}"));
        let lost_once = || std::iter::once("lost".to_owned());
        let mut expected: Vec<String> = lost_once().chain(attempts).chain(lost_once()).collect();
        expected.push("attempt 8".to_owned());
        assert_eq!((lost, opened), (expected, 2));
        shared.end();
        // It may be about to say once more why it is not connected.
        while messages.recv_timeout(HANG).is_ok() {}
        watching.join().unwrap();
    }

    #[test]
    fn a_watch_that_uses_too_much_ends_and_does_not_connect_again() {
        let shared = Shared::new(Interrupt::default(), Duration::from_secs(1));
        let (sender, messages) = sync_channel(1);
        let of_thread = shared.clone();
        let watching = std::thread::spawn(move || {
            let open = || {
                let feed = |_: FeedRequest<'_>| {
                    let mut guard = OverheadGuard::new("0.01%".parse().unwrap(), []);
                    let busy = |ending: &Interrupt| while !ending.is_requested() {};
                    let ran = OverheadGuard::run(Some(&mut guard), &Interrupt::default(), busy);
                    Err(ran?.1.unwrap().into())
                };
                Ok((TopServer::default(), Box::new(feed) as ActivityFeed))
            };
            watch(open, &of_thread, &sender);
        });
        let next = || messages.recv_timeout(HANG).unwrap();
        assert!(matches!(next(), WatchMessage::Opened(_)));
        assert!(matches!(next(), WatchMessage::Stopped(_)));
        shared.end();
        watching.join().unwrap();
        assert!(messages.recv().is_err(), "nothing more");
    }

    /// Regression: "no answer from the server for 8 s", because an interval of 30 s had become one of 0.5 s, which was
    /// noticed only at its end.
    #[test]
    fn an_interval_that_becomes_shorter_ends() {
        let mut state = TopState::new(Duration::from_hours(1), false);
        let shared = Shared::new(Interrupt::default(), state.interval);
        let (sender, messages) = sync_channel(1);
        let (began, intervals) = sync_channel(8);
        let of_thread = shared.clone();
        let watching = std::thread::spawn(move || {
            let open = move || {
                let began = began.clone();
                let feed = move |request: FeedRequest<'_>| {
                    began.send(request.length)?;
                    while request.length > FIRST_INTERVAL && !request.interrupt.is_requested() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(TopReading::default())
                };
                Ok((TopServer::default(), Box::new(feed) as ActivityFeed))
            };
            watch(open, &of_thread, &sender);
        });
        let next = || messages.recv_timeout(HANG).unwrap();
        assert!(matches!(next(), WatchMessage::Opened(_)));
        assert!(matches!(next(), WatchMessage::Seen(_)), "the first one");
        assert_eq!(intervals.recv().unwrap(), FIRST_INTERVAL);
        assert_eq!(intervals.recv().unwrap(), state.interval);

        shared.pass_on(&state, Duration::ZERO);
        assert!(
            !shared.interval_end.is_requested(),
            "it is as long as asked for"
        );
        state.interval = Duration::from_secs(30);
        shared.pass_on(&state, Duration::from_secs(29));
        assert!(!shared.interval_end.is_requested(), "it is not over yet");
        shared.pass_on(&state, Duration::from_secs(30));
        assert!(matches!(next(), WatchMessage::Seen(_)), "it has ended");
        assert_eq!(intervals.recv_timeout(HANG).unwrap(), state.interval);

        shared.end();
        assert!(matches!(next(), WatchMessage::Seen(_)), "the last one");
        watching.join().unwrap();
    }
}

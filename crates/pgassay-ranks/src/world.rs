//! The ranks of a run and what they say to each other. Rank 0 leads.
//!
//! Source: MPI 3.1, chapters 3 (point-to-point) and 8 (environment). Collective calls are not used:
//! they wait without a limit for ranks that are stopped.

use std::num::NonZero;
use std::thread::sleep;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::{Communicator as _, SimpleCommunicator};

use crate::clock_offset::ClockOffset;
use crate::clock_rounds::{ClockRounds, ROUND_TRIPS, at_once};
use crate::transfer::{Transfer, process};

/// How often to look for messages. MPI would spin instead, and take CPU time from the load.
const POLL: Duration = Duration::from_millis(1);
/// How often a rank says that it is alive while others wait for its report.
const BEAT: Duration = Duration::from_secs(1);
/// How long a rank may be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// How often to say for whom rank 0 waits.
const NOTE: Duration = Duration::from_secs(10);

/// What a message is.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Topic {
    /// A step before or after the run.
    Step = 1,
    Clock,
    Alive,
    Report,
    Done,
}

/// Why ranks cannot go on. The other ranks do not know: abort.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// Another library has initialized MPI.
    #[error("MPI is already initialized")]
    Initialized,
    /// Ranks that do not answer.
    #[error(
        "{} not answered for {} s: stopped, or cut off from the network",
        have(ranks),
        silent.as_secs()
    )]
    Silent {
        /// These ranks.
        ranks: Vec<usize>,
        /// How long.
        silent: Duration,
    },
}

fn have(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match ranks {
        [_] => format!("rank {} has", names[0]),
        _ => format!("ranks {} have", names.join(", ")),
    }
}

/// The ranks of a run. MPI is finalized when it is dropped, which waits for the other ranks.
pub struct World {
    ranks: SimpleCommunicator,
    rank: usize,
    size: usize,
    _universe: Universe,
}

impl World {
    /// Initializes MPI. All calls must come from the thread that calls this.
    ///
    /// # Errors
    /// If MPI is initialized already.
    pub fn join() -> Result<Self, RankError> {
        let (universe, _) =
            mpi::initialize_with_threading(Threading::Funneled).ok_or(RankError::Initialized)?;
        let ranks = universe.world();
        let number = |value: i32| usize::try_from(value).unwrap_or(0);
        Ok(Self {
            rank: number(ranks.rank()),
            size: number(ranks.size()),
            ranks,
            _universe: universe,
        })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Ends all ranks; the launcher exits with this code.
    pub fn abort(&self, code: u8) -> ! {
        self.ranks.abort(code.into())
    }

    /// Sends each rank a message; called by rank 0.
    ///
    /// # Errors
    /// If a rank does not receive it.
    pub fn tell(&self, message: impl Fn(usize) -> Vec<u8>) -> Result<(), RankError> {
        let others = 1..self.size;
        let mut sent: Vec<(usize, Transfer)> = others
            .map(|rank| (rank, self.send(rank, Topic::Step, &message(rank))))
            .collect();
        let begin = Instant::now();
        loop {
            sent.retain_mut(|(_, message)| !message.has_ended());
            if sent.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > SILENCE {
                let ranks = sent.iter().map(|(rank, _)| *rank).collect();
                return Err(RankError::Silent {
                    ranks,
                    silent: SILENCE,
                });
            }
            sleep(POLL);
        }
    }

    /// Waits for a message of rank 0; called by the others. There is no limit: rank 0 may prepare a
    /// run for hours.
    pub fn listen(&self) -> Vec<u8> {
        loop {
            if let Some(mut message) = self.begin_receive(0, Topic::Step) {
                while !message.has_ended() {
                    sleep(POLL);
                }
                return message.arrived().to_vec();
            }
            sleep(POLL);
        }
    }

    /// Sends a message to rank 0, which gathers it; called by the others.
    pub fn answer(&self, message: &[u8]) {
        let mut sent = self.send(0, Topic::Step, message);
        while !sent.has_ended() {
            sleep(POLL);
        }
    }

    /// Waits for a message of each other rank, without a limit; called by rank 0. Calls `waiting`
    /// every 10 s with the ranks that are missing.
    pub fn gather(&self, mut waiting: impl FnMut(&[usize])) -> Vec<Vec<u8>> {
        let mut arriving: Vec<Option<Transfer>> = (1..self.size).map(|_| None).collect();
        let mut noted = Instant::now();
        loop {
            let mut missing = Vec::new();
            for (slot, rank) in arriving.iter_mut().zip(1..) {
                if slot.is_none() {
                    *slot = self.begin_receive(rank, Topic::Step);
                }
                if !slot.as_mut().is_some_and(Transfer::has_ended) {
                    missing.push(rank);
                }
            }
            if missing.is_empty() {
                let arrived = arriving.iter().flatten();
                return arrived.map(|message| message.arrived().to_vec()).collect();
            }
            if noted.elapsed() > NOTE {
                waiting(&missing);
                noted = Instant::now();
            }
            sleep(POLL);
        }
    }

    /// Measures how much more the clock of each rank shows than that of rank 0; the others call
    /// [`World::show_clock`]. The first offset is rank 0's own, zero. Asks several ranks at a time, if this machine has
    /// the CPUs.
    ///
    /// # Errors
    /// If a rank does not answer.
    pub fn measure_clocks(&self, now_ns: fn() -> u64) -> Result<Vec<ClockOffset>, RankError> {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut rounds = ClockRounds::new(self.size, at_once(cpus));
        let mut arriving: Vec<Option<Transfer>> = (0..self.size).map(|_| None).collect();
        let ask = |rounds: &mut ClockRounds, rank| {
            let sent_ns = now_ns();
            drop(self.send(rank, Topic::Clock, &[]));
            rounds.asked(rank, sent_ns);
        };
        loop {
            while let Some(rank) = rounds.begin_next() {
                ask(&mut rounds, rank);
            }
            if rounds.is_complete() {
                return Ok(rounds.offsets());
            }
            for (rank, sent_ns) in rounds.waiting().to_vec() {
                let slot = &mut arriving[rank];
                if slot.is_none() {
                    *slot = self.begin_receive(rank, Topic::Clock);
                }
                if let Some(answer) = slot.take_if(Transfer::has_ended) {
                    let received_ns = now_ns();
                    let shown_ns = answer.arrived().try_into().map_or(0, u64::from_le_bytes);
                    if rounds.answered(rank, shown_ns, received_ns) {
                        ask(&mut rounds, rank);
                    }
                } else if u128::from(now_ns().saturating_sub(sent_ns)) > SILENCE.as_nanos() {
                    return Err(RankError::Silent {
                        ranks: vec![rank],
                        silent: SILENCE,
                    });
                }
            }
            std::thread::yield_now();
        }
    }

    /// Shows rank 0 this rank's clock; called by the others.
    ///
    /// # Errors
    /// If rank 0 does not ask again.
    pub fn show_clock(&self, now_ns: fn() -> u64) -> Result<(), RankError> {
        // Ranks wait for their turn without spinning, so that they do not disturb the others.
        let first = loop {
            if let Some(question) = self.begin_receive(0, Topic::Clock) {
                break question;
            }
            sleep(POLL);
        };
        drop(first);
        for left in (0..ROUND_TRIPS).rev() {
            drop(self.send(0, Topic::Clock, &now_ns().to_le_bytes()));
            if left > 0 {
                self.spin_for(0)?;
            }
        }
        Ok(())
    }

    fn spin_for(&self, rank: usize) -> Result<&'static [u8], RankError> {
        let begin = Instant::now();
        let mut arriving: Option<Transfer> = None;
        loop {
            if arriving.is_none() {
                arriving = self.begin_receive(rank, Topic::Clock);
            }
            if let Some(message) = &mut arriving
                && message.has_ended()
            {
                return Ok(message.arrived());
            }
            if begin.elapsed() > SILENCE {
                return Err(RankError::Silent {
                    ranks: vec![rank],
                    silent: SILENCE,
                });
            }
            std::thread::yield_now();
        }
    }

    /// Brings the ranks' reports to rank 0, where they are the result; on the others it is empty. All
    /// ranks call this at the same time. `report` waits up to a second for the rank's own report.
    /// From now on and until all reports have arrived, each rank says once per second that it is
    /// alive, and must not be silent for more than 5 s. A rank that ends early, after a signal, expects the others
    /// to speak only from `end` on. `waiting` is called every 10 s on rank 0 with
    /// the ranks that are missing.
    ///
    /// # Errors
    /// Ranks that are silent.
    pub fn report(
        &self,
        end: Instant,
        mut report: impl FnMut(Duration) -> Option<Vec<u8>>,
        mut waiting: impl FnMut(&[usize]),
    ) -> Result<Vec<Vec<u8>>, RankError> {
        let mut circle = Circle::new(self, end);
        let (mut beat, mut noted) = (Instant::now(), Instant::now());
        circle.say_alive();
        loop {
            if circle.own.is_none()
                && let Some(bytes) = report(BEAT)
            {
                circle.take_own(bytes);
            }
            if let Some(reports) = circle.listen() {
                return Ok(reports);
            }
            circle.check_silence()?;
            if beat.elapsed() > BEAT {
                circle.say_alive();
                beat = Instant::now();
            }
            if noted.elapsed() > NOTE && circle.own.is_some() && self.rank == 0 {
                waiting(&circle.missing());
                noted = Instant::now();
            }
            sleep(POLL);
        }
    }

    fn send(&self, to: usize, topic: Topic, bytes: &[u8]) -> Transfer {
        Transfer::send(&process(&self.ranks, to), topic as i32, bytes)
    }

    fn begin_receive(&self, from: usize, topic: Topic) -> Option<Transfer> {
        Transfer::receive(&process(&self.ranks, from), topic as i32)
    }
}

/// What a rank hears from another one.
struct Peer {
    rank: usize,
    heard: Instant,
    report: Option<Transfer>,
    is_done: bool,
}

/// A rank among the others while they report: rank 0 hears all, the others hear rank 0.
struct Circle<'a> {
    world: &'a World,
    peers: Vec<Peer>,
    own: Option<Vec<u8>>,
    sent: Vec<Transfer>,
}

impl<'a> Circle<'a> {
    fn new(world: &'a World, end: Instant) -> Self {
        let peers = if world.rank == 0 { 1..world.size } else { 0..1 };
        let peer = |rank| Peer {
            rank,
            heard: end.max(Instant::now()),
            report: None,
            is_done: false,
        };
        Self {
            world,
            peers: peers.map(peer).collect(),
            own: None,
            sent: Vec::new(),
        }
    }

    fn say_alive(&mut self) {
        for peer in &self.peers {
            drop(self.world.send(peer.rank, Topic::Alive, &[]));
        }
    }

    fn take_own(&mut self, bytes: Vec<u8>) {
        if self.world.rank > 0 {
            self.sent.push(self.world.send(0, Topic::Report, &bytes));
        }
        self.own = Some(bytes);
    }

    /// Receives what has arrived. Returns the reports if this rank's part is over.
    fn listen(&mut self) -> Option<Vec<Vec<u8>>> {
        let world = self.world;
        let end = if world.rank == 0 {
            Topic::Report
        } else {
            Topic::Done
        };
        for peer in &mut self.peers {
            while world.begin_receive(peer.rank, Topic::Alive).is_some() {
                peer.heard = peer.heard.max(Instant::now());
            }
            if peer.report.is_none() {
                peer.report = world.begin_receive(peer.rank, end);
            }
            peer.is_done = peer.report.as_mut().is_some_and(Transfer::has_ended);
        }
        self.sent.iter_mut().for_each(|sent| {
            sent.has_ended();
        });
        let own = self.own.as_ref()?;
        if !self.peers.iter().all(|peer| peer.is_done) {
            return None;
        }
        if world.rank > 0 {
            return Some(Vec::new());
        }
        for peer in &self.peers {
            drop(world.send(peer.rank, Topic::Done, &[]));
        }
        let others = self.peers.iter().filter_map(|peer| peer.report.as_ref());
        let others = others.map(|report| report.arrived().to_vec());
        Some(std::iter::once(own.clone()).chain(others).collect())
    }

    fn missing(&self) -> Vec<usize> {
        let missing = self.peers.iter().filter(|peer| !peer.is_done);
        missing.map(|peer| peer.rank).collect()
    }

    fn check_silence(&self) -> Result<(), RankError> {
        let is_silent = |peer: &&Peer| !peer.is_done && peer.heard.elapsed() > SILENCE;
        let ranks: Vec<usize> = self
            .peers
            .iter()
            .filter(is_silent)
            .map(|it| it.rank)
            .collect();
        if ranks.is_empty() {
            return Ok(());
        }
        Err(RankError::Silent {
            ranks,
            silent: SILENCE,
        })
    }
}

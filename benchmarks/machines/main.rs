//! What bounds a run on up to 1,000 machines, one rank each: its agreements, the clocks, the start and the report. A
//! simulation with a fixed seed of the messages of `pgassay_ranks::World`, with its order of round trips.
//!
//! `cargo run --release -p pgassay-ranks --example machines` prints the table of `docs/ranks.md`.
#![allow(missing_docs)]

use pgassay_ranks::ClockRounds;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

// Assumed of machines in one data center with a network of 10 Gbit/s.
/// A message's way without a queue.
const WAY_NS: u64 = 20 * US;
/// The mean of what is added at random.
const JITTER_NS: f64 = 5e3;
/// One message of 100 is delayed by 200 us on average.
const STALLED: f64 = 0.01;
const STALL_NS: f64 = 200e3;
/// Rank 0's time for a message that it sends or receives: a system call, and Open MPI's handling.
const HANDLING_NS: u64 = 5 * US;
/// Rank 0's time to see that there is no message of a rank.
const PROBE_NS: u64 = 300;
const BYTES_PER_S: u64 = 1_250_000_000;
/// Clocks run at most this much too fast or too slow.
const DRIFT: f64 = 50e-6;

// As in `World` and `bench`.
/// Ranks look for messages as often.
const POLL_NS: u64 = MS;
/// From the last clock to the start.
const NOTICE_NS: u64 = 200 * MS;

// Measured, except for the first: see docs/ranks.md.
/// Of the arguments and scripts, encoded.
const SETTINGS_BYTES: u64 = 10_000;
/// Of a rank's report.
const REPORT_BYTES: u64 = 15_500;
/// To decode a report and to add it.
const MERGE_NS: u64 = 2_200 * US;

/// `SplitMix64`.
struct SeededRandom(u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }

    /// How long a short message is on its way.
    fn way_ns(&mut self) -> u64 {
        let stall_ns = if self.share() < STALLED {
            self.exponential(STALL_NS)
        } else {
            0.0
        };
        WAY_NS + (self.exponential(JITTER_NS) + stall_ns) as u64
    }

    /// How long a rank sleeps before it looks for a message.
    fn poll_ns(&mut self) -> u64 {
        self.next() % POLL_NS
    }
}

/// How long rank 0 and its network need for this many bytes.
fn wire_ns(bytes: u64) -> u64 {
    bytes * S / BYTES_PER_S
}

/// Rank 0 sends each rank a message: when each has seen it.
fn announced(random: &mut SeededRandom, begin_ns: u64, ranks: u64, bytes: u64) -> Vec<u64> {
    let each_ns = HANDLING_NS.max(wire_ns(bytes));
    let of_rank = |rank: u64| begin_ns + rank * each_ns + random.way_ns() + random.poll_ns();
    (1..ranks).map(of_rank).collect()
}

/// Rank 0 receives a message of each rank: when it has the last one. It looks at all ranks, and sleeps.
fn gathered(random: &mut SeededRandom, sent_ns: &[u64], bytes: u64) -> u64 {
    let mut arrived: Vec<u64> = sent_ns.iter().map(|sent| sent + random.way_ns()).collect();
    arrived.sort_unstable();
    let (mut now_ns, mut taken) = (arrived.first().copied().unwrap_or(0), 0);
    while taken < arrived.len() {
        now_ns += (arrived.len() - taken) as u64 * PROBE_NS;
        while taken < arrived.len() && arrived[taken] <= now_ns {
            now_ns += HANDLING_NS.max(wire_ns(bytes));
            taken += 1;
        }
        now_ns += POLL_NS;
    }
    now_ns
}

/// From the first message until all ranks know that all are connected. The time of connecting is not included.
fn agreements_ns(random: &mut SeededRandom, ranks: u64) -> u64 {
    let mut known = announced(random, 0, ranks, SETTINGS_BYTES);
    for _ in 0..2 {
        let agreed_ns = gathered(random, &known, 100);
        known = announced(random, agreed_ns, ranks, 100);
    }
    known.into_iter().max().unwrap_or(0)
}

/// A rank's clock, against that of rank 0.
#[derive(Clone, Copy)]
struct DriftingClock {
    offset_ns: i64,
    drift: f64,
}

impl DriftingClock {
    fn shown_ns(self, true_ns: u64) -> u64 {
        let drifted_ns = self.drift * true_ns as f64;
        true_ns.saturating_add_signed(self.offset_ns + drifted_ns as i64)
    }
}

/// What the clocks took, and what they are good for.
struct AgreedStart {
    measuring_ns: u64,
    /// The largest error of a clock that is printed.
    bound_ns: u64,
    /// The time between the first and the last rank's start.
    skew_us: f64,
    /// How long before the start the last rank knows of it.
    margin_ns: u64,
}

/// Measures the clocks of all ranks, so many at a time, and names a start.
fn start(random: &mut SeededRandom, ranks: u64, at_once: usize) -> AgreedStart {
    let clocks: Vec<DriftingClock> = (0..ranks)
        .map(|_| DriftingClock {
            offset_ns: (random.next() % S).cast_signed(),
            drift: (2.0 * random.share() - 1.0) * DRIFT,
        })
        .collect();
    let mut rounds = ClockRounds::new(ranks as usize, at_once);
    // By rank: when its answer arrives, and what it shows.
    let mut answers = vec![(0, 0); ranks as usize];
    let mut now_ns = 0;
    while !rounds.is_complete() {
        let mut begin: Vec<usize> = Vec::new();
        while let Some(rank) = rounds.begin_next() {
            begin.push(rank);
            let first_ns = random.poll_ns();
            ask(
                random,
                &mut rounds,
                &mut now_ns,
                (rank, first_ns),
                &clocks,
                &mut answers,
            );
        }
        let waiting = rounds.waiting().to_vec();
        let arrivals = waiting.iter().map(|(rank, _)| answers[*rank].0);
        now_ns = now_ns.max(arrivals.min().unwrap_or(0));
        for (rank, _) in waiting {
            let (arrival_ns, shown_ns) = answers[rank];
            if arrival_ns > now_ns {
                now_ns += PROBE_NS;
                continue;
            }
            now_ns += HANDLING_NS;
            if rounds.answered(rank, shown_ns, now_ns) {
                ask(
                    random,
                    &mut rounds,
                    &mut now_ns,
                    (rank, 0),
                    &clocks,
                    &mut answers,
                );
            }
        }
    }
    let offsets = rounds.offsets();
    let due_ns = now_ns + NOTICE_NS;
    // Solves the rank's clock for the true time.
    let begun = clocks.iter().zip(&offsets).skip(1).map(|(clock, found)| {
        let error_ns = (found.offset_ns - clock.offset_ns) as f64;
        (due_ns as f64 + error_ns) / (1.0 + clock.drift) - due_ns as f64
    });
    let (first, last) = begun.fold((0.0_f64, 0.0_f64), |(first, last), late| {
        (first.min(late), last.max(late))
    });
    let known = announced(random, now_ns, ranks, 16);
    AgreedStart {
        measuring_ns: now_ns,
        bound_ns: offsets.iter().map(|it| it.bound_ns).max().unwrap_or(0),
        skew_us: (last - first) / 1e3,
        margin_ns: due_ns.saturating_sub(known.into_iter().max().unwrap_or(0)),
    }
}

/// Rank 0 asks a rank, which takes this long to see the question.
fn ask(
    random: &mut SeededRandom,
    rounds: &mut ClockRounds,
    now_ns: &mut u64,
    (rank, first_ns): (usize, u64),
    clocks: &[DriftingClock],
    answers: &mut [(u64, u64)],
) {
    rounds.asked(rank, *now_ns);
    *now_ns += HANDLING_NS;
    let seen_ns = *now_ns + random.way_ns() + first_ns;
    answers[rank] = (
        seen_ns + HANDLING_NS + random.way_ns(),
        clocks[rank].shown_ns(seen_ns),
    );
}

/// From the agreed end until rank 0 has all reports, and from then until they are merged.
fn report_ns(random: &mut SeededRandom, ranks: u64) -> (u64, u64) {
    let sent: Vec<u64> = (1..ranks).map(|_| random.poll_ns()).collect();
    (gathered(random, &sent, REPORT_BYTES), ranks * MERGE_NS)
}

const SEED: u64 = 20_261_201;

fn main() {
    println!(
        "| machines | agreements, ms | clocks, one at a time, s | starts within, us | clocks, 8 at a time, s \
         | starts within, us | clock +-, us | start known before, ms | reports, ms | merging, ms |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for ranks in [4, 32, 250, 1000] {
        let random = &mut SeededRandom(SEED);
        let agreements_ns = agreements_ns(random, ranks);
        let (single, several) = (start(random, ranks, 1), start(random, ranks, 8));
        let (report_ns, merge_ns) = report_ns(random, ranks);
        let ms = |ns: u64| ns as f64 / 1e6;
        println!(
            "| {ranks} | {:.0} | {:.2} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            ms(agreements_ns),
            ms(single.measuring_ns) / 1e3,
            single.skew_us,
            ms(several.measuring_ns) / 1e3,
            several.skew_us,
            several.bound_ns as f64 / 1e3,
            ms(several.margin_ns),
            ms(report_ns),
            ms(merge_ns),
        );
    }
    println!(
        "\n| clocks at a time | time, s | clock +-, us | starts within, us |\n|--:|--:|--:|--:|"
    );
    for at_once in [1, 2, 4, 8, 16, 999] {
        let start = start(&mut SeededRandom(SEED), 1000, at_once);
        println!(
            "| {at_once} | {:.2} | {:.0} | {:.0} |",
            start.measuring_ns as f64 / 1e9,
            start.bound_ns as f64 / 1e3,
            start.skew_us
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one clock after the other took four seconds, in which they drifted by more than their printed error.
    #[test]
    fn the_clocks_of_1000_machines_are_measured_in_a_second() {
        let single = start(&mut SeededRandom(SEED), 1000, 1);
        let several = start(&mut SeededRandom(SEED), 1000, 8);
        assert!(single.measuring_ns > 3 * S, "{}", single.measuring_ns);
        assert!(several.measuring_ns < S, "{}", several.measuring_ns);
        assert!(
            2.0 * several.skew_us < single.skew_us,
            "{} {}",
            several.skew_us,
            single.skew_us
        );
    }

    #[test]
    fn all_of_1000_machines_learn_of_the_start_in_time() {
        let several = start(&mut SeededRandom(SEED), 1000, 8);
        assert!(several.margin_ns > NOTICE_NS / 2, "{}", several.margin_ns);
        assert!(agreements_ns(&mut SeededRandom(SEED), 1000) < S);
    }

    #[test]
    fn few_machines_start_within_a_tenth_of_a_millisecond() {
        for at_once in [1, 8] {
            let start = start(&mut SeededRandom(SEED), 4, at_once);
            assert!(start.skew_us < 100.0, "{}", start.skew_us);
        }
    }
}

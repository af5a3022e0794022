//! The distance of two clocks, with its bound.
//!
//! Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989): the
//! shortest round trip has the smallest error. Hunold and Carpen-Amarie, "Reproducible MPI
//! Benchmarking is Still Not as Easy as You Think", IEEE TPDS 27 (2016), start ranks by it.

/// A round trip: when a message left, what the other clock showed, and when the answer came. Times
/// are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// On the own clock.
    pub sent_ns: u64,
    /// On the other clock.
    pub shown_ns: u64,
    /// On the own clock.
    pub received_ns: u64,
}

/// How much more another clock shows than the own one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// The estimate.
    pub offset_ns: i64,
    /// The largest possible error of the estimate: half of the round trip.
    pub bound_ns: u64,
}

impl ClockOffset {
    /// Estimates the offset from the shortest of some round trips; `None` without any.
    pub fn of(readings: &[ClockReading]) -> Option<Self> {
        let trip_ns = |it: &ClockReading| it.received_ns.saturating_sub(it.sent_ns);
        let shortest = readings.iter().min_by_key(|it| trip_ns(it))?;
        let bound_ns = trip_ns(shortest).div_ceil(2);
        let middle_ns = shortest.sent_ns + bound_ns;
        Some(Self {
            offset_ns: shortest.shown_ns.cast_signed() - middle_ns.cast_signed(),
            bound_ns,
        })
    }

    /// A time of the own clock, on the other one.
    pub fn there_ns(&self, here_ns: u64) -> u64 {
        here_ns.saturating_add_signed(self.offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_counts_and_bounds_the_error() {
        // The other clock shows 5000 more; the ways there and back differ.
        let trip = |sent_ns, there_ns, back_ns| ClockReading {
            sent_ns,
            shown_ns: sent_ns + there_ns + 5000,
            received_ns: sent_ns + there_ns + back_ns,
        };
        for (there_ns, back_ns) in [(10, 11), (0, 30), (30, 0), (1, 2)] {
            let readings = [
                trip(1_000, 900, 10),
                trip(9_000, there_ns, back_ns),
                trip(20_000, 40, 800),
            ];
            let found = ClockOffset::of(&readings).unwrap_or_default();
            assert_eq!(found.bound_ns, (there_ns + back_ns).div_ceil(2));
            assert!(
                found.offset_ns.abs_diff(5000) <= found.bound_ns,
                "{found:?}"
            );
            assert_eq!(
                found.there_ns(100),
                100_u64.saturating_add_signed(found.offset_ns)
            );
        }
        assert_eq!(ClockOffset::of(&[]), None);
    }

    #[test]
    fn another_clock_may_show_less() {
        let reading = ClockReading {
            sent_ns: 1_000_000,
            shown_ns: 40,
            received_ns: 1_000_020,
        };
        let found = ClockOffset::of(&[reading]).unwrap_or_default();
        assert_eq!((found.offset_ns, found.bound_ns), (-999_970, 10));
        assert_eq!(found.there_ns(1_000_010), 40);
    }
}

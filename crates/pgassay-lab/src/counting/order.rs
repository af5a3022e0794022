//! The order in which a round counts its points.
//!
//! What a server did before changes the addresses of a backend's data, and so, slightly, what libc's
//! functions execute. With the same order in every round, this would look like a difference between
//! variants, however many rounds there are. So each round has a random order of servers and of the
//! points on each server, drawn from the run's seed. Its effect is part of the ± of a count.
//!
//! A server is started once per round for all its points.

use pgassay_model::plan::Plan;
use pgassay_stats::random::SplitMix64;

/// The servers of a cluster in start order, with the points of each.
#[derive(Debug, PartialEq, Eq)]
pub struct StartOrder {
    /// Index of a server and indexes of its points in the plan.
    pub servers: Vec<(usize, Vec<usize>)>,
}

impl StartOrder {
    /// The plan's order, for steps that do not affect figures.
    pub fn of_plan(plan: &Plan, cluster: &[usize]) -> Self {
        let points = |server: usize| {
            let all = plan.points.iter().enumerate();
            all.filter(move |(_, point)| point.server == server)
                .map(|(index, _)| index)
                .collect()
        };
        Self {
            servers: cluster.iter().map(|&it| (it, points(it))).collect(),
        }
    }

    /// The order of a round; the same for the same seed.
    pub fn of_round(plan: &Plan, cluster: &[usize], round: u32) -> Self {
        let mut order = Self::of_plan(plan, cluster);
        order.permute(plan.schedule.seed, round);
        order
    }

    fn permute(&mut self, seed: u64, round: u32) {
        // Hash the seed first, so that neighboring seeds and rounds do not share orders.
        let of_seed = SplitMix64::new(seed).next_u64();
        let mut random = SplitMix64::new(of_seed ^ u64::from(round));
        random.shuffle(&mut self.servers);
        for (_, points) in &mut self.servers {
            random.shuffle(points);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn order() -> StartOrder {
        StartOrder {
            servers: vec![(0, vec![0, 2, 4, 6]), (3, vec![1, 3]), (5, vec![5, 7, 8])],
        }
    }

    #[test]
    fn no_variant_is_first_in_every_round() {
        let rounds = 1..=200;
        let orders: Vec<StartOrder> = rounds
            .map(|round| {
                let mut order = order();
                order.permute(1, round);
                order
            })
            .collect();
        let first: BTreeSet<usize> = orders.iter().map(|it| it.servers[0].1[0]).collect();
        assert_eq!(first, (0..9).collect());
        let after = |a: usize, b: usize| {
            let follows = |order: &&StartOrder| {
                let all: Vec<usize> = order.servers.iter().flat_map(|it| it.1.clone()).collect();
                let at = |point| all.iter().position(|it| *it == point);
                at(a) > at(b)
            };
            orders.iter().filter(follows).count()
        };
        // Half of 200 rounds, within five standard deviations.
        for (a, b) in [(0, 6), (0, 1), (3, 8), (5, 7)] {
            assert!(
                (65..=135).contains(&after(a, b)),
                "{a} after {b}: {}",
                after(a, b)
            );
        }
    }

    #[test]
    fn seed_and_round_determine_the_order_of_all_points() {
        let of = |seed, round| {
            let mut order = order();
            order.permute(seed, round);
            order
        };
        assert_eq!(of(7, 2), of(7, 2));
        assert_ne!(of(7, 2), of(7, 3));
        assert_ne!(of(7, 2), of(8, 2));
        let mut sorted = of(7, 2);
        for (_, points) in &mut sorted.servers {
            points.sort_unstable();
        }
        sorted.servers.sort();
        assert_eq!(sorted, order());
    }
}

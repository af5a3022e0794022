//! What each rank runs of a load.
//!
//! Threads are dealt to ranks, and clients to threads, so that the ranks together are one process
//! that was cut between its threads: the same clients on each thread, and so the same random numbers
//! and the same share of the rate. Source of the second: `main` in pgbench.c.

/// What one rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankShare {
    /// The number of its first client.
    pub first_client: u32,
    /// Number of clients, at least 1.
    pub clients: u32,
    /// The number of its first thread.
    pub first_thread: u32,
    /// Number of threads, at least 1.
    pub threads: u32,
}

/// Deals clients and threads to ranks; `None` if there are fewer clients than ranks. Each rank needs
/// a thread, and each thread a client, so the number of threads may be raised or lowered.
pub fn shares(ranks: u32, clients: u32, threads: u32) -> Option<Vec<RankShare>> {
    if ranks == 0 || clients < ranks {
        return None;
    }
    let threads = threads.clamp(ranks, clients);
    let of_rank = |rank| {
        let (first_thread, end_thread) =
            (dealt(threads, ranks, rank), dealt(threads, ranks, rank + 1));
        let first_client = dealt(clients, threads, first_thread);
        RankShare {
            first_client,
            clients: dealt(clients, threads, end_thread) - first_client,
            first_thread,
            threads: end_thread - first_thread,
        }
    };
    Some((0..ranks).map(of_rank).collect())
}

/// How many of `count` the first `hands` of `of` hold. Earlier hands hold at most one more than
/// later ones.
fn dealt(count: u32, of: u32, hands: u32) -> u32 {
    count / of * hands + hands.min(count % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As pgbench deals clients to threads.
    fn of_threads(clients: u32, threads: u32) -> Vec<u32> {
        let mut left = clients;
        let deal = |thread| {
            let count = left.div_ceil(threads - thread);
            left -= count;
            count
        };
        (0..threads).map(deal).collect()
    }

    #[test]
    fn ranks_are_one_process_cut_between_its_threads() {
        for ranks in 1..9_u32 {
            for clients in ranks..40 {
                for asked in [1, 2, 4, 7, 16, 100] {
                    let dealt = shares(ranks, clients, asked).unwrap_or_default();
                    assert_eq!(dealt.len(), ranks as usize);
                    let threads = asked.clamp(ranks, clients);
                    let whole = of_threads(clients, threads);
                    let (mut client, mut thread) = (0, 0);
                    for share in dealt {
                        assert_eq!((share.first_client, share.first_thread), (client, thread));
                        assert!(share.threads > 0 && share.clients >= share.threads);
                        let end = (thread + share.threads) as usize;
                        let own = of_threads(share.clients, share.threads);
                        assert_eq!(own, whole[thread as usize..end]);
                        client += share.clients;
                        thread += share.threads;
                    }
                    assert_eq!((client, thread), (clients, threads));
                }
            }
        }
    }

    #[test]
    fn each_rank_needs_a_client() {
        assert_eq!(shares(4, 3, 4), None);
        assert_eq!(shares(0, 3, 1), None);
    }
}

//! Whether a launcher started this process as one of several ranks.

use std::env;

/// The ranks of a launcher, which tells by environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// This process's rank, from 0.
    pub rank: u32,
    /// Number of ranks, at least 2.
    pub ranks: u32,
}

impl Launched {
    /// Returns the ranks if this process is one of several.
    pub fn from_environment() -> Option<Self> {
        Self::described_by(|name| env::var(name).ok())
    }

    /// Open MPI's mpirun sets the first pair of variables, MPICH's and Slurm's PMI the second, and
    /// `srun --mpi=pmix` the third. Slurm's own variables do not tell: each process in a job has them.
    fn described_by(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name| variable(name)?.parse::<u32>().ok();
        let pairs = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
        ];
        let found = pairs.into_iter().find_map(|(rank, ranks)| {
            let (rank, ranks) = (number(rank)?, number(ranks)?);
            Some(Self { rank, ranks })
        });
        found.filter(|found| found.ranks > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(variables: &[(&str, &str)]) -> Option<Launched> {
        Launched::described_by(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_tells_in_its_own_words() {
        let third_of_four = Some(Launched { rank: 2, ranks: 4 });
        for (rank, ranks) in [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
        ] {
            assert_eq!(described(&[(rank, "2"), (ranks, "4")]), third_of_four);
        }
    }

    #[test]
    fn one_process_is_no_rank() {
        assert_eq!(described(&[]), None);
        let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        assert_eq!(described(&alone), None);
        // A batch script of Slurm, whose commands are not ranks.
        let batch = [("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")];
        assert_eq!(described(&batch), None);
    }
}
